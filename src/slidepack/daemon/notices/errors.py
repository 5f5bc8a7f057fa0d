"""The coded errors of notification addresses; none of them repeats an address."""

from slidepack.engine.contract.errors import SlidepackError

_EXAMPLES = "Examples: ntfy://your-topic, discord://ID/TOKEN, mailto://user:password@gmail.com."


def bad_address(why: str) -> SlidepackError:
    """Return the error of an address that cannot be used."""
    return SlidepackError(
        "DAEMON-NOTIFIER-INVALID",
        "This notification address cannot be used.",
        why=why,
        fix=f"Write it as Apprise does. {_EXAMPLES}",
    )


def no_such_notifier(notifier_id: int) -> SlidepackError:
    """Return the error of an id that no address has."""
    return SlidepackError(
        "DAEMON-NOTIFIER-NOT-FOUND",
        f"There is no notification address {notifier_id}.",
        why="it was never added, or was removed",
        fix="`slidepack notify list` shows them.",
    )


def too_many(limit: int) -> SlidepackError:
    """Return the error of one address too many."""
    return SlidepackError(
        "DAEMON-NOTIFIER-INVALID",
        "There are too many notification addresses.",
        why=f"{limit} are there already",
        fix="Remove one with `slidepack notify remove`.",
    )
