"""How many files and connections the coordinator may have open; one system call, nothing else."""

from __future__ import annotations

import resource

import structlog

ENOUGH = 8192
"""Connections of a few thousand clients, and the run's own files."""


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one; says so where that is not many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some systems allow less than they say
            hard = soft
    if resource.RLIM_INFINITY != hard < ENOUGH:
        structlog.get_logger().warning("few_open_files", limit=hard, enough=ENOUGH, raise_with="ulimit -n")
