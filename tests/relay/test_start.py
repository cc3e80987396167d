"""How a relay begins, what it refuses to carry, and what it serves."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fkd_common.addresses import reaches
from fkd_common.config import RunConfig
from fkd_common.errors import RefusedError, UnreachableError, UsageError
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import PREPARING
from fkd_common.tensors import decode
from fkd_relay import learn, start
from fkd_relay.absence import Absence
from fkd_relay.credentials import relays_words
from fkd_relay.refusals import check_run
from fkd_server.operator.tables import status_view
from fkd_server.prepare import Preparation
from fkd_server.run import Run
from fkd_server.settings import ServerSettings

from ..server.tiny import TinyRun, tiny_config
from .tree import HandSite, Wire, hub


@pytest.fixture
def above(tmp_path: Path) -> TinyRun:
    return hub(tmp_path / "hub", min_clients=5)


@pytest.fixture
def wires(above: TinyRun, monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    """The lines that were opened to the hub."""
    made: list[Wire] = []

    def open_line(address: str, tls: Any) -> Wire:
        made.append(Wire(above.answer))
        return made[-1]

    monkeypatch.setattr(start, "GrpcTransport", open_line)
    return made


def settings(tmp_path: Path, **given: Any) -> ServerSettings:
    told = {"upstream": "127.0.0.1:1", "upstream_name": "north", "runs": tmp_path / "runs", "run_id": "north"}
    return ServerSettings(**{**told, **given})


def begin(tmp_path: Path, preparation: Preparation | None = None, **given: Any) -> Run:
    return start.assemble_relay(settings(tmp_path, **given), tmp_path, preparation or Preparation())


def site_of(run: Run) -> HandSite:
    def answer(method: Any, request: bytes) -> bytes:
        response = run.service.handle(method, request)
        assert response is not None
        return response

    return HandSite("a", answer)


def test_a_relays_clients_are_told_what_the_hubs_are(
    tmp_path: Path, above: TinyRun, wires: list[Wire]
) -> None:
    run = begin(tmp_path, min_clients=3, min_cohort=2, quorum=0.9)
    told, theirs = site_of(run).told, above.site("b").told
    for same in ("config_json", "config_sha256", "classes", "artifacts"):
        assert getattr(told, same) == getattr(theirs, same)
    assert told.run_id == "north"
    assert (run.coordinator.config.min_clients, run.coordinator.config.quorum) == (3, 0.9)
    assert run.coordinator.config.clients_per_round == 1.0
    assert above.coordinator.attendance.clients["north"].relay
    run.close()
    assert above.coordinator.attendance.clients["north"].left


def test_a_relay_serves_the_hubs_artifacts(tmp_path: Path, above: TinyRun, wires: list[Wire]) -> None:
    run = begin(tmp_path)
    site = site_of(run)
    setup = types.TaskKey(run_id="north", phase=types.PHASE_SETUP)
    blobs = {item.name: site.fetch(item, setup) for item in site.told.artifacts}
    assert decode(blobs["anchors"])["embeddings"].shape == (12, 3)
    run.close()


def test_a_relay_says_so_in_its_status(tmp_path: Path, wires: list[Wire]) -> None:
    run = begin(tmp_path)
    status = run.overview.status()
    assert status.upstream == "127.0.0.1:1"
    assert status.config_sha256 == run.config.sha256()
    assert "a relay of the coordinator at 127.0.0.1:1" in str(status_view(status))
    run.close()


def test_a_run_that_has_begun_goes_on_without_its_hub(tmp_path: Path, wires: list[Wire]) -> None:
    first = begin(tmp_path)
    site = site_of(first)
    first.close()
    assert wires[0].cut
    again = begin(tmp_path, min_clients=4)
    assert len(wires) == 1
    assert again.config == first.config
    answer = again.service.handle
    site.answer = lambda method, request: answer(method, request) or b""
    assert site.poll().HasField("wait")
    assert again.coordinator.config.min_clients == 4
    again.close()


def test_a_hub_that_does_not_answer_is_waited_for_until_told_to_stop(
    tmp_path: Path, wires: list[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "PATIENCE_S", 0.05)
    monkeypatch.setattr(start, "GrpcTransport", lambda address, tls: _cut())
    preparation, found = Preparation(), list[Exception]()

    def assemble() -> None:
        try:
            begin(tmp_path, preparation)
        except UnreachableError as error:
            found.append(error)

    waiting = threading.Thread(target=assemble)
    waiting.start()
    until = time.monotonic() + 20.0
    while "the upstream coordinator at 127.0.0.1:1 does not answer since" not in preparation.activity:
        assert time.monotonic() < until
        time.sleep(0.01)
    preparation.cancel()
    waiting.join(20.0)
    assert len(found) == 1
    assert not (tmp_path / "runs" / "north").exists()


def _cut() -> Wire:
    wire = Wire(lambda method, request: b"")
    wire.cut = True
    return wire


def test_a_hub_that_answers_later_is_found(
    tmp_path: Path, above: TinyRun, wires: list[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "PATIENCE_S", 0.05)
    real, opened = start.GrpcTransport, list[Wire]()

    def open_line(address: str, tls: Any) -> Wire:
        opened.append(_cut() if not opened else real(address, tls))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(start, "GrpcTransport", open_line)
    run = begin(tmp_path)
    assert len(opened) == 2
    assert above.coordinator.attendance.clients["north"].alive
    run.close()


def test_a_hub_that_is_preparing_is_waited_for_in_its_own_words(
    tmp_path: Path, wires: list[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "PATIENCE_S", 0.05)
    real, said = start.GrpcTransport, list[str]()
    preparation = Preparation()

    def preparing(method: Any, request: bytes) -> bytes:
        said.append(preparation.activity)
        raise UnreachableError("the coordinator is preparing the run (anchors, 40 %)", reason=PREPARING)

    def open_line(address: str, tls: Any) -> Wire:
        return real(address, tls) if said and "40 %" in said[-1] else Wire(preparing)  # type: ignore[return-value]

    monkeypatch.setattr(start, "GrpcTransport", open_line)
    with capture_logs() as logs:
        begin(tmp_path, preparation, upstream_patience_s=1e-6).close()
    words = (
        "the upstream coordinator at 127.0.0.1:1 says: the coordinator is preparing the run (anchors, 40 %)"
    )
    assert said[-1] == words
    assert [line["on"] for line in logs if line["event"] == "upstream_unreachable"] == [words]


def test_words_that_come_round_in_a_circle_do_not_grow() -> None:
    words = ""
    for _ in range(20):
        absence = Absence("hub:1")
        absence.note(UnreachableError(f"the coordinator is preparing the run ({words})", reason=PREPARING))
        words = absence.words
    assert len(words) < 300


def test_a_hub_that_dies_while_it_is_asked_for_anchors_is_found_again(
    tmp_path: Path, above: TinyRun, wires: list[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "PATIENCE_S", 0.05)
    asked = list[str]()

    def dies(method: Any, request: bytes) -> bytes:
        asked.append(method.name)
        if method.name == "GetChunk" and asked.count("Register") == 1:
            raise UnreachableError("connection refused")
        return above.answer(method, request)

    monkeypatch.setattr(start, "GrpcTransport", lambda address, tls: Wire(dies))
    begin(tmp_path).close()
    assert asked.count("Register") == 2


def test_a_hub_that_never_answers_is_given_up(
    tmp_path: Path, wires: list[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "PATIENCE_S", 0.05)
    monkeypatch.setattr(start, "GrpcTransport", lambda address, tls: _cut())
    with pytest.raises(UnreachableError, match=r"at 127.0.0.1:1 within 1 s .* --upstream-patience-s"):
        begin(tmp_path, upstream_patience_s=0.6)


@pytest.mark.parametrize(
    ("host", "listening", "itself"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        (socket.gethostname(), "0.0.0.0", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("192.0.2.1", "0.0.0.0", False),
        ("no-such-host.invalid", "0.0.0.0", False),
    ],
)
def test_a_caller_that_would_reach_itself_is_known(host: str, listening: str, itself: bool) -> None:
    assert reaches(host, listening) is itself


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"aggregation": "median"}, "a median of averages is not the median of the sites"),
        ({"aggregation": "trimmed_mean"}, "aggregation trimmed_mean"),
        ({"secure_aggregation": True, "min_cohort": 2}, "mask their uploads for each other"),
        ({"method": "fedavg"}, "the upstream run's method is fedavg"),
    ],
)
def test_runs_that_a_tree_would_change_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_run(tiny_config(**changes))


def test_norms_noise_and_caps_are_carried() -> None:
    check_run(tiny_config(aggregation="norm_clip", max_weight_share=0.4))
    check_run(RunConfig(noise_multiplier=1.0, residual_l2_clip=1.0, feature_clip=1.0, target_clip=1.0))


@pytest.mark.scenario(30, 47)
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rounds": 7, "seed": 3}, r"\(rounds: 2 upstream, 7 here; seed: 0 upstream, 3 here\): leave it out"),
        ({"prepared": Path("p"), "test": Path("t")}, "--prepared, --test: a relay serves what its upstream"),
        ({"extractor": "pretrain"}, "--extractor: a relay serves"),
        ({"upstream_name": None}, "--upstream needs --upstream-name NAME"),
        ({"upstream_name": "a/b"}, "--upstream-name: "),
        ({"upstream": "hub.example:1"}, "--upstream hub.example:1 would be reached in plain text"),
        ({"upstream": "localhost:50051"}, "--upstream localhost:50051 is this relay's own port"),
        ({"upstream": "hub.example"}, "--upstream 'hub.example': expected HOST:PORT"),
        ({"upstream_join": "x"}, "--upstream-join needs --upstream-tls FOLDER"),
        ({"upstream_tls": Path("none")}, "none"),
        ({"upstream_tls": Path("none"), "upstream_insecure": True}, "--upstream-insecure is for plain text"),
    ],
)
def test_flags_that_do_not_fit_are_named(
    tmp_path: Path, wires: list[Wire], given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        begin(tmp_path, **given)
    assert not (tmp_path / "runs" / "north").exists()


def test_a_key_that_is_the_hubs_may_be_repeated(tmp_path: Path, wires: list[Wire]) -> None:
    begin(tmp_path, rounds=2).close()


def test_flags_of_a_relay_without_an_upstream_coordinator_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="--upstream-name, --upstream-insecure: only with --upstream HOST:PORT"
    ):
        settings(tmp_path, upstream=None, upstream_insecure=True).check_no_relay()
    with pytest.raises(UsageError, match=r"^--upstream-patience-s: only with"):
        ServerSettings(upstream_patience_s=5.0).check_no_relay()
    ServerSettings().check_no_relay()


def test_a_refused_relay_leaves_no_run_behind(
    tmp_path: Path, above: TinyRun, wires: list[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    above.service.abort("no more")
    with pytest.raises(RefusedError, match="the run is over: no more"):
        begin(tmp_path)
    assert not (tmp_path / "runs" / "north").exists()


def test_a_relay_imports_neither_torch_nor_lightgbm() -> None:
    program = (
        "import sys, fkd_relay.start, fkd_server.serve; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'torchvision', 'lightgbm', 'sklearn', 'PIL'}))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_what_a_clients_code_says_has_the_names_of_a_relays_flags() -> None:
    said = "it expects TLS: give --tls FOLDER, made by --join @TOKENFILE, to --server hub:1"
    with pytest.raises(UnreachableError) as error, relays_words():
        raise UnreachableError(said, reason="TLS")
    assert str(error.value) == (
        "it expects TLS: give --upstream-tls FOLDER, made by --upstream-join @TOKENFILE, to --upstream hub:1"
    )
    assert error.value.reason == "TLS"
