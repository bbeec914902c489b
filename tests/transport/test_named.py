"""Transports that other packages offer by an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Handler, Transport
from sqlfl.transport.local import LocalTransport
from sqlfl.transport.named import factory_of
from tests.additions.carrier import DISTRIBUTION, CarrierTransport
from tests.conftest import Open
from tests.transport.conformance import Interrupting, TransportConformance

TRAIN = "TRAIN MODEL m USING linear_regression TARGET y WITH (seed = 1) FROM (SELECT y, x FROM a.t)"


def install(folder: Path, name: str = "sqlfl_carrier") -> None:
    """As pip would leave a package that offers the transport."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    for file, text in DISTRIBUTION.items():
        (info / file).write_text(text.replace("sqlfl-carrier", name))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("installed")
class TestCarrier(TransportConformance):
    @contextmanager
    def opened(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[Transport]:
        with closing(factory_of("carrier")(handlers, interrupts)) as transport:
            yield transport


@pytest.mark.usefixtures("installed")
def test_a_federation_takes_it_by_its_name_and_closes_it(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT i AS x, 2 * i + i % 3 AS y FROM range(9) r(i)")
    carried, closed = CarrierTransport.carried, CarrierTransport.closed
    losses = []
    for transport in ("local", "carrier"):
        with sqlfl.connect(progress=False, transport=transport) as fed:
            fed.attach("a", con)
            fed.sql(TRAIN)
            losses.append(fed.model("m").history.column("train_loss").to_pylist())
            down = sum(row["direction"] == "down" for row in fed.audit().arrow().to_pylist())
    assert losses[0] == losses[1]
    assert CarrierTransport.carried - carried == down
    assert CarrierTransport.closed - closed == 1


def test_the_local_one_is_the_house_s() -> None:
    assert factory_of("local") is LocalTransport


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("carier", "there is no transport carier", "did you mean carrier?"),
        ("https", "there is no transport https", "there is broken, carrier, local"),
        (
            "broken",
            "the transport broken (tests.additions.carrier:NoSuchTransport) cannot be loaded: "
            "module 'tests.additions.carrier' has no attribute 'NoSuchTransport'",
            "install what its package needs",
        ),
    ],
)
def test_what_cannot_be_had_is_an_error_before_anything_is_opened(
    name: str, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(sqlfl.Error) as caught:
        sqlfl.connect(tmp_path / "coordinator.duckdb", transport=name)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert not (tmp_path / "coordinator.duckdb").exists()


def test_one_name_in_two_packages_is_an_error(installed: Path) -> None:
    install(installed, "sqlfl_other")
    with pytest.raises(sqlfl.Error, match="there are 2 transports carrier: tests") as caught:
        factory_of("carrier")
    assert caught.value.hint == "remove all but one of the packages that offer it"


def test_no_package_replaces_the_built_in_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sqlfl_other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlfl-other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[sqlfl.transports]\nlocal = tests.additions.carrier:CarrierTransport\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert factory_of("local").__name__ == "LocalTransport"  # type: ignore[attr-defined]
