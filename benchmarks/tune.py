"""TUNE beside TRAIN on MovieLens-1M: what a comparison of ten models costs, times one model.

python benchmarks/tune.py --data ../shared/data/movielens-1m

The statements are run in turn; the median of the ratios in each turn is told.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median

import duckdb

import sqlfl

QUERY = """(SELECT u.gender, u.age, u.occupation::VARCHAR AS occupation, m.year, m.genre, {target}
  FROM shop.ratings r JOIN members.users u ON r.user_id = u.user_id
  JOIN studio.movies m ON r.movie_id = m.movie_id)"""
TARGETS = {"logistic_regression": "r.rating >= 4 AS liked", "linear_regression": "r.rating"}
FIVE = "[1e-5, 1e-4, 1e-3, 1e-2, 1e-1]"
TEN = "[1e-6, 3e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1]"
STATEMENTS = {
    "TRAIN": "TRAIN OR REPLACE MODEL m USING {kind} TARGET {name} FROM {query}",
    "TRAIN with validation_fraction": "TRAIN OR REPLACE MODEL m USING {kind} TARGET {name} "
    "WITH (validation_fraction = 0.2) FROM {query}",
    "TUNE, 5 candidates, 2 folds: 11 fits": "TUNE OR REPLACE MODEL m USING {kind} TARGET {name} "
    f"WITH (l2 = {FIVE}, folds = 2) FROM {{query}}",
    "TUNE, 10 candidates, 20 % held out: 11 fits": "TUNE OR REPLACE MODEL m USING {kind} "
    f"TARGET {{name}} WITH (l2 = {TEN}, validation_fraction = 0.2) FROM {{query}}",
    "TUNE, 10 candidates, 5 folds: 51 fits": "TUNE OR REPLACE MODEL m USING {kind} "
    f"TARGET {{name}} WITH (l2 = {TEN}) FROM {{query}}",
}


@contextmanager
def federation(data: Path) -> Iterator[sqlfl.Federation]:
    tables = {
        "shop": ("ratings", f"'{data}/ratings.parquet'"),
        "members": ("users", f"'{data}/users.parquet'"),
        "studio": (
            "movies",
            f"'{data}/movies.parquet' JOIN '{data}/movie_genres.parquet' USING (movie_id)",
        ),
    }
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(progress=False))
        for party, (table, source) in tables.items():
            con = stack.enter_context(closing(duckdb.connect()))
            con.execute(f"CREATE TABLE {table} AS FROM {source}")
            fed.attach(party, con)
        yield fed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    with federation(given.data) as fed:
        for kind, target in TARGETS.items():
            name = target.split()[-1].removeprefix("r.")
            query = QUERY.format(target=target)
            texts = {
                key: text.format(kind=kind, name=name, query=query)
                for key, text in STATEMENTS.items()
            }
            found: dict[str, list[float]] = {key: [] for key in texts}
            for turn in range(given.turns + 1):
                for key, text in texts.items():
                    began = time.perf_counter()
                    fed.sql(text)
                    if turn:  # the first one warms up
                        found[key].append(time.perf_counter() - began)
            for key, seconds in found.items():
                ratios = [s / one for s, one in zip(seconds, found["TRAIN"], strict=True)]
                print(f"{kind}: {key}: {median(seconds):.2f} s, {median(ratios):.1f} times TRAIN")


if __name__ == "__main__":
    main()
