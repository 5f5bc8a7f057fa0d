"""One adapter in PEFT: `python -m slidepack.engine.bench_packed.peft_baseline OPTIONS`.

The options and the answer are JSON. Alone in its package it imports transformers and peft, which
are no dependencies of slidepack; nothing imports this module.
"""

import sys
from typing import Any, Final

import msgspec
import peft
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from slidepack.engine.bench_packed.device import measured_device, measured_dtype
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.peft_process import PeftAnswer
from slidepack.engine.bench_packed.steps import time_steps
from slidepack.engine.contract.job import LORA_TARGETS, OptimSpec
from slidepack.engine.resident_memory import known_peak_resident_bytes
from slidepack.engine.shape import ModelShape, RopeShape

__all__ = ["base_model", "main", "measure"]

_MODEL_TYPES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
}
"""Of the architectures of the benchmarks' shapes."""


def measure(options: PackedOptions) -> PeftAnswer:
    """Time an ordinary eager loop: nothing is padded, checkpointed or compiled.

    Adapters are in the precision of the base: PEFT's own choice, fp32, is slower.
    """
    device = measured_device(options)
    model: Any = peft.get_peft_model(
        base_model(options.model_shape, device, measured_dtype(device)),
        peft.LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,
            lora_dropout=0.0,
            target_modules=list(LORA_TARGETS),
            task_type="CAUSAL_LM",
        ),
        autocast_adapter_dtype=False,
    )
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=OptimSpec().lr, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(0)
    size = (options.batch, options.seq)
    ids = torch.randint(0, options.model_shape.vocab, size, generator=generator).to(device)
    loss = torch.zeros((), device=device)

    def step() -> None:
        nonlocal loss
        result = model(input_ids=ids, labels=ids).loss
        result.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = result.detach()

    times = time_steps(step, options, device)
    return PeftAnswer(
        times=times,
        host_peak_bytes=known_peak_resident_bytes(),
        trainable_params=sum(weight.numel() for weight in trained),
        adapter_precision=str(trained[0].dtype).removeprefix("torch."),
        loss=float(loss),
        versions={
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        },
    )


def base_model(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Any:
    """Return transformers' model of a shape, with random weights and SDPA.

    Raises:
        KeyError: the benchmarks have no shape of this architecture.
    """
    config = AutoConfig.for_model(
        _MODEL_TYPES[shape.architecture],
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=shape.rms_eps,
        rope_parameters=_rope_parameters(shape.rope),
        tie_word_embeddings=shape.tied_head,
        # Mistral's default is a window, which the shape does not have.
        sliding_window=None,
        use_cache=False,
    )
    untyped: Any = AutoModelForCausalLM
    with torch.device(device):
        return untyped.from_config(config, dtype=dtype, attn_implementation="sdpa")


def _rope_parameters(rope: RopeShape) -> dict[str, Any]:
    if rope.kind == "default":
        return {"rope_type": "default", "rope_theta": rope.theta}
    return {
        "rope_type": rope.kind,
        "rope_theta": rope.theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position,
    }


def main(arguments: list[str]) -> int:
    """Measure what the one argument asks for, and print the answer."""
    answer = measure(msgspec.json.decode(arguments[0], type=PackedOptions))
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
