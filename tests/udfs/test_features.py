"""Statistics and encodings beyond what the engines' tests compare."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from sqlfl.base.errors import ModelError
from sqlfl.udfs.encoding.features import local_encoding, statistics
from sqlfl.udfs.numbering.rows import Snapshot
from tests.conftest import Open
from tests.udfs.snapshots import activate_all, specification, take

pytestmark = pytest.mark.usefixtures("in_both_forms")


def snapshot_of(
    con: duckdb.DuckDBPyConnection, *columns: tuple[str, str], run: str = "r"
) -> Snapshot:
    names = ", ".join(name for name, _ in columns)
    return activate_all(take(con, specification(*columns), f"SELECT {names} FROM t", run=run))


@pytest.mark.parametrize("centre", [0.0, 1e6, 1e9])
def test_moments_far_from_zero(database: Open, centre: float) -> None:
    rng = np.random.default_rng(0)
    values = centre + rng.normal(size=50_000)
    con = database()
    con.execute("CREATE TABLE t AS SELECT unnest($1) AS x", [values.tolist()])
    encoding = local_encoding(snapshot_of(con, ("x", "numeric")))
    exact = values - centre
    assert encoding.mean[0] == pytest.approx(centre + exact.mean(), rel=1e-15, abs=1e-12)
    assert encoding.scale[0] == pytest.approx(exact.std(), rel=1e-9)


def test_infinite_values_are_named_and_not_shown(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT unnest(['1.5', 'inf'])::DOUBLE AS x, ['1', '-inf']::FLOAT[2] AS v"
    )
    for column in (("x", "numeric"), ("v", "array", 2)):
        wanted = specification(column)
        snapshot = activate_all(take(con, wanted, f"SELECT {column[0]} FROM t", run=column[0]))
        with pytest.raises(ModelError, match=f"column {column[0]} has infinite values") as raised:
            local_encoding(snapshot)
        assert "1.5" not in str(raised.value)
        with pytest.raises(ModelError):
            statistics(snapshot, b"key")


def test_values_too_large_to_square_are_refused(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT unnest([1e300, -1e300]) AS x")
    with pytest.raises(ModelError, match="column x has values too large"):
        local_encoding(snapshot_of(con, ("x", "numeric")))


def test_infinite_values_of_inactive_rows_do_not_matter(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT unnest(['1', '2', 'inf'])::DOUBLE AS x")
    wanted = specification(("x", "numeric"), target=True)
    snapshot = take(con, wanted, "SELECT x, nullif(x, 'inf') AS sqlfl_target FROM t")
    assert local_encoding(activate_all(snapshot)).mean.tolist() == [1.5]


def test_vocabularies_do_not_follow_the_collation(database: Open) -> None:
    con = database(
        "SET default_collation = 'NOCASE'",
        "CREATE TABLE t AS SELECT unnest(['b', 'A', 'a', 'B', NULL, 'n', 'a' || chr(0)]) AS c",
    )
    encoding = local_encoding(snapshot_of(con, ("c", "category")))
    assert encoding.vocabularies == (("n", "vA", "vB", "va", "va\0", "vb", "vn"),)
    assert encoding.names[:2] == ("c is NULL", "c = A")
    np.testing.assert_allclose(encoding.centre, 1 / 7)


def test_equal_categories_of_two_features_have_other_tags(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT unnest(['a', 'b']) AS c, unnest(['a', 'b']) AS d")
    snapshot = snapshot_of(con, ("c", "category"), ("d", "category"))
    found = statistics(snapshot, b"key")
    tags = [{tag.tobytes() for tag in part} for part in found.tags]
    assert len(tags[0] | tags[1]) == 4
    again = statistics(snapshot, b"key")
    np.testing.assert_array_equal(found.tags[0], again.tags[0])
    other = statistics(snapshot, b"another key")
    assert tags[0].isdisjoint(tag.tobytes() for tag in other.tags[0])


def test_names_of_the_encoded_columns(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT unnest([1, NULL]) AS x, [1, 2]::FLOAT[2] AS v, "
        "unnest([true, false]) AS b, 'q' AS c"
    )
    wanted = specification(("c", "category"), ("x", "numeric"), ("v", "array", 2), ("b", "boolean"))
    encoding = local_encoding(activate_all(take(con, wanted, "SELECT c, x, v, b FROM t")))
    assert encoding.names == ("x", "v[1]", "v[2]", "b", "x is missing", "c = q")
