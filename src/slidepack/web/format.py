"""How pages write sizes, times and numbers."""

import time


def size(num_bytes: float | None) -> str:
    """Return bytes as a readable size, in units of 1024."""
    if num_bytes is None:
        return "unknown"
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit in ("B", "KiB") else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float | None) -> str:
    """Return seconds as a readable duration."""
    if seconds is None:
        return "–"  # noqa: RUF001 - a dash for "no value", as tables show it
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(unix_seconds: float | None) -> str:
    """Return a time as local date and time; empty where there is none, or no calendar holds it."""
    if unix_seconds is None:
        return ""
    try:
        return time.strftime("%d %b %H:%M:%S", time.localtime(unix_seconds))
    except (ValueError, OverflowError, OSError):
        return ""


def count(number: float) -> str:
    """Return a large count as, e.g., 134.5 M."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f}"


def loss(value: float | None) -> str:
    """Return a loss with three decimals."""
    return "–" if value is None else f"{value:.3f}"  # noqa: RUF001 - as in `duration`


def sentence(text: str) -> str:
    """Return a phrase as a sentence: a capital first, a full stop last."""
    stripped = text.strip()
    if not stripped:
        return ""
    stop = "" if stripped.endswith((".", "!", "?", "…")) else "."
    return f"{stripped[0].upper()}{stripped[1:]}{stop}"


def plural(number: int, word: str) -> str:
    """Return a number with its word, e.g. `1 row`, `2 rows`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """Return a number without needless decimals."""
    return f"{value:g}"
