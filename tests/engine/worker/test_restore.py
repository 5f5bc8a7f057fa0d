"""What a run goes on from: damaged checkpoints are passed, another job's are adopted or refused."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from support.packing import random_rows
from support.runs import make_run, tiny_spec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.lineage import fixed_part, spec_hash
from slidepack.engine.contract.runfolder import RunIdentity
from slidepack.engine.worker.checkpoint import LaneState, read_state, save_checkpoint
from slidepack.engine.worker.full_trainee import load_full
from slidepack.engine.worker.restore import Origin, restore
from slidepack.engine.worker.trainee import Trainee, load_lora

Told = list[tuple[str, str]]


def _trainee(root: Path, spec: JobSpec) -> Trainee:
    plan = make_run(root, spec).read_plan()
    folder, device = Path(spec.base.path), torch.device("cpu")
    if isinstance(spec.method, LoraMethod):
        return load_lora(
            folder, spec.method, plan, spec.optim, 0, device, lambda *_: None, lambda: None
        )
    return load_full(
        folder,
        plan,
        spec.optim,
        device,
        lambda *_: None,
        lambda: None,
        lambda *_: None,
        lambda *_: None,
    )


@pytest.fixture(params=["lora", "full"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> JobSpec:
    method = LoraMethod(rank=4) if request.param == "lora" else FullMethod()
    return tiny_spec(tmp_path, method=method, optim=OptimSpec(lr=1e-2, warmup_fraction=0.0))


@pytest.fixture
def trainee(tmp_path: Path, spec: JobSpec) -> Iterator[Trainee]:
    """What restores."""
    made = _trainee(tmp_path / "run", spec)
    yield made
    made.close()


@pytest.fixture
def maker(tmp_path: Path, spec: JobSpec) -> Iterator[Trainee]:
    """What wrote the checkpoints, after a step."""
    made = _trainee(tmp_path / "maker", spec)
    _step(made, 0)
    yield made
    made.close()


def _step(trainee: Trainee, step: int) -> None:
    rows = random_rows((21,), trainee.shape.vocab)
    trainee.train_step(rows, step, 8)


def _write(maker: Trainee, spec: JobSpec, folder: Path, step: int, **changes: object) -> Path:
    state = LaneState(
        step=step,
        total_steps=8,
        spec_hash=spec_hash(spec),
        eval_loss_before=3.0,
        seconds=1.0,
        tokens=9,
        fixed=fixed_part(spec),
    )
    return save_checkpoint(maker, msgspec.structs.replace(state, **changes), folder)


@pytest.mark.parametrize(
    ("exact", "kept"), [(False, [2, 4, 5]), (True, [2, 5])], ids=["room", "no-room"]
)
def test_a_healthy_checkpoint_stays_whatever_comes_after(
    maker: Trainee, spec: JobSpec, tmp_path: Path, exact: bool, kept: list[int]
) -> None:
    maker.keeps_exactly = exact
    folder = tmp_path / "kept"
    for step in range(1, 6):
        _write(maker, spec, folder, step, healthy=step <= 2)
        held = sorted(int(path.name[-8:]) for path in folder.iterdir())
        assert len(held) <= (2 if exact else 3)
    assert held == kept
    _write(maker, spec, folder, 6)
    assert sorted(int(path.name[-8:]) for path in folder.iterdir()) == [5, 6]


def _tensor_file(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[-1]


def _truncate(folder: Path) -> None:
    path = _tensor_file(folder)
    os.truncate(path, path.stat().st_size - 1)


def _flip_a_bit(folder: Path) -> None:
    path = _tensor_file(folder)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def _wrong_hash(folder: Path) -> None:
    state = msgspec.structs.replace(read_state(folder), tensors_hash="0" * 64)
    (folder / "state.json").write_bytes(msgspec.json.encode(state))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated tensors": _truncate,
    "empty tensors": lambda folder: _tensor_file(folder).write_bytes(b""),
    "missing tensors": lambda folder: _tensor_file(folder).unlink(),
    "flipped bit": _flip_a_bit,
    "longer tensors": lambda folder: os.truncate(
        _tensor_file(folder), _tensor_file(folder).stat().st_size + 1
    ),
    "missing state": lambda folder: (folder / "state.json").unlink(),
    "empty state": lambda folder: (folder / "state.json").write_bytes(b""),
    "half a state": lambda folder: os.truncate(folder / "state.json", 40),
    "state in no encoding": lambda folder: (folder / "state.json").write_bytes(b'"\xff"'),
    "wrong hash": _wrong_hash,
    "no permission": lambda folder: folder.chmod(0),
}


@contextlib.contextmanager
def _as_a_user() -> Iterator[None]:
    """Give up root's right to read everything, where this is root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("adopted", [False, True], ids=["own", "adopted"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_taken(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee, damage: str, *, adopted: bool
) -> None:
    older = _write(maker, spec, tmp_path / "checkpoints", 2)
    expected = read_state(older).tensors_hash
    _step(maker, 1)
    newest = _write(maker, spec, tmp_path / "checkpoints", 4)
    assert read_state(newest).tensors_hash != expected
    told: Told = []
    DAMAGE[damage](newest)
    paths = (str(newest), str(older))
    identity = RunIdentity(
        job_id="j",
        attempt=2,
        nonce="n",
        resume_from=() if adopted else paths,
        adopt_from=paths if adopted else (),
    )
    parents = [path for path in newest.parents if path.stat().st_mode & 0o055 != 0o055]
    modes = {path: path.stat().st_mode for path in parents}
    for path in parents:
        # Only the checkpoint itself is to be out of reach.
        path.chmod(0o755)
    try:
        with _as_a_user() if damage == "no permission" else contextlib.nullcontext():
            origin = restore(trainee, identity, spec, 8, lambda *one: told.append(one))
    finally:
        newest.chmod(0o700)
        for path, mode in modes.items():
            path.chmod(mode)
    assert (origin.path, origin.adopted) == (str(older), adopted)
    assert origin.state is not None
    assert origin.state.step == 2
    ((code, message),) = told
    assert code == "RUN-CHECKPOINT-CORRUPT"
    assert str(newest) in message
    (tmp_path / "restored").mkdir()
    assert trainee.save(tmp_path / "restored") == expected


def _adopt(
    trainee: Trainee, spec: JobSpec, *paths: Path, steps: int = 8, told: Told | None = None
) -> Origin:
    identity = RunIdentity(
        job_id="j", attempt=1, nonce="n", adopt_from=tuple(str(path) for path in paths)
    )
    heard: Told = [] if told is None else told
    return restore(trainee, identity, spec, steps, lambda *one: heard.append(one))


def _gentler(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(
        spec, name="gentler", optim=OptimSpec(lr=1e-5, schedule="constant"), steps=20
    )


def test_another_learning_rate_and_length_may_adopt(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee
) -> None:
    made = _write(maker, spec, tmp_path, 4)
    origin = _adopt(trainee, _gentler(spec), made, steps=20)
    assert origin.adopted
    assert origin.state == read_state(made)


def test_its_own_checkpoint_comes_before_another_jobs(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee
) -> None:
    gentler = _gentler(spec)
    theirs = _write(maker, spec, tmp_path / "theirs", 6)
    own = _write(maker, gentler, tmp_path / "own", 4)
    identity = RunIdentity(
        job_id="j", attempt=2, nonce="n", resume_from=(str(own),), adopt_from=(str(theirs),)
    )
    assert restore(trainee, identity, gentler, 20, lambda *_: None).path == str(own)


def test_a_checkpoint_made_while_the_run_diverged_is_not_adopted(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee
) -> None:
    good = _write(maker, spec, tmp_path, 2)
    bad = _write(maker, spec, tmp_path, 4, healthy=False, good_step=2)
    told: Told = []
    assert _adopt(trainee, _gentler(spec), bad, good, steps=20, told=told).path == str(good)
    assert [code for code, _ in told] == ["RUN-CHECKPOINT-UNHEALTHY"]
    with pytest.raises(SlidepackError, match="was diverging when it was made") as caught:
        _adopt(trainee, _gentler(spec), bad, steps=20)
    assert caught.value.report.code == "RUN-NO-CHECKPOINT"


def test_its_own_newest_checkpoint_is_resumed_from_however_it_was(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee
) -> None:
    """A run that was interrupted goes on as it would have."""
    bad = _write(maker, spec, tmp_path, 4, healthy=False)
    identity = RunIdentity(job_id="j", attempt=2, nonce="n", resume_from=(str(bad),))
    assert restore(trainee, identity, spec, 8, lambda *_: None).path == str(bad)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch_size": 2}, "batch_size was 4, and is 2"),
        ({"seed": 9}, "seed was 3, and is 9"),
        ({"max_seq_len": 64}, "max_seq_len was 128, and is 64"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_what_differs(
    tmp_path: Path,
    spec: JobSpec,
    maker: Trainee,
    trainee: Trainee,
    changes: dict[str, object],
    told: str,
) -> None:
    made = _write(maker, spec, tmp_path, 4)
    with pytest.raises(SlidepackError) as caught:
        _adopt(trainee, msgspec.structs.replace(spec, **changes), made)
    assert caught.value.report.code == "RUN-CHECKPOINT-OTHER-JOB"
    assert told in caught.value.report.why


def test_a_checkpoint_behind_the_jobs_end_is_refused(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee
) -> None:
    made = _write(maker, spec, tmp_path, 8)
    with pytest.raises(SlidepackError, match="8 steps behind it, and the job is 8 long") as caught:
        _adopt(trainee, _gentler(spec), made)
    assert caught.value.report.code == "RUN-CHECKPOINT-OTHER-JOB"


def test_a_checkpoint_of_an_older_version_resumes_and_is_not_adopted(
    tmp_path: Path, spec: JobSpec, maker: Trainee, trainee: Trainee
) -> None:
    made = _write(maker, spec, tmp_path, 4)
    fields = msgspec.json.decode((made / "state.json").read_bytes())
    older = {
        name: fields[name]
        for name in (
            "step",
            "total_steps",
            "spec_hash",
            "eval_loss_before",
            "seconds",
            "tokens",
            "evaluated_step",
            "has_known",
            "tensors_hash",
        )
    }
    (made / "state.json").write_bytes(msgspec.json.encode(older))
    identity = RunIdentity(job_id="j", attempt=2, nonce="n", resume_from=(str(made),))
    origin = restore(trainee, identity, spec, 8, lambda *_: None)
    assert origin.state is not None
    assert origin.state.newest_good_step == 4
    with pytest.raises(SlidepackError, match="does not say what it was made with"):
        _adopt(trainee, _gentler(spec), made, steps=20)


def test_without_anything_to_go_on_from_a_run_begins(
    tmp_path: Path, spec: JobSpec, trainee: Trainee
) -> None:
    told: Told = []
    identity = RunIdentity(job_id="j", attempt=2, nonce="n", resume_from=(str(tmp_path / "gone"),))
    assert restore(trainee, identity, spec, 8, lambda *one: told.append(one)) == Origin()
    assert [code for code, _ in told] == ["RUN-CHECKPOINT-CORRUPT"]


def test_the_last_two_checkpoints_are_kept_and_the_newest_good_one(
    tmp_path: Path, spec: JobSpec, maker: Trainee
) -> None:
    def kept() -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in tmp_path.glob("step-*"))

    tmp_path = tmp_path / "checkpoints"
    for step, healthy, expected in (
        (1, True, [1]),
        (2, True, [1, 2]),
        (3, False, [2, 3]),
        (4, False, [2, 3, 4]),
        (5, False, [2, 4, 5]),
        (6, True, [5, 6]),
        (7, False, [6, 7]),
    ):
        _write(maker, spec, tmp_path, step, healthy=healthy)
        assert kept() == expected
