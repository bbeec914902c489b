"""Whether what a party, or a coordinator, has kept of messages is as it was; without sqlfl.

python verify_chain.py bank.duckdb [coordinator.duckdb]
"""

import hashlib
import json
import sys
from itertools import zip_longest

import duckdb

START = "0" * 64


def entries(path):
    with duckdb.connect(path, read_only=True) as con:
        found = "SELECT * REPLACE (epoch_us(noted_at) AS noted_at) FROM sqlfl.chain ORDER BY rowid"
        return con.execute(found).fetchall()


def faults(rows):
    head, heads, told = START, {}, {}
    for place, row in enumerate(rows, 1):
        *fields, own = row
        if (
            row[0] != place
            or own != hashlib.sha256(json.dumps([head, *fields]).encode()).hexdigest()
        ):
            yield f"entry {row[0]}, at place {place}, or one before it, is not what was kept"
        head, (_, _, client, _, run, direction, kind, size, sha256, said) = own, fields
        whole = heads.setdefault((client, run), hashlib.sha256())
        if kind == "seal":
            told[client, run] = whole.hexdigest()
        whole.update(f"{direction} {kind} {size} {sha256}\n".encode())
        if kind in ("seal", "sealed") and said.split(" ")[0] != told.get((client, run)):
            yield f"run {run}: the two sides had other messages"


def of_runs(rows, clients):
    found = {}
    for _, _, client, _, run, direction, kind, size, sha256, _, _ in rows:
        said = found.setdefault(run, [])
        if run and client in clients and "finish" not in [m[1] for m in said[:-1]]:
            said.append((direction, kind, size, sha256))
    return found


paths = sys.argv[1:]
sides = {path: entries(path) for path in paths}
wrong = [f"{path}: {fault}" for path, rows in sides.items() for fault in faults(rows)]
if len(paths) == 2:
    clients = {row[2] for row in sides[paths[0]]}
    wrong += [f"{paths[0]} has no entries"] if sides[paths[1]] and not clients else []
    party, coordinator = (of_runs(rows, clients) for rows in sides.values())
    for run, said in coordinator.items():
        if any(a != b for a, b in zip_longest(party.get(run, []), said)):
            wrong.append(f"run {run}: the two sides have not kept the same messages")
print("\n".join(wrong) or "nothing was changed, dropped, added or reordered")
sys.exit(bool(wrong))
