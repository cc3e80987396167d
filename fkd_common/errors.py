"""One exception tree for the whole project: what was expected, what came, what to do; and the exit codes.

Every error a person or a peer can cause derives from :class:`FkdError` and carries a machine-readable
``reason``. Translation to and from gRPC status happens in ``fkd_common.rpc`` and nowhere else.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every program of the project (documented in the README)."""

    OK = 0
    FAILURE = 1
    """A bug or an unforeseen error: the log says which."""
    USAGE = 2
    """A flag, environment variable or configuration key is wrong."""
    DATA = 3
    """A shard, image, extractor or anchor set cannot be used."""
    REJECTED = 4
    """The coordinator refused this client or its upload."""
    UNREACHABLE = 5
    """The coordinator could not be reached within the time allowed."""
    ABORTED = 6
    """The run ended without a result: a quorum was missed."""
    PORT_IN_USE = 7
    """The address is taken by another process."""
    INTERRUPTED = 130
    """Ctrl-C ended a command that was not at work on a run."""


class FkdError(Exception):
    """Base of all expected errors."""

    exit_code = ExitCode.FAILURE
    reason = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class UsageError(FkdError):
    """A setting is wrong."""

    exit_code = ExitCode.USAGE
    reason = "USAGE"


class DataError(FkdError):
    """Local data cannot be used."""

    exit_code = ExitCode.DATA
    reason = "BAD_DATA"


class InvalidUploadError(FkdError):
    """An upload or request violates its schema; resending it unchanged cannot help."""

    exit_code = ExitCode.REJECTED
    reason = "INVALID_UPLOAD"


class StaleError(FkdError):
    """A request belongs to another run, round or phase than the current one."""

    exit_code = ExitCode.REJECTED
    reason = "ROUND_CLOSED"


class RefusedError(FkdError):
    """The coordinator refuses this client (identity, configuration, data description)."""

    exit_code = ExitCode.REJECTED
    reason = "REFUSED"


class UnauthenticatedError(FkdError):
    """The caller does not prove who it is: no, a wrong, an expired or a revoked credential."""

    exit_code = ExitCode.REJECTED
    reason = "UNAUTHENTICATED"


class ForbiddenError(FkdError):
    """The caller is known and may not do this."""

    exit_code = ExitCode.REJECTED
    reason = "FORBIDDEN"


class ConflictError(FkdError):
    """A different upload already stands for the same client, round and phase."""

    exit_code = ExitCode.REJECTED
    reason = "ALREADY_SUBMITTED"


class SupersededError(FkdError):
    """A newer session of the same client took over."""

    exit_code = ExitCode.REJECTED
    reason = "SESSION_SUPERSEDED"


class CorruptTransferError(FkdError):
    """Bytes arrived damaged; sending them again can help."""

    exit_code = ExitCode.UNREACHABLE
    reason = "DIGEST_MISMATCH"


class SecureSumError(FkdError):
    """A secure sum cannot go on here: a step is missing, too few take part, or more is asked than may be said."""

    reason = "SECURE_SUM"


class MethodError(FkdError):
    """A method's own code failed, or returned something else than its interface says."""

    reason = "METHOD"


class DamagedFileError(FkdError):
    """A file of our own is missing or no longer what its name says."""

    reason = "DAMAGED_FILE"


class TooLargeError(FkdError):
    """A message or upload exceeds its cap."""

    exit_code = ExitCode.REJECTED
    reason = "TOO_LARGE"


class NotFoundError(FkdError):
    """No artifact or session under that name."""

    exit_code = ExitCode.REJECTED
    reason = "NOT_FOUND"


class UnreachableError(FkdError):
    """The coordinator does not answer."""

    exit_code = ExitCode.UNREACHABLE
    reason = "UNREACHABLE"


class BusyError(UnreachableError):
    """The coordinator has more to do than it lets in at once; asking again later can help."""

    reason = "BUSY"


class RunAbortedError(FkdError):
    """The run ended without a result."""

    exit_code = ExitCode.ABORTED
    reason = "RUN_ABORTED"


class PortInUseError(FkdError):
    """The listening address is taken."""

    exit_code = ExitCode.PORT_IN_USE
    reason = "PORT_IN_USE"
