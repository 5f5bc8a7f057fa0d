"""Coded errors: the one shape in which every failure reaches a user.

A code is stable and belongs to a family (`DATA-`, `MODEL-`, `GPU-`, `RAM-`, `DISK-`, `RUN-`,
`DAEMON-`, `EXPORT-`, `CHAT-`). Its entry in `CATALOGUE` fixes the process exit code and the HTTP
status, so the command line, the API and the page show the same text for the same failure.
"""

from typing import Final

import msgspec

_CONTROLS: Final = dict.fromkeys({*range(32), *range(127, 160)} - set(map(ord, "\t\n\r")), "?")

EXIT_YIELDED: Final = 75
"""A worker that checkpointed because it was asked to leave (sysexits' EX_TEMPFAIL)."""


class ErrorClass(msgspec.Struct, frozen=True):
    """How one error code leaves the process and the API."""

    exit_code: int
    http_status: int


CATALOGUE: Final[dict[str, ErrorClass]] = {
    # One exit code says one thing. The refusals of a data file share 10: a script that feeds files
    # asks whether the file is good, and the text says what is wrong with it.
    "DATA-REFUSED": ErrorClass(10, 422),
    "DATA-EMPTY": ErrorClass(10, 422),
    "DATA-CUT-OFF": ErrorClass(10, 422),
    "DATA-NOT-JSON": ErrorClass(10, 422),
    "DATA-ENCODING": ErrorClass(10, 422),
    "DATA-FORMAT-UNKNOWN": ErrorClass(10, 422),
    "DATA-AMBIGUOUS": ErrorClass(10, 422),
    "DATA-NO-USABLE-ROWS": ErrorClass(10, 422),
    "DATA-TOO-MANY-REJECTED": ErrorClass(10, 422),
    "DATA-PREFERENCE-UNSUPPORTED": ErrorClass(10, 422),
    "DATA-TRANSCRIPT-UNSUPPORTED": ErrorClass(10, 422),
    "DATA-MAPPING-INVALID": ErrorClass(10, 422),
    "DATA-NOT-FOUND": ErrorClass(11, 404),
    "DATA-CHANGED": ErrorClass(12, 409),
    "DATA-UPLOAD-CUT": ErrorClass(14, 400),
    "DATA-UPLOAD-OFFSET": ErrorClass(15, 409),
    "DATA-PATH-REFUSED": ErrorClass(16, 422),
    "DATA-IN-USE": ErrorClass(17, 409),
    "MODEL-NOT-FOUND": ErrorClass(20, 404),
    "MODEL-NOT-A-MODEL": ErrorClass(21, 422),
    "MODEL-UNSUPPORTED": ErrorClass(22, 422),
    "MODEL-PICKLE": ErrorClass(23, 422),
    "MODEL-BROKEN": ErrorClass(24, 422),
    "MODEL-NO-CHAT-TEMPLATE": ErrorClass(25, 422),
    "MODEL-UNREACHABLE": ErrorClass(26, 502),
    "MODEL-NOT-READY": ErrorClass(27, 409),
    "MODEL-CHANGED": ErrorClass(28, 409),
    "MODEL-IMPORT-STOPPED": ErrorClass(29, 409),
    "GPU-UNUSABLE": ErrorClass(30, 409),
    "GPU-OUT-OF-MEMORY": ErrorClass(31, 409),
    "RAM-TOO-SMALL": ErrorClass(35, 409),
    "RAM-KILLED": ErrorClass(36, 409),
    "DISK-FULL": ErrorClass(40, 507),
    "DISK-UNWRITABLE": ErrorClass(41, 500),
    "DISK-FAILED": ErrorClass(42, 500),
    "RUN-DIVERGED": ErrorClass(50, 409),
    "RUN-SPEC-INVALID": ErrorClass(51, 422),
    "RUN-CHECKPOINT-CORRUPT": ErrorClass(53, 409),
    "RUN-FOLDER-BUSY": ErrorClass(54, 409),
    "RUN-FOLDER-BROKEN": ErrorClass(55, 409),
    "RUN-CRASHED": ErrorClass(56, 500),
    "RUN-STATE": ErrorClass(57, 409),
    "RUN-NOT-FOUND": ErrorClass(58, 404),
    "RUN-NO-RESULT": ErrorClass(59, 409),
    "RUN-FAILED": ErrorClass(60, 409),
    "RUN-PACK-MISMATCH": ErrorClass(61, 409),
    "RUN-NO-CHECKPOINT": ErrorClass(62, 409),
    "RUN-NOTHING-LEARNED": ErrorClass(63, 409),
    "RUN-CHECKPOINT-OTHER-JOB": ErrorClass(64, 409),
    "RUN-EXPORT-DIFFERS": ErrorClass(65, 409),
    "RUN-ORIGIN-BROKEN": ErrorClass(66, 409),
    "RUN-INTERRUPTED": ErrorClass(130, 409),
    "DAEMON-RUNNING": ErrorClass(70, 409),
    "DAEMON-PORT-IN-USE": ErrorClass(71, 409),
    "DAEMON-NOT-RUNNING": ErrorClass(72, 503),
    "DAEMON-ACCESS": ErrorClass(73, 401),
    "DAEMON-FORBIDDEN": ErrorClass(74, 403),
    "DAEMON-REQUEST-INVALID": ErrorClass(76, 400),
    "DAEMON-SETTINGS": ErrorClass(77, 400),
    "DAEMON-INTERNAL": ErrorClass(78, 500),
    "DAEMON-DATABASE-NEWER": ErrorClass(79, 409),
    "DAEMON-NO-LOGIND": ErrorClass(80, 503),
    "DAEMON-POWER-REFUSED": ErrorClass(81, 409),
    "DAEMON-NO-SYSTEMD": ErrorClass(82, 503),
    "DAEMON-SERVICE-FAILED": ErrorClass(83, 500),
    "DAEMON-NOTIFIER-INVALID": ErrorClass(84, 422),
    "DAEMON-NOTIFIER-NOT-FOUND": ErrorClass(85, 404),
    "DAEMON-NO-PASSWORD": ErrorClass(86, 409),
    "DAEMON-PASSWORD-INVALID": ErrorClass(87, 422),
    "DAEMON-TOO-MANY-TRIES": ErrorClass(88, 429),
    "DAEMON-TOKEN-NOT-FOUND": ErrorClass(89, 404),
    "EXPORT-NOT-FOUND": ErrorClass(90, 404),
    "EXPORT-STATE": ErrorClass(91, 409),
    "EXPORT-FILE-NOT-FOUND": ErrorClass(92, 404),
    "EXPORT-RANGE": ErrorClass(93, 416),
    "EXPORT-INVALID": ErrorClass(94, 422),
    "CHAT-REQUEST-INVALID": ErrorClass(100, 422),
    "CHAT-COMMAND-INVALID": ErrorClass(101, 422),
    "CHAT-VOICE-UNKNOWN": ErrorClass(102, 404),
    "CHAT-NAME-TAKEN": ErrorClass(103, 409),
    "CHAT-PROMPT-INVALID": ErrorClass(104, 422),
    "CHAT-CONTEXT-FULL": ErrorClass(105, 422),
    "CHAT-NO-ROOM": ErrorClass(106, 409),
    "CHAT-NOT-A-NUMBER": ErrorClass(107, 409),
    "CHAT-NOT-FOUND": ErrorClass(108, 404),
    "CHAT-ENDED": ErrorClass(109, 409),
    "CHAT-BUSY": ErrorClass(110, 409),
    "CHAT-HELD": ErrorClass(111, 409),
    "CHAT-CRASHED": ErrorClass(112, 500),
}


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error as data: what the API returns, events carry and the database stores."""

    code: str
    """A key of `CATALOGUE`."""
    what: str
    """What happened, in one sentence."""
    why: str
    """The evidence: the value, line, path or figure that shows it."""
    fix: str
    """What the user can do next."""

    def line(self) -> str:
        """Return the error as one line of text, for a terminal or a log."""
        parts = [part.strip() for part in (self.what, self.why, self.fix) if part.strip()]
        joined = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts)
        return f"{self.code}: {' '.join(joined.split())}"


class SlidepackError(Exception):
    """A failure with a stable code; raised by every layer, shown as it is to the user."""

    def __init__(self, code: str, what: str, *, why: str = "", fix: str = "") -> None:
        """Build the error.

        Raises:
            KeyError: `code` is not in `CATALOGUE`; that is a bug of ours.
        """
        self.error_class = CATALOGUE[code]
        self.report = ErrorReport(
            code=code, what=_sayable(what), why=_sayable(why), fix=_sayable(fix)
        )
        super().__init__(self.report.line())

    @classmethod
    def from_report(cls, report: ErrorReport) -> "SlidepackError":
        """Rebuild the exception from its data, as after an API call or in an event."""
        return cls(report.code, report.what, why=report.why, fix=report.fix)

    @property
    def exit_code(self) -> int:
        """The process exit code of this error."""
        return self.error_class.exit_code

    @property
    def http_status(self) -> int:
        """The HTTP status of this error."""
        return self.error_class.http_status


def _sayable(text: str) -> str:
    """Return the text with what no terminal and no JSON takes, e.g. of odd file names, as `?`."""
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode("utf-8")


def code_of_exit(exit_code: int) -> str | None:
    """Return the first catalogue code with this exit code, or None where there is none."""
    return next((code for code, cls in CATALOGUE.items() if cls.exit_code == exit_code), None)
