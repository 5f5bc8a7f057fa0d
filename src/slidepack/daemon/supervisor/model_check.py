"""Whether a job's model is still what it was queued with; its content is read beside the queue."""

import threading
from dataclasses import dataclass
from pathlib import Path

from slidepack.daemon.store.catalogue import Catalogue, ModelRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.importer.fingerprint import content_hash, quick_stamp


@dataclass(frozen=True, slots=True)
class _Comparison:
    stamp: str
    """Of the files that were compared."""
    done: threading.Event
    same: list[bool]


class ModelCheck:
    """Compares by size and time at once, and by content in a thread of its own."""

    def __init__(self, catalogue: Catalogue) -> None:
        """Bind the models."""
        self._catalogue = catalogue
        self._comparisons: dict[str, _Comparison] = {}

    def why_wait(self, spec: JobSpec) -> str:
        """Return why a job has to wait for its model; empty where the model is as it was.

        Raises:
            SlidepackError: MODEL-NOT-FOUND, or MODEL-CHANGED where its content was read and is
                another.
        """
        model = self._catalogue.model(spec.base.model_id)
        if model.content_hash != spec.base.content_hash:
            raise _changed(model)
        try:
            stamp = quick_stamp(Path(model.path))
        except OSError as error:
            # A drive that is not there yet, most of all: what it holds may well be unchanged.
            return f"waits: the model's folder cannot be read ({error})"
        if stamp == model.stamp:
            self._comparisons.pop(model.id, None)
            return ""
        return self._compare(model, stamp)

    def _compare(self, model: ModelRecord, stamp: str) -> str:
        known = self._comparisons.get(model.id)
        if known is None or known.stamp != stamp:
            known = self._comparisons[model.id] = _Comparison(stamp, threading.Event(), [])
            threading.Thread(
                target=_hash, args=(model, known), name=f"compare-{model.id}", daemon=True
            ).start()
        if not known.done.is_set():
            return "waits: the model's files were touched, and are compared"
        del self._comparisons[model.id]
        if not known.same:
            return "waits: the model's files cannot be read"
        if not known.same[0]:
            raise _changed(model)
        self._catalogue.set_stamp(model.id, stamp)
        return ""


def _hash(model: ModelRecord, comparison: _Comparison) -> None:
    try:
        comparison.same.append(content_hash(Path(model.path)) == model.content_hash)
    except OSError:
        # No answer: the job goes on waiting, and the files are looked at again.
        return
    finally:
        comparison.done.set()


def _changed(model: ModelRecord) -> SlidepackError:
    return SlidepackError(
        "MODEL-CHANGED",
        f"The model {model.id} has changed since it was added.",
        why=f"files in {model.path} have another content than those that were added",
        fix="Add the model again with `slidepack models add`, then queue the job again.",
    )
