"""The run folder: what is written is read back, and a crash leaves old or new content."""

import os
from pathlib import Path

import msgspec
import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import (
    RunFolder,
    RunIdentity,
    write_atomic,
    write_structs,
)
from slidepack.engine.contract.sweep import Halving, LaneSweep

SPEC = JobSpec(
    name="n",
    base=ModelRef(model_id="m", path="m", content_hash="-"),
    dataset=DatasetRef(dataset_id="d", path="d", content_hash="-"),
    method=LoraMethod(),
    steps=1,
)
PLAN = RunPlan(
    device="cpu",
    precision="fp32",
    layer_weights=("device",),
    layer_activations=("keep",),
    optimizer_state="device",
    cpu_threads=1,
    micro_batch_tokens=64,
    predicted_device_bytes=0,
    predicted_host_bytes=1,
    predicted_disk_bytes=1,
    reason="fits",
)
IDENTITY = RunIdentity(
    job_id="1",
    attempt=2,
    nonce="n",
    resume_from=("a", "b"),
    adopt_from=("c",),
    disk_floor_bytes=7,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "jobs" / "run")
    folder.create(SPEC, PLAN, IDENTITY)
    assert folder.read_spec() == SPEC
    assert folder.read_plan() == PLAN
    assert folder.read_identity() == IDENTITY
    assert sorted(path.name for path in folder.root.iterdir()) == [
        "checkpoints",
        "plan.json",
        "run.json",
        "spec.json",
    ]
    with pytest.raises(FileExistsError):
        folder.create(SPEC, PLAN, IDENTITY)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"version": 9}', b"\xff"])
def test_a_broken_folder_is_a_coded_error(tmp_path: Path, content: bytes | None) -> None:
    folder = RunFolder(tmp_path)
    if content is not None:
        for path in (folder.spec, folder.plan, folder.identity):
            path.write_bytes(content)
    for read in (folder.read_spec, folder.read_plan, folder.read_identity):
        with pytest.raises(SlidepackError) as caught:
            read()
        assert caught.value.report.code == "RUN-FOLDER-BROKEN"


def test_checkpoints_newest_first(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.list_checkpoints() == []
    for name in ("step-00000009", "step-00000100", ".tmp-step-00000200"):
        (folder.checkpoints / name).mkdir(parents=True)
    assert [path.name for path in folder.list_checkpoints()] == ["step-00000100", "step-00000009"]


def test_an_atomic_write_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if step == "fsync":
            patch.setattr(os, "fsync", refuse)
        else:
            patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_crash_at_any_call_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is durable before it gets its name, and the name is durable at the end."""
    path = tmp_path / "file"
    write_atomic(path, b"old")
    seen: list[tuple[str, bytes]] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        seen.append(("fsync", path.read_bytes()))
        fsync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        seen.append(("replace", path.read_bytes()))
        assert self.read_bytes() == b"new"
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_atomic(path, b"new")
    assert seen == [("fsync", b"old"), ("replace", b"old"), ("fsync", b"new")]


def test_unknown_fields_of_plan_and_identity_are_refused() -> None:
    for value in (PLAN, IDENTITY):
        fields = msgspec.to_builtins(value) | {"surprise": 1}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(fields, type(value))


def test_an_identity_of_an_older_version_loads() -> None:
    older = b'{"job_id":"1","attempt":2,"nonce":"n","resume_from":["a"]}'
    identity = msgspec.json.decode(older, type=RunIdentity)
    assert (identity.adopt_from, identity.disk_floor_bytes) == ((), 0)


def test_a_floor_below_nothing_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="disk_floor_bytes is -1"):
        msgspec.convert(msgspec.to_builtins(IDENTITY) | {"disk_floor_bytes": -1}, RunIdentity)


def test_a_run_says_where_it_is_judged_or_that_nobody_judges_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_sweep() is None
    judged = LaneSweep(rungs="/sweeps/1/rungs.json", halving=Halving(first_samples=8))
    write_structs({folder.sweep: judged})
    assert folder.read_sweep() == judged
    folder.sweep.write_text('{"rungs": "/x", "halving": {"first_samples": 0}}')
    with pytest.raises(SlidepackError, match="RUN-FOLDER-BROKEN"):
        folder.read_sweep()
