"""Requests that a reverse proxy on this machine passes on: they come from 127.0.0.1 too."""

import ipaddress
from typing import Final

from litestar.types import HTTPScope

from slidepack.daemon.listening import Listening, split_host

__all__ = ["has_further_name", "is_proxied"]

_ADDED_BY_PROXIES: Final = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})


def has_further_name(host: str, listening: Listening) -> bool:
    """Return whether a well-formed Host is one that the setting `allowed_hosts` adds."""
    host = host.lower()
    return bool({host, split_host(host)[0]} & listening.extra)


def is_proxied(scope: HTTPScope, listening: Listening) -> bool:
    """Return whether a request that may pass comes from somewhere else, through this machine.

    It does where a name was asked for that is not this machine's own, or where a proxy says so;
    whoever says so of himself gains nothing by it. Nothing else can be told of who is behind it.
    """
    client = scope.get("client")
    if not client or not _is_loopback(client[0]):
        return False
    headers = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1")
    elsewhere = has_further_name(host, listening) and not _names_loopback(split_host(host)[0])
    return elsewhere or not _ADDED_BY_PROXIES.isdisjoint(headers)


def _names_loopback(name: str) -> bool:
    return name.lower() == "localhost" or _is_loopback(name.strip("[]"))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
