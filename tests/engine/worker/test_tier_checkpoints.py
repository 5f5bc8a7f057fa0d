"""Checkpoints of state on a drive: links that nothing writes to, and files that are used again."""

import hashlib
from pathlib import Path

import msgspec
import pytest
import torch

from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.state import StateFormat, TrainState, Unit
from slidepack.engine.sliding.tier_store import TierSetup
from slidepack.engine.worker.stored_unit import read_tier_record, write_tier_record
from slidepack.engine.worker.unit_files import read_units, write_units

UNITS = [Unit("layer 0", 10_000, 9_000), Unit("embedding", 5_000, 5_000)]
FORM = StateFormat(split=True, moments="int8")


def _state(folder: Path, *, on_tier: bool = True, units: tuple[int, ...] = (0, 1)) -> TrainState:
    chosen = frozenset(units)
    tier = TierSetup(
        folders=(folder / "one", folder / "two"),
        moments=chosen,
        master=chosen,
        transport=RingTransport(threads=2),
        chunk=4096,
    )
    return TrainState(UNITS, FORM, pin=False, tier=tier if on_tier else None)


def _fill(state: TrainState, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for index, unit in enumerate(UNITS):
        state.write(index, 0, torch.randn(unit.elements, generator=random))


def _weights(state: TrainState) -> list[torch.Tensor]:
    return [state.read(index, 0, unit.elements) for index, unit in enumerate(UNITS)]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _save(state: TrainState, folder: Path) -> str:
    folder.mkdir()
    return write_units(state, folder)


def test_a_checkpoint_is_a_link_and_stays_as_it_was(tmp_path: Path) -> None:
    state = _state(tmp_path)
    _fill(state, 1)
    before = _weights(state)
    digest = _save(state, tmp_path / "first")
    files = sorted((tmp_path / "first").glob("*.state-*"))
    assert len(files) == 4
    assert {file.stat().st_nlink for file in files} == {2}
    contents = [file.read_bytes() for file in files]
    _fill(state, 2)
    assert not _same(_weights(state), before)
    assert [file.read_bytes() for file in files] == contents
    read_units(state, tmp_path / "first", digest)
    assert _same(_weights(state), before)
    assert [file.stat().st_nlink for file in files] == [3, 3, 3, 3]
    state.close()
    assert [file.read_bytes() for file in files] == contents
    assert {file.stat().st_nlink for file in files} == {1}


def test_files_of_checkpoints_that_are_gone_are_used_again(tmp_path: Path) -> None:
    state = _state(tmp_path)
    counts = []
    for step in range(6):
        _fill(state, step)
        folder = tmp_path / f"step-{step}"
        _save(state, folder)
        old = tmp_path / f"step-{step - 2}"
        for file in old.iterdir() if old.exists() else ():
            file.unlink()
        counts.append(len(list((tmp_path / "one").iterdir())))
    assert counts[3:] == [counts[3]] * 3
    state.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (0, 1)), ((0, 1), ()), ((1,), (0, 1)), ((0,), (0, 1)), ((0, 1), (1,)), ((0,), (1,))],
    ids=str,
)
def test_state_is_taken_over_in_either_form(
    tmp_path: Path, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    source = _state(tmp_path / "source", on_tier=bool(before), units=before)
    _fill(source, 1)
    digest = _save(source, tmp_path / "saved")
    target = _state(tmp_path / "target", on_tier=bool(after), units=after)
    read_units(target, tmp_path / "saved", digest)
    assert _same(_weights(source), _weights(target))
    source.close()
    target.close()


@pytest.mark.parametrize("to_tier", [True, False], ids=["linked", "to-ram"])
def test_a_flipped_bit_is_found(tmp_path: Path, to_tier: bool) -> None:
    state = _state(tmp_path)
    _fill(state, 1)
    digest = _save(state, tmp_path / "saved")
    target = _state(tmp_path / "target", on_tier=to_tier)
    read_units(target, tmp_path / "saved", digest)
    again = _save(target, tmp_path / "again") if to_tier else digest
    folder = tmp_path / ("again" if to_tier else "saved")
    for path in sorted(folder.glob("*.state-*")):
        size = path.stat().st_size
        for place in (0, size - 4096) if size else ():
            _flip(path, place)
            with pytest.raises(ValueError, match="not what was written"):
                read_units(target, folder, again)
            _flip(path, place)
    read_units(target, folder, again)
    state.close()
    target.close()


def _flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 16]))


def test_checkpoints_of_before_there_were_digests_are_read(tmp_path: Path) -> None:
    state = _state(tmp_path)
    _fill(state, 1)
    _save(state, tmp_path / "saved")
    record, _ = read_tier_record(tmp_path / "saved")
    assert record is not None
    data = write_tier_record(tmp_path / "saved", msgspec.structs.replace(record, checks=()))
    before = _weights(state)
    _fill(state, 2)
    read_units(state, tmp_path / "saved", hashlib.sha256(data).hexdigest())
    assert _same(_weights(state), before)
    state.close()


def test_damaged_records_and_missing_files_are_refused(tmp_path: Path) -> None:
    state = _state(tmp_path)
    _fill(state, 1)
    digest = _save(state, tmp_path / "saved")
    file = tmp_path / "saved" / "unit-00001.state-0"
    file.rename(file.with_name("away"))
    with pytest.raises(ValueError, match="No such file"):
        read_units(state, tmp_path / "saved", digest)
    file.with_name("away").rename(file)
    record = tmp_path / "saved" / "tier.json"
    record.write_text(record.read_text().replace("4096", "8192"))
    with pytest.raises(ValueError):
        read_units(state, tmp_path / "saved", digest)
    state.close()
