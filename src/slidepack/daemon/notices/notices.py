"""Everything that tells the user something while nobody looks at the page."""

from collections.abc import Callable
from datetime import tzinfo

from slidepack.daemon.changes import Changes
from slidepack.daemon.notices.courier import Courier
from slidepack.daemon.notices.digest import Digest
from slidepack.daemon.notices.digest_clock import DigestClock
from slidepack.daemon.notices.energy import EnergyMeter
from slidepack.daemon.notices.outbox import Outbox
from slidepack.daemon.notices.sender import Sender, Trial
from slidepack.daemon.notices.settings import (
    Kind,
    NoticeSettings,
    Outlook,
    read_settings,
    write_settings,
)
from slidepack.daemon.notices.targets import Targets
from slidepack.daemon.notices.wording import job_notice
from slidepack.daemon.states import JobState
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import ErrorReport

_PRUNE_SECONDS = 3600.0


class Notices:
    """The facade: what the supervisor records, what the clock ticks, what the API asks."""

    def __init__(
        self,
        database: Database,
        documents: Documents,
        changes: Changes,
        *,
        outlook: Callable[[float], Outlook] | None = None,
        courier: Courier | None = None,
        energy: EnergyMeter | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        """Wire the parts; nothing is started.

        Args:
            database: with the tables of notices.
            documents: where the user's choice is kept.
            changes: told when a delivery ended or a digest came.
            outlook: tells how the policy stands at a unix time in seconds; None knows of none.
            courier: starts delivering processes; None takes the real one.
            energy: None measures this machine.
            zone: the user's time zone; None is that of this machine.
        """
        self._documents = documents
        self.changes = changes
        self._pruned_at = float("-inf")
        self.outlook: Callable[[float], Outlook] = outlook or _no_outlook
        courier = courier or Courier()
        self.outbox = Outbox(database)
        self.targets = Targets(database, courier)
        self.sender = Sender(self.outbox, self.targets, courier, self.settings, zone)
        self.digests = DigestClock(database, self.outbox, self.settings, self.outlook, zone)
        self.energy = energy or EnergyMeter(database)

    def record(self, kind: Kind, title: str, body: str, job_id: int | None, now: float) -> int:
        """Write a notice, inside the caller's transaction; see `Outbox.record`."""
        return self.outbox.record(kind, title, body, job_id, now)

    def job_changed(
        self, job: JobRecord, state: JobState, reason: str, error: ErrorReport | None, now: float
    ) -> None:
        """Write the notice of a job that was completed, failed or paused, if it deserves one.

        Call it in the transaction of the change, and not for what the user has just asked for.
        """
        notice = job_notice(job, state, reason, error)
        if notice is not None:
            self.outbox.record(*notice, job.id, now)

    def tick(self, now: float) -> None:
        """Record the digest where it is due and move deliveries on; every few seconds.

        It never waits for a service. It belongs to one background thread.

        Args:
            now: unix time in seconds.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE, DAEMON-SETTINGS; the next tick tries again.
        """
        told = self.digests.tick(now)
        if self.sender.tick(now) or told:
            self.changes.bump()
        if abs(now - self._pruned_at) >= _PRUNE_SECONDS:
            self.outbox.prune(now)
            self._pruned_at = now

    def stop(self, now: float) -> None:
        """Let a delivery end, for a few seconds at most, and start no other."""
        self.sender.stop(now)

    def settings(self) -> NoticeSettings:
        """Return what the user wants to be told.

        Raises:
            SlidepackError: DAEMON-SETTINGS.
        """
        return read_settings(self._documents)

    def choose(self, settings: NoticeSettings) -> NoticeSettings:
        """Store what the user wants to be told."""
        write_settings(self._documents, settings)
        self.changes.bump()
        return settings

    def test(self, notifier_id: int, now: float) -> Trial:
        """Send a test at once and wait for its outcome, under a minute.

        Raises:
            SlidepackError: DAEMON-NOTIFIER-NOT-FOUND where there is no such address.
        """
        trial = self.sender.test(notifier_id, now)
        self.changes.bump()
        return trial

    def digest(self, now: float) -> Digest:
        """Return the digest of the last night, up to now."""
        return self.digests.latest(now)


def _no_outlook(_now: float) -> Outlook:
    return Outlook()
