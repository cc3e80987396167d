"""A systemd of its own for tests, in namespaces over this machine's files; knows nothing of the project's units."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
CHECKOUT = Path(__file__).parents[2]
PATIENCE_S = 60.0
NAMESPACES = ["--pid", "--fork", "--mount", "--net", "--uts", "--ipc", "--cgroup", "--kill-child"]

MOUNTS = """
mount --make-rprivate /
mount -t tmpfs tmpfs /tmp
mkdir /tmp/changes /tmp/scratch /tmp/root
mount -t overlay overlay -o lowerdir=/,upperdir=/tmp/changes,workdir=/tmp/scratch /tmp/root
mount -t proc proc /tmp/root/proc
mount -t sysfs sysfs /tmp/root/sys
mount -t cgroup2 cgroup2 /tmp/root/sys/fs/cgroup
"""
"""What boot.sh cannot do without."""


def why_not() -> str:
    """Why no systemd can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "starting a systemd of one's own takes root"
    if not SYSTEMD.exists():
        return f"there is no {SYSTEMD}"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "util-linux is not installed here"
    if _cgroups() is None:
        return "no cgroup2 file system is mounted"
    attempt = ["unshare", *NAMESPACES, "sh", "-euc", MOUNTS]
    try:
        tried = subprocess.run(attempt, capture_output=True, text=True, timeout=PATIENCE_S)
        group = _own_group()
        group.rmdir()
    except OSError as error:
        return f"no control group can be made: {error}"
    return "" if tried.returncode == 0 else f"namespaces are not allowed here: {tried.stderr.strip()}"


class Box:
    """One booted systemd; what is changed inside is gone with it."""

    def __init__(self) -> None:
        self._systemd = 0
        self._work = Path(tempfile.mkdtemp(prefix="fkd-box-"))
        self._group = _own_group()
        arguments = [self._work, sysconfig.get_path("purelib"), CHECKOUT]
        boot = Path(__file__).with_name("boot.sh")
        # The shell moves itself into the group, so that everything it starts is born there.
        script = (
            f'echo $$ > {self._group}/cgroup.procs && exec unshare {" ".join(NAMESPACES)} bash {boot} "$@"'
        )
        self._process = subprocess.Popen(
            ["bash", "-c", script, "box", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise

    @property
    def root(self) -> Path:
        """Its file system, seen from outside."""
        return Path(f"/proc/{self._systemd}/root")

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside, as root; what it printed.

        Raises:
            AssertionError: It failed, unless `check` is False.
        """
        inside = ["nsenter", "--target", str(self._systemd), "--all", "--root", "--wd=/", *command]
        done = subprocess.run(
            inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S
        )
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}"
        return done.stdout

    def start(self, *units: str) -> None:
        """Start units.

        Raises:
            AssertionError: One did not start; with what they wrote.
        """
        said = self.run("systemctl", "start", *units, check=False)
        for unit in units:
            assert self.property(unit, "ActiveState") == "active", f"{said}{self.journal(unit)}"

    def property(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def wait_until(self, unit: str, name: str, wanted: str, *, within_s: float = PATIENCE_S) -> str:
        """The value of a unit's property once it contains `wanted`."""
        until = time.monotonic() + within_s
        while wanted not in (found := self.property(unit, name)):
            assert time.monotonic() < until, f"{name} of {unit} stayed {found!r}; {self.journal(unit)}"
            time.sleep(0.1)
        return found

    def journal(self, unit: str) -> str:
        """What a unit wrote."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def stop(self) -> None:
        """End everything inside: with its first process the kernel ends all others."""
        if self._systemd:
            os.kill(self._systemd, signal.SIGKILL)
        elif self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._work.rmdir()
        until = time.monotonic() + PATIENCE_S
        for folder in sorted(self._group.rglob("*"), reverse=True):
            if folder.is_dir():
                _remove(folder, until)
        _remove(self._group, until)

    def _boot(self) -> None:
        """Wait until the process that is number one inside has reached its target."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self._process.poll() is None:
            children = (
                Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            )
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
                self._systemd = int(children[0])
                if self.run("systemctl", "is-active", "box.target", check=False).strip() == "active":
                    return
            time.sleep(0.05)
        output = (
            self._process.stdout.read() if self._process.poll() is not None and self._process.stdout else ""
        )
        raise AssertionError(f"systemd did not come up: {output}")


def _cgroups() -> Path | None:
    """Where control groups of version 2 are mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


def _own_group() -> Path:
    above = _cgroups()
    assert above is not None
    return Path(tempfile.mkdtemp(prefix="fkd-box-", dir=above))


def _remove(group: Path, until: float) -> None:
    """Remove a control group whose processes are ending."""
    while True:
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < until, f"{group} cannot be removed"
            time.sleep(0.05)
        else:
            return
