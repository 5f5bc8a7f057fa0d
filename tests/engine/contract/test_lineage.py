"""Which job may go on from which checkpoint."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.engine.contract.job import ContinueRef, JobSpec
from slidepack.engine.contract.lineage import (
    differences,
    fixed_part,
    held_out_loss_is_comparable,
    misfits,
    spec_hash,
)

GOLDEN = Path(__file__).parent / "golden"
SPEC = msgspec.json.decode((GOLDEN / "job-v1.json").read_bytes(), type=JobSpec)


def _changed(path: str, value: Any) -> JobSpec:
    fields: dict[str, Any] = msgspec.to_builtins(SPEC)
    *parents, name = path.split("__")
    inner = fields
    for parent in parents:
        inner = inner[parent]
    assert inner[name] != value
    inner[name] = value
    return msgspec.convert(fields, JobSpec)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("job-v1.json", "5251a94d3c2f0dfd7a0605e2bb20fe1c02d3c9b3d9c9c8255ea9d96b2b15ef92"),
        ("job-v1-short.json", "c8aea1258da1dbd2ebb33f39560aa5faab981978b5894e89556e5f1347249c05"),
    ],
)
def test_checkpoints_of_version_one_stay_those_of_their_job(name: str, digest: str) -> None:
    """These are the hashes that its workers wrote."""
    spec = msgspec.json.decode((GOLDEN / name).read_bytes(), type=JobSpec)
    assert spec_hash(spec) == digest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("optim__lr", 3e-4),
        ("optim__schedule", "constant"),
        ("optim__warmup_fraction", 0.0),
        ("epochs", 9.0),
        ("eval__max_rows", 7),
        ("eval__judge_rows", 7),
        ("eval__every_steps", 7),
        ("eval__sample_prompts", ["What?"]),
        ("eval__sample_tokens", 7),
        ("checkpoint_every_steps", 0),
        ("checkpoint_minutes", 1.0),
        ("base__path", "/elsewhere"),
        ("base__name", "other"),
        ("dataset__path", "/elsewhere"),
        ("dataset__dataset_id", "copy"),
        ("eval__selection__path", "/elsewhere"),
    ],
)
def test_what_may_change(path: str, value: Any) -> None:
    assert differences(fixed_part(SPEC), fixed_part(_changed(path, value))) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("base__content_hash", "x", 'base.content_hash was "abc", and is "x"'),
        ("dataset__content_hash", "x", 'dataset.content_hash was "def", and is "x"'),
        ("method__rank", 8, "method.rank was 4, and is 8"),
        ("method__targets", ["q_proj"], 'method.targets was ["q_proj","v_proj"], and is'),
        ("method__base_precision", "nf4", "method.base_precision was"),
        ("optim__beta1", 0.9, "optim.beta1 was 0.8, and is 0.9"),
        ("optim__clip_norm", 1.0, "optim.clip_norm was 0.5, and is 1.0"),
        ("batch_size", 8, "batch_size was 4, and is 8"),
        ("max_seq_len", 256, "max_seq_len was 512, and is 256"),
        ("too_long", "cut", 'too_long was "drop", and is "cut"'),
        ("seed", 3, "seed was 11, and is 3"),
        ("eval__selection__content_hash", "x", 'eval.selection.content_hash was "ghi"'),
        ("eval__selection", None, "eval.selection"),
        ("eval__selection_fraction", 0.3, "eval.selection_fraction was 0.2, and is 0.3"),
        ("eval__test_fraction", 0.2, "eval.test_fraction was 0.1, and is 0.2"),
        ("eval__split_seed", 3, "eval.split_seed was not set, and is 3"),
    ],
)
def test_what_may_not_change_is_named(path: str, value: Any, told: str) -> None:
    found = differences(fixed_part(SPEC), fixed_part(_changed(path, value)))
    assert found
    assert found[0].startswith(told)


def test_another_method_is_another_job() -> None:
    full = msgspec.json.decode((GOLDEN / "job-v1-short.json").read_bytes(), type=JobSpec)
    found = differences(fixed_part(SPEC), fixed_part(full))
    assert 'method.kind was "lora", and is "full"' in found
    assert "method.rank was 4, and is not set" in found


def test_how_often_it_is_saved_does_not_make_another_job() -> None:
    assert spec_hash(_changed("checkpoint_minutes", 1.0)) == spec_hash(SPEC)
    assert spec_hash(_changed("seed", 3)) != spec_hash(SPEC)


def _continuing(spec: JobSpec, **changes: Any) -> JobSpec:
    origin = ContinueRef(
        job="3", path="/there", kind="checkpoint", digest="d", step=4, taken="state"
    )
    return msgspec.structs.replace(spec, continues=msgspec.structs.replace(origin, **changes))


def test_a_job_that_continues_nothing_is_what_it_was_before_there_was_continuing() -> None:
    """Jobs in the queue, and their checkpoints, keep their hashes."""
    spec = msgspec.json.decode((GOLDEN / "job-v1.json").read_bytes(), type=JobSpec)
    assert spec.continues is None
    assert spec_hash(spec) == "5251a94d3c2f0dfd7a0605e2bb20fe1c02d3c9b3d9c9c8255ea9d96b2b15ef92"
    assert not [name for name in fixed_part(spec) if name.startswith("continues")]
    assert spec_hash(_continuing(spec)) != spec_hash(spec)
    assert spec_hash(_continuing(spec)) != spec_hash(_continuing(spec, taken="weights"))


def test_a_rescue_of_a_continuation_begins_with_the_same_origin() -> None:
    made = fixed_part(_continuing(SPEC))
    assert differences(made, fixed_part(_continuing(SPEC, path="/elsewhere", base_loss=2.0))) == []
    told = differences(made, fixed_part(_continuing(SPEC, digest="e", taken="weights")))
    assert told == [
        'continues.digest was "d", and is "e"',
        'continues.taken was "state", and is "weights"',
    ]
    assert differences(made, fixed_part(SPEC)) != []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("optim__lr", 3e-4),
        ("optim__weight_decay", 0.5),
        ("optim__beta1", 0.9),
        ("optim__clip_norm", 1.0),
        ("method__dropout", 0.5),
        ("batch_size", 8),
        ("max_seq_len", 256),
        ("too_long", "cut"),
        ("epochs", 9.0),
        ("eval__max_rows", 7),
        ("eval__every_steps", 7),
        ("dataset__content_hash", "x"),
        ("eval__selection__content_hash", "x"),
        ("method__targets", ["v_proj", "q_proj"]),
    ],
)
def test_what_may_differ_in_a_job_that_continues(path: str, value: Any) -> None:
    assert misfits(fixed_part(SPEC), fixed_part(_changed(path, value))) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("base__content_hash", "x", 'the base model was "abc", and is "x"'),
        ("method__rank", 8, "the rank was 4, and is 8"),
        ("method__alpha", 8, "alpha, which scales what was learned, was 32, and is 8"),
        ("method__rslora", False, "rslora, which scales what was learned, was true, and is false"),
        ("method__targets", ["q_proj"], 'the list of linears was ["q_proj","v_proj"], and is'),
        ("method__base_precision", "nf4", 'the base\'s precision was "bf16", and is "nf4"'),
        ("eval__selection", None, "the held-out rows were taken from other rows"),
        ("eval__test_fraction", 0.2, "eval.test_fraction was 0.1, and is 0.2"),
        ("seed", 3, "eval.split_seed was 11, and is 3: rows would change sides"),
    ],
)
def test_what_may_not_differ_in_a_job_that_continues(path: str, value: Any, told: str) -> None:
    found = misfits(fixed_part(SPEC), fixed_part(_changed(path, value)))
    assert found
    assert found[0].startswith(told)


def test_on_other_rows_the_split_may_differ_and_where_nothing_is_held_out_its_seed_may() -> None:
    other = msgspec.structs.replace(_changed("dataset__content_hash", "x"), seed=3)
    assert misfits(fixed_part(SPEC), fixed_part(other)) == []
    none = msgspec.structs.replace(SPEC.eval, test_fraction=0.0)
    one = msgspec.structs.replace(SPEC, eval=none)
    assert misfits(fixed_part(one), fixed_part(msgspec.structs.replace(one, seed=3))) == []


@pytest.mark.parametrize(
    ("path", "value", "comparable"),
    [
        ("optim__lr", 3e-4, True),
        ("seed", 3, True),
        ("eval__max_rows", 7, False),
        ("max_seq_len", 256, False),
        ("too_long", "cut", False),
        ("dataset__content_hash", "x", False),
        ("eval__selection__content_hash", "x", False),
        ("method__base_precision", "nf4", False),
    ],
)
def test_the_bases_loss_is_carried_where_it_was_measured_on_the_same_tokens(
    path: str, value: Any, comparable: bool
) -> None:
    assert held_out_loss_is_comparable(SPEC, _changed(path, value)) == comparable
