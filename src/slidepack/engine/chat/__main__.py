"""The chat process: `python -P -m slidepack.engine.chat REQUEST`.

Exit codes: 0 it was told to quit or its caller is gone, 75 a signal asked it to leave, else the
code of the error in the last event.
"""

import io
import logging
import signal
import sys
from pathlib import Path

from slidepack.engine.chat.contract import read_request
from slidepack.engine.chat.events import Failed
from slidepack.engine.chat.serve import CallerGoneError, serve
from slidepack.engine.chat.wire import Inbox, Outbox, OutboxClosedError, protocol_output
from slidepack.engine.contract.errors import EXIT_YIELDED, SlidepackError
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError

logger = logging.getLogger("slidepack.chat")


def main(arguments: list[str]) -> int:
    """Serve the request in the file named by the one argument; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m slidepack.engine.chat REQUEST\n")
        return 2
    stop = StopFlag()
    outbox = Outbox(protocol_output(), lambda: bool(stop.reason))
    # Not `sys.stdin`: the interpreter would wait at its end for the thread that reads it.
    inbox = Inbox(io.BufferedReader(io.FileIO(0, closefd=False)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _frame: _ask_to_leave(caught, stop, inbox))
    try:
        return _guarded(Path(arguments[0]), inbox, outbox, stop)
    except OutboxClosedError as error:
        logger.info("Ending: %s.", error)
        return EXIT_YIELDED if stop.reason else 0


def _ask_to_leave(caught: int, stop: StopFlag, inbox: Inbox) -> None:
    stop.request(signal.Signals(caught).name)
    inbox.wake()


def _guarded(path: Path, inbox: Inbox, outbox: Outbox, stop: StopFlag) -> int:
    try:
        serve(read_request(path), inbox, outbox, stop)
    except StopRequestedError as error:
        logger.info("Leaving as asked (%s).", error)
        return EXIT_YIELDED
    except CallerGoneError:
        logger.info("The caller is gone.")
    except SlidepackError as error:
        logger.error("%s", error)
        outbox.emit(Failed(error=error.report, fatal=True))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
