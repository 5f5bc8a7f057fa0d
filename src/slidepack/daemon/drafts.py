"""Data files on their way in: stored piece by piece, and gone on with after a broken connection.

A draft is a folder of files that were announced with their sizes. Each file grows at its end only,
so what is there is what came, whatever connection broke. One connection at a time sends a file: a
newer one takes it over, for the older one may be dead without anybody knowing. A draft is no
dataset: it becomes one by a check that takes its rows, and what nobody goes on with is deleted
after a day.
"""

import asyncio
import contextlib
import io
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.daemon.paths import disk_error
from slidepack.daemon.upload_turns import Sender, Turns, file_size
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import write_atomic
from slidepack.engine.data.rows import clip
from slidepack.engine.data.several import require_one_kind, suffix_of

__all__ = ["AnnouncedFile", "Draft", "DraftFile", "DraftRequest", "Drafts", "natural"]

MAX_FILES: Final = 200
KEPT_SECONDS: Final = 86_400.0
IDLE_SECONDS: Final = 60.0
"""For so long a connection may send nothing; one that vanished without a word never does."""
_MAKING_SECONDS: Final = 60.0
_BUFFER_BYTES: Final = 4 << 20
_NAME_CHARACTERS: Final = 200
_ID: Final = re.compile(r"[0-9a-f]{16}")
_RECORD: Final = "draft.json"


class AnnouncedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that is about to come."""

    name: str
    """The file's own name, for display; of it, only the ending is ever a file's name."""
    bytes: int | None = None
    """None where nobody knows before its end."""


class DraftRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files that are to become one dataset."""

    files: tuple[AnnouncedFile, ...]


class DraftFile(msgspec.Struct, frozen=True, kw_only=True):
    """How far one file is."""

    name: str
    bytes: int | None
    received: int
    given: int
    """Its place among the files as they were announced."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are not a dataset yet."""

    id: str
    files: tuple[DraftFile, ...]
    """In the order of their names, which is that of their rows."""

    @property
    def missing(self) -> DraftFile | None:
        """The first file that is not all there, or None."""
        return next((file for file in self.files if file.bytes != file.received), None)

    @property
    def name(self) -> str:
        """What a dataset of them is called."""
        first, *others = (file.name for file in self.files)
        return f"{clip(first, 160)} and {len(others)} more" if others else first


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[AnnouncedFile, ...]
    given: tuple[int, ...]
    """Of each file, its place among those that were announced."""
    created_at: float


class Drafts:
    """The folders of all drafts. The event loop receives; any thread may ask for the rest."""

    def __init__(
        self, folder: Path, floor_bytes: int, *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Bind the folder, how much of its disk stays free, and how long a sender may be silent."""
        self._folder = folder
        self._floor_bytes = floor_bytes
        self._idle_seconds = idle_seconds
        self._turns = Turns()

    def create(self, files: Sequence[AnnouncedFile], *, linked: bool = False) -> Draft:
        """Make a draft, in which no file has come yet.

        Args:
            files: what is about to come.
            linked: they are here under another name already, and take no room.

        Raises:
            SlidepackError: DATA-REFUSED, DISK-FULL or DISK-UNWRITABLE.
        """
        if not 1 <= len(files) <= MAX_FILES:
            raise SlidepackError(
                "DATA-REFUSED",
                "So many files cannot become one dataset.",
                why=f"{len(files)} files",
                fix=f"Add 1 to {MAX_FILES} files at once.",
            )
        if any(file.bytes is not None and file.bytes < 0 for file in files):
            raise SlidepackError(
                "DAEMON-REQUEST-INVALID",
                "The request cannot be answered.",
                why="the size of a file is below 0",
                fix="Give its size in bytes.",
            )
        require_one_kind([file.name for file in files])
        self.require_room(0 if linked else sum(file.bytes or 0 for file in files))
        order = sorted(range(len(files)), key=lambda place: natural(files[place].name))
        known = tuple(
            AnnouncedFile(name=_label(files[n].name), bytes=files[n].bytes) for n in order
        )
        record = _Record(files=known, given=tuple(order), created_at=time.time())
        draft_id = secrets.token_hex(8)
        with self._disk():
            self.folder(draft_id).mkdir(mode=0o700)
            try:
                for path in self._paths_of(draft_id, record):
                    path.touch()
                self._write(draft_id, record)
            except BaseException:
                self.discard(draft_id)
                raise
        return self.get(draft_id)

    def get(self, draft_id: str) -> Draft:
        """Return how far a draft is.

        Raises:
            SlidepackError: DATA-NOT-FOUND.
        """
        record = self._read(draft_id)
        paths = self._paths_of(draft_id, record)
        return Draft(
            id=draft_id,
            files=tuple(
                DraftFile(name=file.name, bytes=file.bytes, received=file_size(path), given=given)
                for file, path, given in zip(record.files, paths, record.given, strict=True)
            ),
        )

    def paths(self, draft_id: str) -> list[tuple[str, Path]]:
        """Return the files' names and where they are.

        Raises:
            SlidepackError: DATA-NOT-FOUND.
        """
        record = self._read(draft_id)
        names = [file.name for file in record.files]
        return list(zip(names, self._paths_of(draft_id, record), strict=True))

    def folder(self, draft_id: str) -> Path:
        """Return a draft's folder, whether or not it is there.

        Raises:
            SlidepackError: DATA-NOT-FOUND: that is no id of a draft.
        """
        if not _ID.fullmatch(draft_id):
            raise _unknown(draft_id)
        return self._folder / draft_id

    async def receive(
        self, draft_id: str, number: int, offset: int, stream: AsyncIterator[bytes]
    ) -> Draft:
        """Append to a file what comes; of a connection that breaks, all that came is kept.

        It takes the place of an older connection that sends the same file: of that one, what is
        not written yet is left out, for this one begins where the file ends.

        Args:
            draft_id: of the draft.
            number: of the file, from 0.
            offset: where in the file the first byte belongs: at its present end.
            stream: the bytes.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DATA-UPLOAD-OFFSET, DATA-IN-USE once a newer connection
                sends the file, DATA-UPLOAD-CUT where nothing comes any more, DATA-REFUSED where
                more comes than was announced, DISK-FULL or DISK-UNWRITABLE.
        """
        record = self._read(draft_id)
        if not 0 <= number < len(record.files):
            raise _unknown(f"{draft_id}, file {number}")
        path = self._paths_of(draft_id, record)[number]
        announced = record.files[number]
        # Where no size is known, it comes from a program, which may think for minutes.
        sender = Sender(stream, None if announced.bytes is None else self._idle_seconds)
        async with self._turns.take((draft_id, number), sender, path, offset):
            await self._append(path, offset, announced, sender)
        return self.get(draft_id)

    def finish(self, draft_id: str) -> None:
        """Take what came of files without an announced size for all of them.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DISK-FULL or DISK-UNWRITABLE.
        """
        record = self._read(draft_id)
        paths = self._paths_of(draft_id, record)
        known = tuple(
            msgspec.structs.replace(file, bytes=file_size(path)) if file.bytes is None else file
            for file, path in zip(record.files, paths, strict=True)
        )
        with self._disk():
            self._write(draft_id, msgspec.structs.replace(record, files=known))

    def discard(self, draft_id: str) -> None:
        """Delete a draft; one that is not there is no error."""
        shutil.rmtree(self.folder(draft_id), ignore_errors=True)

    def expire(self, now: float) -> None:
        """Delete what nobody has gone on with for a day (`now` in unix seconds)."""
        for folder in list(self._folder.iterdir()):
            if not _ID.fullmatch(folder.name):
                _remove(folder)
                continue
            if folder.name in self._turns.receiving():
                continue
            with contextlib.suppress(FileNotFoundError):
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                # Without a record it is being made this moment, or its daemon was killed then.
                kept = KEPT_SECONDS if (folder / _RECORD).is_file() else _MAKING_SECONDS
                if newest < now - kept:
                    _remove(folder)

    def require_room(self, wanted_bytes: int) -> None:
        """Refuse what the disk has no room for.

        Raises:
            SlidepackError: DISK-FULL.
        """
        free = shutil.disk_usage(self._folder).free
        if wanted_bytes + self._floor_bytes <= free:
            return
        raise SlidepackError(
            "DISK-FULL",
            "There is no room for this file.",
            why=f"{wanted_bytes / 1e9:.2f} GB to write, {free / 1e9:.2f} GB free, "
            f"{self._floor_bytes / 1e9:.2f} GB of that is kept free",
            fix="Free some space, or move the data directory with SLIDEPACK_HOME.",
        )

    async def _append(
        self, path: Path, offset: int, announced: AnnouncedFile, sender: Sender
    ) -> None:
        limit = announced.bytes
        buffer = bytearray()
        size = offset
        # Without a buffer of its own: what a replaced sender has not written is not written later.
        with self._disk(), path.open("ab", buffering=0) as file:
            try:
                while (chunk := await sender.next()) is not None:
                    size += len(chunk)
                    if limit is not None and size > limit:
                        raise SlidepackError(
                            "DATA-REFUSED",
                            "More came than the file has.",
                            why=f"{clip(announced.name)} was announced with {limit} bytes",
                            fix="Add the file again when nothing writes to it.",
                        )
                    buffer += chunk
                    if len(buffer) >= _BUFFER_BYTES:
                        # Taken first: where this fails, nothing may be written twice, and
                        # nothing for which there is no room.
                        data, buffer = buffer, bytearray()
                        self.require_room(len(data))
                        await _to_the_end(asyncio.to_thread(_write_all, file, data))
            except BaseException:
                if not sender.replaced:
                    # Why it broke is told; what cannot be kept besides is sent again.
                    with contextlib.suppress(SlidepackError, OSError):
                        self._write_rest(file, buffer)
                raise
            self._write_rest(file, buffer)

    def _write_rest(self, file: io.FileIO, data: bytearray) -> None:
        if data:
            self.require_room(len(data))
            _write_all(file, data)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(error, self._folder) from error

    def _paths_of(self, draft_id: str, record: _Record) -> list[Path]:
        folder = self.folder(draft_id)
        return [
            folder / f"{number:03d}{suffix_of(file.name)}"
            for number, file in enumerate(record.files)
        ]

    def _read(self, draft_id: str) -> _Record:
        try:
            data = (self.folder(draft_id) / _RECORD).read_bytes()
        except FileNotFoundError as error:
            raise _unknown(draft_id) from error
        return msgspec.json.decode(data, type=_Record)

    def _write(self, draft_id: str, record: _Record) -> None:
        write_atomic(self.folder(draft_id) / _RECORD, msgspec.json.encode(record))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts `part 2` before `part 10`."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple(
        (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts
    )


def _write_all(file: io.FileIO, data: bytearray) -> None:
    """Write all of it: a file without a buffer may take a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for what a thread does, which goes on where this is cancelled, until it is done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _unknown(draft_id: str) -> SlidepackError:
    return SlidepackError(
        "DATA-NOT-FOUND",
        "There is no such upload.",
        why=f"{clip(draft_id)}; what is not gone on with is deleted after a day",
        fix="Add the file again.",
    )


def _label(name: str) -> str:
    """Return a name that is short enough to be shown, with the ending that tells what it is."""
    ending = suffix_of(name)
    if len(name) <= _NAME_CHARACTERS or not ending:
        return clip(name, _NAME_CHARACTERS)
    return clip(name, _NAME_CHARACTERS - len(ending)) + ending
