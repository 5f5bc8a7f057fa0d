"""Patterns for programs, held against what /proc says of one."""

import fnmatch
import re
from collections.abc import Iterable
from typing import Final

from slidepack.daemon.policy.rules import COMMAND_PREFIX

_NEVER: Final = re.compile(r"(?!)")


class NamePatterns:
    """Patterns for names alone, case aside."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Compile them into one."""
        self._regex = _joined(patterns)

    def match(self, name: str) -> bool:
        """Return whether any pattern fits the whole name."""
        return self._regex.match(name.casefold()) is not None


class ProgramPatterns:
    """Patterns for names, paths and command lines."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Sort the patterns by what they are held against and compile them."""
        commands, paths, names = [], [], []
        for pattern in patterns:
            if pattern.startswith(COMMAND_PREFIX):
                commands.append(pattern.removeprefix(COMMAND_PREFIX))
            elif "/" in pattern:
                paths.append(pattern)
            else:
                names.append(pattern)
        self._commands = _joined(commands)
        self._paths = _joined(paths)
        self._names = _joined(names)

    def match(self, names: Iterable[str], paths: Iterable[str], command: str) -> bool:
        """Return whether any pattern fits any name, any path, or the command line."""
        return (
            any(self._names.match(name.casefold()) for name in names)
            or any(self._paths.match(path.casefold()) for path in paths)
            or self._commands.match(command.casefold()) is not None
        )


def _joined(patterns: Iterable[str]) -> re.Pattern[str]:
    parts = [fnmatch.translate(pattern.casefold()) for pattern in patterns]
    return re.compile("|".join(f"(?:{part})" for part in parts)) if parts else _NEVER
