"""A study is approved once, and what exceeds it asks: by the party's own reading of the request."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import ApprovalError, Error, OptionError, ParseError, PlanError, PolicyError
from sqlfl.contract.request import (
    REFUSED,
    WAITING,
    Asked,
    Study,
    StudyColumns,
    StudyTable,
    verdicts_from_json,
)
from sqlfl.contract.schema import Client, FeatureSpecification, specifications_to_json
from sqlfl.governance.records import Records
from sqlfl.party.party import PartyClient, Secrets
from tests import courier, goldens
from tests.conftest import Open
from tests.depth import in_turn
from tests.governance.clinic import GRANT, PATIENTS, QUERY, REQUEST, SLOT, TESTS, TRAIN, Ask, ruled

GOLDEN = Path(__file__).parent / "study_summaries.txt"
WIDE = GRANT.replace("PREDICT", "IDENTIFY (pid), PREDICT")
ALL = """['check', 'train', 'tune', 'evaluate', 'predict', 'inference', 'importance',
  'contributions', 'skew']"""
STUDY = """CREATE OR REPLACE STUDY stay PURPOSE 'how long patients stay'
  FOR TRAIN (age, bmi, ward), JOIN (pid), LABEL (days), IDENTIFY (pid) ON clinic.patients
  AND TRAIN (crp), JOIN (pid) ON lab.tests WITH ({})"""
LIMITS = f"statements = {ALL}, runs = 40, until = '2100-01-01'"
SCORED = QUERY.replace(", p.days", "")
NOISE = TRAIN.replace("p.ward, ", "").replace(
    "FROM (",
    "WITH (algorithm = 'sgd', epochs = 2) PRIVACY (epsilon = {}, delta = 1e-4, label_epsilon = {}, "
    "label_bounds = [-1, 3], statistics = 'bounds', "
    "feature_bounds = {{'age': [20, 80], 'bmi': [-1, 1], 'crp': [-1, 1]}}) FROM (",
    1,
)
STATEMENTS = (
    f"CHECK TARGET days FROM ({QUERY})",
    TRAIN,
    TRAIN.replace("MODEL m", "MODEL a").replace("FROM (", "WITH (algorithm = 'admm') FROM (", 1),
    TRAIN.replace("MODEL m", "MODEL b").replace("linear_regression", "mlp_regressor"),
    TRAIN.replace("MODEL m", "MODEL c").replace("FROM (", "TRANSFORM (auto) FROM (", 1),
    TRAIN.replace("TRAIN", "TUNE", 1).replace("MODEL m", "MODEL d").replace(
        "FROM (", "WITH (l2 = [0.1, 1.0]) FROM (", 1
    ),
    f"EVALUATE MODEL m FROM ({QUERY})",
    f"METRICS OF MODEL m FROM ({QUERY})",
    f"CALIBRATION OF MODEL m FROM ({QUERY})",
    f"RESIDUALS OF MODEL m FROM ({QUERY})",
    f"INFERENCE OF MODEL m FROM ({QUERY})",
    f"IMPORTANCE OF MODEL m FROM ({QUERY})",
    f"CONTRIBUTIONS OF MODEL m FROM ({SCORED})",
    f"SKEW OF MODEL m FROM ({SCORED})",
    f"PREDICT MODEL m ID (clinic.patients.pid) FROM ({SCORED})",
)  # fmt: skip


@pytest.fixture
def tests(database: Open) -> duckdb.DuckDBPyConnection:
    return database(TESTS)


@pytest.fixture
def fed(
    clinic: duckdb.DuckDBPyConnection, tests: duckdb.DuckDBPyConnection
) -> Iterator[sqlfl.Federation]:
    ruled(clinic, "approval = 'first_time'", WIDE)
    grant = "GRANT TRAIN (crp), JOIN (pid), PREDICT ON tests TO 'acme' UNDER r"
    ruled(tests, "approval = 'first_time'", grant)
    with sqlfl.connect(analyst="acme", progress=False) as found:
        found.attach("clinic", clinic)
        found.attach("lab", tests)
        yield found


@pytest.fixture
def owner(clinic: duckdb.DuckDBPyConnection) -> sqlfl.Owner:
    return sqlfl.owner(clinic)


@pytest.fixture
def lab(tests: duckdb.DuckDBPyConnection) -> sqlfl.Owner:
    return sqlfl.owner(tests)


@pytest.fixture
def begin(fed: sqlfl.Federation, owner: sqlfl.Owner, lab: sqlfl.Owner) -> Callable[[str], None]:
    """Describe a study, which both owners approve, and use it."""

    def work(limits: str = LIMITS, text: str = STUDY) -> None:
        fed.sql(text.format(limits))
        for own in (owner, lab):
            number = own.sql("SHOW REQUESTS").arrow()["request"].to_pylist()[-1]
            own.sql(f"APPROVE REQUEST {number}")
        fed.sql("USE STUDY stay")

    return work


def requests(owner: sqlfl.Owner) -> list[str]:
    rows = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    return [f"{row['run']}: {row['state']}" for row in rows]


def used(owner: sqlfl.Owner) -> int:
    (row,) = owner.sql("SHOW STUDIES").arrow().to_pylist()
    return int(row["runs_used"])


def test_a_study_takes_one_approval_of_each_owner(
    fed: sqlfl.Federation, owner: sqlfl.Owner, lab: sqlfl.Owner, begin: Callable[[], None]
) -> None:
    told = fed.sql(STUDY.format(LIMITS)).arrow().to_pylist()
    assert [(row["client"], row["state"]) for row in told] == [
        ("clinic/0", "waiting"), ("lab/0", "waiting")
    ]  # fmt: skip
    begin()
    for number, text in enumerate(STATEMENTS, 1):
        fed.sql(text)
        assert used(owner) == used(lab) == number
    for own in (owner, lab):
        assert requests(own) == ["study stay: approved"]
    (row, *_) = fed.sql("SHOW STUDIES").arrow().to_pylist()
    assert (row["state"], row["in_use"]) == ("allowed", True)
    told = owner.sql("SHOW DISCLOSURES").arrow().to_pylist()
    assert any(item["what"].endswith(", in study stay") for item in told)


def test_the_traffic_is_what_explain_says(fed: sqlfl.Federation, begin: Callable[[], None]) -> None:
    begin()
    plan = fed.explain(TRAIN)
    before = len(fed.audit().arrow())
    fed.sql(TRAIN)
    sent = fed.audit().arrow().to_pylist()[before:]
    kinds = {(client.party, kind) for client, _, kind, _ in plan.totals()}
    found = {(entry["party"], entry["kind"]) for entry in sent}
    assert found <= kinds | {("clinic", "keep"), ("lab", "keep")}
    client = Client("clinic")
    assert plan.request(client).study == "stay"
    (size_sent,) = [
        row["bytes"] for row in sent if row["kind"] == "propose" and row["party"] == "clinic"
    ]
    _, size = plan.totals()[client, -1, "propose", "down"]
    (symbol,) = size.symbols
    text = plan.request(client).to_json()
    assert size_sent == size.evaluate({symbol.name: len(text.encode())})


BEYOND = {
    "a column": (LIMITS, TRAIN.replace("p.age,", "p.age, p.ill::INT AS sick,"), "sick|ill"),
    "a statement": (
        LIMITS.replace(ALL, "['train']"),
        f"CHECK TARGET days FROM ({QUERY})",
        "the study allows TRAIN; this is CHECK",
    ),
    "a kind of model": (
        f"{LIMITS}, kinds = ['linear_regression']",
        TRAIN.replace("linear_regression", "poisson_regression").replace(
            "p.days", "p.ill::INT AS days"
        ),
        "the study allows models of kind linear_regression; this is poisson_regression",
    ),
    "a method": (
        f"{LIMITS}, algorithms = ['lbfgs']",
        TRAIN.replace("FROM (", "WITH (algorithm = 'sgd') FROM (", 1),
        "the study allows the method lbfgs; this is sgd",
    ),
    "rounds": (
        f"{LIMITS}, rounds = 15",
        TRAIN.replace("FROM (", "WITH (algorithm = 'admm', epochs = 20) FROM (", 1),
        "the study allows at most 15 rounds; this asks for 2",
    ),
    "a condition": (
        LIMITS,
        f"{TRAIN[:-1]} WHERE p.age > 30)",
        "column age is in the study, but not in a condition on rows",
    ),
    "noise of features": (f"{LIMITS}, epsilon = 1", TRAIN, "the study has predictions = 'noised'"),
    "less noise of features": (
        f"{LIMITS}, epsilon = 1, delta = 1e-4",
        NOISE.format(2, 1),
        "the study allows features with ε of at most 1 at δ = 0.0001; this asks for 2",
    ),
    "noise of labels": (f"{LIMITS}, label_epsilon = 1", TRAIN, "the study has labels = 'noised'"),
    "less noise of labels": (
        f"{LIMITS}, label_epsilon = 1",
        NOISE.format(2, 3),
        "the study allows labels with ε of at most 1; this asks for 3",
    ),
}


@pytest.mark.parametrize("case", BEYOND)
def test_what_exceeds_a_study_asks(
    fed: sqlfl.Federation,
    owner: sqlfl.Owner,
    lab: sqlfl.Owner,
    begin: Callable[..., None],
    case: str,
) -> None:
    limits, text, difference = BEYOND[case]
    begin(limits)
    if case == "a column":
        owner.sql("GRANT TRAIN (ill) ON patients TO 'acme' UNDER r")
        difference = "column ill is not in the study"
    with pytest.raises(ApprovalError, match="as request 2: ") as error:
        fed.sql(text)
    assert difference in str(error.value)
    row = owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
    assert row["warnings"].startswith(f"It exceeds study stay: {difference}")
    assert difference in str(fed.explain(text))
    assert used(owner) == 0
    for own in (owner, lab):
        if len(requests(own)) == 2:
            own.sql("APPROVE REQUEST 2")
    fed.sql(text)
    assert requests(owner)[-1].endswith("approved")


def test_within_noise_nothing_asks(
    fed: sqlfl.Federation, owner: sqlfl.Owner, begin: Callable[..., None]
) -> None:
    begin(f"{LIMITS}, epsilon = 2, delta = 1e-4, label_epsilon = 1")
    fed.sql(NOISE.format(2, 1))
    assert used(owner) == 1


def test_a_table_that_is_not_in_the_study(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    owner: sqlfl.Owner,
    begin: Callable[[], None],
) -> None:
    begin()
    clinic.execute("CREATE TABLE others AS FROM patients")
    owner.sql("GRANT TRAIN (age, bmi, ward), JOIN (pid), LABEL (days) ON others TO 'acme' UNDER r")
    with pytest.raises(ApprovalError, match=r"table main\.others is not in the study"):
        fed.sql(TRAIN.replace("clinic.patients", "clinic.others"))


def test_runs_are_counted(
    fed: sqlfl.Federation, owner: sqlfl.Owner, begin: Callable[..., None]
) -> None:
    begin("runs = 2, until = '2100-01-01'")
    fed.sql(TRAIN)
    fed.sql(TRAIN)
    with pytest.raises(ApprovalError, match="the study allows 2 runs, and 2 have begun"):
        fed.sql(TRAIN)
    assert used(owner) == 2
    begin("runs = 3, until = '2100-01-01'")
    fed.sql(TRAIN)
    assert requests(owner)[0] == "study stay: replaced"
    with pytest.raises(Error, match="a later one has replaced"):
        owner.sql("APPROVE REQUEST 1")


def test_rounds_that_follow_from_the_data_are_ended(
    fed: sqlfl.Federation, begin: Callable[..., None]
) -> None:
    begin(f"{LIMITS}, rounds = 5")
    text = "WITH (algorithm = 'sgd', epochs = 50, batch_size = 20) FROM ("
    with pytest.raises(PolicyError, match="study stay allows at most 5 rounds in a run"):
        fed.sql(TRAIN.replace("FROM (", text, 1))
    assert not fed.models
    fed.sql("USE NO STUDY")
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN.replace("FROM (", text, 1))


def test_a_study_that_has_ended(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    owner: sqlfl.Owner,
    begin: Callable[[], None],
) -> None:
    begin()
    (text,) = clinic.execute("SELECT study FROM sqlfl.studies").fetchone() or ("",)
    past = text.replace("2100-01", "2020-01")
    assert past != text
    clinic.execute("UPDATE sqlfl.studies SET study = ?", [past])
    Records.changes += 1
    with pytest.raises(ApprovalError, match="the study ended on 2020-01-0"):
        fed.sql(TRAIN)
    (row, *_) = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    assert "an approval allows nothing" in row["warnings"]


def test_an_owner_ends_a_study(
    fed: sqlfl.Federation, owner: sqlfl.Owner, begin: Callable[[], None]
) -> None:
    begin()
    fed.sql(TRAIN)
    owner.sql("REVOKE STUDY Stay FROM 'acme' BECAUSE 'it is done'")
    assert not len(owner.sql("SHOW STUDIES"))
    with pytest.raises(ApprovalError, match="as request 2: no study stay of acme is approved"):
        fed.sql(TRAIN)
    (row, *_) = fed.sql("SHOW STUDIES").arrow().to_pylist()
    assert row["state"] == "refused"
    assert "it is done" in row["rule"]
    with pytest.raises(Error, match="no study stay of acme is approved"):
        owner.sql("REVOKE STUDY stay FROM 'acme'")


def test_a_refused_run_is_refused_within_a_study(
    fed: sqlfl.Federation, owner: sqlfl.Owner, begin: Callable[[], None]
) -> None:
    with pytest.raises(ApprovalError):
        fed.sql(TRAIN)
    owner.sql("REFUSE REQUEST 1 BECAUSE 'not this one'")
    begin()
    with pytest.raises(PolicyError, match="not this one"):
        fed.sql(TRAIN)
    assert used(owner) == 0


def test_grants_and_rules_hold_within_a_study(
    fed: sqlfl.Federation, owner: sqlfl.Owner, begin: Callable[[], None]
) -> None:
    begin()
    owner.sql("CREATE OR REPLACE TRAINING POLICY r WITH (approval = 'always', min_rows = 1000)")
    with pytest.raises(PolicyError, match="min_rows = 1000"):
        fed.sql(TRAIN)
    owner.sql("CREATE OR REPLACE TRAINING POLICY r WITH (approval = 'always', runs_per_day = 1)")
    fed.sql(TRAIN)
    with pytest.raises(PolicyError, match="runs_per_day = 1"):
        fed.sql(TRAIN)
    owner.sql("REVOKE TRAIN ON patients FROM 'acme'")
    with pytest.raises(PolicyError, match="not granted"):
        fed.sql(TRAIN)


def test_refused_runs_count_within_a_study(
    fed: sqlfl.Federation, owner: sqlfl.Owner, lab: sqlfl.Owner, begin: Callable[[str], None]
) -> None:
    """Among the study's runs and among those of the day: a rule on rows tells something of them."""
    begin(LIMITS.replace("runs = 40", "runs = 4"))
    rules = "CREATE OR REPLACE TRAINING POLICY r WITH (approval = 'always', runs_per_day = 2{})"
    owner.sql(rules.format(", min_rows = 1000"))
    for number in (1, 2):
        with pytest.raises(PolicyError, match="min_rows = 1000"):
            fed.sql(TRAIN)
        assert used(owner) == number
    owner.sql(rules.format(""))
    with pytest.raises(PolicyError, match="runs_per_day = 2"):
        fed.sql(TRAIN)
    assert used(owner) == 2  # it has not begun
    owner.sql("CREATE OR REPLACE TRAINING POLICY r WITH (approval = 'always', min_cell = 150)")
    with pytest.raises(PolicyError, match="min_cell = 150"):
        fed.sql(TRAIN)
    assert (used(owner), used(lab)) == (3, 4)  # at the lab all of them have begun
    with pytest.raises(ApprovalError, match="the study allows 4 runs, and 4 have begun"):
        fed.sql(TRAIN)


def test_a_study_lasts(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.duckdb" for name in ("clinic", "lab")}
    for name, text in (("clinic", PATIENTS), ("lab", TESTS)):
        with duckdb.connect(paths[name]) as con:
            con.execute(text)
    ruled(paths["clinic"], "approval = 'first_time'", WIDE)

    def run(*texts: str) -> None:
        with ExitStack() as stack:
            file = tmp_path / "coordinator.duckdb"
            fed = stack.enter_context(sqlfl.connect(file, analyst="acme", progress=False))
            for name, path in paths.items():
                fed.attach(name, path)
            for text in texts:
                fed.sql(text)

    run(STUDY.format("runs = 2, until = '2100-01-01'"))
    with sqlfl.owner(paths["clinic"]) as owner:
        owner.sql("APPROVE REQUEST 1")
    run("USE STUDY stay", TRAIN)
    run("USE STUDY stay", TRAIN)
    with sqlfl.owner(paths["clinic"]) as owner:
        assert used(owner) == 2
    with pytest.raises(ApprovalError, match="2 have begun"):
        run("USE STUDY stay", TRAIN)
    run("DROP STUDY stay", "DROP STUDY IF EXISTS stay")
    with pytest.raises(Error, match="there is no study stay"):
        run("USE STUDY stay")


# -- a coordinator that lies -----------------------------------------------------------------------

OWN = Study(
    "s", "to see", (StudyTable(("", "", "patients"), (StudyColumns("join", ("pid",)),)),),
    ("train",), None, None, None, 1e-6, None, None, 2,
    dt.datetime(2100, 1, 1, tzinfo=dt.UTC),
)  # fmt: skip
KEYS = "SELECT pid AS sqlfl_key_0_0 FROM patients"
WITHIN = replace(REQUEST, study="s", asked=REQUEST.asked[:2])


def propose(request: object, run: str, select: str = KEYS) -> ms.Propose:
    text = request.to_json()  # type: ignore[attr-defined]
    return ms.Propose(run, -1, text, specifications_to_json((SLOT,)), (select,))


@pytest.fixture
def approved(ask: Ask, owner: sqlfl.Owner) -> Ask:
    owner.sql("CREATE OR REPLACE TRAINING POLICY r WITH (approval = 'first_time')")
    reply = ask(ms.ProposeStudy("", -1, OWN.to_json()))
    assert isinstance(reply, ms.Proposed)
    assert [v.state for v in verdicts_from_json(reply.verdicts)] == [WAITING]
    assert isinstance(ask(propose(WITHIN, "before")), ms.Failure)
    owner.sql("APPROVE REQUEST 1")
    return ask


def test_the_party_reads_the_request_itself(approved: Ask, owner: sqlfl.Owner) -> None:
    assert isinstance(approved(propose(WITHIN, "a")), ms.Proposed)
    for lie, word in (
        (replace(WITHIN, study="other"), "no study other of acme is approved"),
        (replace(WITHIN, purpose="evaluate"), "this is EVALUATE"),
        (replace(WITHIN, purpose="predict", look='{"threshold":1}'), "this is PREDICT"),
        (replace(WITHIN, asked=(*WITHIN.asked, Asked(0, "send_skew", "", "", 1))), "this is SKEW"),
    ):
        reply = approved(propose(lie, "b"))
        assert isinstance(reply, ms.Failure)
        assert word in reply.text or "PREDICT on" in reply.text
    reply = approved(propose(WITHIN, "c", "SELECT age AS sqlfl_key_0_0 FROM patients"))
    assert isinstance(reply, ms.Failure)
    filtered = f"{KEYS} WHERE age > 30"
    reply = approved(propose(WITHIN, "d", filtered))
    assert isinstance(reply, ms.Failure)
    assert "column age is not in the study" in reply.text
    assert used(owner) == 0


def test_runs_begin_only_as_often_as_allowed(approved: Ask, owner: sqlfl.Owner) -> None:
    """Runs that are proposed before the last one begins are counted when they begin."""
    for run in ("a", "b", "c"):
        assert isinstance(approved(propose(WITHIN, run)), ms.Proposed)
    told = specifications_to_json((SLOT,)), (KEYS,)
    for run in ("a", "b"):
        assert isinstance(approved(ms.Prepare(run, -1, *told)), ms.Prepared)
    reply = approved(ms.Prepare("c", -1, *told))
    assert isinstance(reply, ms.Failure)
    assert "the study does not allow this run any more" in reply.text
    assert used(owner) == 2


def test_runs_that_begin_at_once_are_counted(
    approved: Ask, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    """An analyst may have several federations, whose clients share no lock."""
    secrets = Secrets(b"\x07" * 32, b"\x07" * 32)
    told, begun = (specifications_to_json((SLOT,)), (KEYS,)), []
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                closing(PartyClient(Client("clinic"), clinic.cursor(), secrets, analyst="acme"))
            )
            for _ in range(4)
        ]

        def work(number: int, client: PartyClient) -> None:
            for run in (f"{number} {time}" for time in range(3)):
                courier.ask(client, propose(WITHIN, run))
                reply = courier.ask(client, ms.Prepare(run, -1, *told))
                begun.append(isinstance(reply, ms.Prepared))

        threads = [
            threading.Thread(target=work, args=(number, client))
            for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(begun) == used(owner) == 2
    numbers = owner.sql("SHOW REQUESTS").arrow()["request"].to_pylist()
    assert len(set(numbers)) == len(numbers)


def test_a_study_that_is_edited_asks_anew(approved: Ask, owner: sqlfl.Owner) -> None:
    for edited in (
        replace(OWN, runs=100),
        replace(OWN, purpose="something else"),
        replace(OWN, statements=("train", "predict")),
    ):
        reply = approved(ms.ProposeStudy("", -1, edited.to_json()))
        assert isinstance(reply, ms.Proposed)
        assert [v.state for v in verdicts_from_json(reply.verdicts)] == [WAITING]
        reply = approved(propose(replace(WITHIN, purpose="predict"), "b"))
        assert isinstance(reply, ms.Failure)
    (row,) = owner.sql("SHOW STUDIES").arrow().to_pylist()
    assert (row["runs"], row["purpose"]) == (2, "to see")
    unknown = replace(
        OWN, tables=(StudyTable(("", "", "patients"), (StudyColumns("train", ("salary",)),)),)
    )
    reply = approved(ms.ProposeStudy("", -1, unknown.to_json()))
    assert isinstance(reply, ms.Proposed)
    (verdict,) = verdicts_from_json(reply.verdicts)
    assert (verdict.state, verdict.rule) == (REFUSED, "column salary is not granted")
    for text in (
        "",
        "[]",
        "{}",
        json.dumps({"name": 1}),
        OWN.to_json().replace('"runs":2', '"runs":0'),
        replace(OWN, name="a\x1b[2J").to_json(),
    ):
        assert isinstance(approved(ms.ProposeStudy("", -1, text)), ms.Failure)


def failure(reply: ms.Message) -> str:
    assert isinstance(reply, ms.Failure), reply
    return reply.text


def asked(*kinds: str) -> tuple[Asked, ...]:
    return tuple(Asked(0, kind, "", "", None) for kind in kinds)


@pytest.mark.parametrize(
    ("kind", "statement"),
    in_turn(
        ("start", "save", "send_gram", "send_slope", "send_equal_rows", "set_ranges"),
        ("check", "evaluate", "predict"),
    ),
)
def test_what_trains_is_asked_for_in_training_alone(
    approved: Ask, owner: sqlfl.Owner, statement: str, kind: str
) -> None:
    own = replace(OWN, name="t", statements=(statement, "train"))
    approved(ms.ProposeStudy("", -1, own.to_json()))
    owner.sql("APPROVE REQUEST 3")
    lie = replace(WITHIN, study="t", purpose=statement)
    lie = replace(lie, asked=(*lie.asked, Asked(0, kind, "", "", 1)))
    assert f"{kind} is asked for" in failure(approved(propose(lie, "a")))
    row = owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
    assert f"{kind} is asked for" in row["warnings"]
    # and for a run outside a study
    failure(approved(propose(replace(lie, study=None, options="[]"), "b")))
    row = owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
    assert "It is said to " in row["warnings"]
    assert f"but {kind} is asked for" in row["warnings"]


def test_predictions_are_not_written_whatever_is_said(
    approved: Ask, clinic: duckdb.DuckDBPyConnection, owner: sqlfl.Owner
) -> None:
    clinic.execute("CREATE SCHEMA scores")
    owner.sql("CREATE OR REPLACE TRAINING POLICY r WITH (approval = 'first_time', into = 'scores')")
    lie = replace(WITHIN, asked=(*WITHIN.asked, Asked(-1, "write", "", "", 1)))
    text = failure(approved(propose(lie, "a")))
    assert "the study writes no predictions into a table" in text
    row = owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
    assert "to write the predictions into a table" in row["summary"]


def test_a_statement_that_does_not_train_takes_no_statistics(
    approved: Ask, owner: sqlfl.Owner
) -> None:
    """A shared slot would send them once its rows are told, without a request of their own."""
    tables = (
        StudyTable(
            ("", "", "patients"), (StudyColumns("join", ("pid",)), StudyColumns("train", ("age",)))
        ),
    )
    own = replace(
        OWN, name="t", tables=tables, statements=("train", "evaluate", "check"), epsilon=1.0
    )
    approved(ms.ProposeStudy("", -1, own.to_json()))
    owner.sql("APPROVE REQUEST 3")
    slot = replace(SLOT, features=(FeatureSpecification("age", "numeric"),), shared=True)
    for purpose in ("evaluate", "check"):
        lie = replace(WITHIN, study="t", purpose=purpose)
        text = specifications_to_json((slot,))
        select = "SELECT age AS sqlfl_feature_0, pid AS sqlfl_key_0_0 FROM patients"
        reply = approved(ms.Propose("a", -1, lie.to_json(), text, (select,)))
        assert "statistics of features are asked for" in failure(reply)


@pytest.mark.parametrize(
    ("select", "grants"),
    [
        ("SELECT p.pid AS sqlfl_key_0_0 FROM patients p JOIN visits v ON p.ssn = v.ssn", True),
        ("SELECT pid AS sqlfl_key_0_0 FROM patients WHERE pid = ssn", False),
        ("SELECT pid AS sqlfl_key_0_0 FROM (SELECT DISTINCT pid, ssn FROM patients) AS p", False),
    ],
)
def test_links_within_the_database_are_of_the_study_too(
    approved: Ask,
    clinic: duckdb.DuckDBPyConnection,
    owner: sqlfl.Owner,
    select: str,
    grants: bool,
) -> None:
    """They decide which rows there are, as a condition does."""
    clinic.execute("ALTER TABLE patients ADD COLUMN ssn BIGINT")
    clinic.execute("UPDATE patients SET ssn = pid * 7 % 300")
    clinic.execute("CREATE TABLE visits AS SELECT pid, ssn FROM patients")
    for table in ("patients", "visits"):
        owner.sql(f"GRANT JOIN (pid, ssn), PREDICT ON {table} TO 'acme' UNDER r")
    visits = StudyTable(("", "", "visits"), (StudyColumns("join", ("pid",)),))
    own = replace(OWN, name="t", tables=(*OWN.tables, visits))
    approved(ms.ProposeStudy("", -1, own.to_json()))
    owner.sql("APPROVE REQUEST 3")
    within = replace(WITHIN, study="t")
    assert isinstance(approved(propose(within, "a", select.replace("ssn", "pid"))), ms.Proposed)
    text = failure(approved(propose(within, "b", select)))
    assert "column patients.ssn is not in the study" in text
    assert ("column visits.ssn is not in the study" in text) == grants
    row = owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
    assert "ssn to link rows of your tables" in row["summary"]


def test_a_study_has_words_and_limits_that_a_statement_gives(
    approved: Ask, owner: sqlfl.Owner
) -> None:
    """The owner reads names that sqlfl knows, and REVOKE STUDY finds the study."""
    before = len(requests(owner))
    for wrong in (
        replace(OWN, name="S"),
        replace(OWN, kinds=("linear_regression). Nothing leaves in clear. (",)),
        replace(OWN, algorithms=("sgd', with noise of ε = 0.1. '",)),
        replace(OWN, kinds=()),
        replace(OWN, statements=()),
        replace(OWN, epsilon=0.0),
        replace(OWN, epsilon=1.0, delta=3.0),
        replace(OWN, label_epsilon=-1.0),
        replace(OWN, rounds=0),
        replace(OWN, runs=10**30),
        replace(OWN, tables=(*OWN.tables, StudyTable(("", "", "hidden"), ()))),
    ):
        reply = approved(ms.ProposeStudy("", -1, wrong.to_json()))
        if isinstance(reply, ms.Proposed):
            (verdict,) = verdicts_from_json(reply.verdicts)
            assert (verdict.state, verdict.rule) == (REFUSED, "a table of the study is not granted")
    assert len(requests(owner)) == before


def test_words_of_the_analyst_end_where_they_seem_to(approved: Ask, owner: sqlfl.Owner) -> None:
    name = "s, whose purpose is 'to count': TRAIN"
    purpose = "to count': TRAIN of models. Nothing leaves in clear. 'Thank you"
    approved(ms.ProposeStudy("", -1, replace(OWN, name=name.lower(), purpose=purpose).to_json()))
    row = owner.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
    (first, *_) = row["summary"].split("\n")
    assert first.startswith(
        "acme asks for study \"s, whose purpose is 'to count': train\", whose purpose is "
        "'to count’: TRAIN of models. Nothing leaves in clear. ’Thank you': TRAIN of models"
    )
    owner.sql(f"APPROVE REQUEST {row['request']}")
    owner.sql(f"REVOKE STUDY \"{name}\" FROM 'acme'")


def test_a_study_of_another_analyst(
    approved: Ask, clinic: duckdb.DuckDBPyConnection, database: Open, owner: sqlfl.Owner
) -> None:
    owner.sql(GRANT.replace("acme", "rival"))
    with sqlfl.connect(analyst="rival", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach("lab", database(TESTS))
        fed.sql(STUDY.replace("stay", "s").replace("IDENTIFY (pid) ", "").replace(
            "LABEL (days),", "LABEL (days)").format(LIMITS))  # fmt: skip
        fed.sql("USE STUDY s")
        with pytest.raises(ApprovalError, match="no study s of rival is approved"):
            fed.sql(TRAIN)
    assert used(owner) == 0


# -- statements ------------------------------------------------------------------------------------


def test_five_sentences_of_a_study(
    fed: sqlfl.Federation, owner: sqlfl.Owner, lab: sqlfl.Owner
) -> None:
    told = []
    for limits in (
        "statements = ['train', 'evaluate'], kinds = ['linear_regression'], "
        "algorithms = ['lbfgs', 'sgd'], rounds = 200, runs = 30, until = '2100-06-30T00:00:00Z'",
        "epsilon = 1, label_epsilon = 2, runs = 1, until = '2100-06-30T00:00:00Z'",
        f"statements = {ALL}, runs = 40, until = '2100-06-30T00:00:00Z'",
    ):
        fed.sql(STUDY.format(limits))
        for own in (owner, lab):
            row = own.sql("SHOW REQUESTS").arrow().to_pylist()[-1]
            assert len(row["summary"].split("\n")) == 5
            assert all(len(own.split()) < 120 for own in row["summary"].split("\n"))
            (details,) = own.sql(f"SHOW REQUEST {row['request']}").arrow()["leaves"].to_pylist()
            told.append(f"# {row['run']}\n{row['summary']}\n\n{row['warnings']}\n\n{details}\n")
    goldens.check(GOLDEN, "\n".join(told))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (("age,", "aeg,"), PlanError, "has no column aeg"),
        (("lab.tests", "lab.test"), PlanError, "lab.test"),
        (("lab.tests", "clinic.patients"), PlanError, "is written twice"),
        (("TRAIN (crp)", "TRIAN (crp)"), ParseError, "did you mean TRAIN"),
        (("TRAIN (crp)", "TRAIN (*)"), ParseError, "takes no \\*"),
        (("PURPOSE 'how long patients stay'", ""), ParseError, "expected PURPOSE"),
        (("LABEL (days)", "JOIN (days)"), ParseError, "JOIN is written twice"),
        (("runs = 40, ", ""), OptionError, "takes the limit runs"),
        ((", until = '2100-01-01'", ""), OptionError, "takes the limit until"),
        (("2100-01-01", "2020-01-01"), OptionError, "would have ended already"),
        (("2100-01-01", "soon"), OptionError, "must be a day or a time"),
        (("'skew'", "'skow'"), OptionError, "limit statements must be"),
    ],
)
def test_a_study_that_is_written_wrongly(
    fed: sqlfl.Federation, change: tuple[str, str], error: type[Error], said: str
) -> None:
    with pytest.raises(error, match=said):
        fed.sql(STUDY.format(LIMITS).replace(*change))
    assert not len(fed.sql("SHOW STUDIES"))


def test_names_of_studies(fed: sqlfl.Federation) -> None:
    fed.sql(STUDY.format(LIMITS))
    with pytest.raises(Error, match="there is a study stay already"):
        fed.sql(STUDY.format(LIMITS).replace("OR REPLACE ", ""))
    with pytest.raises(Error, match="did you mean stay"):
        fed.sql("USE STUDY stya")
    with pytest.raises(Error, match="there is no study other"):
        fed.sql("DROP STUDY other")
    schema = fed.result_schema("SHOW STUDIES")
    assert fed.sql("SHOW STUDIES").arrow().schema == schema
    fed.sql("DROP STUDY stay")
    assert not len(fed.sql("SHOW STUDIES"))


def test_owners_that_need_not_be_asked(
    fed: sqlfl.Federation, owner: sqlfl.Owner, lab: sqlfl.Owner
) -> None:
    owner.sql("CREATE OR REPLACE TRAINING POLICY r")
    lab.sql("REVOKE ALL ON tests FROM 'acme'")
    lab.sql("DROP TRAINING POLICY r")
    told = fed.sql(STUDY.format(LIMITS)).arrow().to_pylist()
    assert [row["state"] for row in told] == ["allowed", "allowed"]
    assert requests(owner) == []
    fed.detach("lab")
    told = fed.sql("SHOW STUDIES").arrow().to_pylist()
    assert [row["state"] for row in told] == ["allowed", "not attached"]
