"""Programs that a measurement starts, and that end with it whatever happens; knows nothing of what they do."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fkd_bench.load.usage import with_descendants
from fkd_common.errors import FkdError

_END_S = 5.0


class Program:
    """One of them."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        stdout: int | None,
        stderr: int | None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("w") as kept:
            # A session of its own: what it starts can be ended with it, and Ctrl-C is for us.
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=kept if stdout is None else stdout,
                stderr=kept if stderr is None else stderr,
                text=True,
                start_new_session=True,
            )

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; whoever waits for it is told why
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def heard(self) -> str:
        """A line of its standard output; empty once it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def check(self) -> None:
        """See that it has not failed.

        Raises:
            FkdError: It has; the message is its own.
        """
        if self.process.poll():
            raise FkdError(self.failure())

    def close(self) -> None:
        """Let go of what it read from and wrote to."""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def failure(self) -> str:
        """How it ended and its own words, in one sentence."""
        status = self.process.returncode
        if status < 0:
            return f"the {self.name} was killed ({signal.Signals(-status).name})"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        said = next((line for line in reversed(lines) if "error: " in line), last).split("error: ", 1)[-1]
        return f"the {self.name} ended with status {status}: {said}"


class Programs:
    """All of one run."""

    def __init__(self, folder: Path) -> None:
        self.started: list[Program] = []
        self._folder = folder

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Program:
        """Start one.

        Args:
            name: For messages, and of its log file.
            command: Its command line.
            environment: Its environment.
            stdout: Where its standard output goes instead of its log file.
            stderr: The same for its standard error.
        """
        self.started.append(Program(name, command, environment, self._folder, stdout, stderr))
        return self.started[-1]

    def module(self, name: str, module: str, *arguments: str) -> Program:
        """Start a module of ours whose standard output is for us."""
        return self.start(name, [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE)

    def check(self) -> None:
        """See that none has failed: of several, the first that was started is to blame.

        Raises:
            FkdError: One has.
        """
        for program in self.started:
            program.check()

    def kill(self, program: Program) -> None:
        """End one as a crash would; that is no failure."""
        self.started.remove(program)
        program.process.kill()
        program.process.wait()
        program.close()

    def stop(self) -> None:
        """End all that are left, with what they started."""
        left = [program.process.pid for program in self.started if program.process.poll() is None]
        with contextlib.ExitStack() as handles:
            alive: set[int] = set()
            for pid in with_descendants(left):
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    alive.add(os.pidfd_open(pid))
            for handle in alive:
                handles.callback(os.close, handle)
            for number in (signal.SIGTERM, signal.SIGKILL):
                _end(alive, number)
        for program in self.started:
            program.process.wait()
            program.close()


def _end(alive: set[int], number: signal.Signals) -> None:
    """Send a signal to processes, by their handles, and wait a little; those that end are no longer among them."""
    for handle in alive:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
    until = time.monotonic() + _END_S
    while alive and (left := until - time.monotonic()) > 0:
        alive -= set(select.select(alive, (), (), left)[0])


@contextmanager
def programs(folder: Path) -> Iterator[Programs]:
    """Programs whose logs are in a folder."""
    running = Programs(folder)
    try:
        yield running
    finally:
        running.stop()


class Proxy:
    """A counting proxy in front of a port; see :mod:`fkd_bench.load.proxy`."""

    def __init__(self, running: Programs, port: int) -> None:
        self._program = running.module("proxy", "fkd_bench.load.proxy", str(port))
        (self.port,) = self._numbers()

    def passed(self) -> tuple[int, int]:
        """Bytes so far: from those that connect, and to them."""
        self._program.tell("")
        up, down = self._numbers()
        return up, down

    def _numbers(self) -> list[int]:
        told = self._program.heard()
        if not told:
            self._program.process.wait(_END_S)
            raise FkdError(self._program.failure())
        return [int(number) for number in told.split()]
