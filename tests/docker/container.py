"""A container without an engine: namespaces, a read-only root made of this machine's, a user without capabilities.

What it shares with a real one is what can go wrong for a program: process 1, what it may write, who it is. It has
no image, no cgroup and no seccomp filter.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools import absent, require_tool

DEVICES = ("null", "zero", "urandom", "random")
SHARED = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
USER = 65532


@dataclass(frozen=True)
class Mount:
    """A folder of this machine at a place in the container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Container:
    """What to run, and what it sees."""

    root: Path
    """Becomes /; etc, tmp and mount points are made in it."""
    mounts: Sequence[Mount] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: int = USER
    group: int = USER
    writable_root: bool = False
    network: int | None = None
    """A process whose network is used; without it, this machine's."""

    def command(self, program: Sequence[str]) -> list[str]:
        """The command of this machine that runs a program as process 1 of the container."""
        bound = [*self._python(), *self.mounts]
        lines = ["set -e", f"root={shlex.quote(str(self.root))}", 'mount --bind "$root" "$root"']
        for mount in sorted(bound, key=lambda mount: mount.target):
            target = f'"$root"{shlex.quote(mount.target)}'
            if mount.source.is_dir():  # it may lie within another one, such as /tmp
                lines.append(f"test -d {target} || mkdir -p {target}")
            lines.append(f"mount --bind {shlex.quote(str(mount.source))} {target}")
            if not mount.writable:
                lines.append(f"mount -o remount,bind,ro {target}")
        lines.append('mount -t proc proc "$root/proc"')
        if not self.writable_root:
            lines.append('mount -o remount,bind,ro "$root"')
        inside = ["env", "--chdir", self.workdir, "--ignore-environment"]
        inside += [f"{name}={value}" for name, value in self.environment.items()]
        inside += ["setpriv", "--reuid", str(self.user), "--regid", str(self.group), "--clear-groups"]
        if self.user:
            inside += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        lines.append(f'exec chroot "$root" {shlex.join([*inside, *program])}')
        enter = [] if self.network is None else ["nsenter", f"--net=/proc/{self.network}/ns/net"]
        return [*enter, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(lines)]

    def prepare(self) -> None:
        """Make the places of the root that are mounted over."""
        for folder in ("etc", "tmp", "proc", "dev", "var"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for mount in [*self._python(), *self.mounts]:
            target = self.root / mount.target.lstrip("/")
            if mount.source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()

    def run(self, program: Sequence[str], timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        self.prepare()
        return subprocess.run(
            self.command(program), capture_output=True, text=True, timeout=timeout, check=False
        )

    @contextlib.contextmanager
    def started(self, program: Sequence[str], log: Path) -> Iterator[Running]:
        """A program at work; killed at the end unless it has ended by itself."""
        self.prepare()
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command(program), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        try:
            yield Running(process, log)
        finally:
            process.kill()  # its child, process 1, is killed with it, and so is everything inside
            process.wait()

    def _python(self) -> list[Mount]:
        """What every container has: this machine's programs, Python where a virtual environment expects it, devices."""
        shared = [Mount(Path(path), path) for path in SHARED if Path(path).exists()]
        base = Path(sys.base_prefix)
        if not str(base).startswith("/usr"):
            shared.append(Mount(base, str(base)))
        return shared + [Mount(Path("/dev", name), f"/dev/{name}", writable=True) for name in DEVICES]


@dataclass(frozen=True)
class Running:
    """A container at work."""

    process: subprocess.Popen[bytes]
    log: Path

    def signal(self, number: signal.Signals) -> None:
        """Signal process 1 from outside, as an engine does: it is ignored unless the program has a handler."""
        parent = self.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        os.kill(int(children[0]), number)

    def peak_mib(self) -> float:
        """The most memory that any of its processes has held so far, in MiB; 0 once it has ended."""
        return max((_peak_mib(pid) for pid in _below(self.process.pid)), default=0.0)

    def wait(self, timeout: float) -> int:
        """The exit code, once it has ended."""
        return self.process.wait(timeout)

    def said(self, text: str, timeout: float = 60.0) -> None:
        """Wait until the log contains a text."""
        until = time.monotonic() + timeout
        while text not in (said := self.log.read_text()):
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {said}"
            assert time.monotonic() < until, f"not said within {timeout} s: {text}; said: {said}"
            time.sleep(0.05)


def _below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _below(int(child))


def _peak_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def require_namespaces() -> None:
    """Skip, or fail where tools are demanded, unless this user may make namespaces and mounts."""
    for tool in ("unshare", "nsenter", "setpriv", "mount", "chroot", "ip"):
        require_tool(tool)
    probe = ["unshare", "--mount", "--pid", "--net", "--fork", "sh", "-c", "mount -t tmpfs probe /mnt"]
    if os.geteuid() != 0 or subprocess.run(probe, capture_output=True, check=False).returncode:
        absent("containers need root and namespaces, which are not to be had here")


@contextlib.contextmanager
def own_network() -> Iterator[int]:
    """A network of its own that has nothing but a loopback; yields the process that holds it."""
    ready = "ip link set lo up && echo up && exec sleep 600"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", ready], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            yield holder.pid
        finally:
            holder.kill()


def copy_accounts(root: Path) -> None:
    """Give a root the files that name users, as a base image has them."""
    (root / "etc").mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf"):
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), root / "etc" / name)
