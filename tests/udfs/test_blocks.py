"""Blocks in a database: what is written, by whom it is found, and that nothing stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.models.towers import TowerShape
from sqlfl.udfs.blocks.block_tables import DatabaseBlocks, blocks_of
from sqlfl.udfs.blocks.blocks import ClientBlocks, MemoryBlocks, SavedBlock
from sqlfl.udfs.describe import ListingCache, place_of
from sqlfl.udfs.encoding.features import Encoding
from tests.conftest import Open

Make = Callable[..., ClientBlocks]


def block(seed: int = 0) -> SavedBlock:
    rng = np.random.default_rng(seed)
    encoding = Encoding(
        features=(FeatureSpecification("a", "numeric"), FeatureSpecification("ß", "category")),
        mean=rng.normal(size=1),
        scale=rng.uniform(0.5, 2, size=1),
        missing=np.array([1.0]),
        vocabularies=(("n", "vè'\"x", "v"),),
        counts=(rng.uniform(size=3),),
        total=17.5,
        vocabulary_key=rng.bytes(32) if seed % 2 else None,
    )
    return SavedBlock(encoding, rng.normal(size=(encoding.width, 3)))


def tower_block(
    seed: int = 0, hidden: tuple[int, ...] = (4, 2), bounded: bool = False
) -> SavedBlock:
    encoding = block(seed).encoding
    tower = TowerShape(encoding.width, hidden, 3, "gelu", bounded)
    first, *upper = (np.random.default_rng(seed).normal(size=s) for s in tower.shapes)
    return SavedBlock(encoding, first, "t é", tower, tuple(upper))


def same(a: SavedBlock | None, b: SavedBlock) -> bool:
    return (
        a is not None
        and a.theta.dtype == b.theta.dtype
        and np.array_equal(a.theta, b.theta)
        and a.tower == b.tower
        and len(a.upper) == len(b.upper)
        and all(map(np.array_equal, a.upper, b.upper))
        and a.encoding.to_bytes() == b.encoding.to_bytes()
    )


@pytest.fixture
def con(database: Open, tmp_path: Path) -> duckdb.DuckDBPyConnection:
    """Of a file whose name and table have names that need quotes."""
    return database('CREATE TABLE "sqlfl.blocks" (x INTEGER)', path=str(tmp_path / 'it\'s "1".db'))


def state(con: duckdb.DuckDBPyConnection) -> list[object]:
    return [
        con.execute(query).fetchall()
        for query in (
            "SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL",
            "SELECT database_name, schema_name FROM duckdb_schemas() ORDER BY ALL",
        )
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_block_survives_as_bytes(seed: int) -> None:
    assert same(SavedBlock.from_bytes(block(seed).to_bytes()), block(seed))


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (5, 1)])
def test_a_block_of_any_shape(shape: tuple[int, int]) -> None:
    given = SavedBlock(block().encoding, np.arange(np.prod(shape), dtype=np.float64).reshape(shape))
    assert same(SavedBlock.from_bytes(given.to_bytes()), given)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("hidden", [(4, 2), (1,)])
def test_a_tower_survives_as_bytes(hidden: tuple[int, ...], bounded: bool) -> None:
    given = tower_block(1, hidden, bounded)
    found = SavedBlock.from_bytes(given.to_bytes())
    assert same(found, given)
    assert (found.name, found.outputs, found.format) == ("t é", 3, 2)
    x = np.random.default_rng(0).normal(size=(5, given.encoding.width))
    expected = given.tower.forward(x @ given.theta, given.parameters)
    np.testing.assert_array_equal(found.finish(x @ found.theta), expected)
    assert bool((np.abs(expected) <= 1.0).all()) == bounded


def test_a_linear_block_stays_in_the_first_format() -> None:
    """So that an older sqlfl, which knows no towers, can read it."""
    given = block()
    assert (given.format, given.outputs, given.parameters) == (1, 3, (given.theta,))
    with pa.ipc.open_stream(given.to_bytes()) as reader:
        assert set(reader.schema.metadata) == {b"encoding", b"shape", b"name"}
    values = np.ones((2, 3))
    assert given.finish(values) is values


def conform(blocks: ClientBlocks, again: Callable[[], ClientBlocks] | None) -> None:
    """What holds of both kinds; `again` is the same client after reopening."""
    assert blocks.load("r", 0) is None
    blocks.drop("r")
    blocks.save("r", 0, "m", block(0))
    blocks.save("r", 2, "m", block(1))
    blocks.save("s", 0, "n", block(2))
    if again is not None:
        assert again().load("r", 0) is None, "saved, not kept"
        blocks.keep("r")
        blocks.keep("s")
    secret = blocks.secret("split")
    assert len(secret) == 32
    assert blocks.secret("split") == secret != blocks.secret("other")
    for found in (blocks, *([again()] if again else [])):
        assert same(found.load("r", 0), block(0))
        assert same(found.load("r", 2), block(1))
        assert same(found.load("s", 0), block(2))
        assert found.load("r", 1) is None
    blocks.collect(["s", "unknown"])
    for found in (blocks, *([again()] if again else [])):
        assert found.load("r", 0) is None
        assert found.load("r", 2) is None
        assert same(found.load("s", 0), block(2))
    blocks.drop("s")
    assert blocks.load("s", 0) is None


def test_in_memory() -> None:
    blocks = MemoryBlocks("is read-only")
    conform(blocks, None)
    assert not blocks.lasting
    with pytest.raises(InternalError):
        blocks.keep("r")
    blocks.save("r", 0, "m", block())
    blocks.close()
    assert blocks.load("r", 0) is None


def test_in_a_database(con: duckdb.DuckDBPyConnection) -> None:
    before = state(con)
    conform(blocks_of(con, "c", "a/0"), lambda: blocks_of(con, "c", "a/0"))
    assert state(con) == before


def test_what_is_in_the_tables(con: duckdb.DuckDBPyConnection) -> None:
    blocks = blocks_of(con, "c", "bank/0")
    blocks.save("r", 3, "m", block())
    blocks.secret("split")
    assert "sqlfl" not in str(state(con)[1]), "before anything is kept"
    blocks.keep("r")
    found = con.execute(
        "SELECT coordinator, client, run, slot, model, format, "
        "abs(epoch(saved_at) - epoch(now())) < 60 FROM sqlfl.blocks"
    ).fetchall()
    assert found == [("c", "bank/0", "r", 3, "m", 1, True)]
    assert [
        table.name
        for table in ListingCache().listing(con, place_of(con))[1]
        if table.schema == "sqlfl"
    ] == []
    secrets = con.execute("SELECT client, purpose, octet_length(secret) FROM sqlfl.secrets")
    assert secrets.fetchall() == [("bank/0", "split", 32)]


def test_owners_are_kept_apart(con: duckdb.DuckDBPyConnection) -> None:
    owners = [("c", "a/0"), ("c", "a/1"), ("d", "a/0")]
    made = [blocks_of(con, *owner) for owner in owners]
    secrets = [blocks.secret("split") for blocks in made]
    assert len(set(secrets)) == 3
    for seed, blocks in enumerate(made):
        blocks.save("r", 0, "m", block(seed))
        blocks.keep("r")
    for seed, owner in enumerate(owners):
        assert same(blocks_of(con, *owner).load("r", 0), block(seed))
        assert blocks_of(con, *owner).secret("split") == secrets[seed]
    made[0].drop("r")
    blocks_of(con, "c", "a/1").collect([])
    assert blocks_of(con, "c", "a/0").load("r", 0) is None
    assert blocks_of(con, "c", "a/1").load("r", 0) is None
    assert same(blocks_of(con, "d", "a/0").load("r", 0), block(2))
    assert con.execute("SELECT coordinator FROM sqlfl.secrets").fetchall() == [("d",)]


def test_what_the_owner_has_put_into_the_schema_stays(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE SCHEMA sqlfl; CREATE VIEW sqlfl.mine AS SELECT 1 AS x")
    before = state(con)
    blocks = blocks_of(con, "c", "a/0")
    blocks.save("r", 0, "m", block())
    blocks.keep("r")
    blocks.drop("r")
    assert state(con) == before
    assert con.execute("FROM sqlfl.mine").fetchall() == [(1,)]


def test_a_view_of_the_tables_name_is_not_read(con: duckdb.DuckDBPyConnection) -> None:
    """Whatever columns it has: its SQL would be run."""
    blocks = blocks_of(con, "c", "a/0")
    blocks.save("r", 0, "m", block())
    blocks.keep("r")
    con.execute("ALTER TABLE sqlfl.blocks RENAME TO mine")
    con.execute(
        "CREATE VIEW sqlfl.blocks AS SELECT * REPLACE (error('run') AS run) FROM sqlfl.mine"
    )
    again = blocks_of(con, "c", "a/0")
    assert again.load("r", 0) is None
    again.collect(())
    again.drop("r")


def test_a_keep_that_fails_writes_nothing(con: duckdb.DuckDBPyConnection) -> None:
    blocks = blocks_of(con, "c", "a/0")
    before = state(con)
    broken = SavedBlock(block().encoding, np.zeros((2, 1)))
    object.__setattr__(broken, "theta", None)
    blocks.save("r", 0, "m", block())
    blocks.save("r", 1, "m", broken)
    with pytest.raises((TypeError, AttributeError, ValueError)):
        blocks.keep("r")
    assert state(con) == before
    assert same(blocks.load("r", 0), block()), "still held"


def test_a_newer_format_is_refused(con: duckdb.DuckDBPyConnection) -> None:
    blocks = blocks_of(con, "c", "a/0")
    blocks.save("r", 0, "m", block())
    blocks.keep("r")
    con.execute("UPDATE sqlfl.blocks SET format = 7")
    with pytest.raises(ModelError, match=r"newer sqlfl, in format 7.*reads 6"):
        blocks.load("r", 0)
    blocks.drop("r")


def test_a_tower_in_a_database(con: duckdb.DuckDBPyConnection) -> None:
    blocks = blocks_of(con, "c", "a/0")
    blocks.save("r", 0, "m", tower_block())
    blocks.save("r", 1, "m", block())
    blocks.keep("r")
    again = blocks_of(con, "c", "a/0")
    assert same(again.load("r", 0), tower_block())
    assert same(again.load("r", 1), block())
    query = "SELECT format FROM sqlfl.blocks ORDER BY slot"
    assert con.execute(query).fetchall() == [(2,), (1,)]


def test_a_damaged_tower_is_told(con: duckdb.DuckDBPyConnection) -> None:
    """Parameters are missing, or the format is not that of the bytes."""
    blocks = blocks_of(con, "c", "a/0")
    whole = tower_block()
    blocks.save("r", 0, "m", SavedBlock(whole.encoding, whole.theta, "", whole.tower))
    blocks.save("s", 0, "m", whole)
    for run in "rs":
        blocks.keep(run)
    con.execute("UPDATE sqlfl.blocks SET format = 1 WHERE run = 's'")
    for run in "rs":
        with pytest.raises(ModelError, match=f"run = '{run}', is damaged"):
            blocks_of(con, "c", "a/0").load(run, 0)


def test_clients_of_one_store_at_once(con: duckdb.DuckDBPyConnection) -> None:
    """Their first saves make the schema together."""
    made = [blocks_of(con, "c", f"a/{k}") for k in range(8)]
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(3):
                made[k].save("r", 0, "m", block(k))
                made[k].keep("r")
                made[k].drop("r")
            made[k].save("r", 0, "m", block(k))
            made[k].keep("r")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for k, blocks in enumerate(made):
        assert same(blocks.load("r", 0), block(k))


def test_what_lasts_and_what_does_not(database: Open, tmp_path: Path) -> None:
    memory = blocks_of(database(), "c", "a/0")
    assert (memory.lasting, memory.reason) == (False, "is in memory")
    path = tmp_path / "a.duckdb"
    with duckdb.connect(str(path)) as con:
        kept = blocks_of(con, "c", "a/0")
        assert (kept.lasting, kept.reason) == (True, "")
        assert isinstance(kept, DatabaseBlocks)
    with duckdb.connect(str(path), read_only=True) as con:
        read = blocks_of(con, "c", "a/0")
        assert (read.lasting, read.reason) == (False, "is read-only")
