"""Linear reconstruction of features from what the coordinator sees of a slot of two clients.

The clients of a shared slot make each step from the sum of their partial gradients, which the
coordinator forms: it can make the same steps, and so knows θ. Predictions are X̃θ, row by row; as
many of them as there are columns give X̃.
"""

from __future__ import annotations

import numpy as np

from sqlfl.messages import Message
from tests.conftest import Open
from tests.federations import Parties
from tests.privacy.capturing import View

Array = np.ndarray

ROWS, COLUMNS = 600, 3
"""Of bank.people, in two databases with half of them each."""
BOUND = 3.0
"""All features are between -BOUND and BOUND, which is public."""
L2 = 1e-4
"""The default of the option l2."""


def features(seed: int = 7) -> Array:
    """(600, 3), correlated."""
    x = np.random.default_rng(seed).normal(size=(ROWS, COLUMNS)) * [1.0, 0.8, 1.2]
    x[:, 1] += 0.6 * x[:, 0]
    return np.clip(x, -BOUND, BOUND)


def labels(x: Array) -> Array:
    """(600,), no two alike."""
    return x @ [0.7, -1.0, 0.4] + np.random.default_rng(8).normal(size=len(x))


def tables(database: Open, x: Array) -> Parties:
    """bank.people with the features, clinic.visits with a label of each."""
    banks = []
    for part in np.split(np.arange(ROWS), 2):
        rows = ", ".join(str((int(i), *map(float, x[i]))) for i in part)
        banks.append(
            database(
                "CREATE TABLE people (id INTEGER, a DOUBLE, b DOUBLE, c DOUBLE)",
                f"INSERT INTO people VALUES {rows}",
            )
        )
    rows = ", ".join(str((i, float(y))) for i, y in enumerate(labels(x)))
    clinic = database(
        "CREATE TABLE visits (id INTEGER, y DOUBLE)", f"INSERT INTO visits VALUES {rows}"
    )
    return {"bank": banks, "clinic": [clinic]}


def train(options: str, privacy: str = "") -> str:
    return f"""
        TRAIN MODEL m USING linear_regression TARGET y
        WITH (algorithm = 'sgd', {options}) {privacy}
        FROM (SELECT p.a, p.b, p.c, v.y FROM bank.people p JOIN clinic.visits v USING (id))"""


def followed(view: View) -> Array:
    """θ before each of the predictions that came back: (rounds, 3)."""
    theta = np.zeros((COLUMNS, 1))
    found = []
    steps = view.of("residuals", "down", "bank", 0)
    sums = view.of("sum_gradient", "down", "bank", 0)[: len(steps)]  # then one may be measured
    for step, total in zip(steps, sums, strict=True):
        rate, batch, whole = (array(step, name) for name in ("rate", "divisor", "whole"))
        assert whole == 1
        theta = theta - rate * (array(total, "values") / batch + L2 * theta)
        found.append(theta[:, 0])
    return np.array(found)


def predictions(view: View) -> Array:
    """Of the first client's rows: float64 (rows, rounds)."""
    steps = view.of("residuals", "down", "bank", 0)
    sent = view.of("predictions", "up", "bank", 0)[: len(steps)]
    return np.hstack([array(message, "values") for message in sent]).astype(np.float64)


def encoded(view: View, noise: float = 0.0) -> Array:
    """The encoded features X̃ of the first client's rows: (rows, 3).

    noise: standard deviation of the predictions' noise over the spread of X̃. This is the best
    linear estimate of rows of that spread; without noise the plain solution.
    """
    theta, seen = followed(view), predictions(view)
    assert len(theta) == seen.shape[1]
    if not noise:
        return np.linalg.lstsq(theta, seen.T)[0].T
    return np.linalg.solve(theta.T @ theta + noise**2 * np.eye(COLUMNS), theta.T @ seen.T).T


def rounding(view: View) -> float:
    """What float32 can do to `encoded` without noise: of each prediction half a unit in the last
    place, over the least that a row moves them by."""
    theta, seen = followed(view), predictions(view)
    ulp = np.spacing(np.float32(np.abs(seen).max()))
    return float(np.sqrt(len(theta)) * ulp / 2 / np.linalg.svd(theta)[1].min())


def noise_of(view: View) -> float:
    """Standard deviation of the predictions' noise, as the first client tells it after the run."""
    (told,) = view.of("releases", "up", "bank", 0)
    return float(array(told, "prediction_noise"))


def owners(view: View, y: Array) -> Array:
    """Whose each of the first client's rows is, by the label that it is joined with.

    The coordinator can tell that much: labels come in clear.
    """
    (bank,), (clinic,) = view.of("join_keys", "up", "bank", 0), view.of("join_keys", "up", "clinic")
    (sent,) = view.of("labels", "up", "clinic")
    known = {float(value): i for i, value in enumerate(y)}
    label = dict(zip(_row_tags(clinic), array(sent, "values"), strict=True))
    return np.array([known[label[tag]] for tag in _row_tags(bank)])


def array(message: Message, name: str) -> Array:
    return np.asarray(getattr(message, name))


def _row_tags(message: Message) -> list[bytes]:
    """The tag of every row, in the order of row ids; all rows are joined."""
    (tags,), (codes,) = message.tags, message.codes
    return [tags[code].tobytes() for code in codes]
