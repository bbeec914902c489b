"""Whether what a party, or a coordinator, has kept of messages is as it was; without sqlfl.

python verify_chain.py bank.duckdb [coordinator.duckdb]
"""

import hashlib
import json
import sys

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
        if kind != "cut":
            whole.update(f"{direction} {kind} {size} {sha256}\n".encode())
        if kind in ("seal", "sealed") and said.split(" ")[0] != told.get((client, run)):
            yield f"run {run}: the two sides had other messages"


def of_runs(rows, clients):
    found, finished, going = {}, set(), {}
    for _, _, client, _, run, direction, kind, size, sha256, told, _ in rows:
        said = found.setdefault((client, run), [])
        if run and client in clients and (kind == "cut" or (client, run) not in finished):
            said.append((direction, kind, size, sha256, told if kind == "cut" else ""))
        since = going.setdefault(client, set())
        if kind == "cut" and told.startswith("lost"):  # what was not written, of all runs
            for other in since - {run}:
                found[client, other].append((direction, kind, size, sha256, "lost 0"))
        if kind == "finish":
            finished.add((client, run))
            since.clear()
        elif run and client in clients and (client, run) not in finished:
            since.add(run)
    return found


def requests(told):
    """Return the number of requests without a reply, which an entry of kind "cut" has."""
    return int(told.split(" ")[-1])


def missed(messages):
    """Return True where the party may lack these messages: entries of kind "cut" explain them."""
    group = []
    for direction, kind, *_, told in messages:
        if kind == "cut" and told[:4] != "lost" and ("up" in group or len(group) > requests(told)):
            return False
        group = [] if kind == "cut" else [*group, direction]
    return not group


def same(party, coordinator):
    """Compare the messages of a run, as far as each side can know them where it was cut off."""
    rest = list(coordinator)
    for place, said in enumerate(party):
        if rest and rest[0] == said:
            rest.pop(0)
            continue
        kinds = [kind for _, kind, *_ in rest]
        cut = kinds.index("cut") if "cut" in kinds else None
        asked = place and party[place - 1][0] == "down" and said[0] == "up"
        if asked and cut is not None and cut < requests(rest[cut][4]):
            continue  # a reply that has not arrived
        ahead = rest.index(said) if said in rest else 0
        if ahead and missed(rest[:ahead]):
            rest = rest[ahead + 1 :]
            continue
        ends = {kind for _, kind, *_ in coordinator} & {"seal", "finish"}
        left = {kind for _, kind, *_ in party[place:]} & {"seal", "finish"}
        # the coordinator was ended in the run, which it has not finished
        return not rest and (not (ends or left) or (ends == {"seal"} and said[1] == "finish"))
    return missed(rest)


if __name__ == "__main__":
    paths = sys.argv[1:]
    sides = {path: entries(path) for path in paths}
    wrong = [f"{path}: {fault}" for path, rows in sides.items() for fault in faults(rows)]
    if len(paths) == 2:
        clients = {row[2] for row in sides[paths[0]]}
        wrong += [f"{paths[0]} has no entries"] if sides[paths[1]] and not clients else []
        party, coordinator = (of_runs(rows, clients) for rows in sides.values())
        for run, said in coordinator.items():
            if not same(party.get(run, []), said):
                wrong.append(f"run {run[1]}: the two sides have not kept the same messages")
    print("\n".join(wrong) or "nothing was changed, dropped, added or reordered")
    sys.exit(bool(wrong))
