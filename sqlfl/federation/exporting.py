"""EXPORT MODEL and IMPORT MODEL: a folder with each party's blocks, and what joins them.

```
manifest.json              what there is, and the model as the coordinator knows it
history.arrow
prediction.sql, .onnx      from the parts of a row to its prediction
<party>/<table>.safetensors, .onnx, .sql
```

No message carries a block: each is written, and read, by the party, which is in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import Error, ModelError, PolicyError
from sqlfl.base.result import Result
from sqlfl.contract.schema import Client
from sqlfl.databases.files import PRIVATE, to_path
from sqlfl.federation.saving import Saving
from sqlfl.models.kinds import kind_of
from sqlfl.options.diagnostics import resolve_export
from sqlfl.planner.grammar.statements import ExportModel, ImportModel
from sqlfl.store.model_document import history_to_bytes, model_from, model_to_json
from sqlfl.store.registry import Model, ModelBlock, card
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_files import NULL_TEXT, Graph, block_files, block_from_safetensors
from sqlfl.udfs.blocks.block_sql import arguments_of, bound, double, element, inner, macro
from sqlfl.udfs.blocks.blocks import SavedBlock

MANIFEST, HISTORY = "manifest.json", "history.arrow"
VERSION = 1
"""Version of the folder's format."""
LOADED = "safetensors"
"""The format that IMPORT reads."""
SCHEMA = pa.schema([(name, pa.string()) for name in ("part", "format", "file", "note")])


def exported(statement: ExportModel, saving: Saving, holders: Mapping[Client, Holder]) -> Result:
    """Run EXPORT MODEL; see `export_model`."""
    formats = resolve_export(statement.options, statement.sql).formats
    with saving.held(statement.name) as model:
        saving.check_here(model)
        away = sorted(str(client) for client in model.clients if client not in holders)
        if away:
            raise ModelError(
                f"model {model.name} has parts at {', '.join(away)}, whose databases are elsewhere",
                hint="a folder has all parts of a model: all its parties must be attached here",
            )
        return export_model(model, statement.folder, formats, holders)


def imported(statement: ImportModel, saving: Saving, holders: Mapping[Client, Holder]) -> Result:
    """Run IMPORT MODEL; see `import_model` and `place`."""
    read_model = import_model(statement.folder, statement.name)
    return card(place(read_model, holders, saving, replacing=statement.replace).facts())


class Holder(Protocol):
    """A client in this process that holds blocks."""

    def exported_block(self, run: str, slot: int) -> SavedBlock:
        """Return the block. Raise ModelError if there is none, and PolicyError if its weights may
        not leave.
        """
        ...

    def accept(self, run: str, slot: int, name: str, block: SavedBlock) -> None:
        """Hold the block of model `name`, as if it had been trained in this run."""
        ...


def export_model(
    model: Model, folder: object, formats: Sequence[str], holders: Mapping[Client, Holder]
) -> Result:
    """Write the model into a new folder. Return a row for each file, or for the reason why it is
    missing.

    Raises Error if the folder cannot be made or is not empty, or if a package is missing. In that
    case nothing is left behind.
    """
    path = _free(to_path(folder, "the folder"))
    files: dict[str, bytes] = {HISTORY: history_to_bytes(model.history)}
    rows: list[dict[str, str | None]] = []
    blocks: list[dict[str, Any]] = []
    for block in model.blocks:
        for party, client in _parties(block).items():
            try:
                saved = holders[client].exported_block(model.run, block.slot)
            except PolicyError as error:
                raise PolicyError(f"party {client}: {error.message}", hint=error.hint) from None
            own_files, reasons = block_files(saved, f"{model.name}_{block.name}", formats)
            stem = f"{party}/{_file_name(block, model.blocks)}"
            places = {kind: f"{stem}.{kind}" for kind in own_files}
            files |= {places[kind]: data for kind, data in own_files.items()}
            blocks.append(_told(block, party, saved, places, reasons))
            rows += _rows(f"{party}: {block.name}", formats, places, reasons)
    joining = prediction_files(model, formats)
    places = {kind: f"prediction.{kind}" for kind in joining}
    files |= {places[kind]: data for kind, data in joining.items()}
    rows += _rows("coordinator: prediction", tuple(joining), places, {})
    manifest = {
        "sqlfl_export": VERSION,
        "null_text": NULL_TEXT,
        "blocks": blocks,
        "prediction": {"files": places},
        "sha256": {name: _digest(data) for name, data in files.items()},
        "model": json.loads(model_to_json(model)),
    }
    files[MANIFEST] = (json.dumps(manifest, indent=1, ensure_ascii=True) + "\n").encode()
    _write(path, files)
    return Result(pa.Table.from_pylist(rows, schema=SCHEMA), notes=[f"written into {path}"])


def _told(
    block: ModelBlock,
    party: str,
    saved: SavedBlock,
    files: Mapping[str, str],
    reasons: Mapping[str, str],
) -> dict[str, Any]:
    """Return the manifest's entry of a block: `arguments` for SQL, `inputs` for ONNX."""
    inputs = [
        {
            "name": feature.name,
            "type": feature.raw.kind,
            "width": feature.raw.width,
            **({} if feature.made is None else {"made_of": feature.made.expression}),
        }
        for feature in saved.encoding.features
    ]
    return {
        "party": party,
        "table": block.name,
        "slot": block.slot,
        "arguments": list(arguments_of(saved.encoding)),
        "inputs": inputs,
        "outputs": saved.outputs,
        "files": dict(files),
        "reasons": dict(reasons),
    }


def _rows(
    part: str, formats: Sequence[str], places: Mapping[str, str], reasons: Mapping[str, str]
) -> list[dict[str, str | None]]:
    return [
        {"part": part, "format": kind, "file": places.get(kind), "note": reasons.get(kind)}
        for kind in formats
    ]


def _parties(block: ModelBlock) -> dict[str, Client]:
    """A client of each party: all of a slot's clients have the same block."""
    by_party: dict[str, Client] = {}
    for client in block.clients:
        by_party.setdefault(client.party, client)
    return by_party


def _file_name(block: ModelBlock, blocks: Sequence[ModelBlock]) -> str:
    """Return the table's alias if it is a valid file name and unique; else a name with the slot."""
    name = re.sub(r"[^a-z0-9_]", "_", block.name.lower())
    same = [b for b in blocks if re.sub(r"[^a-z0-9_]", "_", b.name.lower()) == name]
    return name if len(same) == 1 and len(name) <= 100 else f"{name[:100]}_{block.slot}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _free(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Error(f"{path} is there already", hint="EXPORT makes a new folder: give another name")
    if not path.parent.is_dir():
        raise Error(f"there is no folder {path.parent}", hint="make it first")
    return path


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write all files at once. Unfinished files never appear under the folder's name."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        draft.mkdir(mode=0o700)
        for name, data in files.items():
            place = draft / name
            place.parent.mkdir(exist_ok=True, mode=0o700)
            with open(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE), "wb") as file:
                file.write(data)
        os.replace(draft, path)
    except OSError as error:
        raise Error(f"cannot write {path}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


# -- back -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Imported:
    """Contents of a folder: the model, and the blocks of each client."""

    model: Model
    blocks: Mapping[tuple[Client, int], SavedBlock]


def import_model(folder: object, name: str) -> Imported:
    """Read a folder that EXPORT wrote, as a model of this name with a new run id. Raise Error if
    EXPORT did not write the folder, if it is damaged, or if it has no safetensors.
    """
    path = to_path(folder, "the folder")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        version = manifest["sqlfl_export"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Error(
            f"{path} is no folder that EXPORT MODEL has written: its {MANIFEST} cannot be read"
        ) from error
    if version != VERSION:
        raise Error(f"{path} was written by a newer sqlfl, in format {version}")
    try:
        history = _read(path, manifest, HISTORY)
        model = model_from(json.dumps(manifest["model"]), history.read_bytes(), "")
        run = secrets.token_hex(8)
        by_slot = {block.slot: block for block in model.blocks}
        blocks: dict[tuple[Client, int], SavedBlock] = {}
        for told in manifest["blocks"]:
            block = _loaded(path, manifest, told, model.name)
            for client in by_slot[told["slot"]].clients:
                if client.party == told["party"]:
                    blocks[client, told["slot"]] = block
        wanted = {(client, slot) for slot, block in by_slot.items() for client in block.clients}
        if blocks.keys() != wanted:
            raise ValueError("not all of the model's blocks are there")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise Error(f"{path} is damaged: {error}", hint="export the model again") from error
    return Imported(replace(model, name=name, run=run), blocks)


def _loaded(path: Path, manifest: Mapping[str, Any], told: Any, name: str) -> SavedBlock:
    if LOADED not in told["files"]:
        raise Error(
            f"{path} has no {LOADED} of table {told['table']}, which IMPORT reads",
            hint=f"export model {name} with formats = ['{LOADED}']",
        )
    return block_from_safetensors(str(_read(path, manifest, told["files"][LOADED])))


def _read(path: Path, manifest: Mapping[str, Any], name: str) -> Path:
    """Return a file of the manifest after checking its hash."""
    place = (path / name).resolve()
    if path not in place.parents:
        raise ValueError(f"{name} lies outside of it")
    if _digest(place.read_bytes()) != manifest["sha256"][name]:
        raise ValueError(f"{name} is not what was written")
    return place


def place(
    imported: Imported, holders: Mapping[Client, Holder], saving: Saving, *, replacing: bool
) -> Model:
    """Have the clients store their blocks, and save the model. Raise ModelError if a client of the
    model is not attached, or if the name is taken.
    """
    model = imported.model
    away = sorted(str(client) for client in model.clients if client not in holders)
    if away:
        raise ModelError(
            f"the model has parts at {', '.join(away)}, where nothing is attached",
            hint="attach the parties first, under these names and with as many databases",
        )
    lasting, kept = saving.fate(model.clients)
    version = saving.next_version(model.name)
    model = replace(model, lasting=lasting, kept=kept, version=version)
    try:
        for (client, slot), block in imported.blocks.items():
            holders[client].accept(model.run, slot, model.name, block)
        saving.keep(model, replace=replacing)
    except BaseException:
        saving.discard(model.run, model.clients)
        raise
    return model


# The coordinator's part of an exported model: from the parts of a joined row to its prediction.

PARTS = "parts"


def prediction_files(model: Model, formats: Iterable[str]) -> dict[str, bytes]:
    """Return format -> bytes. Safetensors need no file, because the manifest has intercept and
    head.
    """
    writers = {"sql": _to_sql, "onnx": _to_onnx}
    return {kind: writers[kind](model) for kind in formats if kind in writers}


# -- SQL ------------------------------------------------------------------------------------------


def _to_sql(model: Model) -> bytes:
    """Write `<model>_prediction(parts)`, and for classes `<model>_probabilities(parts)`. `parts` is
    the list of results of the blocks' macros for the row.
    """
    scores = _scores(model)
    macros: list[exp.Create] = []
    if model.classes is None:
        macros.append(macro(f"{model.name}_prediction", [PARTS], _link(model, element(scores, 0))))
    else:
        name = f"{model.name}_probabilities"
        macros.append(macro(name, [PARTS], _probabilities(model, scores)))
        chances = exp.Anonymous(
            this=exp.to_identifier(name, quoted=True), expressions=[sql.column(PARTS)]
        )
        classes = sql.call("list_value", *map(sql.string, model.classes))
        best = bound(
            chances,
            "sqlfl_p",
            sql.call(
                "list_extract",
                classes,
                sql.call(
                    "list_position",
                    sql.column("sqlfl_p"),
                    sql.call("list_max", sql.column("sqlfl_p")),
                ),
            ),
        )
        typed = sql.cast(best, model.target_type or "VARCHAR")
        macros.append(macro(f"{model.name}_prediction", [PARTS], typed))
    return "".join(f"{sql.to_sql(create)};\n" for create in macros).encode()


def _scores(model: Model) -> exp.Expr:
    """A list of d_c."""
    intercept = np.asarray(model.intercept, np.float64)
    size = len(intercept) if model.head is None else len(model.head)
    if size == 1:
        sums: list[exp.Expr] = [sql.call("list_sum", sql.column(PARTS))]
    else:
        each = 'list_sum(list_transform($parts, lambda "sqlfl_h": list_extract("sqlfl_h", $place)))'
        sums = [
            sql.expression(each, parts=sql.column(PARTS), place=sql.number(k + 1))
            for k in range(size)
        ]
    if model.head is None:
        scores = [sql.add([s, double(b)]) for s, b in zip(sums, intercept, strict=True)]
        return sql.call("list_value", *scores)
    name = "sqlfl_sum"
    scores = [
        sql.add([inner(sql.column(name), column), double(b)])
        for column, b in zip(np.asarray(model.head).T, intercept, strict=True)
    ]
    return bound(sql.call("list_value", *sums), name, sql.call("list_value", *scores))


def _link(model: Model, score: exp.Expr) -> exp.Expr:
    return sql.call("exp", score) if kind_of(model.kind).exponential else score


def _probabilities(model: Model, scores: exp.Expr) -> exp.Expr:
    name = "sqlfl_s"
    s = sql.column(name)
    if kind_of(model.kind).loss == "logistic":
        each = [
            sql.divide(
                double(1.0),
                exp.paren(sql.add([double(1.0), sql.call("exp", sql.times(double(sign), s))])),
            )
            for sign in (1.0, -1.0)
        ]
        return bound(element(scores, 0), name, sql.call("list_value", *each))
    # without the largest, exponentials would be beyond all numbers
    powers = sql.expression(
        'list_transform($s, lambda "sqlfl_x": exp("sqlfl_x" - list_max($s)))', s=s
    )
    shares = sql.expression(
        'list_transform($e, lambda "sqlfl_x": "sqlfl_x" / list_sum($e))', e=sql.column("sqlfl_e")
    )
    return bound(scores, name, bound(powers, "sqlfl_e", shares))


# -- ONNX -----------------------------------------------------------------------------------------


def _to_onnx(model: Model) -> bytes:
    """Input `h` (n, K), the sum of the blocks' outputs; output `prediction` (n, 1), or
    `probabilities` (n, classes) and `prediction` (n,), the classes' texts."""
    graph = Graph()
    intercept = np.asarray(model.intercept, np.float64).reshape(1, -1)
    size = intercept.shape[1] if model.head is None else len(model.head)
    scores = graph.input("h", "double", size)
    if model.head is not None:
        scores = graph.node("MatMul", scores, graph.constant(model.head))
    scores = graph.node("Add", scores, graph.constant(intercept))
    outputs: dict[str, tuple[str, str, int | None]]
    if model.classes is None:
        output = graph.node("Exp", scores) if kind_of(model.kind).exponential else scores
        outputs = {"prediction": (output, "double", 1)}
    else:
        if kind_of(model.kind).loss == "logistic":
            zero = graph.node("Mul", scores, graph.constant([[0.0]]))
            scores = graph.node("Concat", zero, scores, axis=1)
        chances = graph.node("Softmax", scores, axis=1)
        best = graph.node("ArgMax", chances, axis=1, keepdims=0)
        text = graph.node(
            "LabelEncoder",
            best,
            domain="ai.onnx.ml",
            keys_int64s=list(range(len(model.classes))),
            values_strings=list(model.classes),
        )
        outputs = {
            "probabilities": (chances, "double", len(model.classes)),
            "prediction": (text, "string", None),
        }
    return graph.finished(f"{model.name}_prediction", outputs)
