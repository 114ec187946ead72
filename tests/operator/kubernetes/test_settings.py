"""The environment of the operator."""

from __future__ import annotations

import base64
import datetime as dt

import pytest
from cryptography import x509

from eidolon_operator.kubernetes import certificate, settings
from eidolon_operator.kubernetes.settings import Settings, SettingsError

IMAGES = {"EIDOLON_CORE_IMAGE": "c:1", "EIDOLON_INTERPOSER_IMAGE": "i:1"}


def test_defaults() -> None:
    assert settings.read(IMAGES) == Settings(core_image="c:1", interposer_image="i:1")
    assert settings.read({**IMAGES, "EIDOLON_RUN_AS_USER": "", "EIDOLON_NAMESPACES": " "}) == settings.read(IMAGES)


def test_everything() -> None:
    found = settings.read(
        {
            **IMAGES,
            "EIDOLON_NAMESPACES": "a, b",
            "EIDOLON_IMAGE_PULL_POLICY": "Always",
            "EIDOLON_IMAGE_PULL_SECRETS": "one,two",
            "EIDOLON_RUN_AS_USER": "65532",
            "EIDOLON_CORE_RESOURCES": '{"requests": {"cpu": 2}}',
            "EIDOLON_AGENT_RESOURCES": '{"limits": {"memory": "1Gi"}}',
            "EIDOLON_RESYNC_S": "30",
            "EIDOLON_LOG_LEVEL": "debug",
        }
    )
    assert found == Settings(
        core_image="c:1",
        interposer_image="i:1",
        namespaces=("a", "b"),
        image_pull_policy="Always",
        image_pull_secrets=("one", "two"),
        run_as=65532,
        core_resources={"requests": {"cpu": "2"}},
        agent_resources={"limits": {"memory": "1Gi"}},
        resync_s=30.0,
        log_level="debug",
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CORE_IMAGE", "", "EIDOLON_CORE_IMAGE: is required: a full image reference with a tag or a digest"),
        ("IMAGE_PULL_POLICY", "Often", "'Often' is not one of Always, IfNotPresent, Never"),
        (
            "RUN_AS_USER",
            "0",
            "EIDOLON_RUN_AS_USER: '0' is not a number from 1 to",
        ),
        ("CORE_RESOURCES", "[]", "EIDOLON_CORE_RESOURCES: '\\[\\]' is not a JSON object such as"),
        ("RESYNC_S", "soon", "EIDOLON_RESYNC_S: 'soon' is not a number of seconds from 1 to 3600"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        settings.read({**IMAGES, f"EIDOLON_{name}": value})


def test_the_secret_of_an_attempt() -> None:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    first, second = certificate.make(now), certificate.make(now)
    assert set(first) == {"token", "tls.crt", "tls.key"}
    assert all(first[key] != second[key] for key in first)
    assert len(bytes.fromhex(base64.b64decode(first["token"]).decode())) == 32
    found = x509.load_pem_x509_certificate(base64.b64decode(first["tls.crt"]))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["eidolon-core"]
    assert found.not_valid_before_utc < now < found.not_valid_after_utc
