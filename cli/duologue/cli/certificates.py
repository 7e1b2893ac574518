"""The certificate of `duologue up --tls`: for this machine's own names, made here, kept in the home.

Rule 1. The key of the authority that signs it is never written and is forgotten at once: nothing on the disk
        can make a second certificate that those would trust who trust this one.
Rule 2. Both are made anew together when the certificate nears its end, lacks a name or is damaged. The files
        keep their places, so clients that are given the authority's path go on when they start again.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duologue.cli.errors import UserError

LIFE: Final = datetime.timedelta(days=397)
RENEW_BEFORE: Final = datetime.timedelta(days=30)
SKEW: Final = datetime.timedelta(hours=1)
"""It is good from a little before it was made: clocks differ."""
OWN_NAMES: Final = ("localhost", "127.0.0.1", "::1")


class LocalCertificate(msgspec.Struct, frozen=True):
    """Paths of PEM files, all for their owner alone."""

    ca: Path
    """The authority: what clients are to trust."""
    cert: Path
    key: Path


def names_for(host: str) -> tuple[str, ...]:
    """What a server that listens on `host` is called by its clients."""
    more = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    return tuple(dict.fromkeys((*OWN_NAMES, more.lower())))


def local_certificate(folder: Path, names: Sequence[str], now: datetime.datetime) -> LocalCertificate:
    """The one in `folder` if it is still good at `now` (aware) for these names, else a new one. Raises UserError."""
    files = LocalCertificate(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    try:
        if not is_good(files, names, now):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(files, names, now)
    except OSError as error:
        raise UserError(f"cannot keep a certificate in {folder}: {error.strerror}") from None
    return files


def is_good(files: LocalCertificate, names: Sequence[str], now: datetime.datetime) -> bool:
    """Whether these belong together, cover the names, and do not end soon. Raises OSError, but not for a lack."""
    try:
        ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
        cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
        key = load_pem_private_key(files.key.read_bytes(), None)
        cert.verify_directly_issued_by(ca)
        covered = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    public = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return (
        key.public_key().public_bytes(*public) == cert.public_key().public_bytes(*public)
        and cert.not_valid_before_utc <= now < cert.not_valid_after_utc - RENEW_BEFORE
        and all(_name(name) in covered for name in names)
    )


def expiry(cert: Path) -> datetime.datetime | None:
    """When the certificate in this file ends; None: there is none."""
    try:
        return x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _make(files: LocalCertificate, names: Sequence[str], now: datetime.datetime) -> None:
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Duologue on {socket.gethostname()}"[:64])])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (
        _builder(issuer, issuer, authority.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA256())
    )
    cert = (
        _builder(subject, issuer, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        .sign(authority, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(files.key, private)
    _write(files.cert, cert.public_bytes(Encoding.PEM))
    _write(files.ca, ca.public_bytes(Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, pem: bytes) -> None:
    """Whole or not at all, and never readable by others."""
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(pem)
    part.chmod(0o600)
    part.replace(path)
