"""The sockets that the daemon listens on, and the certificate of those that speak HTTPS."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from slidepack.daemon.paths import expand_user
from slidepack.daemon.settings import Settings
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Certificate", "open_sockets"]

logger = logging.getLogger(__name__)

_BACKLOG: Final = 128
_RENEWED_SECONDS: Final = 60.0
# Linux' numbers, which Python does not name: an address that this machine does not have yet.
_FREEBIND: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 15),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 78),
}


class Certificate:
    """A certificate and its key, read again when they are renewed."""

    def __init__(self, settings: Settings) -> None:
        """Check the files that the settings name.

        Raises:
            SlidepackError: DAEMON-SETTINGS.
        """
        self.certificate = expand_user(settings.tls_certificate)
        self.key = expand_user(settings.tls_key)
        self._stamp = self._stamps()
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, ValueError) as error:
            raise SlidepackError(
                "DAEMON-SETTINGS",
                "The certificate cannot be used.",
                why=f"{self.certificate}, {self.key}: {error.strerror or error}"
                if isinstance(error, OSError)
                else f"{self.key}: it asks for a passphrase",
                fix="Give PEM files of a certificate and its key, readable and with no passphrase.",
            ) from error

    async def follow(self, context: ssl.SSLContext) -> None:
        """Put a renewed certificate into a context in use, for as long as the task runs."""
        while True:
            await asyncio.sleep(_RENEWED_SECONDS)
            self.renew(context)

    def renew(self, context: ssl.SSLContext) -> bool:
        """Read the files again where they have changed; return whether the context has new ones."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        try:
            # First aside: half of a new pair must not end up in the context.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(context)
        except (OSError, ValueError) as error:
            logger.warning("The renewed certificate cannot be used yet: %s", error)
            return False
        self._stamp = stamp
        logger.info("The certificate was renewed.")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        # A key with a passphrase would ask at the terminal, where nobody may be.
        context.load_cert_chain(self.certificate, self.key, password=lambda: "")

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self.certificate, self.key))


@contextlib.contextmanager
def open_sockets(addresses: Sequence[str], port: int) -> Iterator[list[socket.socket]]:
    """Listen on one port of several addresses.

    Args:
        addresses: IPv4 or IPv6.
        port: 0 takes a free one of the first address, for all of them.

    Raises:
        SlidepackError: DAEMON-PORT-IN-USE.
    """
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for address in addresses:
            opened.append(stack.enter_context(_bound(address, port)))
            port = int(opened[0].getsockname()[1])
        # Together, after all are bound: nobody is answered by a daemon that then does not start.
        for listener in opened:
            listener.listen(_BACKLOG)
        yield opened


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # With the protocol named, asyncio sends what is there at once (TCP_NODELAY). Without it, the
    # second part of every answer waited 40 ms for the browser to confirm the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # After a start of the machine the network may come later than the daemon.
        listener.setsockopt(*_FREEBIND[family], 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise SlidepackError(
                "DAEMON-SETTINGS",
                f"The daemon cannot listen on {address}.",
                why=f"{address}:{port}: {error.strerror}",
                fix="Change the setting listen, as with SLIDEPACK_LISTEN=local.",
            ) from error
        raise SlidepackError(
            "DAEMON-PORT-IN-USE",
            f"Port {port} is taken.",
            why=f"{address}:{port}: {error.strerror}",
            fix="Choose another one with SLIDEPACK_PORT, or 0 for any free one.",
        ) from error
    if not _is_ours(address):
        logger.warning("This machine does not have the address %s now.", address)
    return listener


def _is_ours(address: str) -> bool:
    if address in ("0.0.0.0", "::") or address.startswith("127."):
        return True
    return any(
        found.address.partition("%")[0] == address
        for interface in psutil.net_if_addrs().values()
        for found in interface
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
