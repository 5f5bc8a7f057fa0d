"""Takes the secrets out of notification addresses and out of what is said about them.

Apprise's own privacy form keeps paths and queries, and those are the secret of many services: a
webhook's path, ntfy's topic. So of an address only the scheme and a host are shown, and a host
only where Apprise does not take it for a secret either.
"""

import re
from typing import Final
from urllib.parse import unquote

_HOST: Final = re.compile(r"localhost|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_BORDERS: Final = re.compile(r"[/:@?&=#,;+\s]+")
_SHORTEST: Final = 3
"""Letters from which a part of an address is taken out of texts; `a` or `80` is no secret."""
HIDDEN: Final = "…"


def mask(privacy_url: str) -> str:
    """Return an address for people, as in `discord://…` or `json://example.org/…`.

    Args:
        privacy_url: Apprise's privacy form of the address.
    """
    scheme, _, rest = privacy_url.partition("://")
    place, _, query = rest.partition("?")
    host = re.sub(r":\d+$", "", place.partition("/")[0].rpartition("@")[2])
    # In ntfy's cloud the place of the host is the topic, and who knows the topic can read it.
    plain = _HOST.fullmatch(host) is not None and "mode=cloud" not in query
    return f"{scheme}://{host}/{HIDDEN}" if plain else f"{scheme}://{HIDDEN}"


def scrub(text: str, url: str, shown: str = "") -> str:
    """Return a text with every part of an address taken out that is not shown anyway.

    Args:
        text: what was said, perhaps about the address.
        url: the address; a secret.
        shown: its masked form.
    """
    open_parts = {url.partition("://")[0].casefold(), *_parts(shown)}
    hidden = {part for form in (url, unquote(url)) for part in _parts(form)} - open_parts
    for part in sorted(hidden, key=len, reverse=True):
        text = re.sub(re.escape(part), HIDDEN, text, flags=re.IGNORECASE)
    return text


def _parts(url: str) -> set[str]:
    return {part.casefold() for part in _BORDERS.split(url) if len(part) >= _SHORTEST}
