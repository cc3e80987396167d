"""What the keys of the run configuration may be set to, where that is one word of several."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class ModelMode(StrEnum):
    """What a method that exchanges weights trains and exchanges."""

    HEAD = "head"
    FULL = "full"


class TeacherKind(StrEnum):
    """What a site's teacher learns with."""

    TREES = "trees"
    MLP = "mlp"


class KdTargets(StrEnum):
    """Which teacher output the student learns from."""

    OUT_OF_FOLD = "out_of_fold"
    IN_SAMPLE = "in_sample"


class Calibrator(StrEnum):
    """How teacher probabilities are calibrated on the validation split."""

    PLATT = "platt"
    TEMPERATURE = "temperature"
    NONE = "none"


class AbsentClasses(StrEnum):
    """What distillation says about classes a client has never seen."""

    COMPLETE = "complete"
    LITERAL = "literal"


class Norm(StrEnum):
    """Normalisation inside the student."""

    BATCH = "batch"
    LAYER = "layer"


class Reliability(StrEnum):
    """What r_k measures."""

    ACCURACY = "accuracy"
    SKILL = "skill"
    NONE = "none"


class Correction(StrEnum):
    """Stage-2 corrections of the averaged student."""

    ANCHORS = "anchors"
    MOMENTS = "moments"


class ResidualForm(StrEnum):
    """Which residual the anchor correction regresses (Eq. 10)."""

    ALIGNED = "aligned"
    LITERAL = "literal"


class Fusion(StrEnum):
    """How residual predictions are weighted (Eq. 12)."""

    SIZE = "size"
    CLASS_AWARE = "class_aware"


class MomentFeatures(StrEnum):
    """Which features enter the pooled moments."""

    HIDDEN = "hidden"
    LAST = "last"
    EMBEDDING = "embedding"


class PersonalKind(StrEnum):
    """Candidates for the personal model; the validation split picks one."""

    CLOSED_FORM = "closed_form"
    PRIOR = "prior"
    BLEND = "blend"
    FINETUNE = "finetune"


class FinetuneScope(StrEnum):
    """What gradient personalisation unfreezes besides nothing else (Eq. 9)."""

    HEAD = "head"
    BLOCK = "block"
    LAYER4 = "layer4"


class MissedQuorum(StrEnum):
    """What happens when a phase's deadline passes without a quorum."""

    EXTEND = "extend"
    ABORT = "abort"


class Aggregation(StrEnum):
    """How uploads become one: the mean of Eqs. 12 and 14, or an estimate that a few liars cannot move far."""

    MEAN = "mean"
    MEDIAN = "median"
    TRIMMED_MEAN = "trimmed_mean"
    NORM_CLIP = "norm_clip"


class NormAction(StrEnum):
    """What happens to an update longer than the norm bound."""

    CLIP = "clip"
    REJECT = "reject"


class UpdateCodec(StrEnum):
    """How a network's update is coded on its way to the coordinator."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"
    INT1 = "int1"


class ModelCodec(StrEnum):
    """How the averaged network is coded on its way to the clients."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class StatisticsCodec(StrEnum):
    """How moments, gradients, residuals and the solutions that answer them are coded."""

    FP32 = "fp32"
    INT16 = "int16"


UNCODED: Mapping[str, StrEnum] = MappingProxyType(
    {
        "update_codec": UpdateCodec.FP32,
        "model_codec": ModelCodec.FP32,
        "statistics_codec": StatisticsCodec.FP32,
    }
)
"""Keys of a run in which everything travels as float32."""

NETWORK_CODECS = ("update_codec", "model_codec")
"""Those of them that other methods than FKD-RTM take too, where networks travel."""
