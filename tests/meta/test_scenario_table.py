"""The table of scenarios must be able to fail: it is run on test files made to pass, fail, skip and be missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenarios import SCENARIOS

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.scenario_table import ScenarioTable, Seen
from tests.scenarios import Scenario
from pathlib import Path

def pytest_addoption(parser):
    parser.addoption("--scenario-json", type=Path)

def pytest_configure(config):
    config.addinivalue_line("markers", "scenario(number, ...): rows")
    rows = {1: Scenario("a fault", "an answer"), 2: Scenario("another", "another answer")}
    table = ScenarioTable(rows, demanded=True, json_path=config.getoption("--scenario-json"))
    config.pluginmanager.register(table)

@pytest.fixture
def seen(request):
    return Seen(request.node)
"""

BOTH_PASS = """
import pytest

@pytest.mark.scenario(1)
def test_first(seen):
    seen("FAILED_PRECONDITION ROUND_CLOSED")

@pytest.mark.scenario(1, 2)
@pytest.mark.parametrize("n", (1, 2))
def test_second_promise_is_kept(n):
    pass
"""


def run(pytester: pytest.Pytester, tests: str, *flags: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(tests)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *flags)


def test_every_row_has_a_passing_test_and_the_session_succeeds(pytester: pytest.Pytester) -> None:
    result = run(pytester, BOTH_PASS)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["*a fault*an answer*FAILED_PRECONDITION*pass", "*another*another answer*second promise is kept*pass"]
    )
    result.stdout.fnmatch_lines(["2 of 2 scenarios pass (3 tests)"])


def test_the_table_fits_100_columns(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, BOTH_PASS.replace('"FAILED', '"a long observation of many words, ' * 20 + '" "FAILED')
    )
    table = result.outlines[next(i for i, line in enumerate(result.outlines) if "expected" in line) :]
    assert max(map(len, table)) <= 100


def test_a_failing_row_is_named_and_fails_the_session(pytester: pytest.Pytester) -> None:
    result = run(pytester, BOTH_PASS.replace("    pass", "    assert n == 1"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*another*FAILED: test_second_promise_is*FAIL"])
    result.stdout.fnmatch_lines(["0 of 2 scenarios pass*; not: 1, 2"])


def test_a_row_without_a_test_fails_a_session_whose_tests_all_pass(pytester: pytest.Pytester) -> None:
    result = run(pytester, BOTH_PASS.replace("(1, 2)", "(1)", 1))
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*another*no test*FAIL", "1 of 2 scenarios pass*; not: 2"])


def test_a_skipped_test_covers_nothing(pytester: pytest.Pytester) -> None:
    result = run(pytester, BOTH_PASS.replace("    pass", "    pytest.skip('not here')"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*another*skipped*FAIL"])


def test_a_broken_fixture_fails_its_row(pytester: pytest.Pytester) -> None:
    broken = "\n@pytest.fixture\ndef n2():\n    raise OSError\n"
    result = run(pytester, BOTH_PASS + broken + "\n@pytest.mark.scenario(2)\ndef test_third(n2): pass\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*another*FAILED: test_third*FAIL"])


def test_a_number_outside_the_catalogue_is_a_usage_error(pytester: pytest.Pytester) -> None:
    assert run(pytester, BOTH_PASS.replace("(1, 2)", "(1, 99)", 1)).ret == pytest.ExitCode.USAGE_ERROR


def test_the_table_is_also_written_as_json(pytester: pytest.Pytester, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    run(pytester, BOTH_PASS, f"--scenario-json={path}")
    first, second = json.loads(path.read_text())
    assert first["seen"] == {"FAILED_PRECONDITION ROUND_CLOSED": 1} and first["passed"]
    assert len(second["tests"]) == 2


def test_the_catalogue_has_all_its_rows() -> None:
    assert list(SCENARIOS) == list(range(1, 49))


def test_refusals_a_test_expects_are_noted_by_status_and_reason(pytester: pytest.Pytester) -> None:
    tests = (
        BOTH_PASS
        + """
from fkd_common.errors import DataError, InvalidUploadError

@pytest.mark.scenario(2)
def test_refusals():
    with pytest.raises(InvalidUploadError):
        raise InvalidUploadError("wrong", reason="WRONG_SHAPE")
    with pytest.raises(DataError):
        raise DataError("wrong")
    pytest.raises(ValueError, int, "x")
"""
    )
    conftest = CONFTEST + "\nfrom tests.conftest import _note_refusals\n"
    pytester.makeconftest(conftest)
    pytester.makepyfile(tests)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*another*INVALID_ARGUMENT WRONG_SHAPE; exit*pass", "*3 BAD_DATA*"])
