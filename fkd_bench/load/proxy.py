"""A process that passes TCP on to another port and counts the bytes; it neither reads nor changes them.

``python -m fkd_bench.load.proxy PORT`` prints the port it listens on; then, for every line on standard input, the bytes
so far in both directions together. It ends with its standard input. Counted is what TCP carries: HTTP/2 or HTTP with
its headers and control frames, not TCP's and IP's own headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_HOST = "127.0.0.1"
_BUFFER = 1 << 18


class _Proxy:
    def __init__(self, target: int) -> None:
        self.passed = 0
        self._target = target

    async def join(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        """One connection, both ways."""
        far, far_out = await asyncio.open_connection(_HOST, self._target, limit=_BUFFER)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pass_on(near, far_out), self._pass_on(far, near_out))
        far_out.close()
        near_out.close()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_BUFFER):
            self.passed += len(data)
            sink.write(data)
            await sink.drain()
        sink.write_eof()


async def _main(target: int) -> None:
    proxy, loop, over = _Proxy(target), asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(proxy.join, _HOST, 0, limit=_BUFFER)

    def asked() -> None:
        if sys.stdin.readline():
            print(proxy.passed, flush=True)
        else:
            over.set()

    loop.add_reader(sys.stdin, asked)
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
