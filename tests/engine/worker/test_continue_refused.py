"""What a job is to go on from is missing, changed, damaged or does not fit: it fails by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.continuing import continued, error_of, result_weights
from support.full_worker import events_of, finish, start
from support.pack_runs import finish_pack, make_pack, pack_plan
from support.runs import make_run, tiny_spec

from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.contract.events import Progress
from slidepack.engine.contract.job import FullMethod, JobSpec, LoraMethod
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.checkpoint import read_state

_LORA = LoraMethod(rank=4, alpha=8)


@pytest.fixture(scope="module", params=["lora", "full"])
def parent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A completed run of a few steps."""
    base = tmp_path_factory.mktemp("parent")
    method = _LORA if request.param == "lora" else FullMethod()
    run = make_run(base / "parent", tiny_spec(base, method=method))
    finish(run)
    return run


def _copied(child: JobSpec, folder: Path) -> JobSpec:
    """Let a job go on from a copy that may be damaged."""
    origin = child.continues
    assert origin is not None
    folder.mkdir()
    for path in Path(origin.path).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    moved = msgspec.structs.replace(origin, path=str(folder))
    return msgspec.structs.replace(child, continues=moved)


def _weights(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[-1]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def _other_hash(folder: Path) -> None:
    state = msgspec.structs.replace(read_state(folder), tensors_hash="0" * 64)
    (folder / "state.json").write_bytes(msgspec.json.encode(state))


_OF_WEIGHTS: dict[str, Callable[[Path], object]] = {
    "weights cut off": lambda f: os.truncate(_weights(f), _weights(f).stat().st_size - 1),
    "weights empty": lambda f: _weights(f).write_bytes(b""),
    "weights gone": lambda f: _weights(f).unlink(),
    "a bit flipped": lambda f: _flip(_weights(f)),
    "folder gone": lambda f: f.rename(f.with_name("elsewhere")),
}
_OF_STATE: dict[str, Callable[[Path], object]] = {
    "state gone": lambda f: (f / "state.json").unlink(),
    "half a state": lambda f: os.truncate(f / "state.json", 40),
    "another checkpoint": _other_hash,
}
DAMAGE = _OF_WEIGHTS | _OF_STATE


def _fails(spec: JobSpec, root: Path, code: str) -> Any:
    run = make_run(root, spec)
    assert start(run).wait() == CATALOGUE[code].exit_code, run.log.read_text()
    error = error_of(run).error
    assert error.code == code
    assert not [event for event in events_of(run) if isinstance(event, Progress)]
    assert not run.result.exists()
    assert not run.list_checkpoints()
    return error


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_checkpoint_is_named_and_nothing_else_is_taken(
    tmp_path: Path, parent: RunFolder, damage: str
) -> None:
    child = _copied(continued(parent), tmp_path / "origin")
    DAMAGE[damage](tmp_path / "origin")
    error = _fails(child, tmp_path / "child", "RUN-ORIGIN-BROKEN")
    assert str(tmp_path / "origin") in error.why
    assert "job 7" in error.what


@pytest.mark.parametrize("damage", _OF_WEIGHTS)
def test_a_broken_result_is_named_too(tmp_path: Path, parent: RunFolder, damage: str) -> None:
    for checkpoint in parent.list_checkpoints():
        checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}"))
    try:
        child = _copied(continued(parent), tmp_path / "origin")
    finally:
        for checkpoint in list(parent.checkpoints.iterdir()):
            checkpoint.rename(checkpoint.with_name(checkpoint.name.removeprefix(".")))
    DAMAGE[damage](tmp_path / "origin")
    error = _fails(child, tmp_path / "child", "RUN-ORIGIN-BROKEN")
    assert str(tmp_path / "origin") in error.why


def test_an_origin_that_went_while_it_waited_fails_a_resumed_run_too(
    tmp_path: Path, parent: RunFolder
) -> None:
    """It would be missed in the end, when what was learned is judged."""
    child = _copied(continued(parent, checkpoint_every_steps=1), tmp_path / "origin")
    first = make_run(tmp_path / "first", child)
    finish(first)
    own = tuple(map(str, first.list_checkpoints()))
    (tmp_path / "origin").rename(tmp_path / "elsewhere")
    second = make_run(tmp_path / "second", child, attempt=2, resume_from=own)
    assert start(second).wait() == CATALOGUE["RUN-ORIGIN-BROKEN"].exit_code


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"alpha": 16}, "alpha, which scales what was learned, was 8, and is 16"),
        ({"rank": 8}, "the rank was 4, and is 8"),
        ({"rslora": True}, "rslora, which scales what was learned, was false, and is true"),
        ({"targets": ("q_proj",)}, "the list of linears was"),
    ],
)
def test_another_adapter_is_refused_with_what_differs(
    tmp_path: Path, parent: RunFolder, changes: dict[str, Any], told: str
) -> None:
    child = continued(parent)
    if not isinstance(child.method, LoraMethod):
        changes, told = {}, 'the method was "full", and is "lora"'
        method: LoraMethod = _LORA
    else:
        method = child.method
    other = msgspec.structs.replace(child, method=msgspec.structs.replace(method, **changes))
    error = _fails(other, tmp_path / "child", "RUN-CHECKPOINT-OTHER-JOB")
    assert told in error.why


def test_another_base_is_refused(tmp_path: Path, parent: RunFolder) -> None:
    child = continued(parent)
    base = msgspec.structs.replace(child.base, content_hash="another")
    error = _fails(
        msgspec.structs.replace(child, base=base), tmp_path / "child", "RUN-CHECKPOINT-OTHER-JOB"
    )
    assert 'the base model was "-", and is "another"' in error.why


def test_rows_that_were_held_out_are_not_trained_on(tmp_path: Path, parent: RunFolder) -> None:
    child = continued(parent, seed=11)
    held = msgspec.structs.replace(child.eval, split_seed=11)
    error = _fails(
        msgspec.structs.replace(child, eval=held), tmp_path / "child", "RUN-CHECKPOINT-OTHER-JOB"
    )
    assert "eval.split_seed was 3, and is 11: rows would change sides" in error.why


def test_a_lane_that_cannot_go_on_leaves_the_others_alone(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, method=_LORA)
    first = make_run(tmp_path / "parent", spec)
    finish(first)
    good = continued(first, name="good")
    bad = _copied(msgspec.structs.replace(good, name="bad"), tmp_path / "origin")
    _flip(_weights(tmp_path / "origin"))
    runs = [make_run(tmp_path / one.name, one) for one in (bad, good)]
    finish_pack(make_pack(tmp_path / "pack", runs, pack_plan([bad, good])))
    assert error_of(runs[0]).error.code == "RUN-ORIGIN-BROKEN"
    alone = make_run(tmp_path / "alone", good)
    finish_pack(make_pack(tmp_path / "alone-pack", [alone], pack_plan([good])))
    assert result_weights(runs[1]) == result_weights(alone)
