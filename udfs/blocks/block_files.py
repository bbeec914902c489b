"""A party's block of a model as files: safetensors, ONNX and SQL, and the first read again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import Error, ModelError
from sqlfl.models.towers import TowerShape
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_onnx import block_to_onnx
from sqlfl.udfs.blocks.block_sql import block_macro
from sqlfl.udfs.blocks.blocks import FORMAT, SavedBlock
from sqlfl.udfs.encoding.features import Encoding


def block_files(
    block: SavedBlock, name: str, formats: Iterable[str]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return format -> bytes, and format -> reason for formats that cannot be written. Raise Error
    if a package is missing.
    """
    files: dict[str, bytes] = {}
    reasons: dict[str, str] = {}
    for kind in formats:
        try:
            files[kind] = _WRITERS[kind](block, name)
        except ModelError as error:
            reasons[kind] = error.message
    return files, reasons


def _to_sql(block: SavedBlock, name: str) -> bytes:
    return f"{sql.to_sql(block_macro(name, block))};\n".encode()


def _to_safetensors(block: SavedBlock, name: str) -> bytes:
    """Write the tensors θ and, for a tower, the others; encoding and shape go to the metadata."""
    metadata = {
        "format": str(block.format),
        "encoding": block.encoding.to_bytes().decode(),
        "name": block.name,
    }
    if block.tower is not None:
        metadata["tower"] = to_json(block.tower)
    tensors = {"theta": np.ascontiguousarray(block.theta, np.float64)}
    for number, values in enumerate(block.upper, 1):
        tensors[f"upper_{number}"] = np.ascontiguousarray(values, np.float64)
    data: bytes = safetensors_numpy().save(tensors, metadata)
    return data


def block_from_safetensors(path: str) -> SavedBlock:
    """Read the block from a file that `block_files` wrote. Raise ValueError for other files."""
    safetensors_numpy()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            told: dict[str, str] = file.metadata() or {}
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"no safetensors ({error})") from error
    try:
        return _block(told, tensors)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no block ({error!r:.100})") from error


def _block(told: dict[str, str], tensors: dict[str, Any]) -> SavedBlock:
    if int(told["format"]) > FORMAT:
        raise ValueError(f"of a newer sqlfl, in format {told['format']}")
    encoding = Encoding.from_bytes(told["encoding"].encode())
    theta = tensors.pop("theta")
    upper = tuple(tensors[f"upper_{number}"] for number in range(1, len(tensors) + 1))
    tower = from_json(TowerShape, told["tower"]) if "tower" in told else None
    shapes = tower.shapes if tower is not None else ((encoding.width, theta.shape[-1]),)
    parameters = (theta, *upper)
    if tuple(p.shape for p in parameters) != shapes or theta.shape[0] != encoding.width:
        raise ValueError("parameters of another shape")
    if any(p.dtype != np.float64 or not np.isfinite(p).all() for p in parameters):
        raise ValueError("parameters that are no finite numbers of 8 bytes")
    return SavedBlock(encoding, theta, told["name"], tower, upper)


def safetensors_numpy() -> Any:
    """Raises Error where the package is not installed."""
    try:
        import safetensors.numpy as found
    except ImportError as error:
        raise Error(
            "safetensors files need the package safetensors", hint="pip install 'sqlfl[export]'"
        ) from error
    return found


_WRITERS = {"safetensors": _to_safetensors, "onnx": block_to_onnx, "sql": _to_sql}
