"""Relays, their sites and their upstream coordinator come and go; nothing counts twice, and people are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.tensors import decode
from fkd_server.run_state import PhaseKey, RunState

from ..server.tiny import MOMENTS, RESIDUALS, STUDENT
from .tree import (
    STUDENTS,
    DataSite,
    again,
    flat,
    hub,
    in_phase,
    pair,
    play,
    relay,
    steps,
)

# -- processes that die --


@pytest.mark.scenario(45)
def test_a_relay_that_dies_before_every_step_ends_with_the_same_model(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path / "quiet")
    play([above], [below], sites)

    other, node, sites = pair(tmp_path / "killed")
    for site in sites:
        site.poll()
    for _ in range(200):
        if other.coordinator.over and node.coordinator.over:
            break
        node = again(node, other, *sites[:2])
        steps(node, 2)  # connects, and does one thing
        sites[0].do()
        node = again(node, other, *sites[:2])
        steps(node, 2)
        for site in sites[1:]:
            site.do()
    assert node.coordinator.state is RunState.COMPLETED
    assert other.method.state.parts() == above.method.state.parts()
    for site in sites:
        assert set(Counter(site.done).values()) == {1}, "a phase was answered twice"
    assert other.store.uploads_by_client() == above.store.uploads_by_client()


@pytest.mark.scenario(45)
def test_a_hub_that_dies_in_the_middle_of_a_phase_goes_on_with_its_relay(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path)
    play([above], [below], sites, until=lambda: in_phase(above, 1, MOMENTS))
    sites[0].do()
    after = hub(above.blobs.parent, min_clients=2)
    below.wire.to = sites[2].answer = after.answer
    play([after], [below], sites)
    assert after.coordinator.state is RunState.COMPLETED
    one = flat(tmp_path / "flat", "abc")
    for part, artifact in one.method.state.parts().items():
        ours = decode(after.store.blobs.read(after.method.state.parts()[part].sha256))
        for name, values in decode(one.store.blobs.read(artifact.sha256)).items():
            np.testing.assert_allclose(ours[name], values, rtol=1e-4, atol=5e-5)


@pytest.mark.scenario(5)
def test_an_answer_whose_receipt_is_lost_counts_once(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    below.wire.cut_after.add("SubmitStudent")
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED
    assert above.store.uploads_by_client()["r"] == 2
    assert above.service.ledger.total().wasted > 0


@pytest.mark.scenario(6)
def test_an_answer_that_was_handed_in_before_the_relay_died_is_its_receipt_again(tmp_path: Path) -> None:
    """The relay dies between the hub's acknowledgement and its own next step."""
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    sites[0].do()
    sites[1].do()
    steps(below)
    assert above.coordinator.open is not None
    assert "r" in above.coordinator.open.uploads
    below = again(below, above, *sites[:2])
    steps(below)
    play([above], [below], sites)
    assert above.store.uploads_by_client()["r"] == 2


# -- the line --


@pytest.mark.scenario(33)
def test_clients_are_told_that_the_hub_does_not_answer_and_it_goes_on_when_it_does(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    below.wire.cut = True
    sites[0].do()
    sites[1].do()
    steps(below)
    words = sites[0].poll().wait.reason
    assert words.startswith("the upstream coordinator at hub:1 does not answer since ")
    assert [event["detail"] for event in below.named("upstream_lost")] == ["nobody answers"]
    below.wire.cut = False
    play([above], [below], sites)
    assert len(below.named("upstream_found")) == 1
    assert above.coordinator.state is below.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(33)
def test_a_relay_goes_on_gathering_answers_while_its_hub_is_away_and_restarts_without_it(
    tmp_path: Path,
) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    below = again(below, above, *sites[:2])
    below.wire.cut = True
    steps(below)
    assert sites[0].do()
    assert sites[1].do()
    assert not below.coordinator.is_open(PhaseKey(1, STUDENT))
    assert below.method.answer_for(PhaseKey(1, STUDENT)) is not None
    below.wire.cut = False
    play([above], [below], sites)
    assert above.coordinator.state is RunState.COMPLETED
    assert set(Counter(sites[0].done).values()) == {1}


def test_while_the_hub_waits_for_others_clients_hear_for_whom(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    sites[0].do()
    sites[1].do()
    steps(below)
    words = sites[0].poll().wait.reason
    assert words.startswith(
        "the upstream coordinator at hub:1 waits: round 1, student: 1 of 2 in, waiting for c"
    )


def test_a_relay_outside_the_cohort_passes_the_round_over(tmp_path: Path) -> None:
    above = hub(tmp_path / "hub", **{**STUDENTS, "rounds": 6, "min_clients": 3, "clients_per_round": 0.4})
    below = relay(tmp_path / "r", above, "r", 2)
    sites = [DataSite("a", below), DataSite("b", below), DataSite("c", above), DataSite("d", above)]
    play([above], [below], sites)
    asked = [record["round"] for record in above.rounds() if "r" in record["cohort"]]
    assert 0 < len(asked) < 6
    assert [record["round"] for record in below.named("round_closed")] == asked
    assert [number for number, _ in sites[0].done] == asked


# -- clients that are missing --


@pytest.mark.scenario(43)
def test_a_client_that_leaves_between_student_and_moments_is_missing_from_the_sum_and_nothing_else(
    tmp_path: Path,
) -> None:
    above, below, sites = pair(tmp_path, rounds=1, correction_at_start=False)
    a, b, c = sites
    play([above], [below], sites, until=lambda: in_phase(below, 1, MOMENTS))
    b.call("Leave")
    play([above], [below], [a, c])
    phases = above.rounds()[-1]["phases"]
    assert phases["student"]["samples"]["r"] == a.n + b.n
    assert phases["moments"]["pooled_samples"] == a.n + c.n
    assert phases["refine_1"]["gradient_samples"] == a.n + c.n

    one = hub(tmp_path / "flat", rounds=1, correction_at_start=False, min_clients=3)
    same = [DataSite(name, one) for name in "abc"]
    play([one], [], same, until=lambda: in_phase(one, 1, MOMENTS))
    same[1].call("Leave")
    play([one], [], [same[0], same[2]])
    assert one.rounds()[-1]["phases"]["moments"]["pooled_samples"] == a.n + c.n
    for part in ("moment_correction", "refined_moments"):
        ours, theirs = (run.method.state.parts()[part].sha256 for run in (above, one))
        x, y = decode(above.store.blobs.read(ours)), decode(one.store.blobs.read(theirs))
        for name in y:
            np.testing.assert_allclose(x[name], y[name], rtol=1e-4, atol=5e-5)


def test_a_client_that_comes_later_is_in_the_next_sum_with_all_of_its_moments(tmp_path: Path) -> None:
    """The embedding's block, which never changes, is not remembered of a relay: its clients may be others."""
    above, below, sites = pair(tmp_path)
    play([above], [below], sites, until=lambda: in_phase(above, 1, STUDENT))
    sites.append(DataSite("d", below))
    play([above], [below], sites)
    first, _, last = (record["phases"].get("moments") for record in above.rounds())
    a, b, c, d = (site.n for site in sites)
    assert (first["pooled_samples"], last["pooled_samples"]) == (a + b + c, a + b + c + d)
    assert above.method.state.embedding_blocks.keys() == {"c"}
    assert below.method.state.embedding_blocks.keys() == {"a", "b", "d"}


@pytest.mark.scenario(9)
def test_a_phase_without_a_quorum_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS)
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    for site in sites[:2]:
        task = site.poll().task
        site.call("ReportFailure", key=task.key, detail="no memory")
    steps(below)
    (event,) = below.named("upstream_not_answered")
    assert event["detail"] == "0 uploads, quorum 1"
    assert above.coordinator.open is not None
    assert above.coordinator.open.failed == {"r": "relay r: 0 uploads, quorum 1"}
    play([above], [below], sites)
    assert above.coordinator.state is below.coordinator.state is RunState.COMPLETED
    assert above.rounds()[0]["phases"]["student"]["failed"].keys() == {"r"}
    assert above.rounds()[1]["phases"]["student"]["returned"] == ["c", "r"]


def test_too_few_clients_to_open_a_phase_are_reported_before_the_hubs_deadline(tmp_path: Path) -> None:
    above, below, sites = pair(tmp_path, **STUDENTS, heartbeat_limit_s=1000.0)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    sites[0].call("Leave")
    sites[1].call("Leave")
    steps(below)
    assert sites[2].poll().HasField("task")
    assert not below.named("upstream_not_answered")
    for node in (above, below):
        node.clock.now += 55.0
    steps(below)
    (event,) = below.named("upstream_not_answered")
    assert event["detail"] == "0 of 1 clients ready"
    assert above.coordinator.open is not None
    assert above.coordinator.open.failed == {"r": "relay r: 0 of 1 clients ready"}
    sites[2].do()
    assert above.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(48)
def test_fewer_clients_than_min_cohort_send_nothing_up(tmp_path: Path) -> None:
    """A sum of one is that one's upload: it stays here."""
    above = hub(tmp_path / "hub", **STUDENTS, min_clients=2)
    below = relay(tmp_path / "r", above, "r", 2, min_cohort=2, quorum=0.5)
    sites = [DataSite("a", below), DataSite("b", below), DataSite("c", above)]
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    sites[0].do()
    task = sites[1].poll().task
    sites[1].call("ReportFailure", key=task.key, detail="no memory")
    steps(below)
    below.clock.now += 60.0
    steps(below)
    assert below.method.answer_for(PhaseKey(1, STUDENT)) is None
    (event,) = below.named("upstream_not_answered")
    assert "quorum 2" in event["detail"] or "min_cohort is 2" in event["detail"]


@pytest.mark.scenario(48)
def test_a_class_that_fewer_than_min_cohort_clients_have_is_in_no_column_that_goes_up(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "rounds": 1, "correction": ("anchors",), "personal": (), "fusion": "class_aware", "min_clients": 2,
    }  # fmt: skip
    above = hub(tmp_path / "hub", **changes)
    below = relay(tmp_path / "r", above, "r", 2, min_cohort=2)
    sites = [DataSite("a", below, lacks=(2,)), DataSite("b", below), DataSite("c", above)]
    play([above], [below], sites, until=lambda: in_phase(below, 1, RESIDUALS))
    sites[0].do()
    sites[1].do()
    sent = below.method.answer_for(PhaseKey(1, RESIDUALS))
    assert sent is not None
    assert sent.blob is not None
    assert sent.class_counts[2] == 0
    assert sent.num_samples == sum(sent.class_counts) == sum(np.sum(site.labels < 2) for site in sites[:2])
    R = below.store.blobs.tensors(sent.blob.sha256)["residuals"]
    assert not R[:, 2].any()
    assert R[:, 0].any()
    steps(below)
    fused = above.method.state.parts()["fused_residuals"].sha256
    theirs = decode(above.store.blobs.read(fused))["fused_residuals"]
    np.testing.assert_allclose(theirs[:, 2], sites[2].residuals()[:, 2], rtol=1e-6)


@pytest.mark.scenario(48)
def test_no_name_of_a_relays_clients_goes_up(tmp_path: Path) -> None:
    """Nor in the words of signs of life and failures."""
    above = hub(tmp_path / "hub", **STUDENTS, min_clients=2)
    below = relay(tmp_path / "r", above, "r", 2, min_cohort=2)
    sites = [DataSite("hidden-1", below, 40), DataSite("hidden-2", below, 20), DataSite("c", above)]
    play([above], [below], sites, until=lambda: in_phase(below, 1, STUDENT))
    sites[0].do()
    below.link.step()
    link = below.link._connection
    assert link is not None
    assert link.session._work.activity == "1 of 2 answers in"
    task = sites[1].poll().task
    sites[1].n = 0
    sites[1].submit(task, "SubmitStudent", sites[1].trained(task), reliability=0.5)
    play([above], [below], sites, until=lambda: in_phase(above, 2, STUDENT))
    assert above.rounds()[0]["phases"]["student"]["failed"] == {
        "r": "relay r: too few of its clients' uploads may count"
    }
    assert below.wire.sent
    assert not any(b"hidden" in request for request in below.wire.sent)
