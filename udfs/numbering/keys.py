"""Keyed hashes: join keys leave a party as tags, never as values.

The tag of a join key is AES-256-CMAC (NIST SP 800-38B, RFC 4493) of its canonical bytes, under a
key that the parties share and the coordinator does not hold. Equal values of one type have equal
bytes at every party, whatever the session's settings. Draws and names of categories are hashed
where they lie, in the database: by HMAC-SHA256 (RFC 2104), cut to 16 bytes.

The cipher is that of `cryptography`. One call encrypts a block of each message, so that millions of
short messages take as long as copying them a few times.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from sqlglot import exp

from sqlfl.base.arrays import Array, byte_order
from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import KeySpecification
from sqlfl.udfs import sql

BLOCK = 16
"""Bytes of a block, and of a result."""
_REDUCTION = 0x87
"""The polynomial of the doubling in GF(2¹²⁸)."""


class Cmac:
    """AES-CMAC under one key of 16, 24 or 32 bytes."""

    def __init__(self, key: bytes) -> None:
        # each block separately: CMAC chains them
        self._encryptor = Cipher(AES(key), ECB()).encryptor()
        first = _doubled(self._encryptor.update(bytes(BLOCK)))
        self._last = np.frombuffer(_doubled(first) + first, np.uint8).reshape(2, BLOCK)
        """Subkeys: one is added to a last block that is padded, the other to one that is whole."""

    def of_blocks(self, blocks: Array) -> Array:
        """Return uint8 (n, 16), from messages of k > 0 whole blocks each, uint8 (n, k, 16)."""
        return self._chained(blocks, np.ones(len(blocks), np.intp))

    def of(self, messages: pa.Array) -> Array:
        """Return uint8 (n, 16), from binary messages of any lengths, none NULL."""
        messages = messages.cast(pa.binary())
        lengths = np.diff(_offsets(messages))
        blocks = np.maximum(-(-lengths // BLOCK), 1)
        tags = np.empty((len(messages), BLOCK), np.uint8)
        for count in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == count)
            alike = messages if len(places) == len(messages) else messages.take(pa.array(places))
            tags[places] = self._chained(*_padded(alike, count))
        return tags

    def _chained(self, blocks: Array, whole: Array) -> Array:
        state = np.zeros((len(blocks), BLOCK), np.uint8)
        for number in range(blocks.shape[1]):
            given = state ^ blocks[:, number]
            if number == blocks.shape[1] - 1:
                given ^= self._last[whole]
            state = np.frombuffer(self._encryptor.update(given.data), np.uint8).reshape(-1, BLOCK)
        return state


def _doubled(block: bytes) -> bytes:
    number = int.from_bytes(block, "big") << 1
    if number >> 8 * BLOCK:
        number ^= 1 << 8 * BLOCK | _REDUCTION
    return number.to_bytes(BLOCK, "big")


def _padded(messages: pa.Array, blocks: int) -> tuple[Array, Array]:
    """Return the padded messages, uint8 (n, blocks, 16), and which of them fill their blocks: int
    (n,), 0 or 1.
    """
    offsets = _offsets(messages)
    lengths = np.diff(offsets)
    size, begin, end = blocks * BLOCK, int(offsets[0]), int(offsets[-1])
    padded = np.zeros(len(messages) * size, np.uint8)
    starts = np.arange(len(messages)) * size
    if end > begin:
        shift = np.repeat(starts - (offsets[:-1] - begin), lengths)
        content = np.frombuffer(messages.buffers()[2], np.uint8)[begin:end]
        padded[shift + np.arange(end - begin)] = content
    partial = lengths < size
    padded[(starts + lengths)[partial]] = 0x80
    return padded.reshape(-1, blocks, BLOCK), (~partial).astype(np.intp)


def _offsets(messages: pa.Array) -> Array:
    """Return int64 (n + 1,): the bounds of each message in the array's buffer."""
    if not len(messages):
        return np.zeros(1, np.int64)
    bounds = np.frombuffer(messages.buffers()[1], np.int32)
    return bounds[messages.offset : messages.offset + len(messages) + 1].astype(np.int64)


TAG_BYTES = 16
_WHOLE_TAG = np.dtype((np.void, TAG_BYTES))
"""A tag as one value: they move in a tenth of the time of their bytes."""
AS_BLOB = ("VARCHAR", "JSON")
"""Types of key parts that are stored as BLOB, so that no collation merges two texts."""
WHOLE = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)")
PARTS = re.compile(r"p\d+_\d+")
"""Names of the columns with parts of keys."""
_AT_ONCE = 1 << 14
"""Keys to hash at once: their bytes stay in the processor's cache."""
_BLOCK, _DIGEST = 64, 32
"""Bytes of SHA-256."""
_PLAIN = re.compile(
    r"(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|BIGNUM|VARINT|DECIMAL\(.*\)|BOOLEAN|VARCHAR"
    r"|ENUM\(.*\)|UUID|DATE|TIME|TIME_NS|TIME WITH TIME ZONE|TIMESTAMP(_S|_MS|_NS)?|BIT|JSON)",
    re.DOTALL,
)


def derive(secret: bytes, *info: str) -> bytes:
    """A key of 32 bytes for one purpose: HKDF-SHA256 (RFC 5869) with an empty salt.

    `info` names the purpose; different sequences of texts give independent keys.
    """
    extracted = hmac.digest(bytes(32), secret, "sha256")
    label = json.dumps(info, separators=(",", ":")).encode()
    return hmac.digest(extracted, label + b"\x01", "sha256")


def run_key(secret: bytes, run: str, nonces: Array) -> bytes:
    """Return the key of one run, whose clients have drawn these nonces, uint8 (clients, 16), in
    order. A repeated run id, with a newly drawn nonce, gives another key.
    """
    return derive(secret, run, *(bytes(nonce).hex() for nonce in nonces))


def check_value(secret: bytes, session: str) -> str:
    """Return 32 hexadecimal digits that distinguish two secrets in one session, and disclose
    nothing else.

    An observer can test secrets against it, of which there are 2²⁵⁶. Its label has a line break,
    which no run's id may have: so it never equals a run's key.
    """
    return derive(secret, "whether secrets\nare equal", session)[:TAG_BYTES].hex()


def pads(key: bytes) -> dict[str, bytes]:
    """The two parameters of `tag` for an HMAC key."""
    if len(key) > _BLOCK:
        key = hashlib.sha256(key).digest()
    block = key.ljust(_BLOCK, b"\0")
    return {
        "ipad": bytes(b ^ 0x36 for b in block),
        "opad": bytes(b ^ 0x5C for b in block),
    }


def tag(message: exp.Expr) -> exp.Expr:
    """The tag of a BLOB expression: 16 bytes of its HMAC-SHA256; the query takes `pads(key)` as
    parameters."""
    return sql.expression(
        f"""array_slice(
          unhex(sha256($opad || unhex(sha256($ipad || $message)))), 1, {TAG_BYTES}
        )""",
        message=message,
    )


def first_bytes(blob: exp.Expr, count: int) -> exp.Expr:
    return sql.expression("array_slice($blob, 1, $count)", blob=blob, count=sql.number(count))


def tags(key: bytes, messages: Iterable[bytes]) -> Array:
    """Return uint8 (n, 16): the result of `tag` for these messages under `pads(key)`, without a
    database.
    """
    inside, outside = (hashlib.sha256(pads(key)[name]).copy for name in ("ipad", "opad"))
    digest_list = []
    for message in messages:
        inner, outer = inside(), outside()
        inner.update(message)
        outer.update(inner.digest())
        digest_list.append(outer.digest())
    digests = np.frombuffer(b"".join(digest_list), np.uint8).reshape(-1, _DIGEST)
    return np.ascontiguousarray(digests[:, :TAG_BYTES])


def key_tags(secret: bytes, key: KeySpecification, parts: Sequence[pa.Array]) -> Array:
    """Return uint8 (n, 16): the tags of n composite keys, from their parts as `hashed_part` has
    them, none NULL.

    The key of the hash follows from the secret and from the join key's index and types, so that the
    tags of different join keys have nothing in common. The message has each part in turn: a whole
    number in 16 bytes, other bytes after their length.
    """
    mac = Cmac(derive(secret, "key", str(key.index), *key.types))
    rows = len(parts[0])
    tags = np.empty((rows, TAG_BYTES), np.uint8)
    for start in range(0, rows, _AT_ONCE):
        some = [part.slice(start, _AT_ONCE) for part in parts]
        if all(pa.types.is_integer(part.type) for part in some):
            hashed = mac.of_blocks(np.stack([_whole_bytes(part) for part in some], axis=1))
        else:
            pieces = [piece for part in some for piece in _pieces(part)]
            hashed = mac.of(pc.binary_join_element_wise(*pieces, b""))
        tags[start : start + len(hashed)] = hashed
    return tags


def sorted_tags(tags: Array) -> tuple[Array, Array]:
    """Return the tags, uint8 (u, 16), ascending; and uint32 (u + 1,): among them the place of each,
    and u at the end.
    """
    order = byte_order(tags)
    ranks = np.empty(len(tags) + 1, np.uint32)
    ranks[order] = np.arange(len(tags), dtype=np.uint32)
    ranks[-1] = len(tags)
    return np.take(tags.view(_WHOLE_TAG)[:, 0], order).view(np.uint8).reshape(-1, TAG_BYTES), ranks


def _pieces(part: pa.Array) -> list[pa.Array]:
    if pa.types.is_integer(part.type):
        content = pa.py_buffer(_whole_bytes(part))
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(BLOCK), len(part), [None, content])
        return [fixed.cast(pa.binary())]
    part = part.cast(pa.binary())
    lengths = pc.binary_length(part).cast(pa.string()).cast(pa.binary())
    return [lengths, pa.repeat(pa.scalar(b":"), len(part)), part]


def _whole_bytes(part: pa.Array) -> Array:
    """Return uint8 (n, 16): whole numbers in two's complement, the lowest byte first."""
    values = part.to_numpy()
    words = np.zeros((len(values), 2), "<u8")
    words[:, 0] = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values
    words[values < 0, 1] = np.uint64(2**64 - 1)
    return words.view(np.uint8)


def hashed_part(value: exp.Expr, kind: str) -> exp.Expr:
    """Return a part of a key as it is hashed: a whole number, or a BLOB of canonical bytes. `value`
    is the part as a snapshot keeps it. Raise ModelError if its type has no canonical bytes.
    """
    if WHOLE.fullmatch(kind) or kind in AS_BLOB:
        return value
    return canonical_bytes(value, kind)


def canonical_bytes(value: exp.Expr, kind: str) -> exp.Expr:
    """Return a BLOB that is equal for two values of DuckDB type `kind` exactly if DuckDB treats
    them as equal. Raise ModelError for nested types, which have no such bytes here.
    """
    if kind == "BLOB":
        return value
    return sql.call("encode", canonical_text(value, kind))


def canonical_text(value: exp.Expr, kind: str) -> exp.Expr:
    """The same as text. ModelError for BLOBs and nested types."""
    if kind in ("FLOAT", "DOUBLE"):
        return sql.expression(
            "CASE WHEN isnan($value) THEN 'nan' ELSE CAST($positive AS VARCHAR) END",
            value=value,
            positive=positive_zero(value, kind),
        )
    if kind == "TIMESTAMP WITH TIME ZONE":
        # its text depends on the session's TimeZone, except that of the infinities
        return sql.expression(
            """CASE WHEN isinf($value) THEN CAST($value AS VARCHAR)
            ELSE CAST(epoch_us($value) AS VARCHAR) END""",
            value=value,
        )
    if kind == "INTERVAL":
        return sql.text(_interval_microseconds(value))
    if _PLAIN.fullmatch(kind):
        return sql.text(value)
    raise ModelError(
        f"a join key of type {kind} cannot be hashed",
        hint="join on numbers, texts, dates, times or BLOBs; cast the key to VARCHAR",
    )


def positive_zero(value: exp.Expr, kind: str) -> exp.Expr:
    """A FLOAT or DOUBLE without negative zero."""
    return exp.paren(exp.Add(this=value.copy(), expression=sql.cast(sql.number(0), kind)))


def _interval_microseconds(value: exp.Expr) -> exp.Expr:
    """Return microseconds as DuckDB compares intervals: a month has 30 days, a day 24 hours."""
    units = {
        "year": 360 * 86_400_000_000,
        "month": 30 * 86_400_000_000,
        "day": 86_400_000_000,
        "hour": 3_600_000_000,
        "minute": 60_000_000,
        "microsecond": 1,
    }
    term = "CAST(date_part($unit, $value) AS HUGEINT) * $size"
    return sql.add(
        [
            sql.expression(term, unit=sql.string(unit), value=value, size=sql.number(size))
            for unit, size in units.items()
        ]
    )


def tag_bytes(column: pa.ChunkedArray) -> Array:
    """uint8 (n, 16), of a column of tags."""
    parts = [np.zeros((0, TAG_BYTES), np.uint8)]
    for chunk in column.cast(pa.binary(TAG_BYTES)).chunks:
        data = np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * TAG_BYTES :]
        parts.append(data[: len(chunk) * TAG_BYTES].reshape(-1, TAG_BYTES))
    return np.concatenate(parts)
