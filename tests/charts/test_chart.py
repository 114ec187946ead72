"""The Helm chart, rendered by Helm's own code without a cluster.

What matters to a person who installs it: it renders whatever is left out, every manifest is valid for the oldest and
the newest Kubernetes that the tools know, and the operator can do what it must and nothing else.
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, lint

from eidolon_operator.kubernetes import naming, settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "eidolon"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
OLDEST, NEWEST = "1.29", "1.36"
#: Kinds that Kubernetes itself does not define, so that no schema of them is at hand.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}

EVERYTHING: dict[str, Any] = {
    "commonLabels": {"team": "ml"},
    "image": {"pullSecrets": ["one", "two"]},
    "serviceAccount": {"annotations": {"a": "b"}},
    "operator": {
        "extraEnv": [{"name": "A", "value": "b"}],
        "podLabels": {"l": "1"},
        "podAnnotations": {"a": "1"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    },
    "simulation": {"coreResources": {"limits": {"memory": "8Gi"}}, "agentResources": {"limits": {"memory": "1Gi"}}},
    "service": {"annotations": {"a": "b"}},
    "serviceMonitor": {"enabled": True, "additionalLabels": {"release": "kps"}},
    "prometheusRule": {"enabled": True, "additionalLabels": {"release": "kps"}},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Eidolon"}},
    "networkPolicy": {"enabled": True, "readersFrom": [{"namespaceSelector": {}}]},
}
NAMESPACED: dict[str, Any] = {"watch": {"scope": "namespaces", "namespaces": ["team-a", "team-b"]}}

Manifest = Mapping[str, Any]


def render(
    values: Mapping[str, Any] | None = None, *, release: str = "eidolon"
) -> dict[tuple[str, str, str], Manifest]:
    """All manifests of a release in namespace ``system``, by kind, namespace and name."""
    with Chart.load(CHART) as chart:
        files = chart.render(dict(values or {}), name=release, namespace="system")
    found: dict[tuple[str, str, str], Manifest] = {}
    for path, text in files.items():
        if path.endswith(".txt"):
            continue
        for document in yaml.safe_load_all(text):
            if document:
                metadata = document["metadata"]
                key = (document["kind"], metadata.get("namespace", ""), metadata["name"])
                assert key not in found, f"{key} is rendered twice"
                found[key] = document
    return found


def operator_of(manifests: Mapping[tuple[str, str, str], Manifest]) -> Manifest:
    (pod,) = (m["spec"]["template"] for (kind, *_), m in manifests.items() if kind == "Deployment")
    return pod


def environment(manifests: Mapping[tuple[str, str, str], Manifest]) -> dict[str, str]:
    (container,) = operator_of(manifests)["spec"]["containers"]
    return {item["name"]: item["value"] for item in container["env"]}


def test_lint_finds_nothing_but_the_missing_icon() -> None:
    report = lint(CHART, strict=True)
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == importlib.metadata.version("eidolon")


def test_the_default_release_is_small() -> None:
    assert sorted((kind, name) for kind, _, name in render()) == [
        ("ClusterRole", "eidolon-edit"),
        ("ClusterRole", "eidolon-operator"),
        ("ClusterRole", "eidolon-view"),
        ("ClusterRoleBinding", "eidolon-operator"),
        ("CustomResourceDefinition", "simulatedclusters.eidolon.dev"),
        ("Deployment", "eidolon-operator"),
        ("Service", "eidolon-operator"),
        ("ServiceAccount", "eidolon-operator"),
    ]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", [{}, EVERYTHING, EVERYTHING | NAMESPACED], ids=["default", "all", "namespaces"])
def test_every_manifest_is_valid(values: Mapping[str, Any], version: str) -> None:
    for (kind, *_), manifest in render(values).items():
        if kind not in FOREIGN:
            kubernetes_validate.validate(dict(manifest), version, strict=True)


@pytest.mark.parametrize("name", [None, *VALUES])
def test_it_renders_with_any_value_nulled(name: str | None) -> None:
    """``helm upgrade --reuse-values`` brings values of an older release, which lack what is new; null lacks it too."""
    nulled = dict.fromkeys(VALUES) if name is None else {name: None}
    kept = {kind for kind, *_ in render(nulled)}
    assert kept >= {"CustomResourceDefinition", "Deployment", "Service", "ServiceAccount", "ClusterRole"}


@pytest.mark.parametrize("section", [name for name, value in VALUES.items() if isinstance(value, dict) and value])
def test_it_renders_with_any_part_of_a_section_nulled(section: str) -> None:
    nulled = {section: dict.fromkeys(VALUES[section])}
    enabled = {section: {**nulled[section], "enabled": True}} if "enabled" in VALUES[section] else nulled
    assert render(nulled)
    assert render(enabled)


def test_every_value_has_a_type_in_the_schema() -> None:
    """And nothing else does, so that a misspelt value is refused."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))

    def keys(node: Mapping[str, Any], path: str) -> Iterator[str]:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        for name, child in node.get("properties", {}).items():
            yield f"{path}{name}"
            yield from keys(child, f"{path}{name}.")

    def given(node: Any, path: str) -> Iterator[str]:
        for name, child in node.items():
            yield f"{path}{name}"
            if isinstance(child, dict) and f"{path}{name}" != "operator.resources":
                yield from given(child, f"{path}{name}.")

    assert set(keys(schema, "")) - {"global"} == set(given(VALUES, ""))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"crd": {"enabled": False}}, "crd"),
        ({"watch": {"scope": "galaxy"}}, "scope"),
        ({"runAsUser": 0}, "runAsUser"),
        ({"image": {"core": {"digest": "sha256:short"}}}, "digest"),
        ({"operator": {"replicas": 2}}, "replicas"),
        ({"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}, "one of them"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: Mapping[str, Any], named: str) -> None:
    with pytest.raises(HelmError, match=named):
        render(values)


# -- what reaches the operator -----------------------------------------------------------------------------------------


def test_images_are_full_names_of_this_version() -> None:
    found = environment(render())
    version = importlib.metadata.version("eidolon")
    assert found["EIDOLON_CORE_IMAGE"] == f"ghcr.io/eidolon-sim/eidolon-core:{version}"
    assert found["EIDOLON_INTERPOSER_IMAGE"] == f"ghcr.io/eidolon-sim/eidolon-interposer:{version}"
    assert found["EIDOLON_IMAGE_PULL_POLICY"] == "IfNotPresent"


def test_image_values_reach_the_operator_and_the_pods_it_makes() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    manifests = render(
        {
            "image": {
                "registry": "mirror.example:5000/eidolon/",
                "tag": "1.2.3",
                "pullPolicy": "Always",
                "pullSecrets": ["one", "two"],
                "core": {"digest": digest},
                "interposer": {"repository": "shim", "tag": "4"},
            }
        }
    )
    pod = operator_of(manifests)["spec"]
    assert pod["containers"][0]["image"] == "mirror.example:5000/eidolon/eidolon-operator:1.2.3"
    assert pod["containers"][0]["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    found = environment(manifests)
    assert found["EIDOLON_CORE_IMAGE"] == f"mirror.example:5000/eidolon/eidolon-core@{digest}"
    assert found["EIDOLON_INTERPOSER_IMAGE"] == "mirror.example:5000/eidolon/shim:4"
    assert found["EIDOLON_IMAGE_PULL_POLICY"] == "Always"
    assert found["EIDOLON_IMAGE_PULL_SECRETS"] == "one,two"


def test_resources_of_the_pods_it_makes_are_handed_on() -> None:
    found = environment(render({"simulation": {"coreResources": {"limits": {"memory": "8Gi"}}}}))
    assert json.loads(found["EIDOLON_CORE_RESOURCES"]) == {"limits": {"memory": "8Gi"}}
    assert "EIDOLON_AGENT_RESOURCES" not in found


def test_the_user_is_one_value_for_all_pods() -> None:
    manifests = render({"runAsUser": 1234})
    security = operator_of(manifests)["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (1234, 1234, 1234)
    assert environment(manifests)["EIDOLON_RUN_AS_USER"] == "1234"


def test_openshift_assigns_the_user_itself() -> None:
    manifests = render({"runAsUser": None})
    security = operator_of(manifests)["spec"]["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert environment(manifests)["EIDOLON_RUN_AS_USER"] == ""


def test_the_operators_pod_is_restricted() -> None:
    """What the restricted Pod Security Standard asks for, and a read-only root."""
    pod = operator_of(render(EVERYTHING))["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} == {"emptyDir"}


def test_there_is_one_operator_at_a_time() -> None:
    (deployment,) = (m for (kind, *_), m in render().items() if kind == "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_labels_that_select_the_operator_survive_the_users_own() -> None:
    values = {
        "operator": {"podLabels": {"app.kubernetes.io/component": "mine", "l": "1"}},
        "commonLabels": {"team": "ml"},
    }
    manifests = render(values)
    (deployment,) = (m for (kind, *_), m in manifests.items() if kind == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["l"] == "1"
    assert all(manifest["metadata"]["labels"]["team"] == "ml" for manifest in manifests.values())


# -- rights ------------------------------------------------------------------------------------------------------------


def rights(manifest: Manifest) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in manifest["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("values", [{}, NAMESPACED], ids=["cluster", "namespaces"])
def test_the_operator_has_these_rights_and_no_others(values: Mapping[str, Any]) -> None:
    """A right more is a decision; docs/security.md says what each is for."""
    roles = [
        m
        for (kind, _, name), m in render(values).items()
        if kind in ("Role", "ClusterRole") and name == "eidolon-operator"
    ]
    assert roles
    for role in roles:
        granted = rights(role)
        assert granted == {
            *(("eidolon.dev", "simulatedclusters", verb) for verb in ("get", "list", "watch", "delete")),
            ("eidolon.dev", "simulatedclusters/status", "patch"),
            ("eidolon.dev", "simulatedclusters/finalizers", "update"),
            *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
            *(("", "services", verb) for verb in ("get", "create", "patch")),
            *(("", "secrets", verb) for verb in ("get", "create", "delete")),
            ("", "events", "create"),
        }
        assert not any("*" in right for right in granted)


def test_in_namespaces_scope_nothing_is_granted_cluster_wide() -> None:
    manifests = render(NAMESPACED)
    assert not [key for key in manifests if key[0] in ("ClusterRole", "ClusterRoleBinding")]
    for kind in ("Role", "RoleBinding"):
        assert sorted(namespace for found, namespace, _ in manifests if found == kind) == ["system", "team-a", "team-b"]
    assert environment(manifests)["EIDOLON_NAMESPACES"] == "system,team-a,team-b"
    assert environment(render())["EIDOLON_NAMESPACES"] == ""


@pytest.mark.parametrize("values", [{}, NAMESPACED], ids=["cluster", "namespaces"])
def test_rights_are_bound_to_the_account_that_the_operator_runs_as(values: Mapping[str, Any]) -> None:
    manifests = render({**values, "serviceAccount": {"name": "mine"}}, release="one")
    assert operator_of(manifests)["spec"]["serviceAccountName"] == "mine"
    assert ("ServiceAccount", "system", "mine") in manifests
    for (kind, *_), manifest in manifests.items():
        if kind.endswith("Binding"):
            assert manifest["subjects"] == [{"kind": "ServiceAccount", "name": "mine", "namespace": "system"}]
            assert (
                manifest["roleRef"]["kind"],
                manifest["metadata"].get("namespace", ""),
                manifest["roleRef"]["name"],
            ) in manifests


def test_users_roles_are_aggregated() -> None:
    manifests = render()
    view, edit = (manifests["ClusterRole", "", f"eidolon-{name}"] for name in ("view", "edit"))
    assert {verb for *_, verb in rights(view)} == {"get", "list", "watch"}
    assert {resource for _, resource, _ in rights(edit)} == {"simulatedclusters"}
    label = "rbac.authorization.k8s.io/aggregate-to-view"
    assert view["metadata"]["labels"][label] == "true"
    assert label not in edit["metadata"]["labels"]


# -- the definition ----------------------------------------------------------------------------------------------------


def test_the_definition_is_the_one_of_the_repository() -> None:
    source = yaml.safe_load((ROOT / "crds" / "simulatedcluster.yaml").read_text("utf-8"))
    rendered = render()["CustomResourceDefinition", "", "simulatedclusters.eidolon.dev"]
    assert rendered["spec"] == source["spec"]


@pytest.mark.parametrize(("keep", "expected"), [(True, "keep"), (None, "keep"), (False, None)])
def test_the_definition_outlives_the_release_unless_asked(keep: bool | None, expected: str | None) -> None:
    rendered = render({"crds": {"keep": keep}})["CustomResourceDefinition", "", "simulatedclusters.eidolon.dev"]
    assert rendered["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == expected


def test_someone_else_may_manage_the_definition() -> None:
    assert "CustomResourceDefinition" not in {kind for kind, *_ in render({"crds": {"enabled": False}})}


# -- what is optional --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("section", "kind"), [("serviceMonitor", "ServiceMonitor"), ("podMonitor", "PodMonitor")])
def test_monitors_find_the_cores(section: str, kind: str) -> None:
    enabled = {section: {"enabled": True, "additionalLabels": {"release": "kps"}}}
    monitor = render(enabled)[kind, "system", "eidolon-cores"]
    assert monitor["metadata"]["labels"]["release"] == "kps"
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert monitor["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "eidolon",
        "app.kubernetes.io/component": "core",
    }
    endpoints = monitor["spec"]["endpoints" if section == "serviceMonitor" else "podMetricsEndpoints"]
    assert [endpoint["port"] for endpoint in endpoints] == ["http", "dcgm"]
    in_namespaces = render({**NAMESPACED, **enabled})[kind, "system", "eidolon-cores"]
    assert in_namespaces["spec"]["namespaceSelector"] == {"matchNames": ["system", "team-a", "team-b"]}
    without_dcgm = render({section: {"enabled": True, "dcgm": False}})[kind, "system", "eidolon-cores"]
    assert len(next(v for k, v in without_dcgm["spec"].items() if k.lower().endswith("endpoints"))) == 1


def test_each_dashboard_is_a_config_map_that_a_sidecar_finds() -> None:
    values = {"dashboards": {"enabled": True, "namespace": "grafana", "labelValue": "yes"}}
    maps = {key: m for key, m in render(values).items() if key[0] == "ConfigMap"}
    files = sorted((CHART / "dashboards").glob("*.json"))
    assert len(maps) == len(files)
    held = {}
    for (_, namespace, _), manifest in maps.items():
        assert namespace == "grafana"
        assert manifest["metadata"]["labels"]["grafana_dashboard"] == "yes"
        held.update(manifest["data"])
    assert {name: json.loads(text) for name, text in held.items()} == {f.name: json.loads(f.read_text()) for f in files}


def test_rules_are_those_of_the_files() -> None:
    rules = [m for (kind, *_), m in render({"prometheusRule": {"enabled": True}}).items() if kind == "PrometheusRule"]
    groups = [
        group
        for file in sorted((CHART / "rules").glob("*.yaml"))
        for group in yaml.safe_load(file.read_text())["groups"]
    ]
    assert [group for rule in rules for group in rule["spec"]["groups"]] == groups


def test_only_servers_reach_the_ingest_port() -> None:
    policies = {
        key: m
        for key, m in render({**NAMESPACED, "networkPolicy": {"enabled": True}}).items()
        if key[0] == "NetworkPolicy"
    }
    assert sorted(key[1:] for key in policies) == [
        ("system", "eidolon-core"),
        ("system", "eidolon-operator"),
        ("system", "eidolon-server"),
        ("team-a", "eidolon-core"),
        ("team-a", "eidolon-server"),
        ("team-b", "eidolon-core"),
        ("team-b", "eidolon-server"),
    ]
    core = policies["NetworkPolicy", "team-a", "eidolon-core"]["spec"]
    open_to = [rule["from"] for rule in core["ingress"] if {"port": 50051, "protocol": "TCP"} in rule["ports"]]
    labels = {"app.kubernetes.io/name": "eidolon", "app.kubernetes.io/component": "server"}
    assert open_to == [[{"podSelector": {"matchLabels": labels}}]]
    assert "egress" not in core
    assert "Egress" in core["policyTypes"]


def test_ports_and_labels_are_the_operators_own() -> None:
    """The templates repeat what `eidolon_operator.kubernetes.naming` declares."""
    manifests = render({"networkPolicy": {"enabled": True}})
    core, operator = (manifests["NetworkPolicy", "system", f"eidolon-{of}"]["spec"] for of in ("core", "operator"))
    labels = {naming.LABEL_APP: naming.APP, naming.LABEL_COMPONENT: naming.COMPONENT_CORE}
    assert core["podSelector"]["matchLabels"] == labels
    ports = [[port["port"] for port in rule["ports"]] for rule in core["ingress"]]
    assert ports == [[naming.INGEST_PORT], [naming.HTTP_PORT], [naming.HTTP_PORT, naming.DCGM_PORT]]
    assert [port["port"] for port in operator["egress"][-1]["ports"]] == [naming.HTTP_PORT]
    (container,) = operator_of(manifests)["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [settings.Settings("c:1", "i:1").port]


def test_defaults_are_the_operators_own() -> None:
    """What the chart sets where a value is null is what the operator would take by itself."""
    found = settings.read(environment(render({"operator": None, "image": {"pullPolicy": None}, "runAsUser": None})))
    assert found == settings.Settings(found.core_image, found.interposer_image)


FALLBACKS = [
    *("image.registry", "image.pullPolicy", "image.operator.repository", "image.core.repository"),
    *("image.interposer.repository", "watch.scope", "operator.resyncSeconds", "operator.logLevel"),
    *("serviceMonitor.interval", "serviceMonitor.scrapeTimeout", "serviceMonitor.dcgm"),
    *("dashboards.label", "dashboards.labelValue", "networkPolicy.apiServerPorts"),
]


@pytest.mark.parametrize("path", FALLBACKS)
def test_what_a_template_takes_for_null_is_the_default_of_the_values(path: str) -> None:
    """Helm removes a value that is null, so templates repeat defaults of values.yaml."""
    enabled: dict[str, Any] = {name: {"enabled": True} for name in ("serviceMonitor", "dashboards", "networkPolicy")}
    nulled = copy.deepcopy(enabled)
    *parents, last = path.split(".")
    node = nulled
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = None
    assert render(nulled) == render(enabled)


def test_names_hold_the_release_where_it_is_another() -> None:
    assert ("Deployment", "system", "gpu-eidolon-operator") in render(release="gpu")
    assert ("Deployment", "system", "x-operator") in render({"fullnameOverride": "x"})
    assert ("Deployment", "system", "gpu-y-operator") in render({"nameOverride": "y"}, release="gpu")
