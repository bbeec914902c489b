"""Statements of ADBC's Flight SQL driver, which nobody here wrote, by a gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import DatabaseOptions

import sqlfl
from sqlfl.base.errors import Error, ModelError
from sqlfl.contract.schema import Address
from sqlfl.coordinator.protection import Watched
from sqlfl.gateway import calls
from sqlfl.gateway.calls import NOTES, Statements
from sqlfl.gateway.server import Gateway
from sqlfl.messages import Message
from sqlfl.service import certificates as ct
from sqlfl.service.stream import Credentials
from tests.depth import THOROUGH
from tests.gateway.frames import send_frames
from tests.service.study import identity, studied

TOKEN = "a token of a test"
MADE = """CREATE TABLE customers AS SELECT i AS pid, 'c' || i % 5 AS city, sin(i) AS balance,
  cos(i) AS spent, i * i % 7 < 3 AS churned FROM range(400) AS r(i)"""
JOIN = "FROM bank.customers b JOIN shop.customers s ON b.pid = s.pid"
QUERY = f"SELECT b.balance, s.spent, b.churned {JOIN}"
TRAIN = f"TRAIN MODEL m USING logistic_regression TARGET churned FROM ({QUERY})"
ENDLESS = (
    "TRAIN MODEL long USING logistic_regression TARGET churned WITH (algorithm = 'sgd', "
    f"epochs = 1000000, tolerance = 0) FROM ({QUERY})"
)
LOOKS = "METRICS", "ROC", "CONFUSION", "CALIBRATION", "INFERENCE", "CONTRIBUTIONS"
STATEMENTS = [
    "SELECT 1", "SHOW PARTIES", "SHOW TABLES", "SHOW MODELS", TRAIN, "SHOW MODELS",
    "DESCRIBE bank.customers", "DESCRIBE MODEL m", "HISTORY OF MODEL m", "FEATURES OF MODEL m",
    "WEIGHTS OF MODEL m", "COMMENT ON MODEL m IS 'of a test'", f"EXPLAIN {TRAIN}",
    f"EXPLAIN (VERBOSE) EVALUATE MODEL m FROM ({QUERY})", f"CHECK TARGET churned FROM ({QUERY})",
    f"EVALUATE MODEL m FROM ({QUERY})", f"PREDICT MODEL m FROM ({QUERY})",
    f"PREDICT MODEL m ID (b.pid, s.city) FROM ({QUERY})",
    *(f"{look} OF MODEL m FROM ({QUERY})" for look in LOOKS),
    f"PREDICT MODEL m ID (b.pid) FROM ({QUERY}) INTO bank.predicted",
    TRAIN.replace("TRAIN", "TRAIN OR REPLACE"), TRAIN.replace("MODEL m", "MODEL IF NOT EXISTS m"),
    "DROP MODEL IF EXISTS nothing", "SHOW MODELS", "DROP MODEL m",
]  # fmt: skip


def attached(stack: list[duckdb.DuckDBPyConnection], fed: sqlfl.Federation) -> None:
    for name in ("bank", "shop"):
        stack.append(duckdb.connect())
        stack[-1].execute(MADE)
        fed.attach(name, stack[-1])


@pytest.fixture
def fed() -> Iterator[sqlfl.Federation]:
    stack: list[duckdb.DuckDBPyConnection] = []
    with sqlfl.connect(progress=False) as found:
        attached(stack, found)
        yield found
    for con in stack:
        con.close()


@pytest.fixture
def gateway(fed: sqlfl.Federation) -> Iterator[Gateway]:
    with Gateway(fed, "grpc://127.0.0.1:0", token=TOKEN) as found:
        yield found


def connected(gateway: Gateway, token: str = TOKEN) -> flight_sql.Connection:
    header = DatabaseOptions.AUTHORIZATION_HEADER.value
    return flight_sql.connect(
        gateway.location, db_kwargs={header: f"Bearer {token}"}, autocommit=True
    )


@pytest.fixture
def cursor(gateway: Gateway) -> Iterator[flight_sql.Cursor]:
    with connected(gateway) as connection, connection.cursor() as found:
        yield found


def run(connection: flight_sql.Connection, text: str = "SELECT 1") -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


def refused(cursor: flight_sql.Cursor, text: str, values: Any = None) -> str:
    with pytest.raises(adbc_driver_manager.Error) as caught:
        cursor.execute(text, values)
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def test_thirty_statements(cursor: flight_sql.Cursor, fed: sqlfl.Federation) -> None:
    assert len(STATEMENTS) == 30
    for text in STATEMENTS:
        told = None if "SELECT 1" in text.upper() else fed.result_schema(text)
        cursor.execute(text)
        found = cursor.fetch_arrow_table()
        assert told is None or found.schema == told, text
    assert fed.models == ()


def test_rows_are_those_of_python(cursor: flight_sql.Cursor, fed: sqlfl.Federation) -> None:
    cursor.execute(TRAIN)
    assert cursor.fetchone() == ("name", "m")
    cursor.execute(f"EVALUATE MODEL m FROM ({QUERY})")
    found, expected = cursor.fetchall(), fed.sql(f"EVALUATE MODEL m FROM ({QUERY})").fetchall()
    for row, other in zip(found, expected, strict=True):
        # each run adds up its rows in an order of its own
        assert row == pytest.approx(other, rel=1e-12)
    cursor.execute("SELECT 1")
    assert [name for name, *_ in cursor.description] == ["1"]
    assert cursor.fetchall() == [(1,)]


def test_notes_and_warnings_are_with_the_schema(cursor: flight_sql.Cursor) -> None:
    same = QUERY.replace("b.balance", "7.0 AS same, b.balance")
    cursor.execute(TRAIN.replace(QUERY, same))
    assert "same" in cursor.fetch_arrow_table().schema.metadata[NOTES.encode()].decode()


def test_errors_have_their_places_and_hints(cursor: flight_sql.Cursor) -> None:
    said = refused(cursor, "EVALUATE MODEL n FROM (FROM bank.customers)")
    assert "ModelError: there is no model n" in said
    assert "hint: train one first" in said
    said = refused(cursor, TRAIN.replace("b.balance", "b.balanse"))
    assert "at line 1, column " in said
    assert "hint: did you mean balance?" in said
    assert "ParseError" in refused(cursor, "TRAIN MODELL m")
    assert "2 statements, and a client sends one at a time" in refused(
        cursor, "SHOW MODELS; SHOW PARTIES"
    )
    assert "hint: " in refused(cursor, "SELECT * FROM bank.customers")
    cursor.execute("SELECT 1")  # and it goes on


def test_long_errors_arrive_whole(
    cursor: flight_sql.Cursor, fed: sqlfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = ", ".join(f"column_{n}" for n in range(8000))

    def get(*_: object) -> None:
        raise ModelError("there is no such model", hint=hint)

    monkeypatch.setattr(fed._registry, "get", get)
    assert hint in refused(cursor, "DESCRIBE MODEL nobody")


def test_a_policy_refuses_here_too(cursor: flight_sql.Cursor, fed: sqlfl.Federation) -> None:
    with duckdb.connect() as con:
        con.execute(MADE)
        with sqlfl.owner(con) as owner:
            owner.sql("CREATE TRAINING POLICY p")
        fed.attach("clinic", con)
        text = "TRAIN MODEL m USING linear_regression TARGET balance FROM (FROM clinic.customers)"
        said = refused(cursor, text)
        assert "PolicyError: " in said
        assert "clinic" in said
        fed.detach("clinic")


def test_parameters(cursor: flight_sql.Cursor, fed: sqlfl.Federation) -> None:
    cursor.execute(TRAIN.replace("FROM (", "WITH (l2 = ?) FROM (", 1), [0.25])
    assert fed.model("m").options["l2"] == 0.25
    few = f"PREDICT MODEL m FROM ({QUERY} WHERE b.pid < ? AND b.city = ?)"
    cursor.execute(few, [50, "c1"])
    assert len(cursor.fetchall()) == 10
    cursor.execute(few, [20, "c1"])
    assert len(cursor.fetchall()) == 4
    cursor.execute(few.replace("?", "$2", 1).replace("?", "$1"), ["c1", 50])
    assert len(cursor.fetchall()) == 10
    named = few.replace("?", "$most", 1).replace("?", "$city")
    cursor.execute(named, pa.record_batch({"city": ["c1"], "most": [50]}))
    assert len(cursor.fetchall()) == 10
    odd = "'x); DROP MODEL m; --"
    cursor.execute(few, [50, odd])
    assert cursor.fetchall() == []
    assert fed.models == ("m",)
    assert "1 value is given" in refused(cursor, few, [50])


def test_other_calls_of_the_driver(cursor: flight_sql.Cursor, fed: sqlfl.Federation) -> None:
    text = TRAIN.replace("FROM (", "WITH (l2 = ?) FROM (", 1)
    cursor.executemany(text, [[0.5]])
    assert cursor.rowcount == -1
    assert fed.model("m").options["l2"] == 0.5
    with pytest.raises(adbc_driver_manager.Error, match="one row of values was expected, and 2"):
        cursor.executemany(text, [[0.5], [1.0]])
    evaluated = f"EVALUATE MODEL m FROM ({QUERY})"
    assert cursor.adbc_execute_schema(evaluated) == fed.result_schema(evaluated)
    assert cursor.adbc_prepare(f"{evaluated[:-1]} WHERE b.pid < ?)").names == ["1"]
    with pytest.raises(adbc_driver_manager.Error, match="rows are written in a party's own"):
        cursor.adbc_ingest("t", pa.table({"x": [1]}))


def test_columns_are_known_before_values_are(gateway: Gateway, fed: sqlfl.Federation) -> None:
    fed.sql(TRAIN)
    own = Statements(fed)
    _, found = own.prepare("", f"PREDICT MODEL m ID (b.pid) FROM ({QUERY} WHERE b.pid < $n)")
    assert found.schema is not None
    assert found.schema.names == ["pid", "prediction", "probability_false", "probability_true"]
    assert found.parameter_schema.names == ["n"]
    assert fed.models == ("m",)
    _, found = own.prepare(
        "", f"TRAIN MODEL k USING ridge TARGET churned WITH (l2 = ?) FROM ({QUERY})"
    )
    assert found.schema is not None  # whatever the values are, a card


def test_values_are_of_one_run(gateway: Gateway, fed: sqlfl.Federation) -> None:
    fed.sql(TRAIN)
    own = Statements(fed)
    handle, _ = own.prepare("", f"PREDICT MODEL m FROM ({QUERY} WHERE b.pid < ?)")
    own.bind("", handle, pa.table({"1": [7]}))
    assert own.run_prepared("", handle, lambda: False).num_rows == 7
    with pytest.raises(Error, match=r"the parameter \? has no value"):  # the old one is forgotten
        own.run_prepared("", handle, lambda: False)
    for values in ([], [1, 2]):
        with pytest.raises(Error, match="one row of values was expected"):
            own.bind("", handle, pa.table({"1": pa.array(values, pa.int64())}))


def test_what_there_is(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        assert connection.adbc_get_info()["vendor_name"] == "sqlfl"
        assert connection.adbc_get_table_types() == ["TABLE"]
        found = connection.adbc_get_objects(
            depth="all", catalog_filter="bank", table_name_filter="cust%"
        )
        (bank,) = found.read_all().to_pylist()
        (schema,) = bank["catalog_db_schemas"]
        (table,) = schema["db_schema_tables"]
        own = [(c["column_name"], c["xdbc_type_name"]) for c in table["table_columns"]]
        assert (bank["catalog_name"], table["table_name"]) == ("bank", "customers")
        assert own[:3] == [("pid", "BIGINT"), ("city", "VARCHAR"), ("balance", "DOUBLE")]
        columns = connection.adbc_get_table_schema("customers", catalog_filter="bank")
        assert columns.field("city").type == pa.string()
        none = connection.adbc_get_objects(depth="tables", table_name_filter="cust_")
        assert all(
            not schema["db_schema_tables"]
            for catalog in none.read_all().to_pylist()
            for schema in catalog["catalog_db_schemas"] or ()
        )


def test_pandas_reads_statements(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        assert pd.read_sql("SHOW PARTIES", connection)["party"].tolist() == ["bank", "shop"]


def test_results_come_in_parts(
    cursor: flight_sql.Cursor, fed: sqlfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses messages of more than 16 MiB."""
    con = duckdb.connect()
    con.execute("CREATE TABLE wide AS SELECT i, repeat('x', 60_000) || i AS t FROM range(400) r(i)")
    fed.attach("big", con)
    fed.sql(
        "TRAIN MODEL w USING linear_regression TARGET i FROM (SELECT i, i + 1 AS j FROM big.wide)"
    )
    text = "PREDICT MODEL w ID (wide.t) FROM (SELECT i, i + 1 AS j FROM big.wide)"
    cursor.execute(text)
    found = cursor.fetch_arrow_table()
    assert found.nbytes > 24_000_000
    assert found.num_rows == 400
    assert max(batch.nbytes for batch in found.to_batches()) <= calls.MAX_BATCH_BYTES
    monkeypatch.setattr(calls, "MAX_BATCH_BYTES", 60_000)
    cursor.execute(text)
    with pytest.raises(adbc_driver_manager.Error, match="a row of 60,"):
        cursor.fetch_arrow_table()
    con.close()


def waited(until: Callable[[], bool]) -> bool:
    for _ in range(400):
        if until():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a training has made some rounds, so that there is a model to keep."""
    begun, exchange, made = threading.Event(), Watched.exchange, count()

    def exchanged(self: Watched, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        if next(made) > 20:
            begun.set()
        return exchange(self, requests)

    monkeypatch.setattr(Watched, "exchange", exchanged)
    return begun


def test_a_cancel_ends_a_training_at_its_round(
    cursor: flight_sql.Cursor, fed: sqlfl.Federation, rounds: threading.Event
) -> None:
    def cancel() -> None:
        rounds.wait(60)
        cursor.adbc_cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(adbc_driver_manager.OperationalError, match="CANCELLED"):
        cursor.execute(ENDLESS)
    assert waited(lambda: fed.models == ("long",))
    assert fed.model("long").interrupted
    cursor.execute("SHOW MODELS")
    assert cursor.fetchone()[0] == "long"


KILLED = """
import sys, adbc_driver_flightsql.dbapi as flight_sql
location, header, text = sys.argv[1:]
with flight_sql.connect(location, db_kwargs={header: "Bearer a token of a test"},
                        autocommit=True) as con:
    print("ready", flush=True)
    con.cursor().execute(text)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_dies_ends_its_training(
    gateway: Gateway, fed: sqlfl.Federation, rounds: threading.Event, ending: signal.Signals
) -> None:
    header = DatabaseOptions.AUTHORIZATION_HEADER.value
    command = [sys.executable, "-c", KILLED, gateway.location, header, ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        assert rounds.wait(60)
        assert fed.models == ()
        os.kill(client.pid, ending)
        client.wait(20)
    assert waited(lambda: fed.models == ("long",))


# -- who may --------------------------------------------------------------------------------------


def test_no_token_no_statement(gateway: Gateway) -> None:
    for header in ("Bearer wrong", "Basic !", "Basic dTpub3BlCg", TOKEN, "Bearer ", ""):
        kind = DatabaseOptions.AUTHORIZATION_HEADER.value
        with (
            pytest.raises(adbc_driver_manager.Error, match="the token of this gateway is needed"),
            flight_sql.connect(gateway.location, db_kwargs={kind: header}, autocommit=True) as own,
        ):
            run(own)
    given = {"username": "anybody", "password": TOKEN}
    with flight_sql.connect(gateway.location, db_kwargs=given, autocommit=True) as connection:
        run(connection)
    with pytest.raises(adbc_driver_manager.Error, match="the token of this gateway"):
        flight_sql.connect(
            gateway.location, db_kwargs={**given, "password": "other"}, autocommit=True
        )


def test_where_a_gateway_may_be(fed: sqlfl.Federation) -> None:
    with pytest.raises(Error, match="is for this machine alone"):
        Gateway(fed, "grpc://0.0.0.0:0", token=TOKEN)
    with pytest.raises(Error, match="clients need a token"):
        Gateway(fed, "grpc://127.0.0.1:0")
    with pytest.raises(Error, match="names of clients are needed"):
        Gateway(fed, "grpc+tls://127.0.0.1:0", credentials=identity("alice"))


def secured(gateway: Gateway, own: Credentials, server_name: str) -> flight_sql.Connection:
    options = DatabaseOptions
    given = {options.TLS_OVERRIDE_HOSTNAME.value: server_name}
    given[options.TLS_ROOT_CERTS.value] = (identity("alice").authority or b"").decode()
    if own.certificate is not None and own.key is not None:
        given[options.MTLS_CERT_CHAIN.value] = own.certificate.decode()
        given[options.MTLS_PRIVATE_KEY.value] = own.key.decode()
    return flight_sql.connect(gateway.location, db_kwargs=given, autocommit=True)


def test_two_analysts_do_not_see_each_other(tmp_path: Path) -> None:
    """By mutual TLS, to a coordinator elsewhere."""
    cons = [duckdb.connect() for _ in range(2)]
    for con in cons:
        con.execute(MADE)
    with studied(tmp_path, dict(zip(("bank", "shop"), cons, strict=True))) as study:
        place = "grpc+tls://127.0.0.1:0"
        with (
            study.analyst("alice") as a, study.analyst("carol") as c,
            Gateway(a, place, credentials=identity("alice"), clients=["alice", "bi"]) as of_alice,
            Gateway(c, place, credentials=identity("carol"), clients=["carol"]) as of_carol,
        ):  # fmt: skip
            with (
                secured(of_alice, identity("alice"), "alice") as alice,
                secured(of_alice, identity("bi"), "alice") as bi,
                secured(of_carol, identity("carol"), "carol") as carol,
                alice.cursor() as hers, carol.cursor() as other, bi.cursor() as tool,
            ):  # fmt: skip
                hers.execute(TRAIN)
                for cursor, models in ((hers, ["m"]), (other, []), (tool, ["m"])):
                    cursor.execute("SHOW MODELS")
                    assert [row[0] for row in cursor.fetchall()] == models
                assert "there is no model m" in refused(other, f"EVALUATE MODEL m FROM ({QUERY})")
                hers.execute(f"EVALUATE MODEL m FROM ({QUERY} WHERE b.pid < ?)", [100])
                assert hers.fetchone()[0] == 100
                hers.execute(f"PREDICT MODEL m ID (b.pid, s.city) FROM ({QUERY})")
                assert hers.fetch_arrow_table().num_rows == 400
                threading.Timer(1.5, hers.adbc_cancel).start()
                assert "CANCELLED" in refused(hers, ENDLESS)
                assert waited(lambda: "long" in a.models)
            key, other = ct.make_authority("elsewhere")
            made = ct.make_key()
            signed = ct.sign(ct.signing_request(made, "alice"), key, other)
            for own, said in (
                (identity("carol"), "the certificate is of 'carol', who may not use"),
                (identity("bank0.example"), "the certificate is of 'bank0.example'"),
                (Credentials(made, signed, other), "Unavailable"),
                (Credentials(), "Unavailable"),
            ):
                with (
                    pytest.raises(adbc_driver_manager.Error, match=said),
                    secured(of_alice, own, "alice") as stranger,
                ):
                    run(stranger)
    for con in cons:
        con.close()


def test_handles_are_of_who_has_made_them(fed: sqlfl.Federation) -> None:
    own = Statements(fed)
    handle, _ = own.prepare("alice", "SHOW MODELS")
    kept = own.keep("alice", pa.table({"x": [1]}))
    for caller, known in (("bi", handle), ("alice", b"other")):
        with pytest.raises(Error, match="there is no such prepared statement"):
            own.run_prepared(caller, known, lambda: False)
    with pytest.raises(Error, match="there is no such result"):
        own.take("bi", kept)
    own.close("bi", handle)
    assert own.run_prepared("alice", handle, lambda: False).num_rows == 0
    assert own.take("alice", kept).num_rows == 1
    with pytest.raises(Error, match="there is no such result"):
        own.take("alice", kept)


def test_what_is_kept_is_bounded(fed: sqlfl.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlfl.gateway.calls.MAX_PREPARED", 3)
    monkeypatch.setattr("sqlfl.gateway.calls.MAX_RESULT_BYTES", 100)
    own = Statements(fed)
    first, *others = (own.prepare("", "SELECT 1")[0] for _ in range(4))
    with pytest.raises(Error, match="no such prepared"):
        own.run_prepared("", first, lambda: False)
    for handle in others:
        own.run_prepared("", handle, lambda: False)
    table = pa.table({"x": range(10)})
    lost, kept = own.keep("", table), own.keep("", table)
    with pytest.raises(Error, match="no such result"):
        own.take("", lost)
    assert own.take("", kept).num_rows == 10


# -- frames that no client sends ------------------------------------------------------------------


def test_frames_that_no_client_sends(gateway: Gateway) -> None:
    with flight.connect(gateway.location) as client:
        send_frames(client, TOKEN, 20_000 if THOROUGH else 300)
    with connected(gateway) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
