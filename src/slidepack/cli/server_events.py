"""Reads server-sent events from the bytes of an answer."""

from collections.abc import Iterable, Iterator


class EventReader:
    """Takes an answer as it comes and gives the events that it completes.

    A line ends at LF or CR LF and nowhere else: the data of an event is JSON, in which U+0085,
    U+2028 and other ends of lines that `str.splitlines` knows stand as they are.
    """

    def __init__(self) -> None:
        """Begin before the first byte."""
        self._rest = b""
        self._name = ""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield name and data of each event whose data line ends in a chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.removesuffix(b"\r").partition(b": ")
            if field == b"event":
                self._name = value.decode()
            elif field == b"data":
                yield self._name, value
            elif not line.strip():
                self._name = ""


def events_of(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of each event of a whole answer."""
    reader = EventReader()
    for chunk in chunks:
        yield from reader.feed(chunk)
