"""The files of the state that is on drives: which hold it now, and which a checkpoint holds.

An update rewrites a unit whole, so what a checkpoint holds is never written again and yet never
copied: the first update after it goes to another file. A file is free again once no checkpoint has
a link to it. What a crash left half written is in files that only this run knew, and the next one
begins without them.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.nvme.choose import require_room
from slidepack.engine.nvme.failures import disk_error
from slidepack.engine.nvme.files import ALIGNMENT, Check, TierFile
from slidepack.engine.nvme.transport import Transport
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.state_format import count_of
from slidepack.engine.sliding.tier_copy import copy_durably
from slidepack.engine.sliding.tier_layout import Request, UnitLayout
from slidepack.engine.tier_folders import discard

__all__ = ["NO_LINKS", "TierSetup", "TierStore"]

logger = logging.getLogger(__name__)

_SUFFIX: Final = ".state"
NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
"""How file systems say that they make no hard link, or not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierSetup:
    """What of the state is on drives, and how it gets there."""

    folders: tuple[Path, ...]
    """Of this job alone, one a drive; what earlier attempts left there is removed."""
    moments: frozenset[int]
    """Units whose moments are there."""
    master: frozenset[int]
    """Units whose master weights are there."""
    transport: Transport
    chunk: int
    """Elements of a chunk."""
    sets: int = 1
    """Files of each unit to allocate before the start: one to work in, and one for each checkpoint
    that is kept."""
    copies: int = 0
    """Of the state that checkpoints are known to be, as no link can be made; 0 where it can."""


@dataclass(slots=True)
class _Unit:
    """The files of one unit."""

    layout: UnitLayout
    current: TierFile
    files: list[tuple[Path, ...]]
    """Every file there is, `current` among them."""
    frozen: bool = False
    """A checkpoint holds the current one."""
    target: TierFile | None = None
    """Where an update that began with a frozen file writes."""
    written: int = 0
    """Elements that the update under way has written."""
    untouched: set[int] = field(default_factory=set)
    """Chunks that are zero: nothing has been written there yet."""


@dataclass(slots=True)
class _Open:
    """The chunk that is being changed by hand."""

    unit: int
    index: int
    views: Mapping[str, Tensor]


class TierStore:
    """Files of whole units."""

    def __init__(
        self, setup: TierSetup, layouts: Sequence[UnitLayout | None], homes: Sequence[int]
    ) -> None:
        """Allocate the files, all zero.

        Args:
            setup: where.
            layouts: of every unit; None for one that is in RAM.
            homes: for each unit, the unit whose file it uses.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED; no file is left then.
        """
        self.transport = setup.transport
        self.chunk = setup.chunk
        self._folders = setup.folders
        self._homes = tuple(homes)
        self._lock = threading.Lock()
        self._serial = 0
        self._units: dict[int, _Unit] = {}
        self._open: _Open | None = None
        self._seen: tuple[tuple[int, int, bool], dict[str, Tensor]] | None = None
        self.copies = setup.copies
        """See `TierSetup`."""
        self.copied = setup.copies > 0
        """Whether checkpoints are copies: the file system makes no links to them."""
        self.written_bytes = 0
        """By the optimizer so far."""
        used = {home: layouts[home] for home in homes}
        found = {home: layout for home, layout in used.items() if layout is not None}
        most = max((layout.stage_bytes for layout in found.values()), default=ALIGNMENT)
        self._slab = Slab(most, pin=False)
        self._stage = self._slab.take(most, torch.uint8, alignment=ALIGNMENT)
        self._clear()
        sizes = [layout.bytes for layout in found.values() for _ in range(setup.sets)]
        require_room(self._folders, sizes)
        try:
            for home, layout in found.items():
                self._units[home] = self._allocate(home, layout, setup.sets)
        except BaseException:
            self.close(remove=True)
            raise

    def _clear(self) -> None:
        """Make the folders, and remove what earlier attempts worked in.

        A checkpoint keeps what it has by links of its own.
        """
        for folder in self._folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for path in folder.glob(f"*{_SUFFIX}"):
                    path.unlink()
            except OSError as error:
                raise disk_error(error, "open", folder) from error

    def _allocate(self, home: int, layout: UnitLayout, sets: int) -> _Unit:
        current = self._create(home, layout)
        unit = _Unit(layout, current, [current.paths], untouched=set(range(layout.count)))
        for _ in range(sets - 1):
            spare = self._create(home, layout)
            spare.close()
            unit.files.append(spare.paths)
        return unit

    def _create(self, home: int, layout: UnitLayout) -> TierFile:
        return TierFile.create(self._new_paths(home), layout.bytes, checks={})

    def _new_paths(self, home: int) -> list[Path]:
        self._serial += 1
        return [folder / f"{home:05d}-{self._serial:06d}{_SUFFIX}" for folder in self._folders]

    def extra(self, name: str, num_bytes: int) -> TierFile:
        """Return a file for something else, allocated; it goes when the store does.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
        """
        paths = [folder / f"{name}{_SUFFIX}" for folder in self._folders]
        for path in paths:
            path.unlink(missing_ok=True)
        require_room(self._folders, [num_bytes])
        return TierFile.create(paths, num_bytes)

    def has(self, unit: int) -> bool:
        """Return whether something of a unit is on the drives."""
        return self._homes[unit] in self._units

    def layout(self, unit: int) -> UnitLayout:
        """Return the layout of a unit's file."""
        return self._units[self._homes[unit]].layout

    @property
    def bytes(self) -> int:
        """Of the state, once."""
        return sum(unit.layout.bytes for unit in self._units.values())

    def source(self, unit: int) -> TierFile:
        """Return the file that holds a unit's state, for an engine: once all is settled."""
        self._require_settled()
        return self._units[self._homes[unit]].current

    def target(self, unit: int) -> TierFile:
        """Return the file that the update under way writes.

        Raises:
            SlidepackError: every file is held by a checkpoint, and the disk has no room for one
                more.
        """
        self._require_settled()
        one = self._units[self._homes[unit]]
        with self._lock:
            if not one.frozen:
                return one.current
            if one.target is None:
                one.target = self._spare(self._homes[unit], one)
            return one.target

    def _spare(self, home: int, unit: _Unit) -> TierFile:
        for paths in unit.files:
            if paths != unit.current.paths and all(path.stat().st_nlink == 1 for path in paths):
                return TierFile.open(paths, unit.layout.bytes, checks={})
        made = self._create(home, unit.layout)
        unit.files.append(made.paths)
        return made

    def landed(self, unit: int, elements: int) -> None:
        """Count what an update has written; with the last of it the new file holds the state."""
        one = self._units[self._homes[unit]]
        self._seen = None
        with self._lock:
            self.written_bytes += one.layout.bytes * elements // one.layout.elements
            one.written += elements
            if one.written < one.layout.elements:
                return
            one.written = 0
            one.untouched.clear()
            if one.target is not None:
                one.current.close()
                one.current, one.target, one.frozen = one.target, None, False

    def read_chunk(self, unit: int, index: int) -> dict[str, Tensor]:
        """Return copies of a chunk's tensors, by name; while no update is under way.

        The last ones are kept: who reads a unit tensor by tensor asks for a chunk several times.

        Raises:
            SlidepackError: DISK-FAILED.
        """
        key = (self._homes[unit], index, False)
        if self._seen is None or self._seen[0] != key:
            self.settle()
            layout = self.layout(unit)
            self._fetch(unit, layout.requests(index))
            views = layout.views(self._stage, index)
            self._seen = key, {name: view.clone() for name, view in views.items()}
        return self._seen[1]

    def read_plane(self, unit: int, index: int) -> dict[str, Tensor]:
        """Return a copy of the weights that the passes read, by their name; as `read_chunk`."""
        key = (self._homes[unit], index, True)
        if self._seen is None or self._seen[0] != key:
            self.settle()
            layout = self.layout(unit)
            self._fetch(unit, layout.requests(index)[:1])
            self._seen = key, {"master": layout.views(self._stage, index)["master"].clone()}
        return self._seen[1]

    def _fetch(self, unit: int, requests: Sequence[Request]) -> None:
        one = self._units[self._homes[unit]]
        waiting = [
            self.transport.read(one.current, offset, self._stage[start : start + size])
            for offset, start, size in requests
        ]
        for pending in waiting:
            pending.wait()

    def assign(self, unit: int, start: int, values: Mapping[str, Tensor]) -> None:
        """Change state by hand, while no update is under way.

        A chunk goes to the drive when another one is asked for.

        Args:
            unit: index.
            start: first element; a multiple of a block where there are scales.
            values: by name; those that are in RAM are passed over.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
        """
        layout = self.layout(unit)
        mine = {name: values[name] for name in layout.fields if name in values}
        if not mine:
            return
        self._seen = None
        stop = start + max(
            tensor.numel() for name, tensor in values.items() if not name.endswith("_scale")
        )
        for index in layout.chunks(start, stop):
            views = self._opened(self._homes[unit], index)
            begin, end = layout.span(index)
            first, last = max(begin, start), min(end, stop)
            for name, tensor in mine.items():
                source = slice(count_of(name, first - start), count_of(name, last - start))
                place = slice(count_of(name, first - begin), count_of(name, last - begin))
                views[name][place] = tensor[source]

    def _opened(self, home: int, index: int) -> Mapping[str, Tensor]:
        if self._open is not None and (self._open.unit, self._open.index) == (home, index):
            return self._open.views
        self.settle()
        one = self._units[home]
        if one.frozen:
            self._thaw(home, one)
        if index in one.untouched:
            self._stage.zero_()
        else:
            self._fetch(home, one.layout.requests(index))
        self._open = _Open(home, index, one.layout.views(self._stage, index))
        return self._open.views

    def _thaw(self, home: int, one: _Unit) -> None:
        """Copy a unit to a file of its own, chunk by chunk: a checkpoint holds the one it is in."""
        target = self._spare(home, one)
        for index in range(one.layout.count):
            self._fetch(home, one.layout.requests(index))
            self._put(target, one.layout, index)
        one.current.close()
        one.current, one.frozen = target, False

    def _put(self, file: TierFile, layout: UnitLayout, index: int) -> None:
        waiting = [
            self.transport.write(file, offset, self._stage[start : start + size])
            for offset, start, size in layout.requests(index)
        ]
        for pending in waiting:
            pending.wait()

    def settle(self) -> None:
        """Put what was changed by hand on the drive, before engines of several threads begin."""
        if self._open is None:
            return
        one = self._units[self._open.unit]
        index, self._open = self._open.index, None
        self._put(one.current, one.layout, index)
        one.untouched.discard(index)

    def _require_settled(self) -> None:
        assert self._open is None, "state was changed by hand while engines work"

    def link(
        self, unit: int, targets: Sequence[Path], on_progress: Callable[[], None] = lambda: None
    ) -> bool:
        """Give a checkpoint a unit's file as it is now, durably; while no update is under way.

        Args:
            unit: index.
            targets: paths of the links, one for each folder.
            on_progress: called when a drive has got on with it.

        Returns:
            Whether it is a link; else it is a copy, as the file system makes no link there.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
        """
        self.settle()
        one = self._units[self._homes[unit]]
        one.current.sync()
        on_progress()
        linked = _link_all(one.current.paths, targets, on_progress)
        # From here on the next update writes elsewhere, whatever becomes of the checkpoint.
        one.frozen |= linked
        self.copied = not linked
        return linked

    def checks(self, unit: int) -> dict[int, Check]:
        """Return the digests of what was written into a unit's file, by where it lies."""
        self.settle()
        found = self._units[self._homes[unit]].current.checks
        assert found is not None
        return dict(sorted(found.items()))

    def adopt(self, unit: int, sources: Sequence[Path], checks: Mapping[int, Check]) -> bool:
        """Take a checkpoint's files as they are for a unit's state.

        Args:
            unit: index.
            sources: of the same layout, one for each folder.
            checks: their digests.

        Returns:
            Whether it did; the file system may make no link of them here.

        Raises:
            OSError: a file is missing, or the file system refused.
            SlidepackError: a file is damaged.
        """
        home = self._homes[unit]
        one = self._units[home]
        # What was changed last may be of another unit.
        self.settle()
        self._seen = None
        paths = self._new_paths(home)
        if not _try_links(sources, paths):
            return False
        file = TierFile.open(paths, one.layout.bytes, checks=dict(checks))
        one.current.close()
        one.current, one.frozen, one.written = file, True, 0
        one.untouched.clear()
        one.files.append(file.paths)
        return True

    @property
    def stripes(self) -> int:
        """How many folders a file is striped over."""
        return len(self._folders)

    def close(self, *, remove: bool) -> None:
        """End the transport and close the files; without effect the second time.

        A drive that refuses is logged and no more: why the run ends is told by who ends it.

        Args:
            remove: the files too; checkpoints keep theirs.
        """
        self.transport.close()
        for unit in self._units.values():
            for file in (unit.current, unit.target):
                if file is not None:
                    _try_all(file.paths[0], file.close)
        self._units = {}
        self._slab.close()
        for folder in self._folders if remove else ():
            _remove(folder)


def _try_links(sources: Sequence[Path], targets: Sequence[Path]) -> bool:
    """Link files, all or none, and return whether the file system can.

    Raises:
        OSError: it refused for another reason.
    """
    try:
        for source, target in zip(sources, targets, strict=True):
            os.link(source, target)
    except OSError as error:
        for target in targets:
            target.unlink(missing_ok=True)
        if error.errno in NO_LINKS:
            return False
        raise
    return True


def _link_all(
    sources: Sequence[Path], targets: Sequence[Path], on_progress: Callable[[], None]
) -> bool:
    try:
        if _try_links(sources, targets):
            return True
    except OSError as error:
        raise disk_error(error, "allocate", targets[0]) from error
    for source, target in zip(sources, targets, strict=True):
        copy_durably(source, target, on_progress)
    return False


def _remove(folder: Path) -> None:
    """Remove a run's files and its folder, as far as the drive lets us."""

    def clear() -> None:
        _try_all(folder, *(path.unlink for path in folder.glob(f"*{_SUFFIX}")))

    _try_all(folder, clear, lambda: discard(folder))


def _try_all(where: Path, *tries: Callable[[], None]) -> None:
    for one in tries:
        try:
            one()
        except OSError as error:
            logger.warning("%s was not left in order: %s", where, error)
