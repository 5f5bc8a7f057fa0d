"""Receivers of notices on this machine, and notices over a real database."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slidepack.daemon.changes import Changes
from slidepack.daemon.notices.courier import Courier
from slidepack.daemon.notices.energy import EnergyReport
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.notices.settings import Outlook
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from support.waiting import PATIENCE, wait_until

NOTHING_MEASURED = EnergyReport(
    joules=None,
    card_joules=None,
    cpu_joules=None,
    source="not measured",
    seconds=0.0,
    card_seconds=0.0,
    cpu_seconds=0.0,
    note="",
)


class Receiver:
    """A web hook on 127.0.0.1 that remembers what came; `status` is what it answers."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.came: list[dict[str, Any]] = []
        self.status = 200
        self.hangs = False
        """Whether it drips an answer that never ends."""
        self.holds = False
        """Whether it answers only when it is let go."""
        self.let_go = threading.Event()
        self.port = int(server.server_address[1])

    def url(self, rest: str = "/") -> str:
        """Return its Apprise URL."""
        return f"json://127.0.0.1:{self.port}{rest}"

    @property
    def titles(self) -> list[str]:
        """The titles that came, in order."""
        return [str(message["title"]) for message in self.came]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve a receiver for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.came.append(json.loads(body))
            if receiver.hangs:
                # A byte now and then: no read of the client ever times out.
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not receiver.let_go.wait(0.2):
                    try:
                        self.wfile.write(b"x")
                    except OSError:
                        return
            if receiver.holds:
                receiver.let_go.wait(PATIENCE)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.let_go.set()
            server.shutdown()
            thread.join()


def open_notices(
    folder: Path,
    *,
    courier: Courier | None = None,
    outlook: Callable[[float], Outlook] | None = None,
    **options: Any,
) -> Notices:
    """Open, or create, the database in a folder, with notices over it."""
    database = Database(folder / "slidepack.db")
    return Notices(
        database,
        Documents(database),
        Changes(),
        courier=courier or Courier(seconds=30),
        outlook=outlook,
        **options,
    )


def add_address(folder: Path, url: str, name: str = "phone") -> int:
    """Store an address without asking Apprise about it, which takes a process; return its id."""
    row = Database(folder / "slidepack.db").query(
        "INSERT INTO notifiers (name, service, shown, url, created_at) "
        "VALUES (?, 'JSON', 'json://127.0.0.1/…', ?, 0) RETURNING id",
        name,
        url,
    )[0]
    return int(row["id"])


def deliver(notices: Notices, now: float) -> None:
    """Tick until what is due now has been tried and its outcome stored."""

    def stored() -> bool:
        notices.tick(now)
        return notices.sender.child_pid is None

    wait_until(stored, what="a delivery has ended")
