"""The exchanges of training, as all methods have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    """The exchanges of training: every slot's block moves at once."""

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
        """Clients whose last step has not ended: what is known of them is older."""
        return 0 if self._stragglers is None else self._stragglers.late

    def missed(self) -> int:
        """Answers that steps have gone on without since this was last asked."""
        return 0 if self._stragglers is None else self._stragglers.missed()

    def start(self, configuration: Callable[..., Configuration]) -> None:
        """`Start` to every client. `configuration` takes what all methods tell of a slot."""
        told = {
            address: configuration(**self._slot(members, number))
            for members in self._problem.slots
            for number, address in enumerate(members.addresses)
        }
        requests = {
            address: Start(self._problem.run, address[1], own.method, own.to_json())
            for address, own in told.items()
        }
        replies = ask(self._channel, requests, Answers.started)
        self._answers.begin(requests, told, replies)

    def _slot(self, members: SlotMembers, number: int) -> dict[str, Any]:
        """The fields of `Configuration`, of a slot's client of that number."""
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
        """h of `rows`, or of all, as the blocks stand, and their penalties: one exchange.

        training: by towers that drop units; the next step's values belong to these predictions.
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
        """h of all rows in 8-byte numbers, as the blocks stand, and their penalties: one exchange.

        What follows in lbfgs is exact too, until residuals come in 4-byte numbers again.
        """
        asked = {
            address: SendExactPredictions(self._problem.run, members.slot)
            for members in self._problem.slots
            for address in members.addresses
        }
        return ask(self._channel, asked, self._answers.exact_predictions(self.whole))

    def slopes(self, sums: Sequence[Array]) -> list[Array]:
        """Norms of the gradient of each slot's block from its Y (d_c, n_i): as `Slope` has them.
        One exchange, and for shared slots one more."""
        requests: dict[Address, Message] = {
            address: SendSlope(self._problem.run, address[1], aggregate)
            for address, aggregate in self.whole.split(sums).items()
        }
        replies: dict[Address, Slope] = self._settle(requests, self._answers.slopes())
        return [replies[members.addresses[0]].squares for members in self._problem.slots]

    def share_grams(self) -> None:
        """Second moments of shared slots, summed; no exchange where there are none."""
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
        """Noised second moments of each slot, summed over its clients: one exchange."""
        run = self._problem.run
        slots = self._problem.slots
        asked = {a: SendGram(run, members.slot) for members in slots for a in members.addresses}
        replies = ask(self._channel, asked, self._answers.gram)
        return [sum_grams([replies[a] for a in members.addresses]) for members in slots]

    def label_moments(self, values: Sequence[Array]) -> list[Array]:
        """Noised sums of each slot's columns times `values` (n_i, c), over its clients: (d_i, c)
        each. One exchange."""
        run = self._problem.run
        requests: dict[Address, Message] = {
            a: Residuals(run, a[1], part)
            for a, part in self.whole.split([own.T for own in values]).items()
        }
        replies = ask(self._channel, requests, self._answers.partial)
        return [
            sum_gradients([replies[a].values for a in members.addresses])
            for members in self._problem.slots
        ]

    def renew_strengths(self, told: Mapping[int, tuple[float, float]]) -> dict[int, float]:
        """Of slots by (dispersion, curvature), as `SetStrengths` has them: the degrees of freedom
        of each block. One exchange."""
        run = self._problem.run
        at = {m.slot: m.addresses[0] for m in self._problem.slots}
        asked = {at[slot]: SetStrengths(run, slot, *own) for slot, own in told.items()}
        replies = ask(self._channel, asked, lambda _: Expected(Strengths))
        return {slot: replies[at[slot]].freedom for slot in told}

    def set_parameters(self, blocks: Sequence[Array]) -> list[Array]:
        """Tell each slot its block (d_i, c); what its columns' centre comes to: (c,). One
        exchange."""
        run, slots = self._problem.run, self._problem.slots
        requests: dict[Address, Message] = {
            a: SetParameters(run, a[1], np.ascontiguousarray(block, np.float64))
            for members, block in zip(slots, blocks, strict=True)
            for a in members.addresses
        }
        sizes = {"outputs": self._problem.outputs}
        replies = ask(self._channel, requests, lambda _: Expected(Constant, sizes))
        return [np.array(replies[members.addresses[0]].values) for members in slots]

    def settle(
        self, requests: dict[Address, Message], last: Callable[[Address], Expected[Any]]
    ) -> dict[Address, Any]:
        """A question to every client, whose gradients shared slots sum first; to what they answer
        in the end replies are as `last` says. One exchange, and for shared slots one more."""
        return self._settle(requests, self._answers.settled(last))

    def tell(self, requests: Mapping[Address, Message]) -> None:
        """One exchange, of which nothing comes back."""
        ask(self._channel, requests, self._answers.ready)

    @property
    def widths(self) -> Mapping[Address, int]:
        """Encoded columns of each client."""
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
        """Every block's step from `sums`, Y of each slot's rows: (d_c, n_i).

        residuals: the method's message to a client, from its rows' part of them.
        `rows` are those of the last predictions, `following` those to be predicted next. One
        exchange, and for shared slots one more (consensus: one per inner round). `exact`: in
        8-byte numbers, there and back. Of clients that are late (`Stragglers`), what is known last.
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
        """The same of clients that predict nothing then."""
        requests: dict[Address, Message] = {
            address: residuals(address, aggregate)
            for address, aggregate in rows.split(sums).items()
        }
        self._settle(requests, self._answers.stepped())

    def probe(self, sums: Sequence[Array]) -> list[Array]:
        """One power round, from a vector's sums over the rows of each slot (1, n_i) to its image's
        part of each slot: (1, n_i). Two exchanges where partial gradients are summed."""
        requests: dict[Address, Message] = {
            address: Probe(self._problem.run, address[1], aggregate)
            for address, aggregate in self.whole.split(sums).items()
        }
        replies = self._settle(requests, self._answers.probe(self.whole))
        return [values.T for values in self.whole.concatenate(replies)]

    def _settle(
        self, requests: Mapping[Address, Message], answers: Sequence[Expect]
    ) -> dict[Address, Any]:
        """Merges what the clients of shared slots send until every client has given the last of
        these answers."""
        found: dict[Address, Any] = {}
        for expected in answers:
            if not requests:
                break
            replies = ask(self._channel, requests, expected)
            following: dict[Address, Message] = {}
            for members in self._problem.slots:
                parts = [replies[a] for a in members.addresses if a in replies]
                merged = _merged(parts)
                if merged is None:
                    found |= {a: replies[a] for a in members.addresses if a in replies}
                else:
                    following |= dict.fromkeys(members.addresses, merged)
            requests = following
        return found

    def products(self, replies: Mapping[Address, Predictions]) -> Array:
        """What each slot's first client sent of its block: float64 (slots, k)."""
        return np.array([replies[m.addresses[0]].products for m in self._problem.slots], np.float64)


def _made_up(members: SlotMembers, number: int) -> tuple[int, ...]:
    """The client's active rows that a LEFT JOIN made up."""
    start, end = members.offsets[number : number + 2]
    own = members.virtual[(members.virtual >= start) & (members.virtual < end)] - start
    return tuple(own.tolist())


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
    """What goes back to the clients of a slot; None where they have predicted."""
    gradients = [part for part in parts if isinstance(part, PartialGradient)]
    if gradients:
        total = sum_gradients([part.values for part in gradients])
        return SumGradient(gradients[0].run, gradients[0].slot, total)
    shares = [part for part in parts if isinstance(part, ConsensusPart)]
    if shares:
        mean = average([part.values for part in shares])
        return ConsensusAverage(shares[0].run, shares[0].slot, mean)
    return None
