"""Where PyTorch, or the device, is missing: said before anything has left a party."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sqlfl
from tests.conftest import Open
from tests.depth import THOROUGH

ROOT = Path(__file__).parents[2]
TABLE = "CREATE TABLE t AS SELECT range AS k, range % 3 AS x, 1.0 * range AS y FROM range(9)"
PARTIES = "abcdef"
QUERY = (
    f"SELECT {', '.join(f'{p}.x AS {p}' for p in PARTIES)}, a.y FROM a.t AS a "
    + " ".join(f"JOIN {p}.t AS {p} USING (k)" for p in PARTIES[1:])
)  # fmt: skip
TRAIN = f"TRAIN MODEL m USING mlp_regressor TARGET y WITH (device = '%s') FROM ({QUERY})"

ATTEMPTS = 20 if THOROUGH else 2
CODE = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, Missing())

import duckdb, logging, sqlfl

logging.basicConfig(level=logging.ERROR, stream=sys.stdout)
with sqlfl.connect(progress=False) as fed:
    for party in {PARTIES!r}:
        con = duckdb.connect()
        con.execute({TABLE!r})
        fed.attach(party, con)
    for _ in range({ATTEMPTS}):  # all clients fail at once, in threads
        try:
            fed.sql({TRAIN % "auto"!r})
        except sqlfl.PartyError as error:
            print(error)
    print(sorted({{row[6] for row in fed.audit().fetchall() if row[2] is not None}}))
"""


def test_a_party_without_torch_says_so_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    said = (
        "party a/0: neural towers are trained with PyTorch, which cannot be imported here\n"
        "hint: pip install 'sqlfl[neural]' at this party\n"
    )
    assert done.stdout == ATTEMPTS * said + "['drop', 'failure', 'finish', 'prepare', 'ready']\n"


SMALL = """
import sys, duckdb, sqlfl
with sqlfl.connect(progress=False) as fed:
    con = duckdb.connect()
    con.execute(%r)
    fed.attach("a", con)
    fed.sql("TRAIN MODEL m USING mlp_regressor TARGET y WITH (%s) FROM (SELECT x, y FROM a.t)")
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("options", ["epochs = 1", "epochs = 1, dropout = 0.5"])
def test_only_towers_that_are_not_for_numpy_load_torch(options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMALL % (TABLE, options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{'dropout' in options}\n"


def test_a_party_without_opacus_says_so_first(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where features are protected; labels alone need none."""
    for module in [m for m in sys.modules if m.split(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "sqlfl.models.per_row", raising=False)
    monkeypatch.setitem(sys.modules, "opacus", None)
    query = "SELECT a.x AS a, b.x AS b, a.y FROM a.t AS a JOIN b.t AS b USING (k)"
    train = "TRAIN MODEL m USING mlp_regressor TARGET y WITH (epochs = 1) PRIVACY (%s) FROM (%s)"
    with sqlfl.connect(progress=False) as fed:
        for party in PARTIES[:2]:
            fed.attach(party, database(TABLE))
        with pytest.raises(
            sqlfl.PartyError, match=r"Opacus.*\nhint: pip install 'sqlfl\[neural\]'"
        ):
            fed.sql(train % ("noise_multiplier = 1, statistics = 'none'", query))
        kinds = {row[6] for row in fed.audit().fetchall() if row[2] is not None}
        assert kinds.isdisjoint({"prepared", "join_keys", "labels"})
        fed.sql(train % ("label_epsilon = 1, label_bounds = [0, 8]", query))


def test_a_party_without_the_device_says_so_first(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with sqlfl.connect(progress=False) as fed:
        for party in PARTIES:
            fed.attach(party, database(TABLE))
        with pytest.raises(sqlfl.PartyError, match="finds no CUDA device here"):
            fed.sql(TRAIN % "cuda")
        kinds = {row[6] for row in fed.audit().fetchall() if row[2] is not None}
        assert kinds.isdisjoint({"prepared", "join_keys", "labels"})
