"""The certificate of a gateway while it runs: files that were renewed are taken up without a restart.

Rule 1. Connections that are there keep what they have; the next handshake shows the new chain.
Rule 2. A pair that is no certificate with its key changes nothing: a renewal writes two files, one after the other.
        It is told once, and looked at again when one of them changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncGenerator
from typing import Final

from duologue.gateway.process import CannotStart
from duologue.gateway.tls import server_context
from duologue.runtime import metrics

_log = logging.getLogger("duologue.gateway")

LOOK_S: Final = 10.0
"""How often the files are looked at: a renewal is weeks ahead of the end."""

Stamp = tuple[tuple[int, int, int] | None, ...]


class Certificate:
    """A chain and its key (PEM files), and the context that shows them."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises `CannotStart`."""
        self.paths = certificate, key
        self._seen = self._stamp()
        context = server_context(certificate, key)
        assert context is not None, "a certificate is named"
        self.context: ssl.SSLContext = context

    def look(self) -> bool | None:
        """Take up files that are others now. None: they are the same; False: they cannot be used."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            server_context(*self.paths)  # on another context first: a failure leaves one half loaded
            self.context.load_cert_chain(*self.paths, password="")
        except (CannotStart, ssl.SSLError, OSError) as error:
            _log.warning("the certificate stays as it was: %s", error)
            metrics.GATEWAY_CERTIFICATES.labels("refused").inc()
            return False
        _log.info("the certificate at %s was renewed", self.paths[0])
        metrics.GATEWAY_CERTIFICATES.labels("taken").inc()
        return True

    def _stamp(self) -> Stamp:
        return tuple(_of(path) for path in self.paths)

    @contextlib.asynccontextmanager
    async def watched(self, every_s: float = LOOK_S) -> AsyncGenerator[None, None]:
        """Look at the files now and then."""
        task = asyncio.create_task(self._watch(every_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _watch(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.look()


def _of(path: str) -> tuple[int, int, int] | None:
    """What changes with a file; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def certificate_of(certificate: str, key: str) -> Certificate | None:
    """None where no certificate is named. Raises `CannotStart`."""
    return Certificate(certificate, key) if certificate else None
