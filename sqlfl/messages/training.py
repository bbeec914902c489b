"""Messages of the rounds of training, and of sums under masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from sqlfl.base.errors import InternalError
from sqlfl.contract.transforms import MAX_PAIRS
from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, arrays, integer, real, text, texts

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


def no_rows() -> Array:
    """Return an empty batch."""
    import numpy as np

    return np.zeros(0, np.uint32)


def listing_fault(joined: int, rows: Array, places: Array) -> str | None:
    """Return the fault in a list of a client's `rows` that occur in some of `joined` joined rows.
    The joined rows are at the ascending `places`; without places, the list covers all of them.
    """
    listed, given = len(rows), len(places)
    fits = given == listed and int(places[-1]) < joined if given else listed in (0, joined)
    return None if fits else f"{listed} rows are listed at {given} places of {joined} joined rows"


@dataclass(frozen=True, eq=False)
class Start(Message):
    """Coordinator to client: begin training of the slot's block."""

    kind = "start"
    words = "options of training"
    method: str = field(metadata=text())
    """Name of the method."""
    configuration: str = field(metadata=text())
    """JSON of the method's `Configuration`."""


@dataclass(frozen=True, eq=False)
class SendGram(Message):
    kind = "send_gram"


@dataclass(frozen=True, eq=False)
class Gram(Message):
    """Client to coordinator, and back summed: Σ cnt x xᵀ over encoded columns before centring.

    Only slots of several clients send it. There are p numeric columns, including missing
    indicators, and q one-hot columns.
    """

    kind = "gram"
    words = "sums of products of two encoded columns over rows"
    numeric: Array = field(metadata=array("float64", "numeric", "numeric"))
    cross: Array = field(metadata=array("float64", "onehot", "numeric"))
    rows: Array = field(metadata=array("uint32", "stored", below="onehot"))
    """Row of each stored value of the one-hot block's upper triangle."""
    columns: Array = field(metadata=array("uint32", "stored", below="onehot"))
    values: Array = field(metadata=array("float64", "stored"))
    moments: Array = field(metadata=array("float64", "columns"))
    """p + q numbers: Σ cnt x."""
    weight: float = field(metadata=real(least=0))
    """Σ cnt."""

    def fault(self) -> str | None:
        if len(self.moments) != len(self.numeric) + len(self.cross):
            return f"{len(self.moments)} moments of {len(self.numeric)} + {len(self.cross)} columns"
        if (self.rows > self.columns).any():
            return "stored values below the diagonal"
        return None


@dataclass(frozen=True, eq=False)
class SetGram(Gram):
    kind = "set_gram"
    words = "second moments summed over the slot's clients"


@dataclass(frozen=True, eq=False)
class Residuals(Message):
    """Coordinator to client: the residuals summed for each row, and the step to take.

    A method whose steps have scalars, or batches, adds them in a class of its own.
    """

    kind = "residuals"
    words = "Y, the residuals summed per row; scalars of the step"
    residual = True
    exact: ClassVar[bool] = False
    """True for 8-byte numbers. The reply, or the reply to the sum of partial gradients, has them
    too.
    """
    values: Array = field(metadata=array("float32", "rows", "outputs", finite=False))
    """Y of the active rows, or of those of the last batch."""

    @property
    def following(self) -> Array | None:
        """Return the active rows to predict next; None for all of them."""
        return None

    def towards(self, following: Array | None) -> Self:
        """Return the same step with these rows to predict next."""
        if following is not None:
            raise InternalError(f"{self.kind} of {self.of_method} is of all rows")
        return self


@dataclass(frozen=True, eq=False)
class PartialGradient(Message):
    """Client to coordinator, for slots of several clients: Σ_r ∂(h_r·Y[r])/∂θ over its own rows.

    For linear blocks that is Σ_r x_r Y[r]ᵀ.
    """

    kind = "partial_gradient"
    words = "sums over rows of what each coefficient is to change by"
    values: Array = field(metadata=array("float64", "parameters", "outputs"))
    """(d, d_c); for a tower (size, 1), as TowerShape.pack has it."""


@dataclass(frozen=True, eq=False)
class SumGradient(Message):
    """Coordinator to the clients of a slot: the sum of their partial gradients."""

    kind = "sum_gradient"
    words = "sum of the clients' partial gradients"
    values: Array = field(metadata=array("float64", "parameters", "outputs", finite=False))


@dataclass(frozen=True, eq=False)
class Predictions(Message):
    """Client to coordinator: one vector for each active (or batch) row, and the block's scalars."""

    kind = "predictions"
    words = "for each row, numbers that the model makes of its features"
    values: Array = field(metadata=array("float32", "rows", "outputs"))
    products: Array = field(metadata=array("float64", "products"))
    """Inner products or the penalty of the block; empty at all but one client."""


@dataclass(frozen=True, eq=False)
class ExactPredictions(Predictions):
    """The same in 8-byte numbers."""

    kind = "exact_predictions"
    words = "for each row, numbers that the model makes of its features, in 8 bytes"
    values: Array = field(metadata=array("float64", "rows", "outputs"))


@dataclass(frozen=True, eq=False)
class SendExactPredictions(Message):
    """Coordinator to client: a request for predictions h of all active rows at the current block,
    in 8 bytes.
    """

    kind = "send_exact_predictions"


@dataclass(frozen=True, eq=False)
class SendSlope(Message):
    """Coordinator to client: a request for the size of the objective's gradient at the current
    block.
    """

    kind = "send_slope"
    words = "Y, the residuals summed per row"
    values: Array = field(metadata=array("float32", "rows", "outputs", finite=False))
    """Y of all active rows, at the client's last predictions."""


@dataclass(frozen=True, eq=False)
class Slope(Message):
    """Client to coordinator, from one client of the slot: norms of g = Xᵀ Y / N + l2 θ."""

    kind = "slope"
    words = "a number that tells how far training has come"
    squares: Array = field(metadata=array("float64", "squares", least=0))
    """‖g‖², and gᵀP g with P the inverse of the block's second moments. It is (1,) if the client
    does not have the slot's second moments, and (0,) at all clients but the first.
    """


@dataclass(frozen=True, eq=False)
class SetStrengths(Message):
    """Coordinator to client: find the strength of each group of columns anew, by Fellner and
    Schall's step (Wood and Fasiolo 2017, equation 7), from the block as it stands."""

    kind = "set_strengths"
    words = "dispersion and mean curvature, for the strengths of curves, categories and pairs"
    dispersion: float = field(metadata=real(least=0))
    """φ over the number of rows, as the block's own rows have it."""
    curvature: float = field(metadata=real(least=0))
    """Mean second derivative of the loss by a score."""
    pairs: int = field(default=0, metadata=integer(most=MAX_PAIRS))
    """Pairs of features of the table to be added first, at most: the best ones by the last
    residuals."""


@dataclass(frozen=True, eq=False)
class Strengths(Message):
    """Client to coordinator: the strengths have been found anew."""

    kind = "strengths"
    words = "effective degrees of freedom of the block"
    freedom: float = field(metadata=real(least=0))
    """Σ edf over all groups of columns, and one for each other column."""


@dataclass(frozen=True, eq=False)
class SendCells(Message):
    """Coordinator to the clients of a slot: a request for the sums by which pairs of features are
    ranked, at the last residuals."""

    kind = "send_cells"


@dataclass(frozen=True, eq=False)
class Cells(Message):
    """Client to coordinator: sums over its rows by crossed cells of each two features."""

    kind = "cells"
    words = "residuals and counts of rows, summed over coarse cells of each two features"
    slopes: Array = field(metadata=array("float64", "cells", "outputs"))
    """Σ Y of the rows of a cell; 0 of cells of which the client does not tell."""
    counts: Array = field(metadata=array("float64", "cells", least=0))
    """Σ cnt of the same rows."""
    most: int = field(metadata=integer(1))
    """Cells of a pair that the client's owner allows."""
    room: int = field(metadata=integer())
    """Cells of all pairs that it allows."""


@dataclass(frozen=True, eq=False)
class SetCells(Message):
    """Coordinator to the clients of a slot: `Cells` over all of them. Each finds the same pairs by
    it, and answers with their cells."""

    kind = "set_cells"
    words = "the same sums over all clients; dispersion and mean curvature"
    slopes: Array = field(metadata=array("float64", "cells", "outputs"))
    counts: Array = field(metadata=array("float64", "cells", least=0))
    most: int = field(metadata=integer(1))
    room: int = field(metadata=integer())
    dispersion: float = field(metadata=real(least=0))
    """As in `SetStrengths`."""
    curvature: float = field(metadata=real(least=0))
    pairs: int = field(metadata=integer(1, MAX_PAIRS))
    """Pairs of features to be added, at most."""


@dataclass(frozen=True, eq=False)
class PairCells(Message):
    """Client to coordinator: counts of its rows in the cells of the pairs that were chosen."""

    kind = "pair_cells"
    words = "counts of rows by cells of the chosen pairs of features"
    counts: Array = field(metadata=array("float64", "pairs", "cells", least=0))
    """Σ cnt; 0 of cells of which the client does not tell, and of pairs that are not chosen."""
    whole: int = field(metadata=integer(most=1))
    """1 if it tells of all cells that have rows."""


@dataclass(frozen=True, eq=False)
class SetPairCells(Message):
    """Coordinator to the clients of a slot: `PairCells` over all of them; 0 of cells of which some
    client does not tell."""

    kind = "set_pair_cells"
    words = "the same counts over all clients"
    counts: Array = field(metadata=array("float64", "pairs", "cells", least=0))


@dataclass(frozen=True, eq=False)
class SendPredictions(Message):
    """Coordinator to client: a request for predictions h of rows at the current block, without a
    step.

    It comes at the start of a warm start and of towers. If towers drop units, it comes in each
    epoch.
    """

    kind = "send_predictions"
    training: int = field(default=0, metadata=integer(most=1))
    """1 for dropout; the residuals of these predictions come next."""
    batch: Array = field(default_factory=no_rows, metadata=array("uint32", "batch", ascending=True))
    """Active rows; empty for all of them with `whole`."""
    whole: int = field(default=1, metadata=integer(most=1))
    """1 for all active rows."""


@dataclass(frozen=True, eq=False)
class Probe(Message):
    """Coordinator to client: one power round of the curvature estimate."""

    kind = "probe"
    words = "a vector of the curvature estimate"
    values: Array = field(metadata=array("float32", "rows", 1, finite=False))


@dataclass(frozen=True, eq=False)
class ConsensusPart(Message):
    """Client to coordinator: θ_i^q + u_i^q of consensus ADMM (eq. 22-24)."""

    kind = "consensus_part"
    words = "coefficients of features, as these rows alone have them"
    values: Array = field(metadata=array("float64", "parameters", "outputs"))
    """(d, d_c); for a tower (size, 1)."""


@dataclass(frozen=True, eq=False)
class ConsensusAverage(Message):
    """Coordinator to the clients of a slot: w_i."""

    kind = "consensus_average"
    words = "w, the average of the clients' θ + u"
    values: Array = field(metadata=array("float64", "parameters", "outputs", finite=False))


@dataclass(frozen=True, eq=False)
class SetParameters(Message):
    """Coordinator to client: the block's parameters, which the coordinator has computed."""

    kind = "set_parameters"
    words = "θ, the block's parameters"
    values: Array = field(metadata=array("float64", "parameters", "outputs"))


@dataclass(frozen=True, eq=False)
class Constant(Message):
    """Client to coordinator: the constant that the centres of its encoded columns amount to, with
    these parameters.
    """

    kind = "constant"
    words = "Σ centre · θ of the encoded columns"
    values: Array = field(metadata=array("float64", "outputs"))


@dataclass(frozen=True, eq=False)
class SendReleases(Message):
    """Coordinator to client, private runs only: a request for its releases of this slot."""

    kind = "send_releases"


@dataclass(frozen=True, eq=False)
class Releases(Message):
    """Client to coordinator: the noise of its releases of the slot, and their numbers.

    Counts belong to the row that took part most often. They are 0 without such a release; so is
    noise that was not added.
    """

    kind = "releases"
    words = "how what left of the slot was noised, and how often"
    labels: float = field(metadata=real(least=0))
    """Nominal ε of the labels."""
    statistics: float = field(metadata=real(least=0))
    """Noise of the statistics, relative to their sensitivity."""
    gradients: int = field(metadata=integer())
    clip: float = field(metadata=real(least=0))
    noise: float = field(metadata=real(least=0))
    """Standard deviation in each number of a gradient sum."""
    predictions: int = field(metadata=integer())
    prediction_clip: float = field(metadata=real(least=0))
    prediction_noise: float = field(metadata=real(least=0))
    moments: int = field(metadata=integer())
    row_bound: float = field(metadata=real(least=0))
    moments_noise: float = field(metadata=real(least=0))
    draws: int = field(default=0, metadata=integer())
    """Sums of joined rows for which the row was drawn."""
    bins: int = field(default=0, metadata=integer())
    theta: float = field(default=0.0, metadata=real(least=0))
    selections: int = field(default=0, metadata=integer())
    """Choices of a column, over all rows together."""
    laplace: int = field(default=0, metadata=integer(most=1))
    """1 for Laplace noise, 0 for Gumbel noise."""
    selection_noise: float = field(default=0.0, metadata=real(least=0))
    column_bound: float = field(default=0.0, metadata=real(least=0))
    residual_bound: float = field(default=0.0, metadata=real(least=0))
    sketches: int = field(default=0, metadata=integer())
    """Columns disclosed."""
    sketch_noise: float = field(default=0.0, metadata=real(least=0))
    crosses: int = field(default=0, metadata=integer())
    """Moments with the label."""
    row_weight: float = field(default=0.0, metadata=real(least=0))
    labels_noise: float = field(default=0.0, metadata=real(least=0))


# Messages of sums of which the coordinator sees no part: keys, rounds, and masked numbers.
@dataclass(frozen=True, eq=False)
class SendPublicKey(Message):
    """Coordinator to client: a request for the public key of this slot's masks, which serves this
    run only.
    """

    kind = "send_public_key"


@dataclass(frozen=True, eq=False)
class PublicKey(Message):
    """Client to coordinator, for the other clients, which alone can check the seal."""

    kind = "public_key"
    words = "a public key for this run, sealed by the parties' secret"
    key: Array = field(metadata=array("uint8", 32))
    """Public key of X25519 (RFC 7748)."""
    seal: Array = field(metadata=array("uint8", 32))


@dataclass(frozen=True, eq=False)
class SetPeers(Message):
    """Coordinator to client: the participants of the sums with their public keys, including its
    own.
    """

    kind = "set_peers"
    words = "public keys of those who add to the sums, sealed by the parties' secret"
    clients: tuple[str, ...] = field(metadata=texts("peers"))
    slots: Array = field(metadata=array("int64", "peers", least=0))
    """Slot of each. For sums over a slot's clients it is that slot; for sums over all slots, all
    slots occur.
    """
    keys: Array = field(metadata=array("uint8", "peers", 32))
    seals: Array = field(metadata=array("uint8", "peers", 32))


@dataclass(frozen=True, eq=False)
class Repeat(Message):
    """Coordinator to client, before the requests of the same exchange: the last exchange was lost.

    Repeated requests of these slots are not computed again, but masked anew.
    """

    kind = "repeat"
    words = "slots whose requests are repeated"
    slots: Array = field(metadata=array("int64", "slots", least=0, ascending=True))


@dataclass(frozen=True, eq=False)
class Vocabularies(Message):
    """Client to coordinator, in place of statistics: the categories that the statistics would
    have.
    """

    kind = "vocabularies"
    words = "hashed categories"
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )


@dataclass(frozen=True, eq=False)
class SendStatistics(Message):
    """Coordinator to client: a request for masked statistics of these categories."""

    kind = "send_statistics"
    words = "hashed categories of all the slot's clients"
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )


@dataclass(frozen=True, eq=False)
class Masked(Message):
    """Client to coordinator: numbers of which only the sum over all the slot's clients can be read.

    Their masks depend on the number of the request, which all clients of an exchange share. Each is
    a whole number modulo 2^(64 limbs), its limbs from the lowest on.
    """

    kind = "masked"
    words = "numbers under masks, of which only the sum over all clients can be read"
    of: str = field(metadata=text())
    """Kind of the summed values (sqlfl.aggregation.summands)."""
    lengths: Array = field(metadata=array("int64", "axes", least=0))
    """Lengths of its axes."""
    values: Array = field(metadata=array("uint64", "numbers", "limbs"))


@dataclass(frozen=True, eq=False)
class Embeddings(Message, travels=False):
    """A client's part of the sums of joined rows. It leaves only as `MaskedEmbeddings`."""

    kind = "embeddings"
    values: Array
    """Unsigned integers (joined · P,); 0 for joined rows that the client has no row of."""
    most: int
    """Maximum of one of them."""
    summands: int
    """M, the number of summands that may differ from 0."""


@dataclass(frozen=True, eq=False)
class MaskedEmbeddings(Message):
    """Client to coordinator: numbers of which only the sum over all slots' clients can be read.

    Their masks depend on the number of the request, which all clients share. The numbers are those
    of the first joined row, then those of the next one, each of `width` bits
    (sqlfl.aggregation.packing).
    """

    kind = "masked_embeddings"
    words = "embeddings of the client's rows, under masks that cancel in the sum over all slots"
    numbers: int = field(metadata=integer())
    width: int = field(metadata=integer(least=1, most=64))
    """w, the bits of a number."""
    packed: Array = field(metadata=array("uint8", "packed"))
