"""Two worlds that differ in one value which a policy does not let out look the same to an analyst:
whatever the policy, and whatever the statement, the verdict and all that leaves are equal."""

from __future__ import annotations

import datetime as dt
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import LostError, PolicyError
from sqlfl.contract.schema import Client, FeatureSpecification, KeySpecification, SlotSpecification
from sqlfl.governance.copies import copies
from sqlfl.governance.fragments import Fragments, roles_of
from sqlfl.governance.names import functions_of
from sqlfl.governance.policies import Grant, Roles, Ruling, definitions_of
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.messages import Failure, Message, Prepare, Residuals, Sealed
from sqlfl.messages.wire import encoded, received
from sqlfl.options.policies import TrainingPolicy, strictest
from sqlfl.transport.base import Transport
from tests import depth
from tests.governance.two_worlds import (
    COLUMNS,
    LAB,
    OWN,
    SECRETS,
    VIEWS,
    Differences,
    Policy,
    RolesOf,
    Statement,
    Step,
    a_filtered_statement,
    differences,
    draws,
    some_grants,
    some_statement,
    some_steps,
    the_policy,
    world,
)
from tests.open_databases import in_memory

# -- what leaves -----------------------------------------------------------------------------------


def leaves(
    con: duckdb.DuckDBPyConnection, text: str, roles: list[str], policy: TrainingPolicy
) -> object:
    """All that follows from the fragment without noise: how many rows there are, whether it fails,
    which targets are NULL, columns that leave as they are, and which keys are equal."""
    try:
        rows = con.execute(text).fetchall()
    except duckdb.Error:
        return "fails"
    out = policy.epsilon is None
    shown = {
        "train": out and policy.predictions == "exact", "label": out and policy.labels == "exact",
        "identify": policy.identifiers == "exact", "sqlfl_kept": True,
    }  # fmt: skip
    told, keys = [], []
    for row in rows:
        own: list[str] = []
        for role, value in zip(roles, row, strict=True):
            if role == "label":
                own.append(str(value is None or value != value))
            if shown.get(role):
                own.append(rounded(value))
        told.append(tuple(own))
        keys.append(
            tuple(
                str(value) if isinstance(value, dict) else value
                for role, value in zip(roles, row, strict=True)
                if role == "join"
            )
        )
    counts = Counter(keys)
    pattern = Counter((own, counts[key], None in key) for own, key in zip(told, keys, strict=True))
    return sorted(pattern.items())


def rounded(value: object) -> str:
    """Return its text, without the digits that depend on the order in which threads add up."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def copies_of(con: duckdb.DuckDBPyConnection, text: str, least: int) -> object:
    """The copies of a row, by which rules on rows and cells are larger, if they are counted."""
    try:
        counted = copies(con, text, least)
        return [(own.counts.tolist(), own.rest) for own in (counted.rows, counted.values)]
    except (PolicyError, duckdb.Error) as error:
        return type(error).__name__


def ruling_of(
    policy: TrainingPolicy, roles: RolesOf, definitions: Mapping[Table, str] | None = None
) -> Ruling:
    tables = [("memory", "main", name) for name in roles]
    grants = (
        Grant(n, "acme", table, Roles(roles[table[2]], predict=True), "r", None,
              (definitions or {}).get(table, ""))
        for n, table in enumerate(tables, 1)
    )  # fmt: skip
    return Ruling("acme", tuple(grants), {"r": policy})


def tells_equals(reading: SelectReading, roles: list[str], differs: Differences) -> bool:
    """Return True if a column that differs is granted for JOIN and serves as that: which of its
    values are equal may leave. Other values of `pid` and `ssn` leave the same keys equal."""
    keys = [o.same for role, o in zip(roles, reading.outputs, strict=True) if role == "join"]
    linked = [side.column for pair in reading.pairs for side in pair]
    return any(
        key is not None and key.name not in ("pid", "ssn") and is_hidden(key, differs)
        for key in (*keys, *linked)
    )


def is_hidden(column: ScopeColumn, differs: Differences) -> bool:
    return column.name in differs[column.table[2]].columns


def test_fragments_in_two_worlds() -> None:
    number = 20_000 if depth.THOROUGH else 60 if depth.QUICK else 300
    check_fragments(number, some_statement, number / 20, number / 100)


def test_filters_of_aggregates_in_two_worlds() -> None:
    """What an aggregate counts follows from its FILTER alone."""
    number = 10_000 if depth.THOROUGH else 60 if depth.QUICK else 400
    check_fragments(number, a_filtered_statement, number / 40, number / 200)


def check_fragments(
    number: int,
    a_statement: Callable[[random.Random, Sequence[str]], Statement],
    least_taken: float,
    least_over_views: float,
) -> None:
    taken, read, over_views = 0, 0, 0
    policies, values = set[TrainingPolicy](), set[tuple[str, str]]()
    with ExitStack() as stack:
        first = stack.enter_context(world())
        others = {
            (column, secret): stack.enter_context(world(secret, column))
            for column, secrets in SECRETS.items()
            for secret in secrets
        }
        differing = {key: differences(first, there) for key, there in others.items()}
        tables = [("memory", "main", name) for name in COLUMNS]
        definitions = definitions_of(first, tables)
        reader = Fragments("acme", ("memory", "main"))
        reader._functions = functions_of(first)
        for case, draw in enumerate(draws(number)):
            column = draw.hidden = draw.choice([*SECRETS])
            secret = draw.choice(SECRETS[column])
            there, differs = others[column, secret], differing[column, secret]
            policy, roles = some_grants(draw, differs)
            statement = a_statement(draw, [*roles])
            policies.add(policy)
            values.add((column, secret))
            if statement.slot.target and policy.labels == "never":
                continue  # refused by that
            ruling = ruling_of(policy, roles, definitions)
            reader.forget()
            try:
                reading = reader.check(lambda: first, statement.slot, statement.text, ruling)
            except PolicyError:
                continue
            own = roles_of(statement.slot, reading.outputs)
            if tells_equals(reading, own, differs):
                continue
            rules = strictest([policy])
            verdicts = [leaves(con, statement.text, own, rules) for con in (first, there)]
            said = (case, statement.text, column, secret, policy, roles)
            assert verdicts[0] == verdicts[1], said
            # cells of values may depend on them, and so may how far they reach
            reads = frozenset().union(*(output.reads for output in reading.outputs))
            least = 1 if any(is_hidden(c, differs) for c in reads) else policy.min_cell
            counts = [copies_of(con, statement.text, least) for con in (first, there)]
            assert counts[0] == counts[1], said
            read += 1
            over_views += any(table[2] in VIEWS for table in reading.tables)
            taken += verdicts[0] != "fails"
    print(f"two worlds: {number} statements, {len(policies)} policies, {len(values)} values;"
          f" {read} not refused, {over_views} of them over views, {taken} run")  # fmt: skip
    assert taken > least_taken
    assert over_views > least_over_views


# -- statements that one check alone refuses -------------------------------------------------------

EVERY = ("train", "filter", "label", "join", "identify")
NOISED = TrainingPolicy(
    min_rows=1, min_cell=1, labels="noised", predictions="noised", moments="never",
    conditions="exact",
)  # fmt: skip
ALONE: dict[str, tuple[str, str, str]] = {
    "WHERE": ("SELECT 1 FROM patients p WHERE p.age = 77", "age", "77"),
    "WHERE of a part": ("SELECT 1 FROM (SELECT pid FROM patients p WHERE age > 76) p", "age", "77"),
    "WITH": ("WITH q AS (SELECT pid FROM patients WHERE age = 77) SELECT 1 FROM q", "age", "77"),
    "OR": ("SELECT 1 FROM patients p WHERE p.pid = 3 OR p.age = 77", "age", "77"),
    "NOT": ("SELECT 1 FROM patients p WHERE NOT (p.age = 77)", "age", "77"),
    "IS NOT NULL": ("SELECT 1 FROM patients p WHERE p.age IS NOT NULL", "age", "NULL"),
    "not NaN": ("SELECT 1 FROM patients p WHERE NOT isnan(p.bmi)", "bmi", "'nan'"),
    "HAVING": ("SELECT 1 FROM patients p GROUP BY p.ward HAVING max(p.age) > 80", "age", "300"),
    "QUALIFY": (
        "SELECT 1 FROM patients p QUALIFY p.age = 77 AND max(p.bmi) OVER () > 0", "age", "77",
    ),
    "QUALIFY of a window": (
        "SELECT 1 FROM patients p QUALIFY max(p.age) OVER (PARTITION BY p.ward) > 80", "age", "300",
    ),
    "GROUP BY": ("SELECT 1 FROM patients p GROUP BY p.age", "age", "77"),
    "GROUP BY a number": (
        "SELECT 1 FROM (SELECT p.age, max(p.pid) AS pid FROM patients p GROUP BY 1) p", "age", "77",
    ),
    "CUBE": ("SELECT 1 FROM patients p GROUP BY CUBE (p.ward, p.age)", "age", "77"),
    "DISTINCT": ("SELECT 1 FROM (SELECT DISTINCT age FROM patients) p", "age", "77"),
    "DISTINCT ON": ("SELECT 1 FROM (SELECT DISTINCT ON (age) pid FROM patients) p", "age", "77"),
    "UNION": (
        "SELECT 1 FROM (SELECT age FROM patients UNION SELECT age FROM patients) p", "age", "77",
    ),
    "EXCEPT": (
        "SELECT 1 FROM (SELECT pid, age FROM patients EXCEPT SELECT pid, 77 FROM patients) p",
        "age", "77",
    ),
    "INTERSECT ALL": (
        "SELECT 1 FROM (SELECT age FROM patients INTERSECT ALL SELECT cost FROM visits) p",
        "age", "0",
    ),
    "ORDER BY and LIMIT": (
        "SELECT 1 FROM (SELECT pid FROM patients ORDER BY age LIMIT 1) p WHERE p.pid = 17",
        "age", "-5",
    ),
    "LIMIT of a number in the table": (
        "SELECT 1 FROM patients p LIMIT (SELECT min(age) FROM patients)", "age", "0",
    ),
    "ON": (
        "SELECT 1 FROM patients p JOIN visits v ON v.pid = p.pid AND p.age = 77", "age", "77",
    ),
    "ON of an anti join": (
        "SELECT 1 FROM patients p ANTI JOIN visits v ON v.pid = p.pid AND p.age = 77", "age", "77",
    ),
    "BETWEEN constants": (
        "SELECT 1 FROM patients p JOIN (VALUES (76, 78)) v(a, b) ON p.age BETWEEN a AND b",
        "age", "77",
    ),
    "IN": ("SELECT 1 FROM patients p WHERE p.pid IN (SELECT cost FROM visits) = (p.age = 77)",
           "age", "77"),
    "EXISTS": (
        "SELECT 1 FROM patients p WHERE EXISTS (SELECT 1 FROM visits v "
        "WHERE v.pid = p.pid AND p.age = 77)", "age", "77",
    ),
    "a subquery": (
        "SELECT 1 FROM patients p WHERE p.pid < (SELECT max(age) - 60 FROM patients)",
        "age", "300",
    ),
    "a row that is kept": ("SELECT (p.age = 77) AS sqlfl_kept FROM patients p", "age", "77"),
    "a row that a subquery keeps": (
        "SELECT sqlfl_kept FROM (SELECT p.age = 77 FROM patients p) q(sqlfl_kept)", "age", "77",
    ),
    "a row that * keeps": (
        "SELECT * FROM (SELECT p.age = 77 FROM patients p) q(sqlfl_kept)", "age", "77",
    ),
    "a row that WITH keeps": (
        "WITH q(sqlfl_kept) AS (SELECT p.age = 77 FROM patients p) FROM q", "age", "77",
    ),
    "a row that a union keeps": (
        "SELECT pid = 0 AS sqlfl_kept FROM patients UNION ALL SELECT age = 77 FROM patients",
        "age", "77",
    ),
    "a row that an alias of itself keeps": (
        "SELECT q.sqlfl_kept FROM (SELECT p.age = 77 AS sqlfl_kept FROM patients p) q", "age",
        "77",
    ),
    "a column without JOIN": (
        "SELECT 1 FROM patients p JOIN visits v ON p.age = v.pid", "age", "0",
    ),
    "a column without JOIN in USING": (
        "SELECT 1 FROM (SELECT age AS pid FROM patients) p JOIN visits v USING (pid)", "age", "0",
    ),
}  # fmt: skip
"""What it is that decides -> statement, the hidden column, and its value in the other world.
Everything is granted but FILTER and JOIN of that column; with FILTER it is taken."""
LINKED: dict[str, tuple[str, str, str]] = {
    "TRY_CAST": (
        "SELECT 1 FROM patients p WHERE TRY_CAST(p.ssn AS ENUM('n17', 'n5')) = p.ssn", "ssn",
        "'m4'",
    ),
    "TRY_CAST IS NOT NULL": (
        "SELECT 1 FROM patients p WHERE TRY_CAST(p.ssn AS ENUM('n17', 'n5')) IS NOT NULL", "ssn",
        "'m4'",
    ),
    "a narrow cast": ("SELECT 1 FROM patients p WHERE CAST(p.pid AS TINYINT) = p.pid", "pid",
                      "517"),
    "a constant": (
        "SELECT 1 FROM patients p JOIN (SELECT 'n17' AS ssn) v ON v.ssn = p.ssn", "ssn", "'m4'",
    ),
    "VALUES": (
        "SELECT 1 FROM patients p JOIN (VALUES ('n17')) v(ssn) USING (ssn)", "ssn", "'m4'",
    ),
    "a text beside a number": (
        "SELECT 1 FROM (SELECT ssn FROM patients WHERE pid = 17) p JOIN visits v ON v.pid = p.ssn",
        "ssn", "'517'",
    ),
    "IN": ("SELECT 1 FROM patients p WHERE p.ssn IN (SELECT 'n17')", "ssn", "'m4'"),
}  # fmt: skip
"""The same of what is no link, though its column is granted for JOIN."""


ROWS_ALONE = SlotSpecification(0, (), False, False, (), (), (0,), False, "", "arrays")
FEATURE = replace(ROWS_ALONE, features=(FeatureSpecification("f", "numeric"),))
KEYED = replace(ROWS_ALONE, keys=(KeySpecification(0, ("BIGINT",)),))
OUTPUTS: dict[str, tuple[str, SlotSpecification, str, str, str, str]] = {
    "a feature that may fail": ("train", FEATURE, "CAST(p.age AS TINYINT)", "age", "300", "train"),
    "a feature that fails in CASE": (
        "train", FEATURE, "CASE WHEN p.age = 77 THEN CAST('x' AS INTEGER) ELSE 1 END", "age", "77",
        "train",
    ),
    "a key that may fail": ("join", KEYED, "CAST(p.pid AS TINYINT)", "pid", "517", "join"),
    "a key that a cast may lose": (
        "join", KEYED, "TRY_CAST(p.pid AS TINYINT)", "pid", "517", "join",
    ),
    "a key that is computed": ("join", KEYED, "p.ssn = 'n17'", "ssn", "'m4'", "join"),
    "a key without JOIN": ("join", KEYED, "p.age", "age", "77", "train"),
    "a target that is NULL": (
        "label", replace(ROWS_ALONE, target=True), "CASE WHEN p.age = 77 THEN 1 END", "age", "77",
        "label",
    ),
    "a target that is a field": (
        "label", replace(ROWS_ALONE, target=True), "p.info.a", "info", "{'a': NULL, 'b': 1}",
        "label",
    ),
    "an identifier": ("identify", replace(ROWS_ALONE, identifiers=(0,)), "p.age", "age", "77",
                      "train"),
}  # fmt: skip
"""The same of what leaves of each row: its role, the slot, the expression, the column, its value in
the other world, and the one role that the column has."""


def alone(
    text: str,
    hidden: tuple[str, ...],
    column: str,
    policy: TrainingPolicy,
    slot: SlotSpecification = ROWS_ALONE,
    tables: Sequence[str] = ("patients", "visits"),
) -> str:
    """The refusal where the column has the roles `hidden`; empty where the statement is taken."""
    roles = {
        table: {
            role: tuple(name for name in COLUMNS[table] if name != column or role in hidden)
            for role in EVERY
        }
        for table in tables
    }
    with world() as con:
        reader = Fragments("acme", ("memory", "main"))
        try:
            reader.check(lambda: con, slot, text, ruling_of(policy, roles))
        except PolicyError as error:
            return error.message
    return ""


@pytest.mark.parametrize("name", ALONE)
def test_conditions_that_would_tell(name: str) -> None:
    text, column, secret = ALONE[name]
    assert "which rows there are" in alone(text, ("train", "label"), column, NOISED)
    assert alone(text, ("train", "filter"), column, NOISED) == ""
    # the default
    every = replace(NOISED, conditions=None)
    shown = ("train", "filter", "label", "identify")
    assert "conditions = 'never'" in alone(text, shown, column, every)
    check_worlds_differ(text, column, secret, "sqlfl_kept" if "sqlfl_kept" in text else "row")


@pytest.mark.parametrize("name", LINKED)
def test_links_that_would_tell(name: str) -> None:
    text, column, secret = LINKED[name]
    assert "which rows there are" in alone(text, ("join",), column, NOISED)
    check_worlds_differ(text, column, secret)


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_would_tell(name: str) -> None:
    role, slot, value, column, secret, hidden = OUTPUTS[name]
    text = f"SELECT {value} FROM patients p"
    assert alone(text, (hidden,), column, NOISED, slot)
    check_worlds_differ(text, column, secret, role)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 FROM (SELECT pid FROM patients LIMIT 40) p",
        "SELECT 1 FROM patients p QUALIFY row_number() OVER () < 40",
        "SELECT 1 FROM patients p WHERE (SELECT count(*) FROM visits) > 5",
    ],
)
def test_rows_that_no_value_chooses(text: str) -> None:
    shown = ("train", "filter", "label", "identify", "join")
    refusal = alone(text, shown, "age", replace(NOISED, conditions="never"))
    assert "conditions = 'never'" in refusal
    assert alone(text, shown, "age", NOISED) == ""


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 FROM patients p, visits v",
        "SELECT 1 FROM patients p LEFT JOIN (SELECT 1 FROM visits) v ON TRUE",
        "SELECT 1 FROM patients p WHERE EXISTS (SELECT 1 FROM visits)",
        "SELECT (SELECT count(*) FROM visits) FROM patients p",
        "SELECT 1 FROM patients p UNION ALL SELECT 1 FROM visits",
        "WITH v AS (FROM visits) SELECT 1 FROM patients p, v",
    ],
)
def test_tables_of_which_no_column_is_named(text: str) -> None:
    shown = ("train", "filter", "label", "identify", "join")
    assert "visits is not granted" in alone(text, shown, "age", NOISED, tables=["patients"])
    assert alone(text, shown, "age", NOISED) == ""


@pytest.mark.parametrize("change", ["VIEW plain_patients AS", "VIEW most_patients AS"])
def test_views_that_are_replaced(change: str) -> None:
    """Check a view that hides a column when it is granted, and what it reads."""
    view = ("memory", "main", "plain_patients")
    text = "SELECT p.age FROM plain_patients p"
    roles = {"plain_patients": dict.fromkeys(EVERY, COLUMNS["patients"])}
    slot = replace(ROWS_ALONE, identifiers=(0,))
    with world() as con:
        ruling = ruling_of(NOISED, roles, definitions_of(con, [view]))
        reader = Fragments("acme", ("memory", "main"))
        reader.check(lambda: con, slot, text, ruling)
        con.execute(f"CREATE OR REPLACE {change} FROM patients")
        reader.forget()
        with pytest.raises(PolicyError, match="is another one than when it was granted"):
            reader.check(lambda: con, slot, text, ruling)
    with world() as here, world("77", "age") as there:
        for con in (here, there):
            con.execute("CREATE OR REPLACE VIEW plain_patients AS FROM patients")
        assert leaves(here, text, ["identify"], NOISED) != leaves(there, text, ["identify"], NOISED)


def check_worlds_differ(text: str, column: str, secret: str, role: str = "row") -> None:
    with world() as here, world(secret, column) as there:
        first, second = (leaves(con, text, [role], NOISED) for con in (here, there))
    assert first != second


# -- end to end ------------------------------------------------------------------------------------

TIMES = ("seconds", "created", "trained", "version")
"""Of a model's card."""
FIRST = Policy(
    "min_rows = 1",
    {"patients": ["GRANT JOIN (pid), PREDICT ON patients TO 'acme' UNDER r"]},
    None,
)
SCORED = """PREDICT MODEL own ID (lab.tests.pid)
  FROM (SELECT t.crp FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid)"""
HIDDEN = ("age", "bmi", "ill", "ward", "info")
"""Columns that are no keys, whose hashes would differ."""


@dataclass
class Border:
    """Transport that keeps what the clinic sends, and loses the lab where a test says so."""

    inner: Transport
    sent: list[bytes] = field(default_factory=list)
    read: int = 0
    """Runs whose rows the clinic has looked at, whatever became of them."""
    lost_at: int = 0

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        for client, data in requests:
            if client.party == "lab" and self.lost_at and isinstance(received(data), Residuals):
                self.lost_at -= 1
                if not self.lost_at:
                    raise LostError("lab/0", "is away")
        replies = self.inner.exchange(requests)
        for (client, request), reply in zip(requests, replies, strict=True):
            if client.party == "clinic":
                self._keep(received(request), reply.to_pybytes())
        return replies

    def _keep(self, request: Message, data: bytes) -> None:
        reply = received(data)
        assert bytes(encoded(reply)) == data  # nothing is beside its fields
        # the coordinator draws numbers; heads of the chain are of the time, too
        unnumbered = bytes(encoded(replace(reply, number=0)))
        self.sent.append(b"" if isinstance(reply, Sealed) else unnumbered)
        if isinstance(request, Prepare):
            self.read += not (isinstance(reply, Failure) and UNREAD.search(reply.text))


UNREAD = re.compile("runs_per_day|the join|over a join|another one than when it was granted")
"""Refusals of runs before any row is read."""


@dataclass
class Side:
    """One of the worlds, and what the clinic has sent in it."""

    fed: sqlfl.Federation
    clinic: duckdb.DuckDBPyConnection
    border: Border

    def outcomes(self, case: str, policy: Policy, steps: Sequence[Step]) -> list[object]:
        """Return the verdict or the result of each statement, and every byte that left the clinic.
        What is drawn follows from the case alone."""
        with os.urandom.scope(case):  # type: ignore[attr-defined]
            self._begin(policy)
            return [self._outcome(step) for step in steps]

    def _begin(self, policy: Policy) -> None:
        views = [f"CREATE OR REPLACE VIEW {name} AS {text}" for name, text in VIEWS.items()]
        self.clinic.execute("; ".join(views))
        with sqlfl.owner(self.clinic) as owner:
            owner.sql(f"CREATE OR REPLACE TRAINING POLICY r WITH ({policy.rules})")
            self.clinic.execute("DELETE FROM sqlfl.seen; DELETE FROM sqlfl.runs")
            self.clinic.execute("DELETE FROM sqlfl.grants")
            owner.sql("; ".join(grant for grants in policy.grants.values() for grant in grants))
        self.fed.sql("DROP JOIN IF EXISTS j")
        self.border.read = 0

    def _outcome(self, step: Step) -> object:
        if step.by == "clinic":
            return self.clinic.execute(step.text).fetchall()
        self.border.sent.clear()
        self.border.lost_at = step.lost_at
        try:
            if step.by == "owner":
                with sqlfl.owner(self.clinic) as owner:
                    owner.sql(step.text)
                return None
            rows = self.fed.sql(step.text).fetchall()
            result: object = [timeless(row) for row in rows if row[0] not in TIMES]
        except sqlfl.Error as error:
            result = str(error)
        return result, list(self.border.sent)


def timeless(row: tuple[object, ...]) -> list[object]:
    return [None if isinstance(value, dt.datetime) else value for value in row]


def test_statements_in_two_worlds() -> None:
    number = 250 if depth.THOROUGH else 2 if depth.QUICK else 5
    run, given, over_views = Counter[str](), 0, 0
    policies = set[str]()
    with ExitStack() as stack:
        pairs: dict[tuple[str, str], tuple[Side, Side]] = {}
        differing: dict[tuple[str, str], Differences] = {}

        def side(column: str, secret: str | None) -> Side:
            con = stack.enter_context(world(secret, column))
            lab = stack.enter_context(in_memory())
            lab.execute(LAB)
            borders: list[Border] = []

            def border(inner: Transport) -> Border:
                borders.append(Border(inner))
                return borders[-1]

            with os.urandom.scope("two worlds"):  # type: ignore[attr-defined]
                fed = stack.enter_context(
                    sqlfl.Federation(analyst="acme", progress=False, wrap=border)
                )
                fed.attach("clinic", con)
                fed.attach("lab", lab)
                for text in OWN:
                    fed.sql(text)
            (of_fed,) = borders
            made = Side(fed, con, of_fed)
            # what is drawn once in a federation is drawn now
            made.outcomes("first", FIRST, [Step(SCORED)])
            return made

        values = [(column, secret) for column in HIDDEN for secret in SECRETS[column]]
        if not depth.THOROUGH:  # each takes a second
            values = random.Random(f"{depth.SEED} values").sample(values, 2)
        for case, draw in enumerate(draws(number)):
            column, secret = draw.choice(values)
            draw.hidden = column
            if (column, secret) not in pairs:
                # of the same history, as OR REPLACE removes a model that was trained before
                here, there = pairs[column, secret] = side(column, None), side(column, secret)
                differing[column, secret] = differences(here.clinic, there.clinic)
            policy = the_policy(draw, differing[column, secret])
            steps = some_steps(draw, policy)
            policies.add(policy.rules)
            sides = pairs[column, secret]
            outcomes = [one.outcomes(f"case {case}", policy, steps) for one in sides]
            for step, *each in zip(steps, *outcomes, strict=True):
                assert each[0] == each[1], (case, step, column, secret, policy, steps)
            reads = [one.border.read for one in sides]
            most = policy.runs_per_day or len(steps)
            assert reads[0] == reads[1] <= most, (case, reads, policy, steps)
            of_analyst = [step.by == "acme" for step in steps]
            given += sum(of_analyst)
            for step, outcome in zip(steps, outcomes[0], strict=True):
                if step.by == "acme" and not isinstance(outcome[0], str):
                    run[" ".join(step.text.split()[:2])] += 1
                    over_views += any(f"clinic.{view}" in step.text for view in VIEWS)
    print(
        f"two worlds: {given} statements in {number} cases, {len(policies)} policies, "
        f"{len(pairs)} values; {run.total()} run, {over_views} over views: {dict(run)}"
    )
    assert run.total() >= number // 10
