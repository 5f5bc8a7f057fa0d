"""Links that log one browser in, once: made by whoever is in already, or sits at the machine."""

import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["LoginLinks", "refuse_embedded"]

_LINK_SECONDS: Final = 24 * 3600.0
_MOST_LINKS: Final = 100
_NAVIGATION: Final = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


class LoginLinks:
    """The tokens of links that nobody has used.

    Tries are not counted: nobody guesses 192 random bits, and whoever can count up, such as a web
    site with pictures whose address is a made-up link, would keep the owner out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without any.

        Args:
            clock: unix time in seconds.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def new(self) -> str:
        """Return the token of a new link; it ends within a day."""
        token = secrets.token_urlsafe(24)
        now = self._clock()
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if until >= now}
            while len(self._until) >= _MOST_LINKS:
                del self._until[next(iter(self._until))]
            self._until[_digest(token)] = now + _LINK_SECONDS
        return token

    def use(self, token: str) -> None:
        """Use a link up.

        Raises:
            SlidepackError: DAEMON-ACCESS where it was used, is old, or never was.
        """
        with self._lock:
            until = self._until.pop(_digest(token), 0.0)
        if until < self._clock():
            raise SlidepackError(
                "DAEMON-ACCESS",
                "This link does not open the page any more.",
                why="each link works once, for a day",
                fix="Get a new one with `slidepack open`.",
            )


def refuse_embedded(headers: Mapping[str, str]) -> None:
    """Refuse a link that a browser does not open as a page of its own, but as a picture or in a
    frame of another page; browsers that do not say, and scripts, pass.

    Args:
        headers: of the request, by names in small letters.

    Raises:
        SlidepackError: DAEMON-FORBIDDEN.
    """
    for name, wanted in _NAVIGATION.items():
        found = headers.get(name, wanted)
        if found != wanted:
            raise SlidepackError(
                "DAEMON-FORBIDDEN",
                "A login link is opened by itself, not as a part of another page.",
                why=f"{name} is {found[:200]}",
                fix="Open the link in a tab of its own.",
            )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
