"""What this machine needs for the bytes of a round alone: how near a measured round is to what cannot be saved.

Each part is done by itself, the fastest of a few times, by the plainest program that does it: one socket, one file
after another. A round has them all, some at once on two cores, and gRPC, threads and a run's bookkeeping besides.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fkd_bench.load.figures import Json
from fkd_common.artifacts import sha256_hex
from fkd_common.method.aggregation import WeightedAverage
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.rpc import MAX_CHUNK_BYTES
from fkd_common.tensors import Tensors, encode

_TIMES = 3
_MOST_BYTES = 256 << 20
"""Done at most, of each part; more is carried on in proportion."""


def limits(tensors: Tensors, clients: int, wall_s_per_round: float) -> Json:
    """Seconds of a round's parts when nothing else is done.

    Args:
        tensors: The model of a round.
        clients: K, each of which takes it and sends one back.
        wall_s_per_round: What a round took, to compare with.

    Returns:
        `loopback_s` (2·K models through TCP), `protobuf_s` (the same packed into messages and unpacked), `sha256_s` (at
        both ends of each transfer, the model's own once), `disk_s` (K uploads and the model, each synced), `average_s`
        (Eq. 14), their sum `all_s`, and `share_of_wall`, that over the measured round.
    """
    blob = encode(tensors)
    parts: dict[str, tuple[Callable[[bytes], object], int]] = {
        "loopback_s": (_through_loopback, 2 * clients),
        "protobuf_s": (_through_protobuf, 2 * clients),
        "sha256_s": (sha256_hex, 3 * clients + 1),
        "disk_s": (_to_disk, clients + 1),
    }
    found = {name: _seconds(part, blob, models) for name, (part, models) in parts.items()}
    average = WeightedAverage()
    found["average_s"] = _seconds(lambda _: average.add(tensors, 1.0), blob, clients)
    whole = sum(found.values())
    return {
        **{name: round(seconds, 4) for name, seconds in found.items()},
        "all_s": round(whole, 4),
        "share_of_wall": round(whole / wall_s_per_round, 3),
    }


def _seconds(part: Callable[[bytes], object], blob: bytes, models: int) -> float:
    """For so many models."""
    done = min(models, max(1, _MOST_BYTES // len(blob)))
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        for _ in range(done):
            part(blob)
        taken.append(time.perf_counter() - began)
    return min(taken) * models / done


def _through_loopback(blob: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sending = socket.create_connection(listening.getsockname())
        receiving, _ = listening.accept()
        with sending, receiving:
            sender = threading.Thread(target=sending.sendall, args=(blob,))
            sender.start()
            buffer, left = bytearray(MAX_CHUNK_BYTES), len(blob)
            while left:
                left -= receiving.recv_into(buffer)
            sender.join()


def _through_protobuf(blob: bytes) -> None:
    for at in range(0, len(blob), MAX_CHUNK_BYTES):
        message = pb.PutChunkRequest(data=blob[at : at + MAX_CHUNK_BYTES]).SerializeToString()
        _ = pb.PutChunkRequest.FromString(message).data


def _to_disk(blob: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fkd-load-") as name, Path(name, "upload").open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
