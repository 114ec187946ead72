"""Names that are said in two languages are the same in both."""

from __future__ import annotations

import re

import pytest

from eidolon_interposer.link import CERTIFICATE_NAME
from eidolon_operator import fetch
from eidolon_operator import spec as specs
from eidolon_operator.kubernetes import certificate, naming


def test_the_definition_has_the_same_names() -> None:
    definition = specs.crd()["spec"]
    words = definition["names"]
    assert (definition["group"], words["plural"]) == (naming.GROUP, naming.PLURAL)
    assert [version["name"] for version in definition["versions"]] == [naming.VERSION]
    kinds = {*words["shortNames"], words["singular"], words["plural"], f"{words['plural']}.{definition['group']}"}
    assert set(fetch.KINDS) == kinds


@pytest.mark.parametrize("path", [naming.BIN, naming.RUN, naming.CONFIG])
def test_the_definition_keeps_mounts_of_users_out_of_our_paths(path: str) -> None:
    mounts = specs.object_schema()["properties"]["spec"]["properties"]["workload"]["properties"]["volumeMounts"]
    (rule,) = mounts["items"]["x-kubernetes-validations"]
    (pattern,) = re.findall(r"matches\('([^']+)'\)", rule["rule"])
    assert re.search(pattern, path)
    assert path in re.split(r", | or | and not be in ", rule["message"])


def test_the_definition_keeps_the_names_of_our_volumes_from_users() -> None:
    volumes = specs.object_schema()["properties"]["spec"]["properties"]["workload"]["properties"]["volumes"]
    assert f"!self.name.startsWith('{naming.VOLUME_PREFIX}')" in [
        rule["rule"] for rule in volumes["items"]["x-kubernetes-validations"]
    ]


def test_agents_ask_for_the_name_in_the_certificate() -> None:
    assert certificate.NAME == CERTIFICATE_NAME
