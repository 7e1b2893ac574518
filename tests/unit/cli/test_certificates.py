"""The certificate of `duologue up --tls`: good, private, kept while it is good, made anew when it is not."""

from __future__ import annotations

import datetime
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from duologue.cli.certificates import LIFE, OWN_NAMES, LocalCertificate, expiry, is_good, local_certificate, names_for
from duologue.cli.errors import UserError

pytestmark = pytest.mark.unit

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def made(folder: Path, *names: str, now: datetime.datetime = NOW) -> LocalCertificate:
    return local_certificate(folder, names or OWN_NAMES, now)


def test_it_names_this_machine_and_is_signed_by_its_authority(tmp_path: Path) -> None:
    files = made(tmp_path / "tls")
    cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
    cert.verify_directly_issued_by(x509.load_pem_x509_certificate(files.ca.read_bytes()))
    covered = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert covered.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in covered.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert expiry(files.cert) == NOW + LIFE


def test_openssl_takes_it_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    files = made(tmp_path / "tls")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.cert, files.key)
    ssl.create_default_context(cafile=files.ca)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()} == {0o600}
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def test_no_key_that_could_sign_another_is_kept(tmp_path: Path) -> None:
    made(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    keys = [path.name for path in tmp_path.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert keys == ["key.pem"]


def test_a_good_one_is_kept(tmp_path: Path) -> None:
    before = made(tmp_path).cert.read_bytes()
    assert made(tmp_path, now=NOW + 300 * DAY).cert.read_bytes() == before


@pytest.mark.parametrize("days", [380, 4000], ids=["nearly over", "over"])
def test_one_that_ends_is_made_anew(tmp_path: Path, days: int) -> None:
    before = made(tmp_path).cert.read_bytes()
    later = NOW + days * DAY
    files = made(tmp_path, now=later)
    assert files.cert.read_bytes() != before
    assert is_good(files, OWN_NAMES, later)


def test_one_without_a_name_is_made_anew(tmp_path: Path) -> None:
    before = made(tmp_path).cert.read_bytes()
    wanted = names_for("voice.example")
    assert made(tmp_path, *wanted).cert.read_bytes() != before
    assert is_good(made(tmp_path, *wanted), wanted, NOW)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
@pytest.mark.parametrize("how", ["lost", "spoiled", "of another"])
def test_one_that_is_damaged_is_made_anew(tmp_path: Path, name: str, how: str) -> None:
    files = made(tmp_path / "a")
    victim = tmp_path / "a" / name
    if how == "lost":
        victim.unlink()
    elif how == "spoiled":
        victim.write_bytes(b"nonsense")
    else:
        made(tmp_path / "b")
        shutil.copy(tmp_path / "b" / name, victim)
    assert not is_good(files, OWN_NAMES, NOW)
    assert is_good(made(tmp_path / "a"), OWN_NAMES, NOW)


def test_an_address_is_covered_as_what_it_is() -> None:
    assert names_for("192.0.2.7")[-1] == "192.0.2.7"
    assert names_for("localhost") == OWN_NAMES
    assert len(names_for("0.0.0.0")) >= len(OWN_NAMES)


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="certificate"):
        made(tmp_path / "file" / "tls")
