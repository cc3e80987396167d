"""Client names and run ids."""

from __future__ import annotations

import re

import pytest

from fkd_common.errors import InvalidUploadError
from fkd_common.identifiers import check_client_name, new_run_id


@pytest.mark.parametrize("name", ["a", "shard3", "site-7_b.example", "0", "x" * 64])
def test_plain_names_are_taken_as_they_are(name: str) -> None:
    assert check_client_name(name) == name


@pytest.mark.scenario(20)
@pytest.mark.parametrize(
    "name", ["", "x" * 65, "../x", ".hidden", "-flag", "a/b", "a b", "a\n", "a\x00", "é", "x" * 1_000_000]
)
def test_names_that_could_escape_a_file_name_are_refused(name: str) -> None:
    """Scenario 20."""
    with pytest.raises(InvalidUploadError) as refused:
        check_client_name(name)
    assert refused.value.reason == "BAD_NAME"
    assert len(str(refused.value)) < 500


def test_run_ids_are_sortable_and_differ() -> None:
    ids = {new_run_id() for _ in range(8)}
    assert len(ids) == 8
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", run_id) for run_id in ids)
