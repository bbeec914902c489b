"""Cost of each statement of a study: the join is made by each of them, or once by CREATE JOIN.

    python benchmarks/study.py [--turns 3] [--ten] [--rows 1000000] [--tls] [--approvals]

The tables are the demo's: flights in three databases, weather, planes and airports; with `--rows`
so many facts of one party, and a tenth as many rows of another one that they refer to. `--ten`
leaves out three of the statements, so that ten remain. The parties are in this process; with
`--tls` also in processes of their own, over Flight with TLS. Both ways take turns; seconds are
medians, those of the processor are of this process, and bytes are those of all messages, in both
directions. `--approvals` counts what owners approve who ask to see each run, of two small tables,
with and without CREATE STUDY.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow.compute as pc
from measuring import table

import sqlfl
from sqlfl.base.errors import ApprovalError
from sqlfl.contract.request import WAITING
from sqlfl.service import certificates
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import Host
from sqlfl.service.passes import Passes
from sqlfl.service.service import Service
from sqlfl.service.settings import CoordinatorSettings, Member, StudySettings
from sqlfl.service.stream import Credentials
from sqlfl.service.wrapping import make_secret

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from demo import QUERY, TABLES

STUDY = {
    "CHECK": "CHECK TARGET late FROM {rows}",
    "TRAIN": "TRAIN OR REPLACE MODEL plain USING logistic_regression TARGET late FROM {rows}",
    "TRAIN, l2 = 0.01": "TRAIN OR REPLACE MODEL firm USING logistic_regression TARGET late"
    " WITH (l2 = 0.01) FROM {rows}",
    "TRAIN by admm": "TRAIN OR REPLACE MODEL steps USING logistic_regression TARGET late"
    " WITH (algorithm = 'admm', epochs = 5) FROM {rows}",
    "TUNE, 3 values of l2": "TUNE OR REPLACE MODEL tuned USING logistic_regression TARGET late"
    " WITH (l2 = [0.0001, 0.001, 0.01]) FROM {rows}",
    "EVALUATE": "EVALUATE MODEL plain FROM {rows}",
    "METRICS": "METRICS OF MODEL plain FROM {rows}",
    "ROC": "ROC OF MODEL plain FROM {rows}",
    "CONFUSION": "CONFUSION OF MODEL plain FROM {rows}",
    "CALIBRATION": "CALIBRATION OF MODEL plain FROM {rows}",
    "IMPORTANCE": "IMPORTANCE OF MODEL plain FROM {rows}",
    "INFERENCE": "INFERENCE OF MODEL plain FROM {rows}",
    "PREDICT": "PREDICT MODEL plain FROM {rows}",
}
"""Statements by what they are called; `{rows}` is the query, or the join's name."""
BESIDE_TEN = ("TRAIN, l2 = 0.01", "TRAIN by admm", "TUNE, 3 values of l2")
FACTS = """CREATE TABLE facts AS SELECT i AS id, hash(i) % {few} AS k, sin(i) AS a, cos(i * 7) AS b,
  hash(i, 1) % 20 AS c, sin(i) + cos(hash(i) % {few}) + (hash(i, 2) % 1000) / 250.0 > 2.5 AS late
  FROM range({rows}) AS r(i)"""
DIMENSION = """CREATE TABLE dimension AS SELECT i AS k, cos(i) AS d, sin(i * 3) AS e, i % 15 AS f
  FROM range({few}) AS r(i)"""
STAR = """SELECT f.a, f.b, f.c::VARCHAR AS c, d.d, d.e, d.f::VARCHAR AS f, f.late
  FROM shop.facts f JOIN supplier.dimension d ON f.k = d.k"""
CREATE, DROP = "CREATE JOIN", "DROP JOIN"
COORDINATOR = "coordinator.example"
ORIGINS = ("EWR", "JFK", "LGA")
Measured = dict[str, tuple[float, float, float]]
"""Seconds, seconds of the processor, and MB of each statement."""


@dataclass(frozen=True)
class Data:
    """A query, and the tables that it joins."""

    query: str
    scripts: Mapping[str, list[str]]
    """The script of each database, by party."""
    statements: tuple[str, ...]
    """Names of those that are measured."""


def measured(fed: sqlfl.Federation, data: Data, *, named: bool) -> Measured:
    """Run the study once; `named`: over a join that lasts."""
    rows = "departures" if named else f"({data.query})"
    texts = {CREATE: f"CREATE JOIN departures AS ({data.query})"} if named else {}
    texts |= {name: STUDY[name].format(rows=rows) for name in data.statements}
    texts |= {DROP: "DROP JOIN departures"} if named else {}
    costs = {}
    for name, text in texts.items():
        before, began, worked = traffic(fed), time.perf_counter(), time.process_time()
        fed.sql(text)
        took = time.perf_counter() - began, time.process_time() - worked
        costs[name] = (*took, (traffic(fed) - before) / 1e6)
    return costs


def traffic(fed: sqlfl.Federation) -> int:
    return int(pc.sum(fed.audit().arrow()["bytes"]).as_py() or 0)


# -- parties ---------------------------------------------------------------------------------------


def data_of(rows: int | None, *, ten: bool) -> Data:
    """Return the star of so many rows, or without them the demo's tables."""
    statements = tuple(name for name in STUDY if not (ten and name in BESIDE_TEN))
    if rows is None:
        return Data(QUERY, demo_scripts(), statements)
    facts, dimension = (text.format(rows=rows, few=rows // 10) for text in (FACTS, DIMENSION))
    return Data(STAR, {"shop": [facts], "supplier": [dimension]}, statements)


def demo_scripts() -> dict[str, list[str]]:
    by_party = {}
    for name, rows in TABLES.items():
        party, table_name = name.split(".")
        parts = [f"FROM ({rows}) WHERE origin = '{origin}'" for origin in ORIGINS]
        parts = parts if party == "airline" else [rows]
        by_party[party] = [f"CREATE TABLE {table_name} AS {part}" for part in parts]
    return by_party


@contextmanager
def here(data: Data) -> Iterator[sqlfl.Federation]:
    """Return a federation of all parties in this process."""
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(progress=False))
        for party, own in data.scripts.items():
            clients = [stack.enter_context(duckdb.connect()) for _ in own]
            for con, script in zip(clients, own, strict=True):
                con.execute(script)
            fed.attach(party, clients)
        yield fed


@contextmanager
def elsewhere(folder: Path, data: Data) -> Iterator[sqlfl.Federation]:
    """Start a process for each database; yield a coordinator in this one, over Flight with TLS."""
    parties = {party: len(own) for party, own in data.scripts.items()}
    for party, own in data.scripts.items():
        certificates.write_private(folder / f"{party}.secret", make_secret())
        for number, script in enumerate(own):
            with duckdb.connect(folder / f"{party}{number}.duckdb") as con:
                con.execute(script)
    agents = [f"{party}{number}" for party, count in parties.items() for number in range(count)]
    make_keys(folder, [COORDINATOR, "alice", *agents])
    settings = CoordinatorSettings(
        name=COORDINATOR,
        parties={
            party: Member(agents=tuple(f"{party}{number}" for number in range(count)))
            for party, count in parties.items()
        },
        studies={"delays": StudySettings(parties=tuple(parties), analysts=("alice",))},
        **places(folder, COORDINATOR),
    )
    (folder / "alice.toml").write_text(
        f'coordinator_name = "{COORDINATOR}"\nstudy = "delays"\n'
        + "\n".join(f'{key} = "{place}"' for key, place in places(folder, "alice").items())
    )
    with ExitStack() as stack:
        service = Service(settings, "grpc+tls://127.0.0.1:0", None, insecure=False)
        stack.callback(service.close)
        location = f"grpc+tls://127.0.0.1:{service.port}"
        for party, count in parties.items():
            for number in range(count):
                command = [
                    *(sys.executable, __file__, "--serve"),
                    *(str(folder), location, party, str(number)),
                ]
                process = subprocess.Popen(command)
                stack.callback(process.wait)
                stack.callback(process.terminate)
        while any(line.away for line in service.board.lines):
            time.sleep(0.05)
        fed = sqlfl.connect(location, config=folder / "alice.toml", progress=False)
        stack.callback(fed.close)
        yield fed


def make_keys(folder: Path, names: list[str]) -> None:
    authority_key, authority = certificates.make_authority("authority")
    certificates.write_public(folder / "authority.crt", authority)
    for name in names:
        key = certificates.make_key()
        certificates.write_private(folder / f"{name}.key", key)
        hosts = ("localhost", "127.0.0.1") if name == COORDINATOR else ()
        request = certificates.signing_request(key, name, hosts)
        signed = certificates.sign(request, authority_key, authority)
        certificates.write_public(folder / f"{name}.crt", signed)
    certificates.write_private(folder / "secret", make_secret())


def places(folder: Path, name: str) -> dict[str, Any]:
    files = {"key": f"{name}.key", "certificate": f"{name}.crt", "authority": "authority.crt"}
    return {key: str(folder / file) for key, file in files.items()}


def serve(folder: Path, location: str, party: str, number: int) -> None:
    """Run the agent of one database."""
    files = places(folder, f"{party}{number}").items()
    own = Credentials(**{key: Path(place).read_bytes() for key, place in files})
    host = Host(
        party,
        folder / f"{party}{number}.duckdb",
        secret=(folder / "secret").read_bytes(),
        organisation=(folder / f"{party}.secret").read_bytes(),
        known=Passes(own.authority or b"", COORDINATOR),
        index=number,
        open=True,
    )
    with host:
        Agent(location, party, 1, host, own, server=COORDINATOR, first=number).run()


# -- the study -------------------------------------------------------------------------------------


def lines_of(place: str, apart: list[Measured], shared: list[Measured]) -> list[list[str]]:
    """Return the rows of the table: each statement, then their sum, beside one TRAIN."""
    lines, whole = [], []
    for name in (CREATE, *apart[0], "all"):
        cells: list[float] = []
        for runs in (apart, shared):
            costs = [run.get(name, (0.0, 0.0, 0.0)) for run in runs]
            if name == "all":
                costs = [tuple(map(sum, zip(*run.values(), strict=True))) for run in runs]
            cells += (median(values) for values in zip(*costs, strict=True))
        lines.append([place, name, *(f"{cell:.2f}" for cell in cells)])
        whole = cells
    one = [median(run["TRAIN"][n] for run in apart) for n in range(3)]
    ratios = (cell / of for cell, of in zip(whole, one * 2, strict=True))
    lines.append([place, "times one TRAIN", *(f"{ratio:.1f}" for ratio in ratios)])
    return lines


PATIENTS = """CREATE TABLE patients AS SELECT i AS pid, 20 + i * i % 60 AS age, i % 5 = 0 AS ill
  FROM range(500) AS r(i)"""
TESTS = "CREATE TABLE tests AS SELECT i AS pid, cos(i) AS crp FROM range(500) AS r(i)"
CLINIC = """SELECT p.age, t.crp, p.ill AS late
  FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"""
DESCRIBED = """CREATE STUDY ill PURPOSE 'who is ill' FOR TRAIN (age), JOIN (pid), LABEL (ill)
  ON clinic.patients AND TRAIN (crp), JOIN (pid) ON lab.tests WITH (statements = ['check', 'train',
  'tune', 'evaluate', 'predict', 'inference', 'importance'], runs = 100, until = '2100-01-01')"""


def approvals(rule: str, *, described: bool, named: bool) -> int:
    """Count the requests that two owners approve under `approval = rule`; `described`: after
    CREATE STUDY; `named`: over a join that lasts.
    """
    with ExitStack() as stack:
        databases_of = {party: stack.enter_context(duckdb.connect()) for party in ("clinic", "lab")}
        fed = stack.enter_context(sqlfl.connect(analyst="acme", progress=False))
        owners = []
        for party, script, grant in (
            ("clinic", PATIENTS, "TRAIN (age), JOIN (pid), LABEL (ill), PREDICT ON patients"),
            ("lab", TESTS, "TRAIN (crp), JOIN (pid), PREDICT ON tests"),
        ):
            con = databases_of[party]
            con.execute(script)
            owner = sqlfl.owner(con)
            owner.sql(f"CREATE TRAINING POLICY r WITH (approval = '{rule}', join_time = '1 hour')")
            owner.sql(f"GRANT {grant} TO 'acme' UNDER r")
            fed.attach(party, con)
            owners.append(owner)
        count = 0

        def approve() -> None:
            nonlocal count
            for owner in owners:
                rows = owner.sql("SHOW REQUESTS").arrow().to_pylist()
                for row in (row for row in rows if row["state"] == WAITING):
                    owner.sql(f"APPROVE REQUEST {row['request']}")
                    count += 1

        if described:
            fed.sql(DESCRIBED)
            approve()
            fed.sql("USE STUDY ill")
        texts = {CREATE: f"CREATE JOIN departures AS ({CLINIC})"} if named else {}
        texts |= STUDY
        for text in texts.values():
            text = text.format(rows="departures" if named else f"({CLINIC})")
            try:
                fed.sql(text)
            except ApprovalError:
                approve()
                fed.sql(text)
        return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ten", action="store_true", help="ten of the statements")
    parser.add_argument("--rows", type=int, help="facts of a star, in place of the demo's tables")
    parser.add_argument("--tls", action="store_true", help="also over Flight with TLS")
    parser.add_argument("--approvals", action="store_true", help="count approvals alone")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        folder, location, party, number = given.serve
        serve(Path(folder), location, party, int(number))
        return
    if given.approvals:
        cases = [(described, named) for described in (False, True) for named in (False, True)]
        counts = [
            [rule, *(str(approvals(rule, described=d, named=n)) for d, n in cases)]
            for rule in ("always", "first_time")
        ]
        head = ["approval", "each joins", "over CREATE JOIN", "each joins, CREATE STUDY", "both"]
        print("\n".join(table(head, counts)))
        return
    lines, data = [], data_of(given.rows, ten=given.ten)
    with TemporaryDirectory() as name:
        federations = {"one process": here(data)} | (
            {"TLS": elsewhere(Path(name), data)} if given.tls else {}
        )
        for place, opening in federations.items():
            with opening as fed:
                measured(fed, data, named=False)
                turns = [
                    (measured(fed, data, named=False), measured(fed, data, named=True))
                    for _ in range(given.turns)
                ]
            lines += lines_of(place, *(list(runs) for runs in zip(*turns, strict=True)))
    cost = ["s", "processor, s", "MB"]
    head = [
        "",
        "statement",
        *(f"each joins: {c}" for c in cost),
        *(f"CREATE JOIN: {c}" for c in cost),
    ]
    print("\n".join(table(head, lines)))


if __name__ == "__main__":
    main()
