from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinToken(_message.Message):
    __slots__ = ("ca", "name", "secret")
    CA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ca: bytes
    name: str
    secret: bytes
    def __init__(self, ca: _Optional[bytes] = ..., name: _Optional[str] = ..., secret: _Optional[bytes] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("secret", "signing_request")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    signing_request: bytes
    def __init__(self, secret: _Optional[bytes] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("certificate", "ca")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    ca: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., ca: _Optional[bytes] = ...) -> None: ...
