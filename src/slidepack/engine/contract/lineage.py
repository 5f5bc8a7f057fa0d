"""Which job may go on from which checkpoint: what makes it another job, and what may change.

An attempt resumes its own job where the whole specification is the same (`spec_hash`). Another job
may adopt a checkpoint where everything is the same that decides what the tensors are and which rows
come next (`fixed_part`): learning rate, length, schedule and what is measured may differ.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from slidepack.engine.contract.job import JobSpec

__all__ = ["differences", "fixed_part", "spec_hash"]

_MAY_CHANGE: Final = frozenset(
    {
        "name",
        "version",
        "epochs",
        "steps",
        "checkpoint_every_steps",
        "checkpoint_minutes",
        "optim.lr",
        "optim.schedule",
        "optim.warmup_fraction",
        "eval.max_rows",
        "eval.every_steps",
        "eval.sample_prompts",
        "eval.sample_tokens",
    }
)
"""The split is not among them: rows that were held out of one job must not be trained on by the
one that goes on from it, or its held-out loss would say nothing."""
_CONTENT_ONLY: Final = frozenset({"base", "dataset", "eval.selection"})
"""Models and data are the same where their content is, wherever the files lie."""


def spec_hash(spec: JobSpec) -> str:
    """Return the sha256 of a specification, without how often it is saved.

    A field that came later must not make another job of one that was queued before.
    """
    fields = _fields(spec)
    del fields["checkpoint_minutes"]
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def fixed_part(spec: JobSpec) -> dict[str, str]:
    """Return what may not change between a checkpoint and who adopts it, as JSON by field name."""
    fields = _flat("", _fields(spec))
    return {name: value for name, value in fields if name not in _MAY_CHANGE}


def differences(made: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return what differs between two fixed parts, one phrase a field; empty where they agree.

    Args:
        made: of the job that wrote the checkpoint.
        wanted: of the job that is to go on from it.
    """
    names = sorted(made.keys() | wanted.keys())
    return [
        f"{name} was {made.get(name, 'not set')}, and is {wanted.get(name, 'not set')}"
        for name in names
        if made.get(name) != wanted.get(name)
    ]


def _fields(spec: JobSpec) -> dict[str, Any]:
    """Return a specification's fields, without a split seed that is the job's own."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    if spec.eval.split_seed is None:
        del fields["eval"]["split_seed"]
    return fields


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield name, msgspec.json.encode(value).decode()
        return
    if name in _CONTENT_ONLY:
        value = {"content_hash": value["content_hash"]}
    for key, inner in value.items():
        yield from _flat(f"{name}.{key}" if name else key, inner)
