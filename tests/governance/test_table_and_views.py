"""A table and its views are of the same rows: rules on several rows count these once, by whatever
names an analyst asks. In two worlds that differ in one value such rules cannot be seen, as they let
out sums over several rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import duckdb

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.governance.copies import copies
from sqlfl.messages import JoinKeys
from sqlfl.messages.wire import received
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import Recorded, RecordingTransport
from tests import depth
from tests.governance.two_worlds import (
    LAB,
    OWN,
    ROWS,
    SGD,
    TRAINED,
    VIEWS,
    draws,
    of_clinic,
    world,
)
from tests.open_databases import in_memory

NAMES = ("patients", *(view for view in VIEWS if "patient" in view))
"""Names whose rows are of one patient each."""
UNSCORED = "coarse_patients"
"""The name without a grant of PREDICT."""
RARE = """UPDATE patients SET ward = 'rare' WHERE pid IN (17, 23);
CREATE TABLE copied AS SELECT * REPLACE (pid + 1000 AS pid) FROM patients"""
COPIED = "INSERT INTO tests SELECT * REPLACE (pid + 1000 AS pid) FROM tests"
LEAST, LEAST_ROWS = 3, 20
TAKEN = "pid, ward, age"
FEW = "CASE WHEN p.pid = 17 THEN 5 ELSE p.age % 3 END"
CLASSES = "TRAIN OR REPLACE MODEL n USING logistic_regression TARGET x "
RUNS = (
    ("p.ward", TRAINED), ("p.age", TRAINED), ("p.age", TRAINED), (FEW, TRAINED), ("", TRAINED),
    ("p.ward = 'rare'", CLASSES), ("", "EVALUATE MODEL own "),
)  # fmt: skip
"""Value of the clinic's rows that a run has, and how it begins."""


@dataclass(frozen=True)
class Asked:
    """Statement over patients by one name or two."""

    names: tuple[str, ...]
    text: str
    value: str
    local: str
    """Query of the same rows at the clinic: their values, and their patients."""
    sent: str
    """Query of the patients whose join keys leave: those before the join."""

    @property
    def scores(self) -> bool:
        return self.text.startswith("EVALUATE")


def some_asked(draw: random.Random, names: Sequence[str]) -> Asked:
    one, two = draw.sample(names, 2)
    where = draw.choice(
        ("", "", "", "p.pid > 4", "p.pid <> 9", "p.age > 40", "p.ward <> 'rare'", "p.ward <> 'r'",
         "p.pid < 12", "t.pid < 12", "p.pid <> 17", *["t.pid <> 9"] * 3)
    )  # fmt: skip
    where = f" WHERE {where}" if where else ""
    both = f"(SELECT {TAKEN} FROM {one} UNION ALL SELECT {TAKEN} FROM {two})"
    joined = f"(SELECT a.pid, b.ward, a.age FROM {one} a JOIN {two} b ON b.pid = a.pid)"
    sources = draw.choice(([one], [one], [one], [one, two], [both], [joined]))
    value, begins = draw.choice(RUNS)
    values = f"{value or 1} AS x, p.pid"
    aliased = [f"{source} p" for source in sources]
    local = [f"SELECT {values} FROM {source}{where}" for source in aliased]
    columns = f"{value} AS x, t.crp, t.y" if value else "t.crp, t.y"
    columns = columns.replace(", t.y", "") if begins == CLASSES else columns
    parts = [f"SELECT {columns} FROM {of_clinic(source)} p JOIN lab.tests t ON p.pid = t.pid{where}"
             for source in sources]  # fmt: skip
    options = "" if begins.startswith("EVALUATE") else SGD.format(1)
    return Asked(
        (one,) if sources == [one] else (one, two),
        f"{begins}{options}FROM ({' UNION ALL '.join(parts)})",
        value,
        " UNION ALL ".join(local).replace("t.pid", "p.pid"),
        " UNION ".join(f"SELECT p.pid FROM {of}{where * ('p.' in where)}" for of in aliased),
    )


def some_change(draw: random.Random) -> str:
    """Return a statement of the owner's on a view."""
    view = draw.choice(NAMES[1:])
    text = draw.choice(("FROM patients", "FROM patients WHERE pid <> 9", "FROM copied"))
    return draw.choice((f"DROP VIEW {view}", f"CREATE OR REPLACE VIEW {view} AS {text}"))


def fault_of(asked: Asked, rows: list[tuple[object, int]]) -> str:
    """Return the rule that this run's own rows break; empty if they keep all."""
    classes: dict[object, set[int]] = {}
    for value, pid in rows:
        classes.setdefault(value, set()).add(pid)
    few = set().union(*(pids for pids in classes.values() if len(pids) < LEAST))
    if asked.scores and UNSCORED in asked.names:
        return "scores without PREDICT"
    if len({pid for _, pid in rows}) < LEAST_ROWS:
        return "few rows"
    rare = "ward" in asked.value or (asked.value == FEW and len(few) < LEAST)
    return "few rows have a value" if few and rare else ""


def differ_by_few(patients: frozenset[int], earlier: Sequence[frozenset[int]]) -> bool:
    """Return whether the patients and those of an earlier run are not the same, but for few."""
    apart = [len(part) for before in earlier for part in (patients - before, before - patients)]
    return any(0 < few < LEAST for few in apart)


def numbers_of_keys(messages: Sequence[Recorded]) -> list[int]:
    """Return how many distinct join keys have left the clinic with each message, also where a run
    is refused later."""
    sent = [received(message.data) for message in messages
            if message.direction == "up" and message.client.party == "clinic"]  # fmt: skip
    return [len(tags) for reply in sent if isinstance(reply, JoinKeys) for tags in reply.tags]


def test_a_table_and_its_views_have_the_same_rows() -> None:
    """Check that no class of a run is of few patients, and that no two runs differ by few, by
    whatever names the analyst asks."""
    number, changed = 150 if depth.THOROUGH else 1 if depth.QUICK else 3, True
    run = Counter[str]()
    with world() as con, in_memory() as lab, ExitStack() as stack:
        con.execute(RARE)
        lab.execute(f"{LAB}; {COPIED}")
        recorders: list[RecordingTransport] = []

        def recorder(inner: Transport) -> RecordingTransport:
            recorders.append(RecordingTransport(inner))
            return recorders[-1]

        fed = sqlfl.Federation(analyst="acme", progress=False, wrap=recorder)
        stack.enter_context(fed)
        fed.attach("clinic", con)
        fed.attach("lab", lab)
        fed.sql(OWN[0])
        owner = stack.enter_context(sqlfl.owner(con))
        owner.sql("CREATE TRAINING POLICY r")

        def grant() -> None:
            for name in NAMES:
                roles = [f"{role} ({TAKEN})" for role in ("TRAIN", "FILTER", "LABEL")]
                roles += ["JOIN (pid)", *["PREDICT"] * (name != UNSCORED)]
                with suppress(sqlfl.Error, duckdb.Error):  # one that is gone, or reads one
                    owner.sql(f"GRANT {', '.join(roles)} ON {name} TO 'acme' UNDER r")

        for case, draw in enumerate(draws(number)):
            differ = draw.random() < 0.6
            rules = {"min_cell": LEAST, "min_rows": LEAST_ROWS}
            rules |= {"min_difference": LEAST} if differ else {}
            limits = ", ".join(f"{name} = {value}" for name, value in rules.items())
            owner.sql(f"CREATE OR REPLACE TRAINING POLICY r WITH ({limits})")
            if changed:
                con.execute("; ".join(f"CREATE OR REPLACE VIEW {name} AS {text}"
                                      for name, text in VIEWS.items()))  # fmt: skip
                grant()
            con.execute("DELETE FROM sqlfl.seen")
            names, changed, said = draw.sample(NAMES, 3), False, list[str]()
            earlier, sent = list[frozenset[int]](), list[frozenset[int]]()
            for _ in range(4):
                if draw.random() < 0.25:
                    said.append(some_change(draw))
                    with suppress(duckdb.Error):  # it is gone already
                        con.execute(said[-1])
                    changed = True
                    grant()
                asked = some_asked(draw, names)
                recorders[0].recorded.clear()
                try:
                    rows = con.execute(asked.local).fetchall()
                    fed.sql(asked.text)
                except (sqlfl.Error, duckdb.Error):
                    continue
                finally:
                    keys = numbers_of_keys(recorders[0].recorded)
                    assert all(rows >= LEAST_ROWS for rows in keys), (case, asked, said)
                    if keys and differ:
                        now = frozenset(pid for (pid,) in con.execute(asked.sent).fetchall())
                        assert not differ_by_few(now, sent), (case, asked, said)
                        sent.append(now)
                said.append(asked.text)
                run[f"{asked.value or 'no value'}{' scored' * asked.scores}"] += 1
                fault = fault_of(asked, rows)
                assert not fault, (case, fault, limits, said)
                patients = frozenset(pid for _, pid in rows)
                assert not differ or not differ_by_few(patients, earlier), (case, limits, said)
                earlier.append(patients)
    print(f"a table and its views: {number} cases, {run.total()} runs: {dict(run)}")
    assert run.total() >= number // 3


MANY = 5
"""Patients of which there are as many as a rule asks for."""


def some_mean(draw: random.Random) -> str:
    """Return a number that follows from several patients, by one name or two."""
    name = draw.choice(NAMES)
    return draw.choice(
        (
            f"(SELECT sum(q.age) FROM {name} q)", f"(SELECT sum(q.age) FROM {name} q)",
            f"(SELECT avg(q.age) FROM {name} q WHERE q.pid <> 9)", "sum(p.age) OVER ()",
            "avg(p.age) OVER (PARTITION BY p.ward)", "sum(p.age) OVER (PARTITION BY p.pid)",
            f"(SELECT max(q.age) FROM {name} q WHERE q.pid = p.pid)",
            f"(SELECT sum(q.age) FROM {name} q WHERE q.ward = p.ward)", "p.age",
            "max(p.age) OVER (ORDER BY p.pid ROWS 2 PRECEDING)",
        )
    )  # fmt: skip


def reached(con: duckdb.DuckDBPyConnection, text: str) -> list[frozenset[int]]:
    """Return, for each row of the query, the patients whose age its value follows from."""
    before = con.execute(text).fetchall()
    rows = [set[int]() for _ in before]
    for patient in range(ROWS):
        con.execute(f"BEGIN; UPDATE patients SET age = age + 100003 WHERE pid = {patient}")
        after = con.execute(text).fetchall()
        con.execute("ROLLBACK")
        for row, *values in zip(rows, before, after, strict=True):
            if len(set(map(str, values))) > 1:
                row.add(patient)
    return [frozenset(row) for row in rows]


def test_values_of_many_rows_are_of_many_patients() -> None:
    """Check that values which few patients decide are in fewer rows than a cell must have."""
    number, taken = 1000 if depth.THOROUGH else 5 if depth.QUICK else 12, 0
    with world() as con:
        for case, draw in enumerate(draws(number)):
            means = [some_mean(draw) for _ in range(draw.choice((1, 2, 2, 2)))]
            text = f"SELECT {' - '.join(means)} FROM {draw.choice(NAMES)} p"
            try:
                fewest = copies(con, text, MANY).values.rows_of(MANY)
            except PolicyError:
                continue
            taken += 1
            ordered = f"{text} ORDER BY p.pid"
            patients = [of_row for of_row in reached(con, ordered) if of_row]
            for few in {of_row for of_row in patients if len(of_row) < MANY}:
                rows = sum(of_row <= few for of_row in patients)
                assert rows < fewest, (case, text, sorted(few), rows, fewest)
    print(f"values of many rows: {number} drawn, {taken} taken")
    assert taken > number // 20
