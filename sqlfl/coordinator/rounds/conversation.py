"""Exchanges of training that all methods use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sqlfl.aggregation.slot_aggregation import average, sum_gradients, sum_grams
from sqlfl.base.arrays import Array
from sqlfl.contract.configuration import Configuration, TowerConfiguration
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.scatter_gather import JoinedRows, all_rows
from sqlfl.coordinator.join.slot_members import SlotMembers
from sqlfl.coordinator.rounds.answers import Answers, Expect
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.stragglers import Stragglers
from sqlfl.messages import (
    ConsensusAverage,
    ConsensusPart,
    Constant,
    ExactPredictions,
    Message,
    PartialGradient,
    Predictions,
    Probe,
    Residuals,
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
from sqlfl.messages.replies import Expected, ReplyChannel, ask


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
        """Of slots by (dispersion, curvature), as `SetStrengths` has them: the degrees of freedom
        of each block. `pairs`: how many are to be added to slots. One exchange."""
        run = self._problem.run
        at = {m.slot: m.addresses[0] for m in self._problem.slots}
        asked = {
            at[slot]: SetStrengths(run, slot, *own, pairs.get(slot, 0))
            for slot, own in told.items()
        }
        replies = ask(self._channel, asked, lambda _: Expected(Strengths))
        return {slot: replies[at[slot]].freedom for slot in told}

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
