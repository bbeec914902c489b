"""Files of two parties and a coordinator, and what is done with them, also from other processes."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

import sqlfl

PEOPLE = (
    "CREATE TABLE people AS SELECT i AS id, i % 7 AS town, (i * 17) % 23 AS age, "
    "['a', 'b', NULL][1 + i % 3] AS club, (i * 7) % 11 / 2.0 AS score FROM range(70) r(i) "
    "WHERE i % 2 = "
)
TOWNS = (
    "CREATE TABLE towns AS SELECT i AS town, i * i AS size, 't' || i AS label FROM range(7) r(i)"
)
SELECT = "SELECT p.score, p.age, p.club, t.size FROM census.people p JOIN geo.towns t USING (town)"
QUERY = f"FROM ({SELECT})"
PREDICT = f"PREDICT MODEL m ID (census.people.id) {QUERY}"
FILES = ("north.duckdb", "south.duckdb", "geo.duckdb")
"""census is one party of two clients."""


def make(folder: Path) -> None:
    """The parties' databases."""
    _write(folder, _parties())


@dataclass(frozen=True)
class Trained:
    """A folder of the files of a federation, closed, that has trained m as `train()` does."""

    folder: Path
    loss: float
    predictions: Mapping[int, float]
    run: str


def make_trained(folder: Path, geo_store: str | None = None) -> Trained:
    """The parties' databases and the coordinator's file; as `opened` would be asked for them."""
    files, loss, found, run = _trained(geo_store)
    _write(folder, files)
    return Trained(folder, loss, found, run)


# Files are made once in a process: to make, open and train takes a hundred times as long as to copy


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _written(work: Callable[[Path], None]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        work(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@functools.cache
def _parties() -> Mapping[str, bytes]:
    def work(folder: Path) -> None:
        for part, name in enumerate(FILES[:2]):
            with duckdb.connect(str(folder / name)) as con:
                con.execute(f"{PEOPLE}{part}")
        with duckdb.connect(str(folder / FILES[2])) as con:
            con.execute(TOWNS)

    return _written(work)


@functools.cache
def _trained(geo_store: str | None) -> tuple[Mapping[str, bytes], float, Mapping[int, float], str]:
    said: list[tuple[float, dict[int, float], str]] = []

    def work(folder: Path) -> None:
        make(folder)
        with opened(folder, geo_store=geo_store) as fed:
            fed.sql(train())
            said.append((evaluate(fed), predictions(fed), fed.model("m").run))

    return _written(work), *said[0]


@contextlib.contextmanager
def opened(
    folder: Path, *, path: str = "coordinator.duckdb", geo_store: str | None = None
) -> Iterator[sqlfl.Federation]:
    """The federation over the files of `folder`."""
    with sqlfl.Federation(folder / path, progress=False) as fed:
        fed.attach("census", [folder / FILES[0], folder / FILES[1]])
        fed.attach("geo", folder / FILES[2], None if geo_store is None else folder / geo_store)
        yield fed


def train(
    name: str = "m",
    *,
    head: str = "TRAIN MODEL",
    l2: float = 0.0001,
    epochs: int = 2,
    more: str = "",
) -> str:
    return (
        f"{head} {name} USING linear_regression TARGET score\n"
        f"WITH (l2 = {l2}, epochs = {epochs}{more})\n{QUERY}"
    )


def evaluate(fed: sqlfl.Federation, name: str = "m") -> float:
    """The loss of the model over the rows that it was trained on."""
    row = fed.sql(f"EVALUATE MODEL {name} {QUERY}").arrow().to_pylist()[0]
    return float(row["loss"])


def predictions(fed: sqlfl.Federation) -> dict[int, float]:
    """What model m predicts, by the id of people."""
    return dict(fed.sql(PREDICT).fetchall())


def is_free(path: Path) -> bool:
    """Whether nothing in this process has the file open, in either way."""
    try:
        for read_only in (True, False):
            duckdb.connect(str(path), read_only=read_only).close()
    except duckdb.ConnectionException:  # it is open in the other way
        return False
    return True


def kept_runs(path: Path) -> list[tuple[str, str]]:
    """(client, run) of every block that a database or store keeps; [] where there is no schema."""
    with contextlib.closing(duckdb.connect(str(path))) as con:
        if not con.execute("FROM duckdb_schemas() WHERE schema_name = 'sqlfl'").fetchall():
            return []
        return con.execute("SELECT client, run FROM sqlfl.blocks ORDER BY ALL").fetchall()
