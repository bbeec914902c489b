"""What an analyst gets under a policy: all that is granted, as without one, and nothing else."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.base.errors import PlanError, PolicyError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import Records
from tests.conftest import Open
from tests.governance.clinic import (
    GRANT,
    PATIENTS,
    QUERY,
    SICK,
    SLOT,
    TESTS,
    TRAIN,
    Ask,
    prepared,
    ruled,
)


def told(reply: ms.Message) -> str:
    """By a failure."""
    return reply.text if isinstance(reply, ms.Failure) else ""


def test_without_a_policy_all_is_allowed(fed: sqlfl.Federation) -> None:
    fed.sql(TRAIN)
    assert "salary" in fed.tables().arrow().column("column").to_pylist()


def test_a_column_that_is_not_granted_has_the_alias_of_its_table(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """Tables have the first letters of their names as aliases in queries to a party."""
    clinic.execute("ALTER TABLE patients ADD COLUMN p INTEGER DEFAULT 3")
    ruled(clinic)
    fed.sql(TRAIN)
    with pytest.raises(PlanError, match="no column p"):
        fed.sql(TRAIN.replace("p.bmi", "p.p"))


LOOKS = (
    f"EVALUATE MODEL m FROM ({QUERY})",
    f"PREDICT MODEL m FROM ({QUERY})",
    f"METRICS OF MODEL m FROM ({QUERY})",
    f"CHECK TARGET days FROM ({QUERY})",
    f"INFERENCE OF MODEL m FROM ({QUERY})",
    f"IMPORTANCE OF MODEL m WITH (seed = 1) FROM ({QUERY})",
    f"SKEW OF MODEL m FROM ({QUERY})",
    "WEIGHTS OF MODEL m",
)


VARIANTS = (
    TRAIN,
    TRAIN.replace("FROM (", "WITH (validation_fraction = 0.2, seed = 1) FROM (", 1),
    TRAIN.replace("FROM (", "WITH (algorithm = 'sgd', epochs = 2, seed = 1) FROM (", 1),
    TRAIN.replace("FROM (", "WITH (algorithm = 'admm', epochs = 3, engine = 'sql') FROM (", 1),
    TRAIN.replace(
        "FROM (", "TRANSFORM (bucketize(age, [40]), polynomial(bmi, 2), one_hot(ward)) FROM (", 1),
    TRAIN.replace("JOIN lab.tests t", "LEFT JOIN lab.tests t"),
    TRAIN.replace("clinic.patients p JOIN lab.tests t",
                  "lab.tests t LEFT JOIN clinic.patients p")
    .replace("p.days", "t.crp * 2 AS days"),
    f"{TRAIN[:-1]} WHERE p.age > 30 AND p.bmi IS NOT NULL)",
    f"{TRAIN[:-1]} UNION ALL {QUERY} WHERE p.ward = 'w1')",
    TRAIN.replace("clinic.patients p", "(SELECT pid, max(age) AS age, avg(bmi) AS bmi, "
                  "first(ward) AS ward, avg(days) AS days FROM clinic.patients "
                  "GROUP BY pid) p"),
    TRAIN.replace("TRAIN OR REPLACE", "TUNE OR REPLACE").replace(
        "FROM (", "WITH (l2 = [0.1, 1], folds = 3, seed = 1) FROM (", 1),
    TRAIN.replace("linear_regression", "quantile_regression"),
)  # fmt: skip


@pytest.mark.parametrize("text", VARIANTS)
def test_what_is_trained_is_what_it_is_without_a_policy(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, text: str
) -> None:
    fed.sql(text)
    before = fed.model("m").metrics["loss"]
    ruled(
        clinic, grant=GRANT.replace("PREDICT", "IDENTIFY (salary), PREDICT")
    )  # rows are drawn by it
    fed.sql(text)
    np.testing.assert_allclose(fed.model("m").metrics["loss"], before, rtol=1e-6)


def test_what_is_granted_is_what_it_is_without_a_policy(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(TRAIN)
    seen = [fed.sql(text).arrow() for text in LOOKS]
    ruled(clinic)
    fed.sql(TRAIN)
    for text, known in zip(LOOKS, seen, strict=True):
        found = fed.sql(text).arrow()
        assert found.schema == known.schema, text
        assert found.num_rows == known.num_rows, text


def test_only_what_is_granted_is_there(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic)
    found = fed.tables().df()
    assert found[found.party == "clinic"].column.tolist() == [
        *("pid", "age", "bmi", "ward", "ill", "days")
    ]
    with pytest.raises(PlanError, match="has no column salary"):
        fed.sql(TRAIN.replace("p.bmi", "p.salary AS bmi"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("p.bmi", "p.pid AS bmi", "pid of main.patients is not granted to acme for TRAIN"),
        ("p.days", "p.age AS days", "age of main.patients is not granted to acme for LABEL"),
        ("p.bmi", "p.days AS bmi", "days of main.patients is not granted to acme for TRAIN"),
        ("t.pid", "t.pid AND p.pid < 200", "pid of main.patients is not granted .* for FILTER"),
        ("t.pid", "t.pid AND p.days > 1", "days of main.patients is not granted .* for FILTER"),
        ("p.pid = t.pid", "p.pid + 1 = t.pid", "a join key is to be a column that is granted"),
        ("p.pid = t.pid", "p.age = t.pid", "age of main.patients is not granted to acme for JOIN"),
        ("p.bmi", "(SELECT max(p2.days) FROM clinic.patients p2) AS bmi", "not granted"),
        ("clinic.patients p", "(SELECT *, pid % 2 AS odd FROM clinic.patients WHERE pid % 2 = 1) p",
         "pid of main.patients is not granted .* for FILTER"),
    ],
)  # fmt: skip
def test_what_is_refused(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, old: str, new: str, said: str
) -> None:
    ruled(clinic)
    with pytest.raises(PolicyError, match=said):
        fed.sql(TRAIN.replace(old, new))
    assert not fed.models


RULES: list[tuple[str, str, str]] = [
    ("min_rows = 301", TRAIN, "min_rows = 301"),
    ("min_rows = 200", f"{TRAIN[:-1]} WHERE p.age < 40)", "min_rows = 200"),
    ("min_rows = 200", f"{TRAIN[:-1]} WHERE t.crp > 0.5)", "min_rows = 200, of rows that are"),
    ("max_categories = 3", TRAIN, "max_categories = 3"),
    ("min_cell = 76", TRAIN, "min_cell = 76, of values of features"),
    ("min_cell = 61", SICK, "min_cell = 61, of classes of the target"),
    ("rounds = 6", TRAIN, "rounds = 6"),
    ("max_parameter_ratio = 0.01", TRAIN, "max_parameter_ratio = 0.01"),
    ("max_fan_out = 1", TRAIN.replace("p.pid = t.pid", "p.pid = t.pid % 150"), "max_fan_out = 1"),
    ("algorithms = ['sgd', 'admm']", TRAIN, "algorithms = "),
    ("labels = 'never'", TRAIN, "labels = 'never'"),
    ("moments = 'never'", f"CHECK TARGET days FROM ({QUERY})", "moments = 'never'"),
]


@pytest.mark.parametrize(("rules", "text", "said"), RULES, ids=[rule for rule, *_ in RULES])
def test_the_rules_of_a_policy(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    rules: str,
    text: str,
    said: str,
) -> None:
    if "t.pid % 150" in text:
        text = text.replace("p.pid = t.pid % 150", "p.pid = t.pid - 0 * t.pid")
        text = text.replace("lab.tests t", "(FROM lab.tests UNION ALL FROM lab.tests) t")
    ruled(clinic)
    fed.sql(text)  # under others it is allowed
    if not text.startswith("CHECK"):
        fed.sql("DROP MODEL m")
    ruled(clinic, rules, "")
    with pytest.raises(
        PolicyError, match=f"party clinic/0: its owner's policy has {said}"
    ) as error:
        fed.sql(text)
    assert "rows" not in str(error.value).replace("min_rows", "").replace(
        "of rows that are joined", ""
    )
    assert not fed.models
    left = clinic.sql("SELECT count(*) FROM duckdb_tables() WHERE temporary").fetchall()
    assert left == [(0,)]


def test_what_looks_into_a_model_is_granted_and_ruled(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    fed.sql(TRAIN)
    ruled(clinic, "weights = 'never', moments = 'never'", GRANT.replace(", PREDICT", ""))
    for text in LOOKS[:3]:
        with pytest.raises(PolicyError, match=r"PREDICT on main\.patients is not granted to acme"):
            fed.sql(text)
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT PREDICT ON patients TO 'acme' UNDER r")
    fed.sql(LOOKS[0])
    for text in ("INFERENCE", "SKEW"):
        with pytest.raises(PolicyError, match="moments = 'never'"):
            fed.sql(f"{text} OF MODEL m FROM ({QUERY})")
    with pytest.raises(PolicyError, match="weights = 'never'"):
        fed.sql("WEIGHTS OF MODEL m")
    ids = QUERY.replace("SELECT", "SELECT ")
    with pytest.raises(PolicyError, match=r"pid of main\.patients is not granted to acme for IDEN"):
        fed.sql(f"PREDICT MODEL m ID (clinic.patients.pid) FROM ({ids})")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT IDENTIFY (pid) ON patients TO 'acme' UNDER r")
    into = f"PREDICT MODEL m ID (clinic.patients.pid) FROM ({QUERY}) INTO clinic.predicted"
    with pytest.raises(PolicyError, match="into = none"):
        fed.sql(into)
    ruled(clinic, "into = 'main'", "")
    fed.sql(into)
    assert len(clinic.sql("FROM predicted").fetchall()) == 300
    clinic.execute("CREATE SCHEMA Told; CREATE SCHEMA other")
    ruled(clinic, "into = 'told'", "")
    fed.sql(f"{into[: -len('predicted')]}told.predicted")  # where nothing is granted
    assert len(clinic.sql("FROM Told.predicted").fetchall()) == 300
    with pytest.raises(PlanError, match="no schema or database other"):
        fed.sql(f"{into[: -len('predicted')]}other.predicted")
    ruled(clinic, "identifiers = 'never'", "")
    with pytest.raises(PolicyError, match="identifiers = 'never'"):
        fed.sql(f"PREDICT MODEL m ID (clinic.patients.pid) FROM ({QUERY})")


def test_inference_has_the_weights_of_a_model(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """So it takes what WEIGHTS OF MODEL takes: also over rows of another table."""
    clinic.execute("CREATE TABLE later AS FROM patients")
    ruled(clinic)
    fed.sql(TRAIN)
    over = QUERY.replace("clinic.patients", "clinic.later")
    with sqlfl.owner(clinic) as owner:
        owner.sql(GRANT.replace("patients", "later"))
        assert fed.sql(f"INFERENCE OF MODEL m FROM ({over})").arrow().num_rows
        owner.sql("REVOKE TRAIN ON patients FROM 'acme'")
        fed.sql(f"EVALUATE MODEL m FROM ({over})")
        gone = r"TRAIN on main\.patients, which the model was trained on, is not granted to"
        for text in ("WEIGHTS OF MODEL m", f"INFERENCE OF MODEL m FROM ({over})"):
            with pytest.raises(PolicyError, match=gone):
                fed.sql(text)
        owner.sql(GRANT)
    assert fed.sql(f"INFERENCE OF MODEL m FROM ({over})").arrow().num_rows
    ruled(clinic, "weights = 'never'", "")
    assert "weights = 'never'" in str(fed.sql(f"EXPLAIN INFERENCE OF MODEL m FROM ({over})"))
    with pytest.raises(PolicyError, match="weights = 'never'"):
        fed.sql(f"INFERENCE OF MODEL m FROM ({over})")


@pytest.mark.parametrize(
    "rule", ["moments = 'never'", "moments = 'noised'", "epsilon = 2", "epsilon_total = 2"]
)
def test_skew_has_means_of_the_rows_of_training(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, rule: str
) -> None:
    """So it takes what the policy of these says, whatever rows they are compared with."""
    clinic.execute("CREATE TABLE later AS FROM patients")
    ruled(clinic)
    fed.sql(TRAIN)
    skew = f"SKEW OF MODEL m FROM ({QUERY.replace('clinic.patients', 'clinic.later')})"
    with sqlfl.owner(clinic) as owner:
        owner.sql("CREATE TRAINING POLICY s")
        owner.sql(GRANT.replace("patients", "later").replace("UNDER r", "UNDER s"))
        assert fed.sql(skew).arrow().num_rows
        owner.sql(f"CREATE OR REPLACE TRAINING POLICY r WITH ({rule})")
        said = rf"has {rule}, for main\.patients, which the model was trained on"
        with pytest.raises(PolicyError, match=said):
            fed.sql(skew)
        owner.sql("REVOKE TRAIN ON patients FROM 'acme'")
        with pytest.raises(
            PolicyError, match=r"TRAIN on main\.patients, .* is not granted to acme"
        ):
            fed.sql(skew)
        fed.sql(skew.replace("SKEW", "METRICS"))


def test_skew_has_no_mean_of_few_rows_of_training(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    """The policy of these rows says how many, whatever rows they are compared with."""
    clinic.execute("CREATE TABLE later AS FROM patients")
    clinic.execute("UPDATE patients SET bmi = NULL WHERE pid > 6")
    ruled(clinic)
    fed.sql(TRAIN)
    skew = f"SKEW OF MODEL m FROM ({QUERY.replace('clinic.patients', 'clinic.later')})"
    with sqlfl.owner(clinic) as owner:
        owner.sql("CREATE TRAINING POLICY s WITH (min_cell = 1)")
        owner.sql(GRANT.replace("patients", "later").replace("UNDER r", "UNDER s"))
        for least, is_told in ((7, True), (8, False)):
            owner.sql(f"CREATE OR REPLACE TRAINING POLICY r WITH (min_cell = {least})")
            rows = {row["feature"]: row for row in fed.sql(skew).arrow().to_pylist()}
            for name in ("trained_mean", "mean", "distance", "psi"):
                assert (rows["bmi"][name] is not None) is is_told
                assert rows["age"][name] is not None


def test_the_strictest_of_several_policies_holds(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "max_categories = 50, algorithms = ['lbfgs', 'sgd']")
    with sqlfl.owner(clinic) as owner:
        owner.sql("CREATE TRAINING POLICY strict WITH (max_categories = 2, algorithms = ['sgd'])")
        fed.sql(TRAIN)
        owner.sql("GRANT TRAIN (age) ON patients TO 'acme' UNDER strict")
        with pytest.raises(PolicyError, match=r"algorithms = \['sgd'\]"):
            fed.sql(TRAIN)
        owner.sql("REVOKE TRAIN, FILTER ON patients FROM 'acme'")
        with pytest.raises(PlanError, match="p has no column age"):
            fed.sql(TRAIN)
        owner.sql("REVOKE ALL ON patients FROM 'acme'")
        with pytest.raises(PlanError, match="clinic has no table patients"):
            fed.sql(TRAIN)


def test_a_grant_ends(clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, grant=f"{GRANT} UNTIL DATE '2030-06-30'")
    governance = Governance(Records(clinic, "memory"))

    def granted(*day: int) -> bool:
        ruling = governance.ruling("acme", dt.datetime(*day).astimezone())  # type: ignore[arg-type,misc]
        assert ruling is not None
        return bool(ruling.grants)

    assert granted(2030, 6, 30, 23)
    assert not granted(2030, 7, 1)


def test_a_view_is_granted_as_it_is(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    clinic.execute("CREATE VIEW inner_ AS FROM patients")
    clinic.execute("CREATE VIEW seen AS SELECT pid, age, bmi, ward, days, ill FROM inner_")
    ruled(clinic, grant=GRANT.replace("patients", "seen"))
    text = TRAIN.replace("clinic.patients", "clinic.seen")
    fed.sql(text)
    clinic.execute(
        "CREATE OR REPLACE VIEW inner_ AS SELECT * REPLACE (salary AS age) FROM patients"
    )
    with pytest.raises(PolicyError, match=r"view main\.seen, or what it reads, is another one"):
        fed.sql(text)
    with pytest.raises(PlanError, match="has no table patients"):
        fed.sql(TRAIN)
    # a grant of the view as it is now takes the place of those before, and adds no roles to them
    ruled(clinic, grant="GRANT TRAIN (ward), JOIN (pid), LABEL (days) ON seen TO 'acme' UNDER r")
    fed.sql(text.replace("p.age, p.bmi, ", ""))
    with pytest.raises(PlanError, match="has no column age"):
        fed.sql(text)
    with sqlfl.owner(clinic) as owner:
        assert len(owner.sql("SHOW GRANTS")) == 1


def test_another_analyst_and_none(clinic: duckdb.DuckDBPyConnection, database: Open) -> None:
    ruled(clinic)
    for analyst, said in (("other", "has no table patients"), (None, "names no analyst")):
        with sqlfl.connect(analyst=analyst, progress=False) as fed:
            fed.attach("clinic", clinic)
            fed.attach("lab", database(TESTS))
            with pytest.raises((PlanError, PolicyError), match=said):
                fed.sql(TRAIN)


def test_databases_that_a_party_combines_are_refused(database: Open) -> None:
    parts = [database(PATIENTS), database(PATIENTS)]
    ruled(parts[1])
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", parts, combine=True)
        fed.attach("lab", database(TESTS))
        with pytest.raises(PolicyError, match="not built for databases that a party combines"):
            fed.sql(TRAIN)


DAMAGED = [
    ('{"min_rows":"x"}', "min_rows must be an integer"),
    ('{"min_rows":0}', "min_rows = 0, and must be a whole number from 1 up"),
    ('{"labels":"bogus"}', "labels = 'bogus', and must be 'exact', 'noised' or 'never'"),
    ('{"labels":"Never"}', "labels = 'Never', and must be 'exact'"),
    ('{"predictions":"noised and secure_sum"}', "predictions = 'noised and secure_sum', and"),
    ('{"approval":"sometimes"}', "approval = 'sometimes', and must be 'always'"),
    ('{"kinds":["none"]}', r"kinds = \('none',\), and must be a list"),
    ('{"hours":"morning"}', "hours = 'morning', and must be the hours of a day"),
    ('{"lease":-1}', "lease = -1.0, and must be"),
    ('{"memory":0}', "memory = 0, and must be"),
    ('{"labels":null}', "labels must be text"),
    ('{"label":"never"}', "without a field label"),
]


def test_a_damaged_policy_allows_nothing(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic)
    for rules, said in DAMAGED:
        clinic.execute("UPDATE sqlfl.policies SET rules = ?", [rules])
        with pytest.raises(sqlfl.Error, match=rf"policy r in sqlfl\.policies is damaged.*{said}"):
            fed.sql(TRAIN)
    with sqlfl.owner(clinic) as owner:
        owner.sql("CREATE OR REPLACE TRAINING POLICY r")
    fed.sql(TRAIN)


def test_every_policy_that_can_be_made_is_read_again(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    rules = """min_rows = 7, min_cell = 2, min_difference = 3, max_parameter_ratio = 0.33,
      max_fan_out = 9, algorithms = ['lbfgs', 'sgd'], kinds = ['linear_regression'], delta = 1e-7,
      per = '30 days', lease = '1234567 seconds', seconds = 0.1, memory = '1.5GiB', threads = 2,
      folders = ['/a', '/b'], hours = '22:00-06:00', labels = 'NOISED', predictions = 'secure_sum',
      moments = 'never', metrics = 'never', into = 'out', approval = 'first_time', epsilon = 0.1"""
    with sqlfl.owner(clinic) as owner:
        owner.sql(f"CREATE TRAINING POLICY wide WITH ({rules})")
        told = owner.sql("SHOW POLICIES").arrow().to_pylist()
    assert [row["policy"] for row in told] == ["wide"]


# -- by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "select",
    [
        "SELECT i AS sqlfl_key_0_0 FROM range(1000000) AS r(i)",
        "SELECT pid + 600000000 AS sqlfl_key_0_0 FROM patients",
        "SELECT CAST(600000123 AS BIGINT) AS sqlfl_key_0_0",
        "SELECT row_number() OVER () AS sqlfl_key_0_0 FROM patients",
        "SELECT salary AS sqlfl_key_0_0 FROM patients",
        "SELECT pid AS sqlfl_key_0_0 FROM patients WHERE salary > 700",
        "SELECT pid AS sqlfl_key_0_0 FROM patients WHERE salary IS NOT NULL",
        "SELECT pid AS sqlfl_key_0_0 FROM patients WHERE salary = age",
        "SELECT pid AS sqlfl_key_0_0 FROM patients WHERE pid = 3",
        "SELECT pid AS sqlfl_key_0_0 FROM patients, sqlfl.grants",
        "SELECT CAST(length(content) AS BIGINT) AS sqlfl_key_0_0 FROM read_text('/etc/passwd')",
    ],
)
def test_no_dictionary_is_hashed(ask: Ask, select: str) -> None:
    reply = prepared(ask, select)
    assert isinstance(reply, ms.Failure)
    assert reply.error == "PolicyError"
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.Failure)


def test_keys_that_are_granted_are_hashed(ask: Ask) -> None:
    assert isinstance(prepared(ask, "SELECT pid AS sqlfl_key_0_0 FROM patients"), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)


@pytest.mark.parametrize(
    "select",
    ["SELECT * FROM sqlfl.secrets", "SELECT salary FROM patients", "SELECT nothing FROM patients",
     "FROM read_text('/etc/passwd')", "SELECT * FROM enable_logging(storage = 'file')"],
)  # fmt: skip
def test_nothing_is_told_at_planning(ask: Ask, select: str) -> None:
    reply = ask(ms.Describe("", -1, (select,)))
    assert isinstance(reply, ms.Failure)
    assert reply.error == "PolicyError"
    same = ask(ms.Describe("", -1, (select.replace("salary", "nothing"),)))
    assert isinstance(same, ms.Failure)
    assert same.text.replace("nothing", "salary") == reply.text.replace("nothing", "salary")


@pytest.mark.parametrize("listed", [True, False])
def test_what_a_text_read_holds_while_its_tables_are_the_same(
    listed: bool, ask: Ask, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that was let pass is remembered; whether it may pass now is asked each time."""
    if not listed:
        monkeypatch.setattr("sqlfl.governance.guard.LASTING", 0.0)
    granted = "SELECT pid, age, bmi, ward, days, ill FROM old"
    clinic.execute("ALTER TABLE patients RENAME TO old")
    clinic.execute(f"CREATE TABLE patients AS {granted}")
    text = "SELECT * FROM patients"
    for _ in range(2):
        if listed:
            ask(ms.ListTables("", -1))
        assert isinstance(ask(ms.Describe("", -1, (text,))), ms.Columns)
    clinic.execute("ALTER TABLE patients ADD COLUMN salary INTEGER")
    if listed:
        ask(ms.ListTables("", -1))
    assert "has columns that are not granted" in told(ask(ms.Describe("", -1, (text,))))
    clinic.execute("DROP TABLE patients")
    if listed:
        ask(ms.ListTables("", -1))
    assert "table patients is not granted" in told(ask(ms.Describe("", -1, (text,))))


def test_what_a_text_read_holds_while_the_same_is_granted(
    ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    text = "SELECT age FROM (SELECT age, days FROM patients) AS inside"
    assert isinstance(ask(ms.Describe("", -1, (text,))), ms.Columns)
    with sqlfl.owner(clinic) as owner:
        owner.sql("REVOKE LABEL ON patients FROM 'acme'")
    assert "column days is not granted" in told(ask(ms.Describe("", -1, (text,))))


def test_a_table_that_became_a_view_since_it_was_listed(
    ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    ask(ms.ListTables("", -1))
    clinic.execute("ALTER TABLE patients RENAME TO old")
    clinic.execute("CREATE VIEW patients AS SELECT * REPLACE (salary AS pid) FROM old")
    reply = prepared(ask, "SELECT pid AS sqlfl_key_0_0 FROM patients")
    assert "changed what is granted since" in told(reply)


def test_each_of_several_selects_is_checked(ask: Ask) -> None:
    first, second = "SELECT age, bmi FROM patients", "SELECT pid FROM patients"
    reply = ask(ms.Describe("", -1, (first, second)))
    assert isinstance(reply, ms.Columns)
    assert [[column.name for column in each] for each in reply.each()] == [["age", "bmi"], ["pid"]]
    for texts in (("SELECT salary FROM patients", first), (first, "SELECT salary FROM patients")):
        assert "column salary is not granted" in told(ask(ms.Describe("", -1, texts)))
    for texts in (("SELECT 1 AS one", first), (first, "SELECT 1 AS one")):
        assert "reads no table that is granted" in told(ask(ms.Describe("", -1, texts)))


def test_an_error_of_the_database_names_nothing_else(ask: Ask) -> None:
    reply = ask(ms.Describe("", -1, ("SELECT list_sum(age) AS n FROM patients",)))
    assert isinstance(reply, ms.Failure)
    assert "cannot bind what it was asked" in reply.text
    assert "salary" not in reply.text


def test_what_is_told_once_is_not_told_again(ask: Ask) -> None:
    select = "SELECT days AS sqlfl_target, pid AS sqlfl_key_0_0 FROM patients"
    slot = replace(SLOT, target=True)
    assert isinstance(prepared(ask, select, slot), ms.Prepared)
    some, ones = np.arange(100, dtype=np.uint32), np.ones(100, np.uint32)
    early = ask(ms.Activate("r", 0, some, ones, 100))
    assert isinstance(early, ms.Failure)
    assert early.text == "rows are told active before their join keys are asked for"
    ask(ms.Finish("r", -1))
    assert isinstance(prepared(ask, select, slot, run="s"), ms.Prepared)
    assert isinstance(ask(ms.SendKeys("s", 0)), ms.JoinKeys)
    assert isinstance(ask(ms.Activate("s", 0, some, ones, 100)), ms.Ready)
    assert isinstance(ask(ms.SendLabels("s", 0)), ms.Labels)
    for again in (ms.Activate("s", 0, some + 100, ones, 100), ms.SendLabels("s", 0)):
        reply = ask(again)
        assert isinstance(reply, ms.Failure)
        assert reply.text.startswith(f"message {again.kind} more than 1 times")
    ask(ms.Finish("s", -1))
    reply = prepared(ask, select, slot, run="s")
    assert isinstance(reply, ms.Failure)
    assert reply.text.startswith("a run of this name was there before")


def test_rows_of_a_few_are_not_activated(ask: Ask) -> None:
    prepared(ask, "SELECT pid AS sqlfl_key_0_0 FROM patients")
    ask(ms.SendKeys("r", 0))
    reply = ask(ms.Activate("r", 0, np.array([7], np.uint32), np.array([9], np.uint32), 9))
    assert isinstance(reply, ms.Failure)
    assert "min_rows = 5, of rows that are joined" in reply.text


def test_rows_are_drawn_by_what_is_granted(ask: Ask) -> None:
    slot = replace(SLOT, base=True, split=0.5)
    inner = "(SELECT pid, salary FROM patients) AS q"
    reply = prepared(ask, f"SELECT q AS sqlfl_base, q.pid AS sqlfl_key_0_0 FROM {inner}", slot)
    assert isinstance(reply, ms.Failure)
    assert reply.text.startswith("column salary is not granted")
    inner = inner.replace("salary", "age")
    reply = prepared(ask, f"SELECT q AS sqlfl_base, q.pid AS sqlfl_key_0_0 FROM {inner}", slot)
    assert isinstance(reply, ms.Prepared)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT age FROM (SELECT age, {} AS dead FROM patients) AS q",
        "SELECT age FROM (SELECT age, 1 + {} AS dead FROM patients) AS q",
        "WITH dead AS (SELECT {} FROM patients) SELECT age FROM patients",
        "SELECT age FROM (SELECT age FROM patients, (SELECT {} FROM patients LIMIT 0)) AS q",
        "SELECT age FROM (SELECT age, (SELECT max(p.{}) FROM patients p) AS dead FROM patients)",
        "SELECT age FROM (SELECT q.{} AS dead, age FROM (FROM patients) AS q)",
        "SELECT a.age FROM patients AS a JOIN patients AS b USING (pid, {})",
        "SELECT age FROM (SELECT * EXCLUDE ({}) FROM patients)",
        "SELECT age FROM (SELECT * REPLACE (1 AS {}) FROM patients)",
        "SELECT * EXCLUDE ({}) FROM (SELECT age, bmi FROM patients)",
    ],
)
def test_which_columns_there_are_is_not_told(ask: Ask, text: str) -> None:
    """Also not where nothing comes of them."""
    told = set()
    for name in ("salary", "nothing"):
        reply = ask(ms.Describe("", -1, (text.format(name),)))
        assert isinstance(reply, ms.Failure)
        told.add((reply.error, reply.text.replace(name, "x")))
        slot = replace(SLOT, features=(FeatureSpecification("age", "numeric"),), keys=())
        assert isinstance(prepared(ask, text.format(name), slot), ms.Failure)
    assert len(told) == 1
    assert "column x is not granted" in told.pop()[1]
    assert isinstance(ask(ms.Describe("", -1, (text.format("bmi"),))), ms.Columns)


def test_a_run_has_not_too_many_fragments(ask: Ask) -> None:
    slot = replace(SLOT, fragments=tuple(range(257)))
    texts = ("SELECT pid AS sqlfl_key_0_0 FROM patients",) * 257
    reply = prepared(ask, texts, slot)
    assert isinstance(reply, ms.Failure)
    assert reply.text == "257 fragments; 256 are taken"


def feature(name: str) -> FeatureSpecification:
    return FeatureSpecification(name, "numeric")


def test_what_an_output_is_for_follows_from_its_place(ask: Ask) -> None:
    """Features may be called like what has another role."""
    named = (feature("sqlfl_key_0_0"), feature("sqlfl_target"), feature("sqlfl_base"))
    slot = replace(SLOT, features=named, target=True)
    ends = "pid AS sqlfl_key_0_0 FROM patients"
    own = "age AS sqlfl_key_0_0, age AS sqlfl_target, bmi AS sqlfl_base"
    for select, said in (
        (f"SELECT {own}, age AS sqlfl_target, {ends}", "age of main.patients is not granted to"),
        (f"SELECT {own}, days AS sqlfl_target, age + 6000 AS {ends[7:]}", "a join key is to be"),
        (f"SELECT {own}, days AS sqlfl_target, pid AS a, {ends}", "a fragment of 6 columns, of 5"),
        (f"SELECT {own.replace('bmi', 'pid')}, days AS sqlfl_target, {ends}", "pid of main.patie"),
    ):
        reply = prepared(ask, select, slot)
        assert isinstance(reply, ms.Failure)
        assert said in reply.text
    assert isinstance(
        prepared(ask, f"SELECT {own}, days AS sqlfl_target, {ends}", slot), ms.Prepared
    )


@pytest.mark.parametrize(
    "select",
    [
        "SELECT p FROM patients AS p",
        "SELECT * FROM patients",
        "SELECT * FROM (FROM patients)",
        "SELECT p.* EXCLUDE (age) FROM patients AS p",
        "SELECT hash(patients) AS f FROM patients",
        "SELECT age FROM patients AS p WHERE p IS NOT NULL",
        "SELECT age FROM patients QUALIFY row_number() OVER (PARTITION BY patients) = 1",
        "SELECT a.age FROM patients AS a JOIN patients AS b ON a = b",
    ],
)
def test_a_whole_row_is_not_described(ask: Ask, select: str) -> None:
    """Nor does the refusal name, or count, the columns that are not granted."""
    reply = ask(ms.Describe("", -1, (select,)))
    assert isinstance(reply, ms.Failure)
    assert reply.text.startswith("a whole row of main.patients has columns that are not granted")
    reply = prepared(ask, select, replace(SLOT, features=(feature("age"),), keys=()))
    assert isinstance(reply, ms.Failure)
    for word in ("salary", "a fragment of"):
        assert word not in reply.text
