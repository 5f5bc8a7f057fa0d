"""Specifications: what is refused, and that what was queued once still loads."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.engine.contract.job import (
    LORA_TARGETS,
    DatasetRef,
    EvalSpec,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    OptimSpec,
)

GOLDEN = Path(__file__).parent / "golden"

SPEC = JobSpec(
    name="night run 木",
    base=ModelRef(model_id="m", path="/models/m", content_hash="abc", revision="r"),
    dataset=DatasetRef(dataset_id="d", path="/data/d", content_hash="def", mapping="chat"),
    method=LoraMethod(
        rank=4,
        alpha=32,
        dropout=0.1,
        targets=("q_proj", "v_proj"),
        rslora=True,
        base_precision="bf16",
    ),
    optim=OptimSpec(
        lr=1e-3,
        schedule="linear",
        warmup_fraction=0.1,
        beta1=0.8,
        beta2=0.95,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=0.5,
    ),
    batch_size=4,
    max_seq_len=512,
    epochs=1.5,
    eval=EvalSpec(
        selection=DatasetRef(dataset_id="s", path="/data/s", content_hash="ghi"),
        selection_fraction=0.2,
        test_fraction=0.1,
        max_rows=32,
        every_steps=5,
        sample_prompts=("Who?",),
        sample_tokens=16,
    ),
    checkpoint_every_steps=7,
    seed=11,
)


def test_a_specification_of_version_one_loads_for_ever() -> None:
    data = (GOLDEN / "job-v1.json").read_bytes()
    assert msgspec.json.decode(data, type=JobSpec) == SPEC
    assert msgspec.json.decode(msgspec.json.encode(SPEC), type=JobSpec) == SPEC


def test_a_short_specification_of_version_one_loads_for_ever() -> None:
    spec = msgspec.json.decode((GOLDEN / "job-v1-short.json").read_bytes(), type=JobSpec)
    assert spec.method == FullMethod()
    assert (spec.steps, spec.batch_size, spec.optim.lr) == (10, 8, 2e-4)


def _fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(SPEC)
    for path, value in changes.items():
        *parents, name = path.split("__")
        inner = fields
        for parent in parents:
            inner = inner[parent]
        inner[name] = value
    return fields


@pytest.mark.parametrize(
    "changes",
    [
        {"surprise": 1},
        {"optim__surprise": 1},
        {"method__kind": "magic"},
        {"version": 2},
        {"name": " "},
        {"name": "x" * 201},
        {"name": "two\nlines"},
        {"name": "\x1b[2J"},
        {"batch_size": 0},
        {"batch_size": 5000},
        {"batch_size": 1.5},
        {"max_seq_len": 15},
        {"max_seq_len": 1 << 21},
        {"epochs": 0.0},
        {"steps": 10},
        {"steps": -5},
        {"epochs": -1.0, "steps": 5},
        {"epochs": 1e9},
        {"epochs": 0.0, "steps": 10**9},
        {"checkpoint_every_steps": -1},
        {"checkpoint_minutes": 0.0},
        {"checkpoint_minutes": 1441.0},
        {"seed": -1},
        {"seed": 1 << 63},
        {"method__rank": 0},
        {"method__rank": 1025},
        {"method__alpha": 0},
        {"method__dropout": 1.0},
        {"method__targets": []},
        {"method__targets": ["lm_head"]},
        {"method__targets": ["q_proj", "q_proj"]},
        {"method__base_precision": "int3"},
        {"optim__lr": 0.0},
        {"optim__lr": 1.5},
        {"optim__schedule": "magic"},
        {"optim__warmup_fraction": 1.1},
        {"optim__beta1": 1.0},
        {"optim__beta2": -0.1},
        {"optim__eps": 0.0},
        {"optim__weight_decay": -1.0},
        {"optim__clip_norm": -1.0},
        {"eval__selection_fraction": 0.45},
        {"eval__test_fraction": -0.1},
        {"eval__split_seed": -1},
        {"eval__max_rows": 0},
        {"eval__every_steps": -1},
        {"eval__sample_tokens": 0},
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(changes: dict[str, Any]) -> None:
    data = msgspec.json.encode(_fields(**changes))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=JobSpec)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    ["lr", "warmup_fraction", "beta1", "beta2", "eps", "weight_decay", "clip_norm"],
)
def test_what_toml_can_say_and_json_cannot(name: str, value: float) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        OptimSpec(**changes)
    with pytest.raises(ValueError, match="epochs"):
        msgspec.structs.replace(SPEC, epochs=value)
    with pytest.raises(ValueError, match="dropout"):
        LoraMethod(dropout=value)
    with pytest.raises(ValueError, match="held out"):
        EvalSpec(selection_fraction=value)


def test_the_scale_of_an_adapter() -> None:
    assert LoraMethod(rank=4, alpha=32).scale == 8.0
    assert LoraMethod(rank=4, alpha=32, rslora=True).scale == 16.0
    assert LoraMethod().targets == LORA_TARGETS


def test_specifications_are_immutable() -> None:
    with pytest.raises(AttributeError):
        SPEC.seed = 3  # type: ignore[misc]
