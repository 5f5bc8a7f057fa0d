"""The tensor files of a full fine-tuning's checkpoint, one a unit, read in whatever form they are.

A run resumes its own in place. Who continues another run may hold its weights in another form: on a
card as a bf16 plane and a remainder, on a CPU in fp32. These say the same, and are converted.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.load_state import tensor_places
from slidepack.engine.sliding.state import MomentFormat, StateFormat, TrainState, Unit
from slidepack.engine.worker.tensor_file import read_tensors, write_tensors
from slidepack.kernels import AdamWState

__all__ = ["UnitWeights", "named_tensors", "read_units", "take_units", "write_units"]

_MOMENTS: Final[dict[str, MomentFormat]] = {"F32": "fp32", "BF16": "bf16", "I8": "int8"}
_LONGEST_HEADER: Final = 1 << 20


def write_units(state: TrainState, folder: Path) -> str:
    """Write each unit's state as it is in memory; return the digest of the files.

    Raises:
        OSError: the disk refused.
    """
    digest = hashlib.sha256()
    for index, one in enumerate(state.states):
        digest.update(write_tensors(_file(folder, index), named_tensors(one)).encode())
    return digest.hexdigest()


def read_units(state: TrainState, folder: Path, digest: str) -> None:
    """Read each unit's state in place, in the form that it has in memory.

    Raises:
        OSError: a file cannot be read.
        ValueError: they are damaged, or of another form; a part of the state may be overwritten.
    """
    found = hashlib.sha256()
    for index, one in enumerate(state.states):
        found.update(read_tensors(_file(folder, index), named_tensors(one)).encode())
    _compare(found.hexdigest(), digest)


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
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB: the moments are stored in another form.
    """
    if moments:
        _check_moments(state, folder)
    found = hashlib.sha256()
    for index, unit in enumerate(state.units):
        with _Room(unit, folder, index) as room:
            found.update(room.digest.encode())
            state.write(index, 0, room.state.read(0, 0, unit.elements))
            if moments:
                _copy_moments(room.state.states[0], state.states[index])
    _compare(found.hexdigest(), digest)


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
            with _Room(self._units[index], self._folder, index) as room:
                self._held = room.state.read(0, 0, self._units[index].elements)
            self._index = index
        return self._held[start : start + count].view(size)


class _Room:
    """A unit's state in the form of its file, and in memory of its own."""

    def __init__(self, unit: Unit, folder: Path, index: int) -> None:
        path = _file(folder, index)
        self.state = TrainState((unit,), _form_of(path), pin=False)
        try:
            self.digest = read_tensors(path, named_tensors(self.state.states[0]))
        except BaseException:
            self.state.slab.close()
            raise

    def __enter__(self) -> "_Room":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.state.slab.close()


def named_tensors(state: AdamWState) -> dict[str, Tensor]:
    """Return a unit's tensors under their names in its file."""
    named = {
        "master": state.master,
        "remainder": state.remainder,
        "exp_avg": state.exp_avg,
        "exp_avg_sq": state.exp_avg_sq,
        "exp_avg_scale": state.exp_avg_scale,
        "exp_avg_sq_scale": state.exp_avg_sq_scale,
    }
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _check_moments(state: TrainState, folder: Path) -> None:
    found = _form_of(_file(folder, 0)).moments
    if found != state.form.moments:
        raise SlidepackError(
            "RUN-CHECKPOINT-OTHER-JOB",
            "The optimizer's state cannot be taken over: it is stored in another form.",
            why=f"{folder} has moments in {found}, the run holds them in {state.form.moments}",
            fix=f"Set moments to {found}, or take the weights only.",
        )


def _copy_moments(source: AdamWState, target: AdamWState) -> None:
    for name, tensor in named_tensors(target).items():
        if name.startswith("exp_avg"):
            tensor.copy_(named_tensors(source)[name])


def _form_of(path: Path) -> StateFormat:
    """Return in which form a unit's file holds its state.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a file.
    """
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(length) if 0 < length <= _LONGEST_HEADER else b""
    try:
        header: dict[str, Any] = json.loads(text)
        return StateFormat(
            split="remainder" in header, moments=_MOMENTS[header["exp_avg"]["dtype"]]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged: it does not say what it holds") from error


def _compare(found: str, digest: str) -> None:
    if found != digest:
        raise ValueError("its tensor files are damaged (their digest differs)")


def _file(folder: Path, index: int) -> Path:
    return folder / f"unit-{index:05d}.safetensors"
