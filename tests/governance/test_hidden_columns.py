"""Two tables that differ in the names, the number, the places and the types of columns which are
not granted look the same to an analyst, whatever the statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from sqlfl import messages as ms
from sqlfl.contract.schema import Client, FeatureSpecification, specifications_to_json
from sqlfl.party.party import PartyClient, Secrets
from tests import courier
from tests.governance.clinic import SLOT, ruled
from tests.governance.test_hostile_coordinator import request
from tests.open_databases import in_memory

SHOWN = "i AS pid, 20 + i * i % 60 AS age, sin(i) AS bmi, 'w' || i % 4 AS ward, i % 3 AS days"
SCHEMAS = {
    "last": f"{SHOWN}, i AS salary",
    "first": f"i AS salary, {SHOWN}",
    "others": f"'x' AS note, {SHOWN}, {{'a': i}} AS s, [i] AS l",
    "between": "i AS pid, 20 + i * i % 60 AS age, 'n' AS aname, sin(i) AS bmi, 'w' || i % 4 AS "
    "ward, {'age': 3} AS z, DATE '2020-01-01' AS born, i % 3 AS days",
}
GRANT = """GRANT TRAIN (age, bmi, ward), FILTER (age), JOIN (pid), LABEL (days) ON patients
  TO 'acme' UNDER r"""
NAMES = ("salary", "note", "s", "z", "aname", "nosuch")
VALUES = (
    *("hash(p)", "p IS NULL", "p::VARCHAR", "to_json(p)", "struct_extract(p, 'salary')", "p[1]"),
    *("struct_extract(p, 1)", "p['salary']", "(p).salary", "row(p)", "{'a': p}", "[p]", "p = p"),
    *("count(p)", "any_value(p)", "p", "patients", "patients.salary", "p.*", "*", "COLUMNS(*)"),
    *("COLUMNS('sal.*')", "* EXCLUDE (salary)", "* EXCLUDE (age)", "* REPLACE (1 AS salary)"),
    *("* RENAME (salary AS x)", "* LIKE 's%'", "unnest(p)", "rowid", "p.rowid", "p.s.a", "s.a"),
    *("list_transform([1], lambda {0}: {0})[1]", "list_transform([1], lambda x: {0})[1]"),
    *("list_transform([{{'age': 1}}], lambda {0}: {0}.age)[1]", "[{0} for {0} in [1]][1]"),
    *("list_reduce([1, 2], lambda {0}, x: {0} + x)", "p.{0}", "{0}", "main.patients.{0}"),
    *("(SELECT count(*) FROM patients q WHERE q.{0} > 3)", "p.pid IN (SELECT * FROM patients)"),
    *("p.pid IN (SELECT * EXCLUDE (age, bmi, ward, days) FROM patients)", "p.ward.{0}"),
    *("(SELECT q FROM patients q LIMIT 1)", "row_number() OVER (ORDER BY p)", "hash(p.age, p)"),
    *("count(*) OVER (PARTITION BY {0})", "sum(p.age) FILTER ({0} > 3) OVER ()", "p.age + p.bmi"),
    *("EXISTS (SELECT {0} FROM patients q WHERE q.pid = p.pid)", "CASE WHEN p.age > 3 THEN p END"),
)
"""Values of patients p, with a name in place of {0}."""
SOURCES = (
    *("{0}.age AS x FROM patients AS {0}", "hash({0}) AS x FROM patients AS {0}"),
    *("{0}.age AS x FROM patients AS {0}, patients q", "count(*) AS x FROM patients AS {0}"),
    *("{0}.age AS x FROM patients AS {0} JOIN patients q ON {0}.pid = q.pid",),
    *("1 AS x FROM patients p JOIN patients q USING ({0})",),
    *("1 AS x FROM patients p SEMI JOIN patients q USING ({0})",),
    *("1 AS x FROM patients p NATURAL JOIN patients q", "1 AS x FROM patients p, unnest(p.l) q"),
    *("1 AS x FROM (SELECT * EXCLUDE ({0}) FROM patients) p",),
    *("1 AS x FROM (SELECT * REPLACE (1 AS {0}) FROM patients) p",),
    *("x.n AS x FROM (WITH w AS (FROM patients) SELECT hash(w) AS n FROM w) x",),
    *("p.{0} AS x FROM (SELECT * FROM patients) p", "p.age AS x FROM (SELECT * FROM patients) p"),
    *("1 AS x FROM (PIVOT patients ON {0} USING count(*)) p", "1 AS x FROM (DESCRIBE patients) p"),
    *("1 AS x FROM patients p WHERE hash(p) > 3", "1 AS x FROM patients p WHERE p IS NOT NULL"),
    *("1 AS x FROM patients p ORDER BY p", "p.age AS x FROM patients p ORDER BY {0}"),
    *("1 AS x FROM patients p GROUP BY p", "1 AS x FROM patients p QUALIFY {0} > 3"),
    *(f"1 AS x FROM (SELECT * FROM patients {tail}) p"
      for tail in (*(f"ORDER BY {n}" for n in (1, 3, 6, 7, 9)), "ORDER BY 3 LIMIT 200",
                   "ORDER BY ALL", "GROUP BY ALL", "UNION SELECT * FROM patients",
                   *(f"UNION ALL SELECT {', '.join('1' * n)}" for n in (5, 6, 7, 8, 9)),
                   "EXCEPT SELECT * FROM patients", "INTERSECT SELECT * FROM patients")),
    *(f"{'abcdefghi'[n - 1]} AS x FROM patients p({', '.join('abcdefghi'[:n])})"
      for n in range(1, 10)),
    *(f"1 AS x FROM (WITH w({', '.join('abcdefghi'[:n])}) AS (FROM patients) FROM w) p"
      for n in (5, 6, 8, 9)),
    *(f"p.age AS x FROM (SELECT * FROM patients) p({', '.join('abcdefghi'[:n])})"
      for n in (1, 2, 6, 9)),
    "DISTINCT * FROM patients", "x FROM (SELECT DISTINCT * FROM patients) p(x)",
)  # fmt: skip
SLOTS = specifications_to_json(
    (replace(SLOT, keys=(), features=(FeatureSpecification("x", "numeric"),)),)
)


def texts() -> Iterator[str]:
    for value in VALUES:
        for name in NAMES if "{0}" in value else ("",):
            yield f"SELECT {value.format(name) if name else value} AS x FROM patients p"
    for source in SOURCES:
        for name in NAMES if "{0}" in source else ("",):
            yield f"SELECT {source.format(name)}"


@pytest.fixture(scope="module")
def parties() -> Iterator[Mapping[str, PartyClient]]:
    with ExitStack() as stack:
        clients = {}
        for name, columns in SCHEMAS.items():
            con = stack.enter_context(in_memory())
            con.execute(f"CREATE TABLE patients AS SELECT {columns} FROM range(300) AS r(i)")
            ruled(con, "min_rows = 1, min_cell = 1", GRANT)
            secret = b"\x07" * 32
            client = PartyClient(Client("clinic"), con, Secrets(secret, secret), analyst="acme")
            clients[name] = stack.enter_context(closing(client))
        yield clients


def told(client: PartyClient, message: ms.Message) -> str:
    reply = courier.ask(client, message)
    return reply.text if isinstance(reply, ms.Failure) else str(reply)


def test_replies_do_not_tell_of_columns_that_are_not_granted(
    parties: Mapping[str, PartyClient],
) -> None:
    asked, answered = 0, 0
    for text in texts():
        for message in (
            ms.Describe("", -1, (text,)),
            ms.Propose("", -1, request().to_json(), SLOTS, (text,)),
        ):
            replies = {name: told(client, message) for name, client in parties.items()}
            assert len(set(replies.values())) == 1, (text, replies)
            asked += 1
            answered += "granted" not in replies["last"]
    assert asked > 400
    assert answered > 20


@pytest.mark.parametrize(
    "text",
    [
        "SELECT list_transform([p.age], lambda v: v + 1)[1] AS x FROM patients p",
        "SELECT p.age AS x FROM patients p JOIN (SELECT pid FROM patients) q ON p.pid = q.pid",
        "SELECT p.age AS x FROM (SELECT * FROM patients WHERE age > 20) p",
        "SELECT p.n AS x FROM (SELECT age AS n FROM patients) p",
        "SELECT count(*) AS x FROM patients p",
    ],
)
def test_statements_beside_such_columns(parties: Mapping[str, PartyClient], text: str) -> None:
    for client in parties.values():
        reply = courier.ask(client, ms.Describe("", -1, (text,)))
        assert isinstance(reply, ms.Columns), reply
