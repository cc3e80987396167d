"""Starts programs from a process that has imported their libraries already, which is most of what a start costs.

Every program is a process of its own, forked before anything was computed, with its own folder, environment and
output. What this project's modules do when they are imported, they do in the program.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

LIBRARIES = {
    "fkd_bench": [],
    "fkd_client": ["torch", "torchvision.models", "lightgbm", "sklearn.neural_network", "safetensors.torch"],
    "fkd_server": ["aiohttp", "cryptography.x509"],
    "tests": ["cryptography.x509"],
}
"""What programs of a package import, besides what all of them do."""
OF_ALL = ["numpy", "grpc.aio", "pydantic_settings", "structlog", "tenacity", "google.rpc.status_pb2"]

_DESCRIPTORS = ("stdout", "stderr", "code")


class Forked:
    """One program, to be used like a `subprocess.Popen` whose output is piped."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Run `python -m` with these arguments."""
        reads, writes = zip(*(os.pipe() for _ in _DESCRIPTORS), strict=True)
        try:
            with _one_at_a_time:
                package = arguments[0].partition(".")[0]
                if package not in _nurseries:
                    _nurseries[package] = _Nursery(package)
                self.pid = _nurseries[package].fork(arguments, environment, list(writes))
        finally:
            for descriptor in writes:
                os.close(descriptor)
        self.stdout: IO[str] = os.fdopen(reads[0])
        self.stderr: IO[str] = os.fdopen(reads[1])
        self._code = os.fdopen(reads[2])
        self._returned: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it is at work."""
        return self._awaited(0.0)

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not.
        """
        returned = self._awaited(timeout_s)
        if returned is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
        return returned

    def send_signal(self, number: signal.Signals) -> None:
        """As long as it is at work."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _awaited(self, timeout_s: float) -> int | None:
        if self._returned is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._code, selectors.EVENT_READ)
                if selector.select(timeout_s):
                    self._returned = int(self._code.read())
                    self._code.close()
        return self._returned


class _Nursery:
    """The process that has imported, seen from the tests."""

    def __init__(self, package: str) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            own = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
            subprocess.Popen(
                [sys.executable, "-m", __name__, package, str(theirs.fileno())],
                env={**os.environ, **own},
                pass_fds=[theirs.fileno()],
            )

    def fork(self, arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> int:
        request = json.dumps([arguments, environment, str(Path.cwd())]).encode()
        socket.send_fds(self._ours, [len(request).to_bytes(4, "big") + request], descriptors)
        return int.from_bytes(_received(self._ours, 4), "big")


_nurseries: dict[str, _Nursery] = {}
_one_at_a_time = threading.Lock()


def _received(line: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        piece = line.recv(length - len(content))
        if not piece:
            raise EOFError
        content += piece
    return content


def _serve(line: socket.socket) -> None:
    """Fork whatever is asked for, and say how each ended; returns in the forked, and when nobody asks any more."""
    codes: dict[int, tuple[int, int]] = {}
    selector = selectors.DefaultSelector()
    selector.register(line, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not line:
                pid, code = codes.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                returned = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(code, str(returned).encode())
                os.close(code)
                continue
            length, descriptors, _, _ = socket.recv_fds(line, 4, len(_DESCRIPTORS))
            if not length:
                return
            request = _received(line, int.from_bytes(length, "big"))
            pid = os.fork()
            if not pid:
                line.close()
                selector.close()
                for watched, (_, code) in codes.items():
                    os.close(watched)
                    os.close(code)
                _become(*json.loads(request), *descriptors)
                return
            stdout, stderr, code = descriptors
            os.close(stdout)
            os.close(stderr)
            watch = os.pidfd_open(pid)
            codes[watch] = (pid, code)
            selector.register(watch, selectors.EVENT_READ)
            line.sendall(pid.to_bytes(4, "big"))


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, stdout: int, stderr: int, code: int
) -> None:
    os.close(code)
    for descriptor, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import fkd_common  # noqa: F401  what it says to gRPC comes before gRPC

    for library in OF_ALL + LIBRARIES[sys.argv[1]]:
        importlib.import_module(library)
    _serve(socket.socket(fileno=int(sys.argv[2])))
