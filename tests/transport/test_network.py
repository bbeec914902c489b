"""Communication by the network model: the formula, what is summed, and where it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import PartialGradient, Residuals
from sqlfl.messages.wire import decode, encode
from sqlfl.options.types import NETWORK
from sqlfl.transport.base import Audit, Channel, Transport
from sqlfl.transport.local import LocalTransport
from sqlfl.transport.network import NETWORKS, Network
from tests import lasting
from tests.conftest import Open

LINE = Network(latency=0.5, bandwidth=800.0)
"""100 bytes a second."""


def test_an_exchange_takes_the_latency_once_and_the_busiest_client() -> None:
    assert LINE.seconds([100, 300, 200]) == 0.5 + 3.0
    assert LINE.seconds([300]) == LINE.seconds([300, 300])  # each has a line of its own
    assert LINE.seconds([0]) == 0.5
    assert LINE.seconds([]) == 0.0


def test_the_values_of_the_option() -> None:
    for name, network in NETWORKS.items():
        assert (NETWORK.read(name), network.name) == (network, name)
    assert NETWORK.read({"latency": 1, "bandwidth": 5e8}) == Network(1.0, 5e8)
    assert NETWORK.read("mars") is None


def answering(size: int) -> LocalTransport:
    """Two clients of two parties that answer with so many bytes."""

    def handle(data: pa.Buffer) -> pa.Buffer:
        message = decode(data)
        values = np.zeros((size // 8, 1))
        return encode(PartialGradient(message.run, message.slot, values, number=message.number))

    return LocalTransport({Client("a"): handle, Client("b"): handle})


def request(size: int, slot: int) -> Residuals:
    return Residuals("r", slot, np.zeros((size // 4, 1), np.float32))


def test_a_channel_sums_exchanges_of_what_crosses() -> None:
    a, b = Client("a"), Client("b")
    audit = Audit(at="A")
    channel = Channel(answering(40), audit, network=LINE)
    assert channel.comm_seconds == 0.0
    channel.exchange({(a, 0): request(400, 0)})
    assert (channel.comm_seconds, channel.bytes_up, channel.bytes_down) == (0.0, 0, 0)
    channel.exchange({(a, 0): request(400, 0), (b, 0): request(60, 0)})
    assert channel.comm_seconds == 0.5 + 1.0
    assert (channel.bytes_up, channel.bytes_down, channel.rounds) == (40, 60, 2)
    channel.exchange({(b, 0): request(60, 0), (b, 1): request(100, 1)})  # two slots, one line
    assert channel.comm_seconds == pytest.approx(0.5 + 1.0 + 0.5 + 2.4)
    assert audit.table().column("crosses").to_pylist() == [
        *(False, False),
        *(False, True, False, True),
        *(True, True, True, True),
    ]


def test_without_a_network_there_is_no_time() -> None:
    channel = Channel(answering(8), Audit())
    channel.exchange({(Client("a"), 0): request(8, 0)})
    assert channel.comm_seconds is None


# -- in training ----------------------------------------------------------------------------------


class Sizes:
    """Passes all on; per exchange, the run and each client's bytes of values in both directions."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.exchanges: list[tuple[str, dict[Client, int]]] = []

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        answers = self.inner.exchange(requests)
        sizes: dict[Client, int] = {}
        for (client, data), answer in zip(requests, answers, strict=True):
            sizes[client] = sizes.get(client, 0) + decode(data).nbytes + decode(answer).nbytes
        self.exchanges.append((decode(requests[0][1]).run, sizes))
        return answers


def train(options: str, name: str = "m") -> str:
    return (
        f"TRAIN MODEL {name} USING linear_regression TARGET y WITH ({options}) "
        "FROM (SELECT t.x, t.y, u.z FROM home.t JOIN away.u USING (id))"
    )


@pytest.fixture
def parties(database: Open) -> dict[str, list[duckdb.DuckDBPyConnection]]:
    home = "CREATE TABLE t AS SELECT i AS id, i % 7 AS x, i * i % 11 AS y FROM range(60) r(i)"
    away = "CREATE TABLE u AS SELECT i AS id, i % 5 AS z FROM range(100) r(i) WHERE i % 2 = "
    return {"home": [database(home)], "away": [database(f"{away}{part}") for part in (0, 1)]}


@pytest.fixture(params=[None, "Home"])
def recorded(
    request: pytest.FixtureRequest, parties: dict[str, list[duckdb.DuckDBPyConnection]]
) -> Iterator[tuple[sqlfl.Federation, Sizes, str | None]]:
    wrapped: list[Sizes] = []

    def wrap(inner: Transport) -> Transport:
        wrapped.append(Sizes(inner))
        return wrapped[0]

    with sqlfl.Federation(progress=False, at=request.param, wrap=wrap) as fed:
        for name, clients in parties.items():
            fed.attach(name, clients)
        yield fed, wrapped[0], request.param


@pytest.mark.parametrize(
    ("network", "line"),
    [
        ("'us-uk'", Network(0.136, 0.42e9)),
        ("{'latency': 0.25, 'bandwidth': 4000}", Network(0.25, 4000.0)),
    ],
)
@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_every_epoch_tells_the_time_so_far(
    recorded: tuple[sqlfl.Federation, Sizes, str | None],
    network: str,
    line: Network,
    algorithm: str,
) -> None:
    fed, sizes, at = recorded
    fed.sql(train(f"algorithm = '{algorithm}', epochs = 3, network = {network}"))
    model = fed.model("m")
    crossed = [
        [n for client, n in found.items() if at is None or client.party != "home"]
        for run, found in sizes.exchanges
        if run == model.run
    ]
    times = np.cumsum([line.seconds(found) for found in crossed])
    history = model.history.to_pylist()
    assert len(history) == 3
    for row in history:
        assert row["comm_seconds"] == pytest.approx(times[row["rounds"] - 1], rel=1e-12)
        sent = sum(sum(found) for found in crossed[: row["rounds"]])
        assert row["bytes_up"] + row["bytes_down"] == sent
    quiet = [found for found in crossed[: history[-1]["rounds"]] if not found]
    assert bool(quiet) == (at is not None)  # the labels' exchange, which takes no time at home


def test_the_card_and_the_figure_show_it(
    parties: dict[str, list[duckdb.DuckDBPyConnection]], tmp_path: Path
) -> None:
    with sqlfl.Federation(progress=False) as fed:
        for name, clients in parties.items():
            fed.attach(name, clients)
        fed.sql(train("algorithm = 'sgd', epochs = 2, seed = 1, network = 'us-us'"))
        model = fed.model("m")
        last = model.history.column("comm_seconds")[-1].as_py()
        assert model.cost.comm_seconds == last > 0.067
        card = dict(fed.sql("DESCRIBE MODEL m").fetchall())
        assert card["comm_seconds"] == f"{last:.3g} by the network model"
        axes = model.plot(x="comm_seconds").axes[0]
        assert axes.get_xlabel() == "communication by the network model (s)"
        drawn = axes.get_lines()[0].get_xdata()
        np.testing.assert_array_equal(drawn, model.history.column("comm_seconds").to_numpy())
        model.plot(x="comm_seconds").savefig(tmp_path / "figure.png")

        fed.sql(train("algorithm = 'sgd', epochs = 2, seed = 1", "plain"))
        plain = fed.model("plain")
        assert plain.history.column("comm_seconds").to_pylist() == [None] * 2
        assert plain.cost.comm_seconds is None
        assert "comm_seconds" not in dict(fed.sql("DESCRIBE MODEL plain").fetchall())
        with pytest.raises(sqlfl.Error, match="the history of model plain has no comm_seconds"):
            plain.plot(x="comm_seconds")
        # apart from that the network changes nothing
        assert model.cost.exchanges == plain.cost.exchanges
        assert model.cost.bytes_up == plain.cost.bytes_up


def test_it_lasts_with_the_model(tmp_path: Path) -> None:
    lasting.make(tmp_path)
    with lasting.opened(tmp_path) as fed:
        fed.sql(lasting.train(more=", network = {'latency': 0.1, 'bandwidth': 1e6}"))
        cost = fed.model("m").cost
        assert cost.comm_seconds is not None
    with lasting.opened(tmp_path) as fed:
        assert fed.model("m").cost == cost
        assert fed.model("m").options["network"] == {"latency": 0.1, "bandwidth": 1e6}
