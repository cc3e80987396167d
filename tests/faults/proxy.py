"""A TCP proxy that misbehaves on demand: delay, slices, stalls without a word, resets, partitions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_LINGER_NONE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST."""


@dataclass
class Behaviour:
    """What happens to bytes, in both directions; may be changed at any time.

    Attributes:
        delay_s: how long every piece is held back.
        slice_bytes: the largest piece passed on at once.
        stalled: nothing passes, and nobody is told: a NAT that forgot, a cable that was pulled.
        deaf: new connections are accepted and ignored.
    """

    delay_s: float = 0.0
    slice_bytes: int = 1 << 16
    stalled: bool = False
    deaf: bool = False


class Proxy:
    """Listens on a free port of 127.0.0.1, in a thread of its own, and passes on to `target`.

    Attributes:
        address: where to connect to, HOST:PORT.
        accepted: connections so far.
        now: how it behaves.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.now = Behaviour()
        self.accepted = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._pairs: list[_Pair] = []
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.now = Behaviour()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10.0)

    def reset_all(self) -> None:
        """Every open connection ends with RST, at both ends."""
        self._call(lambda: [pair.reset() for pair in self._pairs])

    def strand_all(self) -> None:
        """Open connections stall for good; new ones pass."""
        self._call(lambda: [pair.strand() for pair in self._pairs])

    def partition(self, seconds: float) -> None:
        """For so long nothing passes, and new connections are ignored."""
        self.now = Behaviour(stalled=True, deaf=True)
        threading.Timer(seconds, lambda: setattr(self, "now", Behaviour())).start()

    def _call(self, what: Callable[[], object]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (what(), done.set()))
        assert done.wait(10.0)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for pair in self._pairs:
            pair.stranded = False
            pair.reset()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=5.0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        pair = _Pair(self, writer, deaf=self.now.deaf)
        self._pairs.append(pair)
        if not pair.deaf:
            host, _, port = self.target.rpartition(":")
            with contextlib.suppress(OSError):
                far_reader, pair.far = await asyncio.open_connection(host, int(port))
                await asyncio.gather(pair.pass_on(reader, pair.far), pair.pass_on(far_reader, writer))
                return
        await self._stop.wait()


class _Pair:
    """One connection and its continuation."""

    def __init__(self, proxy: Proxy, near: asyncio.StreamWriter, *, deaf: bool) -> None:
        self._proxy = proxy
        self._near = near
        self.far: asyncio.StreamWriter | None = None
        self.deaf = deaf
        self.stranded = False

    async def pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(self._proxy.now.slice_bytes):
                await asyncio.sleep(self._proxy.now.delay_s)
                while self._proxy.now.stalled or self.stranded:
                    await asyncio.sleep(0.02)
                sink.write(data)
                await sink.drain()
            sink.close()

    def strand(self) -> None:
        self.stranded = True

    def reset(self) -> None:
        for writer in (self._near, self.far):
            if writer is not None:
                sock: socket.socket | None = writer.get_extra_info("socket")
                if sock is not None and sock.fileno() >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                writer.transport.abort()
