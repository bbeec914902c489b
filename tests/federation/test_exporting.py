"""EXPORT MODEL and IMPORT MODEL: files beside what the party computes, in onnxruntime and in a
DuckDB without sqlfl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import onnxruntime
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.udfs.blocks.block_files import NULL_TEXT
from tests.clinic import PLACES, QUERY, VISITS, clinics, predicted
from tests.conftest import Open
from tests.depth import in_turn
from tests.federations import federation
from tests.open_databases import in_memory

PATIENTS = """
CREATE TABLE patients AS SELECT i AS id, i % 9 AS place,
  CASE WHEN i % 5 = 0 THEN NULL WHEN i % 31 = 0 THEN 'nan'::DOUBLE
    ELSE (i * 37 % 23) / 7.0 END AS age,
  ['u', 'v', NULL, 'NULL', '', 'it''s', 'ü"'][1 + i % 7] AS ward, (i * 13 % 17)::DOUBLE AS size,
  CASE WHEN i % 11 = 0 THEN NULL ELSE [i % 3, i % 4, i % 5]::DOUBLE[3] END AS scan,
  i % 2 = 0 AS old,
  (DATE '2020-01-01' + (i % 6)::INTEGER)::VARCHAR AS day,
  (i * 7919 % 101) / 10.0 + 0.1 AS cost, ['a', 'b', 'c'][1 + (i * 7919 % 101) % 3] AS class,
  (i * 7919 % 101) % 2 = 0 AS ill
FROM range(200) r(i)
"""
TARGETS = {"cost": "linear_regression", "class": "softmax_regression", "ill": "logistic_regression"}
COLUMNS = "p.id, p.age, p.ward, p.size, p.scan, p.old, p.day, s.size AS beds, s.sort"
JOINED = "FROM clinic.patients p LEFT JOIN geo.places s ON p.place = s.place AND s.place < 7"
FITTED = (
    "TRANSFORM (spline(age, 4, 2), quantile_bucketize(size, 4), one_hot(ward, max => 3), "
    "log1p(id) AS l, polynomial(age, size, 2), impute(day, 'most_frequent'), scan, old, "
    "minmax(beds), one_hot(sort))"
)
FILLED = (
    "TRANSFORM (impute(age, 'median'), impute(ward, 'most_frequent'), robust_scale(size), scan, "
    "old, bucketize(id, [50, 100]), cross(ward, day), standardize(beds), hash_bucket(sort, 3))"
)


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    with federation({"clinic": [database(PATIENTS)], "geo": [database(PLACES)]}) as made:
        yield made


def train(fed: sqlfl.Federation, kind: str, target: str, clauses: str = "") -> str:
    query = f"SELECT {COLUMNS}, p.{target} {JOINED}"
    fed.sql(f"TRAIN OR REPLACE MODEL m USING {kind} TARGET {target} {clauses} FROM ({query})")
    return query


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def rows_of(fed: sqlfl.Federation, query: str) -> pa.Table:
    """The joined rows themselves, by their ids: EXPORT's user has them where the parties' are."""
    with in_memory() as whole:
        for party in ("clinic", "geo"):
            whole.execute(f"ATTACH ':memory:' AS {party}")
        whole.execute(PATIENTS.replace("CREATE TABLE patients", "CREATE TABLE clinic.patients"))
        whole.execute(PLACES.replace("CREATE TABLE places", "CREATE TABLE geo.places"))
        return whole.sql(f"FROM ({query}) ORDER BY id").to_arrow_table()


def in_duckdb(folder: Path, rows: pa.Table) -> pa.Table:
    """Predictions by the exported SQL alone."""
    found = manifest(folder)
    parts = []
    with in_memory() as bare:
        for block in found["blocks"]:
            bare.execute((folder / block["files"]["sql"]).read_text())
            arguments = ", ".join(f'"{name}"' for name in block["arguments"])
            parts.append(f'"m_{block["table"]}"({arguments})')
        bare.execute((folder / "prediction.sql").read_text())
        bare.register("joined", rows)
        chances = ", m_probabilities(parts) AS chances" if found["model"]["classes"] else ""
        return bare.sql(
            f"SELECT m_prediction(parts) AS prediction{chances} "
            f"FROM (SELECT [{', '.join(parts)}] AS parts FROM joined)"
        ).to_arrow_table()


def in_onnxruntime(folder: Path, rows: pa.Table) -> dict[str, np.ndarray]:
    """Predictions by the exported ONNX graphs, features made of columns by the manifest's SQL."""
    found = manifest(folder)
    total: np.ndarray | float = 0.0
    with in_memory() as bare:
        bare.register("joined", rows)
        for block in found["blocks"]:
            feed = {}
            for told in block["inputs"]:
                name, width = told["name"], told["width"]
                made = told.get("made_of", f'"{name}"')
                kind = {"category": "VARCHAR", "array": f"DOUBLE[{width}]"}.get(
                    told["type"], "DOUBLE"
                )
                values = bare.sql(f"SELECT ({made})::{kind} FROM joined").fetchall()
                if kind == "VARCHAR":
                    texts = [NULL_TEXT if v is None else v for (v,) in values]
                    feed[name] = np.array(texts, object)
                elif kind == "DOUBLE":
                    feed[name] = np.array([np.nan if v is None else v for (v,) in values])
                else:
                    missing = (np.nan,) * width
                    feed[name] = np.array([missing if v is None else v for (v,) in values])
            graph = onnxruntime.InferenceSession(folder / block["files"]["onnx"])
            (part,) = graph.run(["h"], feed)
            total = total + part
    joining = onnxruntime.InferenceSession(folder / "prediction.onnx")
    names = [output.name for output in joining.get_outputs()]
    return dict(zip(names, joining.run(names, {"h": total}), strict=True))


@pytest.mark.parametrize(("target", "clauses"), in_turn(TARGETS, ("", FITTED, FILLED), each=2))
def test_files_predict_what_parties_do(
    fed: sqlfl.Federation, tmp_path: Path, target: str, clauses: str
) -> None:
    check(fed, tmp_path / "m", TARGETS[target], target, clauses)


@pytest.mark.parametrize(
    ("kind", "target", "clauses"),
    [
        ("gamma_regression", "cost", ""),
        ("lasso", "cost", "WITH (radius = 0.5, epochs = 50)"),
        ("quantile_regression", "cost", "WITH (quantile = 0.7)"),
        ("linear_regression", "cost", "PRIVACY (noise_multiplier = 0.1, clip = 1, delta = 1e-5, "
         "feature_bounds = {'age': [0, 3], 'size': [0, 20], 'id': [0, 200], 'scan': [0, 4], "
         "'old': [0, 1], 'beds': [0, 6], 'ward': ['u', 'v'], 'day': ['2020-01-01'], "
         "'sort': ['s', 't']})"),
        ("mlp_regressor", "cost", "WITH (hidden = [6], epochs = 2, activation = 'relu')"),
        ("mlp_poisson_regressor", "cost", "WITH (hidden = [4], epochs = 2)"),
        ("mlp_classifier", "class", "WITH (hidden = [6, 4], epochs = 2, activation = 'tanh')"),
        ("mlp_classifier", "ill", "WITH (hidden = [4], epochs = 2, activation = 'tanh', "
         "head = 'linear', embedding = 3)"),
    ],
    ids=["gamma", "lasso", "quantile", "limits", "relu", "counts", "tanh", "head"],
)  # fmt: skip
def test_other_kinds_do_too(
    fed: sqlfl.Federation, tmp_path: Path, kind: str, target: str, clauses: str
) -> None:
    check(fed, tmp_path / "m", kind, target, clauses)


def check(fed: sqlfl.Federation, folder: Path, kind: str, target: str, clauses: str) -> None:
    query = train(fed, kind, target, clauses)
    told = fed.sql(f"EXPORT MODEL m TO '{folder}'").arrow()
    assert None not in told.column("file").to_pylist()
    known = fed.sql(f"PREDICT MODEL m ID (clinic.patients.id) FROM ({query})").arrow()
    known = known.sort_by("id")
    rows = rows_of(fed, query)
    sql, graph = in_duckdb(folder, rows), in_onnxruntime(folder, rows)
    # what crosses a border is of 4 bytes
    if fed.model("m").classes is None:
        values = known.column("prediction").to_numpy()
        own = sql.column("prediction").to_numpy()
        np.testing.assert_allclose(own, values, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(graph["prediction"][:, 0], values, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(graph["prediction"][:, 0], own, rtol=1e-10, atol=1e-10)
        return
    names = [name for name in known.column_names if name.startswith("probability_")]
    chances = np.column_stack([known.column(name).to_numpy() for name in names])
    np.testing.assert_allclose(np.array(sql.column("chances").to_pylist()), chances, atol=1e-5)
    np.testing.assert_allclose(graph["probabilities"], chances, atol=1e-5)
    sure = np.sort(chances, axis=1)
    clear = sure[:, -1] - sure[:, -2] > 1e-4
    assert clear.sum() > 100
    given = np.array(known.column("prediction").to_pylist())
    assert sql.column("prediction").type == known.column("prediction").type
    assert (np.array(sql.column("prediction").to_pylist())[clear] == given[clear]).all()
    texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in given.tolist()]
    assert (graph["prediction"][clear] == np.array(texts)[clear]).all()


def test_categories_of_several_databases_are_hashes_in_sql_and_no_onnx(
    database: Open, tmp_path: Path
) -> None:
    query = QUERY.format(target="v.n", more="")
    with federation(clinics(database)) as fed:
        fed.sql(f"TRAIN MODEL m USING poisson_regression TARGET n FROM ({query})")
        told = fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}'").arrow().to_pylist()
        (none,) = (row for row in told if row["file"] is None)
        assert (none["part"], none["format"]) == ("clinic: v", "onnx")
        assert "hashes" in none["note"]
        known = predicted(fed, query)
        block = next(b for b in manifest(tmp_path / "m")["blocks"] if b["party"] == "clinic")
        assert "'u'" not in (tmp_path / "m" / block["files"]["sql"]).read_text()
    with in_memory() as whole:
        whole.execute(VISITS.replace(" WHERE i % 2 = {half}", ""))
        whole.execute(PLACES)
        flat = query.replace("clinic.", "").replace("geo.", "").replace("SELECT", "SELECT v.id,", 1)
        rows = whole.sql(f"FROM ({flat}) ORDER BY id").to_arrow_table()
    found = in_duckdb(tmp_path / "m", rows).column("prediction").to_numpy()
    np.testing.assert_allclose(found, known, rtol=1e-5)


def test_gelu_is_written_as_onnx_alone(fed: sqlfl.Federation, tmp_path: Path) -> None:
    query = train(
        fed, "mlp_regressor", "cost", "WITH (hidden = [4], epochs = 1, activation = 'gelu')"
    )
    told = fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}'").arrow().to_pylist()
    without = [row["format"] for row in told if row["file"] is None]
    assert without == ["sql", "sql"]
    known = fed.sql(f"PREDICT MODEL m ID (clinic.patients.id) FROM ({query})").arrow().sort_by("id")
    found = in_onnxruntime(tmp_path / "m", rows_of(fed, query))["prediction"][:, 0]
    np.testing.assert_allclose(found, known.column("prediction").to_numpy(), atol=1e-4)


def test_infinite_numbers_are_an_error_in_sql(fed: sqlfl.Federation, tmp_path: Path) -> None:
    train(fed, "linear_regression", "cost")
    fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = 'sql')")
    with in_memory() as bare:
        bare.execute((tmp_path / "m/clinic/p.sql").read_text())
        scored = (
            "SELECT m_p(id := 1, age := {age}, ward := 'u', size := 1, scan := NULL, old := true, "
            "day := NULL)"
        )
        ((found,),) = bare.sql(scored.format(age=1)).fetchall()
        assert np.isfinite(found)
        with pytest.raises(duckdb.Error, match="column age has infinite values"):
            bare.sql(scored.format(age="'inf'::DOUBLE")).fetchall()


@pytest.mark.parametrize(
    "clauses", [FITTED, "WITH (hidden = [4], epochs = 1)"], ids=["linear", "mlp"]
)
def test_what_is_imported_predicts_the_same_and_lasts(
    database: Open, tmp_path: Path, clauses: str
) -> None:
    kind = "mlp_regressor" if "hidden" in clauses else "linear_regression"
    with federation({"clinic": [database(PATIENTS)], "geo": [database(PLACES)]}) as fed:
        query = train(fed, kind, "cost", clauses)
        predict = f"PREDICT MODEL {{}} ID (clinic.patients.id) FROM ({query})"
        known = fed.sql(predict.format("m")).arrow().sort_by("id")
        fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}'")
    for name, table in (("clinic", PATIENTS), ("geo", PLACES)):
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as con:
            con.execute(table)

    def attached() -> sqlfl.Federation:
        made = sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False)
        for name in ("clinic", "geo"):
            made.attach(name, str(tmp_path / f"{name}.duckdb"))
        return made

    with attached() as fed:
        card = fed.sql(f"IMPORT MODEL copy FROM '{tmp_path / 'm'}'")
        assert "copy" in str(card)
        assert fed.model("copy").lasting
        assert fed.sql(predict.format("copy")).arrow().sort_by("id").equals(known)
        with pytest.raises(sqlfl.ModelError, match="there is a model copy already"):
            fed.sql(f"IMPORT MODEL copy FROM '{tmp_path / 'm'}'")
        fed.sql(f"IMPORT OR REPLACE MODEL copy FROM '{tmp_path / 'm'}'")
    with attached() as fed:
        assert fed.sql(predict.format("copy")).arrow().sort_by("id").equals(known)
        assert fed.model("copy").history.num_rows > 0
        fed.sql("DROP MODEL copy")
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as con:
        assert (
            con.sql(
                "FROM duckdb_schemas() SELECT schema_name WHERE schema_name = 'sqlfl'"
            ).fetchall()
            == []
        )


def test_what_is_damaged_is_not_imported(fed: sqlfl.Federation, tmp_path: Path) -> None:
    train(fed, "linear_regression", "cost")
    folder = tmp_path / "m"
    fed.sql(f"EXPORT MODEL m TO '{folder}'")
    fed.sql("DROP MODEL m")
    importing = f"IMPORT MODEL m FROM '{folder}'"
    block = folder / "clinic/p.safetensors"
    data = block.read_bytes()
    block.write_bytes(data[:-8] + bytes(8))
    with pytest.raises(
        sqlfl.Error, match=r"damaged: clinic/p\.safetensors is not what was written"
    ):
        fed.sql(importing)
    block.unlink()
    with pytest.raises(sqlfl.Error, match="damaged"):
        fed.sql(importing)
    block.write_bytes(data)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(
        text.replace('"clinic/p.safetensors"', '"../p.safetensors"')
    )
    with pytest.raises(sqlfl.Error, match="outside"):
        fed.sql(importing)
    (folder / "manifest.json").write_text(text.replace('"sqlfl_export": 1', '"sqlfl_export": 2'))
    with pytest.raises(sqlfl.Error, match="newer sqlfl"):
        fed.sql(importing)
    (folder / "manifest.json").write_text(text[:100])
    with pytest.raises(sqlfl.Error, match=r"its manifest\.json cannot be read"):
        fed.sql(importing)
    (folder / "manifest.json").write_text(text)
    fed.sql(importing)
    assert fed.model("m").name == "m"


def test_mistakes_are_told_and_leave_nothing(fed: sqlfl.Federation, tmp_path: Path) -> None:
    train(fed, "linear_regression", "cost")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").touch()
    for text, words in {
        f"EXPORT MODEL m TO '{tmp_path / 'there'}'": "is there already",
        f"EXPORT MODEL m TO '{tmp_path / 'no/m'}'": "there is no folder",
        "EXPORT MODEL m TO folder": "expected a folder in single quotes, got folder",
        f"EXPORT MODEL n TO '{tmp_path / 'm'}'": "there is no model n",
        f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = ['onx'])": "must be a list of",
        f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (format = 'sql')": "did you mean formats",
        f"IMPORT MODEL n FROM '{tmp_path / 'there'}'": "is no folder that EXPORT MODEL has written",
        f"EXPLAIN EXPORT MODEL m TO '{tmp_path / 'm'}'": "after EXPLAIN",
    }.items():
        with pytest.raises(sqlfl.Error, match=words):
            fed.sql(text)
    fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'sql'}' WITH (formats = 'sql')")
    with pytest.raises(sqlfl.Error, match="has no safetensors"):
        fed.sql(f"IMPORT MODEL n FROM '{tmp_path / 'sql'}'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sql", "there"]
    with federation({}) as other:
        fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}'")
        with pytest.raises(sqlfl.ModelError, match="clinic/0, geo/0, where nothing is attached"):
            other.sql(f"IMPORT MODEL n FROM '{tmp_path / 'm'}'")


def test_files_are_their_owners_alone_and_no_message_carries_a_block(
    fed: sqlfl.Federation, tmp_path: Path
) -> None:
    train(fed, "linear_regression", "cost")
    before = fed.audit().arrow().num_rows
    fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}'")
    assert fed.audit().arrow().num_rows == before
    for path in (tmp_path / "m").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_run_of_mlflow_has_the_model(
    fed: sqlfl.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    from sqlfl.integrations.mlflow import log_model

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path / 'runs'}")
    train(fed, "logistic_regression", "ill", "WITH (l2 = 0.01)")
    fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = 'sql')")
    run = mlflow.get_run(log_model(fed, "m", folder=tmp_path / "m"))
    model = fed.model("m")
    assert run.info.status == "FINISHED"
    assert run.data.params["l2"] == "0.01"
    assert run.data.metrics["accuracy"] == model.metrics["accuracy"]
    client = mlflow.MlflowClient()
    told = client.get_metric_history(run.info.run_id, "history_train_loss")
    assert [m.value for m in told] == model.history.column("train_loss").to_pylist()
    assert {a.path for a in client.list_artifacts(run.info.run_id)} >= {"model", "card.txt"}
    with mlflow.start_run() as own:
        assert log_model(fed, "m") == own.info.run_id
        assert mlflow.active_run() is not None
