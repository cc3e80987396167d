"""Other methods' networks under codecs: what is averaged, booked, refused, and what a restart changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_bench.methods.fedavg import FedAvg
from fkd_common.codecs.networks import NetworkCodecs
from fkd_common.codecs.student import rounding
from fkd_common.errors import InvalidUploadError, MethodError, UnreachableError, UsageError
from fkd_common.exchange_method import MODEL
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Method
from fkd_common.tensors import Tensors, decode, encode
from fkd_server.method.exchange import Exchange
from fkd_server.run import Run, assemble

from .test_run_folder import settings
from .tiny import Site, inline

EXCHANGE = types.PHASE_EXCHANGE
CODED = {"method": "fedavg", "update_codec": "int8", "model_codec": "int8"}


def start(prepared: Path, **changes: Any) -> Run:
    """The run, or after its coordinator stopped, the same run again."""
    return assemble(settings(prepared, **{**CODED, **changes}), prepared.parent / "cache")


def sites_of(run: Run) -> tuple[Site, Site]:
    def answer(method: Method, raw: bytes) -> bytes:
        return run.service.handle(method, raw) or b""

    a, b = Site("a", answer), Site("b", answer)
    a.poll(), b.poll()
    return a, b


def codecs(run: Run) -> NetworkCodecs:
    assert isinstance(run.method, Exchange)
    return NetworkCodecs.of(run.method.method)


def received(run: Run, site: Site, round_number: int) -> Tensors:
    """The model as a site unpacks it."""
    (reference,) = site.poll().task.inputs
    packed = decode(site.fetch(reference, site.key(round_number, EXCHANGE)))
    return codecs(run).unpack_group(MODEL, packed)


def packed(run: Run, model: Tensors, moved: float) -> dict[str, np.ndarray]:
    """What a site sends that has moved every weight by so much."""
    assert isinstance(run.method, Exchange)
    after = {name: values + np.asarray(moved, values.dtype) for name, values in model.items()}
    layout = run.method.upload_layout(10)
    return dict(codecs(run).pack_upload(after, model, layout, rounding([0], 1, EXCHANGE)))


def submit(site: Site, round_number: int, tensors: dict[str, np.ndarray]) -> Any:
    key = site.key(round_number, EXCHANGE)
    return site.call("SubmitExchange", key=key, upload=inline(encode(tensors)), num_samples=10)


def test_what_is_averaged_was_unpacked_and_what_is_published_was_sent(prepared: Path) -> None:
    run = start(prepared)
    a, b = sites_of(run)
    before = received(run, a, 1)
    submit(a, 1, packed(run, before, 0.1))
    submit(b, 1, packed(run, before, 0.3))
    after = received(run, a, 2)
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values + 0.2, atol=0.01)
    published = run.method.model()
    assert published is not None
    for name, values in after.items():
        np.testing.assert_array_equal(published.student[name], values)  # type: ignore[attr-defined]
    run.close()


def test_payload_is_what_was_packed(prepared: Path) -> None:
    run = start(prepared)
    a, _ = sites_of(run)
    sent = packed(run, received(run, a, 1), 0.1)
    submit(a, 1, sent)
    booked = [count.payload_up for key, count in run.service.ledger.rows() if key.phase == "exchange"]
    assert sum(booked) == sum(part.nbytes for part in sent.values())
    run.close()


def test_a_restart_in_a_round_changes_no_byte(prepared: Path, tmp_path: Path) -> None:
    """Scenario 3: the model that a difference belongs to is there again, and so is what was kept of an upload."""
    sent = []
    for restarted in (False, True):
        run = start(prepared, runs=tmp_path / str(restarted))
        a, b = sites_of(run)
        before = received(run, a, 1)
        submit(a, 1, packed(run, before, 0.1))
        if restarted:
            run.close()
            run = start(prepared, runs=tmp_path / str(restarted))
            a, b = sites_of(run)
        submit(b, 1, packed(run, received(run, b, 1), 0.3))
        (reference,) = a.poll().task.inputs
        sent.append(a.fetch(reference, a.key(2, EXCHANGE)))
        run.close()
    assert sent[0] == sent[1]


@pytest.mark.scenario(10, 11, 12)
@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (lambda parts: parts.update(scales=np.full_like(parts["scales"], np.nan)), {"NOT_FINITE"}),
        (lambda parts: parts.update(scales=np.full_like(parts["scales"], 1e30)), {"OUT_OF_RANGE"}),
        (lambda parts: parts.update(scales=np.full_like(parts["scales"], 3e38)), {"NOT_FINITE"}),
        (lambda parts: parts.update(scales=parts["scales"][:-1]), {"WRONG_SHAPE"}),
        (lambda parts: parts.update(matrices=parts["matrices"][:-3]), {"INVALID_UPLOAD", "WRONG_SIZE"}),
        (lambda parts: parts.update(matrices=parts["vectors"]), {"WRONG_SIZE"}),
        (lambda parts: parts.update(extra=parts["vectors"]), {"WRONG_NAMES"}),
        (lambda parts: parts.update({"beside/output.bias": np.zeros(2, np.float32)}), {"WRONG_NAMES"}),
        (lambda parts: parts.pop("vectors"), {"WRONG_NAMES"}),
        (lambda parts: parts.clear(), {"WRONG_NAMES"}),
    ],
)
def test_what_cannot_be_unpacked_is_refused_and_costs_the_round_nothing(
    change: Callable[[dict[str, np.ndarray]], None], reasons: set[str], prepared: Path
) -> None:
    run = start(prepared, quorum=0.5)
    a, b = sites_of(run)
    model = received(run, a, 1)
    parts = packed(run, model, 0.1)
    change(parts)
    with pytest.raises(InvalidUploadError) as refused:
        submit(a, 1, parts)
    assert (refused.value.reason or refused.value.code) in reasons
    submit(b, 1, packed(run, model, 0.3))
    assert received(run, b, 2)["output.bias"] == pytest.approx(model["output.bias"] + 0.3, abs=0.01)
    run.close()


@pytest.mark.scenario(11)
def test_a_network_that_was_not_packed_is_refused(prepared: Path) -> None:
    run = start(prepared)
    a, _ = sites_of(run)
    with pytest.raises(InvalidUploadError, match="tensor names differ"):
        submit(a, 1, received(run, a, 1))
    run.close()


def test_with_a_codec_for_the_way_down_alone_uploads_are_as_they_were(prepared: Path) -> None:
    run = start(prepared, update_codec="fp32")
    a, b = sites_of(run)
    model = received(run, a, 1)
    for site in (a, b):
        submit(site, 1, {name: values.copy() for name, values in model.items()})
    np.testing.assert_allclose(received(run, a, 2)["output.weight"], model["output.weight"], rtol=1e-6)
    run.close()


# -- mistakes of a method -------------------------------------------------------------------------


def test_a_codec_for_no_network_leaves_no_run(prepared: Path) -> None:
    for method, key in (("fedmd", "update_codec"), ("pfedfda", "update_codec"), ("fed3r", "model_codec")):
        keys = {"update_codec": "fp32", "model_codec": "fp32", "method": method, key: "int8"}
        with pytest.raises(UsageError, match=rf"{method} with model head has no network .* {key} = int8$"):
            start(prepared, **keys)
    assert not (prepared.parent / "runs" / "run-1").exists()


def test_a_broadcast_without_what_uploads_are_differences_to_is_the_methods_mistake(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(prepared, min_clients=1)
    monkeypatch.setattr(FedAvg, "broadcast", lambda self, number, client: (), raising=False)
    with pytest.raises(UnreachableError):
        sites_of(run)
    with pytest.raises(MethodError, match=r"broadcast returned .*expected 'model' too"):
        run.service.tick()
    run.close()


def test_a_network_of_another_layout_than_declared_is_the_methods_mistake(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        FedAvg, "coded_networks", lambda self: {MODEL: {**self.networks.layout, "more": 0}}, raising=False
    )
    with pytest.raises(MethodError, match="start returned group 'model' of another layout"):
        start(prepared)
