"""Exchanges of training that all methods use.

The configurations and the widths from the start of a run say which reply each client must send. Any
other reply raises a PartyError (`sqlfl.messages.checks`) before a method uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from sqlfl.aggregation.slot_aggregation import (
    average,
    merge_cells,
    merge_pair_cells,
    sum_gradients,
    sum_grams,
)
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import PENALTY, Configuration, TowerConfiguration
from sqlfl.contract.schema import Address
from sqlfl.contract.transforms import COARSE_SIDE, FINE_SIDE
from sqlfl.coordinator.join.scatter_gather import JoinedRows, SlotMembers, all_rows
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.stragglers import Stragglers
from sqlfl.messages import (
    Cells,
    ConsensusAverage,
    ConsensusPart,
    Constant,
    ExactPredictions,
    Gram,
    Message,
    PairCells,
    PartialGradient,
    Predictions,
    Probe,
    Ready,
    Residuals,
    SendCells,
    SendExactPredictions,
    SendGram,
    SendPredictions,
    SendSlope,
    SetGram,
    SetParameters,
    SetStrengths,
    Slope,
    Start,
    Strengths,
    SumGradient,
)
from sqlfl.messages.checks import Expected, ReplyChannel, ask, refused


class Conversation:
    """Exchanges of training, in each of which the blocks of all slots move at once."""

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._channel = channel
        self.whole = all_rows(problem.mapping, problem.slots)
        self._answers = Answers(problem.slots, problem.embedding)
        self._stragglers: Stragglers | None = None
        if problem.lateness is not None:
            self._stragglers = Stragglers(
                problem.run, problem.slots, self.whole, problem.embedding, problem.lateness
            )

    @property
    def late(self) -> int:
        """Return the number of clients whose last step has not ended. Their known predictions are
        older.
        """
        return 0 if self._stragglers is None else self._stragglers.late

    def missed(self) -> int:
        """Return how many replies the steps have gone on without since the last call."""
        return 0 if self._stragglers is None else self._stragglers.missed()

    def start(self, configuration: Callable[..., Configuration]) -> None:
        """Send `Start` to every client. `configuration` takes the fields that all methods send
        about a slot.
        """
        configurations = {
            address: configuration(**self._slot(members, number))
            for members in self._problem.slots
            for number, address in enumerate(members.addresses)
        }
        requests = {
            address: Start(self._problem.run, address[1], settings.method, settings.to_json())
            for address, settings in configurations.items()
        }
        replies = ask(self._channel, requests, Answers.started)
        self._answers.begin(requests, configurations, replies)

    def _slot(self, members: SlotMembers, number: int) -> dict[str, Any]:
        """Return the fields of `Configuration` for the client with this number in a slot."""
        problem = self._problem
        rounds = {} if problem.privacy is None else problem.privacy.rounds
        noise = rounds.get(members.slot)
        capped = noise is not None and noise.row_weight > 0.0
        return {
            "outputs": problem.embedding,
            "rows": problem.mapping.total,
            "total": problem.total,
            "clients": len(members.addresses),
            "leader": number == 0,
            "l2": problem.l2,
            "curvature": problem.loss.curvature,
            "keep": problem.options.patience or 0,
            "tower": _tower(problem, number),
            "privacy": noise,
            **({"exempt": _made_up(members, number)} if capped and len(members.virtual) else {}),
        }

    def predictions(
        self, rows: JoinedRows | None = None, *, training: bool = False
    ) -> dict[Address, Predictions]:
        """Return h of `rows`, or of all rows, at the current blocks, and the penalties: one
        exchange.

        training: towers drop units, and the values of the next step belong to these predictions.
        """
        batch = None if rows is None else rows.rows
        asked = {
            address: SendPredictions(
                self._problem.run,
                members.slot,
                training=int(training),
                batch=np.zeros(0, np.uint32) if batch is None else batch[address],
                whole=int(batch is None),
            )
            for members in self._problem.slots
            for address in members.addresses
        }
        rows = rows or self.whole
        replies = ask(self._channel, asked, self._answers.predictions(rows))
        if self._stragglers is not None:
            self._stragglers.predicted(rows, replies)
        return replies

    def exact_predictions(self) -> dict[Address, ExactPredictions]:
        """Return h of all rows in 8-byte numbers at the current blocks, and the penalties: one
        exchange.

        The later exchanges of lbfgs are exact too, until residuals come in 4-byte numbers again.
        """
        asked = {
            address: SendExactPredictions(self._problem.run, members.slot)
            for members in self._problem.slots
            for address in members.addresses
        }
        return ask(self._channel, asked, self._answers.exact_predictions(self.whole))

    def slopes(self, sums: Sequence[Array]) -> list[Array]:
        """Return the norms of the gradient of each slot's block from its Y (d_c, n_i), as `Slope`
        has them. This takes one exchange, and one more for shared slots.
        """
        requests: dict[Address, Message] = {
            address: SendSlope(self._problem.run, address[1], aggregate)
            for address, aggregate in self.whole.split(sums).items()
        }
        replies: dict[Address, Slope] = self._settle(requests, self._answers.slopes())
        return [replies[members.addresses[0]].squares for members in self._problem.slots]

    def share_grams(self) -> None:
        """Sum the second moments of shared slots and send the sums back. It makes no exchange if no
        slot is shared.
        """
        shared = [members for members in self._problem.slots if members.shared]
        if not shared:
            return
        run = self._problem.run
        asked = {a: SendGram(run, members.slot) for members in shared for a in members.addresses}
        replies = ask(self._channel, asked, self._answers.gram)
        sums: dict[Address, SetGram] = {}
        for members in shared:
            total = sum_grams([replies[address] for address in members.addresses])
            sums |= dict.fromkeys(members.addresses, total)
        ask(self._channel, sums, self._answers.ready)

    def moments(self) -> list[SetGram]:
        """Return noised second moments of each slot, summed over its clients: one exchange."""
        run = self._problem.run
        slots = self._problem.slots
        asked = {a: SendGram(run, members.slot) for members in slots for a in members.addresses}
        replies = ask(self._channel, asked, self._answers.gram)
        return [sum_grams([replies[a] for a in members.addresses]) for members in slots]

    def label_moments(self, values: Mapping[int, Array]) -> dict[int, Array]:
        """Return noised sums of the columns of some slots, by their place, times `values` (n_i, c),
        over their clients: (d_i, c) each. This takes one exchange.
        """
        run, slots = self._problem.run, self._problem.slots
        requests: dict[Address, Message] = {
            a: Residuals(run, a[1], np.asarray(values[place][start:end], np.float32))
            for place, members in enumerate(slots)
            if place in values
            for a, (start, end) in zip(members.addresses, pairwise(members.offsets), strict=True)
        }
        replies = ask(self._channel, requests, self._answers.partial)
        return {
            place: sum_gradients([replies[a].values for a in slots[place].addresses])
            for place in values
        }

    def fits(self, place: int, block: Array) -> tuple[Array, float]:
        """Send one slot a block (d, c). Return the noised fits of its rows (n, c), and the standard
        deviation of the noise in each number. This takes two exchanges.
        """
        run, members = self._problem.run, self._problem.slots[place]
        self.set_parameters({place: block})
        asked = {a: SendPredictions(run, members.slot) for a in members.addresses}
        replies = ask(self._channel, asked, self._answers.predictions(self.whole))
        parts = [np.asarray(replies[a].values, np.float64) for a in members.addresses]
        (noise,) = replies[members.addresses[0]].products
        return np.concatenate(parts), float(noise)

    def renew_strengths(
        self, told: Mapping[int, tuple[float, float]], pairs: Mapping[int, int]
    ) -> dict[int, float]:
        """Renew the strengths of blocks in one exchange. Return the degrees of freedom of each
        block by slot, which all its clients compute alike.

        `told` has (dispersion, curvature) by slot, as in `SetStrengths`; `pairs` has the number of
        pairs to add to a slot."""
        run = self._problem.run
        at = {m.slot: m.addresses for m in self._problem.slots}
        asked = {
            address: SetStrengths(run, slot, *numbers, pairs.get(slot, 0))
            for slot, numbers in told.items()
            for address in at[slot]
        }
        replies = ask(self._channel, asked, lambda _: Expected(Strengths))
        return {slot: replies[at[slot][0]].freedom for slot in told}

    def share_pairs(
        self, scales: Mapping[int, tuple[float, float]], pairs: Mapping[int, int]
    ) -> None:
        """Let the clients of shared slots choose pairs together, by sums over cells of all their
        rows: three exchanges, none without such slots. `scales`: (dispersion, curvature) of slots;
        `pairs` as in `renew_strengths`."""
        run, outputs = self._problem.run, self._problem.outputs
        at = {m.slot: m.addresses for m in self._problem.slots if m.shared and m.slot in pairs}
        if not at:
            return
        asked = {a: SendCells(run, slot) for slot, addresses in at.items() for a in addresses}
        sizes = {
            slot: {"cells": COARSE_SIDE**2 * self._problem.crossings[slot], "outputs": outputs}
            for slot in at
        }
        replies = ask(self._channel, asked, lambda a: Expected(Cells, sizes[a[1]]))
        merged = {
            a: merge_cells([replies[b] for b in addresses], *scales[slot], pairs[slot])
            for slot, addresses in at.items()
            for a in addresses
        }
        fine = FINE_SIDE**2
        chosen = ask(
            self._channel,
            merged,
            lambda a: Expected(PairCells, {"pairs": pairs[a[1]], "cells": fine}),
        )
        counts = {
            a: merge_pair_cells([chosen[b] for b in addresses])
            for addresses in at.values()
            for a in addresses
        }
        ready = ask(self._channel, counts, lambda _: Expected(Ready))
        self._answers.widen(counts, ready)

    def set_parameters(self, blocks: Mapping[int, Array]) -> dict[int, Array]:
        """Send slots, by their place, their blocks (d_i, c). Return the constants (c,) that the
        centres of their columns amount to. This takes one exchange.
        """
        run, slots = self._problem.run, self._problem.slots
        requests: dict[Address, Message] = {
            a: SetParameters(run, a[1], np.ascontiguousarray(block, np.float64))
            for place, block in blocks.items()
            for a in slots[place].addresses
        }
        sizes = {"outputs": self._problem.outputs}
        replies = ask(self._channel, requests, lambda _: Expected(Constant, sizes))
        return {n: np.array(replies[slots[n].addresses[0]].values) for n in blocks}

    def settle(
        self, requests: dict[Address, Message], last: Callable[[Address], Expected[Any]]
    ) -> dict[Address, Any]:
        """Send every client a request. Shared slots sum their gradients first; the final replies
        are as `last` says. This takes one exchange, and one more for shared slots.
        """
        return self._settle(requests, self._answers.settled(last))

    def tell(self, requests: Mapping[Address, Message]) -> None:
        """Send requests that have no result: one exchange."""
        ask(self._channel, requests, self._answers.ready)

    @property
    def widths(self) -> Mapping[Address, int]:
        """Return the number of encoded columns of each client."""
        return self._answers.widths

    def step(
        self,
        rows: JoinedRows,
        sums: Sequence[Array],
        residuals: Callable[[Address, Array], Residuals],
        following: JoinedRows | None = None,
        *,
        exact: bool = False,
    ) -> dict[Address, Predictions]:
        """Make a step of every block from `sums`, the Y of each slot's rows: (d_c, n_i). Return
        predictions.

        residuals: makes the method's message to a client from its rows' part of the sums. rows,
        following: the rows of the last predictions, and the rows to predict next. exact: use 8-byte
        numbers in both directions.

        This takes one exchange, and one more for shared slots (consensus: one for each inner
        round). Late clients (`Stragglers`) count with their last known predictions.
        """
        requests = {
            address: residuals(address, aggregate)
            for address, aggregate in rows.split(sums, exact=exact).items()
        }
        following = following or self.whole
        answers = self._answers.step(following, exact=exact)
        if self._stragglers is None:
            return self._settle(requests, answers)
        settle = partial(self._settle, answers=answers)
        return self._stragglers.step(rows, following, requests, settle)

    def advance(
        self,
        rows: JoinedRows,
        sums: Sequence[Array],
        residuals: Callable[[Address, Array], Residuals],
    ) -> None:
        """Make a step of every block after which the clients predict nothing."""
        requests: dict[Address, Message] = {
            address: residuals(address, aggregate)
            for address, aggregate in rows.split(sums).items()
        }
        self._settle(requests, self._answers.stepped())

    def probe(self, sums: Sequence[Array]) -> list[Array]:
        """Make one power round. It takes a vector's sums over the rows of each slot, (1, n_i). It
        returns each slot's part of the image, (1, n_i). Sums of partial gradients need two
        exchanges.
        """
        requests: dict[Address, Message] = {
            address: Probe(self._problem.run, address[1], aggregate)
            for address, aggregate in self.whole.split(sums).items()
        }
        replies = self._settle(requests, self._answers.probe(self.whole))
        return [values.T for values in self.whole.concatenate(replies)]

    def _settle(
        self, requests: Mapping[Address, Message], answers: Sequence[Expect]
    ) -> dict[Address, Any]:
        """Merge the parts of shared slots' clients, exchange by exchange. Return the last reply of
        every client.
        """
        last_replies: dict[Address, Any] = {}
        for expected in answers:
            if not requests:
                break
            replies = ask(self._channel, requests, expected)
            following: dict[Address, Message] = {}
            for members in self._problem.slots:
                parts = [replies[a] for a in members.addresses if a in replies]
                merged = _merged(parts)
                if merged is None:
                    last_replies |= {a: replies[a] for a in members.addresses if a in replies}
                else:
                    following |= dict.fromkeys(members.addresses, merged)
            requests = following
        return last_replies

    def products(self, replies: Mapping[Address, Predictions]) -> Array:
        """Return the products that each slot's first client sent: float64 (slots, k)."""
        return np.array([replies[m.addresses[0]].products for m in self._problem.slots], np.float64)


def _made_up(members: SlotMembers, number: int) -> tuple[int, ...]:
    """Return the numbers of the client's active rows that a LEFT JOIN added."""
    start, end = members.offsets[number : number + 2]
    added_rows = members.virtual[(members.virtual >= start) & (members.virtual < end)] - start
    return tuple(added_rows.tolist())


def _tower(problem: Problem, number: int) -> TowerConfiguration | None:
    tower = problem.tower
    if tower is None:
        return None
    return TowerConfiguration(
        hidden=tower.hidden,
        activation=tower.activation,
        dropout=tower.dropout,
        seed=problem.seed,
        number=number,
        device=tower.device,
    )


def _merged(parts: Sequence[Message]) -> SumGradient | ConsensusAverage | None:
    """Return the merged message for the clients of a slot; None if they have sent predictions."""
    gradients = [part for part in parts if isinstance(part, PartialGradient)]
    if gradients:
        total = sum_gradients([part.values for part in gradients])
        return SumGradient(gradients[0].run, gradients[0].slot, total)
    shares = [part for part in parts if isinstance(part, ConsensusPart)]
    if shares:
        mean = average([part.values for part in shares])
        return ConsensusAverage(shares[0].run, shares[0].slot, mean)
    return None


Expect: TypeAlias = Callable[[Address], Expected[Any]]


@dataclass(frozen=True, eq=False)
class _Client:
    configuration: Configuration
    width: int
    """Number of encoded columns."""

    @property
    def merging(self) -> tuple[type[Message], int]:
        """Return the type of the messages that a step sends to be merged, and their number."""
        averagings = self.configuration.averagings
        if averagings or not self.configuration.shared:
            return ConsensusPart, averagings
        return PartialGradient, 1

    def products(self, number: int) -> int:
        return number if self.configuration.leader else 0


class Answers:
    """Expected replies of the clients of some slots. `begin` must have received their widths first.

    outputs : number of values in the prediction of a row.
    """

    def __init__(self, slots: Sequence[SlotMembers], outputs: int) -> None:
        self._slots = slots
        self._outputs = outputs
        self._clients: dict[Address, _Client] = {}

    @staticmethod
    def started(address: Address) -> Expected[Ready]:
        """Return the expected reply to `Start`."""
        return Expected(Ready)

    def begin(
        self,
        requests: Mapping[Address, Message],
        configurations: Mapping[Address, Configuration],
        replies: Mapping[Address, Ready],
    ) -> None:
        """Keep configurations and widths. Raise PartyError where clients of one slot have different
        numbers of columns.
        """
        self._clients = {a: _Client(own, 0) for a, own in configurations.items()}
        self.widen(requests, replies)

    def widen(self, requests: Mapping[Address, Message], replies: Mapping[Address, Ready]) -> None:
        """Keep the widths of some slots. Raise PartyError as `begin` does."""
        for members in self._slots:
            if members.addresses[0] not in replies:
                continue
            first = replies[members.addresses[0]].width
            for address in members.addresses:
                width = replies[address].width
                if width != first:
                    what = f"has {width} encoded columns, and others of its slot have {first}"
                    raise refused(address[0], requests[address], what)
                self._clients[address] = replace(self._clients[address], width=width)

    def ready(self, address: Address) -> Expected[Ready]:
        """Return the expected reply to a request without a result: the same width as before."""
        width = self._of(address).width
        return Expected(
            Ready,
            fault=lambda reply: (
                None if reply.width == width else f"has {reply.width} columns of {width}"
            ),
        )

    def gram(self, address: Address) -> Expected[Gram]:
        """Return the expected Gram matrix, which has as many columns as the client reported."""
        return Expected(Gram, {"columns": self._of(address).width})

    def partial(self, address: Address) -> Expected[PartialGradient]:
        """Return the expected part of a sum over the slot's rows. It is as large as the block."""
        client = self._of(address)
        parameters, outputs = client.configuration.parameters(client.width)
        return Expected(PartialGradient, {"parameters": parameters, "outputs": outputs})

    def predictions(self, rows: JoinedRows) -> Callable[[Address], Expected[Predictions]]:
        """Return the expected predictions of these rows, where no step comes before them."""
        return lambda address: self._predicted(address, rows, PENALTY, self._outputs)

    def exact_predictions(self, rows: JoinedRows) -> Callable[[Address], Expected[Any]]:
        """Return the expected predictions of these rows in 8-byte numbers."""
        return lambda address: self._predicted(address, rows, PENALTY, self._outputs, exact=True)

    def step(self, following: JoinedRows, *, exact: bool = False) -> list[Expect]:
        """Return the expected replies to a step and to its merged parts, one for each exchange. The
        last replies are predictions of the rows `following`.
        """
        first = next(iter(self._clients.values()))
        products = first.configuration.products

        def last(address: Address) -> Expected[Any]:
            return self._predicted(address, following, products, self._outputs, exact=exact)

        return self._merged({a: c.merging for a, c in self._clients.items()}, self._outputs, last)

    def settled(self, last: Expect) -> list[Expect]:
        """Return the expected replies to merged parts. The last ones are as `last` says."""
        return self._merged({a: c.merging for a, c in self._clients.items()}, self._outputs, last)

    @property
    def widths(self) -> Mapping[Address, int]:
        return {address: client.width for address, client in self._clients.items()}

    def stepped(self) -> list[Expect]:
        """Return the expected replies to a step after which the clients send no predictions."""
        merging = {a: c.merging for a, c in self._clients.items()}
        return self._merged(merging, self._outputs, self.ready)

    def probe(self, rows: JoinedRows) -> list[Expect]:
        """Return the expected replies to a power round. Consensus has no parts to merge in it."""
        merging = {a: c.merging for a, c in self._clients.items()}
        merging |= {a: (k, 0) for a, (k, _) in merging.items() if k is not PartialGradient}
        return self._merged(merging, 1, lambda a: self._predicted(a, rows, 0, 1))

    def slopes(self) -> list[Expect]:
        """Return the expected replies to a request for gradient norms. Several clients of a slot
        first sum their gradients.
        """
        merging = {
            a: (PartialGradient, int(c.configuration.shared)) for a, c in self._clients.items()
        }

        def last(address: Address) -> Expected[Any]:
            client = self._of(address)
            return Expected(
                Slope, {"squares": client.products(1 + int(client.configuration.metric))}
            )

        return self._merged(merging, self._outputs, last)

    def _merged(
        self,
        merging: Mapping[Address, tuple[type[Message], int]],
        outputs: int,
        last: Expect,
    ) -> list[Expect]:
        """Return the expected replies of each exchange.

        merging: the message type that each client sends to be merged, and how often, before its
        `last` reply.
        """

        def at(exchange: int) -> Expect:
            def expected(address: Address) -> Expected[Any]:
                kind, often = merging[address]
                if exchange >= often:
                    return last(address)
                client = self._of(address)
                parameters, wide = client.configuration.parameters(client.width)
                return Expected(
                    kind, {"parameters": parameters, "outputs": 1 if outputs == 1 else wide}
                )

            return expected

        return [at(exchange) for exchange in range(max(n for _, n in merging.values()) + 1)]

    def _predicted(
        self,
        address: Address,
        rows: JoinedRows,
        products: int,
        outputs: int,
        *,
        exact: bool = False,
    ) -> Expected[Any]:
        sizes = {
            "rows": rows.sizes[address],
            "outputs": outputs,
            "products": self._of(address).products(products),
        }
        return Expected(ExactPredictions if exact else Predictions, sizes)

    def _of(self, address: Address) -> _Client:
        if address not in self._clients:
            raise InternalError(f"client {address[0]} has not been started")
        return self._clients[address]
