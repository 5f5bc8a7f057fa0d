"""The worker process: `python -m slidepack.engine.worker FOLDER`, a run's or a pack's.

Exit codes: 0 the run is complete, 75 it checkpointed and left because it was asked to, else the
code of the error in the last event. A pack is complete when no lane is left, whatever became of
each; their own events tell.
"""

import logging
import sys
from pathlib import Path

import torch

from slidepack.engine.contract.errors import EXIT_YIELDED, SlidepackError
from slidepack.engine.contract.events import Failed, Yielded
from slidepack.engine.contract.pack import PackFolder
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.failures import coded
from slidepack.engine.worker.lock import take_lock
from slidepack.engine.worker.pack_run import PackRun
from slidepack.engine.worker.run import Run
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError

logger = logging.getLogger("slidepack.worker")


def main(arguments: list[str]) -> int:
    """Run what is in the folder named by the one argument; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m slidepack.engine.worker FOLDER\n")
        return 2
    root = Path(arguments[0]).absolute()
    pack = PackFolder(root)
    folder = pack if pack.pack.exists() else RunFolder(root)
    stop = StopFlag()
    stop.listen()
    try:
        lock = take_lock(folder.lock)
    except SlidepackError as error:
        # Another worker owns the folder and its events file.
        logger.error("%s", error)
        return error.exit_code
    with open(lock, "wb"), EventLog(folder.events) as events:
        return _guarded(folder, events, stop)


def _guarded(folder: RunFolder | PackFolder, events: EventLog, stop: StopFlag) -> int:
    """Run, and turn every way to fail into an event and an exit code."""
    try:
        return _run(folder, events, stop)
    except SlidepackError as error:
        # The code says all there is to say; a traceback would only bury it.
        logger.error("%s", error)
        return _fail(events, error)
    except (torch.OutOfMemoryError, OSError) as error:
        logger.exception("The run cannot go on.")
        return _fail(events, coded(error))


def _run(folder: RunFolder | PackFolder, events: EventLog, stop: StopFlag) -> int:
    try:
        if isinstance(folder, PackFolder):
            PackRun(folder, events, stop).execute()
        else:
            Run(folder, events, stop).execute()
    except StopRequestedError as error:
        logger.info("Stopping as asked (%s); the last whole step is checkpointed.", error)
        events.append(Yielded(at=EventLog.now(), reason=str(error), seconds=stop.seconds))
        return EXIT_YIELDED
    logger.info("The run is complete.")
    return 0


def _fail(events: EventLog, error: SlidepackError) -> int:
    try:
        events.append(Failed(at=EventLog.now(), error=error.report))
    except OSError as disk:
        # The exit code still tells the daemon what happened.
        logger.error("The failure could not be recorded in the events file: %s", disk)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
