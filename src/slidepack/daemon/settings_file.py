"""Changes the settings file by name: a line at a time, so that comments and order stay.

No TOML writer is used: the settings are flat, and a changed text is only kept where reading it
again gives the old values with just this one changed.
"""

import codecs
import os
import re
import threading
import tomllib
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

import msgspec

from slidepack.daemon.paths import disk_error
from slidepack.daemon.settings import (
    Settings,
    file_values,
    settings_file,
    settings_from,
    variable_of,
)
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import write_atomic

__all__ = ["SettingState", "SettingsFile", "SettingsRefused", "with_value"]

Source = Literal["default", "file", "environment"]
Value = str | int | float | bool
_SIMPLE: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s#"'\[{][^#"']*?)"""
"""A value on one line; lists and texts of several lines are none."""
_REFUSED: Final = ("Cc", "Cs")
"""Categories of characters: controls, and halves of surrogate pairs, which no file takes."""
_WANTED: Final[dict[object, str]] = {
    int: "use a whole number",
    float: "use a number",
    bool: "use true or false",
}


class SettingState(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: what it is, will be, and where that comes from."""

    name: str
    running: Value
    """What this daemon started with."""
    value: Value
    """What the next start takes."""
    default: Value
    source: Source
    """Where `value` comes from."""
    variable: str
    """The environment variable that wins over the file."""

    @property
    def waits(self) -> bool:
        """Whether it takes effect only after a restart."""
        return self.running != self.value


class SettingsRefused(SlidepackError):
    """Settings that were not stored."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        """Build the refusal.

        Args:
            fields: what is wrong, by name of the setting.
        """
        super().__init__(
            "DAEMON-SETTINGS",
            "These settings were not stored.",
            why="; ".join(fields.values()),
            fix="Change them and store them again.",
        )
        self.fields = dict(fields)


class SettingsFile:
    """The settings file of a running daemon."""

    def __init__(self, running: Settings, environment: Mapping[str, str] = os.environ) -> None:
        """Bind what the daemon runs with, and the environment that it started in."""
        self._running = running
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self.path = settings_file(environment)

    def states(self) -> tuple[SettingState, ...]:
        """Return all settings.

        Raises:
            SlidepackError: DAEMON-SETTINGS where the file cannot be used as it is now.
        """
        values = self._read()
        coming = self._checked(values)
        return tuple(
            SettingState(
                name=name,
                running=getattr(self._running, name),
                value=getattr(coming, name),
                default=getattr(Settings(), name),
                source=self._source(name, values),
                variable=variable_of(name),
            )
            for name in Settings.__struct_fields__
        )

    def next_settings(self, changes: Mapping[str, Value | None]) -> Settings:
        """Return what a daemon would start with after changes; None takes the default.

        Raises:
            SettingsRefused: they cannot be used.
        """
        return self._merged(self._read(), changes)[1]

    def change(self, changes: Mapping[str, Value | None]) -> None:
        """Store changes, all or none; None takes the line out of the file.

        Raises:
            SettingsRefused: they cannot be used.
            SlidepackError: DAEMON-SETTINGS where the file has to be changed by hand, DISK-FULL or
                DISK-UNWRITABLE.
        """
        with self._lock:
            converted, _ = self._merged(self._read(), changes)
            try:
                # A link of somebody's collection of settings stays one.
                target = self.path.resolve()
                data = target.read_bytes() if target.exists() else b""
                body = data.removeprefix(codecs.BOM_UTF8)
                changed = text = body.decode()
                for name, value in converted.items():
                    changed = with_value(changed, name, value)
                if changed != text:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _replace(target, data[: len(data) - len(body)] + changed.encode())
            except OSError as error:
                raise disk_error(error, self.path) from error

    def _merged(
        self, values: Mapping[str, Any], changes: Mapping[str, Value | None]
    ) -> tuple[dict[str, Value | None], Settings]:
        """Return the changes with their own types, and the settings that they make."""
        problems: dict[str, str] = {}
        converted: dict[str, Value | None] = {}
        for name, value in changes.items():
            try:
                converted[name] = self._convert(name, value)
            except ValueError as error:
                problems[name] = str(error)
        while True:
            merged = {k: v for k, v in {**values, **converted}.items() if v is not None}
            try:
                settings = settings_from(merged, self._environment)
            except msgspec.ValidationError as error:
                wrong = _field_of(str(error), converted)
                if wrong is None:
                    raise self._unusable(error) from error
                problems[wrong] = str(error).partition(" - at ")[0]
                # What is left is looked at as well: one answer says all that is wrong.
                del converted[wrong]
                continue
            if problems:
                raise SettingsRefused(problems)
            return converted, settings

    def _convert(self, name: str, value: Value | None) -> Value | None:
        kind = get_type_hints(Settings).get(name)
        if kind is None:
            raise ValueError(f"{name} is no setting")
        if variable_of(name) in self._environment:
            raise ValueError(f"{name} is set by {variable_of(name)}, which wins over the file")
        if value is None:
            return None
        try:
            found: Value = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            wanted = _WANTED.get(kind, str(error))
            raise ValueError(f"{name} is {value!r}; {wanted}") from error
        if isinstance(found, str) and any(unicodedata.category(one) in _REFUSED for one in found):
            raise ValueError(f"{name} holds a control character")
        return found

    def _source(self, name: str, values: Mapping[str, Any]) -> Source:
        if variable_of(name) in self._environment:
            return "environment"
        return "file" if name in values else "default"

    def _read(self) -> dict[str, Any]:
        try:
            return file_values(self.path)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise self._unusable(error) from error

    def _checked(self, values: Mapping[str, Any]) -> Settings:
        try:
            return settings_from(values, self._environment)
        except msgspec.ValidationError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> SlidepackError:
        return SlidepackError(
            "DAEMON-SETTINGS",
            "The settings file cannot be used as it is now.",
            why=f"{self.path}: {error}",
            fix="Mend it by hand; the daemon would not start with it again.",
        )


def with_value(text: str, name: str, value: Value | None) -> str:
    """Return the text of a settings file with one value changed; None takes it out.

    Raises:
        SlidepackError: DAEMON-SETTINGS where it is written in a way that only its writer knows.
    """
    values = _values(text)
    wanted = {key: old for key, old in values.items() if key != name}
    if value is not None:
        wanted[name] = value
    if wanted == values:
        return text
    changed = _edited(text, name, value, known=name in values)
    try:
        fits = _values(changed) == wanted
    except tomllib.TOMLDecodeError:
        fits = False
    if not fits:
        raise SlidepackError(
            "DAEMON-SETTINGS",
            f"The setting {name} has to be changed by hand.",
            why="it is written over several lines of the settings file, or in an unusual way",
            fix="Open the file in an editor, or bring the setting on one line.",
        )
    return changed


def _values(text: str) -> dict[str, Any]:
    """Return what a text says, read as `file_values` reads a file: a CR ends a line too."""
    return tomllib.loads(text.replace("\r\n", "\n").replace("\r", "\n"))


def _edited(text: str, name: str, value: Value | None, *, known: bool) -> str:
    line = re.compile(
        rf"""^([ \t]*["']?{name}["']?[ \t]*=[ \t]*){_SIMPLE}([ \t]*(?:#[^\n]*)?\r?)$""", re.M
    )
    # Behind the first table's name a line belongs to the table.
    table = re.search(r"^[ \t]*\[", text, re.M)
    head, tail = (text[: table.start()], text[table.start() :]) if table else (text, "")
    if value is None:
        return re.sub(rf"{line.pattern}\n?", "", head, count=1, flags=re.M) + tail
    written = _toml(value)
    if known and line.search(head):
        return line.sub(lambda found: f"{found[1]}{written}{found[2]}", head, count=1) + tail
    end = "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"
    if head and not head.endswith("\n"):
        head += end
    return f"{head}{name} = {written}{end}{tail}"


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON's escapes are a part of TOML's.
    return msgspec.json.encode(value).decode() if isinstance(value, str) else repr(value)


def _field_of(message: str, changes: Mapping[str, object]) -> str | None:
    """Return the changed setting that a message is about: it begins with the setting's name."""
    named = message.partition(" ")[0]
    if named in changes:
        return named
    return next(iter(changes), None)


def _replace(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    write_atomic(path, data)
    path.chmod(mode)
