"""Who trusts whom: one authority, made anew for each cluster, that lives as long as its state directory."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = dt.timedelta(days=30)


class Authority:
    """Signs certificates and writes them as NAME.crt and NAME.key into a directory; its own is `ca.crt`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "eidolon-e2e")])
        builder = _builder(self._name, self._name, self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self._write("ca", self._key, self.certificate)

    def issue(self, name: str, *, user: str, groups: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> None:
        """Writes a certificate for `user` in `groups`, valid as a client and for the given host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _builder(x509.Name(subject), self._name, key.public_key()).add_extension(purposes, critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        self._write(name, key, builder.sign(self._key, hashes.SHA256()))

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        write_key(self.directory / f"{name}.key", key)
        (self.directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_service_account_keys(directory: Path) -> None:
    """Writes `sa.key` and `sa.pub`, with which tokens of service accounts are signed and checked."""
    key = ec.generate_private_key(ec.SECP256R1())
    write_key(directory / "sa.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (directory / "sa.pub").write_bytes(public)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a private key that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + LIFE)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
