"""Methods by name: what is wrong with one that somebody has installed, or not, is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.config import RunConfig
from fkd_common.errors import UsageError
from fkd_common.exchange_method import ExchangeMethod
from fkd_common.method_registry import exchange_method, ignored_keys

from .plain import PLAIN, Plain, install

UNFINISHED = type("Unfinished", (ExchangeMethod,), {"title": "Unfinished", "source": "nowhere"})
OLD = type("Old", (Plain,), {"Options": dict})
HERE = __name__


def plain(**keys: object) -> RunConfig:
    return RunConfig(**{"method": PLAIN, **keys})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ([f"{HERE}:Absent"], "cannot be loaded: AttributeError: module 'tests.methods.test_registry' has no attribute"),
        (["nowhere.at_all:Plain"], "cannot be loaded: No module named 'nowhere'; pip install its package"),
        (["broken_method:Plain"], r"cannot be loaded: SyntaxError: '\(' was never closed"),
        ([f"{HERE}:UNFINISHED"], "lacks aggregate, local_update, scores, start, upload_layout$"),
        ([f"{HERE}:PLAIN"], "is no ExchangeMethod"),
        ([f"{HERE}:OLD"], "its Options are no fkd_common.exchange_method.Options"),
        (["tests.methods.plain:Plain", f"{HERE}:OLD"], f"is there twice, as .* and {HERE}:OLD: uninstall one"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_installed_method_is_one_sentence(
    offered: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_method.py").write_text("class Plain(\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, *offered)
    with pytest.raises(UsageError, match=f"^method 'plain' .*{said}"):
        exchange_method(plain())


def test_a_method_that_is_not_here_is_named_with_its_entry_point() -> None:
    with pytest.raises(UsageError, match=r"install the package with the entry point plain of fkd\.methods"):
        exchange_method(plain())


def test_keys_that_only_fkd_rtm_reads_are_named_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert ignored_keys(plain(rounds=3, lr=0.1, personal=(), report_personal=True)) == ()
    assert ignored_keys(plain(residual_every=3, refine_steps=1, eps=1e-6)) == (
        "refine_steps",
        "residual_every",
    )
    assert ignored_keys(RunConfig(residual_every=3)) == ()


def test_a_key_that_was_meant_as_an_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(UsageError, match=r"beta is a key of fkd-rtm: for plain say --options beta=0\.8"):
        ignored_keys(plain(beta=0.8))
