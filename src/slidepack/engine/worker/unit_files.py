"""The tensor files of a full fine-tuning's checkpoint, one a unit, read in whatever form they are.

A run resumes its own in place. Who continues another run may hold its weights in another form: on a
card as a bf16 plane and a remainder, on a CPU in fp32. These say the same, and are converted; and
what was in RAM may be on a drive now, or the other way round.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.load_state import tensor_places
from slidepack.engine.sliding.state import TrainState, Unit
from slidepack.engine.sliding.state_format import named_tensors
from slidepack.engine.worker.stored_unit import (
    StoredUnit,
    TierCheck,
    TierRecord,
    TierUnit,
    read_tier_record,
    tier_paths,
    unit_path,
    write_tier_record,
)
from slidepack.engine.worker.tensor_file import file_digest, read_tensors, write_tensors
from slidepack.kernels import join_master

__all__ = ["UnitWeights", "read_units", "take_units", "write_units"]

_NONE: Final = TierUnit(master=False, moments=False)


def write_units(
    state: TrainState, folder: Path, on_progress: Callable[[], None] = lambda: None
) -> str:
    """Write each unit's state as it is; return the digest of the files.

    What is on drives is linked where the file system can, not copied.

    Args:
        state: with no update under way.
        folder: of the checkpoint.
        on_progress: called when the disks have got on with it.

    Raises:
        OSError: the disk refused.
        SlidepackError: a drive did.
    """
    digest = hashlib.sha256()
    for index, one in enumerate(state.states):
        tensors = named_tensors(one)
        if tensors:
            written = write_tensors(unit_path(folder, index), tensors, on_progress)
            digest.update(written.encode())
    record = _record_of(state)
    if record is not None:
        assert state.tier is not None
        for index in range(len(state.units)):
            if state.tier.has(index):
                state.tier.link(index, tier_paths(folder, index, record.stripes), on_progress)
        digest.update(write_tier_record(folder, record))
    return digest.hexdigest()


def _record_of(state: TrainState) -> TierRecord | None:
    """Return how what is on drives lies there; None where nothing is."""
    layouts = [state.layout(unit) for unit in range(len(state.units))]
    if state.tier is None or not any(layouts):
        return None
    return TierRecord(
        chunk=state.tier.chunk,
        stripes=state.tier.stripes,
        split=state.form.split,
        moments=state.form.moments,
        elements=tuple(unit.elements for unit in state.units),
        units=tuple(
            _NONE if one is None else TierUnit(one.parts.master, one.parts.moments)
            for one in layouts
        ),
        checks=tuple(
            tuple(TierCheck(first, *check) for first, check in state.tier.checks(unit).items())
            if state.tier.has(unit)
            else ()
            for unit in range(len(state.units))
        ),
    )


def read_units(state: TrainState, folder: Path, digest: str) -> bool:
    """Read each unit's state in place, wherever that is and wherever it was.

    Returns:
        Whether some of it was on drives.

    Raises:
        OSError: a file cannot be read.
        ValueError: they are damaged, or of another form; a part of the state may be overwritten.
        SlidepackError: a drive failed.
    """
    record, data = read_tier_record(folder)
    found = hashlib.sha256()
    for index, one in enumerate(state.states):
        path = unit_path(folder, index)
        if record is None or record.layout(index) is None or path.exists():
            same = state.layout(index) is None and (record is None or record.layout(index) is None)
            if same:
                found.update(read_tensors(path, named_tensors(one)).encode())
                continue
            found.update(file_digest(path).encode())
        _take_unit(state, index, folder, record)
    found.update(data)
    _compare(found.hexdigest(), digest)
    return record is not None


def _take_unit(state: TrainState, index: int, folder: Path, record: TierRecord | None) -> None:
    """Fill a unit some of which is, or was, on a drive."""
    layout = state.layout(index)
    stored = None if record is None else record.layout(index)
    with StoredUnit(folder, index, state.units[index].elements) as unit:
        if unit.form != state.form:
            raise ValueError(f"unit {index} is stored in another form")
        _check(unit, record, index)
        adopted = layout is not None and layout == stored and _adopt(state, index, folder, record)
        for start, values in unit.pieces() if not adopted else unit.pieces_in_ram():
            state.assign(index, start, values)


def _adopt(state: TrainState, index: int, folder: Path, record: TierRecord | None) -> bool:
    """Take a unit's file as it is, where the file system can link it; return whether it did."""
    assert state.tier is not None
    if record is None or record.stripes != state.tier.stripes:
        return False
    paths = tier_paths(folder, index, record.stripes)
    return state.tier.adopt(index, paths, record.checks_of(index))


def _check(unit: StoredUnit, record: TierRecord | None, index: int) -> None:
    """Compare a unit's files of a drive with their digests."""
    if record is not None:
        unit.check_tier(record.checks_of(index))


def take_units(state: TrainState, folder: Path, digest: str, *, moments: bool) -> None:
    """Fill a state from another run's files, whose weights may be in another form.

    Args:
        state: whose moments are zero.
        folder: of a checkpoint.
        digest: of its files.
        moments: take AdamW's moments too.

    Raises:
        OSError: a file cannot be read.
        ValueError: they are damaged, or of another model.
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB: the moments are stored in another form; or a drive
            failed.
    """
    _compare(_digest_of(folder, len(state.units)), digest)
    record, _ = read_tier_record(folder)
    for index, unit in enumerate(state.units):
        with StoredUnit(folder, index, unit.elements) as stored:
            _check(stored, record, index)
            if moments:
                _check_moments(state, stored, folder)
            for start, values in stored.pieces():
                state.write(index, start, _fp32(values))
                if moments:
                    state.assign(index, start, _moments_of(values))


def _digest_of(folder: Path, units: int) -> str:
    record, data = read_tier_record(folder)
    found = hashlib.sha256()
    for index in range(units):
        path = unit_path(folder, index)
        if record is None or record.layout(index) is None or path.exists():
            found.update(file_digest(path).encode())
    found.update(data)
    return found.hexdigest()


class UnitWeights:
    """The weights in a checkpoint's files by their names in the model, one unit at a time."""

    def __init__(self, folder: Path, shape: ModelShape, units: tuple[Unit, ...]) -> None:
        """Bind the files; they are read as tensors are asked for.

        Args:
            folder: of a checkpoint.
            shape: of its model.
            units: of its state.
        """
        self._folder = folder
        self._units = units
        self._places = tensor_places(shape)
        self._index = -1
        self._held: Tensor | None = None

    def read(self, name: str, size: tuple[int, ...]) -> Tensor:
        """Return a tensor in fp32.

        Raises:
            OSError: a file cannot be read.
            ValueError: it is of another model.
        """
        index, start, count = self._places[name]
        if self._held is None or index != self._index:
            # The one before goes first: a unit may be as large as the memory that is left.
            self._held = None
            with StoredUnit(self._folder, index, self._units[index].elements) as unit:
                held = torch.empty(unit.elements)
                for first, values in unit.pieces():
                    piece = _fp32(values)
                    held[first : first + piece.numel()] = piece
            self._held, self._index = held, index
        return self._held[start : start + count].view(size)


def _fp32(values: dict[str, Tensor]) -> Tensor:
    if "remainder" not in values:
        return values["master"]
    return join_master(values["master"], values["remainder"])


def _moments_of(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in values.items() if name.startswith("exp_avg")}


def _check_moments(state: TrainState, stored: StoredUnit, folder: Path) -> None:
    found = stored.form.moments
    if found != state.form.moments:
        raise SlidepackError(
            "RUN-CHECKPOINT-OTHER-JOB",
            "The optimizer's state cannot be taken over: it is stored in another form.",
            why=f"{folder} has moments in {found}, the run holds them in {state.form.moments}",
            fix=f"Set moments to {found}, or take the weights only.",
        )


def _compare(found: str, digest: str) -> None:
    if found != digest:
        raise ValueError("its tensor files are damaged (their digest differs)")
