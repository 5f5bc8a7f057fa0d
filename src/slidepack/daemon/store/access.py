"""Who may get in: browser sessions and the tokens of scripts; only hashes of them are kept."""

import hashlib
from typing import Final, Literal, get_args

import msgspec

from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import SlidepackError

Scope = Literal["read", "jobs", "chat", "admin"]

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
_MOST_TOKENS: Final = 100
_MAX_NAME: Final = 60


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One browser that is logged in."""

    id: int
    """Never used again, so that a list that is old names nobody else."""
    created_at: float
    seen_at: float
    """When it last asked for anything, to the minute; 0 where that is not known."""
    browser: str
    """What it calls itself, as in `Firefox on Linux`."""
    address: str
    """From where it logged in."""


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One token, without itself."""

    id: int
    name: str
    scopes: tuple[Scope, ...]
    created_at: float
    expires_at: float | None
    """Unix time in seconds; None for never."""
    used_at: float | None
    """When it was last used, to the minute."""


class Sessions:
    """All reads and writes of browser sessions."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(self, token: str, now: float, browser: str = "", address: str = "") -> None:
        """Record a new session."""
        self._db.execute(
            "INSERT INTO sessions (token_hash, created_at, seen_at, browser, address) "
            "VALUES (?, ?, ?, ?, ?)",
            hash_of(token),
            now,
            now,
            browser,
            address,
        )

    def known(self, token: str, oldest: float) -> bool:
        """Return whether the token is a session made after `oldest`."""
        row = self._db.one(
            "SELECT 1 FROM sessions WHERE token_hash = ? AND created_at >= ?",
            hash_of(token),
            oldest,
        )
        return row is not None

    def records(self, oldest: float) -> list[SessionRecord]:
        """Return the sessions made after `oldest`, the last used first."""
        rows = self._db.query(
            "SELECT id, created_at, seen_at, browser, address FROM sessions "
            "WHERE created_at >= ? ORDER BY seen_at DESC, id DESC",
            oldest,
        )
        return [msgspec.convert(row, SessionRecord) for row in rows]

    def id_of(self, token: str) -> int | None:
        """Return the id of a session, or None where there is none."""
        row = self._db.one("SELECT id FROM sessions WHERE token_hash = ?", hash_of(token))
        return None if row is None else int(row["id"])

    def seen(self, token: str, now: float) -> None:
        """Record that a session was used."""
        self._db.execute(
            "UPDATE sessions SET seen_at = ? WHERE token_hash = ?", now, hash_of(token)
        )

    def end(self, session_id: int) -> None:
        """Forget a session; it need not be there."""
        # A query, which takes numbers that are too big for an id.
        self._db.query("DELETE FROM sessions WHERE id = ? RETURNING id", session_id)

    def end_all(self, but: str = "") -> None:
        """Forget all sessions, or all but the one of a token."""
        self._db.execute("DELETE FROM sessions WHERE token_hash <> ?", hash_of(but))

    def expire(self, oldest: float) -> None:
        """Forget sessions made before `oldest`."""
        self._db.execute("DELETE FROM sessions WHERE created_at < ?", oldest)


class Tokens:
    """All reads and writes of the tokens of scripts."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(
        self,
        token: str,
        name: str,
        scopes: tuple[Scope, ...],
        now: float,
        expires_at: float | None = None,
    ) -> TokenRecord:
        """Record a new token.

        Args:
            token: itself; a secret, of which only a hash is stored.
            name: what the user calls it.
            scopes: what it may do.
            now: unix time in seconds.
            expires_at: when it ends; None for never.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID.
        """
        name = name.strip()
        _refuse_nonsense(name, scopes, now, expires_at)
        kept = tuple(scope for scope in SCOPES if scope in scopes)
        with self._db.transaction():
            if len(self.records()) >= _MOST_TOKENS:
                raise _refused(f"there are {_MOST_TOKENS} tokens", "Remove one first.")
            row = self._db.query(
                "INSERT INTO api_tokens (name, token_hash, scopes, created_at, expires_at) "
                "VALUES (?, ?, ?, ?, ?) RETURNING *",
                name,
                hash_of(token),
                " ".join(kept),
                now,
                expires_at,
            )[0]
        return _token(row)

    def find(self, token: str, now: float) -> TokenRecord | None:
        """Return the record of a token that is valid now, or None."""
        row = self._db.one(
            "SELECT * FROM api_tokens WHERE token_hash = ? "
            "AND (expires_at IS NULL OR expires_at > ?)",
            hash_of(token),
            now,
        )
        return None if row is None else _token(row)

    def known(self, token_id: int, now: float) -> bool:
        """Return whether a token is there and valid now."""
        row = self._db.one(
            "SELECT 1 FROM api_tokens WHERE id = ? AND (expires_at IS NULL OR expires_at > ?)",
            token_id,
            now,
        )
        return row is not None

    def records(self) -> list[TokenRecord]:
        """Return all tokens, also those that have expired, the oldest first."""
        return [_token(row) for row in self._db.query("SELECT * FROM api_tokens ORDER BY id")]

    def used(self, token_id: int, now: float) -> None:
        """Record that a token was used."""
        self._db.execute("UPDATE api_tokens SET used_at = ? WHERE id = ?", now, token_id)

    def remove(self, token_id: int) -> None:
        """Forget a token.

        Raises:
            SlidepackError: DAEMON-TOKEN-NOT-FOUND.
        """
        rows = self._db.query("DELETE FROM api_tokens WHERE id = ? RETURNING id", token_id)
        if not rows:
            known = ", ".join(str(record.id) for record in self.records()) or "none"
            raise SlidepackError(
                "DAEMON-TOKEN-NOT-FOUND",
                f"There is no token {token_id}.",
                why=f"known: {known}",
                fix="See `slidepack tokens list`.",
            )


def hash_of(token: str) -> str:
    """Return what is stored of a token: it has 256 random bits, so that a plain hash hides it."""
    return hashlib.sha256(token.encode()).hexdigest()


def _refuse_nonsense(
    name: str, scopes: tuple[Scope, ...], now: float, expires_at: float | None
) -> None:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise _refused(
            f"its name has {len(name)} letters",
            f"Give it a printable name of 1 to {_MAX_NAME} letters.",
        )
    if not scopes:
        raise _refused("it may do nothing", f"Choose from {', '.join(SCOPES)}.")
    if expires_at is not None and not now < expires_at < now + 100 * 366 * 86_400:
        raise _refused("it would end in the past, or never", "Choose a later day, or none.")


def _refused(why: str, fix: str) -> SlidepackError:
    return SlidepackError("DAEMON-REQUEST-INVALID", "This token cannot be made.", why=why, fix=fix)


def _token(row: dict[str, object]) -> TokenRecord:
    scopes = tuple(str(row["scopes"]).split())
    kept = {name: value for name, value in row.items() if name != "token_hash"}
    return msgspec.convert(kept | {"scopes": scopes}, TokenRecord)
