"""Where the daemon listens, and under which names it may be asked. Pure."""

import ipaddress
import re
from typing import Final

import msgspec

__all__ = [
    "HOME_ADDRESS",
    "LAN",
    "Listening",
    "check_hosts",
    "listen_addresses",
    "listening_of",
]

HOME_ADDRESS: Final = "127.0.0.1"
LOCAL: Final = "local"
LAN: Final = "lan"
_ANY: Final = "0.0.0.0"
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)(?::[0-9]{1,5})?")


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the settings before any socket is open."""

    plain: tuple[str, ...]
    """Addresses that speak HTTP; 127.0.0.1 is always reached through them."""
    secure: tuple[str, ...] = ()
    """Addresses that speak HTTPS."""
    names: frozenset[str] = frozenset({"localhost", HOME_ADDRESS})
    """Names of this machine, which go with the port that a request came to."""
    extra: frozenset[str] = frozenset()
    """Hosts that the user allows, with a port or, for any, without."""
    lan_only: bool = False
    """Whether whoever asks from a public address is refused."""

    @property
    def beyond(self) -> tuple[str, ...]:
        """Addresses that are reached from elsewhere."""
        return tuple(a for a in (*self.plain, *self.secure) if a != HOME_ADDRESS)

    @property
    def in_clear(self) -> bool:
        """Whether what goes to other machines, the password too, can be read on the way."""
        return any(address != HOME_ADDRESS for address in self.plain)

    def reachable_names(self) -> tuple[str, ...]:
        """Return names and addresses to write into another machine's browser."""
        named = {_ANY, "::"} & set(self.beyond)
        local = [name for name in sorted(self.names) if name.endswith(".local")] if named else []
        addresses = [address for address in self.beyond if address not in (_ANY, "::")]
        return (*local, *(f"[{a}]" if ":" in a else a for a in addresses))

    def allows(self, host: str, local: tuple[str, int | None] | None, *, tls: bool = False) -> bool:
        """Return whether a request may name this host.

        A name must be ours, for any web site can let a name of its own point here. An address
        cannot point elsewhere, so the one at which a request came in is always ours.

        Args:
            host: the Host header.
            local: address and port at which the connection came in.
            tls: whether it is an HTTPS connection.
        """
        host = host.lower()
        if local is None or not _HOST.fullmatch(host):
            return False
        name, port = split_host(host)
        if host in self.extra or name in self.extra:
            return True
        if (port or (443 if tls else 80)) != local[1]:
            return False
        return name in self.names or name.strip("[]") == local[0].lower()


def listening_of(listen: str, allowed_hosts: str, *, machine: str, tls: bool = False) -> Listening:
    """Return what the settings mean on this machine.

    Args:
        listen: the setting, checked.
        allowed_hosts: the setting, checked.
        machine: its own name.
        tls: whether there is a certificate; then all but 127.0.0.1 speaks HTTPS.
    """
    addresses = listen_addresses(listen)
    names = {"localhost", HOME_ADDRESS}
    beyond = tuple(address for address in addresses if address != HOME_ADDRESS)
    if beyond:
        names |= _names_of(machine)
    secure = (beyond or (HOME_ADDRESS,)) if tls else ()
    plain: tuple[str, ...] = (HOME_ADDRESS,) if tls or _ANY not in addresses else ()
    if not tls:
        plain += beyond
    return Listening(
        plain=plain,
        secure=secure,
        names=frozenset(names),
        extra=frozenset(_parts(allowed_hosts.lower())),
        lan_only=listen.strip() == LAN,
    )


def listen_addresses(choice: str) -> tuple[str, ...]:
    """Return the addresses that the setting `listen` names; 127.0.0.1 is always among them.

    Raises:
        ValueError: it names something else.
    """
    if choice.strip() in (LOCAL, LAN):
        return (HOME_ADDRESS,) if choice.strip() == LOCAL else (_ANY,)
    try:
        found = [str(ipaddress.ip_address(part)) for part in _parts(choice)]
    except ValueError:
        found = []
    if not found:
        raise ValueError(
            f"listen is {choice!r}; use local, lan, or addresses of this machine, "
            'as in "192.168.1.20"'
        )
    first = () if {HOME_ADDRESS, _ANY} & set(found) else (HOME_ADDRESS,)
    return tuple(dict.fromkeys((*first, *found)))


def check_hosts(choice: str) -> None:
    """Check what the setting `allowed_hosts` may be.

    Raises:
        ValueError: one of them is no host.
    """
    for part in _parts(choice.lower()):
        if not _HOST.fullmatch(part):
            raise ValueError(
                f"allowed_hosts holds {part!r}; use names, separated by commas, "
                'as in "train.example.org, gaming-pc:8443"'
            )


def split_host(host: str) -> tuple[str, int | None]:
    """Return name and port of a well-formed host; IPv6 addresses keep their brackets."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        return host, None
    return name, int(port)


def _names_of(machine: str) -> set[str]:
    """Return the names that a home network knows a machine by."""
    short = machine.lower().partition(".")[0]
    named = {machine.lower(), short, f"{short}.local", f"{short}.lan", f"{short}.home.arpa"}
    return {name for name in named if _HOST.fullmatch(name)}


def _parts(choice: str) -> list[str]:
    return [part for part in (part.strip() for part in choice.split(",")) if part]
