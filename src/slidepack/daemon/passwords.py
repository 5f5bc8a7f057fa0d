"""The page's password: one, of the one user; only its Argon2 hash is kept."""

import unicodedata
from itertools import pairwise
from typing import Final

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["LONGEST", "SHORTEST", "Passwords"]

SHORTEST: Final = 10
LONGEST: Final = 256
"""In letters; more would only be work for whoever asks for it."""
_FEWEST_KINDS: Final = 5
_KEY: Final = "password"
_WELL_KNOWN: Final = (
    "abc",
    "admin",
    "changeme",
    "iloveyou",
    "letmein",
    "password",
    "passwort",
    "qwerty",
    "qwertyuiop",
    "qwertz",
    "slidepack",
    "welcome",
)


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    hash: str
    changed_at: float


class Passwords:
    """Sets and checks the password. A check takes about 64 MiB and a tenth of a second."""

    def __init__(self, documents: Documents) -> None:
        """Bind the store."""
        self._documents = documents
        self._hasher = PasswordHasher()

    def changed_at(self) -> float | None:
        """Return the unix time at which the password was set, or None where there is none."""
        stored = self._documents.get(_KEY, _Stored)
        return None if stored is None else stored.changed_at

    def matches(self, password: str) -> bool:
        """Return whether this is the password; False where none is set."""
        stored = self._documents.get(_KEY, _Stored)
        if stored is None or len(password) > LONGEST:
            return False
        typed = _normal(password)
        try:
            self._hasher.verify(stored.hash, typed)
        except (VerificationError, InvalidHashError):
            return False
        if self._hasher.check_needs_rehash(stored.hash):
            self._store(typed, stored.changed_at)
        return True

    def set(self, password: str, now: float) -> None:
        """Replace the password.

        Raises:
            SlidepackError: DAEMON-PASSWORD-INVALID where it is too short, or easy to guess.
        """
        _refuse_weak(password)
        self._store(_normal(password), now)

    def _store(self, typed: str, changed_at: float) -> None:
        self._documents.put(_KEY, _Stored(hash=self._hasher.hash(typed), changed_at=changed_at))


def _normal(password: str) -> str:
    """Return the one spelling of what systems type in several, as an é of one or two signs."""
    return unicodedata.normalize("NFC", password.encode("utf-8", "replace").decode())


def _refuse_weak(password: str) -> None:
    if len(password) < SHORTEST:
        raise _invalid(f"it has {len(password)} letters", f"Use {SHORTEST} or more.")
    if len(password) > LONGEST:
        raise _invalid(f"it has {len(password)} letters", f"Use {LONGEST} at most.")
    if len(set(password)) < _FEWEST_KINDS or _is_run(password) or _is_well_known(password):
        raise _invalid(
            "it would be among the first that somebody tries", "Four unrelated words are good."
        )


def _is_run(password: str) -> bool:
    """Return whether it is a row of the alphabet or of digits, up or down."""
    # Behind 9 comes 0, as on the keyboard.
    cycle = 10 if password.isascii() and password.isdecimal() else 0x110000
    codes = map(ord, password.casefold())
    return len({(after - before) % cycle for before, after in pairwise(codes)}) == 1


def _is_well_known(password: str) -> bool:
    letters = "".join(sign for sign in password.casefold() if sign.isalpha())
    return any(letters in (word, word * 2) for word in _WELL_KNOWN)


def _invalid(why: str, fix: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-PASSWORD-INVALID", "This password is not taken.", why=why, fix=fix
    )
