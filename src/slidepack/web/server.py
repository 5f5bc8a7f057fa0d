"""Runs the daemon: socket, lock, service, application, in that order, and down again."""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import uvicorn

from slidepack.daemon.instance import DaemonAddress, InstanceLock, publish_address
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.service import Service
from slidepack.daemon.settings import Settings
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.app import create_app

logger = logging.getLogger(__name__)

STOP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_GRACEFUL_SECONDS: Final = 2


class _Server(uvicorn.Server):
    """Uvicorn, told to leave signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _StopSignals:
    """Takes SIGINT and SIGTERM from the first moment on; a second one cuts no checkpoint short."""

    def __init__(self) -> None:
        self._asked = False
        self._service: Service | None = None
        self._server: _Server | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        # The command line blocked them before it became this process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def run(self, service: Service, server: _Server, listener: socket.socket) -> None:
        """Run the server until a signal came, which may have been before this call."""
        self._service, self._server = service, server
        if not self._asked:
            server.run(sockets=[listener])

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._service is not None and self._server is not None:
            # Live streams end by themselves; the server waits for them.
            self._service.stopping.set()
            self._server.should_exit = True


def serve(paths: DataPaths, settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Run the daemon until SIGINT or SIGTERM; workers then checkpoint and leave.

    Args:
        paths: the data directory.
        settings: port and limits.
        on_ready: called once with a one-time login link, when the address file is there.

    Raises:
        SlidepackError: DAEMON-RUNNING, DAEMON-PORT-IN-USE, DISK-UNWRITABLE or DISK-FULL.
    """
    signals = _StopSignals()
    paths.create()
    with InstanceLock(paths), _listen(settings.port) as listener:
        port = int(listener.getsockname()[1])
        service = Service(paths, settings)
        access = Access(service.sessions, port)
        config = uvicorn.Config(
            create_app(service, access),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        )
        service.start()
        try:
            publish_address(
                paths,
                DaemonAddress(url=access.url, token=access.bearer_token, pid=os.getpid()),
            )
            service.notifier.ready(f"listens on {access.url}")
            on_ready(access.new_link())
            signals.run(service, _Server(config), listener)
        finally:
            logger.info("Stopping; running jobs write a checkpoint first.")
            service.stop()


@contextlib.contextmanager
def _listen(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise SlidepackError(
                "DAEMON-PORT-IN-USE",
                f"Port {port} is taken.",
                why=f"127.0.0.1:{port}: {error.strerror}",
                fix="Choose another one with SLIDEPACK_PORT, or 0 for any free one.",
            ) from error
        listener.listen(128)
        yield listener
