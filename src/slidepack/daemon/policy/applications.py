"""Finds the programs beside which nothing trains: the user's own list, and games."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.policy.patterns import NamePatterns, ProgramPatterns
from slidepack.daemon.policy.process_files import ProcessInfo, file_name
from slidepack.daemon.policy.process_table import ProcessTable, Sight
from slidepack.daemon.policy.rules import Policy

_APP_ID: Final = re.compile(r"AppId=([0-9]+)")
_KINDS: Final = ("steam", "listed", "gamemode", "windows")
_GAMEMODE_RUNNER: Final = "gamemoderun"

_WRAPPERS: Final = NamePatterns(
    (
        *("reaper", "steam-launch-wr*", "_v2-entry-point", "pressure-vessel*", "pv-*", "srt-*"),
        *("bwrap", "sh", "bash", "dash", "zsh", "env", "python3*", "proton", "gamescope*"),
        *("gamemoderun", "mangohud*", "wine", "wine64", "wine*-preloader", "wineserver*"),
        *("services.exe", "winedevice.exe", "plugplay.exe", "svchost.exe", "rpcss.exe"),
        *("explorer.exe", "conhost.exe", "tabtip.exe", "start.exe", "steam.exe", "wineboot.exe"),
    )
)
"""What stands between Steam and a game; never the game's own name."""


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """A program that stops training while it runs."""

    pid: int
    """0 for one of Windows, seen from its Linux."""
    name: str
    kind: Literal["listed", "steam", "gamemode", "windows"]
    app_id: str = ""
    """Steam's number of the game."""

    def text(self, verb: str) -> str:
        """Return what it did, as `cs2 runs (Steam game 730)`."""
        how = {
            "listed": "an exclusive application",
            "steam": f"Steam game {self.app_id}",
            "gamemode": "in GameMode",
            "windows": "an exclusive application, in Windows",
        }
        return f"{self.name} {verb} ({how[self.kind]})"


class Applications:
    """Looks for them among the processes; a scan costs a fraction of a millisecond."""

    def __init__(self, proc: Path = Path("/proc"), own_pid: int | None = None) -> None:
        """Name the process file system, and this daemon's own process (None asks the system)."""
        self._proc = proc
        self._table = ProcessTable(proc, environment=False)
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._matches: dict[int, Application] = {}
        self._rules: tuple[tuple[str, ...], bool] = ((), False)
        self._patterns = ProgramPatterns(())

    def find(
        self, policy: Policy, our_pids: Collection[int], monotonic: float
    ) -> tuple[Application, ...]:
        """Look again and return those that run.

        Args:
            policy: its exclusive applications, and whether games count.
            our_pids: our workers; they and what they started never count, nor does the daemon.
            monotonic: seconds by a clock that only goes forward.

        Raises:
            OSError: the process file system cannot be listed.
        """
        rules = (policy.exclusive_apps, policy.detect_games)
        if policy.detect_games != self._rules[1]:
            # Environments are read for nothing else.
            self._table = ProcessTable(self._proc, environment=policy.detect_games)
        read, gone = self._table.scan(monotonic)
        if rules != self._rules:
            self._rules = rules
            self._patterns = ProgramPatterns(policy.exclusive_apps)
            read = {process.pid for process in self._table.all()}
        for pid in gone:
            self._matches.pop(pid, None)
        for pid in read:
            self._judge(pid)
        running = [
            found for pid, found in sorted(self._matches.items()) if self._counts(pid, our_pids)
        ]
        # What says most about itself comes first.
        running.sort(key=lambda found: _KINDS.index(found.kind))
        return tuple(self._named(found) for found in running)

    @property
    def sight(self) -> Sight:
        """What of others' programs is seen; known from the first look on."""
        return self._table.sight

    def is_ours(self, pid: int, our_pids: Collection[int]) -> bool:
        """Return whether a process is this daemon, a worker, or started by one of them."""
        return self._table.is_ours(pid, self._own_pid, our_pids)

    def started(self, pid: int) -> int | None:
        """Return when a process started, in ticks after the boot; None where it is not seen."""
        process = self._table.get(pid)
        return None if process is None else process.started

    def _counts(self, pid: int, our_pids: Collection[int]) -> bool:
        process = self._table.get(pid)
        return (
            process is not None
            and not self.is_ours(pid, our_pids)
            # One that has ended stays in the table until its parent has noticed.
            and self._table.alive(process)
        )

    def _judge(self, pid: int) -> None:
        process = self._table.get(pid)
        found = None if process is None else self._match(process)
        if found is None:
            self._matches.pop(pid, None)
        else:
            self._matches[pid] = found

    def _match(self, process: ProcessInfo) -> Application | None:
        _, games = self._rules
        if games and (app_id := steam_app_id(process)):
            return Application(pid=process.pid, name=process.name, kind="steam", app_id=app_id)
        if self._patterns.match(process.names, process.paths, " ".join(process.command)):
            return Application(pid=process.pid, name=process.name, kind="listed")
        if games and (process.gamemode or self._under_gamemode(process)):
            return Application(pid=process.pid, name=process.name, kind="gamemode")
        return None

    def _under_gamemode(self, process: ProcessInfo) -> bool:
        if _GAMEMODE_RUNNER in process.names:
            return True
        return any(_GAMEMODE_RUNNER in parent.names for parent in self._table.ancestors(process))

    def _named(self, found: Application) -> Application:
        """Return a game under its own name instead of that of what started it."""
        if found.kind == "listed" or not _WRAPPERS.match(found.name):
            return found
        for child in self._table.descendants(found.pid):
            if not _WRAPPERS.match(child.name):
                return msgspec.structs.replace(found, name=child.name)
        # Nothing of it runs yet; the command line says what will.
        process = self._table.get(found.pid)
        promised = "" if process is None else _promised_name(process.command)
        return msgspec.structs.replace(found, name=promised or found.name)


def _promised_name(command: tuple[str, ...]) -> str:
    """Return the program that a command line of Steam's ends in; empty where it names none."""
    if "--" not in command:
        return ""
    rest = command[len(command) - command[::-1].index("--") :]
    windows = [part for part in rest if part.lower().endswith(".exe")]
    return file_name((windows or [*rest, ""])[0])


def steam_app_id(process: ProcessInfo) -> str:
    """Return the number of the game that this process of Steam's watches over, or an empty text.

    Steam starts each game as `reaper SteamLaunch AppId=N -- ...`, which ends with the game.
    """
    command = process.command
    if len(command) < 3 or file_name(command[0]) != "reaper" or command[1] != "SteamLaunch":
        return ""
    for part in command[2:]:
        if part == "--":
            break
        if match := _APP_ID.fullmatch(part):
            return match[1]
    return ""
