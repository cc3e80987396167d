"""As whom a relay takes part in the upstream run: its certificate, fetched with a token if need be, or a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fkd_client.join import join
from fkd_client.tls import ClientTls
from fkd_client.transport import check_plain_text
from fkd_common.errors import FkdError, UsageError
from fkd_common.identifiers import check_client_name
from fkd_server.prepare import Preparation
from fkd_server.settings import ServerSettings


def upstream_identity(settings: ServerSettings, preparation: Preparation) -> tuple[str, ClientTls | None]:
    """The relay's name in the upstream run, and what proves it; None over plain text.

    Args:
        settings: Who it is there.
        preparation: Ends the wait for a certificate.

    Raises:
        UsageError: Flags that contradict each other or the certificate, or plain text beyond this machine.
        FkdError: The upstream coordinator does not accept the token, or does not answer.
    """
    with relays_words():
        return _identity(settings, preparation)


@contextmanager
def relays_words() -> Iterator[None]:
    """Errors of a client's code with the names that its flags have at a relay."""
    try:
        yield
    except FkdError as error:
        words = re.sub(r"--(tls|join-port|join|name|insecure)\b", r"--upstream-\1", str(error))
        raise type(error)(re.sub(r"--server\b", "--upstream", words), reason=error.reason) from error


def _identity(settings: ServerSettings, preparation: Preparation) -> tuple[str, ClientTls | None]:
    assert settings.upstream is not None
    if settings.upstream_tls is None:
        if settings.upstream_join is not None:
            raise UsageError("--join needs --tls FOLDER, where the certificate is to be kept")
        check_plain_text(settings.upstream, settings.upstream_insecure)
        if settings.upstream_name is None:
            raise UsageError(
                "over plain text --upstream needs --name NAME: this relay's id in the upstream run"
            )
        try:
            return check_client_name(settings.upstream_name), None
        except FkdError as error:
            raise UsageError(f"--name: {error}") from error
    if settings.upstream_insecure:
        raise UsageError("--insecure is for plain text, --tls is not: give one of them")
    if settings.upstream_join is not None:
        preparation.activity = f"getting a certificate from the upstream coordinator at {settings.upstream}"
        token = settings.upstream_join.get_secret_value()
        join(
            token,
            settings.upstream_tls,
            settings.upstream,
            settings.upstream_join_port,
            settings.upstream_patience_s,
            preparation.on_cancel,
        )
    tls = ClientTls(settings.upstream_tls)
    if settings.upstream_name not in (None, tls.name):
        raise UsageError(
            f"--name {settings.upstream_name}: the certificate in {settings.upstream_tls} is {tls.name}'s, and that is "
            "the id in the run; leave out --name"
        )
    return tls.name, tls
