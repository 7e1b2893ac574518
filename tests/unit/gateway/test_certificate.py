"""A certificate that is renewed while the gateway runs: new handshakes show it, what is there goes on."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from unit.gateway.running import Client, System
from websockets.asyncio.client import connect

from duologue.cli.certificates import OWN_NAMES, LocalCertificate, local_certificate
from duologue.gateway.certificate import Certificate, certificate_of
from duologue.gateway.listening import address_of, bind, serving
from duologue.gateway.process import CannotStart

pytestmark = pytest.mark.unit


def made(folder: Path) -> LocalCertificate:
    return local_certificate(folder, OWN_NAMES, datetime.datetime.now(datetime.UTC))


class Renewed:
    """Two certificates of two authorities, and the files that a gateway reads, which are the first one's."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = made(folder / "old"), made(folder / "new")
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.put(self.old, self.old)
        self.certificate = Certificate(str(self.cert), str(self.key))

    def put(self, cert: LocalCertificate, key: LocalCertificate) -> None:
        """As a renewal does: another file takes the place of each."""
        for source, place in ((cert.cert, self.cert), (key.key, self.key)):
            beside = place.with_suffix(".new")
            shutil.copy(source, beside)
            beside.replace(place)


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Renewed, str]]:
    renewed = Renewed(tmp_path)
    async with System() as system:
        service = await system.gateway()
        at = bind("127.0.0.1", 0)
        address = address_of(at)
        async with serving(service, at, tls=renewed.certificate.context):
            yield renewed, f"wss://{address}/v1/duplex"
            for client in list(service.gateway.sockets):
                client.restart()


async def shows(url: str, certificate: LocalCertificate) -> bool:
    """Whether a client that trusts this authority alone gets in."""
    try:
        ws = await connect(url, ssl=ssl.create_default_context(cafile=certificate.ca), proxy=None, close_timeout=1)
    except ssl.SSLCertVerificationError:
        return False
    await ws.close()
    return True


async def test_the_next_handshake_shows_what_was_renewed(served: tuple[Renewed, str]) -> None:
    renewed, url = served
    trust = ssl.create_default_context(cafile=renewed.old.ca)
    client = Client(await connect(url, ssl=trust, proxy=None, close_timeout=1))
    assert renewed.certificate.look() is None and await shows(url, renewed.old)
    renewed.put(renewed.new, renewed.new)
    assert renewed.certificate.look() is True and renewed.certificate.look() is None
    assert await shows(url, renewed.new) and not await shows(url, renewed.old)
    await client.send("session.update", session={"model": "loopback"})
    await client.until("session.updated")
    await client.ws.close()


@pytest.mark.parametrize("how", ["half", "damaged", "gone"])
async def test_what_is_no_certificate_changes_nothing(served: tuple[Renewed, str], how: str) -> None:
    renewed, url = served
    if how == "half":
        renewed.put(renewed.new, renewed.old)
    elif how == "damaged":
        renewed.cert.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    else:
        renewed.key.unlink()
    assert renewed.certificate.look() is False
    assert renewed.certificate.look() is None, "it is told once"
    assert await shows(url, renewed.old)
    renewed.put(renewed.new, renewed.new)
    assert renewed.certificate.look() is True and await shows(url, renewed.new)


async def test_it_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, looked = Renewed(tmp_path).certificate, asyncio.Event()
    monkeypatch.setattr(certificate, "look", looked.set)
    async with asyncio.timeout(5), certificate.watched(0.0):
        await looked.wait()


def test_a_gateway_without_one_has_none(tmp_path: Path) -> None:
    assert certificate_of("", "") is None
    with pytest.raises(CannotStart):
        certificate_of(str(tmp_path / "none.pem"), str(tmp_path / "none.pem"))
