"""The doctor's findings as text for a bug report, without names and secrets. Pure."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.doctor.finding import Finding

__all__ = ["Identity", "report_text", "without_names"]

_SECRETS: Final = (
    # Tokens of hubs and services, and whatever calls itself one.
    re.compile(r"\b(?:hf|sk|ghp|gho|xox[abp]|glpat)[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)\bbearer\s+\S+"),
    re.compile(r"(?i)\b[\w-]*(?:token|secret|password|passwd|api[_-]?key)[\w-]*\s*[=:]\s*\S+"),
    re.compile(r"\b\w+://[^\s/@]+@\S+"),
    re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+"),
    re.compile(r"\b[0-9a-fA-F]{24,}\b"),
)
_UUID: Final = re.compile(r"\b((?:GPU-|MIG-)?[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{13,}", re.I)
_ADDRESS: Final = re.compile(r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?=[:/\s,]|$)")
_OWNED: Final = (
    # Names of Windows may have blanks: one ends where the path goes on, or its quotes close. What
    # stands between a bare name and another path goes with it, rather than half a name stays.
    re.compile(
        r"([\\/]Users[\\/]+)[^\\/:*?\"<>|\r\n]*?[^\\/:*?\"<>|\s]"
        r"(?=[ \t]*(?:\b[A-Za-z]:)?[\\/]|\"|'(?:[\s,;:.)\]]|$))",
        re.MULTILINE,
    ),
    # A name of Linux has none.
    re.compile(r"((?:/home|/media|/run/media|[\\/]Users)[\\/]+)[^\\/\s:,;'\")]+"),
)
_COMMON: Final = frozenset({"root", "user", "home", "slidepack", "admin", "ubuntu", "linux"})
_LEAST_LETTERS: Final = 2
_MARKS: Final = {"problem": "PROBLEM", "note": "note", "ok": "ok"}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose machine it is; none of it belongs into a report."""

    user: str
    home: str
    machine: str
    data_dir: str


def report_text(
    facts: Sequence[tuple[str, str]], found: Sequence[Finding], log: str, identity: Identity
) -> str:
    """Return everything as text that may be shown to anybody.

    Args:
        facts: names and values of versions and hardware.
        found: by the doctor.
        log: the last lines of the daemon's log.
        identity: what is taken out.
    """
    lines = [f"{name}: {value}" for name, value in facts if value]
    for finding in found:
        lines += ["", f"[{_MARKS[finding.level]}] {finding.title}"]
        lines += [f"  {part}" for part in (finding.evidence, finding.fix) if part]
    if log:
        lines += ["", "The daemon's log:", log]
    return without_names("\n".join(lines), identity) + "\n"


def without_names(text: str, identity: Identity) -> str:
    """Return a text without the names of users and machines, addresses and secrets."""
    for path, name in ((identity.data_dir, "DATA"), (identity.home, "~")):
        if len(path) > 1:
            text = text.replace(path.rstrip("/"), name)
    for owned in _OWNED:
        text = owned.sub(r"\1USER", text)
    for secret in _SECRETS:
        text = secret.sub("SECRET", text)
    text = _UUID.sub(r"\1-…", text)
    text = _ADDRESS.sub("ADDRESS", text)
    for name, word in ((identity.user, "USER"), (identity.machine, "MACHINE")):
        if len(name) > _LEAST_LETTERS and name.casefold() not in _COMMON:
            text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", word, text)
    return text
