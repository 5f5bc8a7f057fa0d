"""Runs the daemon: socket, lock, service, application, in that order, and down again."""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from slidepack.daemon.instance import DaemonAddress, InstanceLock, publish_address
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.service import Service
from slidepack.daemon.settings import Settings
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.app import create_app

logger = logging.getLogger(__name__)

_GRACEFUL_SECONDS = 2


class _Server(uvicorn.Server):
    """Uvicorn, told to leave signals to us: a second one must not cut a checkpoint short."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        previous = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number in previous:
                signal.signal(number, signal.SIG_IGN)


def serve(paths: DataPaths, settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Run the daemon until SIGINT or SIGTERM; workers then checkpoint and leave.

    Args:
        paths: the data directory.
        settings: port and limits.
        on_ready: called once with a one-time login link, when the address file is there.

    Raises:
        SlidepackError: DAEMON-RUNNING, DAEMON-PORT-IN-USE, DISK-UNWRITABLE or DISK-FULL.
    """
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
            on_ready(access.new_link())
            _Server(config).run(sockets=[listener])
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
