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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from sqlfl.base.errors import Error, ModelError
from sqlfl.base.result import Result
from sqlfl.contract.schema import Client
from sqlfl.databases.files import PRIVATE, to_path
from sqlfl.federation.prediction_files import prediction_files
from sqlfl.federation.saving import Saving
from sqlfl.options.exports import resolve_export
from sqlfl.planner.grammar.statements import ExportModel, ImportModel
from sqlfl.store.model_document import history_to_bytes, model_from, model_to_json
from sqlfl.store.registry import Model, ModelBlock, card
from sqlfl.udfs.blocks.block_files import block_files, block_from_safetensors
from sqlfl.udfs.blocks.block_onnx import NULL_TEXT
from sqlfl.udfs.blocks.block_sql import arguments_of
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

    def block(self, run: str, slot: int) -> SavedBlock:
        """Return the block. Raise ModelError if there is none."""
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
            saved = holders[client].block(model.run, block.slot)
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
