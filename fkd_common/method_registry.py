"""Federated methods by name: FKD-RTM, and whatever installed packages offer as entry points of ``fkd.methods``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from pydantic import ValidationError

from fkd_common.advice import did_you_mean
from fkd_common.choices import NETWORK_CODECS, UNCODED, ModelMode
from fkd_common.config import FKD_RTM, FKD_RTM_KEYS, RunConfig
from fkd_common.errors import UsageError
from fkd_common.exchange_method import ExchangeMethod, Federation, Options
from fkd_common.own_code import OwnCode, WrongResultError

GROUP = "fkd.methods"

READ_BY_ALL = frozenset({"personal", "report_personal"})
"""Keys of FKD-RTM that have a meaning in every run: whether sites end with a model of their own, and what they tell."""


def known_methods() -> tuple[str, ...]:
    """Names that ``method`` may have here, FKD-RTM first."""
    return (FKD_RTM, *sorted({entry.name for entry in entry_points(group=GROUP)} - {FKD_RTM}))


def method_class(name: str) -> type[ExchangeMethod]:
    """The class of a method that is not FKD-RTM, whatever a run asks of it.

    Raises:
        UsageError: It is not installed here, or cannot be loaded.
    """
    return _loaded(_entry(name), name)


def exchange_method(config: RunConfig) -> type[ExchangeMethod]:
    """The class of a run's method, if it is not FKD-RTM.

    Raises:
        UsageError: It is not installed here, cannot be loaded, or does not take the run's options or mode.
    """
    method = method_class(config.method)
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


def method_of(federation: Federation) -> ExchangeMethod:
    """The method of a run that is not FKD-RTM's.

    Raises:
        UsageError: As :func:`exchange_method`.
        MethodError: Its constructor fails.
    """
    kind = exchange_method(federation.config)
    with OwnCode(federation.config.method, kind).at_work("__init__"):
        method = kind(federation)
        if not all(hasattr(method, name) for name in ("federation", "config", "num_classes", "options")):
            raise WrongResultError("without having called super().__init__(federation)")
    return method


def codes_networks(method: str) -> bool:
    """Whether a method, FKD-RTM or another, says that it has networks that codecs can pack.

    Raises:
        UsageError: It is not installed here, or cannot be loaded.
    """
    return method == FKD_RTM or method_class(method).coded_networks is not ExchangeMethod.coded_networks


def check_codecs(config: RunConfig, of_no_use: Iterable[str] | None = None) -> None:
    """Refuse codecs of a method without networks that they could pack.

    Args:
        config: Of a run.
        of_no_use: Keys that would change nothing; by default as :func:`codes_networks` says.

    Raises:
        UsageError: Naming those that are not `fp32`.
    """
    names = NETWORK_CODECS if of_no_use is None else of_no_use
    given = [f"{name} = {value}" for name in names if (value := getattr(config, name)) != UNCODED[name]]
    if given and not (of_no_use is None and codes_networks(config.method)):
        raise UsageError(
            f"{config.method} with model {config.model} has no network that codecs could pack: leave out "
            f"{', '.join(given)}"
        )


def ignored_keys(config: RunConfig) -> tuple[str, ...]:
    """Keys that are not at their defaults and that nothing reads in a run of this method.

    Raises:
        UsageError: One of them is also an option of the method, and was meant as that.
    """
    if config.method == FKD_RTM:
        return ()
    fields = RunConfig.model_fields
    changed = [name for name in sorted(FKD_RTM_KEYS) if getattr(config, name) != fields[name].default]
    ignored = tuple(name for name in changed if name not in READ_BY_ALL)
    options = exchange_method(config).Options.model_fields
    for name in ignored:
        if name in options:
            raise UsageError(
                f"{name} is a key of {FKD_RTM}: for {config.method} say --options {name}={getattr(config, name)}"
            )
    return ignored


def described(config: RunConfig) -> tuple[str, str]:
    """Title and source of a run's method, for a reader."""
    if config.method == FKD_RTM:
        source = "Zhang et al., CMC 88(2), 2026, doi 10.32604/cmc.2026.081065, with pooled moments"
        return "federated distillation (FKD-RTM)", source
    method = exchange_method(config)
    return method.title, method.source


def _entry(name: str) -> EntryPoint:
    found = {entry.value: entry for entry in entry_points(group=GROUP) if entry.name == name}
    if not found:
        known = known_methods()
        advice = did_you_mean(name, known, f"expected one of {', '.join(known)}")
        raise UsageError(
            f"method {name!r} is not installed here: {advice} (or install the package with the entry point {name} of "
            f"{GROUP})"
        )
    if len(found) > 1:
        raise UsageError(f"method {name!r} is there twice, as {' and '.join(found)}: uninstall one")
    return next(iter(found.values()))


def _loaded(entry: EntryPoint, name: str) -> type[ExchangeMethod]:
    what = f"method {name!r} ({entry.value})"
    try:
        method = entry.load()
    except ImportError as error:
        package = entry.dist.name if entry.dist is not None else "its package"
        needed = "'fkd[bench]'" if package == "fkd" else package
        raise UsageError(
            f"{what} cannot be loaded: {error}; pip install {needed}, and what it needs"
        ) from error
    except Exception as error:  # whatever a module of somebody else's does when it is imported
        words = " ".join(str(error).split())
        raise UsageError(f"{what} cannot be loaded: {type(error).__name__}: {words}") from error
    if not (isinstance(method, type) and issubclass(method, ExchangeMethod)):
        raise UsageError(f"{what} is no ExchangeMethod")
    lacking = [
        *sorted(method.__abstractmethods__),
        *(t for t in ("title", "source") if not hasattr(method, t)),
    ]
    if lacking:
        raise UsageError(f"{what} lacks {', '.join(lacking)}")
    if not (inspect.isclass(method.Options) and issubclass(method.Options, Options)):
        raise UsageError(f"{what}: its Options are no fkd_common.exchange_method.Options")
    return method
