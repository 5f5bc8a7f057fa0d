"""Models as their pages draw them: how they can be trained here, and what is known of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from slidepack.daemon.fits import METHODS, Fit, Fits, Method, ModelFits
from slidepack.daemon.hardware import DeviceNow
from slidepack.daemon.requests import JobSettings
from slidepack.daemon.store.catalogue import ModelRecord
from slidepack.daemon.suggestions import Suggestion
from slidepack.engine.memory import Machine
from slidepack.engine.shape import ModelShape
from slidepack.web.new_job_view import fit_sizes

__all__ = [
    "LENGTHS",
    "FitRow",
    "ListedModel",
    "Need",
    "Suggested",
    "Way",
    "fit_rows",
    "listed_models",
    "suggested",
    "ways_of",
]

LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
"""Tokens a row for which a model's page says what training takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A method, and whether this machine can do it."""

    method: Method
    title: str
    fits: bool
    sizes: str
    """What it takes, in words; empty where it does not fit."""
    why: str
    needs: str
    """Memory with which it would fit; empty where that is not what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedModel:
    """A model in the list."""

    model: ModelRecord
    ways: tuple[Way, ...]
    """None where nothing is known of the machine, or the model is not ready."""
    problem: str
    jobs: int
    """That train or trained it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """A model that could be fetched."""

    suggestion: Suggestion
    ways: tuple[Way, ...]

    @property
    def fits(self) -> bool:
        """Whether one of the ways fits."""
        return any(way.fits for way in self.ways)


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What training takes at one length."""

    fits: bool
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FitRow:
    """A method at several lengths."""

    title: str
    needs: tuple[Need, ...]


def ways_of(fits: Sequence[Fit], machine: Machine) -> tuple[Way, ...]:
    """Return the methods as they are shown."""
    return tuple(
        Way(
            method=fit.method,
            title=METHODS[fit.method],
            fits=fit.fits,
            sizes=fit_sizes(fit, machine),
            why=fit.why,
            needs=fit.needs,
        )
        for fit in fits
    )


def listed_models(
    models: Sequence[ModelRecord],
    found: Sequence[ModelFits],
    uses: dict[str, int],
    device: DeviceNow | None,
) -> tuple[ListedModel, ...]:
    """Return the list: what is on its way or has failed first, then what is ready.

    Args:
        models: all of them.
        found: what fits of those that are ready, in the order in which they are listed.
        uses: how many jobs name a model, by id.
        device: on which they would train; None where nothing is known of it.
    """
    coming = [model for model in models if model.state != "ready"]
    rows = [
        ListedModel(model=model, ways=(), problem="", jobs=uses.get(model.id, 0))
        for model in coming
    ]
    rows += [
        ListedModel(
            model=one.model,
            ways=() if device is None else ways_of(one.fits, device.machine),
            problem=one.problem,
            jobs=uses.get(one.model.id, 0),
        )
        for one in found
    ]
    return tuple(rows)


def suggested(
    suggestions: Sequence[Suggestion],
    known: frozenset[str],
    fits: Fits,
    device: DeviceNow | None,
) -> tuple[Suggested, ...]:
    """Return suggestions that are not in the list yet, those that fit first.

    Args:
        suggestions: all of them, the smallest first.
        known: hub ids that are in the list.
        fits: what fits.
        device: on which they would train; None where nothing is known of it.
    """
    rows = [
        Suggested(
            suggestion=one,
            ways=()
            if device is None
            else ways_of(
                fits.of_shape(one.hub_id, one.shape, JobSettings(), device.machine), device.machine
            ),
        )
        for one in suggestions
        if one.hub_id not in known
    ]
    return tuple(sorted(rows, key=lambda row: not row.fits))


def fit_rows(
    model: ModelRecord, shape: ModelShape, fits: Fits, machine: Machine
) -> tuple[tuple[int, ...], tuple[FitRow, ...]]:
    """Return lengths in tokens, and what each method takes at each of them, by the defaults."""
    lengths = tuple(length for length in LENGTHS if length <= shape.max_positions)
    lengths = lengths or (shape.max_positions,)
    columns = [
        fits.of_shape(
            model.content_hash,
            shape,
            msgspec.structs.replace(JobSettings(), max_seq_len=n),
            machine,
        )
        for n in lengths
    ]
    rows = []
    for place, method in enumerate(METHODS):
        at_lengths = [column[place] for column in columns]
        rows.append(
            FitRow(
                title=METHODS[method],
                needs=tuple(
                    Need(fits=fit.fits, words=fit_sizes(fit, machine) if fit.fits else fit.why)
                    for fit in at_lengths
                ),
            )
        )
    return lengths, tuple(rows)
