"""What the settings page says of each setting of the file, and how its form is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from slidepack.daemon.settings import Settings
from slidepack.daemon.settings_file import SettingState, Value

__all__ = ["ABOUT", "SettingGroup", "SettingRow", "changes_of", "setting_groups"]

_REACHING: Final = "Reaching the page"
_TRAINING: Final = "Training"
_KEEPING: Final = "What is kept"
_MODELS: Final = "Chat and models"
_OTHER: Final = "Other"

ABOUT: Final[dict[str, tuple[str, str, str]]] = {
    "listen": (
        _REACHING,
        "Listen on",
        "“local” is this machine alone, “lan” your network, or addresses of this machine. All but "
        "local needs a password.",
    ),
    "allowed_hosts": (
        _REACHING,
        "Further names of this machine",
        "As behind a proxy: train.example.org. Its own names need not be here.",
    ),
    "tls_certificate": (
        _REACHING,
        "Certificate (PEM file)",
        "With it, all other machines are answered over HTTPS only.",
    ),
    "tls_key": (_REACHING, "Its key (PEM file)", "Without a passphrase."),
    "tls_port": (_REACHING, "Port of HTTPS", "Where there is a certificate."),
    "port": (_REACHING, "Port", "0 takes any free one."),
    "device": (
        _TRAINING,
        "Cards that train",
        "“auto” is all, “cpu” none, or some by name or number: RTX 3090, cuda:1.",
    ),
    "packing": (
        _TRAINING,
        "Several LoRA jobs in one pass",
        "“exact” makes no result depend on its company, which costs some time.",
    ),
    "nvme": (
        _TRAINING,
        "State of large models on drives",
        "“auto” uses SSDs alone, which it wears out; “on” any drive; “off” none.",
    ),
    "nvme_folders": (
        _TRAINING,
        "Folders for that state",
        "Separated by commas, one on each drive; empty is the data directory.",
    ),
    "worker_stop_seconds": (
        _TRAINING,
        "Seconds to write a checkpoint",
        "After that, a run that was asked to leave is ended.",
    ),
    "retry_seconds": (
        _TRAINING,
        "Seconds until a crashed run is tried again",
        "Then six times as long each time.",
    ),
    "keep_state_days": (
        _KEEPING,
        "Days a finished adapter can be trained on",
        "Its last checkpoint stays that long. Results, and what a job showed, stay until you "
        "delete the job.",
    ),
    "disk_floor_gb": (_KEEPING, "Free disk to leave, GB", "Uploads stop before it is less."),
    "chat_idle_minutes": (
        _MODELS,
        "Minutes a silent chat keeps its card",
        "Then the queue can have it.",
    ),
    "model_endpoint": (
        _MODELS,
        "Hugging Face mirror",
        "An address; empty is the hub itself.",
    ),
}
"""Group, label and help of each setting, in the page's order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingRow:
    """One field of the form."""

    state: SettingState
    label: str
    help: str
    typed: str
    """What stands in the field."""
    running: str
    default: str
    choices: tuple[str, ...]
    """Empty where anything can be typed."""
    number: bool
    error: str

    @property
    def locked(self) -> bool:
        """Whether the environment decides, so that the file would not count."""
        return self.state.source == "environment"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingGroup:
    """Fields under one heading."""

    title: str
    rows: tuple[SettingRow, ...]


def setting_groups(
    states: Sequence[SettingState],
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> tuple[SettingGroup, ...]:
    """Return the form of all settings.

    Args:
        states: as they are.
        typed: what the user typed and was refused, by name.
        problems: why, by name.
    """
    by_name = {state.name: state for state in states}
    order = [name for name in ABOUT if name in by_name]
    order += [name for name in by_name if name not in ABOUT]
    groups: dict[str, list[SettingRow]] = {}
    for name in order:
        group, label, help_ = ABOUT.get(name, (_OTHER, name, ""))
        row = SettingRow(
            state=by_name[name],
            label=label,
            help=help_,
            typed=(typed or {}).get(name, _written(by_name[name].value)),
            running=_written(by_name[name].running),
            default=_written(by_name[name].default),
            choices=_choices(name),
            number=isinstance(by_name[name].default, int | float),
            error=(problems or {}).get(name, ""),
        )
        groups.setdefault(group, []).append(row)
    return tuple(SettingGroup(title=title, rows=tuple(rows)) for title, rows in groups.items())


def changes_of(form: Mapping[str, str], states: Sequence[SettingState]) -> dict[str, Value | None]:
    """Return what a form changes; an empty field takes the default."""
    changes: dict[str, Value | None] = {}
    for state in states:
        text = form.get(state.name)
        if text is None or state.source == "environment" or text.strip() == _written(state.value):
            continue
        changes[state.name] = text.strip() or None
    return changes


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _choices(name: str) -> tuple[str, ...]:
    kind: Any = get_type_hints(Settings)[name]
    if kind is bool:
        return ("true", "false")
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()
