"""Names in the addresses of pages' parts and buttons."""

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["require_known"]


def require_known(name: str, known: tuple[str, ...]) -> None:
    """Refuse a part or a button that a page does not have.

    Raises:
        SlidepackError: DAEMON-REQUEST-INVALID.
    """
    if name not in known:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "There is no such part of the page.",
            why=f"known: {', '.join(known)}",
        )
