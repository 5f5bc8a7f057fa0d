"""The lint in a process of its own, beside the one that judges: a large file keeps both busy.

    python -m slidepack.engine.data.lint_process

It reads normalised rows on its standard input and prints what it found as one JSON object.
"""

import contextlib
import fcntl
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.lint import Lint, LintReport
from slidepack.engine.data.rows import Row, decode_row

_BUFFER_BYTES: Final = 1 << 15
_PIPE_BYTES: Final = 1 << 20
"""Rows on their way: with less, whoever writes waits for who reads, and nothing is gained."""


class LintProcess:
    """Takes rows as `Lint` does, and looks at them elsewhere."""

    def __init__(self) -> None:
        """Start the process; it ends with this one, whatever happens."""
        # A session of its own: Ctrl-C is this process's affair.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=_BUFFER_BYTES,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        # A system that allows less is slower, and no less right.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._child.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._report: LintReport | None = None

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process where it has not ended."""
        if self._report is None:
            self._child.kill()
            self._child.communicate()

    def see(self, row: Row, encoded: bytes) -> None:
        """Hand a row over; `encoded` is its line of JSON.

        Raises:
            SlidepackError: RUN-CRASHED where the process is gone.
        """
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(encoded)
        except OSError as error:
            raise self._gone() from error

    def report(self) -> LintReport:
        """Return what was found in all rows; there are no more.

        Raises:
            SlidepackError: RUN-CRASHED where the process is gone.
        """
        if self._report is None:
            try:
                answer, _ = self._child.communicate()
                self._report = msgspec.json.decode(answer, type=LintReport)
            except (OSError, msgspec.DecodeError) as error:
                raise self._gone() from error
        return self._report

    def _gone(self) -> SlidepackError:
        self._child.kill()
        return SlidepackError(
            "RUN-CRASHED",
            "The process that looks for twins and secrets ended before it was done.",
            why=f"it ended with code {self._child.wait()}",
            fix="Check the file again; where it ends so again, there may be too little memory.",
        )


def main() -> None:
    """Look at the rows on the standard input."""
    lint = Lint()
    for line in sys.stdin.buffer:
        lint.see(decode_row(line), line)
    sys.stdout.buffer.write(msgspec.json.encode(lint.report()))


if __name__ == "__main__":
    main()
