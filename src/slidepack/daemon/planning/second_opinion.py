"""What the solver says of a queue for which there is a greedy plan already."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planner.request import PlanRequest
from slidepack.daemon.planning.picture import Picture
from slidepack.daemon.planning.solver_process import Solving

__all__ = ["SecondOpinion"]

_SECONDS: Final = 10.0


class SecondOpinion:
    """At most one solver's process, about the newest queue. One thread may use it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Bind the solver's command; nothing runs yet."""
        self._command = command
        self._solving: tuple[Solving, Picture] | None = None

    @property
    def pending(self) -> bool:
        """Whether the solver was asked and its answer was not taken."""
        return self._solving is not None

    def ask(self, request: PlanRequest, picture: Picture) -> None:
        """Ask the solver; what it was asked before counts no more.

        Raises:
            OSError: its process could not be started.
        """
        self.drop()
        asked = msgspec.structs.replace(request, seconds=_SECONDS)
        self._solving = (Solving(asked, self._command), picture)

    def take(self) -> tuple[Picture, Plan] | None:
        """Return the plan and for what it was made, once; None while there is none.

        Raises:
            SlidepackError: the solver failed.
        """
        if self._solving is None or not self._solving[0].ended():
            return None
        solving, picture = self._solving
        self._solving = None
        return picture, solving.answer()

    def drop(self) -> None:
        """End the process, where one runs."""
        if self._solving is not None:
            self._solving[0].kill()
            self._solving = None
