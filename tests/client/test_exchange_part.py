"""A site's part in a run of another method under codecs: what it packs, and what it refuses to compute with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fkd_bench.methods.fedavg import FedAvg
from fkd_client.exchange import ExchangePart
from fkd_common.codecs.networks import NetworkCodecs
from fkd_common.config import RunConfig
from fkd_common.errors import DataError
from fkd_common.exchange_method import MODEL, Federation
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import decode, encode
from tests.methods.rehearsal import clusters

D, CLASSES = 6, 3
EMBEDDINGS, LABELS = clusters(60, D, CLASSES, 0)
CONFIG = RunConfig(
    method="fedavg",
    hidden=(8,),
    dropout=(0.0,),
    local_steps=3,
    batch_size=8,
    update_codec="int8",
    model_codec="int8",
)
ANCHORS = clusters(5, D, CLASSES, 1)[0]
FEDERATION = Federation(CONFIG, CLASSES, np.zeros((5, 2, 2, 3), np.uint8), ANCHORS, bytes)
TASK = pb.Task(
    key=types.TaskKey(run_id="r", round=1, phase=types.PHASE_EXCHANGE), inputs=[types.ArtifactRef(name=MODEL)]
)


class Part:
    """An ExchangePart whose coordinator sends a blob and keeps what comes back."""

    def __init__(self, folder: Path, sent: bytes) -> None:
        self.uploads: list[dict[str, np.ndarray]] = []
        transfer = SimpleNamespace(
            fetch=lambda reference, key: sent,
            submit=lambda message: self.uploads.append(decode(encode(message.tensors))),
        )
        brings = SimpleNamespace(
            name="a", num_classes=CLASSES, anchor_images=FEDERATION.anchor_images, anchor_embeddings=ANCHORS,
            shard=None, device="cpu", threads=1, labels=lambda: LABELS, check_extractor=lambda: None,
            seed=lambda config: 7, embed=lambda shard, progress: EMBEDDINGS,
        )  # fmt: skip
        place = SimpleNamespace(
            run=SimpleNamespace(config=CONFIG), transfer=transfer, folder=folder, progress=lambda *told: None
        )
        self.part = ExchangePart(brings, place, b"")  # type: ignore[arg-type]
        self.part.prepare()

    def play(self) -> dict[str, np.ndarray]:
        self.part.run(TASK)
        return self.uploads[-1]


def sent() -> bytes:
    method = FedAvg(FEDERATION)
    return encode(NetworkCodecs.of(method).pack_group(MODEL, method.start()[MODEL]))


def test_a_task_done_again_sends_the_same_bytes(tmp_path: Path) -> None:
    first, again = Part(tmp_path, sent()).play(), Part(tmp_path, sent()).play()
    assert encode(first) == encode(again)
    assert first["matrices"].nbytes < 0.4 * 4 * (D * 8 + 8 * CLASSES) + 20


def test_a_method_that_trains_in_place_sends_what_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_place(self: FedAvg, site: Any, received: Any, round_number: int) -> Any:
        for values in received[MODEL].values():
            values += np.asarray(1, values.dtype)
        return received[MODEL]

    monkeypatch.setattr(FedAvg, "local_update", in_place, raising=False)
    method, codecs = FedAvg(FEDERATION), NetworkCodecs.of(FedAvg(FEDERATION))
    start = codecs.unpack_group(MODEL, decode(sent()))
    moved = codecs.unpack_upload(Part(tmp_path, sent()).play(), start, method.upload_layout(1, 1))
    np.testing.assert_allclose(moved["output.weight"] - start["output.weight"], 1.0, atol=0.02)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda parts: parts.update(scales=np.full_like(parts["scales"], np.inf)),
            "contains NaN or infinity",
        ),
        (lambda parts: parts.update(matrices=parts["vectors"]), "a packed tensor holds"),
        (lambda parts: parts.pop("scales"), "missing 'scales'"),
    ],
)
def test_a_model_that_cannot_be_unpacked_is_one_sentence(change: Any, said: str, tmp_path: Path) -> None:
    parts = dict(decode(sent()))
    change(parts)
    with pytest.raises(DataError, match=f"^the coordinator's group 'model' cannot be used: .*{said}"):
        Part(tmp_path, encode(parts)).play()
