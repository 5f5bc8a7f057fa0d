"""Which job may go on from which checkpoint: what makes it another job, and what may change.

An attempt resumes its own job where the whole specification is the same (`spec_hash`). Another job
may adopt a checkpoint where everything is the same that decides what the tensors are and which rows
come next (`fixed_part`): learning rate, length, schedule and what is measured may differ. It then
goes on in the middle, as a rescue after a divergence does. A job that continues another
(`JobSpec.continues`) begins anew with what that one left; there only the tensors have to fit, and
held-out rows have to stay held out (`misfits`).
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from slidepack.engine.contract.job import EvalSpec, JobSpec

__all__ = ["differences", "fixed_part", "held_out_loss_is_comparable", "misfits", "spec_hash"]

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
        "eval.judge_rows",
    }
)
"""The split is not among them: rows that were held out of one job must not be trained on by the
one that goes on from it, or its held-out loss would say nothing."""
_CONTENT: Final = {
    "base": ("content_hash",),
    "dataset": ("content_hash",),
    "eval.selection": ("content_hash",),
    "continues": ("digest", "taken"),
}
"""Models, data and origins are the same where their content is, wherever the files lie."""
_TENSORS: Final = {
    "base.content_hash": "the base model",
    "method.kind": "the method",
    "method.rank": "the rank",
    "method.alpha": "alpha, which scales what was learned,",
    "method.rslora": "rslora, which scales what was learned,",
    "method.targets": "the list of linears",
    "method.base_precision": "the base's precision",
}
_SPLIT: Final = ("eval.selection_fraction", "eval.test_fraction")
_MEASURED: Final = (
    *("base.content_hash", "method.base_precision", "dataset.content_hash", "max_seq_len"),
    *("too_long", "eval.selection.content_hash", *_SPLIT),
)


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


def misfits(made: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return why a job cannot continue another one, one phrase a reason; empty where it can.

    The base, the method and, of an adapter, all that gives its tensors their sizes and their
    meaning must agree. On the same rows, the same rows stay held out: those that the first job was
    measured on must not be trained on by the next, nor the other way round.

    Args:
        made: fixed part of the job that is continued.
        wanted: fixed part of the job that continues it.
    """
    found = [
        f"{words} was {made.get(name, 'not set')}, and is {wanted.get(name, 'not set')}"
        for name, words in _TENSORS.items()
        if _canonical(name, made) != _canonical(name, wanted)
    ]
    if made.get("dataset.content_hash") == wanted.get("dataset.content_hash"):
        found += _split_changes(made, wanted)
    return found


def _canonical(name: str, fixed: Mapping[str, str]) -> object:
    """Return a value as it counts: the order in which linears are named does not."""
    value = fixed.get(name)
    if value is not None and name == "method.targets":
        return sorted(msgspec.json.decode(value, type=list[str]))
    return value


def _split_changes(made: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    names = [*_SPLIT]
    if _has_own_rows(made) != _has_own_rows(wanted):
        return ["the held-out rows were taken from other rows than they are now"]
    if _has_own_rows(made):
        # Nothing is taken of the training rows to select by, whatever the fraction says.
        names.remove("eval.selection_fraction")
    changed = [name for name in names if made.get(name) != wanted.get(name)]
    if not changed and all(float(made.get(name, "0")) == 0.0 for name in names):
        return []
    if _split_seed(made) != _split_seed(wanted):
        told = f"eval.split_seed was {_split_seed(made)}, and is {_split_seed(wanted)}"
        return [*_told(changed, made, wanted), f"{told}: rows would change sides"]
    return _told(changed, made, wanted)


def _told(names: list[str], made: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    return [f"{name} was {made.get(name)}, and is {wanted.get(name)}" for name in names]


def _has_own_rows(fixed: Mapping[str, str]) -> bool:
    return "eval.selection.content_hash" in fixed


def _split_seed(fixed: Mapping[str, str]) -> str:
    return fixed.get("eval.split_seed", fixed.get("seed", ""))


def held_out_loss_is_comparable(one: JobSpec, other: JobSpec) -> bool:
    """Return whether two jobs measure their held-out loss on the same tokens of the same base."""
    first, second = fixed_part(one), fixed_part(other)
    return (
        all(first.get(name) == second.get(name) for name in _MEASURED)
        and (_has_own_rows(first) or _split_seed(first) == _split_seed(second))
        and one.eval.max_rows == other.eval.max_rows
    )


def _fields(spec: JobSpec) -> dict[str, Any]:
    """Return a specification's fields, without those that came later and say nothing here."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    if spec.eval.split_seed is None:
        del fields["eval"]["split_seed"]
    if spec.eval.judge_rows == EvalSpec().judge_rows:
        del fields["eval"]["judge_rows"]
    if spec.continues is None:
        del fields["continues"]
    # Where the state lies changes no bit of it.
    fields["method"].pop("nvme", None)
    return fields


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield name, msgspec.json.encode(value).decode()
        return
    if name in _CONTENT:
        value = {key: value[key] for key in _CONTENT[name]}
    for key, inner in value.items():
        yield from _flat(f"{name}.{key}" if name else key, inner)
