"""A disk that takes no more, under a real coordinator: clients are told to come back, and it recovers by itself."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable

import pytest

from fkd_common.errors import UnreachableError
from fkd_common.rpc import MAX_CHUNK_BYTES

from ..e2e.programs import Program, address_of
from .bystander import Bystander

pytestmark = pytest.mark.e2e


def limit_file_size(pid: int, limit: int) -> None:
    """What a write beyond it gets is EFBIG, which a coordinator treats like a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))


@pytest.mark.scenario(28)
def test_an_upload_to_a_full_disk_is_asked_for_again_and_goes_on_where_it_stopped(
    server: Program, join: Callable[..., Bystander]
) -> None:
    """Scenario 28: UNAVAILABLE and STORAGE; when space returns, without a restart, half a chunk is no loss."""
    client = join(address_of(server))
    blob = b"".join(
        client.call(
            "GetChunk", key=client.key, sha256=client.student.sha256, offset=at, length=MAX_CHUNK_BYTES
        ).data
        for at in range(0, client.student.size, MAX_CHUNK_BYTES)
    )
    upload = {"key": client.key, "sha256": hashlib.sha256(blob).digest(), "size": len(blob)}
    held = client.call("PutChunk", **upload, data=blob[:MAX_CHUNK_BYTES]).received
    assert held == MAX_CHUNK_BYTES

    limit_file_size(server.pid, MAX_CHUNK_BYTES + MAX_CHUNK_BYTES // 2)
    with pytest.raises(UnreachableError, match="disk does not take") as refused:
        client.call("PutChunk", **upload, offset=held, data=blob[held : held + MAX_CHUNK_BYTES])
    assert refused.value.reason == "STORAGE"
    client.call("Heartbeat", key=client.key, activity="waiting for space")

    limit_file_size(server.pid, resource.RLIM_INFINITY)
    held = client.call("PutChunk", **upload).received
    while held < len(blob):
        data = blob[held : held + MAX_CHUNK_BYTES]
        held = client.call("PutChunk", **upload, offset=held, data=data).received
    receipt = client.call(
        "SubmitStudent",
        key=client.key,
        upload={"sha256": upload["sha256"], "size": len(blob)},
        num_samples=10,
        reliability=1.0,
    )
    assert not receipt.duplicate
    server.wait_for("round_closed")
