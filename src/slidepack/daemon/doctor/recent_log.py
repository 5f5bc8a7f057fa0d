"""The last lines that the daemon logged, for its page: its own log may be a journal or a file."""

import logging
from collections import deque
from typing import Final

__all__ = ["RecentLog"]

_MOST_LINES: Final = 300
_LONGEST_LINE: Final = 4000


class RecentLog(logging.Handler):
    """Keeps the last lines in memory; a traceback is one line with breaks in it."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        self._lines.append(self.format(record)[:_LONGEST_LINE])

    def text(self) -> str:
        """Return the lines, the oldest first."""
        self.acquire()
        try:
            return "\n".join(self._lines)
        finally:
            self.release()
