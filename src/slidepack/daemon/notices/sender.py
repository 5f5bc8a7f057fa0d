"""Sends what the outbox holds: one process at a time, without ever waiting for it."""

import logging
import threading
from collections.abc import Callable
from datetime import tzinfo
from itertools import groupby
from typing import Final

import msgspec

from slidepack.daemon.notices.contract import Message, Tone
from slidepack.daemon.notices.courier import Courier, Delivery, cannot_start
from slidepack.daemon.notices.local_time import quiet_until
from slidepack.daemon.notices.outbox import Due, Outbox
from slidepack.daemon.notices.settings import Kind, NoticeSettings
from slidepack.daemon.notices.targets import Targets

logger = logging.getLogger(__name__)

_TOGETHER: Final = 10
"""Notices in one message, after quiet hours or an outage."""
_STOP_SECONDS: Final = 3.0
_TONES: Final[dict[Kind, Tone]] = {
    "finished": "success",
    "failed": "failure",
    "paused": "warning",
    "needs_you": "warning",
}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a test of an address went."""

    notifier_id: int
    ok: bool
    error: str
    """Why it failed, without secrets; empty where it arrived."""


class Sender:
    """Takes due notices to their addresses. `tick` belongs to one background thread."""

    def __init__(
        self,
        outbox: Outbox,
        targets: Targets,
        courier: Courier,
        settings: Callable[[], NoticeSettings],
        zone: tzinfo | None = None,
    ) -> None:
        """Bind the stores and read the user's choice through `settings` at every tick."""
        self._outbox = outbox
        self._targets = targets
        self._courier = courier
        self._settings = settings
        self._zone = zone
        self._lock = threading.Lock()
        self._test_lock = threading.Lock()
        self._stopped = False
        self._delivery: Delivery | None = None
        self._taken: dict[int, list[Due]] = {}
        """By key of the message: what it tells."""

    @property
    def child_pid(self) -> int | None:
        """Process id of the delivery that is being made; None between deliveries."""
        return None if self._delivery is None else self._delivery.pid

    def tick(self, now: float) -> bool:
        """Store what a delivery brought, or start one; return whether anything was stored.

        It never waits for a service. Call it every few seconds.

        Args:
            now: unix time in seconds.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE, DAEMON-SETTINGS.
        """
        with self._lock:
            if self._stopped:
                return False
            if self._delivery is not None:
                if self._delivery.is_running():
                    return False
                self._land(self._delivery, now)
                return True
            return self._start(now)

    def test(self, notifier_id: int, now: float) -> Trial:
        """Send a test at once, in quiet hours too, and wait for its outcome, under a minute.

        Raises:
            SlidepackError: DAEMON-NOTIFIER-NOT-FOUND where there is no such address.
        """
        title, body = "Slidepack: a test", "This address works. Notices will come here."
        # One at a time: an impatient user's clicks would start a process each.
        with self._test_lock:
            url = self._targets.url(notifier_id)
            answer = self._courier.run(Message(key=0, url=url, title=title, body=body))
        self._outbox.record_test(notifier_id, title, body, answer.problem, now)
        return Trial(notifier_id=notifier_id, ok=answer.ok, error=answer.problem)

    def stop(self, now: float) -> None:
        """Give a delivery a few seconds to end and store what it brought; start no other."""
        with self._lock:
            self._stopped = True
            if self._delivery is None:
                return
            if not self._delivery.wait(_STOP_SECONDS):
                # Whoever has answered is marked; the others are tried again by the next daemon.
                self._delivery.kill()
            self._land(self._delivery, now)

    def _start(self, now: float) -> bool:
        settings = self._settings()
        self._outbox.drop_unwanted(settings.sends)
        if quiet_until(now, settings.quiet_from, settings.quiet_to, self._zone) is not None:
            return False
        taken: dict[int, list[Due]] = {}
        for notifier_id, group in groupby(self._outbox.due(now), lambda due: due.notifier_id):
            taken[notifier_id] = list(group)[:_TOGETHER]
        if not taken:
            return False
        self._outbox.claim((due for items in taken.values() for due in items), now)
        try:
            self._delivery = self._courier.start(
                [_message(key, items) for key, items in taken.items()]
            )
        except OSError as error:
            for items in taken.values():
                self._outbox.settle(items, cannot_start(error), now)
            return True
        self._taken = taken
        return False

    def _land(self, delivery: Delivery, now: float) -> None:
        # Forgotten first: where the disk refuses to store the outcome, what was claimed is sent
        # again later, and that is better than never.
        taken, self._taken, self._delivery = self._taken, {}, None
        for key, answer in delivery.answers().items():
            if not answer.ok:
                logger.warning("A notice did not reach address %d: %s", key, answer.problem)
            self._outbox.settle(taken[key], answer.problem, now)


def _message(key: int, items: list[Due]) -> Message:
    """Return one message; notices that have waited together come together."""
    if len(items) == 1:
        (due,) = items
        # No service takes a message without a body.
        return Message(
            key=key,
            url=due.url,
            title=due.title if due.body else "",
            body=due.body or due.title,
            tone=_TONES.get(due.kind, "info"),
        )
    failed = any(due.kind == "failed" for due in items)
    return Message(
        key=key,
        url=items[0].url,
        title=f"Slidepack: {len(items)} notices",
        body="\n\n".join(f"{due.title}\n{due.body}".strip() for due in items),
        tone="failure" if failed else "info",
    )
