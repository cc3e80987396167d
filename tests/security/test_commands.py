"""`fkd-server certs` and `token`, and the flags that use what they make: what a person types and reads."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import time_machine
from cryptography import x509

from fkd_client.cli import main as client_main
from fkd_common.access.certificates import CLIENT_FILES, SERVER_FILES, Credentials, holder_of
from fkd_common.access.roles import Role
from fkd_common.errors import ExitCode, UsageError
from fkd_server.access.certificates import new_key
from fkd_server.access.host_names import hosts_of
from fkd_server.access.revocation import RevokedList
from fkd_server.cli import main
from fkd_server.settings import ServerSettings

from .conftest import HOSTS, Pki

Words = Callable[..., list[str]]


@pytest.fixture
def words(capsys: pytest.CaptureFixture[str]) -> Words:
    """Runs `fkd-server` commands that succeed; their lines of output."""

    def run(*arguments: str | Path) -> list[str]:
        assert main([str(argument) for argument in arguments]) == ExitCode.OK
        return capsys.readouterr().out.splitlines()

    return run


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str | Path, of: Callable[..., int] = main) -> str:
    """The sentence that a mistaken command ends with."""
    assert of([str(argument) for argument in arguments]) == ExitCode.USAGE
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert "Traceback" not in error
    return error


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_three_commands_make_a_federation(tmp_path: Path, words: Words) -> None:
    tls, site, desk = tmp_path / "tls", tmp_path / "shard3", tmp_path / "alice"
    words("certs", "init", "--tls", tls, "--host", "fkd.example.org", "--host", "192.0.2.1")
    words("certs", "issue", "shard3", "--tls", tls, "--out", site)
    words("certs", "issue", "alice", "--role", "operator", "--tls", tls, "--out", desk, "--days", "7")
    server = Credentials.read(tls, SERVER_FILES).certificate
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fkd.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1"]
    client, operator = (
        holder_of(Credentials.read(folder, CLIENT_FILES).certificate) for folder in (site, desk)
    )
    assert (client.role, client.name) == (Role.CLIENT, "shard3")
    assert (operator.role, operator.name) == (Role.OPERATOR, "alice")
    assert (operator.not_after - operator.not_before).days == 7


def test_keys_are_for_their_owners_eyes(tmp_path: Path, words: Words) -> None:
    words("certs", "init", "--tls", tmp_path / "tls")
    words("certs", "issue", "a", "--tls", tmp_path / "tls", "--out", tmp_path / "a")
    keys = [tmp_path / "tls/ca.key", tmp_path / "tls/server.key", tmp_path / "a/key.pem"]
    assert {mode_of(key) for key in keys} == {0o600}
    assert {mode_of(folder) for folder in (tmp_path / "tls", tmp_path / "a")} == {0o700}
    authority_key = (tmp_path / "tls/ca.key").read_bytes()
    assert authority_key not in b"".join(path.read_bytes() for path in (tmp_path / "a").iterdir())


def test_this_machine_is_what_a_certificate_is_for_unless_told(tmp_path: Path, words: Words) -> None:
    words("certs", "init", "--tls", tmp_path / "tls")
    server = Credentials.read(tmp_path / "tls", SERVER_FILES).certificate
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_the_folder_can_come_from_the_environment(
    tmp_path: Path, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FKD_TLS", str(tmp_path / "tls"))
    words("certs", "init")
    assert (tmp_path / "tls/ca.pem").exists()


def test_the_list_tells_what_counts(pki: Pki, words: Words) -> None:
    pki.holder("b")
    pki.holder("a", days=-0.001)
    pki.holder("alice", Role.OPERATOR)
    words("certs", "revoke", "b", "--tls", pki.folder)
    pki.holder("b", folder="b-again")
    listed = sorted(line.split()[:3] for line in words("certs", "list", "--tls", pki.folder))
    assert [line[:2] for line in listed if line[0] in ("authority", "coordinator")] == [
        ["authority", "valid"],
        ["coordinator", "valid"],
    ]
    assert [line for line in listed if line[0] not in ("authority", "coordinator")] == [
        ["a", "client", "expired"],
        ["alice", "operator", "valid"],
        ["b", "client", "revoked"],
        ["b", "client", "valid"],
    ]


def test_a_certificate_made_elsewhere_is_revoked_by_its_number(pki: Pki, words: Words) -> None:
    words("certs", "revoke", "--serial", "AB:CD", "--tls", pki.folder)
    assert (pki.folder / "revoked").read_text().startswith("abcd ")


def test_renewal_keeps_key_and_names_and_adds_those_it_is_given(pki: Pki, words: Words) -> None:
    """A client that is told to have a name added must not cost the others theirs."""
    before = Credentials.read(pki.folder, SERVER_FILES)
    words("certs", "renew", "--tls", pki.folder)
    kept = Credentials.read(pki.folder, SERVER_FILES)
    said = words("certs", "renew", "--host", "hub.example.org", "--host", HOSTS[0], "--tls", pki.folder)
    more = Credentials.read(pki.folder, SERVER_FILES)
    assert kept.certificate.serial_number != before.certificate.serial_number
    assert (hosts_of(kept.certificate), kept.key) == (HOSTS, before.key)
    assert (hosts_of(more.certificate), more.key) == ((*HOSTS, "hub.example.org"), before.key)
    assert said[1] == f"  it is for {', '.join((*HOSTS, 'hub.example.org'))}"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "empty"])
@pytest.mark.parametrize("name", ["server.pem", "server.key"])
def test_a_lost_certificate_or_key_of_the_coordinator_is_made_anew(
    pki: Pki, words: Words, capsys: pytest.CaptureFixture[str], name: str, spoil: Callable[[Path], object]
) -> None:
    spoil(pki.folder / name)
    if name == "server.pem":
        assert "--host" in mistake(capsys, "certs", "renew", "--tls", pki.folder)
    said = words("certs", "renew", "--host", "localhost", "--tls", pki.folder)
    assert "localhost" in hosts_of(Credentials.read(pki.folder, SERVER_FILES).certificate)
    assert any("new one" in line for line in said) is (name == "server.key")
    assert mode_of(pki.folder / "server.key") == 0o600


def test_a_certificate_whose_copy_is_damaged_is_listed_and_revoked(pki: Pki, words: Words) -> None:
    """Its file's name says whose it is and which."""
    certificate = Credentials.read(pki.holder("site-a"), CLIENT_FILES).certificate
    (copy,) = (pki.folder / "issued").iterdir()
    copy.write_bytes(b"")
    assert words("certs", "list", "--tls", pki.folder)[-1] == f"site-a  damaged  {copy}"
    words("certs", "revoke", "site-a", "--tls", pki.folder)
    assert certificate.serial_number in RevokedList(pki.folder)
    assert words("certs", "list", "--tls", pki.folder)[-1] == f"site-a  damaged, revoked  {copy}"


def test_revoking_a_name_does_not_succeed_while_a_copy_tells_nothing(
    pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    serial = Credentials.read(pki.holder("a"), CLIENT_FILES).certificate.serial_number
    (pki.folder / "issued" / "lost.pem").write_text("once a certificate of a")
    assert main(["certs", "revoke", "a", "--tls", str(pki.folder)]) == ExitCode.DATA
    said = capsys.readouterr()
    assert "revoked:" not in said.out
    assert "issued/lost.pem" in said.err
    assert serial in RevokedList(pki.folder)  # what can be revoked is


def test_nothing_is_revoked_in_a_list_that_a_coordinator_cannot_read(
    pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator goes on with what it knew: whatever is added to such a list does not count."""
    pki.holder("a")
    (pki.folder / "revoked").write_text("the old laptop\n")
    for what in (["a"], ["--serial", "ab12"]):
        assert main(["certs", "revoke", *what, "--tls", str(pki.folder)]) == ExitCode.DATA
        assert "one hexadecimal serial number per line" in " ".join(capsys.readouterr().err.split())
    assert (pki.folder / "revoked").read_text() == "the old laptop\n"


def test_no_certificate_outlives_the_authority(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    end = pki.authority.certificate.not_valid_after_utc
    for days in ("99999", "1e300", "inf", "nan"):
        error = mistake(capsys, "certs", "issue", "a", "--days", days, "--tls", pki.folder)
        assert f"{end:%Y-%m-%d}" in error
    with time_machine.travel(end - timedelta(days=9)):
        assert pki.authority.issue(new_key().public_key(), Role.CLIENT, "a").not_valid_after_utc == end
    with time_machine.travel(end + timedelta(days=1)):
        assert "certs init" in mistake(capsys, "certs", "issue", "a", "--tls", pki.folder)


def test_tokens_are_listed_without_their_text(pki: Pki, words: Words) -> None:
    (token,) = words("token", "create", "a", "--valid", "30m", "--tls", pki.folder)
    assert token.startswith("fkd-join.")
    (line,) = words("token", "list", "--tls", pki.folder)
    assert re.fullmatch(r"a  waiting  until \d{4}-\d\d-\d\d \d\d:\d\d UTC  [0-9a-f]{12}", line)
    words("token", "revoke", line.split()[-1], "--tls", pki.folder)
    assert words("token", "list", "--tls", pki.folder) == [f"{pki.folder}: no tokens"]
    (pki.folder / "tokens" / "0123456789abcdef.json").write_text("{")
    assert words("token", "list", "--tls", pki.folder) == ["?  damaged  0123456789ab"]
    words("token", "revoke", "0123456789ab", "--tls", pki.folder)
    assert words("token", "list", "--tls", pki.folder) == [f"{pki.folder}: no tokens"]


def test_a_token_in_a_file_is_for_its_maker_alone(pki: Pki, words: Words, tmp_path: Path) -> None:
    file = tmp_path / "a.token"
    words("token", "create", "a", "--tls", pki.folder, "--out", file)
    assert mode_of(file) == 0o600
    assert file.read_text().startswith("fkd-join.")


def test_a_token_that_cannot_be_made_leaves_no_file(
    pki: Pki, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.token"
    mistake(capsys, "token", "create", "a b", "--tls", pki.folder, "--out", file)
    assert not file.exists()
    file.write_text("mine")
    assert "a.token" in mistake(capsys, "token", "create", "a", "--tls", pki.folder, "--out", file)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["certs", "init"], "not overwritten"),
        (["certs", "issue", "../x"], "letters, digits"),
        (["certs", "issue", "a", "--days", "0"], "--days"),
        (["certs", "revoke", "nobody"], "nobody"),
        (["certs", "revoke"], "--serial"),
        (["certs", "revoke", "--serial", "xyz"], "hexadecimal"),
        (["certs", "revoke", "--serial", "::"], "hexadecimal"),
        (["certs", "init"], "certs renew --host"),
        (["certs", "issue", "a", "--role", "boss"], "operator"),
        (["certs", "issue", "a", "--days", "long"], "--days"),
        (["certs", "issue"], "name"),
        (["certs", "isue"], "issue"),
        (["certs"], "VERB"),
        *(
            (["certs", verb, "--host", host], "--host")
            for verb in ("renew", "init")
            for host in ("ü", "hub:50051", "bad host!", "10.0.0.300", "", "-x", "a..b", "a" * 300)
        ),
        (["token", "create", "a b"], "letters, digits"),
        (["token", "create", "a", "--valid", "soon"], "24h"),
        (["token", "create", "a", "--valid", "0m"], "more than 0"),
        (["token", "create", "a", "--valid", "9999999999d"], "at most 365d"),
        (["token", "creat", "a"], "create"),
        (["token", "revoke", "nobody"], "nobody"),
    ],
)
def test_a_mistake_is_one_sentence(
    pki: Pki, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    before = {path.name for path in pki.folder.iterdir()}
    assert named in mistake(capsys, *arguments, "--tls", pki.folder)
    assert {path.name for path in pki.folder.iterdir()} == before


@pytest.mark.parametrize("file", ["ca.pem", "ca.key"])
@pytest.mark.parametrize("command", [["certs", "issue", "a"], ["token", "create", "a"], ["certs", "renew"]])
def test_a_damaged_authority_is_named_and_not_taken_for_none(
    pki: Pki, capsys: pytest.CaptureFixture[str], command: list[str], file: str
) -> None:
    (pki.folder / file).write_text("")
    error = mistake(capsys, *command, "--tls", pki.folder)
    assert f"{pki.folder / file} is damaged: put back a copy" in error


VERBS = [
    ["certs", "init"], ["certs", "issue", "a"], ["certs", "renew"], ["certs", "revoke", "a"], ["certs", "list"],
    ["certs", "revoke", "--serial", "ab"], ["token", "create", "a"], ["token", "list"], ["token", "revoke", "a"],
]  # fmt: skip


@pytest.mark.parametrize("command", VERBS, ids=" ".join)
@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], command: list[str], folder: str
) -> None:
    assert folder in mistake(capsys, *command, "--tls", folder)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["statuss"], "did you mean status?"),
        (["serve"], "expected prepare, doctor, export, certs"),
        (["status", "--server", "hub"], "HOST:PORT"),
        (["stop", "now"], "now"),
        (["doctor", "--mend"], "--mend"),
        (["prepare", "--seed", "x", "--anchors", "a", "--out", "b"], "--seed"),
    ],
)
def test_a_mistyped_command_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert named in mistake(capsys, *arguments)


def test_nothing_is_overwritten(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pki.holder("a")
    before = (folder / "key.pem").read_bytes()
    error = mistake(capsys, "certs", "issue", "a", "--tls", pki.folder, "--out", folder)
    assert "not overwritten" in error
    assert (folder / "key.pem").read_bytes() == before


@pytest.mark.parametrize("command", [["certs", "issue", "a"], ["token", "create", "a"], ["certs", "renew"]])
def test_without_an_authority_the_command_that_makes_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert "fkd-server certs init" in mistake(capsys, *command, "--tls", tmp_path / "none")


# -- starting with them ---------------------------------------------------------------------------


def test_the_coordinator_is_reachable_from_elsewhere_only_with_tls(pki: Pki) -> None:
    """Scenario 32: plain text beyond loopback needs --insecure, in so many words."""
    assert ServerSettings().listen_host() == "127.0.0.1"
    assert ServerSettings(tls=pki.folder).listen_host() == "0.0.0.0"
    assert ServerSettings(tls=pki.folder, host="192.0.2.1").listen_host() == "192.0.2.1"
    assert ServerSettings(host="0.0.0.0", insecure=True).listen_host() == "0.0.0.0"
    with pytest.raises(UsageError, match="certs init"):
        ServerSettings(host="0.0.0.0").listen_host()


def test_a_coordinator_without_certificates_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "certs init" in mistake(capsys, "--tls", tmp_path, "--port", "0", "--runs", tmp_path / "run")


def test_a_port_for_tokens_needs_an_authority(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    (pki.folder / "ca.key").unlink()
    error = mistake(capsys, "--tls", pki.folder, "--port", "0", "--join-port", "50099")
    assert "certs init" in error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--join", "x"], "--tls"),
        (["--tls", "{folder}", "--name", "b"], "a's"),
        (["--tls", "{folder}", "--insecure"], "--insecure"),
        (["--tls", "{folder}/none"], "--join"),
        (["--tls", "{folder}/none", "--join", "x"], "fkd-server token create"),
    ],
)
def test_flags_of_a_client_that_contradict_each_other_are_named(
    pki: Pki, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    folder = pki.holder("a")
    given = [argument.format(folder=folder) for argument in arguments]
    assert named in mistake(capsys, "--data", "x", *given, of=client_main)


def test_a_printed_configuration_keeps_the_token_to_itself(
    pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", "x", "--tls", "there", "--join", "fkd-join.SECRET", "--print-config"]
    assert client_main(arguments) == ExitCode.OK
    assert "SECRET" not in capsys.readouterr().out
