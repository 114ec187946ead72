"""Why a run ended, in one word."""

from __future__ import annotations

import enum


class Cause(enum.StrEnum):
    """Why a run ended. Conditions and scripts name these words, so they are never changed; new ones may be added."""

    SERVERS_NOT_READY = "ServersNotReady"  #: a server did not connect within the startup timeout
    SERVER_LOST = "ServerLost"  #: a server was taken down before its workload had ended
    AGENT_LOST = "AgentLost"  #: a server's stream broke, and no agent came back that continues it
    INGEST_REJECTED = "IngestRejected"  #: a message is not as the protocol says, or beyond a limit
    WORKLOAD_FAILED = "WorkloadFailed"  #: a server's workload ended with an exit code other than 0
    COLLECTIVE_MISMATCH = "CollectiveMismatch"  #: ranks called different collectives at the same position
    NO_ROUTE = "NoRoute"  #: so much of the fabric has failed that no way is left between two GPUs that exchange bytes
    DEADLOCK = "Deadlock"  #: no rank can go on
    RANK_MISSING = "RankMissing"  #: some ranks never started, or one skipped a collective
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"  #: it took longer in real time than was allowed
    STRICT_COST = "StrictCost"  #: a strict run whose results are in doubt, such as by device time of unknown cost
    STEPS_DONE = "StepsDone"
    WORKLOADS_ENDED = "WorkloadsEnded"
    CANCELLED = "Cancelled"  #: somebody asked the core to end
    INTERNAL_ERROR = "InternalError"
