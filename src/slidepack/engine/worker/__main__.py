"""The worker process: `python -m slidepack.engine.worker RUN_FOLDER`.

Exit codes: 0 the run is complete, 75 it checkpointed and left because it was asked to, else the
code of the error in the last event.
"""

import errno
import fcntl
import logging
import os
import sys
from pathlib import Path

import torch

from slidepack.engine.contract.errors import EXIT_YIELDED, SlidepackError
from slidepack.engine.contract.events import Failed, Yielded
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.run import Run
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError

logger = logging.getLogger("slidepack.worker")


def main(arguments: list[str]) -> int:
    """Run the attempt in the folder named by the one argument; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m slidepack.engine.worker RUN_FOLDER\n")
        return 2
    folder = RunFolder(Path(arguments[0]).absolute())
    stop = StopFlag()
    stop.listen()
    try:
        lock = _lock(folder)
    except SlidepackError as error:
        # Another worker owns the folder and its events file.
        logger.error("%s", error)
        return error.exit_code
    with open(lock, "wb"), EventLog(folder.events) as events:
        return _guarded(folder, events, stop)


def _guarded(folder: RunFolder, events: EventLog, stop: StopFlag) -> int:
    """Run, and turn every way to fail into an event and an exit code."""
    try:
        return _run(folder, events, stop)
    except SlidepackError as error:
        # The code says all there is to say; a traceback would only bury it.
        logger.error("%s", error)
        return _fail(events, error)
    except torch.OutOfMemoryError as error:
        logger.exception("The GPU's memory ran out.")
        return _fail(events, _out_of_memory(error))
    except OSError as error:
        logger.exception("A file could not be read or written.")
        return _fail(events, _disk_error(error))


def _run(folder: RunFolder, events: EventLog, stop: StopFlag) -> int:
    try:
        Run(folder, events, stop).execute()
    except StopRequestedError as error:
        logger.info("Stopping as asked (%s); the last whole step is checkpointed.", error)
        events.append(Yielded(at=EventLog.now(), reason=str(error)))
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


def _lock(folder: RunFolder) -> int:
    """Take the folder for this process.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN or RUN-FOLDER-BUSY.
    """
    try:
        descriptor = os.open(folder.lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SlidepackError(
            "RUN-FOLDER-BUSY",
            "Another worker runs in this folder.",
            why=f"{folder.lock} is locked",
            fix="Wait for it to end.",
        ) from error
    except OSError as error:
        raise SlidepackError(
            "RUN-FOLDER-BROKEN",
            "The run folder cannot be used.",
            why=f"{folder.lock}: {error.strerror}",
            fix="Start the job again; a retry gets a new run folder.",
        ) from error
    return descriptor


def _out_of_memory(error: torch.OutOfMemoryError) -> SlidepackError:
    return SlidepackError(
        "GPU-OUT-OF-MEMORY",
        "The GPU ran out of memory.",
        why=" ".join(str(error).split())[:300],
        fix="Lower batch_size or max_seq_len, or close what else uses the GPU.",
    )


def _disk_error(error: OSError) -> SlidepackError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SlidepackError(
            "DISK-FULL",
            "The disk is full; the last checkpoint is kept.",
            why=str(error),
            fix="Free some space, then resume the job.",
        )
    return SlidepackError(
        "DISK-UNWRITABLE",
        "A file of the run could not be read or written.",
        why=str(error),
        fix="Check the disk and the rights of the data directory, then resume the job.",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
