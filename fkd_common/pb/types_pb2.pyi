from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_SETUP: _ClassVar[Phase]
    PHASE_CONTROL: _ClassVar[Phase]
    PHASE_STUDENT: _ClassVar[Phase]
    PHASE_RESIDUALS: _ClassVar[Phase]
    PHASE_MOMENTS: _ClassVar[Phase]
    PHASE_VOTES: _ClassVar[Phase]
    PHASE_PERSONAL: _ClassVar[Phase]
    PHASE_STUDENT_KEYS: _ClassVar[Phase]
    PHASE_STUDENT_SHARES: _ClassVar[Phase]
    PHASE_STUDENT_UNMASK: _ClassVar[Phase]
    PHASE_MOMENTS_KEYS: _ClassVar[Phase]
    PHASE_MOMENTS_SHARES: _ClassVar[Phase]
    PHASE_MOMENTS_UNMASK: _ClassVar[Phase]
    PHASE_EXCHANGE: _ClassVar[Phase]
    PHASE_REFINE_1: _ClassVar[Phase]
    PHASE_REFINE_2: _ClassVar[Phase]
    PHASE_REFINE_3: _ClassVar[Phase]
    PHASE_REFINE_4: _ClassVar[Phase]
    PHASE_REFINE_5: _ClassVar[Phase]
    PHASE_REFINE_6: _ClassVar[Phase]
    PHASE_REFINE_7: _ClassVar[Phase]
    PHASE_REFINE_8: _ClassVar[Phase]
    PHASE_REFINE_9: _ClassVar[Phase]
    PHASE_REFINE_10: _ClassVar[Phase]
PHASE_UNSPECIFIED: Phase
PHASE_SETUP: Phase
PHASE_CONTROL: Phase
PHASE_STUDENT: Phase
PHASE_RESIDUALS: Phase
PHASE_MOMENTS: Phase
PHASE_VOTES: Phase
PHASE_PERSONAL: Phase
PHASE_STUDENT_KEYS: Phase
PHASE_STUDENT_SHARES: Phase
PHASE_STUDENT_UNMASK: Phase
PHASE_MOMENTS_KEYS: Phase
PHASE_MOMENTS_SHARES: Phase
PHASE_MOMENTS_UNMASK: Phase
PHASE_EXCHANGE: Phase
PHASE_REFINE_1: Phase
PHASE_REFINE_2: Phase
PHASE_REFINE_3: Phase
PHASE_REFINE_4: Phase
PHASE_REFINE_5: Phase
PHASE_REFINE_6: Phase
PHASE_REFINE_7: Phase
PHASE_REFINE_8: Phase
PHASE_REFINE_9: Phase
PHASE_REFINE_10: Phase

class TaskKey(_message.Message):
    __slots__ = ("run_id", "round", "phase")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    phase: Phase
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class ArtifactRef(_message.Message):
    __slots__ = ("name", "sha256", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    size: int
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("sha256", "size", "inline")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    inline: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., inline: _Optional[bytes] = ...) -> None: ...
