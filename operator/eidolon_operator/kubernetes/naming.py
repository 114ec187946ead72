"""What things are called in a cluster: objects, labels, containers, ports, volumes and paths, each declared here once.

Names follow from the object's name and a server's number alone, so a pod that is made twice is made once. The chart's
templates and the rules of the CRD repeat some of these words in their own languages; tests compare them with this file.
"""

from __future__ import annotations

from typing import Final

from eidolon_operator import launching
from eidolon_operator.spec import API_VERSION

GROUP, VERSION = API_VERSION.split("/")
PLURAL: Final = "simulatedclusters"

#: Field manager of our writes, source of our Events, and value of the label ``managed-by``.
MANAGER: Final = "eidolon-operator"
LABEL_MANAGER: Final = "app.kubernetes.io/managed-by"
LABEL_APP: Final = "app.kubernetes.io/name"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_OBJECT: Final = f"{GROUP}/simulatedcluster"
LABEL_SERVER: Final = f"{GROUP}/server"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
#: Selects all pods that the operator has made.
MANAGED_BY: Final = f"{LABEL_MANAGER}={MANAGER}"
APP: Final = "eidolon"  #: value of the label ``name``

# The two kinds of pods, as the label ``component`` tells them apart.
COMPONENT_CORE: Final = "core"
COMPONENT_SERVER: Final = "server"

# Containers. The simulation core is alone in its pod; the other three make up the pod of an emulated server.
CORE: Final = "core"
INSTALL: Final = "install"
AGENT: Final = "agent"
WORKLOAD: Final = "workload"  #: runs the user's program

# Ports, by number and, where a Service or a probe refers to one, by name.
INGEST_PORT: Final = 50051  #: of the core: agents send event records here
HTTP_PORT: Final = 8080  #: of the core and of the operator: health, status, metrics, files
DCGM_PORT: Final = 9400  #: of the core: metrics under DCGM's names
MASTER_PORT: Final = 29500  #: of torch.distributed, on server 0
INGEST: Final = "ingest"
HTTP: Final = "http"
DCGM: Final = "dcgm"
MASTER: Final = "master"

# Volumes. The CRD keeps the prefix from the user's own.
VOLUME_PREFIX: Final = "eidolon-"
VOLUME_BIN: Final = f"{VOLUME_PREFIX}bin"
VOLUME_RUN: Final = f"{VOLUME_PREFIX}run"
VOLUME_CONFIG: Final = f"{VOLUME_PREFIX}config"
VOLUME_SCRATCH: Final = f"{VOLUME_PREFIX}scratch"
VOLUME_SHM: Final = f"{VOLUME_PREFIX}shm"
VOLUME_OUT: Final = f"{VOLUME_PREFIX}out"
VOLUME_TMP: Final = f"{VOLUME_PREFIX}tmp"

# Where the volumes are mounted. The CRD keeps the user's own mounts out of the first three.
BIN: Final = "/eidolon"  #: launcher and libraries
RUN: Final = "/run/eidolon"  #: EIDOLON_DIR, shared by agent and workload
CONFIG: Final = "/etc/eidolon"  #: the Secret of the attempt
OUT: Final = "/var/lib/eidolon"  #: run directory of the core
SCRATCH: Final = "/var/tmp/eidolon"  #: home and temporary files of a workload whose image has none that it can write
SHM: Final = "/dev/shm"
TMP: Final = "/tmp"

# Keys of the Secret of an attempt, and so names of files in CONFIG.
PLAN: Final = launching.PLAN
TOKEN: Final = "token"
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"


def core_name(name: str) -> str:
    """Name of the pod and the Service of the simulation core of an object."""
    return f"{name}-core"


def server_name(name: str, server: int) -> str:
    """Name of the pod of an emulated server, counted from 0."""
    return f"{name}-server-{server}"


def secret_name(name: str, attempt: int) -> str:
    """Name of the Secret of an attempt: its plan, token and certificate."""
    return f"{name}-ingest-{attempt}"
