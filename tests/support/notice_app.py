"""The routes of notices and metrics, guarded as the daemon's are, with no supervisor behind."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from litestar import Litestar, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp

from slidepack.daemon.instance import DaemonAddress, publish_address
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.passwords import Passwords
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.service import Service
from slidepack.daemon.store.access import Sessions, Tokens
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.store.jobs import JobStore
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.errors import on_http_exception, on_slidepack_error, on_unexpected
from slidepack.web.guard import Guard
from slidepack.web.metrics import metrics
from slidepack.web.notices_api import notice_routes
from support.notices import open_notices
from support.waiting import PATIENCE, wait_until


@dataclass
class NoticeDaemon:
    """A served application over notices."""

    home: Path
    service: Service
    access: Access

    @property
    def notices(self) -> Notices:
        """What the API works on."""
        return self.service.notices

    def http(self, *, token: bool = True) -> httpx.Client:
        """Return a client, with the bearer token or without."""
        headers = {"authorization": f"Bearer {self.access.bearer_token}"} if token else {}
        return httpx.Client(
            base_url=self.access.url, headers=headers, trust_env=False, timeout=PATIENCE
        )


@contextmanager
def serving_notices(home: Path, service: Service) -> Iterator[NoticeDaemon]:
    """Serve a service's notices and metrics on 127.0.0.1, and publish where."""
    paths = DataPaths(home)
    server = uvicorn.Server(uvicorn.Config(_unserved, port=0, lifespan="off", log_level="error"))
    socket = server.config.bind_socket()
    database = Database(paths.database)
    access = Access(
        Sessions(database),
        Tokens(database),
        Passwords(Documents(database)),
        socket.getsockname()[1],
    )
    server.config.app = _app(service, access)
    publish_address(
        paths, DaemonAddress(url=access.url, token=access.bearer_token, pid=os.getpid())
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        wait_until(lambda: server.started, what="the server runs")
        yield NoticeDaemon(home, service, access)
    finally:
        server.should_exit = True
        thread.join()
        socket.close()


def notice_service(home: Path, **parts: object) -> Service:
    """Return a service of which only what notices and metrics read is there."""
    service = object.__new__(Service)
    notices = open_notices(home)
    database = Database(home / "slidepack.db")
    parts = {
        "notices": notices,
        "changes": notices.changes,
        "database": database,
        "jobs": JobStore(database),
        "paths": DataPaths(home),
        **parts,
    }
    for name, part in parts.items():
        setattr(service, name, part)
    return service


def _app(service: Service, access: Access) -> ASGIApp:
    app = Litestar(
        route_handlers=[metrics, Router("/api/v1", route_handlers=notice_routes())],
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        exception_handlers={
            SlidepackError: on_slidepack_error,
            HTTPException: on_http_exception,
            Exception: on_unexpected,
        },
        logging_config=None,
        openapi_config=None,
    )
    return Guard(app, access, lambda report, _path: report.line())


async def _unserved(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("replaced before the server runs")
