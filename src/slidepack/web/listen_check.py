"""Whether the daemon could start with settings: asked before they are stored."""

import socket

from slidepack.daemon.listening import listening_of
from slidepack.daemon.passwords import Passwords
from slidepack.daemon.settings import Settings
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.sockets import Certificate

__all__ = ["start_problems"]


def start_problems(settings: Settings, passwords: Passwords) -> dict[str, str]:
    """Return what would keep the daemon from starting, by the name of the setting."""
    found = {}
    listening = listening_of(settings.listen, settings.allowed_hosts, machine=socket.gethostname())
    if listening.beyond and passwords.changed_at() is None:
        found["listen"] = "Other machines need a password: set one first."
    if settings.tls_certificate:
        try:
            Certificate(settings)
        except SlidepackError as error:
            found["tls_certificate"] = f"{error.report.what} {error.report.why}"
    return found
