"""The morning digest: a night in a few lines, made to be read on a phone. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.notices.night import FinishedJob, Night, OpenJob
from slidepack.engine.data.rows import clip

_LINES: Final = 5
"""Jobs of one kind that have a line each."""
_NAME: Final = 40
_WHY: Final = 120
_CAUSES: Final = 3


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """A night, told."""

    title: str
    lines: tuple[str, ...]
    night: Night
    """The facts behind the lines."""

    @property
    def body(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def compose(night: Night) -> Digest:
    """Tell a night."""
    lines = [
        *_few([_done_line(job) for job in night.finished], "more finished"),
        *_few(
            [
                f"Failed: {_job(job.id, job.name)}: {_coded(job.code, job.why)}"
                for job in night.failed
            ],
            "more failed",
        ),
        *_few([_open_line(job, night.tonight_seconds) for job in night.open], "more not done"),
        *_best_line(night),
        *_energy_line(night),
        *_yield_line(night),
        _tonight_line(night),
    ]
    return Digest(title=_title(night), lines=tuple(lines), night=night)


def _title(night: Night) -> str:
    counts = (
        (len(night.finished), "done"),
        (len(night.failed), "failed"),
        (len(night.open), "not done yet"),
        (night.cancelled, "cancelled"),
    )
    told = ", ".join(f"{number} {word}" for number, word in counts if number)
    return f"Slidepack: {told or 'nothing ran'}"


def _few(lines: Sequence[str], more: str) -> list[str]:
    shown = list(lines[:_LINES])
    rest = len(lines) - len(shown)
    return [*shown, f"… and {rest} {more}"] if rest else shown


def _done_line(job: FinishedJob) -> str:
    facts = []
    if job.loss_before is not None and job.loss_after is not None:
        facts.append(f"held-out loss {job.loss_before:.3f} → {job.loss_after:.3f}")
    if job.seconds is not None:
        facts.append(hours(job.seconds))
    return f"Done: {_job(job.id, job.name)}{': ' if facts else ''}{', '.join(facts)}"


def _open_line(job: OpenJob, tonight: float | None) -> str:
    state = "Going on" if job.live else "Not done"
    facts = [f"step {job.step} of {job.total_steps}"] if job.total_steps else []
    if job.eta_seconds is not None:
        facts.append(f"{hours(job.eta_seconds)} left")
        if tonight and job.eta_seconds > tonight:
            facts.append(f"will not finish tonight: {job.eta_seconds / tonight:.1f} nights")
    if not job.live and job.reason:
        facts.append(clip(job.reason, _WHY))
    return f"{state}: {_job(job.id, job.name)}{': ' if facts else ''}{', '.join(facts)}"


def _best_line(night: Night) -> list[str]:
    best = max(night.finished, key=lambda job: job.improvement, default=None)
    if best is None or best.improvement <= 0 or best.loss_before is None:
        return []
    share = best.improvement / best.loss_before * 100 if best.loss_before > 0 else 0.0
    percent = f" ({share:.0f}%)" if share else ""
    return [
        f"Best: {_job(best.id, best.name)}, held-out loss lower by {best.improvement:.3f}{percent}"
    ]


def _energy_line(night: Night) -> list[str]:
    energy = night.energy
    if not energy.seconds:
        return []
    if energy.joules is None:
        why = f" ({clip(energy.note, _WHY)})" if energy.note else ""
        return [f"Energy: not measured{why}"]
    return [f"Energy: {watt_hours(energy.joules)} ({energy.source})"]


def _yield_line(night: Night) -> list[str]:
    number = len(night.yields)
    if not number:
        return []
    counted = Counter(clip(cause, _NAME) for cause in night.yields).most_common()
    causes = [f"{cause} ({times}x)" if times > 1 else cause for cause, times in counted[:_CAUSES]]
    if len(counted) > _CAUSES:
        causes.append("…")
    times = "once" if number == 1 else f"{number} times"
    return [f"Gave the GPU back {times}: {', '.join(causes)}"]


def _tonight_line(night: Night) -> str:
    # What is going on now will go on first.
    first = [job for job in night.open if job.live]
    heads = [_job(job.id, job.name) for job in first]
    names = [*heads, *(_job(job.id, job.name) for job in night.next)][:_LINES]
    rest = len(first) + night.queued - len(names)
    if not names:
        return "Tonight: nothing is queued"
    more = f" and {rest} more" if rest else ""
    return f"Tonight: {', '.join(names)}{more}"


def _job(number: int, name: str) -> str:
    return f"{number} {clip(name, _NAME)}"


def _coded(code: str, why: str) -> str:
    text = clip(why, _WHY)
    return f"{code}: {text}" if code else text


def hours(seconds: float) -> str:
    """Return a duration as `3 h 12 min`, `4 min` or `50 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def watt_hours(joules: float) -> str:
    """Return an energy as `3.1 kWh`, `310 Wh` or `0.4 Wh`."""
    amount = joules / 3600
    if amount >= 1000:
        return f"{amount / 1000:.1f} kWh"
    return f"{amount:.0f} Wh" if amount >= 10 else f"{amount:.1f} Wh"
