"""The words and numbers that the agent shares with the shim, the core and the operator.

Made from ``proto/vocabulary.toml`` by ``make generate``; do not edit. ``docs/reference-vocabulary.md`` shows all of it.
"""

from __future__ import annotations

import enum
from typing import Final, Literal

ABI_VERSION: Final = 3  #: version of the shared memory between shim and agent; docs/adding.md says when it goes up
PROTOCOL: Final = 2  #: version of the gRPC protocol between agent and simulation core
REPLY_SLOTS: Final = 256  #: threads of a rank that can wait for an answer
MAX_DEVICES: Final = 64  #: devices of an emulated server


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


class MessageType(enum.IntEnum):
    """Types of the messages between shim and agent."""

    PAD = 0
    SIGNATURE = 1
    PAYLOAD = 2


class ReplyStatus(enum.IntEnum):
    """What an answer, or the end of a run, means to the rank."""

    OK = 0
    FAILED = 1
    STOP = 2


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
