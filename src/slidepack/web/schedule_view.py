"""The forms of the schedule: what they show, and what of the policy they change. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Weekday, Window
from slidepack.web.form_lines import lines_of_field

__all__ = ["FieldGroup", "HoursForm", "HoursRow", "LimitField", "hours_form", "limit_groups"]
__all__ += ["preset_form", "read_hours", "read_limits"]

Mode = Literal["any", "windows", "never"]
_MODES: Final[tuple[Mode, ...]] = ("any", "windows", "never")
_MOST_ROWS: Final = 100
_ROW: Final = re.compile(r"(?:start|end)-([0-9]{1,3})|day-([0-9]{1,3})-[a-z]{3}")

_WORKDAYS: Final[tuple[Weekday, ...]] = WEEKDAYS[:5]
_NIGHT: Final = Window(days=WEEKDAYS, start="23:00", end="07:00")
_WORK: Final = Window(days=_WORKDAYS, start="08:00", end="17:00")
_WEEKEND: Final = Window(days=("sat", "sun"), start="00:00", end="24:00")
PRESETS: Final[dict[str, tuple[str, Mode, tuple[Window, ...]]]] = {
    "nights": ("Every night 23-7", "windows", (_NIGHT,)),
    "work": ("While I work, Mon-Fri 8-17", "windows", (_WORK,)),
    "weekends": ("Weekends", "windows", (_WEEKEND,)),
    "always": ("Always", "any", ()),
    "never": ("Never", "never", ()),
}
"""Name -> what the button says, and what it fills in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HoursRow:
    """A window as its row of fields has it."""

    days: tuple[Weekday, ...]
    start: str
    end: str
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HoursForm:
    """The hours, as they are stored or as they were just typed."""

    mode: Mode
    rows: tuple[HoursRow, ...]
    time_zone: str
    finish_within: str
    saved: bool = True
    """False for what is filled in and not stored."""
    told: str = ""
    """What became of the last button."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with a field of the whole form, by its name."""

    @property
    def wrong(self) -> bool:
        """Whether anything of it cannot be stored."""
        return bool(self.errors) or any(row.error for row in self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitField:
    """A number of the policy, in the unit that the page shows."""

    name: str
    label: str
    unit: str
    help: str
    """One sentence: what it means."""
    factor: float = 1.0
    """What one of the page's unit is in the policy's."""
    value: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldGroup:
    """Fields under one heading."""

    title: str
    fields: tuple[LimitField, ...]


_GROUPS: Final = (
    FieldGroup(
        title="Graphics memory",
        fields=(
            LimitField(
                name="reserve_vram_mb",
                label="Held in reserve on each card",
                unit="GB",
                factor=1000.0,
                help="Training plans without this much of each card, so that the desktop stays "
                "smooth.",
            ),
            LimitField(
                name="foreign_vram_mb",
                label="Others may hold",
                unit="GB",
                factor=1000.0,
                help="Training gives way when other programs hold more of one card; 0 does not "
                "look.",
            ),
        ),
    ),
    FieldGroup(
        title="Other programs",
        fields=(
            LimitField(
                name="foreign_gpu_percent",
                label="Others may take of a card's time",
                unit="%",
                help="Training gives way when other programs keep a card busier; 0 does not look.",
            ),
            LimitField(
                name="pause_after_seconds",
                label="Give way after",
                unit="seconds",
                help="So long another program must be there before training leaves the card.",
            ),
            LimitField(
                name="resume_after_seconds",
                label="Quiet before going on",
                unit="minutes",
                factor=60.0,
                help="So long it must be gone before training comes back.",
            ),
        ),
    ),
    FieldGroup(
        title="Heat",
        fields=(
            LimitField(
                name="max_gpu_celsius",
                label="Hottest card",
                unit="°C",
                help="A card that reaches this has training stop until it has cooled; 0 does not "
                "look.",
            ),
            LimitField(
                name="cool_by_celsius",
                label="Cool down by",
                unit="°C",
                help="So far below the limit a card must be before training goes on.",
            ),
        ),
    ),
)


def hours_form(policy: Policy) -> HoursForm:
    """Return the hours as they are stored."""
    return HoursForm(
        mode="never" if policy.closed else "windows" if policy.windows else "any",
        rows=_rows(policy.windows),
        time_zone=policy.time_zone,
        finish_within=f"{policy.finish_within_minutes:g}",
    )


def preset_form(name: str, before: HoursForm) -> HoursForm:
    """Return the hours of a preset, filled in and not stored.

    Raises:
        KeyError: there is no such preset.
    """
    title, mode, windows = PRESETS[name]
    return HoursForm(
        mode=mode,
        rows=_rows(windows),
        time_zone=before.time_zone,
        finish_within=before.finish_within,
        saved=False,
        told=f"Filled in: {title}.",
    )


def read_hours(fields: Mapping[str, str]) -> tuple[HoursForm, dict[str, Any]]:
    """Return a posted form as it was typed, with what is wrong beside it, and what it changes.

    The changes, as JSON has them, mean nothing where the form is wrong.
    """
    mode: Mode = next((known for known in _MODES if known == fields.get("mode")), "any")
    windows, rows = [], []
    for row in _posted_rows(fields):
        try:
            window = Window(days=row.days, start=row.start, end=row.end)
        except ValueError as error:
            # Hours that do not count need not be good.
            why = "" if mode == "any" else _of_row(row, str(error))
            rows.append(HoursRow(days=row.days, start=row.start, end=row.end, error=why))
        else:
            windows.append(window)
            rows.append(row)
    errors = {}
    if mode == "windows" and not rows:
        errors["mode"] = "Mark hours in the week or add a row; or choose one of the other two."
    changes: dict[str, Any] = {
        "closed": mode == "never",
        "windows": [] if mode == "any" else msgspec.to_builtins(windows),
        "time_zone": fields.get("time_zone", "").strip(),
    }
    finish = fields.get("finish_within_minutes", "").strip()
    _take(changes, errors, "finish_within_minutes", finish, 1.0)
    if problem := _refusal("time_zone", changes["time_zone"]):
        errors["time_zone"] = problem
    form = HoursForm(
        mode=mode,
        rows=tuple(rows),
        time_zone=changes["time_zone"],
        finish_within=finish,
        saved=False,
        errors=errors,
    )
    return form, changes


def limit_groups(
    policy: Policy,
    typed: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> tuple[FieldGroup, ...]:
    """Return the numbers of the policy, or what was typed instead, with what is wrong with it."""
    wrong = errors or {}

    def filled(one: LimitField) -> LimitField:
        stored = f"{getattr(policy, one.name) / one.factor:g}"
        return LimitField(
            name=one.name,
            label=one.label,
            unit=one.unit,
            help=one.help,
            factor=one.factor,
            value=stored if typed is None else typed.get(one.name, stored),
            error=wrong.get(one.name, ""),
        )

    return tuple(
        FieldGroup(title=group.title, fields=tuple(map(filled, group.fields))) for group in _GROUPS
    )


def read_limits(fields: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a posted form of numbers changes, as JSON has it, and what is wrong, by field."""
    changes: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for one in (one for group in _GROUPS for one in group.fields):
        if one.name in fields:
            _take(changes, errors, one.name, fields[one.name].strip(), one.factor)
    if "ignored_processes" in fields:
        patterns = lines_of_field(fields["ignored_processes"])
        changes["ignored_processes"] = patterns
        if problem := _refusal("ignored_processes", patterns):
            errors["ignored_processes"] = problem
    return changes, errors


def _rows(windows: tuple[Window, ...]) -> tuple[HoursRow, ...]:
    # No field for a time has 24:00; 00:00 as an end is the same midnight.
    return tuple(
        HoursRow(days=one.days, start=one.start, end="00:00" if one.end == "24:00" else one.end)
        for one in windows
    )


def _posted_rows(fields: Mapping[str, str]) -> list[HoursRow]:
    """Return the rows in which anything is filled in."""
    found = (_ROW.fullmatch(name) for name in fields)
    numbers = sorted({int(match[1] or match[2]) for match in found if match})[:_MOST_ROWS]
    rows = [
        HoursRow(
            days=tuple(day for day in WEEKDAYS if fields.get(f"day-{number}-{day}")),
            # Browsers send seconds where a step asks for them.
            start=fields.get(f"start-{number}", "").strip()[:5],
            end=fields.get(f"end-{number}", "").strip()[:5],
        )
        for number in numbers
        if fields.get("remove") != str(number)
    ]
    return [row for row in rows if row.days or row.start or row.end]


def _of_row(row: HoursRow, problem: str) -> str:
    if not row.days:
        return "Tick at least one day."
    for name, value in (("start", row.start), ("end", row.end)):
        if not value:
            return f"Say when it {name}s."
    return f"{problem[:1].upper()}{problem[1:]}."


def _take(
    changes: dict[str, Any], errors: dict[str, str], name: str, text: str, factor: float
) -> None:
    """Put a number into the changes, or what is wrong with it into the errors."""
    try:
        value = float(text.replace(",", ".")) * factor
    except ValueError:
        errors[name] = f"{text} is no number." if text else "Type a number."
        return
    # Sums of tenths are no tenths: 0.3 GB would be 299.99999999999994 MB.
    changes[name] = round(value, 6)
    if problem := _refusal(name, changes[name]):
        errors[name] = _in_unit(problem, factor)


def _refusal(name: str, value: object) -> str:
    """Return why the policy does not take a value; empty where it does."""
    try:
        msgspec.convert({name: value}, Policy)
    except msgspec.ValidationError as error:
        return f"{str(error).partition(' - at `$')[0].replace(name, 'It', 1)}."
    return ""


def _in_unit(problem: str, factor: float) -> str:
    """Return a refusal of the policy in the page's unit."""
    if factor == 1:
        return problem
    return re.sub(
        r"-?[0-9.]+(?:e[+-]?[0-9]+)?(?=[; .])",
        lambda number: f"{float(number[0]) / factor:g}",
        problem,
    )
