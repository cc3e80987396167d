"""`fkd-server certs ...` and `fkd-server token ...`: flags to the authority and its tokens; talks to nobody."""

from __future__ import annotations

import argparse
import os
import re
from datetime import timedelta
from pathlib import Path

from fkd_common.access.certificates import Role, fingerprint, utc_now
from fkd_common.errors import ExitCode, UsageError
from fkd_server.access.certificates import (
    CLIENT_DAYS,
    CertificateAuthority,
    default_hosts,
    issued_in,
    revoke,
)
from fkd_server.access.join_tokens import TokenStore
from fkd_server.access.revocation import RevokedList

DEFAULT_FOLDER = "tls"
_UNITS = {"m": 60, "h": 3600, "d": 86400}


def certs(arguments: list[str]) -> int:
    """`fkd-server certs VERB ...`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="fkd-server certs", description="Make, list and revoke the certificates of one coordinator."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = _verb(verbs, "init", "make an authority and the coordinator's certificate")
    issue = _verb(verbs, "issue", "make a folder of credentials for one client or operator")
    renew = _verb(verbs, "renew", "replace the coordinator's certificate; a running one picks it up")
    gone = _verb(verbs, "revoke", "refuse all certificates of a name, from the next call on")
    _verb(verbs, "list", "show the certificates of clients and operators")
    for verb in (init, renew):
        verb.add_argument(
            "--host",
            action="append",
            default=[],
            help="name or address under which clients reach it; repeat for more",
        )
    issue.add_argument("name", help="the client's id in every run, or the operator's name")
    issue.add_argument("--role", type=Role, choices=list(Role), default=Role.CLIENT)
    issue.add_argument("--out", type=Path, help="folder to make (default: NAME)")
    issue.add_argument("--days", type=float, default=CLIENT_DAYS, help="validity in days (default: 365)")
    gone.add_argument("name", nargs="?", help="whose certificates")
    gone.add_argument("--serial", help="or one serial number, hexadecimal: of a certificate made elsewhere")
    given = parser.parse_args(arguments)
    _CERTS[given.verb](given)
    return ExitCode.OK


def token(arguments: list[str]) -> int:
    """`fkd-server token VERB ...`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="fkd-server token",
        description="Tokens with which new clients fetch their certificate, once each.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = _verb(verbs, "create", "print a new token, for `fkd-client --join`")
    create.add_argument("name", help="the client's id in every run")
    create.add_argument("--valid", default="24h", help="how long: 30m, 24h, 7d (default: 24h)")
    _verb(verbs, "list", "show tokens; their text is kept nowhere")
    gone = _verb(verbs, "revoke", "make a token that waits worthless")
    gone.add_argument("name", help="the client's name, or the token's id from the list")
    given = parser.parse_args(arguments)
    _TOKEN[given.verb](given)
    return ExitCode.OK


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    folder = Path(os.environ.get("FKD_TLS") or DEFAULT_FOLDER)
    verb.add_argument(
        "--tls", type=Path, default=folder, help=f"the coordinator's folder (default: {folder})"
    )
    return verb


def _init(given: argparse.Namespace) -> None:
    hosts = given.host or default_hosts()
    authority = CertificateAuthority.create(given.tls, hosts)
    print(f"{given.tls}: authority {fingerprint(authority.certificate)}")
    print(f"  the coordinator's certificate is for {', '.join(hosts)}")
    print(
        f"  next: fkd-server certs issue NAME --tls {given.tls}, and start with fkd-server --tls {given.tls}"
    )


def _issue(given: argparse.Namespace) -> None:
    if not given.days > 0:
        raise UsageError(f"--days {given.days}: expected more than 0")
    out = given.out or Path(given.name)
    certificate = CertificateAuthority(given.tls).issue_folder(given.role, given.name, out, given.days)
    print(f"{out}: {given.role} {given.name}, until {certificate.not_valid_after_utc:%Y-%m-%d}")
    if given.role is Role.CLIENT:
        print(
            f"  copy the folder to the site and keep it from others: fkd-client --tls {out.name} --server HOST:PORT"
        )


def _renew(given: argparse.Namespace) -> None:
    certificate = CertificateAuthority(given.tls).renew_server(given.host)
    print(
        f"{given.tls / 'server.pem'}: until {certificate.not_valid_after_utc:%Y-%m-%d}; new connections get it"
    )


def _revoke(given: argparse.Namespace) -> None:
    if (given.name is None) is (given.serial is None):
        raise UsageError("certs revoke: expected a NAME, or --serial HEX")
    if given.serial is not None:
        if not re.fullmatch(r"[0-9A-Fa-f:]{1,80}", given.serial):
            raise UsageError(f"--serial {given.serial!r}: expected hexadecimal digits")
        RevokedList(given.tls).add(int(given.serial.replace(":", ""), 16), "by serial number")
        print(f"revoked: {given.serial}")
        return
    for holder in revoke(given.tls, given.name):
        print(f"revoked: {holder.role} {holder.name}, serial {holder.serial:x}")


def _list(given: argparse.Namespace) -> None:
    now = utc_now()
    for one in issued_in(given.tls):
        holder = one.holder
        state = "revoked" if one.revoked else "expired" if holder.not_after < now else "valid"
        print(f"{holder.name}  {holder.role}  {state}  until {holder.not_after:%Y-%m-%d}  {holder.serial:x}")


def _create(given: argparse.Namespace) -> None:
    found = re.fullmatch(r"(\d{1,6})([mhd])", given.valid)
    if found is None or int(found[1]) == 0:
        raise UsageError(f"--valid {given.valid!r}: expected a number and m, h or d, such as 24h")
    valid = timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    authority = CertificateAuthority(given.tls)
    print(TokenStore(given.tls).create(authority, given.name, valid))


def _list_tokens(given: argparse.Namespace) -> None:
    for one in TokenStore(given.tls).listed():
        print(
            f"{one.stored.name}  {one.state}  until {one.stored.expires:%Y-%m-%d %H:%M} UTC  {one.token_id}"
        )


def _withdraw(given: argparse.Namespace) -> None:
    for one in TokenStore(given.tls).withdraw(given.name):
        print(f"withdrawn: {one.stored.name}  {one.token_id}")


_CERTS = {"init": _init, "issue": _issue, "renew": _renew, "revoke": _revoke, "list": _list}
_TOKEN = {"create": _create, "list": _list_tokens, "revoke": _withdraw}
