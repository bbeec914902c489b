"""Keyed hashes of join keys: equal where DuckDB holds values equal, and telling nothing else."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from sqlfl.base.errors import ModelError, WireError
from sqlfl.contract.schema import KeySpecification
from sqlfl.messages import Ready
from sqlfl.messages.wire import decode, encoded
from sqlfl.udfs import sql
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.keys import Cmac
from tests.conftest import Open
from tests.udfs.snapshots import SECRET, specification, take

pytestmark = pytest.mark.usefixtures("in_both_forms")

KEY = keys.derive(b"secret", "test")


def tags_of(con: duckdb.DuckDBPyConnection, types: tuple[str, ...], query: str) -> list[bytes]:
    """One tag per row of a query whose columns are the key's parts, in order of column `o`."""
    wanted = specification(join=(types,))
    parts = [f"p{p} AS sqlfl_key_0_{p}" for p in range(len(types))]
    (size,) = con.execute(f"SELECT count(*) FROM ({query})").fetchall()[0]
    result = []
    for number in range(size):
        one = f"SELECT {', '.join(parts)} FROM ({query}) WHERE o = {number}"
        snapshot = take(con, wanted, one, run=f"t{number}", secret=KEY)
        assert snapshot.rows == (1,)
        result.append(snapshot.keys()[1][0][0].tobytes())
        snapshot.drop()
    return result


def test_a_hash_in_the_database_is_of_hmac_sha256(database: Open) -> None:
    con = database()
    query = f"SELECT {sql.to_sql(keys.tag(sql.parameter('m')))}"
    for key in (b"", b"k", bytes(range(32)), bytes(100)):
        for message in (b"", b"abc", bytes(range(256)) * 5):
            found = con.execute(query, {**keys.pads(key), "m": message}).fetchone()
            assert found == (hmac.digest(key, message, "sha256")[:16],)


def test_what_secrets_are_told_apart_by() -> None:
    """It is of the secret and the session, and no run's key, whatever run a coordinator names."""
    found = keys.check_value(b"s" * 32, "one")
    assert len(bytes.fromhex(found)) == 16
    assert found == keys.check_value(b"s" * 32, "one")
    assert found not in {keys.check_value(b"t" * 32, "one"), keys.check_value(b"s" * 32, "two")}
    nonces = np.frombuffer(bytes(range(16)), np.uint8).reshape(1, 16)
    session = bytes(range(16)).hex()
    run = "whether secrets\nare equal"
    assert keys.check_value(b"s" * 32, session) == keys.run_key(b"s" * 32, run, nonces)[:16].hex()
    with pytest.raises(WireError, match="the header's run"):
        decode(encoded(Ready(run, 0)))


def test_derive_is_hkdf() -> None:
    """RFC 5869 with an empty salt and 32 bytes of output."""
    extracted = hmac.digest(bytes(32), b"secret", "sha256")
    assert keys.derive(b"secret", "a", "b") == hmac.digest(extracted, b'["a","b"]\x01', "sha256")
    made = {keys.derive(b"secret", *info) for info in ((), ("ab",), ("a", "b"), ("a", '","b'))}
    assert len(made) == 4
    assert keys.derive(b"other") != keys.derive(b"secret")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BIGINT", "'1', '-1', '007', '7'"),
        ("DECIMAL(9,2)", "'1', '1.00', '1.005', '-0.00', '0'"),
        ("DOUBLE", "'0.0', '-0.0', 'nan', '-nan', '1e22', '10000000000000000000000', 'inf'"),
        ("FLOAT", "'0.1', '0.10000000149', '-0.0', '0'"),
        ("BOOLEAN", "'true', 't', 'false'"),
        ("VARCHAR", "'a', 'A', ' a', '', 'ä', 'a\u0308', 'v1:x'"),
        ("DATE", "'2020-02-29', '1-1-1', 'infinity', '-infinity', 'epoch'"),
        ("TIME", "'12:00', '12:00:00.000000', '23:59:59.999999'"),
        ("TIMESTAMP", "'2020-01-01', '2020-01-01 00:00:00', 'infinity', '1-1-1 (BC) 00:00:00'"),
        ("TIMESTAMP_NS", "'2020-01-01', '2020-01-01 00:00:00.000000001'"),
        ("UUID", "'00000000-0000-0000-0000-0000000000aa', '000000000000000000000000000000AA'"),
        ("BLOB", "'\\xAA', '\\xaa', 'AA', ''"),
        ("BIT", "'01', '1', '001'"),
        ("HUGEINT", "'170141183460469231731687303715884105727', '1'"),
        ("INTERVAL", "'1 month', '30 days', '720 hours', '-1 month', '12 months', '1 year'"),
        ("ENUM('a', 'b', 'c')", "'a', 'b', 'a'"),
        (
            "TIMESTAMP WITH TIME ZONE",
            "'2020-01-01 12:00+00', '2020-01-01 13:00+01', 'infinity', '-infinity'",
        ),
        ("TIME WITH TIME ZONE", "'12:00:00+00', '13:00:00+01', '12:00:00.000+00:00'"),
    ],
)  # fmt: skip
def test_tags_are_equal_exactly_where_duckdb_says_so(
    database: Open, kind: str, values: str
) -> None:
    con = database()
    query = (
        "SELECT row_number() OVER () - 1 AS o, p0 FROM "
        f"(SELECT CAST(unnest([{values}]) AS {kind}) AS p0)"
    )
    tags = tags_of(con, (kind,), query)
    rows = con.execute(
        f"WITH v AS ({query}) SELECT a.o, b.o, a.p0 = b.p0 FROM v AS a CROSS JOIN v AS b"
    ).fetchall()
    assert rows
    for left, right, equal in rows:
        assert (tags[left] == tags[right]) == equal


def test_tags_do_not_depend_on_session_settings(database: Open) -> None:
    found = []
    for zone in ("UTC", "Asia/Kathmandu"):
        con = database(f"SET TimeZone = '{zone}'", "SET default_collation = 'NOCASE'")
        query = (
            "SELECT * FROM (VALUES (0, '2020-01-01 12:00+00'::TIMESTAMPTZ, 'a'), "
            "(1, 'infinity'::TIMESTAMPTZ, 'A')) AS v(o, p0, p1)"
        )
        found.append(tags_of(con, ("TIMESTAMP WITH TIME ZONE", "VARCHAR"), query))
    assert found[0] == found[1]


def test_negative_zero_of_a_stored_column_is_zero(database: Open) -> None:
    con = database(
        "CREATE TABLE z AS SELECT CAST(x AS DOUBLE) AS x FROM (VALUES ('0.0'), ('-0.0')) AS v(x)",
    )
    snapshot = take(con, specification(join=(("DOUBLE",),)), "SELECT x AS sqlfl_key_0_0 FROM z")
    tags = snapshot.keys()[1][0]
    assert len(tags) == 1
    other = database("CREATE TABLE z AS SELECT CAST('-0.0' AS DOUBLE) AS x")
    one = take(other, specification(join=(("DOUBLE",),)), "SELECT x AS sqlfl_key_0_0 FROM z")
    np.testing.assert_array_equal(one.keys()[1][0], tags)


def test_composite_keys_keep_their_parts_apart(database: Open) -> None:
    con = database()
    query = (
        "SELECT * FROM (VALUES (0, 'ab', 'c'), (1, 'a', 'bc'), (2, 'ab', 'c'), (3, '', 'abc'), "
        "(4, '1:a', ''), (5, '', '1:a')) AS v(o, p0, p1)"
    )
    tags = tags_of(con, ("VARCHAR", "VARCHAR"), query)
    assert tags[0] == tags[2]
    assert len(set(tags)) == 5


def test_keys_of_other_domains_have_other_tags(database: Open) -> None:
    """Another index, another type or another secret: nothing in common."""
    con = database("CREATE TABLE t AS SELECT range AS k FROM range(20)")
    wanted = specification(join=(("BIGINT",), ("BIGINT",), ("VARCHAR",)))
    fragment = (
        "SELECT k AS sqlfl_key_0_0, k AS sqlfl_key_1_0, CAST(k AS VARCHAR) AS sqlfl_key_2_0 FROM t"
    )
    sets = []
    for run, secret in (("a", KEY), ("b", keys.derive(b"secret", "b"))):
        _, tags, _ = take(con, wanted, fragment, run=run, secret=secret).keys()
        sets += [{tag.tobytes() for tag in part} for part in tags]
    assert len(set.union(*sets)) == sum(len(part) for part in sets) == 120


def test_a_dictionary_breaks_plain_hashes_and_not_tags(database: Open) -> None:
    con = database("CREATE TABLE people AS SELECT 100000 + 37 * range AS id FROM range(50)")
    plain = {hashlib.sha256(str(100000 + 37 * i).encode()).digest()[:16] for i in range(50)}
    snapshot = take(
        con, specification(join=(("BIGINT",),)), "SELECT id AS sqlfl_key_0_0 FROM people"
    )
    tags = {tag.tobytes() for tag in snapshot.keys()[1][0]}
    guesses = range(100000, 102000)
    assert sum(hashlib.sha256(str(g).encode()).digest()[:16] in plain for g in guesses) == 50
    message = [g.to_bytes(16, "little") for g in guesses]
    assert not any(hashlib.sha256(m).digest()[:16] in tags for m in message)
    assert not any(cmac(derived(b"a guess", 0, "BIGINT"), m) in tags for m in message)
    # an insider who holds the secret does find them: the tags are what they are said to be
    assert sum(cmac(derived(SECRET, 0, "BIGINT"), m) in tags for m in message) == 50


def derived(secret: bytes, index: int, *types: str) -> bytes:
    """The key of a join key's tags, by Python's own HMAC."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    info = json.dumps(["key", str(index), *types], separators=(",", ":")).encode()
    return hmac.digest(extracted, info + b"\x01", "sha256")


def cmac(key: bytes, message: bytes) -> bytes:
    """The library's own, of one message."""
    mac = CMAC(AES(key))
    mac.update(message)
    return mac.finalize()


def test_macs_of_many_messages_are_those_of_each() -> None:
    draws = np.random.default_rng(0)
    lengths = [*range(50), 16, 16, 300, 0]
    messages = [draws.bytes(length) for length in lengths]
    for size in (16, 24, 32):
        key = draws.bytes(size)
        expected = [cmac(key, message) for message in messages]
        column = pa.array([b"before", *messages], pa.binary())[1:]
        assert [mac.tobytes() for mac in Cmac(key).of(column)] == expected
        blocks = np.frombuffer(draws.bytes(7 * 48), np.uint8).reshape(7, 3, 16)
        assert [mac.tobytes() for mac in Cmac(key).of_blocks(blocks)] == [
            cmac(key, block.tobytes()) for block in blocks
        ]
    assert Cmac(key).of(pa.array([], pa.binary())).shape == (0, 16)


def test_a_tag_is_the_mac_of_all_parts(database: Open) -> None:
    """Whole numbers in 16 bytes of two's complement, other parts after their length."""
    con = database()
    kinds = ("BIGINT", "VARCHAR", "UTINYINT")
    snapshot = take(
        con,
        specification(join=(kinds,)),
        "SELECT (-3)::BIGINT AS sqlfl_key_0_0, 'é' AS sqlfl_key_0_1, "
        "200::UTINYINT AS sqlfl_key_0_2",
    )
    message = (
        (-3).to_bytes(16, "little", signed=True) + b"2:\xc3\xa9" + (200).to_bytes(16, "little")
    )
    assert snapshot.keys()[1][0][0].tobytes() == cmac(derived(SECRET, 0, *kinds), message)


def test_distinct_values_are_hashed_once(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    con = database("CREATE TABLE t AS SELECT range % 7 AS k FROM range(10000)")
    hashed: list[int] = []
    tags_of_keys = keys.key_tags

    def counted(secret: bytes, key: KeySpecification, parts: Sequence[pa.Array]) -> np.ndarray:
        hashed.append(len(parts[0]))
        return tags_of_keys(secret, key, parts)

    monkeypatch.setattr(keys, "key_tags", counted)
    snapshot = take(con, specification(join=(("BIGINT",),)), "SELECT k AS sqlfl_key_0_0 FROM t")
    assert hashed == [7]
    fragment, tags, codes = snapshot.keys()
    assert fragment.shape == (0,)
    assert tags[0].shape == (7, 16)
    assert codes[0].dtype == np.uint32
    assert sorted(np.bincount(codes[0])) == [1428, 1428, 1428, 1429, 1429, 1429, 1429]


def test_the_dictionary_is_sorted_by_tag(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS k FROM range(3000)")
    snapshot = take(con, specification(join=(("BIGINT",),)), "SELECT k AS sqlfl_key_0_0 FROM t")
    tags = [tag.tobytes() for tag in snapshot.keys()[1][0]]
    assert tags == sorted(set(tags))


@pytest.mark.parametrize("kind", ["INTEGER[]", "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)"])
def test_nested_keys_are_refused(kind: str) -> None:
    with pytest.raises(ModelError, match="cannot be hashed"):
        keys.hashed_part(sql.column("k"), kind)
