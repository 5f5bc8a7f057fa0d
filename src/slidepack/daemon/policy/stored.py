"""The policy as the database keeps it."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from slidepack.daemon.policy.holding import Hold
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

_KEY: Final = "policy"


class StoredPolicy:
    """Reads the policy once and writes every change."""

    def __init__(self, documents: Documents, now: float) -> None:
        """Read the policy; where none is stored, the defaults hold.

        One that cannot be read holds everything until another is set: to train in hours that
        somebody has forbidden would be worse than to wait.

        Args:
            documents: where it is kept.
            now: unix seconds.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the database cannot be read.
        """
        self._documents = documents
        self._writing = threading.Lock()
        self.policy = Policy()
        self.broken: Hold | None = None
        """Why nothing may train; None where the policy was read."""
        try:
            self.policy = documents.get(_KEY, Policy) or self.policy
        except SlidepackError as error:
            if error.report.code != "DAEMON-SETTINGS":
                raise
            logger.error("%s", error)
            reason = f"the stored policy cannot be used ({error.report.why}); set it again"
            self.broken = Hold(code="paused", reason=reason, since=now)

    def put(self, policy: Policy) -> None:
        """Store another policy.

        Raises:
            SlidepackError: DISK-FULL or DISK-UNWRITABLE; the old one still holds.
        """
        with self._writing:
            self._put(policy)

    def change(self, changes: Mapping[str, object]) -> None:
        """Store the policy with some fields changed, given as JSON has them.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID where one does not exist or cannot be so, and
                DISK-FULL or DISK-UNWRITABLE; the old policy still holds.
        """
        with self._writing:
            fields = msgspec.to_builtins(self.policy) | dict(changes)
            try:
                self._put(msgspec.convert(fields, Policy))
            except msgspec.ValidationError as error:
                raise SlidepackError(
                    "DAEMON-REQUEST-INVALID",
                    "The policy cannot be changed so.",
                    why=str(error),
                    fix=f"Its fields are {', '.join(Policy.__struct_fields__)}.",
                ) from error

    def _put(self, policy: Policy) -> None:
        self._documents.put(_KEY, policy)
        self.policy = policy
        self.broken = None
