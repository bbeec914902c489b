"""The generators of benchmarks, at a tiny scale: shapes, seeds, labels that can be learnt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import numpy as np
import pytest

from tests.benchmarks.scripts import imported

SCALE = 2e-4
WIDTHS = {
    "mimic": {"patients": 2, "admissions": 3, "stays": 2, "diagnoses": 25, "events": 717},
    "yelp": {"businesses": 3, "users": 4, "reviews": 775},
}
ROWS = {"mimic": (7, 580), "yelp": (7, 640)}


@pytest.fixture(scope="module")
def generators() -> Iterator[ModuleType]:
    with imported("generated") as modules:
        yield modules.generated


def tables(made) -> dict[str, np.ndarray]:
    """Table -> its rows, in the order that they were written in."""
    found = {}
    for path in made.databases.values():
        with duckdb.connect(path, read_only=True) as con:
            for (name,) in con.sql("SHOW TABLES").fetchall():
                found[name] = con.sql(f'FROM "{name}"').to_arrow_table()
    return found


@pytest.mark.parametrize("name", ["mimic", "yelp"])
def test_tables_have_the_shape_of_the_papers(generators, name: str, tmp_path: Path) -> None:
    made = generators.SETS[name](tmp_path, SCALE)
    found = tables(made)
    assert made.rows == ROWS[name][1] == max(len(table) for table in found.values())
    assert min(len(table) for table in found.values()) == ROWS[name][0]
    labels = {"deteriorates", "stars"}
    for table, width in WIDTHS[name].items():
        features = [
            getattr(field.type, "list_size", 1)
            for field in found[table].schema
            if not field.name.endswith("_id") and field.name not in labels
        ]
        assert sum(features) == width


@pytest.mark.parametrize("name", ["mimic", "yelp"])
def test_equal_seeds_give_equal_tables(generators, name: str, tmp_path: Path) -> None:
    one = tables(generators.SETS[name](tmp_path, SCALE, seed=5))
    again = tables(generators.SETS[name](tmp_path, SCALE, seed=5))
    other = tables(generators.SETS[name](tmp_path, SCALE, seed=6))
    assert one.keys() == again.keys()
    assert all(one[table].equals(again[table]) for table in one)
    assert not any(one[table].equals(other[table]) for table in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mimic", "yelp"])
def test_every_row_is_joined_and_labels_can_be_learnt(
    generators, name: str, tmp_path: Path
) -> None:
    made = generators.SETS[name](tmp_path, 1e-3)
    with made.federation(threads=1) as fed:
        fed.sql(made.statement(algorithm="lbfgs", epochs=2, l2=0.1))
        metrics = fed.model("m").metrics
    label = {"mimic": ("events", "deteriorates"), "yelp": ("reviews", "stars")}[name]
    column = tables(made)[label[0]][label[1]]
    shares = np.array(column.value_counts().field("counts")) / made.rows
    assert metrics["rows"] == made.rows
    assert made.bayes["log_loss"] < 0.85 * -(shares * np.log(shares)).sum()
    assert shares.max() + 0.01 < made.bayes["accuracy"] < 0.9
    # on the rows that it was fitted to it is about as good as the probabilities, or better
    assert metrics["accuracy"] > shares.max() + 0.01
    assert metrics["log_loss"] < 1.1 * made.bayes["log_loss"]


def test_a_scale_out_of_range_is_refused(generators, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="above 0"):
        generators.mimic(tmp_path, 0.0)
    assert not list(tmp_path.iterdir())
