"""The secret of an attempt: a token, and a certificate that both ends pin.

The certificate is self-signed and made here with PyPI's ``cryptography`` rather than an ``openssl`` program: the
operator's image then needs no other program, and nothing is written to a file on the way. Agents take it as their only
root and ask for the fixed name ``eidolon-core``, whatever address they reach the core by; so it holds for exactly one
attempt, and no authority has to be trusted or kept.
"""

from __future__ import annotations

import base64
import datetime as dt
import secrets
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NAME: Final = "eidolon-core"
TOKEN_BYTES: Final = 32
_VALID: Final = dt.timedelta(days=3650)  # nobody renews it, and an attempt ends long before
_SKEW: Final = dt.timedelta(days=1)  # the clocks of nodes differ


def make(now: dt.datetime) -> dict[str, str]:
    """A new token, certificate and key as the data of a Secret: ``token`` (hexadecimal), ``tls.crt``, ``tls.key``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    data = {
        "token": secrets.token_hex(TOKEN_BYTES).encode(),
        "tls.crt": certificate.public_bytes(serialization.Encoding.PEM),
        "tls.key": private,
    }
    return {name: base64.b64encode(value).decode() for name, value in data.items()}
