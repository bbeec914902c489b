"""Options of EXPORT MODEL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlfl.options.entries import Given, OptionTable, entries_of, error, option
from sqlfl.options.types import OptionType, meant

FORMATS = ("safetensors", "onnx", "sql")


def _read_formats(value: object) -> tuple[str, ...] | None:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, tuple) or not given:
        return None
    lowered = {v.lower() if isinstance(v, str) else v for v in given}
    return tuple(f for f in FORMATS if f in lowered) if lowered <= set(FORMATS) else None


FORMATS_TYPE = OptionType(
    f"a list of {', '.join(repr(f) for f in FORMATS)}, or one of them",
    _read_formats,
    lambda value: meant(value, FORMATS),
)


@dataclass(frozen=True, kw_only=True)
class Export:
    formats: tuple[str, ...] = option(
        FORMATS_TYPE,
        FORMATS,
        "formats in which each block is written; IMPORT reads safetensors; the first two need "
        "`pip install 'sqlfl[export]'`",
    )


def resolve_export(given: Iterable[Given], sql: str) -> Export:
    """Resolve the options of EXPORT MODEL. Raise OptionError, with the place in `sql`, for invalid
    ones.
    """
    entries = {entry.name: entry for entry in entries_of(Export)}
    given = tuple(given)
    for written in given:
        if written.name not in entries:
            hint = meant(written.name, entries) or f"the options are {', '.join(entries)}"
            message = f"there is no option {written.name} of EXPORT"
            raise error(message, written, sql, hint=hint, name=True)
    return Export(**OptionTable("option", entries, {}).read(given, sql).values)
