"""The certificate of a gateway that speaks https and wss itself."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from duologue.gateway.process import CannotStart

HANDSHAKE_S: Final = 5.0
"""How long the TLS handshake of a connection may take, which the front door does not count before it is over."""
FAREWELL_S: Final = 5.0
"""How long a closed connection waits for the peer's own TLS farewell."""


def server_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with this chain and its key (PEM files); None where none is named. Raises `CannotStart`."""
    if not certificate:
        return None
    _readable("tls_cert", certificate)
    _readable("tls_key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The empty password keeps OpenSSL from asking a terminal for the one of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or str(error) or "not readable as PEM"
        raise CannotStart(
            f"[gateway] tls_cert {certificate} and tls_key {key} are no certificate with its unencrypted key: {why}"
        ) from None
    return context


def _readable(name: str, path: str) -> None:
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise CannotStart(f"[gateway] {name} {path}: {error.strerror}") from None
