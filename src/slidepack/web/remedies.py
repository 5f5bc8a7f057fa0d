"""What a button can do about an error: one table, by code. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["REMEDIES", "WITHOUT", "JobLike", "Remedy", "remedies"]


class JobLike(Protocol):
    """The job that an error is of: `store.jobs.JobRecord`."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def dataset_id(self) -> int | None:
        """Of the rows that it trains on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One button. `{job}` and `{dataset}` in an address are those of the job with the error."""

    label: str
    href: str = ""
    """A page of ours to open."""
    post: str = ""
    """An action of ours to carry out; the answer leads on."""


def _to(label: str, href: str) -> tuple[Remedy, ...]:
    return (Remedy(label=label, href=href),)


_AGAIN: Final = (Remedy(label="Start it again", post="/jobs/{job}/retry"),)
_CHANGE: Final = _to("Change its settings", "/new?from={job}")
_SMALLER: Final = (Remedy(label="Start it again, smaller", post="/jobs/{job}/smaller"), *_CHANGE)
_RESCUE: Final = (
    Remedy(label="Rescue it with a lower learning rate", post="/jobs/{job}/rescue"),
    *_CHANGE,
)
_OTHER_FILE: Final = _to("Choose another file", "/new")
_ROWS: Final = (
    *_to("Open the dataset", "/datasets/{dataset}"),
    *_to("Open the datasets", "/datasets"),
)
_MODELS: Final = _to("Open the models", "/models")
_DOCTOR: Final = _to("Open the doctor", "/doctor")
_SETTINGS: Final = _to("Open the settings", "/settings")
_QUEUE: Final = _to("Open the queue", "/queue")

REMEDIES: Final[dict[str, tuple[Remedy, ...]]] = {
    **dict.fromkeys(
        (
            *("DATA-REFUSED", "DATA-EMPTY", "DATA-CUT-OFF", "DATA-NOT-JSON", "DATA-ENCODING"),
            *("DATA-PREFERENCE-UNSUPPORTED", "DATA-TRANSCRIPT-UNSUPPORTED"),
        ),
        _OTHER_FILE,
    ),
    **dict.fromkeys(
        (
            *("DATA-FORMAT-UNKNOWN", "DATA-AMBIGUOUS", "DATA-MAPPING-INVALID"),
            *("DATA-NO-USABLE-ROWS", "DATA-TOO-MANY-REJECTED", "DATA-CHANGED"),
        ),
        _ROWS,
    ),
    "DATA-NOT-FOUND": _to("Open the datasets", "/datasets"),
    "DATA-UPLOAD-CUT": _to("Upload it again", "/new"),
    "DATA-PATH-REFUSED": _to("Upload it instead", "/new"),
    "DATA-IN-USE": (*_to("Open the datasets", "/datasets"), *_QUEUE),
    **dict.fromkeys(
        (
            *("MODEL-NOT-FOUND", "MODEL-NOT-A-MODEL", "MODEL-UNSUPPORTED", "MODEL-PICKLE"),
            *("MODEL-BROKEN", "MODEL-NO-CHAT-TEMPLATE", "MODEL-UNREACHABLE", "MODEL-NOT-READY"),
            *("MODEL-CHANGED", "MODEL-IMPORT-STOPPED"),
        ),
        _MODELS,
    ),
    "GPU-UNUSABLE": _DOCTOR,
    **dict.fromkeys(("GPU-OUT-OF-MEMORY", "RAM-TOO-SMALL", "RAM-KILLED"), _SMALLER),
    "DISK-FULL": (*_to("See what takes the room", "/doctor#room"), *_AGAIN),
    **dict.fromkeys(("DISK-UNWRITABLE", "DISK-FAILED"), _DOCTOR),
    "RUN-DIVERGED": _RESCUE,
    "RUN-SPEC-INVALID": _CHANGE,
    **dict.fromkeys(
        (
            *("RUN-CHECKPOINT-CORRUPT", "RUN-FOLDER-BROKEN", "RUN-CRASHED", "RUN-FAILED"),
            *("RUN-PACK-MISMATCH", "RUN-NO-CHECKPOINT", "RUN-CHECKPOINT-OTHER-JOB"),
            "RUN-INTERRUPTED",
        ),
        _AGAIN,
    ),
    "RUN-NOT-FOUND": _QUEUE,
    "RUN-NOTHING-LEARNED": (*_ROWS[:1], *_CHANGE),
    "RUN-ORIGIN-BROKEN": _CHANGE,
    "DAEMON-ACCESS": _to("Log in", "/login"),
    "DAEMON-FORBIDDEN": _to("Open the first page", "/"),
    "DAEMON-SETTINGS": _SETTINGS,
    **dict.fromkeys(("DAEMON-INTERNAL", "DAEMON-NO-LOGIND", "DAEMON-NO-SYSTEMD"), _DOCTOR),
    "DAEMON-SERVICE-FAILED": _DOCTOR,
    "DAEMON-POWER-REFUSED": _to("Open the schedule", "/schedule"),
    **dict.fromkeys(
        (
            *("DAEMON-NOTIFIER-INVALID", "DAEMON-NOTIFIER-NOT-FOUND"),
            *("DAEMON-NO-PASSWORD", "DAEMON-TOKEN-NOT-FOUND"),
        ),
        _SETTINGS,
    ),
    "CHAT-NO-ROOM": _QUEUE,
    "CHAT-HELD": _to("Open the schedule", "/schedule"),
}

WITHOUT: Final[Mapping[str, str]] = {
    "DATA-UPLOAD-OFFSET": "the page sends the rest by itself",
    "RUN-FOLDER-BUSY": "another process has it; only its end helps",
    "RUN-STATE": "the job's own buttons show what may be done in its state",
    "RUN-NO-RESULT": "there is nothing until the job has ended",
    "RUN-EXPORT-DIFFERS": "what was exported may not be used; its card on the job's page says more",
    **dict.fromkeys(
        ("DAEMON-RUNNING", "DAEMON-PORT-IN-USE", "DAEMON-DATABASE-NEWER"),
        "told on the command line, before there is a page",
    ),
    "DAEMON-NOT-RUNNING": "no button reaches a daemon that is not there",
    "DAEMON-REQUEST-INVALID": "the form that was sent is still open, and says what is wrong",
    "DAEMON-PASSWORD-INVALID": "the form is still open",
    "DAEMON-TOO-MANY-TRIES": "only time helps",
    **dict.fromkeys(
        (
            *("EXPORT-NOT-FOUND", "EXPORT-STATE", "EXPORT-FILE-NOT-FOUND", "EXPORT-RANGE"),
            "EXPORT-INVALID",
        ),
        "told beside the buttons of the exports",
    ),
    **dict.fromkeys(
        (
            *("CHAT-REQUEST-INVALID", "CHAT-COMMAND-INVALID", "CHAT-VOICE-UNKNOWN"),
            *("CHAT-NAME-TAKEN", "CHAT-PROMPT-INVALID", "CHAT-CONTEXT-FULL"),
            *("CHAT-NOT-A-NUMBER", "CHAT-NOT-FOUND", "CHAT-ENDED", "CHAT-BUSY", "CHAT-CRASHED"),
        ),
        "told in the chat, where the next question begins anew",
    ),
}
"""Codes about which no button can do anything -> why."""


def remedies(code: str, job: JobLike | None = None, *, rescuable: bool = True) -> list[Remedy]:
    """Return the buttons for an error; those that would need a job are left out without one.

    Args:
        code: of the error; one that is not ours has no buttons.
        job: the job that the error is of.
        rescuable: whether that job has a checkpoint from which it may be rescued.
    """
    names = {"job": job.id, "dataset": job.dataset_id} if job is not None else {}
    known = {name: str(value) for name, value in names.items() if value is not None}
    found = []
    for remedy in REMEDIES.get(code, ()):
        if remedy in _RESCUE[:1] and not rescuable:
            continue
        try:
            href, post = remedy.href.format(**known), remedy.post.format(**known)
        except KeyError:
            continue
        found.append(Remedy(label=remedy.label, href=href, post=post))
    return found
