"""Hosts made of Linux namespaces, joined by a bridge: network, files, processes and names; knows nothing of FKD.

A host has a network of its own with one interface, a process tree whose death is the host's, its name, and ``/srv``,
the only folder of the example it can see. Whoever makes hosts must already be in namespaces of their own
(:func:`own_namespaces`): with those everything made here goes, however the program ends.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SUBNET = "10.77.0"
_NAMESPACES = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Runs as the host's first process. Mounts are the host's own; the last line keeps the host alive.
_BOOT = """
set -e
hostname "$1"
mount --bind "$2" /srv
mount -t tmpfs none "$3"
mount --bind "$4" /etc/hosts
mount --bind "$5" /etc/resolv.conf
ip link set lo up
echo up
exec sleep infinity
"""


class NamespacesError(Exception):
    """This machine makes no namespaces for this user, or lacks a program for it."""


def own_namespaces() -> list[str]:
    """The command that starts another one in namespaces of its own, which end with it.

    Raises:
        NamespacesError: Neither this user's rights nor user namespaces suffice.
    """
    as_root = ["unshare", *_NAMESPACES]
    as_user = ["unshare", "--user", "--map-root-user", *_NAMESPACES]
    problem = "unshare (util-linux) is not installed"
    for command in (as_root, as_user) if os.geteuid() == 0 else (as_user,):
        try:
            tried = subprocess.run(
                [*command, "sh", "-ec", "ip link add br0 type bridge; mount -t tmpfs none /srv"],
                capture_output=True,
                text=True,
            )
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return command
        problem = " ".join(tried.stderr.split()) or f"exit code {tried.returncode}"
    raise NamespacesError(
        f"hosts need network, mount and process namespaces, which this user cannot make here ({problem}): "
        "run this as root, or allow unprivileged user namespaces"
    )


@dataclass(frozen=True)
class Result:
    """How a command ended on a host."""

    code: int
    output: str
    """Standard output and error, as a terminal would show them."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that passed a host's port on the switch, Ethernet headers included."""

    from_host: int
    to_host: int


class Host:
    """One machine of the example."""

    def __init__(self, name: str, address: str, folder: Path, boot: subprocess.Popen[str]) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        """What the host sees as /srv."""
        self._boot = boot

    def command(self, command: str) -> list[str]:
        """What runs a shell command on this host, in /srv."""
        pid = self._boot.pid
        enter = ["nsenter", f"--target={pid}", "--net", "--mount", "--uts"]
        inside = ["sh", "-c", f"cd /srv && {command}"]
        return [*enter, f"--pid=/proc/{pid}/ns/pid_for_children", "--", *inside]

    def run(self, command: str, *, within_s: float = 120.0) -> Result:
        """Run a shell command in /srv and wait for it."""
        done = subprocess.run(
            self.command(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within_s,
            env=_environment(),
        )
        return Result(done.returncode, done.stdout)

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a program in /srv that goes on; the process returned ends with the program's exit code."""
        return subprocess.Popen(self.command(f"exec {command}"), stdin=subprocess.DEVNULL, env=_environment())


class Switch:
    """The bridge that joins the hosts, in the namespaces of this process; each host has a port on it."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Start a host for every name, with addresses from 10.77.0.10 on.

        Args:
            folder: Receives a folder for every host.
            names: Of the hosts; they know each other by these.
        """
        addresses = {name: f"{SUBNET}.{10 + number}" for number, name in enumerate(names)}
        known = folder / "etc-hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        known.write_text("\n".join(lines) + "\n")
        nameservers = folder / "etc-resolv.conf"
        nameservers.write_text("")  # names come from /etc/hosts and nowhere else
        _sh("ip link add br0 type bridge && ip link set br0 up && ip link set lo up")
        disks = folder / "hosts"
        for name in names:
            (disks / name).mkdir(parents=True, exist_ok=True)
        self.hosts: Mapping[str, Host] = {
            name: self._start(name, address, disks, known, nameservers) for name, address in addresses.items()
        }

    def _start(self, name: str, address: str, disks: Path, known: Path, nameservers: Path) -> Host:
        mounted = [str(path) for path in (disks / name, disks, known, nameservers)]
        boot = subprocess.Popen(
            ["unshare", *_NAMESPACES, "sh", "-c", _BOOT, "boot", name, *mounted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert boot.stdout is not None
        if boot.stdout.readline() != "up\n":
            raise NamespacesError(f"host {name} does not start; what it said is above")
        host = Host(name, address, disks / name, boot)
        _sh(f"ip link add {name} type veth peer name eth0 netns {boot.pid}")
        _sh(f"ip link set {name} master br0 up")
        up = host.run(f"ip addr add {address}/24 dev eth0 && ip link set eth0 up")
        if up.code:
            raise NamespacesError(f"host {name} has no network: {up.output}")
        return host

    def traffic(self, name: str) -> Traffic:
        """What has passed a host's port so far."""
        shown = json.loads(_sh(f"ip -json -statistics link show dev {name}"))
        counted = shown[0]["stats64"]
        return Traffic(from_host=counted["rx"]["bytes"], to_host=counted["tx"]["bytes"])


def run_here(command: str) -> Result:
    """Run a shell command where the switch is."""
    done = subprocess.run(
        ["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    return Result(done.returncode, done.stdout)


def _sh(command: str) -> str:
    result = run_here(command)
    if result.code:
        raise NamespacesError(f"{command}: {result.output.strip()}")
    return result.output


def _environment() -> dict[str, str]:
    """Nothing of the person's own settings; programs of the environment that runs the example."""
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "PATH": path,
        "HOME": "/srv",
        "LANG": "C.UTF-8",
        "COLUMNS": "110",
        "OMP_NUM_THREADS": "1",  # the hosts share this machine's cores
    }


def quoted(text: str) -> str:
    """A word of a shell command."""
    return shlex.quote(text)
