"""Parties that dial in to a federation of this process, beside one that is attached to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import Error, PartyError
from sqlfl.service import certificates as ct
from sqlfl.service import wrapping
from sqlfl.service.agent import HELLO, PARTY, Agent
from sqlfl.service.frames import Frame
from sqlfl.service.hosting import Host
from sqlfl.service.listening import Listener
from sqlfl.service.passes import Passes, PassIssuer
from sqlfl.service.service import ANALYST
from sqlfl.service.stream import Credentials, Stream
from tests.conftest import Open
from tests.service.party import running
from tests.service.processes import until
from tests.service.proxy import Proxy
from tests.service.study import COORDINATOR, SECRET, identity, written
from tests.service.test_federation import PATIENTS, QUERY, TESTS, TRAIN, ordered

HERE = "grpc+tls://127.0.0.1:0"
CLINIC = "clinic0.example"

COORDINATES = f"""
name = "{COORDINATOR}"
lease = 60
heartbeat = 0.1
parties.clinic.agents = ["{CLINIC}"]
parties.lab.agents = ["lab0.example"]
parties.bank.agents = ["bank0.example"]
studies.heart = {{parties = ["clinic", "lab"], analysts = ["alice"]}}
studies.lung = {{parties = ["clinic", "bank"], analysts = ["carol"]}}
studies.own = {{parties = ["clinic"], analysts = ["alice"]}}"""
TAKES_PART = f"""
name = "clinic"
coordinator = "{COORDINATOR}"
database = "unused.duckdb"
secret = "parties.secret\""""


class Place:
    """A folder of settings: party clinic is attached here, lab and bank dial in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        secret = wrapping.wrap(SECRET, {CLINIC: identity(CLINIC).certificate or b""})
        (folder / "parties.secret").write_text(secret)
        self._write("coordinator", COORDINATOR, COORDINATES)
        self._write("alice", "alice", 'study = "heart"')
        self._write("carol", "carol", 'study = "heart"')
        self._write("clinic", CLINIC, TAKES_PART)

    def _write(self, name: str, whose: str, text: str) -> None:
        lines = [f'{what} = "{path}"' for what, path in written(self.folder, whose).items()]
        (self.folder / f"{name}.toml").write_text("\n".join((text, *lines)))

    def at(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def connect(self, con: duckdb.DuckDBPyConnection | None, **given: Any) -> sqlfl.Federation:
        given = {"analyst": "alice", "party": self.at("clinic"), "progress": False, **given}
        fed = sqlfl.connect(**given)
        if con is not None:
            fed.attach("clinic", con)
        return fed

    def listen(self, fed: sqlfl.Federation, **given: Any) -> Listener:
        given = {"config": self.at("coordinator"), "analyst": self.at("alice"), **given}
        return sqlfl.listen(fed, HERE, **given)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("listening"))


@contextmanager
def lab(port: int, con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    own = identity("lab0.example")
    known = Passes(own.authority or b"", COORDINATOR)
    with Host("lab", con, secret=SECRET, known=known, open=True) as host:
        where = f"grpc+tls://127.0.0.1:{port}"
        agent = Agent(where, "lab", 1, host, own, server=COORDINATOR)
        with running(agent):
            yield


def told(door: Listener, given: Credentials, kind: str, hello: Mapping[str, object]) -> str:
    """Why the door sends away whoever says this."""
    with Stream(door.location, given, kind, COORDINATOR) as stream:
        frame = stream.greeted(Frame(HELLO, {"versions": [1], **hello}))
        assert frame.kind == "refused"
        return frame.text("why")


def threads() -> set[str]:
    return {own.name for own in threading.enumerate()}


def test_a_model_is_bit_equal_to_that_of_attached_parties(place: Place, database: Open) -> None:
    clinic, tests = database(PATIENTS, own=True), database(TESTS, own=True)
    with place.connect(clinic) as here:
        here.attach("lab", tests)
        here.sql(TRAIN)
        expected = here.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow()
        own = here.model("m")
    before = threads()
    with place.connect(clinic) as fed:
        assert repr(fed) == "<sqlfl federation at clinic: parties: clinic; models: none>"
        with place.listen(fed) as door, lab(door.port, tests):
            door.wait("lab", seconds=20)
            assert fed.parties == ("clinic", "lab")
            fed.sql(TRAIN)
            found = fed.sql(f"PREDICT MODEL m FROM ({QUERY})").arrow()
            plan = fed.explain(TRAIN.replace("MODEL m", "MODEL n"))
            said, short = (" ".join(str(text).split()) for text in (plan.details, plan))
            door.close()
        assert fed.parties == ("clinic",)
        model = fed.model("m")
        with pytest.raises(Error, match="lab"):
            fed.sql(f"PREDICT MODEL m FROM ({QUERY})")
    assert not threads() - before  # those of other tests may end meanwhile
    assert ordered(found).equals(ordered(expected))
    assert found.num_rows == 400  # and not none
    assert model.history.column("train_loss").equals(own.history.column("train_loss"))
    assert "The coordinator reaches lab over TLS: it sees its messages alone." in short
    assert "clinic runs in the coordinator's process" in short
    assert "As a party clinic also has the parties' secret, and so can test guesses" in said


# -- who does not come in --------------------------------------------------------------------------


def test_who_is_sent_away(place: Place, database: Open) -> None:
    with place.connect(database(PATIENTS, own=True)) as fed, place.listen(fed) as door:
        party = {"clients": 1, "boot": "b", "name": "lab"}
        said = {
            name: told(door, identity(f"{name}0.example"), PARTY, {**party, "name": name})
            for name in ("clinic", "bank")
        }
        assert told(door, identity("eve"), PARTY, party).startswith("there is no agent 'eve'")
        assert told(door, identity("bank0.example"), PARTY, party).startswith("there is no agent")
        said["alice"] = told(door, identity("alice"), ANALYST, {"study": "heart", "pass": ""})
        for name in ("clinic", "lab"):
            with pytest.raises(Error, match=f"{name} (is attached already|dials in)"):
                fed.attach(name, database(own=True))
        with pytest.raises(Error, match="a party named lab is there already, or may dial in"):
            place.listen(fed)
        with pytest.raises(PartyError, match=r"lab: is not connected, after 0\.01 seconds"):
            door.wait(seconds=0.01)
        with pytest.raises(Error, match="no party bank may dial in"):
            door.wait("bank")
        assert fed.parties == ("clinic",)
    assert said == {
        "clinic": "party clinic does not dial in: it is attached here, or not of study heart",
        "bank": "party bank does not dial in: it is attached here, or not of study heart",
        "alice": "no analysts are taken here: this is the process of one who works with a database "
        "of its own (sqlfl.listen); sqlfl coordinator takes several",
    }


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no secret": ({"party": None, "at": "clinic"}, {}, "has not the parties' secret"),
    "another analyst": ({"analyst": "carol"}, {}, "asked for alice, .* attached here for carol"),
    "no analyst": ({"analyst": None}, {}, "attached here for nobody"),
    "no such study": ({}, {"study": "hart"}, "there is no study 'hart'"),
    "not of the study": ({"analyst": "carol"}, {"analyst": "carol"}, "carol is no analyst of"),
    "all here": ({}, {"study": "own"}, "all parties of study own are attached here"),
}


@pytest.mark.parametrize("what", WRONG)
def test_where_nobody_is_listened_to(place: Place, database: Open, what: str) -> None:
    connects, listens, message = WRONG[what]
    if "analyst" in listens:
        listens = {"analyst": place.at(listens["analyst"])}
    before = threads()
    with place.connect(database(PATIENTS, own=True), **connects) as fed:
        with pytest.raises(Error, match=message):
            place.listen(fed, **listens)
        fed.attach("lab", database(own=True))  # it may not have dialled in
    assert not threads() - before


def test_an_analyst_of_another_authority(place: Place, database: Open, tmp_path: Path) -> None:
    key, authority = ct.make_authority("authority")
    own = ct.make_key()
    signed = ct.sign(ct.signing_request(own, "alice"), key, authority)
    for name, data in {"key": own, "certificate": signed, "authority": authority}.items():
        (ct.write_private if name == "key" else ct.write_public)(tmp_path / name, data)
    lines = [f'{name} = "{name}"' for name in ("key", "certificate", "authority")]
    (tmp_path / "alice.toml").write_text("\n".join(('study = "heart"', *lines)))
    with (
        place.connect(database(PATIENTS, own=True)) as fed,
        pytest.raises(Error, match="not of the authority that is known here"),
    ):
        place.listen(fed, analyst=tmp_path / "alice.toml")


def test_the_party_that_has_the_secret_is_here(place: Place) -> None:
    with (
        place.connect(None) as fed,
        pytest.raises(Error, match="coordinator is at clinic, whose database is not attached"),
    ):
        place.listen(fed)
    with pytest.raises(Error, match="has the settings of clinic, and at='lab'"):
        place.connect(None, at="lab")
    with pytest.raises(Error, match="party is for a coordinator in this process"):
        sqlfl.connect(HERE, party=place.at("clinic"))


def test_a_place_that_is_taken_leaves_nothing_behind(place: Place, database: Open) -> None:
    with (
        place.connect(database(PATIENTS, own=True)) as fed,
        place.connect(database(PATIENTS, own=True)) as other,
        place.listen(other) as door,
    ):
        where = door.location
        given = {"config": place.at("coordinator"), "analyst": place.at("alice")}
        with pytest.raises(Error, match=r"for this machine alone, not for 0\.0\.0\.0"):
            sqlfl.listen(fed, where.replace("+tls", "").replace("127.0.0.1", "0.0.0.0"), **given)
        with pytest.raises(Error, match="cannot listen at"):
            sqlfl.listen(fed, where.replace("127.0.0.1", "192.0.2.1"), **given)
        fed.attach("lab", database(own=True))


def test_policies_hold_where_the_database_is_attached(place: Place, database: Open) -> None:
    clinic, tests = database(PATIENTS, own=True), database(TESTS, own=True)
    sqlfl.owner(clinic).sql(
        "CREATE TRAINING POLICY usual; GRANT TRAIN (age), JOIN (pid), LABEL (ill) ON patients "
        "TO 'alice' UNDER usual"
    )
    query = "SELECT p.{}, t.crp, p.ill FROM clinic.patients p JOIN lab.tests t ON p.pid = t.pid"
    train = f"TRAIN MODEL m USING logistic_regression TARGET ill FROM ({query})"
    with place.connect(clinic) as fed, place.listen(fed) as door, lab(door.port, tests):
        door.wait(seconds=20)
        assert fed.explain(train.format("age"))
        with pytest.raises(Error, match="p has no column bmi"):
            fed.sql(train.format("bmi"))


# -- who goes --------------------------------------------------------------------------------------


def test_a_party_that_returns_goes_on(place: Place, database: Open) -> None:
    """Also one that was started anew; who has come cannot be let go of otherwise."""
    tests = database(TESTS, own=True)
    query = "SELECT age, crp, ill FROM clinic.patients JOIN lab.tests USING (pid)"
    short = "TARGET ill WITH (algorithm = 'sgd', epochs = 1)"
    with (
        place.connect(database(PATIENTS, own=True)) as fed,
        place.listen(fed) as door,
        Proxy(door.port) as link,
    ):
        with lab(link.port, tests):
            door.wait(seconds=20)
            fed.sql(f"TRAIN MODEL m USING logistic_regression {short} FROM ({query})")
            with pytest.raises(Error, match="parts at lab/0, whose databases are elsewhere"):
                fed.sql("EXPORT MODEL m TO 'folder'")
            before = link.connections
            link.drop()
            assert len(fed.sql(f"PREDICT MODEL m FROM ({query})")) == 400
            assert link.connections > before
        with pytest.raises(Error, match="lab dials in"):
            fed.detach("lab")
        (line,) = door._members.lines["lab"]
        before = line.reconnections
        with lab(door.port, tests):
            until(lambda: line.reconnections > before)
            assert fed.sql(f"CHECK ({query})")


def test_closing_the_federation_first(place: Place, database: Open) -> None:
    """While a statement waits for a party that is away, for up to a minute."""
    fed = place.connect(database(PATIENTS, own=True))
    before = threads()
    said: list[str] = []
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        try:
            fed.table("lab.tests").schema()
        except Error as error:
            said.append(error.message)

    with place.listen(fed) as door:
        with lab(door.port, database(TESTS, own=True)):
            door.wait(seconds=20)
        thread = threading.Thread(target=ask)
        thread.start()
        asked.wait(20)
        time.sleep(0.05)
        began = time.monotonic()
        fed.close()
        assert time.monotonic() - began < 10.0
        thread.join(20)
        with pytest.raises(Error, match="nobody dials in any more"):
            door.wait()
    assert len(said) == 1
    assert "lab" in said[0] or "closed" in said[0]
    assert threads() <= before
    with pytest.raises(Error, match="the federation is closed"):
        place.listen(fed)


def test_models_are_of_their_file(place: Place, tmp_path: Path) -> None:
    """Parties that another file's federation comes to keep the blocks of this one's."""
    query = "SELECT age, crp, ill FROM clinic.patients JOIN lab.tests USING (pid)"
    short = "TARGET ill WITH (algorithm = 'sgd', epochs = 1)"
    done = {
        "mine": f"TRAIN MODEL m USING logistic_regression {short} FROM ({query})",
        "other": "SHOW MODELS",
        "mine.": f"PREDICT MODEL m FROM ({query})",
    }
    with (
        duckdb.connect(tmp_path / "clinic.duckdb") as clinic,
        duckdb.connect(tmp_path / "lab.duckdb") as tests,
    ):
        clinic.execute(PATIENTS)
        tests.execute(TESTS)
        for name, statement in done.items():
            with (
                place.connect(clinic, path=tmp_path / name.strip(".")) as fed,
                place.listen(fed) as door,
                lab(door.port, tests),
            ):
                door.wait(seconds=20)
                found = fed.sql(statement)
    assert len(found) == 400


# -- passes ----------------------------------------------------------------------------------------


def test_a_pass_is_renewed_at_half_its_time() -> None:
    own = identity("alice")
    speaker = PassIssuer(own, "", COORDINATOR, "heart", 2.0)
    first = speaker()
    assert speaker() == first
    speaker._begun -= 3599.0
    assert speaker() == first
    speaker._begun -= 2.0
    second = speaker()
    assert second != first
    assert speaker() == second
    assert Passes(own.authority or b"", COORDINATOR)("heart", second) == "alice"


def test_without_tls_on_this_machine_alone(tmp_path: Path, database: Open) -> None:
    for name, text in {
        "secret": SECRET.hex(),
        "clinic.toml": 'name = "clinic"\ncoordinator = "c"\ndatabase = "-"\nsecret = "secret"',
        "c.toml": 'name = "c"\nparties.clinic.agents = ["clinic"]\nparties.lab.agents = ["lab"]\n'
        'studies.heart = {parties = ["clinic", "lab"], analysts = ["alice"]}',
        "alice.toml": 'name = "alice"\nstudy = "heart"',
    }.items():
        (tmp_path / name).write_text(text)
    con, tests = database(PATIENTS, own=True), database(TESTS, own=True)
    with sqlfl.connect(party=tmp_path / "clinic.toml", analyst="alice", progress=False) as fed:
        fed.attach("clinic", con)
        given = {"config": tmp_path / "c.toml", "analyst": tmp_path / "alice.toml"}
        with (
            sqlfl.listen(fed, "grpc://127.0.0.1:0", **given) as door,
            Host("lab", tests, secret=SECRET, known=lambda _, who: who, open=True) as host,
            running(Agent(door.location, "lab", 1, host, Credentials())),
        ):
            door.wait(seconds=20)
            found = fed.sql(f"CHECK ({QUERY})").arrow()
    assert found.num_rows
