"""The importer process: `python -m slidepack.engine.importer REQUEST.json`.

It runs apart from the daemon because it reads untrusted files and needs memory for a while.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.contract import (
    ImportFailed,
    ImportRequest,
    ImportResult,
    decode_request,
)
from slidepack.engine.importer.fingerprint import content_hash, model_files, quick_stamp
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer
from slidepack.engine.importer.hub import download
from slidepack.engine.importer.report import Reporter
from slidepack.engine.importer.staging import Staging, disk_error, require_space


class _Stopped(BaseException):
    """Raised by a signal; not an Exception, so that no library swallows it."""


def main(arguments: list[str]) -> int:
    """Run one import and return the exit code: 0, or that of the error written as the last line."""
    try:
        request = _read_request(arguments)
        reporter = Reporter(Path(request.progress))
    except SlidepackError as error:
        return _complain(error)
    except OSError as error:
        return _complain(disk_error(error))
    with reporter:
        try:
            _listen(_stop)
            result = run(request, reporter)
            _listen(signal.SIG_IGN)
            reporter.end(result)
        except (SlidepackError, OSError, MemoryError, RecursionError, _Stopped) as error:
            _listen(signal.SIG_IGN)
            return _fail(reporter, _coded(error))
    return 0


def run(request: ImportRequest, reporter: Reporter) -> ImportResult:
    """Carry out the import and return its result; the model is in place then.

    Raises:
        SlidepackError: any MODEL- or DISK- code.
        OSError: the disk refused.
    """
    if request.kind == "folder":
        return _describe(Path(os.path.realpath(request.source)), request.revision, "", reporter)
    target = Path(os.path.realpath(request.target))
    staging = Staging(target)
    with staging as folder:
        if request.kind == "gguf":
            revision, license_name = request.revision, _convert(request, folder, reporter)
        else:
            snapshot = download(request.source, request.revision, folder, reporter.show)
            revision, license_name = snapshot.revision, snapshot.license
        result = _describe(folder, revision, license_name, reporter)
        # From here on a stop would come too late: the model is complete.
        _listen(signal.SIG_IGN)
        staging.commit()
    return msgspec.structs.replace(result, path=str(target))


def _convert(request: ImportRequest, folder: Path, reporter: Reporter) -> str:
    source = Path(request.source)
    reporter.show(0, 0, "reading")
    gguf = GgufFile(source)
    shape = read_model_shape(gguf)
    size = shape.total_params * 4
    require_space(folder, size + size // 20)
    write_tokenizer(gguf, folder, shape.vocab)
    write_model(gguf, shape, folder, reporter.counter(size, "converting"))
    return gguf.text("general.license") or ""


def _describe(folder: Path, revision: str, license_name: str, reporter: Reporter) -> ImportResult:
    reporter.show(0, 0, "checking")
    try:
        report = check_folder(folder)
        total = sum(path.stat().st_size for path in model_files(folder))
        digest = content_hash(folder, reporter.counter(total, "hashing"))
        stamp = quick_stamp(folder)
    except PermissionError as error:
        raise SlidepackError(
            "MODEL-BROKEN",
            "The model's files cannot be read.",
            why=f"{error.filename or folder}: {error.strerror}",
            fix="Check that you may read the files.",
        ) from error
    return ImportResult(
        path=str(folder),
        content_hash=digest,
        stamp=stamp,
        architecture=report.shape.architecture,
        params=report.shape.total_params,
        bytes=report.weight_bytes,
        license=license_name or report.license,
        revision=revision,
    )


def _read_request(arguments: list[str]) -> ImportRequest:
    try:
        (path,) = arguments
        return decode_request(Path(path).read_bytes())
    except (ValueError, OSError) as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "The importer was started with no valid request.",
            why=str(error),
            fix="Start it as: python -m slidepack.engine.importer REQUEST.json",
        ) from error


def _coded(error: BaseException) -> SlidepackError:
    if isinstance(error, SlidepackError):
        return error
    if isinstance(error, OSError):
        return disk_error(error)
    if isinstance(error, MemoryError):
        return SlidepackError(
            "RAM-TOO-SMALL",
            "There was too little memory to read the model.",
            why=str(error),
            fix="Close other programs and add the model again.",
        )
    if isinstance(error, RecursionError):
        return SlidepackError(
            "MODEL-BROKEN",
            "A file of the model is nested too deeply to be read.",
            why=str(error),
            fix="Copy or download the model again.",
        )
    return SlidepackError(
        "MODEL-IMPORT-STOPPED",
        "The import was stopped; nothing of it was kept.",
        why="The importer was told to stop",
        fix="Add the model again.",
    )


def _fail(reporter: Reporter, error: SlidepackError) -> int:
    try:
        reporter.end(ImportFailed(error=error.report))
    except OSError:
        # A full disk takes no last line either; the exit code still tells.
        return _complain(error)
    return error.exit_code


def _complain(error: SlidepackError) -> int:
    sys.stderr.write(error.report.line() + "\n")
    return error.exit_code


def _listen(action: Callable[[int, FrameType | None], NoReturn] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, action)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _listen(signal.SIG_IGN)
    raise _Stopped


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # A stopped download leaves threads for which the interpreter would wait.
    os._exit(code)
