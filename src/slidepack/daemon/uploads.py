"""Takes uploaded data files: streamed to disk, checked, and whole or not there at all."""

import asyncio
import hashlib
import logging
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final

from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue, DatasetRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import fsync_folder
from slidepack.engine.data.check import check_file
from slidepack.engine.data.mapping import mapping_of
from slidepack.engine.data.report import CheckOptions
from slidepack.engine.data.rows import clip

logger = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 8 << 20
_SUFFIX: Final = re.compile(r"(\.[a-z0-9]{1,10}){1,2}$")


class Uploads:
    """Makes datasets out of streamed files."""

    def __init__(self, catalogue: Catalogue, paths: DataPaths, settings: Settings) -> None:
        """Bind store and directories."""
        self._catalogue = catalogue
        self._paths = paths
        self._floor_bytes = int(settings.disk_floor_gb * 1e9)

    def clean_up(self) -> None:
        """Remove what an earlier daemon did not finish; nobody was told that it was there."""
        for left_over in self._paths.uploads.iterdir():
            left_over.unlink()
        for dataset_id in self._catalogue.incomplete_datasets():
            shutil.rmtree(self._paths.dataset(dataset_id), ignore_errors=True)
            self._catalogue.drop_dataset(dataset_id)

    async def receive(
        self,
        stream: AsyncIterator[bytes],
        *,
        name: str,
        declared_bytes: int | None,
        options: CheckOptions,
    ) -> DatasetRecord:
        """Store and check one file.

        Args:
            stream: the file's bytes.
            name: the file's own name, for display; of it, only the ending is ever a file's name.
            declared_bytes: length that the client announced, or None.
            options: how to read it.

        Raises:
            SlidepackError: DISK-FULL, DATA-UPLOAD-CUT, and what `check_file` raises.
        """
        # What cannot be asked is refused before a gigabyte has come.
        mapping_of(options)
        self._require_room(declared_bytes or 0)
        temporary = self._paths.uploads / f"{secrets.token_hex(8)}.part"
        try:
            size, digest = await self._write(stream, temporary)
            if declared_bytes is not None and size != declared_bytes:
                raise SlidepackError(
                    "DATA-UPLOAD-CUT",
                    "The upload broke off.",
                    why=f"{size} of {declared_bytes} bytes came",
                    fix="Drop the file again.",
                )
            return await asyncio.to_thread(
                self._finish, temporary, clip(name, 200), size, digest, options
            )
        except OSError as error:
            raise disk_error(error, self._paths.home) from error
        finally:
            temporary.unlink(missing_ok=True)

    async def _write(self, stream: AsyncIterator[bytes], path: Path) -> tuple[int, str]:
        digest = hashlib.sha256()
        size = 0
        buffer = bytearray()
        with path.open("wb") as file:
            async for chunk in stream:
                buffer += chunk
                if len(buffer) >= _BUFFER_BYTES:
                    self._require_room(len(buffer))
                    size += await asyncio.to_thread(_append, file, bytes(buffer), digest)
                    buffer.clear()
            size += await asyncio.to_thread(_append, file, bytes(buffer), digest)
        return size, digest.hexdigest()

    def _require_room(self, wanted_bytes: int) -> None:
        free = shutil.disk_usage(self._paths.home).free
        if wanted_bytes + self._floor_bytes <= free:
            return
        raise SlidepackError(
            "DISK-FULL",
            "There is no room for this file.",
            why=f"{wanted_bytes / 1e9:.2f} GB to write, {free / 1e9:.2f} GB free, "
            f"{self._floor_bytes / 1e9:.2f} GB of that is kept free",
            fix="Free some space, or move the data directory with SLIDEPACK_HOME.",
        )

    def _is_whole(self, dataset: DatasetRecord) -> bool:
        """Return whether a dataset's rows are still those that were checked."""
        try:
            with (self._paths.dataset(dataset.id) / "rows.jsonl").open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return False
        return found == dataset.report.content_hash

    def _finish(
        self, temporary: Path, name: str, size: int, digest: str, options: CheckOptions
    ) -> DatasetRecord:
        known = self._catalogue.find_dataset(digest, options, _suffix_of(name))
        if known is not None and self._is_whole(known):
            return known
        dataset_id = self._catalogue.reserve_dataset(name, size, digest, time.time())
        folder = self._paths.dataset(dataset_id)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            original = temporary.rename(folder / f"original{_suffix_of(name)}")
            report = check_file(original, folder / "rows.jsonl", folder / "rejects.jsonl", options)
            fsync_folder(folder)
            self._catalogue.set_dataset_report(dataset_id, report)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            self._catalogue.drop_dataset(dataset_id)
            raise
        return self._catalogue.dataset(dataset_id)


def _suffix_of(name: str) -> str:
    """Return the ending of a name, which tells a table from a text: `.csv` or `.jsonl.gz`."""
    found = _SUFFIX.search(name.lower())
    return found.group() if found else ""


def _append(file: BinaryIO, data: bytes, digest: "hashlib._Hash") -> int:
    digest.update(data)
    return file.write(data)
