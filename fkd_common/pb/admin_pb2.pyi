from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelPart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_PART_UNSPECIFIED: _ClassVar[ModelPart]
    MODEL_PART_MODEL: _ClassVar[ModelPart]
    MODEL_PART_EXTRACTOR: _ClassVar[ModelPart]
MODEL_PART_UNSPECIFIED: ModelPart
MODEL_PART_MODEL: ModelPart
MODEL_PART_EXTRACTOR: ModelPart

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("run_id", "state", "round", "rounds", "phase", "waiting_for", "clients", "paused", "serving_s", "deadline_s", "min_clients", "classes", "participants", "answered", "rounds_done", "model", "bytes", "fedavg_bytes", "config_sha256", "version", "last_scored", "bytes_by_phase", "upstream")
    class BytesByPhaseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ByteTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ByteTotals, _Mapping]] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SERVING_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    MIN_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FEDAVG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SHA256_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_SCORED_FIELD_NUMBER: _ClassVar[int]
    BYTES_BY_PHASE_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: str
    round: int
    rounds: int
    phase: str
    waiting_for: str
    clients: _containers.RepeatedCompositeFieldContainer[ClientStatus]
    paused: bool
    serving_s: float
    deadline_s: float
    min_clients: int
    classes: _containers.RepeatedScalarFieldContainer[str]
    participants: _containers.RepeatedScalarFieldContainer[str]
    answered: _containers.RepeatedScalarFieldContainer[str]
    rounds_done: int
    model: PublishedModel
    bytes: ByteTotals
    fedavg_bytes: int
    config_sha256: str
    version: str
    last_scored: RoundStatus
    bytes_by_phase: _containers.MessageMap[str, ByteTotals]
    upstream: str
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., phase: _Optional[str] = ..., waiting_for: _Optional[str] = ..., clients: _Optional[_Iterable[_Union[ClientStatus, _Mapping]]] = ..., paused: _Optional[bool] = ..., serving_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., min_clients: _Optional[int] = ..., classes: _Optional[_Iterable[str]] = ..., participants: _Optional[_Iterable[str]] = ..., answered: _Optional[_Iterable[str]] = ..., rounds_done: _Optional[int] = ..., model: _Optional[_Union[PublishedModel, _Mapping]] = ..., bytes: _Optional[_Union[ByteTotals, _Mapping]] = ..., fedavg_bytes: _Optional[int] = ..., config_sha256: _Optional[str] = ..., version: _Optional[str] = ..., last_scored: _Optional[_Union[RoundStatus, _Mapping]] = ..., bytes_by_phase: _Optional[_Mapping[str, ByteTotals]] = ..., upstream: _Optional[str] = ...) -> None: ...

class ClientStatus(_message.Message):
    __slots__ = ("name", "alive", "ready", "activity", "progress", "state", "last_seen_s", "uploads", "missed", "samples", "reliability", "weight", "bytes", "fedavg_bytes", "class_counts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_S_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RELIABILITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FEDAVG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    alive: bool
    ready: bool
    activity: str
    progress: float
    state: str
    last_seen_s: float
    uploads: int
    missed: int
    samples: int
    reliability: float
    weight: float
    bytes: ByteTotals
    fedavg_bytes: int
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., alive: _Optional[bool] = ..., ready: _Optional[bool] = ..., activity: _Optional[str] = ..., progress: _Optional[float] = ..., state: _Optional[str] = ..., last_seen_s: _Optional[float] = ..., uploads: _Optional[int] = ..., missed: _Optional[int] = ..., samples: _Optional[int] = ..., reliability: _Optional[float] = ..., weight: _Optional[float] = ..., bytes: _Optional[_Union[ByteTotals, _Mapping]] = ..., fedavg_bytes: _Optional[int] = ..., class_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class ByteTotals(_message.Message):
    __slots__ = ("calls", "payload_up", "payload_down", "message_up", "message_down", "wasted")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_UP_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_DOWN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_UP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DOWN_FIELD_NUMBER: _ClassVar[int]
    WASTED_FIELD_NUMBER: _ClassVar[int]
    calls: int
    payload_up: int
    payload_down: int
    message_up: int
    message_down: int
    wasted: int
    def __init__(self, calls: _Optional[int] = ..., payload_up: _Optional[int] = ..., payload_down: _Optional[int] = ..., message_up: _Optional[int] = ..., message_down: _Optional[int] = ..., wasted: _Optional[int] = ...) -> None: ...

class PublishedModel(_message.Message):
    __slots__ = ("sha256", "round", "published", "accuracy", "validation")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    round: int
    published: str
    accuracy: float
    validation: float
    def __init__(self, sha256: _Optional[str] = ..., round: _Optional[int] = ..., published: _Optional[str] = ..., accuracy: _Optional[float] = ..., validation: _Optional[float] = ...) -> None: ...

class RoundsRequest(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: int
    def __init__(self, first: _Optional[int] = ...) -> None: ...

class RoundsResponse(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[RoundStatus]
    def __init__(self, rounds: _Optional[_Iterable[_Union[RoundStatus, _Mapping]]] = ...) -> None: ...

class RoundStatus(_message.Message):
    __slots__ = ("round", "seconds", "cohort", "phases", "accuracy", "validation", "published", "weights", "recall")
    class AccuracyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ValidationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    round: int
    seconds: float
    cohort: _containers.RepeatedScalarFieldContainer[str]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseStatus]
    accuracy: _containers.ScalarMap[str, float]
    validation: _containers.ScalarMap[str, float]
    published: str
    weights: _containers.ScalarMap[str, float]
    recall: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, round: _Optional[int] = ..., seconds: _Optional[float] = ..., cohort: _Optional[_Iterable[str]] = ..., phases: _Optional[_Iterable[_Union[PhaseStatus, _Mapping]]] = ..., accuracy: _Optional[_Mapping[str, float]] = ..., validation: _Optional[_Mapping[str, float]] = ..., published: _Optional[str] = ..., weights: _Optional[_Mapping[str, float]] = ..., recall: _Optional[_Iterable[float]] = ...) -> None: ...

class PhaseStatus(_message.Message):
    __slots__ = ("phase", "seconds", "returned", "missing", "failed", "skipped", "excluded")
    class FailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ExcludedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    phase: str
    seconds: float
    returned: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.ScalarMap[str, str]
    skipped: str
    excluded: _containers.ScalarMap[str, str]
    def __init__(self, phase: _Optional[str] = ..., seconds: _Optional[float] = ..., returned: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ..., failed: _Optional[_Mapping[str, str]] = ..., skipped: _Optional[str] = ..., excluded: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LedgerRequest(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class LedgerResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[LedgerRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[LedgerRow, _Mapping]]] = ...) -> None: ...

class LedgerRow(_message.Message):
    __slots__ = ("client", "round", "phase", "bytes")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    client: str
    round: int
    phase: str
    bytes: ByteTotals
    def __init__(self, client: _Optional[str] = ..., round: _Optional[int] = ..., phase: _Optional[str] = ..., bytes: _Optional[_Union[ByteTotals, _Mapping]] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[EventStatus]
    def __init__(self, events: _Optional[_Iterable[_Union[EventStatus, _Mapping]]] = ...) -> None: ...

class EventStatus(_message.Message):
    __slots__ = ("number", "time", "name", "round", "phase", "client", "detail")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: str
    name: str
    round: int
    phase: str
    client: str
    detail: str
    def __init__(self, number: _Optional[int] = ..., time: _Optional[str] = ..., name: _Optional[str] = ..., round: _Optional[int] = ..., phase: _Optional[str] = ..., client: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: str
    def __init__(self, detail: _Optional[str] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: str
    def __init__(self, detail: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: str
    def __init__(self, detail: _Optional[str] = ...) -> None: ...

class ReadModelRequest(_message.Message):
    __slots__ = ("part", "offset", "sha256")
    PART_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    part: ModelPart
    offset: int
    sha256: str
    def __init__(self, part: _Optional[_Union[ModelPart, str]] = ..., offset: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class ReadModelResponse(_message.Message):
    __slots__ = ("piece", "sha256", "size")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    piece: bytes
    sha256: str
    size: int
    def __init__(self, piece: _Optional[bytes] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
