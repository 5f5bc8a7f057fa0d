"""A lane alone in PEFT, with torch's AdamW and clipping and transformers' schedules: the judge."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
)
from transformers.optimization import get_linear_schedule_with_warmup

from slidepack.engine.contract.job import OptimSpec
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.optimizer import warmup_steps
from support.judges import widen_norms

_IGNORED = -100
KeepMask = Callable[[int, int, int, int, str, int], Tensor]
"""(step, sample, tokens, layer, target, width) -> what dropout keeps, [tokens, width]."""


class _Dropout(torch.nn.Module):
    """Dropout by a mask that is given."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.keep = torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        """Drop and scale up."""
        return x * self.keep / (1.0 - self.rate)


class PeftLane:
    """PEFT's copy of an adapter, and its training."""

    def __init__(
        self,
        folder: Path,
        arena: LoraArena,
        optim: OptimSpec,
        total_steps: int,
        *,
        padded: bool = False,
        keep: KeepMask | None = None,
    ) -> None:
        """Wrap the model and copy the adapter's values.

        Args:
            folder: of the base model.
            arena: the lane as it starts; its dtype is PEFT's too.
            optim: settings of the optimizer.
            total_steps: of the run.
            padded: pass a step's rows as one padded batch with a mask, not one by one.
            keep: draws the masks of a lane with dropout, whose rows pass one by one.
        """
        dtype = arena.grads.dtype
        model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
        if dtype == torch.float64:
            widen_norms(model)
        method = arena.method
        config = peft.LoraConfig(
            r=method.rank,
            lora_alpha=method.alpha,
            lora_dropout=method.dropout,
            use_rslora=method.rslora,
            target_modules=list(method.targets),
            task_type="CAUSAL_LM",
        )
        self._model: Any = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
        for layer, target, pair in arena.named_pairs():
            a, b = self._weights(layer, target)
            with torch.no_grad():
                a.copy_(pair.a)
                b.copy_(pair.b)
        self._model.train()
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )
        self._schedule = _schedule(self._optimizer, optim, total_steps)
        self._clip_norm = optim.clip_norm or float("inf")
        self._padded = padded
        self._step = 0
        self._keep = keep
        self._dropouts: dict[tuple[int, str], _Dropout] = {}
        if keep is not None:
            for layer, target, _ in arena.named_pairs():
                dropout = self._dropouts[layer, target] = _Dropout(method.dropout)
                self._module(layer, target).lora_dropout["default"] = dropout

    def step(self, rows: Sequence[EncodedRow]) -> tuple[float, float]:
        """Do one optimizer step; return the mean loss and the norm of the gradient."""
        loss = self._padded_loss(rows) if self._padded else self._loss_row_by_row(rows)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(loss.detach()), float(norm)

    def largest_difference(self, arena: LoraArena) -> float:
        """Return the largest difference between the arena's weights and PEFT's, or NaN."""
        differences = [
            (mine - its.detach()).abs().max()
            for layer, target, pair in arena.named_pairs()
            for mine, its in zip((pair.a, pair.b), self._weights(layer, target), strict=True)
        ]
        return float(torch.stack(differences).max())

    def _module(self, layer: int, target: str) -> Any:
        block = self._model.base_model.model.model.layers[layer]
        in_mlp = target in ("gate_proj", "up_proj", "down_proj")
        return getattr(block.mlp if in_mlp else block.self_attn, target)

    def _weights(self, layer: int, target: str) -> tuple[Tensor, Tensor]:
        module = self._module(layer, target)
        return module.lora_A["default"].weight, module.lora_B["default"].weight

    def _loss_row_by_row(self, rows: Sequence[EncodedRow]) -> Tensor:
        losses = []
        for sample, row in enumerate(rows):
            self._draw(sample, len(row.ids))
            logits = self._model(torch.tensor([row.ids])).logits
            losses.append(_loss_sum(logits, _labels([row], len(row.ids))))
        return torch.stack(losses).sum() / sum(sum(row.supervised[1:]) for row in rows)

    def _draw(self, sample: int, tokens: int) -> None:
        for (layer, target), dropout in self._dropouts.items():
            assert self._keep is not None
            width = self._module(layer, target).in_features
            dropout.keep = self._keep(self._step, sample, tokens, layer, target, width)

    def _padded_loss(self, rows: Sequence[EncodedRow]) -> Tensor:
        length = max(len(row.ids) for row in rows)
        ids = torch.tensor([[*row.ids, *[1] * (length - len(row.ids))] for row in rows])
        mask = torch.tensor([[place < len(row.ids) for place in range(length)] for row in rows])
        logits = self._model(ids, attention_mask=mask.long()).logits
        labels = _labels(rows, length)
        return _loss_sum(logits, labels) / (labels != _IGNORED).sum()


def _labels(rows: Sequence[EncodedRow], length: int) -> Tensor:
    """Return the next token of each position but the last, [B, length - 1]."""
    labels = torch.full((len(rows), length - 1), _IGNORED)
    for number, row in enumerate(rows):
        for place in range(1, len(row.ids)):
            if row.supervised[place]:
                labels[number, place - 1] = row.ids[place]
    return labels


def _loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    return torch.nn.functional.cross_entropy(
        wide.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, reduction="sum"
    )


def _schedule(optimizer: torch.optim.Optimizer, optim: OptimSpec, total_steps: int) -> Any:
    warmup = warmup_steps(optim, total_steps)
    if optim.schedule == "constant":
        return get_constant_schedule_with_warmup(optimizer, warmup)
    if optim.schedule == "linear":
        return get_linear_schedule_with_warmup(optimizer, warmup, total_steps)
    return get_cosine_schedule_with_warmup(optimizer, warmup, total_steps)
