"""What a relay cannot carry, said before it begins; checks only."""

from __future__ import annotations

from collections.abc import Mapping

from fkd_common.addresses import reaches, split_address
from fkd_common.choices import Aggregation
from fkd_common.config import FKD_RTM, RunConfig
from fkd_common.errors import UsageError
from fkd_relay.credentials import relays_words
from fkd_server.settings import ServerSettings

OWN_KEYS = ("min_clients", "min_cohort", "quorum", "phase_deadline_s")
"""Keys of the run configuration that a relay has of its own; all others are the upstream run's."""

_ELSEWHERE = ("prepared", "anchors", "public", "test")


def check_flags(settings: ServerSettings) -> None:
    """Refuse flags that have no meaning at a relay.

    Raises:
        UsageError: Naming them.
    """
    given = [name for name in _ELSEWHERE if getattr(settings, name) is not None]
    if "extractor" in settings.model_fields_set and settings.extractor != "resnet18":
        given.append("extractor")
    if given:
        raise UsageError(
            f"{_flags(given)}: a relay serves what its upstream coordinator serves, and scores nothing: leave it out"
        )


def check_not_itself(settings: ServerSettings) -> None:
    """Refuse an upstream coordinator that is this relay.

    Raises:
        UsageError: Its address is not one, or is that of this relay's own port.
    """
    assert settings.upstream is not None
    with relays_words():
        host, port = split_address(settings.upstream)
    if port == settings.port and reaches(host, settings.listen_host()):
        raise UsageError(
            f"--upstream {settings.upstream} is this relay's own port: give the address of the coordinator to relay "
            "to, and this relay another --port if both are on one machine"
        )


def check_run(config: RunConfig) -> None:
    """Refuse a run whose result a tree would change.

    Raises:
        UsageError: Saying what of it, and why.
    """
    if config.method != FKD_RTM:
        raise UsageError(
            f"the upstream run's method is {config.method}: a relay can add up the uploads of {FKD_RTM} only"
        )
    if config.secure_aggregation:
        raise UsageError(
            "the upstream run has secure_aggregation: its clients mask their uploads for each other, and a relay would "
            "be one client that masks nothing; connect the sites to the upstream coordinator directly"
        )
    if config.aggregation in (Aggregation.MEDIAN, Aggregation.TRIMMED_MEAN):
        raise UsageError(
            f"the upstream run has aggregation {config.aggregation.value}: a median of averages is not the median of "
            "the sites; connect the sites to the upstream coordinator directly"
        )


def check_same_keys(settings: ServerSettings, upstream: RunConfig) -> None:
    """Refuse keys that were given here and are otherwise upstream.

    Raises:
        UsageError: Naming every difference.
    """
    given = settings.model_fields_set & RunConfig.model_fields.keys() - set(OWN_KEYS)
    values: Mapping[str, tuple[object, object]] = {
        name: (getattr(settings, name), getattr(upstream, name)) for name in sorted(given)
    }
    differ = [
        f"{name}: {theirs} upstream, {ours} here" for name, (ours, theirs) in values.items() if ours != theirs
    ]
    if differ:
        raise UsageError(
            f"what the run computes is the upstream coordinator's to say ({'; '.join(differ)}): leave it out"
        )


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
