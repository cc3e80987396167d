"""Lines about callers that misbehave: enough to notice, too few to drown in."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from fkd_common.errors import ForbiddenError
from fkd_common.rpc import ADMIN_METHODS
from fkd_server.access.identity import UNPROVEN
from fkd_server.complaints import AT_ONCE, EVERY_S, MAX_REMEMBERED, Complaints, network_of

from .tiny import TinyRun


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_few_are_said_at_once_and_then_one_now_and_then_which_counts_the_rest() -> None:
    clock = Clock()
    complaints = Complaints(clock)
    with capture_logs() as lines:
        for _ in range(1000):
            complaints.warning("look_refused", "10.0.0.1", reason="X")
        assert len(lines) == AT_ONCE
        clock.now += EVERY_S
        complaints.warning("look_refused", "10.0.0.1", reason="X")
        complaints.warning("look_refused", "10.0.0.1", reason="X")
    assert lines[-1] == {
        "event": "look_refused",
        "log_level": "warning",
        "address": "10.0.0.1",
        "reason": "X",
        "more": 1000 - AT_ONCE,
    }
    assert len(lines) == AT_ONCE + 1


def test_others_and_other_events_are_not_hidden() -> None:
    complaints = Complaints(Clock())
    with capture_logs() as lines:
        for _ in range(100):
            complaints.warning("look_refused", "10.0.0.1")
        complaints.warning("look_refused", "10.0.0.2")
        complaints.warning("bad_request", "10.0.0.1")
    assert [(line["event"], line["address"]) for line in lines[AT_ONCE:]] == [
        ("look_refused", "10.0.0.2"),
        ("bad_request", "10.0.0.1"),
    ]


def test_whoever_has_a_network_of_addresses_is_one_caller() -> None:
    complaints = Complaints(Clock())
    with capture_logs() as lines:
        for number in range(100):
            complaints.warning("look_refused", f"2001:db8::{number:x}")
    assert len(lines) == AT_ONCE


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix:", "unix:"),
    ],
)
def test_addresses_of_every_kind_have_a_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_what_is_remembered_is_bounded() -> None:
    complaints = Complaints(Clock())
    with capture_logs():
        for number in range(MAX_REMEMBERED + 100):
            complaints.warning("look_refused", f"host-{number}")
    assert len(complaints._said) == MAX_REMEMBERED


def test_an_operator_that_is_none_leaves_a_few_lines(run: TinyRun) -> None:
    with capture_logs() as lines:
        for _ in range(200):
            with pytest.raises(ForbiddenError):
                run.admin.operator(ADMIN_METHODS["Status"], UNPROVEN, "10.0.0.1")
    assert [line["event"] for line in lines] == ["admin_denied"] * AT_ONCE
