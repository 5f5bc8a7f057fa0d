"""A real model on real text: the sliding walk beside transformers with torch's AdamW."""

import sys
from pathlib import Path
from typing import Final

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from slidepack.engine.contract.job import (
    DatasetRef,
    EvalSpec,
    FullMethod,
    JobSpec,
    ModelRef,
    OptimSpec,
)
from slidepack.engine.contract.plan import ActivationPolicy, FullPlan, Residency, RunPlan
from slidepack.engine.data.check import check_file
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.lora.optimizer import learning_rate
from slidepack.engine.worker.dataset import EncodedData, load_data
from slidepack.engine.worker.full_trainee import load_full
from slidepack.engine.worker.order import rows_of_step

# Six steps of every weight, twice, take minutes on a slow machine.
pytestmark = [pytest.mark.full, pytest.mark.thorough, pytest.mark.timeout(900)]
DATA = Path(__file__).resolve().parents[3] / "src/slidepack/cli/demo_data/train.jsonl"
STEPS: Final = 6
Curve = list[tuple[float, float, float]]
"""Loss, gradient norm, held-out loss after the step."""


def _spec(model: Path, folder: Path) -> JobSpec:
    rows = folder / "rows.jsonl"
    report = check_file(DATA, rows, folder / "rejects.jsonl")
    return JobSpec(
        name="real",
        base=ModelRef(model_id="smollm2", path=str(model), content_hash="-"),
        dataset=DatasetRef(dataset_id="1", path=str(rows), content_hash=report.content_hash),
        method=FullMethod(),
        optim=OptimSpec(lr=5e-5, weight_decay=0.01, warmup_fraction=0.2),
        batch_size=8,
        max_seq_len=256,
        steps=STEPS,
        eval=EvalSpec(selection_fraction=0.08),
    )


def _plan(layers: int) -> RunPlan:
    homes: tuple[Residency, ...] = tuple("host" for _ in range(layers))
    policies: tuple[ActivationPolicy, ...] = tuple("recompute" for _ in range(layers))
    return RunPlan(
        device="cpu",
        precision="fp32",
        layer_weights=homes,
        layer_activations=policies,
        optimizer_state="host",
        cpu_threads=torch.get_num_threads(),
        micro_batch_tokens=512,
        predicted_device_bytes=0,
        predicted_host_bytes=0,
        predicted_disk_bytes=0,
        reason="a test",
        full=FullPlan(
            weights="slide",
            weight_slots=3,
            grad_slots=2,
            host_grad_slots=2,
            engine="cpu",
            rows="host",
            moments="fp32",
            max_tokens=8 * 256,
            longest_row=256,
        ),
    )


def test_a_real_model_learns_as_it_does_in_transformers(
    smollm2_folder: Path, tmp_path: Path
) -> None:
    spec = _spec(smollm2_folder, tmp_path)
    data = load_data(spec, load_tokenizer(smollm2_folder), spec.max_seq_len, lambda _: None)
    ours = _ours(smollm2_folder, spec, data)
    theirs = _theirs(smollm2_folder, spec, data)
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        pairs = "  ".join(f"{a:.6f} {b:.6f}" for a, b in zip(one, other, strict=True))
        sys.stdout.write(f"step {step + 1}: {pairs}\n")
    assert ours[-1][2] < ours[0][2] - 0.3, "nothing was learned"
    for one, other in zip(ours, theirs, strict=True):
        # fp32 over 30 layers, in another order of sums: each step starts from weights that differ.
        assert one == pytest.approx(other, rel=1e-3)


def _ours(model: Path, spec: JobSpec, data: EncodedData) -> Curve:
    trainee = load_full(
        model,
        _plan(30),
        spec.optim,
        torch.device("cpu"),
        lambda _done, _total: None,
        lambda: None,
        lambda _shape, _plan: None,
        lambda _code, _message: None,
    )

    curve = []
    try:
        for step in range(STEPS):
            rows = rows_of_step(spec, data.train, step)
            loss, norm = trainee.train_step(rows, step, STEPS)
            curve.append((loss.mean, norm, trainee.evaluate(data.selection).mean))
    finally:
        trainee.close()
    return curve


def _theirs(folder: Path, spec: JobSpec, data: EncodedData) -> Curve:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.ndim == 2], "weight_decay": spec.optim.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=spec.optim.lr)
    curve = []
    for step in range(STEPS):
        rows = rows_of_step(spec, data.train, step)
        loss = _loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, spec.optim.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec.optim, step, STEPS)
        optimizer.step()
        with torch.no_grad():
            held_out = _loss(model, list(data.selection))
        curve.append((float(loss.detach()), float(norm), float(held_out)))
    return curve


def _loss(model: PreTrainedModel, rows: list[EncodedRow]) -> torch.Tensor:
    """Return the mean over all supervised tokens of the rows, one row after the other."""
    supervised = sum(sum(row.supervised[1:]) for row in rows)
    total = torch.zeros(())
    for row in rows:
        ids = torch.tensor(row.ids)
        labels = torch.where(torch.tensor(row.supervised), ids, -100)[1:]
        logits = model(ids[None]).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return total / supervised
