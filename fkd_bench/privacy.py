"""`fkd-bench privacy`: the epsilon of a run with noise, before it is run; starts nothing."""

from __future__ import annotations

from pydantic import Field

from fkd_common.choices import Correction
from fkd_common.config import RunConfig
from fkd_common.privacy_accounting import PrivacySpent, Releases
from fkd_common.settings import ProgramSettings
from fkd_common.typed_text import Listed


class PrivacySettings(ProgramSettings):
    """What epsilon depends on: noise over sensitivity and the number of corrections; clips do not matter."""

    noise_multiplier: float = Field(gt=0)
    """Standard deviation of the noise, in sensitivities."""
    rounds: int = Field(100, ge=1)
    """Federated rounds."""
    residual_every: int = Field(10, ge=1)
    """Corrections are computed every this many rounds, and in the last."""
    correction_at_start: bool = True
    """Also moments before the first round."""
    correction: Listed[Correction] = (Correction.ANCHORS, Correction.MOMENTS)
    """Corrections that are computed."""
    privacy_delta: float = Field(1e-5, gt=0, lt=1)
    """The delta for which epsilon is computed."""
    json_output: bool = Field(False, alias="json")
    """Print one JSON object."""

    def spent(self) -> PrivacySpent:
        """What the noised uploads of a site tell at most that takes part in every correction."""
        config = RunConfig(
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            residual_every=self.residual_every,
            correction_at_start=self.correction_at_start,
            correction=self.correction,
            privacy_delta=self.privacy_delta,
            residual_l2_clip=1.0,
            feature_clip=1.0,
            target_clip=1.0,
        )
        spent = PrivacySpent.of(config, Releases.planned(config))
        assert spent is not None
        return spent
