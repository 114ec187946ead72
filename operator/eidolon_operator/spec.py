"""A ``SimulatedCluster`` as a value: read, defaulted, validated, quantities parsed.

The schema is the CRD itself (package data, copied from ``crds/`` by the build), so that a file cannot mean one thing
here and another in a cluster. ``schema`` checks its types and bounds, and ``rules`` its rules across fields. What
neither can say (quantities that parse, ranks that a command names) is checked here. Problems of one kind are reported
together.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from eidolon_operator import folding, launchers, rules, schema, topology, units, yamlfile
from eidolon_operator.folding import Fold, Placement
from eidolon_operator.schema import Problem

API_VERSION: Final = "eidolon.dev/v1alpha1"
KIND: Final = "SimulatedCluster"
_NAME: Final = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
#: Rules that do not apply to a local run, which uses the programs of its machine instead of an image.
_ONLY_IN_A_CLUSTER: Final = ("has(self.image)",)
_NAME_MAX: Final = 51  # NAME-server-2047 stays within the 63 characters of a DNS label


class SpecError(Exception):
    """The object is not a valid ``SimulatedCluster``; each problem names a field."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


@dataclass(frozen=True, slots=True)
class Nccl:
    """Device memory of communicators, and NCCL's limits. The CRD describes them."""

    kernel_bytes: int
    communicator_bytes: int
    peer_bytes: int
    payload_bytes: int
    missing_after_s: float
    missing_after_virtual_s: float


@dataclass(frozen=True, slots=True)
class Network:
    """How GPUs reach each other. A bandwidth of None is what the catalogue says of the GPU."""

    inter_bytes_per_s: int | None
    inter_latency_ns: int
    intra_bytes_per_s: int | None
    nccl: Nccl
    topology: Mapping[str, Any] | None = None  #: in the plan's words: `topology.read`


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs on each emulated server. None: the object does not say."""

    command: tuple[str, ...]  #: command and args joined
    env: tuple[tuple[str, str], ...]
    launcher: str
    ranks_per_server: int
    image: str | None = None
    working_dir: str | None = None
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    #: The whole section of the object. The builders of pods take from here what only matters to a pod.
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """Equal servers. They are numbered after those of the groups before."""

    name: str
    servers: int
    gpu: str
    gpu_memory_bytes: int | None
    context_bytes: int | None


@dataclass(frozen=True, slots=True)
class Recording:
    """What is kept of a run beyond its summary."""

    enabled: bool
    limit_bytes: int
    claim: str | None = None  #: name of the user's PersistentVolumeClaim for the run directory


@dataclass(frozen=True, slots=True)
class Values:
    """Stand-ins for numbers that nobody computes, as settings of the shim (interposer/torch/defaults.h)."""

    loss: str  #: START, or START:END:STEPS
    routing: str  #: balanced, or zipf:EXPONENT:SEED


@dataclass(frozen=True, slots=True)
class Spec:
    """A ``SimulatedCluster`` that is valid, with the CRD's defaults filled in and quantities as numbers.

    Nothing here has a default of its own but what an object may leave out: None or empty says that it did.
    """

    name: str
    servers: int
    gpus_per_server: int
    gpu: str
    gpu_memory_bytes: int | None  #: None here and in the next field: what the catalogue says of the GPU
    context_bytes: int | None
    network: Network
    workload: Workload
    steps: int | None
    time_sync: str
    host_cost: str
    strict: bool
    unknown_limit: float
    values: Values
    startup_timeout_s: int
    recording: Recording
    on_server_lost: str
    backoff_limit: int
    suspend: bool
    ttl_s: int  #: how long the object stays after the end of the run
    server_groups: tuple[ServerGroup, ...] = ()  #: empty: all servers are as ``gpu`` says
    time_limit_s: float | None = None
    fold: Fold | None = None  #: None: every rank runs
    placement: Placement = field(init=False, compare=False, repr=False)  #: which ranks run, and where

    def __post_init__(self) -> None:
        groups = [(group.servers, (group.gpu, group.gpu_memory_bytes, group.context_bytes)) for group in self.groups]
        kinds = [kind for servers, kind in groups for _ in range(servers)]
        object.__setattr__(self, "placement", folding.place(self.fold, kinds, self.workload.ranks_per_server))

    @property
    def groups(self) -> tuple[ServerGroup, ...]:
        """The groups of servers, also where all servers are equal."""
        everything = ServerGroup("", self.servers, self.gpu, self.gpu_memory_bytes, self.context_bytes)
        return self.server_groups or (everything,)

    @property
    def hardware(self) -> str:
        """The hardware in a phrase, such as ``2 servers x 8 h100-sxm``. Several models are in the servers' order."""
        models = dict.fromkeys(group.gpu for group in self.server_groups) or [self.gpu]
        return f"{self.servers} server{'s' if self.servers > 1 else ''} x {self.gpus_per_server} {'/'.join(models)}"

    @property
    def world(self) -> int:
        """Ranks over all servers, whether they run or not."""
        return self.servers * self.workload.ranks_per_server


@functools.cache
def crd() -> Mapping[str, Any]:
    """The CustomResourceDefinition that this version was built with."""
    text = (importlib.resources.files("eidolon_operator") / "crds" / "simulatedcluster.yaml").read_text("utf-8")
    # The file is long, and pure Python takes a second for it, so libyaml is used where it is there.
    document: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


def object_schema() -> Mapping[str, Any]:
    """The OpenAPI schema of the object, from the CRD."""
    found: Mapping[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def default(path: str) -> Any:
    """The CRD's default of a field of the spec, such as ``workload.launcher``. Raises KeyError if it has none."""
    schema = object_schema()["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema["default"]


def load(path: Path, *, cluster: bool = False) -> Spec:
    """The ``SimulatedCluster`` in a YAML file; see :func:`parse`."""
    return parse(read(path), source=str(path), cluster=cluster)


def read(path: Path) -> Any:
    """The one object in a YAML file, not yet validated."""
    try:
        documents = yamlfile.read(path)
    except yamlfile.YamlError as error:
        raise SpecError(str(path), error.problems) from None
    if len(documents) != 1:
        raise SpecError(str(path), [Problem("file", f"holds {len(documents)} objects; allowed: one {KIND}")])
    return documents[0]


def parse(document: Any, *, source: str, cluster: bool = False) -> Spec:
    """The object as a :class:`Spec`; raises :class:`SpecError` with everything that is wrong with it.

    With ``cluster`` it must be one that a cluster takes. Otherwise what only a cluster needs may be missing.
    """
    document = _checked(document, source, cluster=cluster)
    body = document["spec"]
    quantities = _Quantities(body)
    workload = _workload(body, quantities)
    memory = quantities.optional("gpu.memory", units.SIZE)
    context = quantities.optional("gpu.contextMemory", units.SIZE_OR_NOTHING)
    network = _network(body["network"], quantities)
    startup_ns = quantities.required("startupTimeout", units.TIME_LIMIT)
    limit_ns = quantities.optional("timeLimit", units.TIME_LIMIT)
    recording = body["recording"]
    recording_limit = quantities.required("recording.limit", units.SIZE)
    groups = tuple(_groups(body, quantities, memory, context))
    fold = _fold(body, workload, quantities)
    if quantities.problems:
        raise SpecError(source, quantities.problems)
    spec = Spec(
        name=document["metadata"]["name"],
        servers=body["servers"],
        gpus_per_server=body["gpusPerServer"],
        gpu=body["gpu"]["model"],
        gpu_memory_bytes=memory,
        context_bytes=context,
        network=network,
        workload=workload,
        steps=body.get("steps"),
        time_sync=body["timeSync"],
        host_cost=body["cost"]["host"],
        strict=body["cost"]["strict"],
        unknown_limit=float(body["cost"]["unknownLimit"]),
        values=_values(body["values"]),
        startup_timeout_s=max(1, -(-startup_ns // 10**9)),
        recording=Recording(recording["enabled"], recording_limit, recording.get("claimName")),
        on_server_lost=body["onServerLost"],
        backoff_limit=body["backoffLimit"],
        suspend=body["suspend"],
        ttl_s=body["ttlSecondsAfterFinished"],
        server_groups=groups,
        time_limit_s=limit_ns / 1e9 if limit_ns is not None else None,
        fold=fold,
    )
    if fold is not None and (found := list(_launch_problems(spec))):
        raise SpecError(source, found)
    return spec


def _checked(document: Any, source: str, *, cluster: bool) -> Any:
    """The object with the schema's defaults filled in. Raises :class:`SpecError` if it breaks the schema or a rule."""
    found = _identity_problems(document)
    if not found:
        document = schema.with_defaults(object_schema(), document)
        found = list(schema.problems(object_schema(), document))
    if not found:
        found = list(rules.problems(object_schema(), document, without=() if cluster else _ONLY_IN_A_CLUSTER))
    if found:
        raise SpecError(source, found)
    return document


def only_in_kubernetes(spec: Spec) -> list[str]:
    """Fields of the object that a local run ignores, although a cluster would act on them."""
    given = spec.workload.document
    found = [f"spec.workload.{name}" for name in ("envFrom", "volumes", "volumeMounts") if given.get(name)]
    found += [f"spec.workload.env[{item['name']}].valueFrom" for item in given.get("env", ()) if "valueFrom" in item]
    if spec.suspend:
        found.append("spec.suspend")
    if spec.on_server_lost != "Fail":
        found.append("spec.onServerLost")
    if spec.recording.claim is not None:
        found.append("spec.recording.claimName")
    return found


def _workload(body: Mapping[str, Any], quantities: _Quantities) -> Workload:
    work = body["workload"]
    command = (*work["command"], *work["args"])
    given = work.get("ranksPerServer")
    started = launchers.torchrun_ranks(command) if work["launcher"] == "none" else None
    ranks = given or started or body["gpusPerServer"]
    if given and started and given != started:
        message = f"{given} is not what torchrun is told to start (--nproc-per-node {started}); give one of the two"
        quantities.problems.append(Problem("spec.workload.ranksPerServer", message))
    if ranks > body["gpusPerServer"]:
        quantities.problems.append(
            Problem(
                "spec.workload.ranksPerServer",
                f"{ranks} ranks do not fit the {body['gpusPerServer']} GPUs of a server (spec.gpusPerServer): "
                "each rank needs a device",
            )
        )
    return Workload(
        command=command,
        env=tuple((item["name"], item.get("value", "")) for item in work["env"] if "valueFrom" not in item),
        launcher=work["launcher"],
        ranks_per_server=ranks,
        image=work.get("image"),
        working_dir=work.get("workingDir"),
        tokens_per_step=work.get("tokensPerStep"),
        samples_per_step=work.get("samplesPerStep"),
        document=work,
    )


def _network(section: Mapping[str, Any], quantities: _Quantities) -> Network:
    inter = quantities.optional("network.interServer.bandwidth", units.RATE)
    latency_ns = quantities.required("network.interServer.latency", units.LATENCY)
    intra = quantities.optional("network.intraServer.bandwidth", units.RATE)
    fabric, problems = topology.read(section.get("topology"))
    quantities.problems += problems
    if fabric is not None:  # what the spec says itself overrides a preset
        for name, value in (("nic_bytes_per_s", inter), ("nvlink_bytes_per_s", intra)):
            if value is not None:
                fabric.setdefault(name, value)
    return Network(inter, latency_ns, intra, _nccl(section["nccl"], quantities), fabric)


def _nccl(section: Mapping[str, Any], quantities: _Quantities) -> Nccl:
    def size_bytes(name: str) -> int:
        return quantities.required(f"network.nccl.{name}", units.SIZE_OR_NOTHING)

    def seconds(name: str) -> float:
        return quantities.required(f"network.nccl.{name}", units.TIME_LIMIT) / 1e9

    return Nccl(
        size_bytes("kernelMemory"),
        size_bytes("communicatorMemory"),
        size_bytes("peerMemory"),
        section["payloadLimitBytes"],
        seconds("missingAfter"),
        seconds("missingAfterVirtual"),
    )


def _groups(
    body: Mapping[str, Any], quantities: _Quantities, memory_bytes: int | None, context_bytes: int | None
) -> Iterator[ServerGroup]:
    for index, group in enumerate(body.get("serverGroups", ())):
        gpu, path = group["gpu"], f"serverGroups.{index}.gpu"
        memory = quantities.optional(f"{path}.memory", units.SIZE)
        context = quantities.optional(f"{path}.contextMemory", units.SIZE_OR_NOTHING)
        if "model" not in gpu:  # another model's memory is its own
            memory = memory_bytes if memory is None else memory
            context = context_bytes if context is None else context
        yield ServerGroup(group["name"], group["servers"], gpu.get("model", body["gpu"]["model"]), memory, context)


def _fold(body: Mapping[str, Any], workload: Workload, quantities: _Quantities) -> Fold | None:
    section = body["fold"]
    if section["mode"] == "none":
        return None
    axes = tuple((item["axis"], item["size"]) for item in section.get("parallel", ()))
    fold = Fold(section["mode"], axes, tuple(section.get("keep", ())))
    servers, ranks = body["servers"], workload.ranks_per_server
    if axes and fold.mesh_size != servers * ranks:
        mesh = " x ".join(f"{axis} {size}" for axis, size in axes)
        message = f"{mesh} is {fold.mesh_size:,} ranks; the run has {servers * ranks:,} ({servers:,} servers x {ranks})"
        quantities.problems.append(Problem("spec.fold.parallel", message))
    return fold


def _launch_problems(spec: Spec) -> Iterator[Problem]:
    work = spec.workload
    variables = [item["name"] for item in work.document["env"]]
    return launchers.fold_problems(work.command, variables, work.launcher, spec.gpus_per_server, spec.placement)


def _values(body: Mapping[str, Any]) -> Values:
    loss, routing = body["loss"], body["routing"]
    start, steps = f"{float(loss['start']):g}", loss.get("endAfterSteps")
    return Values(
        loss=start if steps is None else f"{start}:{float(loss['end']):g}:{steps}",
        routing="balanced"
        if routing["distribution"] == "balanced"
        else f"zipf:{float(routing['exponent']):g}:{routing['seed']}",
    )


def _identity_problems(document: Any) -> list[Problem]:
    """Problems with apiVersion, kind and metadata, without which the rest cannot be judged."""
    if not isinstance(document, dict):
        return [Problem("file", f"holds a {type(document).__name__}, not an object of kind {KIND}")]
    found = [
        Problem(key, f"{document.get(key)!r} is not {expected}")
        for key, expected in (("apiVersion", API_VERSION), ("kind", KIND))
        if document.get(key) != expected
    ]
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        found.append(Problem("metadata.name", "is required"))
    elif not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        found.append(
            Problem("metadata.name", f"{name!r} must match {_NAME.pattern} and have at most {_NAME_MAX} characters")
        )
    return found


class _Quantities:
    """Parses quantities of the object and collects what is wrong with them."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.problems: list[Problem] = []
        self._body = body

    def optional(self, path: str, parse_text: Callable[[str], int]) -> int | None:
        """The quantity at a path below ``spec``, or None if the object has none."""
        value: Any = self._body
        for key in path.split("."):
            value = value[int(key)] if isinstance(value, list) else value.get(key)
        if value is None:
            return None
        try:
            return parse_text(value)
        except ValueError as error:
            field = re.sub(r"\.([0-9]+)\.", r"[\1].", path)
            self.problems.append(Problem(f"spec.{field}", str(error)))
            return None

    def required(self, path: str, parse_text: Callable[[str], int]) -> int:
        """The quantity of a field that has a default. It is 0 if the text is wrong, since then the problem is kept."""
        return self.optional(path, parse_text) or 0
