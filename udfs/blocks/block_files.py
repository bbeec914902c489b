"""A party's block of a model as files: safetensors, ONNX and SQL, and the first read again.

The graph of ONNX computes in float64, with operators that onnxruntime has. Its inputs are the
block's features in order, one value a row, before TRANSFORM has fitted anything to them: doubles
(n,), NaN where missing; arrays (n, w); categories as texts (n,), with `NULL_TEXT` for NULL. The
output `h` is (n, K): what the block sends in PREDICT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import Error, ModelError
from sqlfl.models.towers import TowerShape
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_sql import block_macro
from sqlfl.udfs.blocks.blocks import FORMAT, SavedBlock
from sqlfl.udfs.blocks.terms import Buckets, NumberTerm, Spline, TextTerm, pieces_of
from sqlfl.udfs.encoding.features import Encoding

OPSET, ML_OPSET, IR = 20, 3, 9
"""Versions from 2023, which onnxruntime supports from 1.17 on."""


def onnx_module() -> Any:
    """Raises Error where the package is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise Error(
            "ONNX files need the package onnx", hint="pip install 'sqlfl[export]'"
        ) from error
    return onnx


NULL_TEXT = "\ufdd0"
"""A code point that Unicode reserves for internal use."""


def block_to_onnx(block: SavedBlock, name: str) -> bytes:
    """Return the block as ONNX. Raise ModelError if categories are known only by keyed hashes,
    which ONNX cannot compute, and Error without the package onnx. Infinite numbers give arbitrary
    results: ONNX has no errors.
    """
    graph = Graph()
    parts = pieces_of(block)
    width = len(parts.base)
    terms = []
    for piece in parts.pieces:
        given = piece.feature.name
        match piece:
            case NumberTerm():
                terms.append(_numbers(graph, piece))
            case Buckets():
                x = graph.input(given, "double", None)
                index = graph.below(x, piece.bounds)
                missing = graph.node("IsNaN", x)
                last = graph.integers(len(piece.weights))
                chosen = graph.node("Where", missing, last, index)
                table = np.vstack([piece.weights, piece.missing])
                terms.append(graph.node("Gather", graph.constant(table), chosen, axis=0))
            case TextTerm():
                if NULL_TEXT in piece.texts:
                    raise ModelError(f"a category of {given} is U+FDD0, which stands for NULL")
                if piece.key is not None:
                    raise ModelError(
                        f"the categories of {given} are known by keyed hashes, as its table is in "
                        "several databases, and ONNX has no hashes",
                        hint="export it to sql",
                    )
                texts = graph.input(given, "string", None)
                codes = graph.node(
                    "LabelEncoder",
                    texts,
                    domain="ai.onnx.ml",
                    keys_strings=[*piece.texts, NULL_TEXT],
                    values_int64s=list(range(len(piece.texts) + 1)),
                    default_int64=len(piece.texts) + 1,
                )
                table = np.vstack([piece.weights, piece.missing, piece.other])
                terms.append(graph.node("Gather", graph.constant(table), codes, axis=0))
    h = graph.constant(parts.base.reshape(1, width))
    for term in terms:
        h = graph.node("Add", h, term)
    if block.tower is not None:
        for bias, weights in zip(block.parameters[1::2], block.parameters[2::2], strict=True):
            shifted = graph.node("Add", h, graph.constant(bias.reshape(1, -1)))
            active = graph.activated(block.tower.activation, shifted)
            h = graph.node("MatMul", active, graph.constant(weights))
        h = graph.node("Tanh", h) if block.tower.bounded else h
    return graph.finished(name, {"h": (h, "double", block.outputs)})


def _numbers(graph: Graph, piece: NumberTerm) -> str:
    array = piece.feature.raw.kind == "array"
    width = len(piece.mean)
    x = graph.input(piece.feature.name, "double", width if array else None)
    if not array:
        x = graph.node("Unsqueeze", x, graph.integers([1]))
    missing = graph.node("IsNaN", x)
    if piece.fill is not None:
        x = graph.node("Where", missing, graph.constant([[piece.fill]]), x)
        missing = graph.node("IsNaN", x)
    if piece.affine is not None:
        low, size = piece.affine
        x = graph.node("Sub", x, graph.constant([[low]]))
        x = graph.node("Div", x, graph.constant([[size]]))
    if piece.spline is not None:
        x = _spline(graph, piece.spline, x)
    if piece.limits is not None:
        low_, high = (graph.constant(row.reshape(1, -1)) for row in piece.limits)
        x = graph.node("Min", graph.node("Max", x, low_), high)
    centred = graph.node("Sub", x, graph.constant(piece.mean.reshape(1, -1)))
    scaled = graph.node("Div", centred, graph.constant(piece.scale.reshape(1, -1)))
    present = graph.node("Where", missing, graph.constant([[0.0]]), scaled)
    product = graph.node("MatMul", present, graph.constant(piece.weights))
    if piece.missing is None:
        return product
    flags = graph.node("Cast", missing, to=graph.double)
    every = graph.node("ReduceMin", flags, graph.integers([1]), keepdims=1)
    return graph.node(
        "Add", product, graph.node("MatMul", every, graph.constant(piece.missing.reshape(1, -1)))
    )


def _spline(graph: Graph, spline: Spline, x: str) -> str:
    low, high = (graph.constant([[end]]) for end in (spline.knots[0], spline.knots[-1]))
    held = graph.node("Min", graph.node("Max", x, low), high)
    flat = graph.node("Squeeze", held, graph.integers([1]))
    # NaN is below no knot, and its polynomials are thrown away
    interval = graph.below(flat, spline.knots[1:-1])
    left = graph.node("Gather", graph.constant(spline.knots[:-1]), interval, axis=0)
    distance = graph.node("Sub", flat, left)
    tall = graph.node("Unsqueeze", distance, graph.integers([1]))
    coefficients = graph.node("Gather", graph.constant(spline.coefficients), interval, axis=0)
    curve = ""
    for power in range(spline.coefficients.shape[1]):
        place = graph.integers(power)
        coefficient = graph.node("Gather", coefficients, place, axis=1)
        curve = (
            coefficient
            if not curve
            else graph.node("Add", graph.node("Mul", curve, tall), coefficient)
        )
    return curve


class Graph:
    """An ONNX graph under construction; values have names."""

    def __init__(self) -> None:
        self._onnx = onnx_module()
        self._numbers = count()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self.double = self._onnx.TensorProto.DOUBLE

    def input(self, name: str, kind: str, width: int | None) -> str:
        self._inputs.append(self._value(name, kind, width))
        return name

    def _value(self, name: str, kind: str, width: int | None) -> Any:
        proto = self._onnx.TensorProto
        types = {"double": proto.DOUBLE, "string": proto.STRING, "int64": proto.INT64}
        shape = ["rows"] if width is None else ["rows", width]
        return self._onnx.helper.make_tensor_value_info(name, types[kind], shape)

    def constant(self, values: Any, kind: type = np.float64) -> str:
        name = self._name("c")
        array: Array = np.array(values, kind, order="C")
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def integers(self, values: Sequence[int] | int) -> str:
        return self.constant(values, np.int64)

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = self._name("n")
        self._nodes.append(
            self._onnx.helper.make_node(operator, inputs, [name], domain=domain, **attributes)
        )
        return name

    def below(self, x: str, bounds: Float) -> str:
        """int64 (n,): how many of the bounds are not above x (n,)."""
        if not len(bounds):
            zero = self.node(
                "Mul", self.node("Cast", self.node("IsNaN", x), to=7), self.integers(0)
            )
            return zero
        tall = self.node("Unsqueeze", x, self.integers([1]))
        met = self.node("GreaterOrEqual", tall, self.constant(bounds.reshape(1, -1)))
        counts = self.node("Cast", met, to=self._onnx.TensorProto.INT64)
        return self.node("ReduceSum", counts, self.integers([1]), keepdims=0)

    def activated(self, name: str, x: str) -> str:
        match name:
            case "relu":
                return self.node("Max", x, self.constant([[0.0]]))
            case "tanh":
                return self.node("Tanh", x)
        # onnxruntime has Erf of 4-byte numbers only: to about 1e-7
        half = self.node(
            "Cast",
            self.node("Mul", x, self.constant([[0.5**0.5]])),
            to=self._onnx.TensorProto.FLOAT,
        )
        erf = self.node("Cast", self.node("Erf", half), to=self.double)
        share = self.node("Mul", self.node("Add", erf, self.constant([[1.0]])), self.constant(0.5))
        return self.node("Mul", x, share)

    def finished(self, name: str, outputs: dict[str, tuple[str, str, int | None]]) -> bytes:
        """The model; `outputs`: value, kind and width by name."""
        helper = self._onnx.helper
        told = []
        for output, (value, kind, width) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [output]))
            told.append(self._value(output, kind, width))
        graph = helper.make_graph(self._nodes, name, self._inputs, told, self._constants)
        model = helper.make_model(
            graph,
            producer_name="sqlfl",
            ir_version=IR,
            opset_imports=[
                helper.make_opsetid("", OPSET),
                helper.make_opsetid("ai.onnx.ml", ML_OPSET),
            ],
        )
        self._onnx.checker.check_model(model)
        data: bytes = model.SerializeToString()
        return data

    def _name(self, letter: str) -> str:
        return f"sqlfl_{letter}{next(self._numbers)}"


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
