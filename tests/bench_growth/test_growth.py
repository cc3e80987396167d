"""What the growth of a federation costs: sizes, exponents, and every part once on a small one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fkd_bench.cli import main
from fkd_bench.growth import Cost, Size, cost_of, exponents, sizes
from fkd_common.config import RunConfig


def test_every_number_grows_by_itself() -> None:
    found = sizes(2)
    assert len(found) == 1 + 4 * 2
    assert found[0] == Size()
    assert all(
        sum(vars(size)[name] != value for name, value in vars(Size()).items()) == 1 for size in found[1:]
    )
    assert found[2] == replace(Size(), clients=160)
    assert found[-1] == replace(Size(), dim=2048)


def test_exponents_are_those_of_the_cost() -> None:
    def of(size: Size) -> Cost:
        linear, square = float(size.clients), size.samples**2 * 1e-6
        return Cost(size, {"a": linear, "b": square, "short": 1e-6}, {})

    found = exponents([of(size) for size in sizes(2)])
    assert found["clients"] == {"a": 1.0, "b": 0.0}
    assert found["samples"] == {"a": 0.0, "b": 2.0}
    assert found["dim"] == {"a": 0.0, "b": 0.0}


def test_every_part_of_a_round_is_measured_and_more_clients_cost_the_coordinator_more() -> None:
    config = RunConfig(teacher_trees=2, residual_trees=2, hidden=(16, 8), dropout=(0.0, 0.0), local_steps=4)
    small, large = (cost_of(Size(clients, 60, 3, 32), config) for clients in (2, 6))
    assert set(small.cpu_s) == {
        *(f"client.{part}" for part in ("teacher", "student", "residuals", "moments", "gradient")),
        *(
            f"coordinator.{does}_{what}"
            for does in ("check", "fold")
            for what in ("student", "residuals", "moments", "gradient")
        ),
    }
    assert small.payload_bytes == large.payload_bytes
    assert small.payload_bytes["moments"] > small.payload_bytes["gradient"] > 0
    checked = [
        cost.cpu_s["coordinator.check_moments"] + cost.cpu_s["coordinator.check_student"]
        for cost in (small, large)
    ]
    assert checked[1] > checked[0]


def test_a_number_of_steps_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["growth", "--steps", "0"]) == 2
    printed = capsys.readouterr()
    assert "a whole number of at least 1 expected, got '0'" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not printed.out
