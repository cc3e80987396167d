"""Signs certificates for sites that hold a join token; has a port of its own, knows nothing of runs.

On that port only the coordinator proves itself: whoever connects has nothing yet to prove itself with but its
token. So everything is small: messages, connections, and the number of wrong tokens one address may try.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from fkd_common.access.certificates import UNREADABLE, to_pem
from fkd_common.access.join_token import MAX_ENROLMENT_MESSAGE_BYTES
from fkd_common.access.roles import Role
from fkd_common.addresses import join_address
from fkd_common.errors import (
    FkdError,
    InvalidUploadError,
    PortInUseError,
    UnauthenticatedError,
    UnreachableError,
)
from fkd_common.pb import enrolment_pb2 as pb
from fkd_common.rpc import ENROLMENT_METHODS, to_status
from fkd_server.access.certificates import CertificateAuthority
from fkd_server.access.identity import host_of
from fkd_server.access.join_tokens import StoredToken, TokenStore
from fkd_server.access.tls import ServerTls

MAX_WRONG = 10
"""Wrong tokens that one address may try within a window; then even a good one has to wait."""
WINDOW_S = 60.0
_MAX_ADDRESSES = 1024
_MAX_CALLS = 16
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ENROLMENT_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_ENROLMENT_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
    ("grpc.so_reuseport", 0),
]


class WrongTokens:
    """Counts wrong tokens by address, within a window of time; remembers a bounded number of addresses."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """Wrong tokens of this address in its window."""
        began, wrong = self._seen.get(address, (0.0, 0))
        return wrong if self._clock() - began < WINDOW_S else 0

    def add(self, address: str) -> int:
        """One more; returns how many."""
        wrong = self.count(address) + 1
        began = self._seen[address][0] if wrong > 1 else self._clock()
        self._seen[address] = (began, wrong)
        self._seen.move_to_end(address)
        while len(self._seen) > _MAX_ADDRESSES:
            self._seen.popitem(last=False)
        return wrong


class Enrolment:
    """Answers fkd.v1.Enrolment."""

    def __init__(self, tls: ServerTls, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the authority in the folder of `tls`.

        Raises:
            UsageError: There is none.
        """
        self._tls = tls
        self._authority = CertificateAuthority(tls.folder)
        self._tokens = TokenStore(tls.folder)
        self._wrong = WrongTokens(clock)
        self._log = structlog.get_logger()

    def join(self, raw: bytes, address: str) -> bytes:
        """Trade a token for a certificate.

        Args:
            raw: A serialised JoinRequest.
            address: Where it comes from.

        Raises:
            UnauthenticatedError: The token is not good.
            InvalidUploadError: The signing request is none.
            UnreachableError: This address tried too many wrong tokens; later it may again.
        """
        if self._wrong.count(address) >= MAX_WRONG:
            raise UnreachableError(
                f"{MAX_WRONG} wrong tokens came from {address}: wait a minute", reason="TOO_MANY_TOKENS"
            )
        request = _parsed(raw)
        public_key = _proven_key(request.signing_request)
        try:
            used = self._tokens.redeem(
                request.secret, _key_hash(public_key), lambda token: self._sign(token, public_key, address)
            )
        except UnauthenticatedError as error:
            wrong = self._wrong.add(address)
            self._log.warning("join_refused", address=address, reason=error.reason, wrong=wrong)
            raise
        ca = self._tls.trusted()
        return pb.JoinResponse(certificate=used.certificate.encode(), ca=ca).SerializeToString()

    def _sign(self, token: StoredToken, public_key: ec.EllipticCurvePublicKey, address: str) -> str:
        certificate = self._authority.issue(public_key, Role.CLIENT, token.name)
        self._log.info(
            "joined",
            name=token.name,
            address=address,
            serial=f"{certificate.serial_number:x}",
            expires=f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        )
        return to_pem(certificate).decode()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Routes the one method, by its exact path."""

    def __init__(self, join: Callable[[bytes, Any], Awaitable[bytes]]) -> None:
        self._join = grpc.unary_unary_rpc_method_handler(join)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._join if handler_call_details.method == ENROLMENT_METHODS["Join"].path else None


class EnrolmentServer:
    """An asyncio gRPC server around :class:`Enrolment`."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._enrolment = Enrolment(tls)
        self._turn = asyncio.Lock()
        self.port = 0
        """Where it listens, once it does."""
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS)
        self._server.add_generic_rpc_handlers((_Handlers(self._answer),))

    def listen(self, host: str, port: int) -> int:
        """Bind; returns the port (port 0: a free one).

        Raises:
            PortInUseError: The address cannot be bound.
        """
        address = join_address(host, port)
        try:
            bound = self._server.add_secure_port(
                address, self._tls.credentials(clients_prove_themselves=False)
            )
        except RuntimeError:
            bound = 0
        if not bound:
            raise PortInUseError(
                f"cannot listen on {host}:{port} for --join: the port is taken or not allowed; choose another with "
                "--join-port, or none with --join-port 0"
            )
        self.port = bound
        return bound

    async def start(self) -> None:
        """Begin to answer calls."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop at once: a site that was not answered asks again."""
        await self._server.stop(0.0)

    def _join(self, raw: bytes, address: str) -> bytes:
        try:
            return self._enrolment.join(raw, address)
        except OSError as error:
            structlog.get_logger().error("join_failed", detail=str(error), retrying=True)
            raise UnreachableError(
                f"the coordinator cannot write to its --tls folder: {error.strerror or error}",
                reason="STORAGE",
            ) from error

    async def _answer(self, raw: bytes, context: Any) -> bytes:
        try:
            async with self._turn:  # one at a time: signing and the disk are quick, and callers are strangers
                return await asyncio.to_thread(self._join, raw, host_of(context))
        except FkdError as error:
            await context.abort_with_status(rpc_status.to_status(to_status(error)))
            raise AssertionError("unreachable") from error


def _parsed(raw: bytes) -> pb.JoinRequest:
    try:
        return pb.JoinRequest.FromString(raw)
    except DecodeError as error:
        raise InvalidUploadError(f"not a Join request: {error}", reason="MALFORMED") from error


def _proven_key(signing_request: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a signing request; nothing else in it is looked at.

    Raises:
        InvalidUploadError: It is no signing request, the key is of another kind, or whoever sent it does not have
            the private key.
    """
    try:
        request = x509.load_der_x509_csr(signing_request)
        key = request.public_key()
        proven = request.is_signature_valid
    except UNREADABLE as error:
        raise InvalidUploadError(
            "the signing request is not PKCS #10 in DER", reason="BAD_SIGNING_REQUEST"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidUploadError("the key is not of curve P-256", reason="BAD_SIGNING_REQUEST")
    if not proven:
        raise InvalidUploadError(
            "the signing request is not signed with the key in it", reason="BAD_SIGNING_REQUEST"
        )
    return key


def _key_hash(key: ec.EllipticCurvePublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
