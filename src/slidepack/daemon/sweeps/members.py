"""The members of a sweep: which settings each one gets, and what it is called."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from slidepack.daemon.requests import JobSettings
from slidepack.daemon.sweeps.request import MAX_MEMBERS, SweepPlan
from slidepack.daemon.sweeps.space import MULTIPLE, VARIABLE, Axis, parse_axes
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.engine.data.rows import clip

__all__ = [
    "axes_of",
    "check_settings",
    "expand",
    "member_name",
    "refused",
    "settings_of",
    "shown_value",
]

Assignment = dict[str, Any]
"""Setting to value, of those in which members differ."""
_DEFAULTS: Final = {"selection_fraction": 0.1, "test_fraction": 0.1}
"""Members are chosen by one part of the rows, and the best is reported by another."""
_NAME_CHARACTERS: Final = 200
_FIXED: Final = tuple(name for name in (*JobSettings.__struct_fields__, MULTIPLE) if name != "name")


def expand(plan: SweepPlan, members: Sequence[Assignment] = ()) -> list[Assignment]:
    """Return what each member gets, as asked; two may be the same.

    Args:
        plan: grid, draws, and what is fixed.
        members: those that are named one by one.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    count, seed, given = _random_part(plan)
    _check_names(plan, given, members)
    if bool(count) != bool(given):
        missing = "count" if given else "where settings are drawn from"
        raise refused(f"[random] does not say {missing}", "Give count and at least one setting.")
    points = math.prod(map(len, plan.grid.values()))
    drawn = points * max(1, count) if plan.grid or count else 0
    total = drawn + len(members)
    if not 1 <= total <= MAX_MEMBERS:
        raise refused(
            f"it has {total} members, and may have {MAX_MEMBERS}",
            f"Ask for 1 to {MAX_MEMBERS}, with [grid], or [random] and its count.",
        )
    if not drawn:
        return list(members)
    draws = list(_draws(count, seed, _axes(given))) if count else [{}]
    grid = [
        dict(zip(plan.grid, values, strict=True))
        for values in itertools.product(*plan.grid.values())
    ]
    return [draw | point for draw in draws for point in grid] + list(members)


def axes_of(plan: SweepPlan) -> dict[str, Axis]:
    """Return where each setting comes from, for who chooses members one by one.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    _, _, given = _random_part(plan)
    _check_names(plan, given, ())
    listed = {name: Axis(choices=tuple(values)) for name, values in plan.grid.items()}
    axes = _axes(given) | listed
    if not axes:
        raise refused("it names no setting to search", "Give [random] or [grid].")
    return axes


def settings_of(plan: SweepPlan, assignment: Assignment) -> dict[str, Any]:
    """Return a member's settings, as fields of `JobSettings`; alpha is a whole number.

    Raises:
        SlidepackError: RUN-SPEC-INVALID: alpha's multiple is no number above 0.
    """
    # Whatever a member's own seed is, all of them are measured on the same rows.
    shared = _DEFAULTS | {"split_seed": plan.fixed.get("seed", 0)} | plan.fixed
    settings = shared | assignment
    factor = settings.pop(MULTIPLE, None)
    if factor is None:
        return settings
    rank = settings.get("rank", JobSettings().rank)
    numbers = type(factor) in (int, float) and type(rank) is int
    if not numbers or not 0 < factor < math.inf:
        raise refused(f"{MULTIPLE} is {factor!r} and rank is {rank!r}", "Give numbers above 0.")
    return settings | {"alpha": max(1, round(factor * rank))}


def member_name(sweep: str, assignment: Assignment) -> str:
    """Return a member's name, as in `first lr=2e-4 rank=16`."""
    parts = [f"{name}={shown_value(value)}" for name, value in assignment.items()]
    return clip(" ".join([sweep, *parts]), _NAME_CHARACTERS)


def shown_value(value: object) -> str:
    """Return a setting's value, short."""
    if isinstance(value, float):
        mantissa, _, exponent = f"{value:.6e}".partition("e")
        if value == 0 or -3 <= int(exponent) < 6:
            return f"{value:.6g}"
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if isinstance(value, list | tuple):
        if set(value) == set(LORA_TARGETS):
            return "all"
        return "+".join(str(one).removesuffix("_proj") for one in value)
    return str(value)


def refused(why: str, fix: str) -> SlidepackError:
    """Return the error of a sweep that cannot be made."""
    return SlidepackError("RUN-SPEC-INVALID", "The sweep cannot be made.", why=why, fix=fix)


def _random_part(plan: SweepPlan) -> tuple[int, int, dict[str, Any]]:
    """Return count and seed of the draws, and where each setting is drawn from."""
    given = dict(plan.random)
    count = given.pop("count", 0)
    # A table of that name is where the members' own seeds are drawn from.
    seed = 0 if isinstance(given.get("seed"), dict) else given.pop("seed", 0)
    for name, value in (("count", count), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise refused(f"random.{name} is {value!r}", "Give a whole number, 0 or more.")
    return count, seed, given


def _axes(given: Mapping[str, Any]) -> dict[str, Axis]:
    try:
        return parse_axes(given)
    except ValueError as error:
        raise refused(
            f"[random]: {error}", "Give log, uniform or choices, as in lr.log = [2e-5, 4e-4]."
        ) from error


def _draws(count: int, seed: int, axes: Mapping[str, Axis]) -> Iterator[Assignment]:
    """Yield the draws; each setting has its own sequence, whatever else is drawn."""
    sources = {name: random.Random(f"{seed}/{name}") for name in axes}
    for _ in range(count):
        yield {name: axis.draw(name, sources[name]) for name, axis in axes.items()}


def _check_names(plan: SweepPlan, drawn: Mapping[str, Any], members: Sequence[Assignment]) -> None:
    """Refuse settings that are unknown, given twice, or the same for all members of a sweep."""
    unknown = sorted(set(plan.fixed) - set(_FIXED))
    if unknown:
        raise refused(f"[fixed] has no setting {unknown[0]}", f"Known are {', '.join(_FIXED)}.")
    if plan.fixed.get("method", "lora") != "lora":
        raise refused("method is not lora", "Sweeps train adapters; queue a full job by itself.")
    for name, values in plan.grid.items():
        if not isinstance(values, list | tuple) or not values:
            raise refused(f"grid.{name} is {values!r}", "Give a list of its values.")
    places = [("[grid]", set(plan.grid)), ("[random]", set(drawn))]
    places += [(f"member {number}", set(one)) for number, one in enumerate(members, 1)]
    for place, names in places:
        for name in sorted(names - set(VARIABLE)):
            shared = name in JobSettings.__struct_fields__
            why = "is the same for all members, in [fixed]" if shared else "is not known"
            raise refused(f"{name} in {place} {why}", f"Members differ in {', '.join(VARIABLE)}.")
    one_by_one: set[str] = set().union(*members)
    shared_out = set(plan.grid) | set(drawn) | one_by_one
    twice = sorted((set(plan.grid) & set(drawn)) | (shared_out & set(plan.fixed)))
    if twice:
        raise refused(f"{twice[0]} is given in two places", "Give it in one.")
    everywhere = shared_out | set(plan.fixed)
    for one, other in (("alpha", MULTIPLE), ("steps", "epochs")):
        if {one, other} <= everywhere:
            raise refused(f"{one} and {other} are both given", "Give one of both.")


def check_settings(settings: dict[str, Any]) -> JobSettings:
    """Return a member's settings, checked.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    try:
        return msgspec.convert(settings, JobSettings)
    except msgspec.ValidationError as error:
        raise refused(str(error), "Change the value named.") from error
