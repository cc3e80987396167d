"""The run configuration: every key of the method, with its default, range and meaning; hashed, no I/O.

One :class:`RunConfig` governs a run. The coordinator publishes it at registration, its hash travels with
every task, and both sides read their choices from it, so that no two sites can run different methods.
Equation numbers are those of Zhang et al., "FKD-RTM", Computers, Materials & Continua 88(2), 2026.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fkd_common.choices import (
    NETWORK_CODECS,
    UNCODED,
    AbsentClasses,
    Aggregation,
    Calibrator,
    Correction,
    FinetuneScope,
    Fusion,
    KdTargets,
    MissedQuorum,
    ModelCodec,
    ModelMode,
    MomentFeatures,
    Norm,
    NormAction,
    PersonalKind,
    Reliability,
    ResidualForm,
    StatisticsCodec,
    TeacherKind,
    UpdateCodec,
)
from fkd_common.typed_text import Assigned, Listed

FKD_RTM = "fkd-rtm"
"""The method that this configuration's keys are for; others share those of the run, the student and the split."""


class RunConfig(BaseModel):
    """Everything that decides what a run computes; equal configurations hash equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    # -- the run ---------------------------------------------------------------------------------
    method: str = Field(FKD_RTM, pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """The federated method: `fkd-rtm`, or one that an installed package offers, such as `fedavg`."""
    options: Assigned = Field(default_factory=dict)
    """Hyper-parameters of another method than fkd-rtm, as `mu=0.01,...`."""
    model: ModelMode = ModelMode.HEAD
    """Other methods than fkd-rtm: train and exchange the `head` on the frozen extractor, or the `full` network."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of cohort sampling, student initialisation and every client's shuffling."""
    rounds: int = Field(100, ge=1)
    """Number of federated rounds R."""
    clients_per_round: float = Field(0.7, gt=0, le=1)
    """Share of the live clients sampled into each round's cohort."""
    min_clients: int = Field(2, ge=1)
    """Clients that must be ready before the first round starts; later rounds go on with a quorum of them."""
    min_cohort: int = Field(2, ge=1)
    """Fewest clients whose uploads anything sent to the others is made of: with 1 it may be one site's alone."""
    quorum: float = Field(0.5, gt=0, le=1)
    """Share of a phase's participants (at least 1) whose uploads close it at the deadline."""
    phase_deadline_s: float = Field(600.0, gt=0)
    """Seconds a phase may last before it closes with the quorum."""
    on_missed_quorum: MissedQuorum = MissedQuorum.EXTEND
    """At a deadline without quorum: `extend` once and then abort, or `abort` at once."""
    heartbeat_s: float = Field(2.0, gt=0)
    """Seconds between a client's signs of life."""
    heartbeat_limit_s: float = Field(8.0, gt=0)
    """Seconds of silence after which a client counts as gone."""

    # -- local split, teacher (Eqs. 1-2), calibration --------------------------------------------
    val_fraction: float = Field(0.1, ge=0, lt=0.5)
    """Share of a shard held out, stratified, as D_val."""
    min_val: int = Field(20, ge=0)
    """Below this many validation samples calibration is the identity."""
    teacher: TeacherKind = TeacherKind.TREES
    """The local teacher: LightGBM's `trees`, or scikit-learn's `mlp` with the student's `hidden` widths, `batch_size`
    and `lr`. Residual learners are trees either way."""
    teacher_epochs: int = Field(30, ge=1, le=10_000)
    """Epochs of an mlp teacher; at sites of 400 CIFAR-10 images 100 give less than half a point more accuracy."""
    teacher_trees: int = Field(100, ge=1)
    """Boosting rounds of a teacher of trees."""
    teacher_depth: int = Field(6, ge=1)
    """Maximum depth of the teacher's trees."""
    teacher_lr: float = Field(0.05, gt=0)
    """Learning rate eta of the teacher's trees."""
    teacher_leaves: int = Field(31, ge=2)
    """Leaves per teacher tree."""
    teacher_min_leaf: int = Field(5, ge=1)
    """Fewest samples per leaf of a teacher tree."""
    teacher_feature_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the embedding's features each teacher tree sees."""
    max_bin: int = Field(63, ge=2, le=255)
    """Histogram bins per feature, for teacher and residual learners."""
    kd_targets: KdTargets = KdTargets.OUT_OF_FOLD
    """Soft targets from folds the teacher did not see, or from its own training data."""
    kd_folds: int = Field(3, ge=2)
    """Folds for out-of-fold soft targets."""
    calibrator: Calibrator = Calibrator.PLATT
    """Calibration C_k of teacher probabilities."""

    # -- student and distillation (Eqs. 3-6, 8) --------------------------------------------------
    hidden: Listed[int] = (512, 256, 128)
    """Widths of the student's hidden layers."""
    dropout: Listed[float] = (0.4, 0.3, 0.2)
    """Dropout after each hidden layer."""
    norm: Norm = Norm.BATCH
    """Normalisation in the student."""
    temperature: float = Field(2.0, gt=0)
    """Distillation temperature T (Eqs. 3, 5)."""
    alpha_start: float = Field(0.7, ge=0, le=1)
    """Weight of the distillation term in the first round."""
    alpha_end: float = Field(0.3, ge=0, le=1)
    """Weight of the distillation term in the last round; linear in between."""
    absent_classes: AbsentClasses = AbsentClasses.COMPLETE
    """Whether absent classes keep the mass the received global student gives them."""
    batch_size: int = Field(64, ge=2)
    """Mini-batch size of student training."""
    lr: float = Field(1e-3, gt=0)
    """AdamW learning rate of the student."""
    weight_decay: float = Field(3e-4, ge=0)
    """AdamW weight decay of the student."""
    local_epochs: int = Field(5, ge=1)
    """Local epochs per round (ignored when `local_steps` is set)."""
    local_steps: int | None = Field(None, ge=1)
    """Local mini-batches per round; overrides `local_epochs`."""

    # -- aggregation (Eqs. 14-15) ----------------------------------------------------------------
    reliability: Reliability = Reliability.ACCURACY
    """What r_k measures: teacher accuracy on D_val, skill above the majority class, or 1."""
    tau_r: float = Field(0.1, ge=0, le=1)
    """Floor under r_k in Eq. 15."""
    drop_below: float | None = Field(None, ge=0, le=1)
    """Leave clients with r_k below this out of the average."""

    # -- what may count --------------------------------------------------------------------------
    max_samples: int = Field(10_000_000, ge=1)
    """Largest n_k a client may claim; 0 is excluded from every sum."""
    max_weight_share: float = Field(1.0, gt=0, le=1)
    """Largest share of one client in any average or sum; what is cut goes to the others in proportion."""
    aggregation: Aggregation = Aggregation.MEAN
    """How students and residuals are combined. `median` and `trimmed_mean` count every client alike; `norm_clip` is
    the mean of updates cut to `norm_bound` (1 where unset). Moments are sums whatever is chosen."""
    trim_fraction: float = Field(0.2, ge=0, lt=0.5)
    """Share of the clients that `trimmed_mean` leaves out at each end of every coordinate, rounded down."""
    norm_bound: float | None = Field(None, gt=0)
    """Longest update ||W_k - W_t||, and longest residual matrix, in multiples of the cohort's median length."""
    norm_action: NormAction = NormAction.CLIP
    """Shorten what is longer than the bound, or leave it out."""

    # -- on the wire -----------------------------------------------------------------------------
    update_codec: UpdateCodec = UpdateCodec.INT4
    """Matrices of a network's update, on its way up: `fp16`, `int8` rounded without bias, or after a random rotation
    `int4` or `int1` (EDEN, DRIVE). Masked sums of secure_aggregation are not coded. Methods other than fkd-rtm that
    average networks: `fp32` unless given."""
    model_codec: ModelCodec = ModelCodec.INT8
    """The averaged network, on its way down. Methods other than fkd-rtm that average networks: `fp32` unless given."""
    statistics_codec: StatisticsCodec = StatisticsCodec.INT16
    """Moments, gradients, residuals and solutions, both ways; masked sums, and all under noise, as they are."""

    # -- differential privacy of residuals and moments -------------------------------------------
    noise_multiplier: float = Field(0.0, ge=0)
    """Standard deviation of the Gaussian noise on residuals and moments, in sensitivities (0: no noise). Students,
    votes, n_k and r_k carry none."""
    residual_l2_clip: float | None = Field(None, gt=0)
    """Largest L2 norm of a client's residual matrix, applied by the client."""
    feature_clip: float | None = Field(None, gt=0)
    """Largest L2 norm of a sample's hidden features, and of its embedding, in the moments; applied by the client."""
    target_clip: float | None = Field(None, gt=0)
    """Largest L2 norm of a sample's residual in the moments; applied by the client."""
    privacy_delta: float = Field(1e-5, gt=0, lt=1)
    """The delta for which epsilon is reported."""

    # -- stage 2: corrections (Eqs. 10-13 and pooled moments) ------------------------------------
    correction: Listed[Correction] = (Correction.ANCHORS, Correction.MOMENTS)
    """Which corrections are computed; the vote decides which one is published."""
    residual_every: int = Field(10, ge=1)
    """Corrections are computed every this many rounds, and in the last."""
    correction_at_start: bool = True
    """Also compute the moment correction before the first round, on the embedding alone: a model after one exchange,
    and nothing of it is sent again later."""
    residual_form: ResidualForm = ResidualForm.ALIGNED
    """Residual of Eq. 10: difference of log-probabilities at one temperature, or as printed."""
    residual_temperature: float = Field(2.0, gt=0)
    """Divisor T_r of clipped residuals (Eq. 11)."""
    residual_clip: float = Field(10.0, gt=0)
    """Residuals are clipped to plus or minus this value."""
    eps: float = Field(1e-6, gt=0, lt=0.1)
    """Epsilon inside the logarithms of Eq. 10."""
    residual_trees: int = Field(30, ge=1)
    """Boosting rounds of a class-wise residual learner."""
    residual_depth: int = Field(4, ge=1)
    """Maximum depth of a residual learner's trees."""
    residual_lr: float = Field(0.1, gt=0)
    """Learning rate of a residual learner."""
    fusion: Fusion = Fusion.SIZE
    """Weights of Eq. 12: sample counts, or per-class counts (which reveals class counts; so do the moments)."""
    anchor_lambda_grid: Listed[float] = (10.0, 100.0, 1000.0, 10000.0)
    """Ridge strengths tried for Eq. 13; leave-one-out error on the anchors chooses."""
    lambda_res: float = Field(1.0, ge=0)
    """Strength of the correction: S + lambda_res * Delta S."""
    moment_features: MomentFeatures = MomentFeatures.HIDDEN
    """Features z of the pooled moments: all hidden layers, the last one, or the embedding alone."""
    kappa: float = Field(8.0, gt=0)
    """Scale of the moment targets, in logits."""
    beta: float = Field(0.0, ge=0, le=1)
    """Share of calibrated out-of-fold teacher probabilities in the moment targets."""
    lambda_grid: Listed[float] = (1.0, 10.0, 100.0, 1000.0)
    """Ridge strengths of the moment correction; the federated vote chooses."""

    refine_steps: int = Field(10, ge=0, le=10)
    """Steps of logistic regression on the pooled moment features, from the ridge solution on: each is one exchange of
    gradients (p x C). None are made with secure_aggregation or noise."""
    refine_l2: float = Field(10.0, gt=0)
    """Strength mu of the L2 penalty of these steps."""

    # -- personalisation (Eq. 9 and closed forms) ------------------------------------------------
    personal: Listed[PersonalKind] = tuple(PersonalKind)
    """Personal models tried; `blend` is kept unless another is better on D_val by more than a standard error."""
    personal_every: int = Field(0, ge=0)
    """Personalise every this many rounds as well as in the last (0: only in the last)."""
    report_personal: bool = False
    """Whether sites tell how many samples of D_val their personal model gets right: two counts, as in a vote."""
    personal_lambda_grid: Listed[float] = (1.0, 10.0, 100.0, 1000.0)
    """Ridge strengths of the closed-form personal correction."""
    blend_gamma_grid: Listed[float] = (0.25, 0.5, 1.0, 2.0)
    """Weights of the local teacher in the blended personal model."""
    finetune_scope: FinetuneScope = FinetuneScope.BLOCK
    """Gradient personalisation trains the head, also the last block of layer4, or all of layer4."""
    finetune_epochs: int = Field(3, ge=1, le=5)
    """Epochs of gradient personalisation; the best on D_val is kept, epoch 0 included."""
    finetune_lr_extractor: float = Field(1e-4, gt=0)
    """AdamW learning rate of the unfrozen part of the extractor."""
    finetune_lr_head: float = Field(1e-3, gt=0)
    """AdamW learning rate of the personal head."""

    # -- secure aggregation ----------------------------------------------------------------------
    secure_aggregation: bool = False
    """Students and moments reach the coordinator only as sums over clients (Bonawitz et al., CCS 2017), never one
    by one. Residuals on the anchors, votes, and with residuals n_k, still travel in clear."""
    secure_threshold: float = Field(2 / 3, gt=0.5, le=1)
    """Share of a secure sum's participants that must stay to its end; with fewer, nothing is revealed."""

    @model_validator(mode="before")
    @classmethod
    def _others_send_fp32_unless_told(cls, given: Any) -> Any:
        """Networks of other methods travel as they are, as in their papers, unless the run says otherwise."""
        if isinstance(given, dict) and given.get("method", FKD_RTM) != FKD_RTM:
            return {**{name: UNCODED[name] for name in NETWORK_CODECS}, **given}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.hidden) != len(self.dropout):
            raise ValueError(
                f"hidden has {len(self.hidden)} layers and dropout {len(self.dropout)}: give one dropout per layer"
            )
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError("hidden needs at least one width, each at least 1")
        if not all(0 <= p < 1 for p in self.dropout):
            raise ValueError("dropout must lie in [0, 1)")
        for name in ("lambda_grid", "anchor_lambda_grid", "personal_lambda_grid"):
            grid: tuple[float, ...] = getattr(self, name)
            if not grid or min(grid) <= 0:
                raise ValueError(f"{name} needs at least one value, each above 0")
        if self.min_clients < self.min_cohort:
            raise ValueError(
                f"min_clients = {self.min_clients} is below min_cohort = {self.min_cohort}: raise it, or set "
                "min_cohort to 1 if what one site uploads may be sent to the others as it is"
            )
        if self.heartbeat_limit_s <= self.heartbeat_s:
            raise ValueError("heartbeat_limit_s must exceed heartbeat_s")
        return self

    @model_validator(mode="after")
    def _secure_sums_are_possible(self) -> Self:
        if not self.secure_aggregation:
            return self
        blind = {
            "aggregation": self.aggregation is not Aggregation.MEAN,
            "norm_bound": self.norm_bound is not None,
            "max_weight_share": self.max_weight_share < 1.0,
            "fusion": self.fusion is Fusion.CLASS_AWARE,
        }
        if any(blind.values()):
            names = ", ".join(name for name, is_set in blind.items() if is_set)
            raise ValueError(
                f"secure_aggregation hides every single client, so {names} cannot look at one: leave at the default"
            )
        if self.min_cohort < 2:
            raise ValueError("secure_aggregation needs min_cohort of at least 2: a sum of one hides nothing")
        return self

    @model_validator(mode="after")
    def _what_counts_is_consistent(self) -> Self:
        if self.aggregation is Aggregation.NORM_CLIP and self.norm_action is NormAction.REJECT:
            raise ValueError(
                "aggregation norm_clip shortens updates and norm_action reject leaves them out: choose one (for the "
                "second, aggregation mean with a norm_bound)"
            )
        if self.noise_multiplier == 0:
            return self
        needed = {
            Correction.ANCHORS: ("residual_l2_clip",),
            Correction.MOMENTS: ("feature_clip", "target_clip"),
        }
        for correction in self.correction:
            missing = [name for name in needed[correction] if getattr(self, name) is None]
            if missing:
                raise ValueError(
                    f"noise_multiplier needs {' and '.join(missing)}: without a bound on what one sample or client can "
                    f"change, noise on the {correction} protects nothing"
                )
        if self.beta > 0 and Correction.MOMENTS in self.correction:
            raise ValueError(
                "noise_multiplier needs beta = 0: teacher targets let one sample change the moments of all others"
            )
        return self

    @model_validator(mode="after")
    def _method_is_consistent(self) -> Self:
        if self.method == FKD_RTM:
            given = {"options": bool(self.options), "model": self.model is not ModelMode.HEAD}
            if any(given.values()):
                names = ", ".join(name for name, is_set in given.items() if is_set)
                raise ValueError(f"{FKD_RTM} has no {names}: its hyper-parameters are keys of their own")
            return self
        own = {
            "secure_aggregation": self.secure_aggregation,
            "noise_multiplier": self.noise_multiplier > 0,
            "aggregation": self.aggregation is not Aggregation.MEAN,
            "norm_bound": self.norm_bound is not None,
            "max_weight_share": self.max_weight_share < 1.0,
        }
        if any(own.values()):
            names = ", ".join(name for name, is_set in own.items() if is_set)
            raise ValueError(f"{names}: only {FKD_RTM} has it; leave at the default for {self.method}")
        return self

    @property
    def norm_limit(self) -> float | None:
        """The norm bound in force, in multiples of the cohort's median; None where there is none."""
        if self.norm_bound is None and self.aggregation is Aggregation.NORM_CLIP:
            return 1.0
        return self.norm_bound

    def canonical_json(self) -> str:
        """The configuration as JSON with sorted keys: the text that is hashed and sent."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def sha256(self) -> str:
        """Hex SHA-256 of :meth:`canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def is_correction_round(self, round_number: int) -> bool:
        """Whether stage 2 runs in this round (1-based; round 0 is the untrained student)."""
        if not self.correction:
            return False
        if round_number == 0:
            return self.correction_at_start and Correction.MOMENTS in self.correction
        return round_number % self.residual_every == 0 or round_number == self.rounds

    def moment_features_in(self, round_number: int) -> MomentFeatures:
        """Features of the pooled moments in a round: before the first, students have nothing to say."""
        return MomentFeatures.EMBEDDING if round_number == 0 else self.moment_features

    @property
    def refinements(self) -> int:
        """Refinement steps in every correction round."""
        hidden = self.secure_aggregation or self.noise_multiplier > 0
        return 0 if hidden or Correction.MOMENTS not in self.correction else self.refine_steps

    @property
    def statistics_in_force(self) -> StatisticsCodec:
        """How moments, gradients, residuals and solutions travel: where noise hides their structure, as they are."""
        return StatisticsCodec.FP32 if self.noise_multiplier > 0 else self.statistics_codec

    def is_personal_round(self, round_number: int) -> bool:
        """Whether clients personalise at the end of this round."""
        if not self.personal:
            return False
        return round_number == self.rounds or (
            self.personal_every > 0 and round_number > 0 and round_number % self.personal_every == 0
        )


FKD_RTM_KEYS = frozenset(
    {
        "kd_targets", "kd_folds", "alpha_start", "alpha_end", "absent_classes", "reliability", "tau_r", "drop_below",
        "correction", "residual_every", "correction_at_start", "residual_form", "residual_temperature", "residual_clip",
        "eps", "residual_trees", "residual_depth", "residual_lr", "fusion", "anchor_lambda_grid", "lambda_res",
        "moment_features", "beta", "refine_steps", "refine_l2", "personal", "personal_lambda_grid", "blend_gamma_grid",
        "finetune_scope", "finetune_lr_extractor", "report_personal", "secure_aggregation", "secure_threshold",
        "noise_multiplier", "residual_l2_clip", "feature_clip", "target_clip", "privacy_delta", "aggregation",
        "trim_fraction", "norm_bound", "norm_action", "max_weight_share", "statistics_codec",
    }
)  # fmt: skip
"""Keys of :class:`RunConfig` that only FKD-RTM reads."""
