"""What a hub holds a relay to, and what it holds to sites alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.errors import InvalidUploadError, RefusedError, UsageError
from fkd_common.settings import load_settings
from fkd_common.tensors import encode
from fkd_server.settings import ServerSettings

from ..server.tiny import RESIDUALS, VOTES, TinyRun, filled, inline, tiny_run
from .tree import ANCHORS, STUDENTS, HandSite, hub, in_phase, register


def at_residuals(folder: Path, *, relay: bool) -> tuple[TinyRun, HandSite]:
    run = hub(folder, **{**STUDENTS, "correction": ("anchors",), "max_samples": 1000})
    site = register(run, "x", relay=relay)
    site.poll()
    site.submit_student(1, filled(run.method, 0.5), 100)
    assert in_phase(run, 1, RESIDUALS)
    return run, site


def submit_residuals(site: HandSite, n: int) -> None:
    upload = inline(encode({"residuals": np.ones((len(ANCHORS), 3), np.float32)}))
    site.call("SubmitResiduals", key=site.key(1, RESIDUALS), upload=upload, num_samples=n)


def test_only_a_relays_samples_may_change(tmp_path: Path) -> None:
    _, site = at_residuals(tmp_path / "site", relay=False)
    with pytest.raises(RefusedError, match="n_k was 100 and is now 60"):
        submit_residuals(site, 60)
    run, site = at_residuals(tmp_path / "relay", relay=True)
    submit_residuals(site, 60)
    assert run.coordinator.open is not None
    assert run.coordinator.open.key.phase == VOTES


@pytest.mark.scenario(13)
def test_a_relay_is_held_to_max_samples_as_a_whole(tmp_path: Path) -> None:
    _, site = at_residuals(tmp_path, relay=True)
    with pytest.raises(InvalidUploadError, match="max_samples"):
        submit_residuals(site, 1001)


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)])
def test_who_has_taken_part_as_one_kind_does_not_come_back_as_the_other(
    tmp_path: Path, first: bool, then: bool
) -> None:
    run, _ = at_residuals(tmp_path, relay=first)
    with pytest.raises(RefusedError) as error:
        register(run, "x", relay=then)
    assert error.value.reason == "ANOTHER_KIND"
    after = tiny_run(run.blobs.parent, anchors=ANCHORS, classes=run.method.classes, **_changes(run))
    with pytest.raises(RefusedError):
        register(after, "x", relay=then)
    register(after, "x", relay=first)


def _changes(run: TinyRun) -> dict[str, Any]:
    return run.method.config.model_dump()


def test_a_name_that_no_relay_can_have_is_refused() -> None:
    assert load_settings(ServerSettings, "fkd-server", ["--relays", "north,south"]).relays == (
        "north",
        "south",
    )
    with pytest.raises(UsageError, match=r"relays = .*nor/th"):
        load_settings(ServerSettings, "fkd-server", ["--relays", "south,nor/th"])


@pytest.mark.scenario(47)
def test_who_is_not_named_with_relays_is_none(tmp_path: Path) -> None:
    run = hub(tmp_path, **STUDENTS)
    run.service._relays = ("north",)
    register(run, "north", relay=True)
    with pytest.raises(RefusedError, match="named with --relays") as error:
        register(run, "x", relay=True)
    assert error.value.reason == "NO_RELAY"
    register(run, "x", relay=False)
