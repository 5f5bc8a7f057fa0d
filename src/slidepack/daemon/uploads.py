"""Makes datasets out of data files: checked, and whole or not there at all."""

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from slidepack.daemon.drafts import MAX_FILES, AnnouncedFile, Draft, Drafts, natural
from slidepack.daemon.first_look import ColumnSeen, RowSeen, columns_seen, rows_seen
from slidepack.daemon.local_files import data_files, open_data_file
from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue, DatasetRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import fsync_folder
from slidepack.engine.data.mapping import mapping_of
from slidepack.engine.data.report import CheckOptions, DataReport
from slidepack.engine.data.rows import clip
from slidepack.engine.data.several import judge_files, suffix_of

__all__ = ["CheckProgress", "Checked", "Uploads"]

_COPY_BYTES: Final = 4 << 20


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a draft came to."""

    draft: str | None
    """The draft, which waits to be read in another way; None once it is a dataset."""
    name: str
    report: DataReport
    dataset: DatasetRecord | None
    """None where the report has an error."""
    columns: tuple[ColumnSeen, ...]
    """Of the first file; to choose among where the report has an error."""
    rows: tuple[RowSeen, ...]
    """The first ones that were read."""


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a check is."""

    checked_bytes: int | None
    """Read so far, of all files; None while no check goes on."""


class Uploads:
    """Makes datasets out of drafts."""

    def __init__(self, catalogue: Catalogue, paths: DataPaths, settings: Settings) -> None:
        """Bind store and directories."""
        self._catalogue = catalogue
        self._paths = paths
        self.drafts = Drafts(paths.uploads, int(settings.disk_floor_gb * 1e9))
        self._lock = threading.Lock()
        self._checking: dict[str, int] = {}

    def clean_up(self) -> None:
        """Remove what an earlier daemon did not finish, but for uploads of the last day."""
        self.drafts.expire(time.time())
        known = {str(dataset.id) for dataset in self._catalogue.datasets()}
        for folder in self._paths.datasets.iterdir():
            # A deleted one goes from the list first.
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        for dataset_id in self._catalogue.incomplete_datasets():
            self._catalogue.drop_dataset(dataset_id)

    async def receive(
        self,
        stream: AsyncIterator[bytes],
        *,
        name: str,
        declared_bytes: int | None,
        options: CheckOptions,
    ) -> DatasetRecord:
        """Store and check one file in one go; where that fails, nothing of it stays.

        Args:
            stream: the file's bytes.
            name: the file's own name, for display; of it, only the ending is ever a file's name.
            declared_bytes: length that the client announced, or None.
            options: how to read it.

        Raises:
            SlidepackError: DISK-FULL, DATA-UPLOAD-CUT, and why the file cannot be used.
        """
        # What cannot be asked is refused before a gigabyte has come.
        mapping_of(options)
        draft = self.drafts.create([AnnouncedFile(name=name, bytes=declared_bytes)])
        try:
            await self.drafts.receive(draft.id, 0, 0, stream)
            self.drafts.finish(draft.id)
            checked = await asyncio.to_thread(self.check, draft.id, options)
        finally:
            self.drafts.discard(draft.id)
        if checked.dataset is None:
            assert checked.report.error is not None
            raise SlidepackError.from_report(checked.report.error)
        return checked.dataset

    def progress(self, draft_id: str) -> CheckProgress:
        """Return how much of a draft its check has read."""
        with self._lock:
            return CheckProgress(checked_bytes=self._checking.get(draft_id))

    def register(self, path: str) -> Draft:
        """Copy a file of this machine, or the files of a folder, into a draft.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DATA-PATH-REFUSED, DATA-REFUSED, DISK-FULL or
                DISK-UNWRITABLE.
        """
        # In the order that the draft will have.
        sources = sorted(data_files(path, MAX_FILES), key=lambda source: natural(source.name))
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open_data_file(source)) for source in sources]
            sizes = [os.fstat(file.fileno()).st_size for file in files]
            draft = self.drafts.create(
                [
                    AnnouncedFile(name=source.name, bytes=size)
                    for source, size in zip(sources, sizes, strict=True)
                ]
            )
            try:
                targets = [target for _, target in self.drafts.paths(draft.id)]
                for file, target, size in zip(files, targets, sizes, strict=True):
                    _copy(file, target, size)
            except OSError as error:
                self.drafts.discard(draft.id)
                raise disk_error(error, self._paths.home) from error
        return self.drafts.get(draft.id)

    def reread(self, dataset_id: int) -> Draft:
        """Make a draft of the files that a dataset came from, which are kept.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DISK-FULL or DISK-UNWRITABLE.
        """
        dataset = self._catalogue.dataset(dataset_id)
        originals = self.originals(dataset)
        names = [file.name for file in dataset.report.files] or [dataset.name]
        if len(names) != len(originals):
            raise SlidepackError(
                "DATA-NOT-FOUND",
                f"The files of dataset {dataset_id} are not all there any more.",
                why=f"{len(originals)} of {len(names)}",
                fix="Add them again.",
            )
        draft = self.drafts.create(
            [
                AnnouncedFile(name=name, bytes=path.stat().st_size)
                for name, path in zip(names, originals, strict=True)
            ],
            linked=True,
        )
        try:
            for (_, target), original in zip(self.drafts.paths(draft.id), originals, strict=True):
                # The same bytes under a second name; neither is ever written to.
                target.unlink()
                os.link(original, target)
        except OSError as error:
            self.drafts.discard(draft.id)
            raise disk_error(error, self._paths.home) from error
        return self.drafts.get(draft.id)

    def originals(self, dataset: DatasetRecord) -> list[Path]:
        """Return the files that a dataset came from, in the order of their rows."""
        return sorted(self._paths.dataset(dataset.id).glob("original*"))

    def check(self, draft_id: str, options: CheckOptions) -> Checked:
        """Read a draft's files; make a dataset of them where they can be used as they are.

        The same bytes, read in the same way, are the dataset that is there already.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DATA-UPLOAD-CUT where they are not all there,
                DATA-MAPPING-INVALID, DATA-FORMAT-UNKNOWN, DATA-REFUSED where files do not go
                together, DATA-IN-USE where another check of them goes on, DISK-FULL.
        """
        mapping_of(options)
        draft = self.drafts.get(draft_id)
        if (missing := draft.missing) is not None:
            raise SlidepackError(
                "DATA-UPLOAD-CUT",
                "The upload broke off.",
                why=f"{missing.received} of {missing.bytes} bytes of {clip(missing.name)} came",
                fix="Drop the file again: it goes on from there.",
            )
        with self._busy(draft_id):
            try:
                return self._checked(draft, options)
            except OSError as error:
                raise disk_error(error, self._paths.home) from error

    def _checked(self, draft: Draft, options: CheckOptions) -> Checked:
        files = self.drafts.paths(draft.id)
        folder = self.drafts.folder(draft.id)
        digest = _digest([path for _, path in files])
        suffix = suffix_of(files[0][0])
        known = self._catalogue.find_dataset(digest, options, suffix, len(files))
        if known is not None and self._is_whole(known):
            self.drafts.discard(draft.id)
            first = rows_seen(self._paths.dataset(known.id) / "rows.jsonl")
            return _made(known, first)
        rows, rejects = folder / "rows.jsonl", folder / "rejects.jsonl"
        try:
            report = judge_files(files, rows, rejects, options, lambda n: self._read(draft.id, n))
            first = rows_seen(rows)
            if report.error is not None:
                return Checked(
                    draft=draft.id,
                    name=draft.name,
                    report=report,
                    dataset=None,
                    columns=columns_seen(files[0][1], options),
                    rows=first,
                )
            return _made(self._keep(draft, digest, report, rows, rejects), first)
        finally:
            rows.unlink(missing_ok=True)
            rejects.unlink(missing_ok=True)

    def _keep(
        self, draft: Draft, digest: str, report: DataReport, rows: Path, rejects: Path
    ) -> DatasetRecord:
        size = sum(file.received for file in draft.files)
        files = self.drafts.paths(draft.id)
        dataset_id = self._catalogue.reserve_dataset(draft.name, size, digest, time.time())
        folder = self._paths.dataset(dataset_id)
        moves = [
            (path, folder / name)
            for (_, path), name in zip(files, _original_names(files), strict=True)
        ]
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for path, target in moves:
                _share(path, target)
            rows.rename(folder / rows.name)
            rejects.rename(folder / rejects.name)
            fsync_folder(folder)
            self._catalogue.set_dataset_report(dataset_id, report)
        except BaseException:
            # What was sent stays a draft: once there is room again, it is only checked again.
            for path, target in moves:
                with contextlib.suppress(FileNotFoundError):
                    target.rename(path)
            shutil.rmtree(folder, ignore_errors=True)
            self._catalogue.drop_dataset(dataset_id)
            raise
        self.drafts.discard(draft.id)
        return self._catalogue.dataset(dataset_id)

    def _is_whole(self, dataset: DatasetRecord) -> bool:
        """Return whether a dataset's rows are still those that were checked."""
        try:
            found = _digest([self._paths.dataset(dataset.id) / "rows.jsonl"])
        except OSError:
            return False
        return found == dataset.report.content_hash

    def _read(self, draft_id: str, num_bytes: int) -> None:
        with self._lock:
            self._checking[draft_id] = num_bytes

    @contextlib.contextmanager
    def _busy(self, draft_id: str) -> Iterator[None]:
        with self._lock:
            if draft_id in self._checking:
                raise SlidepackError(
                    "DATA-IN-USE",
                    "These files are being checked already.",
                    fix="Wait until that is done.",
                )
            self._checking[draft_id] = 0
        try:
            yield
        finally:
            with self._lock:
                del self._checking[draft_id]


def _made(dataset: DatasetRecord, rows: tuple[RowSeen, ...]) -> Checked:
    return Checked(
        draft=None,
        name=dataset.name,
        report=dataset.report,
        dataset=dataset,
        columns=(),
        rows=rows,
    )


def _original_names(files: Sequence[tuple[str, Path]]) -> list[str]:
    """Return what files are called in the folder of their dataset."""
    if len(files) == 1:
        return [f"original{suffix_of(files[0][0])}"]
    return [f"original-{number:03d}{suffix_of(name)}" for number, (name, _) in enumerate(files, 1)]


def _share(path: Path, target: Path) -> None:
    """Give a file a second name; the draft keeps its own until the dataset is there.

    So a daemon that is killed in between leaves a draft that is whole.
    """
    try:
        target.hardlink_to(path)
    except OSError as error:
        # Some file systems have no hard links.
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        path.rename(target)


def _copy(file: BinaryIO, target: Path, size: int) -> None:
    """Copy so many bytes: what is appended meanwhile is no part of the file that was named."""
    with target.open("wb") as copy:
        while size and (data := file.read(min(size, _COPY_BYTES))):
            copy.write(data)
            size -= len(data)


def _digest(paths: Sequence[Path]) -> str:
    """Return the sha256 of a file, or of the digests of several, in their order."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
