"""Every page there is, for what is true of all of them. A new page is one line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["PAGES", "Places"]


@dataclass(frozen=True)
class Places:
    """What the addresses of pages need."""

    job: int
    failed: int
    dataset: int
    sweep: int


PAGES: Final[Mapping[str, Callable[[Places], str]]] = {
    "home": lambda _: "/",
    "new": lambda _: "/new",
    "queue": lambda _: "/queue",
    "plan": lambda _: "/plan",
    "models": lambda _: "/models",
    "datasets": lambda _: "/datasets",
    "dataset": lambda at: f"/datasets/{at.dataset}",
    "schedule": lambda _: "/schedule",
    "settings": lambda _: "/settings",
    "doctor": lambda _: "/doctor",
    "job": lambda at: f"/jobs/{at.job}",
    "job-failed": lambda at: f"/jobs/{at.failed}",
    "chat": lambda at: f"/jobs/{at.job}/chat",
    "sweeps": lambda _: "/sweeps",
    "sweep": lambda at: f"/sweeps/{at.sweep}",
}
"""Name -> its address."""
