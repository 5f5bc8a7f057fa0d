"""Runs the daemon: sockets, lock, service, application, in that order, and down again."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final

import uvicorn
from litestar.types import ASGIApp

from slidepack.daemon.instance import DaemonAddress, InstanceLock, publish_address
from slidepack.daemon.listening import Listening, listening_of
from slidepack.daemon.passwords import Passwords
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.service import Service
from slidepack.daemon.settings import Settings
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.app import create_app
from slidepack.web.sockets import Certificate, open_sockets

__all__ = ["STOP_SIGNALS", "require_password", "serve"]

logger = logging.getLogger(__name__)

STOP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_GRACEFUL_SECONDS: Final = 2
_THREADS: Final = 32
"""For requests. Some wait minutes for another program, as a check of rows or a plan does, and no
page may wait behind them; Python's own choice is six on a machine of two cores."""

OnReady = Callable[[str, Sequence[str]], None]


class _Server(uvicorn.Server):
    """Uvicorn, told to leave signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Servers:
    """One application on all its sockets."""

    def __init__(
        self,
        app: ASGIApp,
        plain: list[socket.socket],
        secure: list[socket.socket],
        certificate: Certificate | None,
    ) -> None:
        self._certificate = certificate
        self._parts = [(_Server(_config(app)), plain)]
        if certificate is not None:
            self._parts.append((_Server(_config(app, certificate)), secure))

    def run(self) -> None:
        """Serve until `stop`."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """Let `run` return."""
        for server, _ in self._parts:
            server.should_exit = True

    async def _serve(self) -> None:
        executor = ThreadPoolExecutor(_THREADS, "request")
        asyncio.get_running_loop().set_default_executor(executor)
        async with asyncio.TaskGroup() as group:
            following = None
            if self._certificate is not None:
                config = self._parts[-1][0].config
                config.load()
                assert config.ssl is not None
                following = group.create_task(self._certificate.follow(config.ssl))
            serving = [
                group.create_task(server.serve(sockets=sockets)) for server, sockets in self._parts
            ]
            await asyncio.wait(serving)
            if following is not None:
                following.cancel()


class _StopSignals:
    """Takes SIGINT and SIGTERM from the first moment on; a second one cuts no checkpoint short."""

    def __init__(self) -> None:
        self._asked = False
        self._service: Service | None = None
        self._servers: _Servers | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        # The command line blocked them before it became this process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def run(self, service: Service, servers: _Servers) -> None:
        """Run the servers until a signal came, which may have been before this call."""
        self._service, self._servers = service, servers
        if not self._asked:
            servers.run()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._service is not None and self._servers is not None:
            # Live streams end by themselves; the servers wait for them.
            self._service.stopping.set()
            self._servers.stop()


def serve(paths: DataPaths, settings: Settings, on_ready: OnReady) -> None:
    """Run the daemon until SIGINT or SIGTERM; workers then checkpoint and leave.

    Args:
        paths: the data directory.
        settings: addresses, ports and limits.
        on_ready: called once with a one-time login link, and the addresses for other machines,
            when the address file is there.

    Raises:
        SlidepackError: DAEMON-RUNNING, DAEMON-PORT-IN-USE, DAEMON-SETTINGS, DAEMON-NO-PASSWORD,
            DISK-UNWRITABLE or DISK-FULL.
    """
    signals = _StopSignals()
    certificate = Certificate(settings) if settings.tls_certificate else None
    listening = listening_of(
        settings.listen,
        settings.allowed_hosts,
        machine=socket.gethostname(),
        tls=certificate is not None,
    )
    paths.create()
    with (
        InstanceLock(paths),
        open_sockets(listening.plain, settings.port) as plain,
        open_sockets(listening.secure, settings.tls_port) as secure,
    ):
        service = Service(paths, settings)
        require_password(listening, service.passwords)
        access = Access(
            service.sessions,
            service.tokens,
            service.passwords,
            _port(plain),
            listening=listening,
            secure_port=_port(secure),
        )
        servers = _Servers(create_app(service, access), plain, secure, certificate)
        logging.getLogger().addHandler(service.examiner.log)
        service.start()
        try:
            publish_address(
                paths,
                DaemonAddress(url=access.url, token=access.bearer_token, pid=os.getpid()),
            )
            service.notifier.ready(f"listens on {access.url}")
            on_ready(access.new_link(), access.elsewhere)
            signals.run(service, servers)
        finally:
            logger.info("Stopping; running jobs write a checkpoint first.")
            service.stop()
            logging.getLogger().removeHandler(service.examiner.log)


def require_password(listening: Listening, passwords: Passwords) -> None:
    """Refuse to be reached from other machines by whoever likes.

    Raises:
        SlidepackError: DAEMON-NO-PASSWORD.
    """
    if listening.beyond and passwords.changed_at() is None:
        raise SlidepackError(
            "DAEMON-NO-PASSWORD",
            "The page has no password, so it is not opened to other machines.",
            why=f"the setting listen takes in {', '.join(listening.beyond)}",
            fix="Set a password with `slidepack password`, or leave the setting listen at local.",
        )


def _config(app: ASGIApp, certificate: Certificate | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        # It would hold the tokens of login links.
        access_log=False,
        lifespan="off",
        ws="none",
        # Whoever connects may not say that he is somebody else.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )


def _port(sockets: Sequence[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1]) if sockets else 0
