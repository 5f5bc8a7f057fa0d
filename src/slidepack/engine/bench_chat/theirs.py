"""transformers' `generate`, and PEFT's for several adapters in a batch.

Neither is a dependency of slidepack: this module alone imports them, and only the process that
measures them imports it.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from slidepack.engine.bench_chat.options import ChatOptions, Rate
from slidepack.engine.bench_chat.ours import prompt_tokens
from slidepack.engine.data.tokenizer import load_tokenizer

__all__ = ["Theirs", "versions"]


class Theirs:
    """A loaded model."""

    def __init__(self, options: ChatOptions, adapters: Sequence[Path]) -> None:
        """Load the model, and the adapters where there are any."""
        device = torch.device(options.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
        model = model.to(device)
        for number, path in enumerate(adapters):
            if number:
                model.load_adapter(str(path), adapter_name=path.name)
            else:
                model = peft.PeftModel.from_pretrained(
                    model, str(path), adapter_name=path.name, autocast_adapter_dtype=False
                )
        self._model = model.eval()
        self._tokenizer = load_tokenizer(Path(options.model))
        self._device = device
        self._options = options

    @torch.inference_mode()
    def measure(self, voices: Sequence[str]) -> Rate:
        """Time one answer of each voice; none for one of the base."""
        options = self._options
        rows = max(1, len(voices))
        ids = torch.tensor([prompt_tokens(self._tokenizer, options.prompt, 0)])
        batch = ids.expand(rows, -1).to(self._device)
        first = self._seconds(batch, voices, 1)
        whole = self._seconds(batch, voices, options.tokens)
        counted = rows * (options.tokens - 1)
        return Rate(tokens_per_second=counted / (whole - first), first_token_seconds=first)

    def _seconds(self, batch: torch.Tensor, voices: Sequence[str], tokens: int) -> float:
        named = {"adapter_names": list(voices)} if voices else {}
        begun = time.perf_counter()
        answer = self._model.generate(
            input_ids=batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
            **named,
        )
        # Reading a token waits for the device.
        assert int(answer[0, -1]) >= 0
        return time.perf_counter() - begun


def versions() -> dict[str, str]:
    """Return what was measured."""
    return {"transformers": transformers.__version__, "peft": peft.__version__}
