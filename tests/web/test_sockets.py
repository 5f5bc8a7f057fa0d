"""The daemon's sockets: an answer leaves as soon as it is written."""

import asyncio
import socket

from slidepack.web.sockets import open_sockets


def test_no_part_of_an_answer_waits_for_the_part_before() -> None:
    """Nagle's algorithm would hold the body back until the headers are confirmed: 40 ms a page."""

    async def accept() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with open_sockets(("127.0.0.1",), 0) as (listener,):
            server = await asyncio.start_server(answer, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            found = await accepted
            writer.close()
            server.close()
            return found

    assert asyncio.run(accept()) != 0
