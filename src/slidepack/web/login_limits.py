"""How often somebody may try to log in: waits that double, for each address and for all of them."""

import ipaddress
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["LoginLimits", "TooManyTries"]

_FREE: Final = 4
"""Failures of one address that cost nothing: people mistype."""
_LONGEST_SECONDS: Final = 900.0
_FREE_OF_ALL: Final = 20
_LONGEST_OF_MANY_SECONDS: Final = 30.0
"""Short, so that whoever guesses from many addresses, or through the proxy that the owner comes
through too, does not lock the owner out."""
_FORGET_SECONDS: Final = 3600.0
_MOST_ADDRESSES: Final = 4096


class TooManyTries(SlidepackError):
    """A login that was not even looked at."""

    def __init__(self, seconds: float) -> None:
        """Build the refusal.

        Args:
            seconds: until the next one is looked at.
        """
        self.seconds = max(1, math.ceil(seconds))
        wait = f"{self.seconds} s" if self.seconds < 120 else f"{self.seconds // 60 + 1} min"
        super().__init__(
            "DAEMON-TOO-MANY-TRIES",
            "Too many logins failed.",
            why=f"the next one is looked at in {wait}",
            fix="Wait, or get a link on the machine itself: `slidepack open`.",
        )


class LoginLimits:
    """Counts tries of one kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nobody to wait.

        Args:
            clock: seconds, on a clock that nobody sets.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._by_source: dict[str, _Tries] = {}
        self._all = _Tries(_FREE_OF_ALL, _LONGEST_OF_MANY_SECONDS)
        self._proxied = _Tries(_FREE, _LONGEST_OF_MANY_SECONDS)

    def begin(self, address: str, *, proxied: bool = False) -> None:
        """Count a try before it is looked at, so that many at once are counted one by one.

        Args:
            address: of the peer.
            proxied: whether that is a proxy on this machine; all who come through one count
                together, and not as the machine itself.

        Raises:
            TooManyTries: it must not be looked at yet.
        """
        now = self._clock()
        with self._lock:
            counted = (self._proxied,) if proxied else self._of_address(address, now)
            for one in counted:
                if (seconds := one.left(now)) > 0:
                    raise TooManyTries(seconds)
            for one in counted:
                one.count(now)

    def succeeded(self, address: str, *, proxied: bool = False) -> None:
        """Forget the failures of an address, and the last try of all, or of all behind proxies."""
        if proxied:
            with self._lock:
                self._proxied.take_back()
            return
        source, local = _source_of(address)
        with self._lock:
            self._by_source.pop(source, None)
            if not local:
                self._all.take_back()

    def _of_address(self, address: str, now: float) -> tuple["_Tries", ...]:
        source, local = _source_of(address)
        tries = self._of(source, now)
        # Whoever guesses from elsewhere keeps nobody from logging in at the machine itself.
        return (tries,) if local else (tries, self._all)

    def _of(self, source: str, now: float) -> "_Tries":
        found = self._by_source.get(source)
        if found is None:
            if len(self._by_source) >= _MOST_ADDRESSES:
                self._drop_some(now)
            found = self._by_source[source] = _Tries(_FREE, _LONGEST_SECONDS)
        return found

    def _drop_some(self, now: float) -> None:
        old = [source for source, tries in self._by_source.items() if tries.is_over(now)]
        # Where none is, the first that came go: all of them together still wait for each other.
        for source in old or list(self._by_source)[: _MOST_ADDRESSES // 4]:
            del self._by_source[source]


class _Tries:
    """Failures in a row, and until when the next try waits."""

    def __init__(self, free: int, longest_seconds: float) -> None:
        self._free = free
        self._longest = longest_seconds
        self._failures = 0
        self._last = float("-inf")
        self._until = float("-inf")

    def left(self, now: float) -> float:
        """Return the seconds that a try still has to wait."""
        return self._until - now

    def is_over(self, now: float) -> bool:
        """Return whether all of it is long ago."""
        return now - max(self._last, self._until) > _FORGET_SECONDS

    def count(self, now: float) -> None:
        """Count a try as a failure, until it is known better."""
        if self.is_over(now):
            self._failures = 0
        self._failures += 1
        self._last = now
        over = self._failures - self._free
        self._until = now + min(2.0 ** min(over, 20), self._longest) if over >= 0 else now

    def take_back(self) -> None:
        """Take the last failure back, and its wait."""
        self._failures = max(0, self._failures - 1)
        self._until = self._last


def _source_of(address: str) -> tuple[str, bool]:
    """Return what counts as one source, and whether it is this machine: of IPv6 the network, for
    a host of it has as many addresses as it likes."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address, False
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if isinstance(found, ipaddress.IPv6Address) and not found.is_loopback:
        return str(ipaddress.ip_network((found, 64), strict=False)), False
    return str(found), found.is_loopback
