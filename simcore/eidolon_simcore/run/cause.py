"""Why a run ended, in one word."""

from __future__ import annotations

import enum


class Cause(enum.StrEnum):
    """Why a run ended, in one word. Words are only added: conditions and scripts name them."""

    SERVERS_NOT_READY = "ServersNotReady"  #: a server did not connect within the startup timeout
    SERVER_LOST = "ServerLost"  #: a server was taken down before its workload had ended
    AGENT_LOST = "AgentLost"  #: a server's stream broke, and nothing came that goes on where it stopped
    INGEST_REJECTED = "IngestRejected"  #: a message is not as the protocol says, or beyond a limit
    WORKLOAD_FAILED = "WorkloadFailed"  #: a server's workload ended with an exit code other than 0
    COLLECTIVE_MISMATCH = "CollectiveMismatch"  #: ranks called different collectives at the same position
    NO_ROUTE = "NoRoute"  #: the fabric has no way between two GPUs that exchange bytes: too much of it has failed
    DEADLOCK = "Deadlock"  #: no rank can go on
    RANK_MISSING = "RankMissing"  #: some ranks never started
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"  #: it took longer than was allowed, in real time
    STRICT_COST = "StrictCost"  #: too much device time has no known cost
    STEPS_DONE = "StepsDone"
    WORKLOADS_ENDED = "WorkloadsEnded"
    CANCELLED = "Cancelled"  #: somebody asked the core to end
    INTERNAL_ERROR = "InternalError"
