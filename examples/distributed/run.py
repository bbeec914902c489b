"""Four organisations, a coordinator and an analyst, each a process of its own, over TLS.

Every step is a command that would be typed on a machine of its own; here all are this one. With
--keep FOLDER keys, databases and configurations stay there, to go on with by hand.
"""

import argparse
import os
import shlex
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

EXAMPLES = Path(__file__).parent.parent
sys.path.insert(0, str(EXAMPLES))
from demo import QUERY, TABLES, TRAIN  # noqa: E402

COORDINATOR, ANALYST, STUDY = "coordinator.example", "alice.example", "delays"
KEYS = {"airline": "origin, time_hour, tailnum, dest", "meteo": "origin, time_hour"}
KEYS |= {"registry": "tailnum", "atlas": "faa"}
PARTIES = [name.partition(".")[0] for name in TABLES]
SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a folder to make")
    given = parser.parse_args()
    with ExitStack() as stack:
        if given.keep is None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
        else:
            folder = given.keep
            folder.mkdir(parents=True)
        prepare(folder)
        with ExitStack() as processes:
            run(folder, processes)
        title(
            "What has left the airline, as its owner sees it; and that neither side has changed it"
        )
        sqlfl(folder, "owner", "airline.duckdb", "SHOW DISCLOSURES", shown=True)
        kept = f"coordinator/{STUDY}/{ANALYST}.duckdb"
        sqlfl(folder, "verify", "airline.duckdb", kept, shown=True)


def prepare(folder: Path) -> None:
    """What each organisation does once."""
    title("Keys: made where they are used; an authority signs what they are asked to stand for")
    sqlfl(folder, "keygen", "authority", "--name", "example")
    names = [f"{party}.example" for party in PARTIES]
    for name in (COORDINATOR, ANALYST, *names):
        hosts = ["--host", "localhost", "--host", "127.0.0.1"] if name == COORDINATOR else []
        sqlfl(folder, "keygen", "request", "--name", name, *hosts)
        sqlfl(folder, "keygen", "sign", f"{name}.csr", *hosts)
    wrapped = [text for name in names for text in ("--to", f"{name}.crt")]
    sqlfl(folder, "keygen", "secret", *wrapped)

    title("Databases, and what their owners grant")
    for name, rows in TABLES.items():
        party, table = name.split(".")
        path = folder / f"{party}.duckdb"
        with duckdb.connect(path) as con:
            con.execute(f"CREATE TABLE {table} AS {rows}")
        label = ", LABEL (arr_delay), FILTER (dep_time)" if party == "airline" else ""
        grant = f"TRAIN (*), JOIN ({KEYS[party]}){label}, PREDICT"
        policy = "CREATE TRAINING POLICY usual WITH (min_rows = 20, min_cell = 1)"
        grant = f"GRANT {grant} ON {table} TO '{ANALYST}' UNDER usual"
        sqlfl(folder, "owner", path.name, f"{policy}; {grant}")
        (folder / f"{party}.toml").write_text(
            f"""name = "{party}"
certificate = "{party}.example.crt"
key = "{party}.example.key"
authority = "authority.crt"
coordinator = "{COORDINATOR}"
database = "{party}.duckdb"
secret = "parties.secret"
"""
        )
    listed = "\n".join(f'[parties.{party}]\nagents = ["{party}.example"]' for party in PARTIES)
    (folder / "coordinator.toml").write_text(
        f"""name = "{COORDINATOR}"
certificate = "{COORDINATOR}.crt"
key = "{COORDINATOR}.key"
authority = "authority.crt"

{listed}

[studies.{STUDY}]
parties = {PARTIES}
analysts = ["{ANALYST}"]
"""
    )


def run(folder: Path, stack: ExitStack) -> None:
    port = free_port()
    place = f"grpc+tls://localhost:{port}"
    (folder / "alice.toml").write_text(
        f"""certificate = "{ANALYST}.crt"
key = "{ANALYST}.key"
authority = "authority.crt"
coordinator = "{place}"
coordinator_name = "{COORDINATOR}"
study = "{STUDY}"
"""
    )
    title("A coordinator, and a process for each party, which dials out to it")
    listen = ["--listen", f"grpc+tls://127.0.0.1:{port}", "--state", "coordinator"]
    start(folder, stack, "coordinator", "coordinator", *listen, "--config", "coordinator.toml")
    for party in PARTIES:
        start(folder, stack, party, "party", "--join", place, "--config", f"{party}.toml")
    wait_for_all(folder)

    title("An analyst's statements")
    asked = ["sql", "--config", "alice.toml"]
    sqlfl(folder, *asked, "SHOW PARTIES", shown=True)
    sqlfl(folder, *asked, TRAIN, shown=True)
    sqlfl(folder, *asked, f"EVALUATE MODEL delay FROM ({QUERY})", shown=True)
    title("Refused: who may not know which flights these are")
    sqlfl(folder, *asked, f"PREDICT MODEL delay ID (airline.flights.id) FROM ({QUERY})", fails=True)


def wait_for_all(folder: Path) -> None:
    logs = [folder / f"{party}.log" for party in PARTIES]
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if all(f"connected to {COORDINATOR}" in log.read_text() for log in logs):
            return
        time.sleep(0.1)
    texts = "\n".join(path.read_text() for path in folder.glob("*.log"))
    sys.exit(f"the parties have not joined within {SECONDS:.0f} seconds:\n{texts}")


def start(folder: Path, stack: ExitStack, name: str, *arguments: str) -> None:
    print("$ sqlfl", shlex.join(arguments), "&")
    log = stack.enter_context((folder / f"{name}.log").open("w"))
    process = subprocess.Popen(command(arguments), cwd=folder, env=environment(), stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def sqlfl(folder: Path, *arguments: str, shown: bool = False, fails: bool = False) -> None:
    print("$ sqlfl", shlex.join(arguments))
    done = ask(folder, *arguments)
    if (done.returncode != 0) != fails:
        sys.exit(done.stdout + done.stderr)
    if shown or fails:
        print(done.stdout + done.stderr)


def ask(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(arguments), cwd=folder, env=environment(), capture_output=True, text=True
    )


def command(arguments: "tuple[str, ...]") -> list[str]:
    return [sys.executable, "-m", "sqlfl", *arguments]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SQLFL_CONFIG"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    main()
