"""Brings models in: one importer process at a time a model, followed through its progress file."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.changes import Changes
from slidepack.daemon.paths import DataPaths, expand_user
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue, ModelRecord
from slidepack.daemon.supervisor.worker_process import find_worker
from slidepack.daemon.system.sd_notify import without_service_variables
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.events import split_complete_lines
from slidepack.engine.contract.runfolder import NONCE_VARIABLE, write_atomic
from slidepack.engine.data.rows import clip
from slidepack.engine.importer.contract import (
    ImportFailed,
    ImportProgress,
    ImportRequest,
    ImportResult,
    decode_line,
)
from slidepack.engine.importer.fingerprint import quick_stamp
from slidepack.engine.importer.ollama import OLLAMA_PREFIX, find_blob, ollama_folders
from slidepack.engine.shape import PICKLE_SUFFIXES, read_shape, refuse_pickles

logger = logging.getLogger(__name__)

Kind = Literal["folder", "gguf", "hub"]
_Key = tuple[str, float]
"""Id and time of creation: an id is free again once its model is off the list."""

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_STOP_SECONDS: Final = 30.0
"""It removes what it has made, which may be many gigabytes, before it is gone."""


class ModelImports:
    """Starts importers and records what they report. `tick` belongs to the supervisor's thread."""

    def __init__(
        self, catalogue: Catalogue, paths: DataPaths, settings: Settings, changes: Changes
    ) -> None:
        """Bind the stores; nothing is started."""
        self._catalogue = catalogue
        self._paths = paths
        self._settings = settings
        self._changes = changes
        self._running: dict[_Key, subprocess.Popen[bytes]] = {}

    def add(self, source: str, name: str, revision: str, now: float) -> ModelRecord:
        """Record a model to bring in; the next tick starts the import. The same source is reused.

        Args:
            source: a folder, a GGUF file, a hub id, or a name of Ollama's behind `ollama:`.
            name: display name; empty takes it from the source.
            revision: on the hub.
            now: unix time in seconds.

        Raises:
            SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-A-MODEL, MODEL-PICKLE, MODEL-UNSUPPORTED,
                MODEL-BROKEN.
        """
        if not os.path.lexists(source):
            # A name that was pasted; a path may begin or end with a blank.
            source = source.strip()
        if source.startswith(OLLAMA_PREFIX):
            known_as = source.removeprefix(OLLAMA_PREFIX)
            source = str(find_blob(known_as, ollama_folders(os.environ, Path.home())))
            name = name or known_as
        kind = source_kind(source)
        if kind != "hub":
            source = str(expand_user(source).resolve())
        if kind == "folder":
            # What is plain at a glance is refused at once; the importer checks the rest.
            refuse_pickles(Path(source))
            read_shape(Path(source))
        known = self._catalogue.find_model(kind, source, revision)
        if known is not None and (known.state == "importing" or unchanged(known)):
            return known
        # What stands behind a dot in `Llama-3.2-1B` is no suffix, but for a file's.
        named = Path(source).stem if kind == "gguf" else Path(source).name
        return self._catalogue.add_model(name or named, kind, source, revision, now)

    def tick(self) -> None:
        """Start what waits and record what importers reported."""
        importing = {_key(m): m for m in self._catalogue.models() if m.state == "importing"}
        for key, child in list(self._running.items()):
            if key not in importing and _end(child):
                # Its model was taken off the list; what it still finished is nobody's.
                del self._running[key]
                if all(model.id != key[0] for model in self._catalogue.models()):
                    shutil.rmtree(self._paths.models / key[0], ignore_errors=True)
        for key, model in importing.items():
            known = self._running.get(key)
            if known is None:
                self._running[key] = self._start(model)
            else:
                self._follow(model, known)

    def stop(self) -> None:
        """End all importers; their models start again with the next daemon."""
        for child in self._running.values():
            child.send_signal(signal.SIGTERM)
        for child in self._running.values():
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._running.clear()

    def _start(self, model: ModelRecord) -> subprocess.Popen[bytes]:
        nonce = f"import-{self._paths.home}-{model.id}"
        orphan = find_worker(nonce)
        if orphan is not None:
            orphan.kill()
        folder = self._paths.imports / model.id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        request = ImportRequest(
            kind=model.kind,
            source=model.source,
            target=str(self._paths.models / model.id),
            revision=model.revision,
            progress=str(folder / "progress.jsonl"),
        )
        write_atomic(folder / "request.json", msgspec.json.encode(request))
        environment = without_service_variables() | {NONCE_VARIABLE: nonce, "PYTHONUTF8": "1"}
        if self._settings.model_endpoint:
            environment["HF_ENDPOINT"] = self._settings.model_endpoint
        with (folder / "import.log").open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "slidepack.engine.importer",
                    str(folder / "request.json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def _follow(self, model: ModelRecord, child: subprocess.Popen[bytes]) -> None:
        exit_code = child.poll()
        last = self._last_line(model)
        match last:
            case ImportProgress() if (last.stage, last.done) != (model.stage, model.done):
                self._catalogue.model_progress(model.id, last)
                self._changes.bump()
            case ImportResult() if exit_code is not None:
                self._catalogue.model_ready(model.id, last)
            case ImportFailed() if exit_code is not None:
                self._catalogue.model_failed(model.id, last.error)
            case _ if exit_code is not None:
                self._catalogue.model_failed(model.id, _died(model, exit_code))
        if exit_code is not None:
            del self._running[_key(model)]
            self._changes.bump()

    def _last_line(self, model: ModelRecord) -> ImportProgress | ImportResult | ImportFailed | None:
        path = self._paths.imports / model.id / "progress.jsonl"
        if not path.exists():
            return None
        lines = list(split_complete_lines(path.read_bytes()))
        return decode_line(lines[-1]) if lines else None


def _key(model: ModelRecord) -> _Key:
    return model.id, model.created_at


def _end(child: subprocess.Popen[bytes]) -> bool:
    """Ask an importer to leave; return whether it has."""
    if child.poll() is not None:
        return True
    child.terminate()
    return False


def unchanged(model: ModelRecord) -> bool:
    """Return whether a ready model's files are still those that were brought in."""
    try:
        return quick_stamp(Path(model.path)) == model.stamp
    except OSError:
        return False


def source_kind(source: str) -> Kind:
    """Return what kind of source a text names.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-A-MODEL or MODEL-PICKLE.
    """
    path = expand_user(source)
    try:
        if source and path.is_dir():
            return "folder"
        is_file = path.is_file()
        magic = _first_bytes(path) if is_file else b""
    except OSError as error:
        raise SlidepackError(
            "MODEL-NOT-FOUND",
            "The model cannot be read.",
            why=f"{clip(source, 200)}: {error.strerror}",
            fix="Check the path and its rights.",
        ) from error
    if is_file:
        if magic == b"GGUF":
            return "gguf"
        if path.suffix in PICKLE_SUFFIXES:
            raise SlidepackError(
                "MODEL-PICKLE",
                "The weights are a pickle file, which can run code when it is read.",
                why=f"{path.name} ends in {path.suffix}",
                fix="Get the model's safetensors files, or convert it where you trust it.",
            )
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "This file is not a model.",
            why=f"{path.name} does not start with the letters GGUF",
            fix="Name a GGUF file or a Hugging Face folder.",
        )
    if _HUB_ID.fullmatch(source):
        return "hub"
    raise SlidepackError(
        "MODEL-NOT-FOUND",
        "There is no such model.",
        why=f"{clip(source, 200) or 'an empty text'} is no folder, no file and no hub id",
        fix="Name a Hugging Face folder, a GGUF file, a hub id such as owner/name, or a model of "
        "Ollama's such as ollama:llama3.2.",
    )


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _died(model: ModelRecord, exit_code: int) -> ErrorReport:
    return ErrorReport(
        code="MODEL-IMPORT-STOPPED",
        what=f"The import of {model.name} died.",
        why=f"exit code {exit_code}",
        fix="Add the model again.",
    )
