"""What needs a GPU: attention, a training step and a whole run in bf16."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from support.lanes import TinyLane, pack_on, shake
from support.runs import events_of, make_run, run_worker, tiny_spec

from slidepack.engine.bench import SHAPES
from slidepack.engine.contract.events import Evaluated, Finished, Progress, Started
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import random_decoder
from slidepack.kernels import AttentionChoice, Segments, attention, choose_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (8, 8), (4, 1)])
@pytest.mark.parametrize("lengths", [(128,), (1, 7, 300, 64)])
def test_varlen_attention_within_the_error_budget(
    heads: int, kv_heads: int, lengths: tuple[int, ...]
) -> None:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    segments = Segments(
        bounds=tuple(bounds), cu_seqlens=torch.tensor(bounds, dtype=torch.int32, device=GPU)
    )
    generator = torch.Generator(GPU).manual_seed(0)

    def normal(count: int) -> torch.Tensor:
        return torch.randn(bounds[-1], count, 64, device=GPU, generator=generator)

    inputs = [normal(heads), normal(kv_heads), normal(kv_heads)]
    weight = normal(heads)
    choice = choose_attention(GPU, torch.bfloat16, 64)
    assert choice.path == "varlen", choice.reason
    plain = AttentionChoice(path="segments", reason="judge")

    def run(dtype: torch.dtype, path: AttentionChoice) -> list[torch.Tensor]:
        leaves = [x.bfloat16().to(dtype).requires_grad_() for x in inputs]
        q, k, v = leaves
        output = attention(q, k, v, segments, path)
        (output.double() * weight).sum().backward()
        grads = [leaf.grad.double() for leaf in leaves if leaf.grad is not None]
        return [output.detach().double(), *grads]

    truth, same_dtype, ours = (
        run(torch.float64, plain),
        run(torch.bfloat16, plain),
        run(torch.bfloat16, choice),
    )
    for t, s, o in zip(truth, same_dtype, ours, strict=True):
        # bf16 keeps 8 bits; both paths round the same sums in another order.
        tolerance = 2**-7 * float(t.abs().max())
        assert float((t - o).abs().max()) <= float((t - s).abs().max()) + tolerance


LANE = TinyLane(
    name="lane", method=LoraMethod(rank=8, dropout=0.1), lengths=(100, 17, 260, 1), total_steps=1
)


def _loss_and_gradient(decoder: Decoder, policy: ActivationPolicy) -> tuple[float, torch.Tensor]:
    policies = (policy,) * decoder.shape.num_layers
    pack = pack_on(decoder, [LANE], activations=policies, max_tokens=300)
    arena = pack.lanes[LANE.name]
    shake(arena, 0.01)
    outcome = pack.step({LANE.name: LANE.work(0, decoder.shape.vocab)})[LANE.name]
    return outcome.loss.mean, arena.grads.clone()


def test_a_bf16_step_stays_close_to_fp32() -> None:
    # Few layers: the gradient of thirty random ones is mostly rounding in bf16.
    shape = msgspec.structs.replace(SHAPES["smollm2-135m"], num_layers=3)
    wide = random_decoder(shape, GPU, torch.float32, seed=0)
    narrow = random_decoder(shape, GPU, torch.bfloat16, seed=0)
    loss, gradient = _loss_and_gradient(wide, "keep")
    bf16_loss, bf16_gradient = _loss_and_gradient(narrow, "keep")
    assert abs(loss - bf16_loss) <= 0.01 * loss
    cosine = float(torch.nn.functional.cosine_similarity(gradient, bf16_gradient, dim=0))
    assert cosine >= 0.98, cosine


def test_heads_that_flash_attention_does_not_take_have_another_path() -> None:
    for head_size, path in ((64, "varlen"), (12, "segments"), (320, "segments")):
        assert choose_attention(GPU, torch.bfloat16, head_size).path == path


def test_recompute_equals_keep_on_the_gpu() -> None:
    decoder = random_decoder(SHAPES["smollm2-135m"], GPU, torch.float32, seed=0)
    kept_loss, kept = _loss_and_gradient(decoder, "keep")
    loss, gradient = _loss_and_gradient(decoder, "recompute")
    assert loss == kept_loss
    assert torch.equal(gradient, kept)


def test_a_worker_runs_and_resumes_on_the_gpu(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, steps=12, checkpoint_every_steps=4)
    folder = make_run(tmp_path / "run", spec)
    plan = json.loads(folder.plan.read_text())
    folder.plan.write_bytes(msgspec.json.encode(plan | {"device": "cuda:0", "precision": "bf16"}))
    assert run_worker(folder) == 0, folder.log.read_text()
    events = events_of(folder)
    (started,) = [event for event in events if isinstance(event, Started)]
    assert started.device.startswith("cuda:0 (")
    assert started.precision == "bf16"
    assert len([event for event in events if isinstance(event, Progress)]) == 12
    assert isinstance(events[-1], Finished)
    resumed = make_run(
        tmp_path / "resumed",
        spec,
        attempt=2,
        resume_from=(str(folder.list_checkpoints()[1]),),
    )
    resumed.plan.write_bytes(folder.plan.read_bytes())
    assert run_worker(resumed) == 0, resumed.log.read_text()
    held_out = [event.loss for event in events if isinstance(event, Evaluated)]
    again = [event.loss for event in events_of(resumed) if isinstance(event, Evaluated)]
    assert again[-1] == pytest.approx(held_out[-1], rel=1e-3)
