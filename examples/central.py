"""What the demo compares with: scikit-learn on the join, in one database with all the tables."""

from collections.abc import Mapping

import duckdb
import pyarrow as pa
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

L2 = 1e-4  # the default of sqlfl's option l2


def train_centrally(tables: Mapping[str, str], query: str) -> tuple[dict[str, float], pa.Table]:
    """Metrics on the rows with a label, and the probability `p` of every `id`.

    tables : schema.table -> SELECT of its rows; query : gives `id`, features and the label `late`.
    """
    with duckdb.connect() as con:
        for name, rows in tables.items():
            con.execute(f"CREATE SCHEMA {name.split('.')[0]}; CREATE TABLE {name} AS {rows}")
        table = con.sql(query).df()
    known = table[table["late"].notna()]
    late = known["late"].astype(bool)

    texts = table.select_dtypes(exclude=["number", "boolean"]).columns
    numbers = table.columns.difference([*texts, "id", "late"])
    numeric = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encoder = make_column_transformer((numeric, numbers), (OneHotEncoder(), texts))
    # scikit-learn sums the loss where sqlfl takes its mean
    regression = LogisticRegression(C=1 / (L2 * len(known)), solver="newton-cholesky", tol=1e-9)
    model = make_pipeline(encoder, regression).fit(known, late)

    p = model.predict_proba(known)[:, 1]
    metrics = {
        "accuracy": float(accuracy_score(late, p > 0.5)),
        "auc": float(roc_auc_score(late, p)),
        "log_loss": float(log_loss(late, p)),
    }
    return metrics, pa.table({"id": table["id"], "p": model.predict_proba(table)[:, 1]})
