"""One entry: JSON metadata and named byte strings, with a checksum and the key that they were written under.

Nothing is pickled or evaluated. The checksum finds damage, not malice: whoever may write the file can also compute it, which is why
`private` looks at the owner first. Read first: `encode`, `decode`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import InternalError

FORMAT = 2
"""Part of every key and of every entry's first line: increment it if the layout or the meaning of entries changes."""

_MAGIC = f"weft artefact {FORMAT}\n".encode()
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_HEADER_LENGTH = struct.Struct("<Q")
_START = len(_MAGIC) + _CHECKSUM_BYTES


class ArtefactNotJson(InternalError):
    code = "W720"
    what = "the metadata of artefact {key} cannot be written as JSON: {reason}"


@dataclass(frozen=True, slots=True)
class Artefact:
    """One entry: `metadata` holds JSON values only, `blobs` named byte strings."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def artefact_key(*parts: object) -> str:
    """Return the sha256 of `parts` (texts, numbers, None, byte strings and tuples of these), as 64 hexadecimal digits.

    Parts are separated by their lengths, so ("ab", "c") and ("a", "bc") differ; so do 1 and "1".
    """
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode(errors="surrogatepass")
        digest.update(f"{type(part).__name__} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def encode(key: str, artefact: Artefact) -> bytes:
    """Return the bytes of an entry's file.

    Errors: ArtefactNotJson.
    """
    sizes = {name: len(blob) for name, blob in artefact.blobs.items()}
    try:
        header = json.dumps({"key": key, "metadata": dict(artefact.metadata), "blobs": sizes}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ArtefactNotJson(key=key, reason=error) from None
    body = b"".join([_HEADER_LENGTH.pack(len(header)), header, *artefact.blobs.values()])
    return _MAGIC + hashlib.sha256(body).digest() + body


def decode(key: str, data: bytes) -> Artefact | None:
    """Return the artefact in an entry's file, or None if the bytes are not exactly a result of `encode` for `key`."""
    body = memoryview(data)[_START:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : _START] or len(body) < _HEADER_LENGTH.size:
        return None
    (header_bytes,) = _HEADER_LENGTH.unpack_from(body)
    offset = _HEADER_LENGTH.size + header_bytes
    if offset > len(body):
        return None
    try:
        header = json.loads(bytes(body[_HEADER_LENGTH.size : offset]))
    except (ValueError, RecursionError):  # a valid checksum over content that no version of weft writes
        return None
    if not isinstance(header, dict) or header.get("key") != key:
        return None
    metadata, sizes = header.get("metadata"), header.get("blobs")
    if not isinstance(metadata, dict) or not isinstance(sizes, dict) or not all(type(size) is int and size >= 0 for size in sizes.values()):
        return None
    if offset + sum(sizes.values()) != len(body):
        return None
    blobs = {}
    for name, size in sizes.items():
        blobs[name] = bytes(body[offset : offset + size])
        offset += size
    return Artefact(metadata, blobs)
