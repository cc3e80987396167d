"""Federated methods by name: FKD-RTM, and whatever installed packages offer as entry points of ``fkd.methods``."""

from __future__ import annotations

from importlib.metadata import entry_points

from pydantic import ValidationError

from fkd_common.advice import did_you_mean
from fkd_common.config import FKD_RTM, ModelMode, RunConfig
from fkd_common.errors import UsageError
from fkd_common.exchange_method import ExchangeMethod

GROUP = "fkd.methods"


def known_methods() -> tuple[str, ...]:
    """Names that ``method`` may have here, FKD-RTM first."""
    return (FKD_RTM, *sorted({entry.name for entry in entry_points(group=GROUP)} - {FKD_RTM}))


def exchange_method(config: RunConfig) -> type[ExchangeMethod]:
    """The class of a run's method, if it is not FKD-RTM.

    Raises:
        UsageError: It is not installed here, cannot be loaded, or does not take the run's options or mode.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == config.method]
    if not found:
        known = known_methods()
        advice = did_you_mean(config.method, known, f"expected one of {', '.join(known)}")
        raise UsageError(f"method {config.method!r} is not installed here: {advice}")
    try:
        method = found[0].load()
    except ImportError as error:
        raise UsageError(
            f"method {config.method!r} cannot be loaded: {error}; install what it needs (pip install 'fkd[bench]')"
        ) from error
    if not (isinstance(method, type) and issubclass(method, ExchangeMethod)):
        raise UsageError(f"method {config.method!r} ({found[0].value}) is no ExchangeMethod")
    try:
        method.Options(**config.options)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        taken = ", ".join(method.Options.model_fields) or "none"
        name = ".".join(str(part) for part in wrong["loc"])
        raise UsageError(f"options of {config.method}: {name}: {wrong['msg']} (it takes {taken})") from error
    if config.model is ModelMode.FULL and not method.full_mode:
        raise UsageError(f"{config.method} exchanges no whole network: leave model at head")
    return method


def described(config: RunConfig) -> tuple[str, str]:
    """Title and source of a run's method, for a reader."""
    if config.method == FKD_RTM:
        source = "Zhang et al., CMC 88(2), 2026, doi 10.32604/cmc.2026.081065, with pooled moments"
        return "federated distillation (FKD-RTM)", source
    method = exchange_method(config)
    return method.title, method.source
