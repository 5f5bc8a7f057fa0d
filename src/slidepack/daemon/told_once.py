"""Runs the parts of a round apart: what fails in one is logged once, and keeps no other from it."""

import logging
from collections.abc import Callable

from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)


class ToldOnce:
    """Remembers what each part failed with, so that only another failure is told."""

    def __init__(self) -> None:
        """Start with nothing told."""
        self._problems: dict[str, str] = {}

    def run(self, part: str, work: Callable[[], None], prefix: str = "") -> None:
        """Do a part of a round; the next round tries again what failed.

        Args:
            part: its name.
            work: what it does.
            prefix: before the message in the log.
        """
        try:
            work()
        except Exception as error:
            # A full disk, most of all. What nobody expected comes with its traceback.
            expected = isinstance(error, SlidepackError | OSError)
            if repr(error) != self._problems.get(part):
                logger.error("%s%s", prefix, error, exc_info=None if expected else error)
            self._problems[part] = repr(error)
        else:
            self._problems.pop(part, None)
