"""From releases and noise to (epsilon, delta), by the dp-accounting library; adds no noise, and assumes nothing
about who was sampled: a coordinator knows the cohort, so no amplification is claimed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from fkd_common.choices import Correction
from fkd_common.config import RunConfig
from fkd_common.errors import UsageError


@dataclass(frozen=True)
class Releases:
    """How often one site sent noised uploads."""

    residuals: int = 0
    moments: int = 0

    @classmethod
    def planned(cls, config: RunConfig) -> Releases:
        """What a site sends that takes part in every correction of a run: the most, unless a task is repeated."""
        rounds = sum(config.is_correction_round(number) for number in range(1, config.rounds + 1))
        return cls(
            rounds if Correction.ANCHORS in config.correction else 0,
            rounds + config.is_correction_round(0) if Correction.MOMENTS in config.correction else 0,
        )


@dataclass(frozen=True)
class PrivacySpent:
    """What a site's noised uploads of one run may have told at most; its students, votes, n_k and r_k are not in it."""

    noise_multiplier: float
    delta: float
    releases: Releases
    sample_epsilon: float
    """For one sample of the training part replaced: residuals and moments together."""
    site_epsilon: float | None
    """For the whole site replaced: residuals alone, None without any. Moments promise nothing about a site."""

    @classmethod
    def of(cls, config: RunConfig, releases: Releases) -> PrivacySpent | None:
        """Compose all releases of a run; None where the run adds no noise.

        Raises:
            UsageError: dp-accounting is not installed.
        """
        if config.noise_multiplier == 0:
            return None
        sigma, delta = config.noise_multiplier, config.privacy_delta
        # A matrix bounded for a whole site is bounded for each of its samples.
        both = releases.residuals + releases.moments
        for_site = epsilon(sigma, releases.residuals, delta) if releases.residuals else None
        return cls(sigma, delta, releases, epsilon(sigma, both, delta), for_site)

    def as_json(self) -> dict[str, object]:
        """Plain values for reports and model cards; an epsilon without bound is None."""
        values = asdict(self)
        for name in ("sample_epsilon", "site_epsilon"):
            bounded = values[name] is not None and math.isfinite(values[name])
            values[name] = round(values[name], 4) if bounded else None
        return values

    def sentence(self) -> str:
        """For a person."""
        sent = self.releases
        site = "none promised" if self.site_epsilon is None else f"epsilon {self.site_epsilon:.2f}"
        return (
            f"noise {self.noise_multiplier:g}, delta {self.delta:g}: one training sample, epsilon "
            f"{self.sample_epsilon:.2f} (residuals {sent.residuals} x, moments {sent.moments} x); the whole site, "
            f"{site} (residuals alone); students, votes, n_k and r_k carry no noise and are "
            "not covered"
        )


def require_accounting() -> None:
    """Say now, rather than after the last round, that epsilon cannot be computed.

    Raises:
        UsageError: dp-accounting is not installed.
    """
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "a run with noise needs the dp-accounting library to say what was spent: pip install 'fkd[client]'"
        ) from error


def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Epsilon at delta of a number of Gaussian releases, composed by Rényi differential privacy (Mironov 2017).

    Privacy loss distributions would be a few per cent tighter, and need gigabytes where there is little noise.

    Args:
        noise_multiplier: standard deviation of each release's noise over its sensitivity, above 0.
        releases: how many; 0 costs nothing.
        delta: in (0, 1).

    Raises:
        UsageError: dp-accounting is not installed.
    """
    if releases == 0:
        return 0.0
    require_accounting()
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), releases)
    return float(accountant.get_epsilon(delta))
