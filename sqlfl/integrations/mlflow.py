"""Runs of MLflow from models: `pip install 'sqlfl[mlflow]'`.

`log_model(fed, "delay", folder="delay_export")` logs a model and what EXPORT MODEL has written.
"""

from __future__ import annotations

import os
from typing import Any

from sqlfl.base.errors import Error
from sqlfl.federation.statements_api import StatementsApi
from sqlfl.options.types import shown

try:
    import mlflow
except ImportError as error:
    raise Error(
        "sqlfl.integrations.mlflow needs MLflow", hint="pip install 'sqlfl[mlflow]'"
    ) from error

MAX_PARAMETER_CHARACTERS = 6000
"""Characters of a parameter's value that MLflow takes."""


def log_model(
    fed: StatementsApi, name: str, *, folder: str | os.PathLike[str] | None = None
) -> str:
    """Log the model of that name to MLflow's active run, or else to one of its own.

    Options become parameters, metrics metrics, the rows of the history metrics by epoch; statement,
    card and privacy report become text artifacts. No weight is asked for: `folder`, what EXPORT
    MODEL has written, is logged as the artifact `model` where it is given, with all that is in it.

    Returns the run's id. Raise ModelError where there is no such model.
    """
    model = fed.model(name)
    active = mlflow.active_run()
    run = active if active is not None else mlflow.start_run(run_name=model.name)
    try:
        told = {"kind": model.kind, "target": model.target, "algorithm": model.algorithm}
        options = {
            key: shown(value)[:MAX_PARAMETER_CHARACTERS] for key, value in model.options.items()
        }
        mlflow.log_params(told | options)
        mlflow.set_tags({"sqlfl.model": model.name, "sqlfl.privacy": model.privacy.short})
        measured = {k: float(v) for k, v in model.metrics.items() if v is not None}
        mlflow.log_metrics(measured | {"seconds": model.cost.seconds})
        for row in model.history.to_pylist():
            numbers = {k: float(v) for k, v in row.items() if v is not None and k != "epoch"}
            history: dict[str, Any] = {f"history_{k}": v for k, v in numbers.items()}
            mlflow.log_metrics(history, step=row["epoch"])
        mlflow.log_text(model.sql, "statement.sql")
        mlflow.log_text(str(fed.sql(_described(model.name))), "card.txt")
        mlflow.log_text(str(model.privacy), "privacy.txt")
        if folder is not None:
            mlflow.log_artifacts(os.fspath(folder), "model")
    except BaseException:
        if active is None:
            mlflow.end_run("FAILED")
        raise
    if active is None:
        mlflow.end_run()
    return str(run.info.run_id)


def _described(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'DESCRIBE MODEL "{quoted}"'
