"""A party that is lost while a statement is planned: that is what is said, whatever was asked."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import LostError
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Transport
from tests.conftest import Open

A = "CREATE TABLE t AS SELECT i AS k, i % 5 AS x, [i, i + 1] AS l, sin(i) AS y FROM range(60) r(i)"
B = "CREATE TABLE u AS SELECT i AS k, cos(i) AS z, 'w' || i % 3 AS w FROM range(60) r(i)"
QUERIES = {
    "a join": "SELECT t.x, u.z, t.y FROM a.t JOIN b.u ON t.k = u.k",
    "functions": "SELECT round(t.x / 2, 1) AS r, upper(u.w) AS w, t.y FROM a.t JOIN b.u USING (k)",
    "a lambda": "SELECT list_sum(list_transform(t.l, x -> x + 1)) AS s, u.z, t.y FROM a.t JOIN b.u "
    "USING (k) WHERE t.x > 1",
    "subqueries": "SELECT t.x, t.y, u.z FROM a.t "
    "JOIN (SELECT k, max(z) AS z FROM b.u GROUP BY k) u USING (k) "
    "WHERE t.x < (SELECT max(x) FROM a.t)",
    "a correlated one": "SELECT t.x, u.z, t.y FROM a.t JOIN b.u USING (k) "
    "WHERE EXISTS (SELECT 1 FROM a.t AS o WHERE o.k = t.k AND o.x > 0)",
    "a window": "SELECT w.r, u.z, w.y FROM (SELECT k, y, row_number() OVER (ORDER BY k) AS r "
    "FROM a.t) w JOIN b.u USING (k)",
    "an outer join": "SELECT coalesce(u.z, 0) AS z, t.x, t.y FROM a.t LEFT JOIN b.u ON t.k = u.k",
    "a union": "SELECT x, y FROM a.t UNION ALL SELECT z AS x, z AS y FROM b.u WHERE length(w) > 1",
    "what it refuses": "SELECT nosuch(t.x) AS n, u.z, t.y FROM a.t JOIN b.u USING (k)",
    "what gives rows": "SELECT unnest(t.l) AS n, u.z, t.y FROM a.t JOIN b.u USING (k)",
}


class Losing:
    """Loses the first client that is asked in the n-th exchange."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.left = inner, 0

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        self.left -= 1
        if self.left == 0:
            raise LostError(str(requests[0][0]), "is away, for 61 seconds now")
        return self.inner.exchange(requests)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_loss_is_no_answer_to_what_was_asked(database: Open, query: str) -> None:
    """Whichever exchange it is; a probe that nobody has answered tells nothing of the query."""
    text = f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})"
    losing: list[Losing] = []

    def wrapped(inner: Transport) -> Transport:
        losing.append(Losing(inner))
        return losing[0]

    with sqlfl.Federation(progress=False, wrap=wrapped) as fed:
        fed.attach("a", database(A))
        fed.attach("b", database(B))
        lost = 0
        for number in range(1, 200):
            losing[0].left = number
            try:
                fed.explain(text)
            except LostError:
                lost += 1
                continue
            except sqlfl.PlanError:
                pass  # it is refused, once all is answered
            assert losing[0].left > 0, f"the loss in exchange {number} was taken for an answer"
            break
        assert lost == number - 1 >= 1
