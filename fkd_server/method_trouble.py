"""A method whose own code has failed: nothing more is asked of it, callers wait, the program ends; no I/O here."""

from __future__ import annotations

from fkd_common.errors import MethodError, UnreachableError


class MethodTrouble:
    """Whether a run's method can go on."""

    def __init__(self, method: str, run_id: str) -> None:
        self._method = method
        self._run_id = run_id
        self._failure: MethodError | None = None

    def __bool__(self) -> bool:
        return self._failure is not None

    def note(self, error: MethodError) -> None:
        """It has failed; the first failure counts."""
        self._failure = self._failure or MethodError(
            f"{error}; run {self._run_id} is kept: mend the method, and the same command goes on in this round"
        )

    def tell(self) -> None:
        """Say it to whoever runs the coordinator.

        Raises:
            MethodError: It has failed; the run is as it was before.
        """
        if self._failure is not None:
            raise self._failure

    def refuse(self) -> None:
        """Let a caller wait for a coordinator that is mended.

        Raises:
            UnreachableError: It has failed. In whose words is not told: they may hold another client's data.
        """
        if self._failure is not None:
            raise UnreachableError(
                f"the coordinator stops: its code of method {self._method} has failed; it goes on once that is mended",
                reason=MethodError.reason,
            )
