"""A process that passes TCP on to another port and counts the bytes; it neither reads nor changes them.

``python -m fkd_bench.load.proxy PORT`` prints the port it listens on; then, for every line on standard input, the bytes
so far from those that connect, and to them. It ends with its standard input. Counted is what TCP carries: HTTP/2 or
HTTP with its headers and control frames, not TCP's and IP's own headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

_HOST = "127.0.0.1"
_BUFFER = 1 << 18


class _Proxy:
    def __init__(self, target: int) -> None:
        self.up = self.down = 0
        self._target = target

    async def join(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        """One connection, both ways."""
        far, far_out = await asyncio.open_connection(_HOST, self._target, limit=_BUFFER)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._up(near, far_out), self._down(far, near_out))
        far_out.close()
        near_out.close()

    async def _up(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        async for length in _passed_on(source, sink):
            self.up += length

    async def _down(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        async for length in _passed_on(source, sink):
            self.down += length


async def _passed_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> AsyncIterator[int]:
    """The lengths of what is passed on, before it is."""
    while data := await source.read(_BUFFER):
        yield len(data)
        sink.write(data)
        await sink.drain()
    sink.write_eof()


async def _main(target: int) -> None:
    proxy, loop, over = _Proxy(target), asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(proxy.join, _HOST, 0, limit=_BUFFER)

    def asked() -> None:
        if sys.stdin.readline():
            print(proxy.up, proxy.down, flush=True)
        else:
            over.set()

    loop.add_reader(sys.stdin, asked)
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
