"""What the daemon and an importer process say to each other, one JSON object a line.

Imports msgspec and the engine's contract only, so that the daemon can read an import's progress
without loading what reads models.
"""

from pathlib import PurePath
from typing import Final, Literal

import msgspec

from slidepack.engine.contract.errors import ErrorReport

Stage = Literal["reading", "downloading", "converting", "checking", "hashing"]


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model to bring in; the file that the importer process is started with."""

    kind: Literal["folder", "gguf", "hub"]
    source: str
    """A folder, a GGUF file, or a hub id such as `owner/name`."""
    target: str
    """Folder to create for `gguf` and `hub`; unused for `folder`, which stays where it is."""
    revision: str = ""
    """Branch, tag or commit on the hub; empty takes the default branch."""
    progress: str
    """Path of the JSON-lines file to append to."""

    def __post_init__(self) -> None:
        """Refuse values that name nothing."""
        if not self.source or any("\0" in text for text in (self.source, self.target)):
            raise ValueError(f"source {self.source!r} and target {self.target!r} must be names")
        target = PurePath(self.target)
        if self.kind != "folder" and not (target.is_absolute() and target.name):
            raise ValueError(f"target is {self.target!r}; use the absolute path of a folder")


class ImportProgress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a stage is; both figures are bytes, and `total` is 0 where it is unknown."""

    done: int
    total: int
    stage: Stage


class ImportResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line of an import that worked."""

    ok: bool = True
    path: str
    """Absolute path of a Hugging Face folder."""
    content_hash: str
    """sha256 in hex (`fingerprint.content_hash`)."""
    stamp: str
    """Cheap change mark (`fingerprint.quick_stamp`)."""
    architecture: str
    params: int
    """Parameters; a tied head counts once."""
    bytes: int
    """Size of the weight files."""
    license: str
    """Licence name as the source states it; empty where it states none."""
    revision: str
    """Commit on the hub; for other kinds the revision of the request."""


class ImportFailed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line of an import that did not work."""

    ok: bool = False
    error: ErrorReport


ImportLine = ImportProgress | ImportResult | ImportFailed


class _Outcome(msgspec.Struct):
    """The one field that tells the three kinds of line apart; JSON tags cannot be booleans."""

    ok: bool | None = None


_KINDS: Final[dict[bool | None, type[ImportLine]]] = {
    None: ImportProgress,
    True: ImportResult,
    False: ImportFailed,
}


def encode_line(line: ImportLine) -> bytes:
    """Return the line as JSON, newline included."""
    return msgspec.json.encode(line) + b"\n"


def decode_line(line: bytes) -> ImportLine:
    """Parse one line of an importer's progress file.

    Raises:
        msgspec.DecodeError: the line is not JSON, or (`ValidationError`) no line of this version.
    """
    outcome = msgspec.json.decode(line, type=_Outcome)
    return msgspec.json.decode(line, type=_KINDS[outcome.ok])


def decode_request(data: bytes) -> ImportRequest:
    """Parse an import request.

    Raises:
        msgspec.DecodeError: the data is not JSON, or (`ValidationError`) no request.
    """
    return msgspec.json.decode(data, type=ImportRequest)
