"""MovieLens-1M as TablePuppet prepares it: a row per movie and genre, 85/15 by joined row.

`shop.ratings` has a row per joined row: a rating and one of the movie's genres. So
`validation_fraction` draws joined rows, and the history has the test RMSE of every epoch. The table
has no features, and takes no part in the rounds of training. One client holds it in all runs, so
all runs have the same split. `members.users` and `studio.movies` have one client; `members2` and
`studio2` hold the same rows in two halves.

The data may not be passed on. It is read from a folder of Parquet files. The prepared data stays in
the folder of work, whose databases keep the secret of the split between processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

import sqlfl
from sqlfl.federation.session import Federation
from sqlfl.messages.wire import decode
from sqlfl.transport.recording import RecordingTransport

Array = npt.NDArray[Any]

TITLE_WIDTH = 32
"""As many numbers as the paper takes from BERT."""
HELD_OUT = 0.15
CLIENTS = {"shop": 1, "members": 1, "studio": 1, "members2": 2, "studio2": 2}
THREADS = 2


@dataclass(frozen=True)
class MovieLens:
    """The data set: its folder of Parquet files, the folder of work, and the fraction of the
    ratings."""

    source: Path
    work: Path
    fraction: float = 1.0

    def path(self, name: str) -> Path:
        return self.work / f"{name}.duckdb"

    def prepare(self) -> None:
        """Make the parties' databases and draw the split, unless that is done already."""
        marker = self.work / "prepared.txt"
        source = f"{self.source.resolve()} {self.fraction}"
        if marker.exists():
            if marker.read_text() != source:
                raise SystemExit(
                    f"{self.work} was prepared from other data ({marker.read_text()}): "
                    "give another --work"
                )
            return
        self.work.mkdir(parents=True, exist_ok=True)
        for old in self.work.glob("*.duckdb*"):
            old.unlink()
        with duckdb.connect() as con:
            con.execute(f"SET threads = {THREADS}")
            self._tables(con)
            for name in CLIENTS:
                self._parties(con, name)
        np.save(self.work / "held_out.npy", self._draw())
        marker.write_text(source)

    def _tables(self, con: duckdb.DuckDBPyConnection) -> None:
        movies, genres, users, ratings = (
            f"'{self.source}/{name}.parquet'"
            for name in ("movies", "movie_genres", "users", "ratings")
        )
        con.register("titles", _titles(con.sql(f"SELECT movie_id, title FROM {movies}").fetchall()))
        con.execute(f"""
            CREATE TABLE movies AS SELECT movie_id, genre, year, t.title
            FROM {movies} JOIN {genres} USING (movie_id) JOIN titles t USING (movie_id)
            ORDER BY movie_id, genre""")
        con.execute(f"""
            CREATE TABLE users AS
            SELECT user_id, gender, age, CAST(occupation AS VARCHAR) AS occupation
            FROM {users} ORDER BY user_id""")
        con.execute(f"""
            CREATE TABLE ratings AS
            SELECT row_number() OVER (ORDER BY user_id, movie_id, genre) - 1 AS id,
                user_id, movie_id, genre, rating
            FROM {ratings} JOIN {genres} USING (movie_id)
            WHERE hash(user_id, movie_id) % 1000000 < {round(self.fraction * 1e6)}""")

    def _parties(self, con: duckdb.DuckDBPyConnection, name: str) -> None:
        table = {"shop": "ratings", "members": "users", "studio": "movies"}[name.rstrip("2")]
        column = "user_id" if table == "users" else "movie_id"
        count = CLIENTS[name]
        for number, path in enumerate(self._paths(name)):
            con.execute(f"ATTACH '{path}' AS party")
            con.execute(f"""
                CREATE TABLE party.{table} AS FROM {table} WHERE {column} % {count} = {number}""")
            con.execute("DETACH party")

    def _paths(self, name: str) -> list[Path]:
        count = CLIENTS[name]
        return [self.path(name if count == 1 else f"{name}_{q}") for q in range(count)]

    def _draw(self) -> Array:
        """Return bool (N,) by `id`: the test rows, which the owner of the labels draws. Its secret
        and a row's values alone decide. So a statement with the target `id` shows the coordinator
        the split of all other statements."""
        with Federation(self.path("coordinator"), progress=False, wrap=RecordingTransport) as fed:
            fed.attach("shop", self.path("shop"))
            fed.sql(f"""
                TRAIN MODEL split USING linear_regression TARGET id
                WITH (epochs = 1, validation_fraction = {HELD_OUT})
                FROM (SELECT rating, id FROM shop.ratings)""")
            transport = fed._transport
        if not isinstance(transport, RecordingTransport):
            raise TypeError(f"a transport that records nothing: {transport}")
        messages = {}
        for item in transport.recorded:
            message = decode(item.data)
            if item.direction == "up" and message.kind in ("labels", "split"):
                messages[message.kind] = message
        held_out = np.zeros(len(messages["labels"].values), bool)
        held_out[messages["labels"].values.astype(np.int64)] = messages["split"].validation != 0
        return held_out

    @contextmanager
    def federation(self) -> Iterator[Federation]:
        """Return a federation of all parties, with the coordinator that has the split's model."""
        with sqlfl.connect(self.path("coordinator"), progress=False) as fed:
            cursors = []
            for name in CLIENTS:
                clients = [duckdb.connect(path) for path in self._paths(name)]
                for client in clients:
                    client.execute(f"SET threads = {THREADS}")
                cursors += clients
                fed.attach(name, clients if len(clients) > 1 else clients[0])
            try:
                yield fed
            finally:
                for client in cursors:
                    client.close()

    def joined(self, *, titles: bool) -> Joined:
        """Return the materialised join, encoded in the same way as by the parties."""
        with duckdb.connect() as con:
            for name in ("shop", "members", "studio"):
                con.execute(f"ATTACH '{self.path(name)}' AS {name} (READ_ONLY)")
            users = con.sql("FROM members.users ORDER BY user_id").to_arrow_table()
            movies = con.sql("FROM studio.movies ORDER BY movie_id, genre").to_arrow_table()
            rows = con.sql("""
                SELECT u.row AS u, m.row AS m, r.rating
                FROM shop.ratings r
                JOIN (SELECT user_id, row_number() OVER (ORDER BY user_id) - 1 AS row
                      FROM members.users) u USING (user_id)
                JOIN (SELECT movie_id, genre,
                        row_number() OVER (ORDER BY movie_id, genre) - 1 AS row
                      FROM studio.movies) m USING (movie_id, genre)
                ORDER BY r.id""").fetchnumpy()
        held = np.load(self.work / "held_out.npy")
        train = ~held
        tables = []
        for table, key in ((users, "u"), (movies, "m")):
            names = {"u": ["gender", "age", "occupation"], "m": ["year", "genre"]}[key]
            if titles and key == "m":
                names.append("title")
            counts = np.bincount(rows[key][train], minlength=table.num_rows)
            tables.append(_encoded(table.select(names), counts.astype(np.float64)))
        place = (rows["u"].astype(np.int32), rows["m"].astype(np.int32))
        return Joined(tuple(tables), place, rows["rating"].astype(np.float64), held)


@dataclass(frozen=True, eq=False)
class Encoded:
    """One table: standardised numbers, and the ones of its categories."""

    numeric: Array
    """float64 (n, p)"""
    codes: Array
    """int32 (n, k): the one-hot column of each category column, counted over all of them."""
    categories: int
    """q, one-hot columns."""
    counts: Array
    """float64 (n,): training rows that a row occurs in."""

    @property
    def width(self) -> int:
        return self.numeric.shape[1] + self.categories

    def onehot(self, rows: Array | None = None) -> sparse.csr_array:
        """(n, q), or of `rows`."""
        codes = self.codes if rows is None else self.codes[rows]
        ends = np.arange(0, codes.size + 1, max(codes.shape[1], 1), dtype=np.int32)
        ends = ends if codes.shape[1] else np.zeros(len(codes) + 1, np.int32)
        entries = (np.ones(codes.size), codes.reshape(-1), ends)
        return sparse.csr_array(entries, shape=(len(codes), self.categories))

    def predict(self, theta: Array) -> Array:
        """Return X̃ θ: (d, c) -> (n, c)."""
        split = self.numeric.shape[1]
        shift = self.centre @ theta
        return self.numeric @ theta[:split] + self.onehot() @ theta[split:] - shift

    @cached_property
    def centre(self) -> Array:
        """Return float64 (d,): 0 for numbers, which are centred; for a category its share of the
        rows."""
        share = self.onehot().T @ self.counts / self.counts.sum()
        return np.append(np.zeros(self.numeric.shape[1]), share)


@dataclass(frozen=True, eq=False)
class Joined:
    tables: tuple[Encoded, ...]
    rows: tuple[Array, ...]
    """int32 (N,) per table: where each joined row comes from."""
    targets: Array
    held_out: Array
    """bool (N,): the rows of the test."""

    def test_rmse(self, scores: Array) -> float:
        """Return the error on the test rows, from scores (N,) of all rows."""
        error = (scores - self.targets)[self.held_out]
        return float(np.sqrt(np.mean(error**2)))


def _encoded(table: pa.Table, counts: Array) -> Encoded:
    """Numbers centred and scaled, and categories that occur, by the training rows."""
    numbers, codes, width = [], [], 0
    for column in table.columns:
        column = column.combine_chunks()
        if pa.types.is_string(column.type):
            encoded = column.dictionary_encode()
            codes.append(encoded.indices.to_numpy().astype(np.int32) + width)
            width += len(encoded.dictionary)
        elif pa.types.is_fixed_size_list(column.type):
            numbers.append(column.flatten().to_numpy().reshape(len(column), -1))
        else:
            numbers.append(column.cast(pa.float64()).to_numpy()[:, None])
    numeric = np.hstack(numbers).astype(np.float64)
    numeric -= counts @ numeric / counts.sum()
    scale = np.sqrt(counts @ numeric**2 / counts.sum())
    return Encoded(numeric / np.where(scale > 0, scale, 1.0), np.column_stack(codes), width, counts)


def _titles(rows: list[tuple[int, str]]) -> pa.Table:
    """movie_id, title FLOAT[32]: hashed 2- to 4-grams of characters, by truncated SVD.

    In place of the paper's BERT embeddings, which would need a model to ship.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer

    ids, titles = zip(*sorted(rows), strict=True)
    grams = HashingVectorizer(analyzer="char", ngram_range=(2, 4), n_features=2**18)
    found = TruncatedSVD(TITLE_WIDTH, random_state=0).fit_transform(grams.transform(titles))
    values = pa.array(found.astype(np.float32).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(values, TITLE_WIDTH)
    return pa.table({"movie_id": pa.array(ids, pa.int32()), "title": column})
