"""Who may import what: layers, no torch in the coordinator, no unpickler on the wire."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fkd_common.errors import ExitCode

ROOT = Path(__file__).parents[2]


def test_the_layers_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr


def test_the_coordinator_imports_neither_torch_nor_its_friends() -> None:
    command = (
        "import sys, fkd_server.cli\n"
        "heavy = {'torch', 'torchvision', 'lightgbm', 'sklearn', 'PIL', 'scipy', 'pandas', 'cryptography'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


UNSAFE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def unsafe_names(source: str) -> set[str]:
    """Names of unpicklers that Python code imports or refers to."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {node.value.id, f"{node.value.id}.{node.attr}"}
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            safe = node.arg == "weights_only"
            if not (isinstance(node.value, ast.Constant) and node.value.value is safe):
                found.add(f"{node.arg}=unsafe")
    return found & (UNSAFE | {"torch.load", "allow_pickle=unsafe", "weights_only=unsafe"})


@pytest.mark.scenario(19)
@pytest.mark.parametrize(
    "package", ["fkd_common", "fkd_server", "fkd_client", "fkd_relay", "fkd_shards", "fkd_bench"]
)
def test_nothing_unpickles(package: str) -> None:
    """Scenario 19. The published CIFAR files are pickles; one module reads them so that nothing can run."""
    exempt = {"fkd_shards/sources/inert_pickle.py"}
    for path in (ROOT / package).rglob("*.py"):
        if str(path.relative_to(ROOT)) not in exempt:
            assert unsafe_names(path.read_text()) == set(), path


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "torch.load(p)", "np.load(p, allow_pickle=True)"],
)
def test_the_scan_would_notice(source: str) -> None:
    assert unsafe_names(source)


@pytest.mark.parametrize(
    "module, arguments",
    [
        ("fkd_client.cli", ["--data", "x"]),
        ("fkd_bench.cli", ["run", "--data", "digits"]),
        (
            "fkd_shards.cli",
            [
                "create",
                "--source",
                "digits",
                "--clients",
                "2",
                "--partition",
                "iid",
                "--seed",
                "0",
                "--out",
                "never-made",
            ],
        ),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(module: str, arguments: list[str]) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['PIL'] = None; "
        f"from {module} import main; sys.exit(main({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "is not installed here: pip install 'fkd[" in done.stderr
    assert "Traceback" not in done.stderr
