from fkd_common.pb import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("protocol_version", "client_name", "relay")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    client_name: str
    relay: bool
    def __init__(self, protocol_version: _Optional[int] = ..., client_name: _Optional[str] = ..., relay: _Optional[bool] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("session", "run_id", "config_json", "config_sha256", "classes", "artifacts", "max_chunk_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SHA256_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    run_id: str
    config_json: str
    config_sha256: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    artifacts: _containers.RepeatedCompositeFieldContainer[_types_pb2.ArtifactRef]
    max_chunk_bytes: int
    def __init__(self, session: _Optional[bytes] = ..., run_id: _Optional[str] = ..., config_json: _Optional[str] = ..., config_sha256: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., artifacts: _Optional[_Iterable[_Union[_types_pb2.ArtifactRef, _Mapping]]] = ..., max_chunk_bytes: _Optional[int] = ...) -> None: ...

class NextTaskRequest(_message.Message):
    __slots__ = ("session", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    wait_s: float
    def __init__(self, session: _Optional[bytes] = ..., wait_s: _Optional[float] = ...) -> None: ...

class NextTaskResponse(_message.Message):
    __slots__ = ("task", "wait", "finished")
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    task: Task
    wait: Wait
    finished: Finished
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("key", "deadline_s", "inputs", "anchor_lambda", "moment_lambdas", "embedding_block_known", "published", "best_moments", "config_sha256", "delivered")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_LAMBDA_FIELD_NUMBER: _ClassVar[int]
    MOMENT_LAMBDAS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_BLOCK_KNOWN_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    BEST_MOMENTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SHA256_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.TaskKey
    deadline_s: float
    inputs: _containers.RepeatedCompositeFieldContainer[_types_pb2.ArtifactRef]
    anchor_lambda: float
    moment_lambdas: _containers.RepeatedScalarFieldContainer[float]
    embedding_block_known: bool
    published: str
    best_moments: str
    config_sha256: str
    delivered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., deadline_s: _Optional[float] = ..., inputs: _Optional[_Iterable[_Union[_types_pb2.ArtifactRef, _Mapping]]] = ..., anchor_lambda: _Optional[float] = ..., moment_lambdas: _Optional[_Iterable[float]] = ..., embedding_block_known: _Optional[bool] = ..., published: _Optional[str] = ..., best_moments: _Optional[str] = ..., config_sha256: _Optional[str] = ..., delivered: _Optional[_Iterable[str]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("retry_after_s", "reason")
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    retry_after_s: float
    reason: str
    def __init__(self, retry_after_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("completed", "detail")
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    completed: bool
    detail: str
    def __init__(self, completed: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("session", "key", "progress", "activity")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    progress: float
    activity: str
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., progress: _Optional[float] = ..., activity: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("task_closed", "finished", "next_in_s")
    TASK_CLOSED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    NEXT_IN_S_FIELD_NUMBER: _ClassVar[int]
    task_closed: bool
    finished: Finished
    next_in_s: float
    def __init__(self, task_closed: _Optional[bool] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., next_in_s: _Optional[float] = ...) -> None: ...

class GetChunkRequest(_message.Message):
    __slots__ = ("session", "key", "sha256", "offset", "length")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    sha256: bytes
    offset: int
    length: int
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., sha256: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class GetChunkResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PutChunkRequest(_message.Message):
    __slots__ = ("session", "key", "sha256", "size", "offset", "data")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    sha256: bytes
    size: int
    offset: int
    data: bytes
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutChunkResponse(_message.Message):
    __slots__ = ("received", "duplicate")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    received: int
    duplicate: bool
    def __init__(self, received: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class SubmitStudentRequest(_message.Message):
    __slots__ = ("session", "key", "upload", "num_samples", "reliability")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RELIABILITY_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    upload: _types_pb2.Upload
    num_samples: int
    reliability: float
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., upload: _Optional[_Union[_types_pb2.Upload, _Mapping]] = ..., num_samples: _Optional[int] = ..., reliability: _Optional[float] = ...) -> None: ...

class SubmitResidualsRequest(_message.Message):
    __slots__ = ("session", "key", "upload", "num_samples", "class_counts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    upload: _types_pb2.Upload
    num_samples: int
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., upload: _Optional[_Union[_types_pb2.Upload, _Mapping]] = ..., num_samples: _Optional[int] = ..., class_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class SubmitMomentsRequest(_message.Message):
    __slots__ = ("session", "key", "upload", "num_samples")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    upload: _types_pb2.Upload
    num_samples: int
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., upload: _Optional[_Union[_types_pb2.Upload, _Mapping]] = ..., num_samples: _Optional[int] = ...) -> None: ...

class SubmitGradientRequest(_message.Message):
    __slots__ = ("session", "key", "upload", "num_samples")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    upload: _types_pb2.Upload
    num_samples: int
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., upload: _Optional[_Union[_types_pb2.Upload, _Mapping]] = ..., num_samples: _Optional[int] = ...) -> None: ...

class SubmitSecureRequest(_message.Message):
    __slots__ = ("session", "key", "upload")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    upload: _types_pb2.Upload
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., upload: _Optional[_Union[_types_pb2.Upload, _Mapping]] = ...) -> None: ...

class SubmitExchangeRequest(_message.Message):
    __slots__ = ("session", "key", "upload", "num_samples")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    upload: _types_pb2.Upload
    num_samples: int
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., upload: _Optional[_Union[_types_pb2.Upload, _Mapping]] = ..., num_samples: _Optional[int] = ...) -> None: ...

class SubmitVotesRequest(_message.Message):
    __slots__ = ("session", "key", "votes", "num_validation")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    NUM_VALIDATION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    votes: _containers.RepeatedCompositeFieldContainer[Vote]
    num_validation: int
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., votes: _Optional[_Iterable[_Union[Vote, _Mapping]]] = ..., num_validation: _Optional[int] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("candidate", "correct")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    candidate: str
    correct: int
    def __init__(self, candidate: _Optional[str] = ..., correct: _Optional[int] = ...) -> None: ...

class FinishTaskRequest(_message.Message):
    __slots__ = ("session", "key", "personal_correct", "num_validation")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_CORRECT_FIELD_NUMBER: _ClassVar[int]
    NUM_VALIDATION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    personal_correct: int
    num_validation: int
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., personal_correct: _Optional[int] = ..., num_validation: _Optional[int] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("duplicate", "receipt")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    receipt: str
    def __init__(self, duplicate: _Optional[bool] = ..., receipt: _Optional[str] = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("session", "key", "detail")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    key: _types_pb2.TaskKey
    detail: str
    def __init__(self, session: _Optional[bytes] = ..., key: _Optional[_Union[_types_pb2.TaskKey, _Mapping]] = ..., detail: _Optional[str] = ...) -> None: ...

class ReportFailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    reason: str
    def __init__(self, session: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
