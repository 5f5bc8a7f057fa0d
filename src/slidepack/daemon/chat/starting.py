"""Starts a chat's process where there is room for it."""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slidepack.daemon.chat.devices import Devices
from slidepack.daemon.chat.placing import Place, Taken
from slidepack.daemon.chat.process import ChatProcess, start_chat
from slidepack.daemon.chat.session import ChatSession
from slidepack.daemon.chat.subjects import Subject
from slidepack.daemon.hardware import DeviceNow
from slidepack.daemon.paths import disk_error
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.packs import PackStore
from slidepack.daemon.supervisor.run_folders import new_nonce
from slidepack.engine.chat.contract import ChatRequest, Voice

__all__ = ["ChatStarter", "Start"]

Start = Callable[[Path, ChatRequest, str], ChatProcess]


class ChatStarter:
    """Knows who is on which device, and starts processes."""

    def __init__(
        self,
        *,
        devices: Devices,
        attempts: AttemptStore,
        packs: PackStore,
        root: Path,
        idle_seconds: float,
        changed: Callable[[], None],
        start: Start = start_chat,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind what a start needs.

        Args:
            devices: that there are.
            attempts: the runs on them.
            packs: the workers of many runs.
            root: folder of the folders of all chats.
            idle_seconds: after which a chat ends where nobody asks.
            changed: called when there is something new to show.
            start: starts a process.
            monotonic: seconds by a clock that only goes forward.
        """
        self.devices = devices
        self.root = root
        self.idle_seconds = idle_seconds
        self.changed = changed
        self.monotonic = monotonic
        self._attempts = attempts
        self._packs = packs
        self._start = start

    def taken(
        self, devices: Sequence[DeviceNow], sessions: Iterable[ChatSession]
    ) -> dict[str, Taken]:
        """Return why devices are not free.

        Args:
            devices: that there are.
            sessions: the chats that have not ended.
        """
        found = {session.device: _by_chat(session) for session in sessions}
        for pack in self._packs.live():
            # One without lanes is about to leave.
            found[pack.device] = Taken("a worker is there", "", soon=True)
        for attempt in self._attempts.live():
            # What an older version began does not say where; it was the first device.
            device = attempt.device or devices[0].key
            job = attempt.job_id
            found[device] = Taken(
                f"job {job} trains there", f"Pause it (`slidepack jobs pause {job}`)"
            )
        return found

    def launch(self, subject: Subject, where: Place) -> ChatSession:
        """Start a chat.

        Args:
            subject: whom it is with.
            where: a device with room.

        Raises:
            SlidepackError: DISK-FULL or DISK-UNWRITABLE.
        """
        nonce = new_nonce()
        request = ChatRequest(
            model=str(subject.path),
            content_hash=subject.content_hash,
            voices=tuple(
                Voice(name=adapter.name, folder=str(adapter.folder)) for adapter in subject.adapters
            ),
            device=where.device.key,
            precision=subject.precision,
            threads=where.device.machine.cpu_threads,
            memory_cap_bytes=where.cap_bytes,
        )
        folder = self.root / nonce[:16]
        try:
            process = self._start(folder, request, nonce)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise disk_error(error, folder) from error
        return ChatSession(
            subject,
            where.device.key,
            process,
            cap_bytes=where.cap_bytes,
            idle_seconds=self.idle_seconds,
            monotonic=self.monotonic,
            changed=self.changed,
        )


def _by_chat(session: ChatSession) -> Taken:
    idle = session.open and session.idle
    return Taken(
        f"a chat with {session.subject.title} runs there",
        "End it (`slidepack chat --end`)" if session.open else "",
        session.id if idle else "",
        session.device_bytes if idle else 0,
        soon=not session.open,
    )
