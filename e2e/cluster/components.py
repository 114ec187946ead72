"""What runs in the cluster and with which settings. Everything here is a pure function of the layout.

The node and the services live on a bridge of their own: the API server has the bridge's address, so that pods and
components reach it the same way. Sockets and mounts lie below /run, which inside is a file system of the cluster's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .layout import Layout

NODE = "node-0"
BRIDGE = "cni0"
POD_NETWORK = "10.244.0.0/16"
NODE_NETWORK = "10.244.0.0/24"
NODE_ADDRESS = "10.244.0.1"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
API_PORT = 6443
DOMAIN = "cluster.local"
PAUSE_IMAGE = "eidolon.test/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


@dataclass(frozen=True)
class Component:
    """A program that the supervisor keeps running."""

    name: str
    command: tuple[str, ...]
    #: It starts once this address answers (https://, 200) or takes connections (tcp://HOST:PORT).
    after: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


ETCD = "tcp://127.0.0.1:2379"
API_READY = f"https://{NODE_ADDRESS}:{API_PORT}/readyz"
CONTAINERD_READY = f"unix://{CONTAINERD_SOCKET}"

#: Users that the API server knows by their certificates: file, user, groups, names that they serve under.
IDENTITIES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "apiserver",
        "kube-apiserver",
        (),
        (
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{DOMAIN}",
            "localhost",
            "127.0.0.1",
            API_SERVICE,
            NODE_ADDRESS,
        ),
    ),
    ("admin", "admin", ("system:masters",), ()),
    ("controller-manager", "system:kube-controller-manager", (), ()),
    ("scheduler", "system:kube-scheduler", (), ()),
    ("kubelet", f"system:node:{NODE}", ("system:nodes",), (NODE, NODE_ADDRESS)),
    ("proxy", "system:kube-proxy", (), ()),
    ("dns", "system:coredns", (), ()),
)


def components(layout: Layout, program: Callable[[str], str]) -> tuple[Component, ...]:
    """All of them, in the order in which they start. `program` gives the path of a program by its name."""
    etc, pki = layout.etc, layout.etc / "pki"

    def kubeconfig(identity: str) -> str:
        return f"--kubeconfig={etc / identity}.kubeconfig"

    return (
        Component(
            "etcd",
            (
                program("etcd"),
                "--data-dir=/run/etcd",  # in memory: a cluster of tests outlives nothing
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--heartbeat-interval=500",  # a busy machine of two cores is late now and then
                "--election-timeout=5000",
                "--logger=zap",
            ),
        ),
        Component("containerd", (program("containerd"), "--config", str(etc / "containerd.toml"))),
        Component(
            "apiserver",
            (
                program("kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                f"--secure-port={API_PORT}",
                f"--advertise-address={NODE_ADDRESS}",
                f"--service-cluster-ip-range={SERVICE_NETWORK}",
                "--allow-privileged=true",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
                f"--client-ca-file={pki / 'ca.crt'}",
                f"--tls-cert-file={pki / 'apiserver.crt'}",
                f"--tls-private-key-file={pki / 'apiserver.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={pki / 'sa.pub'}",
                f"--service-account-signing-key-file={pki / 'sa.key'}",
                f"--kubelet-client-certificate={pki / 'admin.crt'}",
                f"--kubelet-client-key={pki / 'admin.key'}",
                f"--kubelet-certificate-authority={pki / 'ca.crt'}",
                "--kubelet-preferred-address-types=InternalIP",  # the node's name does not resolve
                f"--audit-log-path={layout.audit_log}",
                f"--audit-policy-file={etc / 'audit.yaml'}",
                "--profiling=false",
            ),
            after=ETCD,
        ),
        Component(
            "controller-manager",
            (
                program("kube-controller-manager"),
                kubeconfig("controller-manager"),
                f"--service-account-private-key-file={pki / 'sa.key'}",
                f"--root-ca-file={pki / 'ca.crt'}",
                f"--cluster-signing-cert-file={pki / 'ca.crt'}",
                f"--cluster-signing-key-file={pki / 'ca.key'}",
                "--use-service-account-credentials=true",
                f"--cluster-cidr={POD_NETWORK}",
                "--allocate-node-cidrs=false",
                "--leader-elect=false",
            ),
            after=API_READY,
        ),
        Component(
            "scheduler",
            (program("kube-scheduler"), kubeconfig("scheduler"), "--leader-elect=false"),
            after=API_READY,
        ),
        Component(
            "kubelet",
            (
                program("kubelet"),
                f"--config={etc / 'kubelet.yaml'}",
                kubeconfig("kubelet"),
                f"--hostname-override={NODE}",
                f"--node-ip={NODE_ADDRESS}",
                f"--root-dir={layout.var / 'kubelet'}",
            ),
            after=CONTAINERD_READY,
        ),
        Component("proxy", (program("kube-proxy"), f"--config={etc / 'proxy.yaml'}"), after=API_READY),
        Component("dns", (program("coredns"), "-conf", str(etc / "Corefile")), after=API_READY),
    )


def files(layout: Layout, *, cni_directory: Path, cgroup: str) -> dict[str, str]:
    """The settings of the components: file name below `etc` → content. `cgroup` is where pods' cgroups go."""
    made = {f"{name}.kubeconfig": kubeconfig(layout, name) for name, *_ in IDENTITIES if name != "apiserver"}
    return made | {
        "containerd.toml": containerd_configuration(layout, cni_directory),
        "cni/10-bridge.conflist": json.dumps(cni_configuration(), indent=2),
        "kubelet.yaml": yaml.safe_dump(kubelet_configuration(layout, cgroup)),
        "proxy.yaml": yaml.safe_dump(proxy_configuration(layout)),
        "audit.yaml": yaml.safe_dump(audit_policy()),
        "Corefile": corefile(layout),
        "resolv.conf": f"nameserver {NODE_ADDRESS}\n",
    }


def kubeconfig(layout: Layout, identity: str, server: str = f"https://{NODE_ADDRESS}:{API_PORT}") -> str:
    """The settings of a client. They name the files of its certificate and key."""
    pki = layout.etc / "pki"
    user = {"client-certificate": str(pki / f"{identity}.crt"), "client-key": str(pki / f"{identity}.key")}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "eidolon-e2e",
            "clusters": [
                {"name": "eidolon-e2e", "cluster": {"server": server, "certificate-authority": str(pki / "ca.crt")}}
            ],
            "users": [{"name": identity, "user": user}],
            "contexts": [{"name": "eidolon-e2e", "context": {"cluster": "eidolon-e2e", "user": identity}}],
        }
    )


def containerd_configuration(layout: Layout, cni_directory: Path) -> str:
    """Images and containers below the state directory, sockets in /run."""
    return f"""\
version = 2
root = {json.dumps(str(layout.var / "containerd"))}
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE nobody may lower oom_score_adj, as a sandbox's is.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {json.dumps(str(cni_directory))}
    conf_dir = {json.dumps(str(layout.etc / "cni"))}
"""


def cni_configuration() -> dict[str, Any]:
    """Pods on one bridge. Network policies are not enforced."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,  # a pod may reach itself by its service
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [[{"subnet": NODE_NETWORK}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return {"cniVersion": "0.4.0", "name": "bridge", "plugins": plugins}


def kubelet_configuration(layout: Layout, cgroup: str) -> dict[str, Any]:
    """One node on which nothing is evicted: the machine's memory and disk are not the cluster's to judge."""
    pki = layout.etc / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": CONTAINERD_READY,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": DOMAIN,
        "resolvConf": str(layout.etc / "resolv.conf"),
        "podLogsDir": str(layout.var / "pod-logs"),
        "volumePluginDir": str(layout.var / "volume-plugins"),
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "localStorageCapacityIsolation": False,
        "maxPods": 110,
        "serializeImagePulls": False,
    }


def proxy_configuration(layout: Layout) -> dict[str, Any]:
    """Services by iptables. Limits of connection tracking are the machine's: a network namespace cannot set them."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(layout.etc / "proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": POD_NETWORK,
        "hostnameOverride": NODE,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "200ms"},
    }


def corefile(layout: Layout) -> str:
    """Names of the cluster only: there is no network beyond."""
    return f"""\
.:53 {{
    bind {NODE_ADDRESS}
    errors
    health {NODE_ADDRESS}:8053
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {layout.etc / "dns.kubeconfig"} eidolon-e2e
        pods insecure
        ttl 1
    }}
    cache {{
        success 1000 1
        denial 1000 1
    }}
}}
"""


def audit_policy() -> dict[str, Any]:
    """One line a request, without bodies; the components' own reads and leases are left out."""
    components = [user for name, user, *_ in IDENTITIES if name not in ("admin", "apiserver")]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": [*components, "system:apiserver"], "verbs": ["get", "list", "watch"]},
            {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
            {
                "level": "None",
                "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/openapi*", "/version", "/api*"],
            },
            {"level": "Metadata"},
        ],
    }


def objects() -> list[dict[str, Any]]:
    """What the cluster holds from the start: what CoreDNS, which here is no pod, may read."""
    rule = {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]}
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    kind, group = "ClusterRole", "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "system:coredns"}, "rules": [rule, slices]}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": group, "kind": kind, "name": "system:coredns"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "system:coredns"}],
    }
    return [role, binding]
