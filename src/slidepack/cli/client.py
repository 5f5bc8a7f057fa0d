"""Talks to the running daemon's API with the token of its address file."""

import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import msgspec

from slidepack.cli.sending import encoded, not_utf8
from slidepack.cli.server_events import events_of
from slidepack.daemon.instance import not_running, read_address
from slidepack.daemon.settings import data_home
from slidepack.engine.contract.errors import CATALOGUE, ErrorReport, SlidepackError
from slidepack.engine.data.rows import mend_text

_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 20


class DaemonClient:
    """One daemon, found through its data directory."""

    def __init__(self, home: Path) -> None:
        """Read where the daemon is.

        Raises:
            SlidepackError: DAEMON-NOT-RUNNING.
        """
        address = read_address(home)
        self.url = address.url
        # The daemon is on this machine: a proxy of the environment has no part in it.
        self._http = httpx.Client(
            base_url=f"{address.url}/api/v1",
            headers={"authorization": f"Bearer {address.token}"},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            trust_env=False,
        )

    def get(self, path: str) -> Any:
        """Return the JSON of a GET.

        Raises:
            SlidepackError: what the daemon answers, or DAEMON-REQUEST-INVALID where a text of the
                request is not UTF-8.
        """
        return self._request("GET", path)

    def post(self, path: str, body: object = None) -> Any:
        """Return the JSON of a POST."""
        return self._request("POST", path, body)

    def put(self, path: str, body: object) -> Any:
        """Return the JSON of a PUT."""
        return self._request("PUT", path, body)

    def delete(self, path: str) -> Any:
        """Send a DELETE and return what the daemon says of it, or None."""
        return self._request("DELETE", path)

    def text(self, path: str) -> str:
        """Return the text of a GET."""
        return self._send("GET", path).text

    def stream(self, path: str, body: object) -> Generator[tuple[str, Any], None, None]:
        """Yield the server-sent events that a POST answers with, each a name and its JSON.

        Who stops to read them ends what makes them.
        """
        content = encoded(body)
        try:
            with self._http.stream("POST", path, content=content) as response:
                if not response.is_success:
                    response.read()
                    raise _error_of(response)
                for name, data in events_of(response.iter_bytes()):
                    yield name, msgspec.json.decode(data)
        except httpx.TransportError as error:
            raise not_running(f"{self.url}: {error}") from error

    def upload(self, path: Path, query: dict[str, Any] | None = None) -> Any:
        """Stream a data file to the daemon and return the dataset.

        Args:
            path: the file.
            query: how to read it: format, map, allow_rejects and so on.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DATA-UPLOAD-CUT, DAEMON-REQUEST-INVALID where `query`
                is not UTF-8, and what the daemon answers.
        """
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                # A pipe has no length to announce.
                length = str(status.st_size) if stat.S_ISREG(status.st_mode) else None
                return self._send(
                    "PUT",
                    "/datasets",
                    params={"name": mend_text(path.name), **(query or {})},
                    content=_chunks(file),
                    headers={"content-length": length} if length else {},
                ).json()
        except OSError as error:
            raise SlidepackError(
                "DATA-NOT-FOUND",
                "The data file cannot be read.",
                why=f"{path}: {error.strerror}",
                fix="Check the path.",
            ) from error

    def _request(self, method: str, path: str, body: object = None) -> Any:
        content = None if body is None else encoded(body)
        response = self._send(method, path, content=content)
        return response.json() if response.content else None

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.LocalProtocolError as error:
            raise SlidepackError(
                "DATA-UPLOAD-CUT",
                "The file changed while it was sent.",
                why=str(error),
                fix="Run the command again when nothing writes to it.",
            ) from error
        except httpx.TransportError as error:
            raise not_running(f"{self.url}: {error}") from error
        except UnicodeEncodeError as error:
            raise not_utf8(_whole(error.object, path)) from error
        if response.is_success:
            return response
        raise _error_of(response)


def connect() -> DaemonClient:
    """Return a client of the daemon of this user's data directory.

    Raises:
        SlidepackError: DAEMON-NOT-RUNNING.
    """
    return DaemonClient(data_home(os.environ))


def _error_of(response: httpx.Response) -> SlidepackError:
    try:
        report = msgspec.json.decode(response.content, type=ErrorReport)
    except msgspec.MsgspecError:
        report = None
    if report is None or report.code not in CATALOGUE:
        return SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "The daemon's answer was not understood.",
            why=f"HTTP {response.status_code}: {response.text[:200]}",
            fix="Restart the daemon: it may be of another version than this command.",
        )
    return SlidepackError.from_report(report)


def _whole(character: str, path: str) -> str:
    """Return the path that a character is of, where httpx names no more than that."""
    return path if character in path else character


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
