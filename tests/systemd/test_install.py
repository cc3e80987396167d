from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from fkd_common.errors import InvalidUploadError
from fkd_common.identifiers import check_client_name

from .units import install

HERE = {"FKD_BIN": str(Path(sys.executable).parent)}


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes of every file below a folder."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): (path.stat().st_mode & 0o777, path.read_bytes())
        for path in sorted(files)
    }


def test_installing_again_changes_nothing_and_says_so(tmp_path: Path) -> None:
    for arguments in (["server"], ["client", "a", "site-b"]):
        first = install(*arguments, "--root", tmp_path, **HERE)
        assert first.returncode == 0, first.stderr
        before = content(tmp_path)
        again = install(*arguments, "--root", tmp_path, **HERE)
        assert again.stdout == "install.sh: nothing to do\n"
        assert content(tmp_path) == before
    assert {"etc/fkd/client-a.env", "etc/fkd/client-site-b.env"} <= set(before)
    assert b"FKD_DATA=/srv/fkd/site-b\n" in before["etc/fkd/client-site-b.env"][1]
    assert before["etc/fkd/server.env"][0] == 0o600
    assert f"ExecStart={HERE['FKD_BIN']}/fkd-server".encode() in before[f"{UNITS}/fkd-server.service"][1]


UNITS = "etc/systemd/system"


def test_a_changed_unit_is_replaced_and_an_edited_setting_is_not(tmp_path: Path) -> None:
    install("server", "--root", tmp_path, **HERE)
    unit, settings = tmp_path / UNITS / "fkd-server.service", tmp_path / "etc/fkd/server.env"
    shipped = unit.read_bytes()
    unit.write_text("[Service]\n")
    settings.write_text("FKD_PORT=1\n")
    again = install("server", "--root", tmp_path, **HERE)
    assert f"wrote {unit}" in again.stdout
    assert unit.read_bytes() == shipped
    assert settings.read_text() == "FKD_PORT=1\n"


def test_uninstalling_keeps_what_the_operator_and_the_run_made_and_installing_takes_it_up(
    tmp_path: Path,
) -> None:
    install("server", "--root", tmp_path, **HERE)
    install("client", "a", "b", "--root", tmp_path, **HERE)
    mine = {
        "etc/fkd/client-a.env": "FKD_DATA=/mine\n",
        "etc/fkd/tls/ca.key": "a key\n",
        "var/lib/private/fkd-server/run/r/state.db": "a run\n",
        "var/lib/private/fkd-client/a/run/r/model.safetensors": "a model\n",
    }
    for name, text in mine.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    for arguments in (["client", "a"], ["server"]):
        done = install(*arguments, "--root", tmp_path, "--uninstall")
        assert done.returncode == 0, done.stderr
    left = set(content(tmp_path))
    assert f"{UNITS}/fkd-client@.service" in left  # of b
    assert f"{UNITS}/fkd-server.service" not in left
    assert set(mine) - {"etc/fkd/client-a.env"} <= left

    install("client", "b", "--root", tmp_path, "--uninstall")
    assert not [name for name in content(tmp_path) if name.startswith((UNITS, "usr"))]
    assert install("client", "b", "--root", tmp_path, "--uninstall").stdout == "install.sh: nothing to do\n"

    install("client", "a", "--root", tmp_path, **HERE)
    assert (tmp_path / "etc/fkd/client-a.env").read_text() == mine["etc/fkd/client-a.env"]


def test_purging_takes_settings_and_state_but_no_keys(tmp_path: Path) -> None:
    install("server", "--root", tmp_path, **HERE)
    install("client", "a", "--root", tmp_path, **HERE)
    kept = tmp_path / "etc/fkd/tls/ca.key"
    for path in (
        kept,
        tmp_path / "var/lib/private/fkd-server/state.db",
        tmp_path / "var/cache/private/fkd-client/a/x",
    ):
        path.parent.mkdir(parents=True)
        path.write_text("here")
    for arguments in (["server"], ["client", "a"]):
        assert install(*arguments, "--root", tmp_path, "--uninstall", "--purge").returncode == 0
    assert set(content(tmp_path)) == {str(kept.relative_to(tmp_path))}


def test_programs_are_installed_from_a_wheel_once_and_again_when_it_differs(tmp_path: Path) -> None:
    """Below a folder of other things, under a strict umask: programs are for all, those things stay private."""
    root, wheel = tmp_path / "root", tmp_path / "fkd-0.0.1-py3-none-any.whl"
    key = root / "home/alice/.ssh/id_ed25519"
    key.parent.mkdir(parents=True)
    key.write_text("a key")
    key.chmod(0o600)
    key.parent.chmod(0o700)
    (root / "home/alice/elsewhere").symlink_to(key)
    before = modes(root / "home/alice")

    write_wheel(wheel, "print('one')")
    asked = ["server", "--root", root, "--source", wheel, "--prefix", "/home/alice/opt"]
    first = install(*asked, umask=0o077)
    assert first.returncode == 0, first.stderr
    after = modes(root / "home/alice")
    assert {path: mode for path, mode in after.items() if not path.startswith("opt")} == before
    assert not [path for path, mode in after.items() if path.startswith("opt") and mode & 0o004 == 0]
    program = root / "home/alice/opt/venv/bin/fkd-server"
    assert program.stat().st_mode & 0o777 == 0o755
    assert program.read_text().startswith("#!/home/alice/opt/venv/bin/python")
    assert (
        "ExecStart=/home/alice/opt/venv/bin/fkd-server\n" in (root / UNITS / "fkd-server.service").read_text()
    )
    assert install(*asked).stdout == "install.sh: nothing to do\n"

    write_wheel(wheel, "print('two')")
    assert "installing fkd into" in install(*asked).stdout
    (module,) = root.rglob("site-packages/fkd_stub.py")
    assert "two" in module.read_text()
    install(*asked, "--uninstall", "--purge")
    assert modes(root / "home/alice") == before


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mode for path in root.rglob("*")}


def test_a_folder_that_the_services_cannot_enter_is_refused_and_stays_closed(tmp_path: Path) -> None:
    private = tmp_path / "home/alice"
    private.mkdir(parents=True)
    private.chmod(0o700)
    done = install("server", "--root", tmp_path, "--prefix", "/home/alice/fkd")
    assert (done.returncode, done.stdout) == (2, "")
    assert "/home/alice cannot be entered by everybody" in done.stderr
    assert private.stat().st_mode & 0o777 == 0o700 and not list(private.iterdir())


@pytest.mark.parametrize("link", [False, True])
def test_a_virtual_environment_that_was_there_is_neither_used_nor_removed(tmp_path: Path, link: bool) -> None:
    mine = tmp_path / "opt/fkd/venv"
    real = tmp_path / "mine" if link else mine
    (real / "bin").mkdir(parents=True)
    (real / "bin/python3").symlink_to(sys.executable)
    if link:
        mine.parent.mkdir(parents=True)
        mine.symlink_to(real)
    done = install("server", "--root", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "was not made by install.sh" in done.stderr
    install("server", "--root", tmp_path, "--uninstall", "--purge")
    assert (real / "bin/python3").exists()


def write_wheel(path: Path, body: str) -> None:
    """A wheel by the name of this project with a program and no needs."""
    files = {
        "fkd_stub.py": f"def main():\n    {body}\n",
        "fkd-0.0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: fkd\nVersion: 0.0.1\n",
        "fkd-0.0.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "fkd-0.0.1.dist-info/entry_points.txt": "[console_scripts]\nfkd-server = fkd_stub:main\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digest},{len(files[name])}\n" for name, digest in digests.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "fkd-0.0.1.dist-info/RECORD": record}.items():
            archive.writestr(name, text)


NAMES = [
    "a",
    "Site-1.b_c",
    "7",
    "x" * 64,
    "x" * 65,
    "*",
    "x y",
    "a;id",
    "a\nb",
    "a\x1b[2Jb",
    "\u00e9",
    "a\u00e9",
    "",
    ".a",
    "a/b",
    "a\n",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_site_is_installed_under_a_name_that_the_coordinator_takes_and_under_no_other(
    tmp_path: Path, name: str
) -> None:
    root, folder = tmp_path / "root", tmp_path / "here"
    folder.mkdir()
    for file in ("hospital-a", "hospital-b"):
        (folder / file).touch()  # what a name that is taken for a pattern would match
    done = install("client", name, "--root", root, cwd=folder, **HERE)
    try:
        check_client_name(name)
    except InvalidUploadError:
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot be a client's name" in done.stderr
        assert len(done.stderr.splitlines()) == 1 and "\x1b" not in done.stderr
        assert not root.exists()
    else:
        assert done.returncode == 0, done.stderr
        assert [path.name for path in (root / "etc/fkd").iterdir()] == [f"client-{name}.env"]


def test_settings_that_are_a_link_belong_to_the_operator_even_if_it_leads_nowhere_yet(tmp_path: Path) -> None:
    settings = tmp_path / "etc/fkd/client-a.env"
    settings.parent.mkdir(parents=True)
    settings.symlink_to("/nonexistent/a.env")
    assert install("client", "a", "--root", tmp_path, **HERE).returncode == 0
    assert settings.is_symlink()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected server, or client and names"),
        (["sever"], "expected server or client, got sever"),
        (["server", "a"], "server takes no names"),
        (["client"], "client needs the name"),
        (["client", "../a"], "'../a' cannot be a client's name"),
        (["server", "--prefix"], "--prefix needs a value"),
        (["server", "--prefix", "opt"], "expected an absolute path"),
        (["server", "--prefix", "/opt/a b"], "expected letters"),
        (["server", "--frobnicate"], "unknown option --frobnicate"),
        (["server", "--purge"], "--purge goes with --uninstall"),
        (["server", "--root", "/tmp/a b"], "--root /tmp/a b: expected letters"),
        (["server", "--source", "/nowhere"], "--source /nowhere: expected a checkout or a wheel"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence_and_changes_nothing(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = install("--root", tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_programs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    done = install("server", "--root", tmp_path, FKD_BIN="/nowhere")
    assert done.returncode == 2
    assert "there is no program fkd-server" in done.stderr
