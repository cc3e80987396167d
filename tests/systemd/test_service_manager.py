from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fkd_common.service_manager import MAX_STATUS_BYTES, ServiceManager

from .notify_socket import NotifySocket


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[NotifySocket]:
    heard = NotifySocket.in_folder(tmp_path)
    yield heard
    heard.close()


def told(heard: NotifySocket) -> list[str]:
    heard.drain()
    return heard.texts


def test_each_state_is_told_once_and_a_status_when_it_changes(heard: NotifySocket) -> None:
    manager = ServiceManager(heard.address, watchdog_s=1.0)
    manager.status("waiting")
    manager.ready()
    manager.ready()
    manager.status("waiting")
    manager.alive()
    manager.alive()
    manager.stopping()
    manager.stopping()
    assert told(heard) == ["STATUS=waiting", "READY=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_what_a_peer_says_is_never_an_order_to_the_service_manager(heard: NotifySocket) -> None:
    ServiceManager(heard.address).status("waiting for b\nMAINPID=1\r\nWATCHDOG=trigger\0")
    (message,) = told(heard)
    assert "\n" not in message
    assert message.startswith("STATUS=waiting for b MAINPID=1")


def test_a_status_longer_than_systemd_takes_is_cut_between_characters(heard: NotifySocket) -> None:
    ServiceManager(heard.address).status("ü" * MAX_STATUS_BYTES)
    assert told(heard) == ["STATUS=" + "ü" * (MAX_STATUS_BYTES // 2)]


def test_an_abstract_socket_is_understood() -> None:
    heard = NotifySocket(f"@fkd-test-{os.getpid()}")
    ServiceManager(heard.address).ready()
    assert told(heard) == ["READY=1"]
    heard.close()


def test_a_service_manager_that_went_away_does_not_take_the_program_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ServiceManager(str(tmp_path / "nobody")).ready()
    assert "service_manager_unreachable" in capsys.readouterr().out


def test_the_environment_is_read_once_and_not_passed_on(
    heard: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    manager = ServiceManager.from_environment()
    assert manager.watchdog_s == 1.5
    manager.ready()
    assert told(heard) == ["READY=1"]
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


def test_another_processs_watchdog_is_not_fed(heard: NotifySocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    manager = ServiceManager.from_environment()
    manager.alive()
    assert (manager.watchdog_s, told(heard)) == (0.0, [])


def test_without_a_service_manager_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = ServiceManager.from_environment()
    for say in (manager.ready, manager.alive, manager.stopping):
        say()
    assert manager.watchdog_s == 0.0
