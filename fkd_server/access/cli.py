"""`fkd-server certs ...` and `fkd-server token ...`: flags to the authority and its tokens; talks to nobody."""

from __future__ import annotations

import argparse
import errno
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from fkd_common.access.certificates import fingerprint, utc_now
from fkd_common.access.roles import Role
from fkd_common.errors import ExitCode, UsageError
from fkd_common.given_path import given_path
from fkd_common.program import OneSentenceParser
from fkd_server.access.certificates import (
    CLIENT_DAYS,
    SERVER_FILE,
    SERVER_KEY_FILE,
    CertificateAuthority,
    own_certificates,
)
from fkd_server.access.host_names import default_hosts, hosts_of
from fkd_server.access.join_tokens import TokenStore
from fkd_server.access.records import issued_in, revoke
from fkd_server.access.revocation import RevokedList

DEFAULT_FOLDER = "tls"
MAX_TOKEN_DAYS = 365
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What goes wrong with a disk, whatever it was asked for."""


def certs(arguments: list[str]) -> int:
    """`fkd-server certs VERB ...`; returns the exit code."""
    parser = OneSentenceParser(
        prog="fkd-server certs", description="Make, list and revoke the certificates of one coordinator."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = _verb(verbs, "init", "make an authority and the coordinator's certificate")
    issue = _verb(verbs, "issue", "make a folder of credentials for one client or operator")
    renew = _verb(verbs, "renew", "replace the coordinator's certificate; a running one picks it up")
    gone = _verb(verbs, "revoke", "refuse all certificates of a name, from the next call on")
    _verb(verbs, "list", "show the certificates of clients and operators")
    for verb, text in ((init, "name or address under which clients reach it"), (renew, "one more of them")):
        verb.add_argument("--host", action="append", default=[], help=f"{text}; repeat for more")
    issue.add_argument("name", help="the client's id in every run, or the operator's name")
    issue.add_argument("--role", choices=[role.value for role in Role], default=Role.CLIENT.value)
    issue.add_argument("--out", type=given_path, help="folder to make (default: NAME)")
    issue.add_argument("--days", type=float, help=f"validity in days (default: {CLIENT_DAYS})")
    gone.add_argument("name", nargs="?", help="whose certificates")
    gone.add_argument("--serial", help="or one serial number, hexadecimal: of a certificate made elsewhere")
    return _carry_out(_CERTS, parser.parse_args(arguments))


def token(arguments: list[str]) -> int:
    """`fkd-server token VERB ...`; returns the exit code."""
    parser = OneSentenceParser(
        prog="fkd-server token",
        description="Tokens with which new clients fetch their certificate, once each.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = _verb(verbs, "create", "print a new token, for `fkd-client --join`")
    create.add_argument("name", help="the client's id in every run")
    create.add_argument("--out", type=given_path, help="write it to this new file, for this user alone")
    create.add_argument("--valid", default="24h", help="how long: 30m, 24h, 7d (default: 24h)")
    _verb(verbs, "list", "show tokens; their text is kept nowhere")
    gone = _verb(verbs, "revoke", "make a token that waits worthless")
    gone.add_argument("name", help="the client's name, or the token's id from the list")
    return _carry_out(_TOKEN, parser.parse_args(arguments))


def _verb(verbs: argparse._SubParsersAction[OneSentenceParser], name: str, text: str) -> OneSentenceParser:
    verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    folder = Path(os.environ.get("FKD_TLS") or DEFAULT_FOLDER)
    verb.add_argument(
        "--tls", type=given_path, default=folder, help=f"the coordinator's folder (default: {folder})"
    )
    return verb


def _carry_out(actions: Mapping[str, Callable[[argparse.Namespace], None]], given: argparse.Namespace) -> int:
    try:
        actions[given.verb](given)
    except OSError as error:
        if error.errno in _DISK:
            raise
        raise UsageError(
            f"{error.filename or given.tls}: {error.strerror}; expected a folder that this user may read and write"
        ) from error
    return ExitCode.OK


def _init(given: argparse.Namespace) -> None:
    hosts = given.host or default_hosts()
    authority = CertificateAuthority.create(given.tls, hosts)
    print(f"{given.tls}: authority {fingerprint(authority.certificate)}")
    print(f"  the coordinator's certificate is for {', '.join(hosts)}")
    print(
        f"  next: fkd-server certs issue NAME --tls {given.tls}, and start with fkd-server --tls {given.tls}"
    )


def _issue(given: argparse.Namespace) -> None:
    authority, role, out = CertificateAuthority(given.tls), Role(given.role), given.out or Path(given.name)
    end = authority.certificate.not_valid_after_utc
    left = (end - utc_now()).days
    if given.days is not None and not 0 < given.days <= left:
        raise UsageError(
            f"--days {given.days:g}: expected more than 0 and at most {left}, for the authority ends on {end:%Y-%m-%d}"
        )
    certificate = authority.issue_folder(role, given.name, out, given.days or CLIENT_DAYS)
    print(f"{out}: {role} {given.name}, until {certificate.not_valid_after_utc:%Y-%m-%d}")
    if role is Role.CLIENT:
        print(
            f"  copy the folder to the site and keep it from others: fkd-client --tls {out.name} --server HOST:PORT"
        )
    else:
        print(f"  keep the folder from others: fkd-server status --tls {out} --server HOST:PORT")


def _renew(given: argparse.Namespace) -> None:
    renewed = CertificateAuthority(given.tls).renew_server(given.host)
    until = renewed.certificate.not_valid_after_utc
    print(f"{given.tls / SERVER_FILE}: until {until:%Y-%m-%d}; new connections get it")
    print(f"  it is for {', '.join(hosts_of(renewed.certificate))}")
    if renewed.new_key:
        print(f"  {SERVER_KEY_FILE} was missing or damaged: there is a new one")


def _revoke(given: argparse.Namespace) -> None:
    if (given.name is None) is (given.serial is None):
        raise UsageError("certs revoke: expected a NAME, or --serial HEX")
    if given.serial is not None:
        digits = given.serial.replace(":", "")
        if not re.fullmatch(r"[0-9A-Fa-f]{1,40}", digits):
            raise UsageError(f"--serial {given.serial!r}: expected at most 40 hexadecimal digits")
        RevokedList(given.tls).add(int(digits, 16), "by serial number")
        print(f"revoked: {given.serial}")
        return
    for record in revoke(given.tls, given.name):
        what = record.holder.role if record.holder else f"{record.path}, which is damaged,"
        print(f"revoked: {what} {record.name}, serial {record.serial:x}")


def _list(given: argparse.Namespace) -> None:
    now, records = utc_now(), issued_in(given.tls)
    if not records:
        print(f"{given.tls}: no certificates of clients or operators")
    for own in own_certificates(given.tls):
        until = own.certificate.not_valid_after_utc
        state = "valid" if now < until else "expired"
        print(f"{own.what}  {state}  until {until:%Y-%m-%d}  {own.certificate.serial_number:x}")
    for record in records:
        holder = record.holder
        state = "revoked" if record.revoked else "valid" if record.counts(now) else "expired"
        if holder is None:
            known = f"{record.name or '?'}  {'damaged' if not record.revoked else 'damaged, revoked'}"
            print(f"{known}  {record.path}")
        else:
            print(
                f"{holder.name}  {holder.role}  {state}  until {holder.not_after:%Y-%m-%d}  {holder.serial:x}"
            )


def _create(given: argparse.Namespace) -> None:
    found = re.fullmatch(r"([0-9]{1,20})([mhd])", given.valid)
    if found is None:
        raise UsageError(f"--valid {given.valid!r}: expected a number and m, h or d, such as 24h")
    seconds = int(found[1]) * _UNITS[found[2]]
    if not 0 < seconds <= MAX_TOKEN_DAYS * _UNITS["d"]:
        raise UsageError(f"--valid {given.valid!r}: expected more than 0 and at most {MAX_TOKEN_DAYS}d")
    valid = timedelta(seconds=seconds)
    authority = CertificateAuthority(given.tls)
    if given.out is None:
        print(TokenStore(given.tls).create(authority, given.name, valid))
        return
    with open(given.out, "x", opener=_private) as file:
        try:
            file.write(TokenStore(given.tls).create(authority, given.name, valid) + "\n")
        except BaseException:
            given.out.unlink()
            raise
    print(
        f"{given.out}: a token for {given.name}, good for {given.valid}; bring it to the site by a way you trust"
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _list_tokens(given: argparse.Namespace) -> None:
    tokens = TokenStore(given.tls).listed()
    if not tokens:
        print(f"{given.tls}: no tokens")
    for one in tokens:
        until = f"until {one.stored.expires:%Y-%m-%d %H:%M} UTC  " if one.stored else ""
        print(f"{one.name}  {one.state}  {until}{one.token_id}")


def _withdraw(given: argparse.Namespace) -> None:
    for one in TokenStore(given.tls).withdraw(given.name):
        print(f"withdrawn: {one.name}  {one.token_id}")


_CERTS = {"init": _init, "issue": _issue, "renew": _renew, "revoke": _revoke, "list": _list}
_TOKEN = {"create": _create, "list": _list_tokens, "revoke": _withdraw}
