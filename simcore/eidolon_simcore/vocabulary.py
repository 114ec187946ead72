"""The words and numbers that the simulation core shares with the shim and the engine.

Made from ``proto/vocabulary.toml`` by ``make generate``; do not edit. ``docs/reference-vocabulary.md`` shows all of it.
"""

from __future__ import annotations

import enum
from typing import Final, Literal

PROTOCOL: Final = 2  #: version of the gRPC protocol between agent and simulation core
CALL_IDS: Final = 1024  #: signatures of kind `call` have ids below this, all others have ids from it on


class Kind(enum.IntEnum):
    """What one intercepted call was."""

    HOST = 1
    KERNEL = 2
    COPY = 3
    SET = 4
    EVENT_RECORD = 5
    STREAM_WAIT = 6
    COLLECTIVE = 7
    CALLBACK = 8
    SYNC_STREAM = 9
    SYNC_EVENT = 10
    SYNC_DEVICE = 11
    QUERY_STREAM = 12
    QUERY_EVENT = 13
    EVENT_TIME = 14
    CLOCK = 15
    SLEEP = 16
    MARK = 17
    COMM_INIT = 18
    COMM_DESTROY = 19
    GRAPH_LAUNCH = 20
    STREAM_CREATE = 21
    MEMORY = 23
    IDLE = 24
    RESUME = 25
    OUT_OF_MEMORY = 26
    EXIT = 27
    UNMODELLED = 28
    UNKNOWN_READ = 29


class RecordFlag(enum.IntFlag):
    """Bits of a record's ``flags``."""

    FOREGROUND = 1
    BLOCKING = 2
    GROUP_MORE = 4
    IN_GRAPH = 8
    AUTOGRAD = 16
    PAYLOAD = 32


class Origin(enum.IntEnum):
    """What the reader of a value that was never computed was given."""

    NOTHING = 0
    NUMBER = 1
    REDUCTION = 2
    LOSS = 3
    NORM = 4
    FINITE = 5
    ROUTING = 6


class Op(enum.IntEnum):
    """Operations that an engine understands: a coarser set than the kinds of event record."""

    HOST = 0
    WORK = 1
    RECORD = 2
    WAIT = 3
    COLLECTIVE = 4
    SYNC_LANE = 5
    SYNC_KEY = 6
    SYNC_DEVICE = 7
    QUERY_LANE = 8
    QUERY_KEY = 9
    KEY_TIME = 10
    CLOCK = 11
    MARK = 12
    CALLBACK = 13
    IDLE = 14
    RESUME = 15


class OpFlag(enum.IntFlag):
    """Bits of an operation's ``flags``."""

    ASK = 1
    GROUP_MORE = 2
    NO_HOST = 4
    BACKGROUND = 8


#: By bit of a communicator's ``algorithms``.
NCCL_ALGORITHMS: Final = ("tree", "ring", "nvls", "nvls_tree", "pat", "hierarchical")
#: By bit of a communicator's ``protocols``.
NCCL_PROTOCOLS: Final = ("LL", "LL128", "Simple")

#: Kinds of signature.
SignatureKind = Literal[
    "call",
    "op",
    "kernel",
    "gemm",
    "conv",
    "attention",
    "library",
    "copy",
    "set",
    "comm",
    "split",
    "symmetric",
    "collective",
    "mark",
    "memory",
    "unmodelled",
    "timeout",
    "read",
]

#: Attributes of signatures, of whatever kind.
Attribute = Literal[
    "present",
    "bytes",
    "written",
    "tensors",
    "tensors_numel",
    "tensors_bytes",
    "in0_numel",
    "in1_numel",
    "in2_numel",
    "in3_numel",
    "in4_numel",
    "in5_numel",
    "in0_itemsize",
    "in1_itemsize",
    "in2_itemsize",
    "in3_itemsize",
    "in4_itemsize",
    "in5_itemsize",
    "in0_dtype",
    "in1_dtype",
    "in2_dtype",
    "in3_dtype",
    "in4_dtype",
    "in5_dtype",
    "in0_layout",
    "in1_layout",
    "in2_layout",
    "in3_layout",
    "in4_layout",
    "in5_layout",
    "in0_dims",
    "in1_dims",
    "in2_dims",
    "in3_dims",
    "in4_dims",
    "in5_dims",
    "in0_d0",
    "in0_d1",
    "in0_d2",
    "in0_d3",
    "in0_d4",
    "in1_d0",
    "in1_d1",
    "in1_d2",
    "in1_d3",
    "in1_d4",
    "in2_d0",
    "in2_d1",
    "in2_d2",
    "in2_d3",
    "in2_d4",
    "in3_d0",
    "in3_d1",
    "in3_d2",
    "in3_d3",
    "in3_d4",
    "in4_d0",
    "in4_d1",
    "in4_d2",
    "in4_d3",
    "in4_d4",
    "in5_d0",
    "in5_d1",
    "in5_d2",
    "in5_d3",
    "in5_d4",
    "is_causal",
    "custom_mask_type",
    "gx",
    "gy",
    "gz",
    "bx",
    "by",
    "bz",
    "smem",
    "n",
    "op",
    "m",
    "k",
    "batch",
    "ta",
    "tb",
    "atype",
    "ctype",
    "computetype",
    "epilogue",
    "c",
    "h",
    "w",
    "r",
    "s",
    "oh",
    "ow",
    "stride_h",
    "stride_w",
    "pad_h",
    "pad_w",
    "dil_h",
    "dil_w",
    "groups",
    "dtype",
    "b",
    "sq",
    "skv",
    "d",
    "dv",
    "causal",
    "kvh",
    "bias",
    "flops",
    "pinned",
    "pages",
    "id",
    "rank",
    "size",
    "device",
    "algorithms",
    "protocols",
    "nvls",
    "version",
    "parent",
    "position",
    "color",
    "key",
    "comm",
    "count",
    "root",
    "peer",
    "redop",
    "scale",
    "shots",
    "value",
    "ms",
    "default",
]

#: Attribute ``in{i}_numel``.
IN_NUMEL: Final[tuple[Attribute, ...]] = (
    "in0_numel",
    "in1_numel",
    "in2_numel",
    "in3_numel",
    "in4_numel",
    "in5_numel",
)

#: Attribute ``in{i}_itemsize``.
IN_ITEMSIZE: Final[tuple[Attribute, ...]] = (
    "in0_itemsize",
    "in1_itemsize",
    "in2_itemsize",
    "in3_itemsize",
    "in4_itemsize",
    "in5_itemsize",
)

#: Attribute ``in{i}_dtype``.
IN_DTYPE: Final[tuple[Attribute, ...]] = (
    "in0_dtype",
    "in1_dtype",
    "in2_dtype",
    "in3_dtype",
    "in4_dtype",
    "in5_dtype",
)

#: Attribute ``in{i}_layout``.
IN_LAYOUT: Final[tuple[Attribute, ...]] = (
    "in0_layout",
    "in1_layout",
    "in2_layout",
    "in3_layout",
    "in4_layout",
    "in5_layout",
)

#: Attribute ``in{i}_dims``.
IN_DIMS: Final[tuple[Attribute, ...]] = (
    "in0_dims",
    "in1_dims",
    "in2_dims",
    "in3_dims",
    "in4_dims",
    "in5_dims",
)

#: Attribute ``in{i}_d{d}``.
IN_D: Final[tuple[tuple[Attribute, ...], ...]] = (
    ("in0_d0", "in0_d1", "in0_d2", "in0_d3", "in0_d4"),
    ("in1_d0", "in1_d1", "in1_d2", "in1_d3", "in1_d4"),
    ("in2_d0", "in2_d1", "in2_d2", "in2_d3", "in2_d4"),
    ("in3_d0", "in3_d1", "in3_d2", "in3_d3", "in3_d4"),
    ("in4_d0", "in4_d1", "in4_d2", "in4_d3", "in4_d4"),
    ("in5_d0", "in5_d1", "in5_d2", "in5_d3", "in5_d4"),
)

#: Keys of server.conf.
ConfKey = Literal[
    "server",
    "mode",
    "host_cost",
    "host.function",
    "host.operator",
    "host.ages",
    "devices",
    "gpu.name",
    "gpu.cc",
    "gpu.sm_count",
    "gpu.memory_bytes",
    "gpu.context_bytes",
    "gpu.clock_khz",
    "gpu.memory_clock_khz",
    "gpu.memory_bus_bits",
    "gpu.l2_bytes",
    "gpu.smem_per_block",
    "gpu.smem_per_block_optin",
    "gpu.smem_per_sm",
    "gpu.reserved_smem_per_block",
    "gpu.regs_per_sm",
    "gpu.max_threads_per_sm",
    "gpu.max_blocks_per_sm",
    "gpu.nvlinks",
    "gpu.power_limit_mw",
    "payload_limit",
    "nccl.kernel_bytes",
    "nccl.comm_bytes",
    "nccl.peer_bytes",
    "known_limit",
    "values.loss",
    "values.routing",
    "reply_timeout_ms",
    "ring.records",
    "ring.defs_bytes",
    "ring.inbox_bytes",
    "host_memory.bytes",
    "host_memory.dir",
    "host_memory.patience_ms",
    "cublas.handle_bytes",
    "cudnn.handle_bytes",
]
