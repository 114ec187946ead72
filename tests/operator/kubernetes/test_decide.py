"""The policies, each with a table of its own: a situation, and what the policy answers.

None means that the policy has no opinion, so the next one is asked. How they work together over the life of an object
is in test_life.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from kubernetes_lab import SETTINGS, make_object

from eidolon_operator import spec as specs
from eidolon_operator.kubernetes import decide as deciding
from eidolon_operator.kubernetes.decide import POLICIES, Decision, decide
from eidolon_operator.kubernetes.situation import Situation
from eidolon_operator.kubernetes.world import CoreReading, Ended, PodState, Refusal, World, timestamp

NOW: Final = 1_800_000_000.0
RUNTIME: Final = SETTINGS.runtime()
CORE, SERVER_0, SERVER_1 = "demo-core", "demo-server-0", "demo-server-1"
STARTUP_S: Final = 60  #: startupTimeout of all situations here

#: Status of an attempt that began 10 s ago, and of one whose workload runs since then.
STARTING: Final[Mapping[str, Any]] = {
    "attempt": 1,
    "phase": "Starting",
    "startTime": timestamp(NOW - 10),
    "runtime": RUNTIME,
}
RUNNING: Final[Mapping[str, Any]] = {**STARTING, "phase": "Running", "runningTime": timestamp(NOW - 5)}
FAILED: Final[Mapping[str, Any]] = {**RUNNING, "phase": "Failed", "completionTime": timestamp(NOW - 5)}


def pod(name: str, phase: str = "Running", **facts: Any) -> PodState:
    """A pod of attempt 1; one that runs is ready."""
    server = int(name.rpartition("-")[2]) if "server" in name else None
    given = {"attempt": 1, "ready": phase == "Running", **facts}
    return PodState(name, f"uid-{name}", "uid-demo", server=server, phase=phase, **given)


def ended(ago_s: float = 0.0, container: str = "workload", code: int = 3, line: str = "boom") -> tuple[Ended, ...]:
    """A container that ended with an error so long ago."""
    return (Ended(container, code, "Error", line, NOW - ago_s),)


UP: Final = (pod(CORE), pod(SERVER_0), pod(SERVER_1))


def says(state: str, reason: str = "", message: str = "told", **more: Any) -> CoreReading:
    """An answer of the core."""
    return CoreReading({"state": state, "reason": reason, "message": message, **more})


def situation(
    status: Mapping[str, Any],
    *pods: PodState,
    core: CoreReading | None = None,
    refused: Mapping[str, Refusal] | None = None,
    **fields: Any,
) -> Situation:
    """An object of two servers with this status, and the world around it. ``fields`` are of its spec."""
    document = make_object(startupTimeout=f"{STARTUP_S}s", **fields)
    spec = specs.parse(document, source="test")
    world = World({found.name: found for found in pods}, core, refused or {})
    return Situation(spec, "lab", 1, status, world, NOW, RUNTIME)


class Answer(NamedTuple):
    """What matters of a decision."""

    phase: str
    reason: str = ""  #: of the condition that the phase names
    message: str = ""
    delete: tuple[str, ...] = ()
    make: tuple[str, ...] = ()
    again_s: float | None = None
    delete_object: bool = False


def answer(decision: Decision | None) -> Answer | None:
    """A decision in short."""
    if decision is None:
        return None
    phase = decision.status["phase"]
    conditions = {found["type"]: found for found in decision.status.get("conditions", ())}
    found = conditions.get({"Pending": "Running", "Starting": "Running"}.get(phase, phase), {})
    return Answer(
        phase,
        found.get("reason", ""),
        found.get("message", ""),
        tuple(found.name for found in decision.delete),
        decision.make,
        decision.again_s,
        decision.delete_object,
    )


def cases(*rows: tuple[str, Situation, Answer | None]) -> pytest.MarkDecorator:
    """A table: what each row shows, the situation, the answer."""
    return pytest.mark.parametrize(("found", "expected"), [row[1:] for row in rows], ids=[row[0] for row in rows])


# -- an object that cannot be run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, Answer("Failed", "InvalidSpec", "why (operator V)", again_s=3600.0), id="it fails"),
        pytest.param(RUNNING, Answer("Running"), id="an attempt that has begun is left alone"),
        pytest.param(FAILED, Answer("Failed", again_s=3595.0), id="one that is over is kept"),
        pytest.param(
            {**FAILED, "completionTime": timestamp(NOW - 3600)},
            Answer("Failed", again_s=0, delete_object=True),
            id="until its time is over",
        ),
    ],
)
def test_an_object_that_cannot_be_run(status: Mapping[str, Any], expected: Answer) -> None:
    document = make_object()
    del document["spec"]["ttlSecondsAfterFinished"]  # then it is the CRD's default
    runtime = {**RUNTIME, "version": "V"}
    found = decide({**document, "status": status}, None, World(), now=NOW, runtime=runtime, why="why")
    assert answer(found) == expected


# -- over or at rest ---------------------------------------------------------------------------------------------------


@cases(
    ("what is not over is not its business", situation(RUNNING, *UP), None),
    (
        "workloads have a minute to end by themselves",
        situation(FAILED, *UP, ttlSecondsAfterFinished=600),
        Answer("Failed", again_s=55.0),
    ),
    (
        "then they are deleted",
        situation({**FAILED, "completionTime": timestamp(NOW - 60)}, *UP, ttlSecondsAfterFinished=600),
        Answer("Failed", delete=(SERVER_0, SERVER_1), again_s=540.0),
    ),
    (
        "the object goes when its time is over",
        situation({**FAILED, "completionTime": timestamp(NOW - 600)}, *UP, ttlSecondsAfterFinished=600),
        Answer("Failed", delete_object=True),
    ),
)
def test_clean_up(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.clean_up(found)) == expected


@pytest.mark.parametrize(("ago_s", "shown"), [(6, True), (5, True), (4, False)])
def test_clean_up_adds_only_failures_from_before_the_end(ago_s: float, shown: bool) -> None:
    found = situation(FAILED, pod(SERVER_1, "Failed", ended=ended(ago_s)))
    decision = deciding.clean_up(found)
    assert decision is not None
    assert [item["pod"] for item in decision.status.get("failures", ())] == [SERVER_1] * shown


@cases(
    ("unless asked", situation(RUNNING, *UP), None),
    (
        "all pods go",
        situation(RUNNING, *UP, suspend=True),
        Answer(
            "Suspended",
            "Suspended",
            "spec.suspend is true; a new attempt begins when it is false",
            delete=(CORE, SERVER_0, SERVER_1),
        ),
    ),
)
def test_suspend(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.suspend(found)) == expected


# -- what the core has said --------------------------------------------------------------------------------------------


@cases(
    ("nothing", situation(RUNNING, *UP), None),
    ("it runs", situation(RUNNING, *UP, core=says("Running")), None),
    (
        "with its word for it",
        situation(RUNNING, *UP, core=says("Succeeded", "StepsDone")),
        Answer("Succeeded", "StepsDone", "told", again_s=60.0),
    ),
    (
        "or without",
        situation(RUNNING, *UP, core=says("Succeeded"), ttlSecondsAfterFinished=30),
        Answer("Succeeded", "Finished", "told", again_s=30),
    ),
    ("a core of another attempt counts for nothing", situation(RUNNING, core=says("Succeeded", attempt=2)), None),
)
def test_core_succeeded(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.core_succeeded(found)) == expected


#: What a core says that lost server 1 before all had said hello, or after.
MISSED: Final = says("Failed", "ServerLost", servers={"missing": [1], "ended": {}})
LOST: Final = says("Failed", "ServerLost", servers={"missing": [], "ended": {}})
AGENT: Final = says("Failed", "AgentLost", servers={"missing": [], "ended": {}})


@cases(
    ("another failure", situation(STARTING, *UP, core=says("Failed", "WorkloadFailed")), None),
    ("a loss during the run", situation(RUNNING, *UP, core=LOST), None),
    (
        "all is made again",
        situation(STARTING, *UP, core=MISSED),
        Answer(
            "Pending",
            "Restarting",
            "attempt 1 is given up: told",
            delete=(CORE, SERVER_0, SERVER_1),
            again_s=1.0,
        ),
    ),
    (
        "while startupTimeout lasts",
        situation({**STARTING, "startTime": timestamp(NOW - STARTUP_S - 30)}, *UP[:2], core=MISSED),
        Answer("Failed", "ServersNotReady", "not ready within 60 s: demo-server-1", again_s=60.0),
    ),
)
def test_core_missed_a_server_at_the_start(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.core_missed_a_server_at_the_start(found)) == expected


def test_an_attempt_that_missed_a_server_at_the_start_keeps_its_time() -> None:
    decision = deciding.core_missed_a_server_at_the_start(situation(STARTING, *UP, core=MISSED))
    assert decision is not None
    assert decision.status["startTime"] == STARTING["startTime"], "or it would try for ever"
    assert decision.status["attempt"] == 2
    assert "restarts" not in decision.status


@cases(
    ("before the run had begun", situation(STARTING, *UP, core=MISSED), None),
    ("an agent, but its pod is there", situation(RUNNING, *UP, core=AGENT), None),
    (
        "an agent with its pod",
        situation(RUNNING, *UP[:2], core=AGENT),
        Answer("Failed", "ServerLost", "lost after the run had begun: demo-server-1; told", again_s=60.0),
    ),
    (
        "the core knows before the pod shows it",
        situation(RUNNING, *UP, core=LOST),
        Answer("Failed", "ServerLost", "told", again_s=60.0),
    ),
    (
        "with Restart it is the next attempt",
        situation(RUNNING, *UP, core=LOST, onServerLost="Restart"),
        Answer("Pending", "Restarting", "attempt 1 is given up: told", delete=(CORE, SERVER_0, SERVER_1), again_s=1.0),
    ),
)
def test_core_lost_a_server(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.core_lost_a_server(found)) == expected


@cases(
    ("nothing has failed", situation(RUNNING, *UP, core=says("Running")), None),
    (
        "its word for it",
        situation(RUNNING, *UP, core=says("Failed", "WorkloadFailed")),
        Answer("Failed", "WorkloadFailed", "told", again_s=60.0),
    ),
    ("none", situation(RUNNING, *UP, core=says("Failed")), Answer("Failed", "Unknown", "told", again_s=60.0)),
    (
        "pods of an attempt before go",
        situation(RUNNING, *UP[:2], pod(SERVER_1, attempt=0), core=says("Failed", "Stuck")),
        Answer("Failed", "Stuck", "told", delete=(SERVER_1,), again_s=60.0),
    ),
)
def test_core_failed(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.core_failed(found)) == expected


# -- what pods show ----------------------------------------------------------------------------------------------------


@cases(
    ("it is there", situation(RUNNING, *UP), None),
    ("not yet made", situation(STARTING), None),
    ("taken by the cluster before the run", situation(STARTING, pod(CORE, "Failed", disrupted=True)), None),
    ("told to end before the run", situation(STARTING, pod(CORE, terminating=True)), None),
    (
        "gone",
        situation(RUNNING, *UP[1:]),
        Answer("Failed", "SimulationCoreLost", "pod demo-core is gone", again_s=60.0),
    ),
    (
        "deleted",
        situation(RUNNING, pod(CORE, terminating=True)),
        Answer("Failed", "SimulationCoreLost", "pod demo-core is being deleted", again_s=60.0),
    ),
    (
        "taken by the cluster",
        situation(RUNNING, pod(CORE, "Failed", disrupted=True)),
        Answer("Failed", "SimulationCoreLost", "pod demo-core has ended", again_s=60.0),
    ),
    (
        "ended by itself, even before the run",
        situation(STARTING, pod(CORE, "Failed", ended=ended(container="core", code=2, line="no plan"))),
        Answer(
            "Failed",
            "SimulationCoreLost",
            "pod demo-core has ended: Error, exit code 2; no plan",
            again_s=60.0,
        ),
    ),
)
def test_core_pod_lost(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.core_pod_lost(found)) == expected


#: What is said of a server whose pod is gone.
GONE: Final = Answer("Failed", "ServerLost", "lost after the run had begun: demo-server-1", again_s=60.0)


@cases(
    ("all are there", situation(RUNNING, *UP), None),
    ("before the run it is made again", situation(STARTING, *UP[:2]), None),
    ("its workload had ended", situation(RUNNING, *UP[:2], core=says("Running", servers={"ended": {"1": 0}})), None),
    ("a failure of its own is no loss", situation(RUNNING, *UP[:2], pod(SERVER_1, "Failed")), None),
    ("gone", situation(RUNNING, *UP[:2]), GONE),
    ("of another attempt", situation(RUNNING, *UP[:2], pod(SERVER_1, attempt=2)), GONE._replace(delete=(SERVER_1,))),
    ("deleted", situation(RUNNING, *UP[:2], pod(SERVER_1, terminating=True)), GONE),
    ("evicted", situation(RUNNING, *UP[:2], pod(SERVER_1, "Failed", disrupted=True)), GONE),
    (
        "with Restart it is the next attempt",
        situation(RUNNING, *UP[:2], onServerLost="Restart"),
        Answer(
            "Pending",
            "Restarting",
            "attempt 1 is given up: lost after the run had begun: demo-server-1",
            delete=(CORE, SERVER_0),
            again_s=1.0,
        ),
    ),
    (
        "at most so often",
        situation({**RUNNING, "restarts": 2}, *UP[:2], onServerLost="Restart", backoffLimit=2),
        Answer(
            "Failed",
            "BackoffLimitExceeded",
            "lost after the run had begun: demo-server-1; backoffLimit is 2",
            again_s=60.0,
        ),
    ),
)
def test_server_pod_lost(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.server_pod_lost(found)) == expected


@cases(
    ("none has", situation(RUNNING, *UP), None),
    ("the core has the first word", situation(RUNNING, *UP[:2], pod(SERVER_1, "Failed", ended=ended(19))), None),
    ("a disruption is a loss", situation(RUNNING, pod(SERVER_1, "Failed", ended=ended(99), disrupted=True)), None),
    (
        "but not for ever",
        situation(RUNNING, *UP[:2], pod(SERVER_1, "Failed", ended=ended(20))),
        Answer(
            "Failed",
            "WorkloadFailed",
            "demo-server-1: container workload ended with exit code 3: boom",
            again_s=60.0,
        ),
    ),
    (
        "no container says why",
        situation(RUNNING, pod(SERVER_1, "Failed", message="no room")),
        Answer("Failed", "WorkloadFailed", "demo-server-1: no room", again_s=60.0),
    ),
    (
        "ours fails before the run",
        situation(STARTING, pod(SERVER_1, "Failed", ended=ended(20, "install", 1, "disk full"))),
        Answer(
            "Failed",
            "ServersNotReady",
            "demo-server-1: container install ended with exit code 1: disk full",
            again_s=60.0,
        ),
    ),
    (
        "what was to be made again goes",
        situation(STARTING, pod(CORE, "Failed", disrupted=True), pod(SERVER_1, "Failed")),
        Answer("Failed", "ServersNotReady", "demo-server-1: the pod failed", delete=(CORE,), again_s=60.0),
    ),
)
def test_workload_failed(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.workload_failed(found)) == expected


# -- time --------------------------------------------------------------------------------------------------------------

LIMITED: Final = {**RUNNING, "runningTime": timestamp(NOW - 60 - 30)}


@cases(
    ("there is none", situation(LIMITED, *UP), None),
    ("it is not yet over", situation(RUNNING, *UP, timeLimit="60s"), None),
    ("the core goes first", situation({**LIMITED, "runningTime": timestamp(NOW - 89)}, *UP, timeLimit="60s"), None),
    ("it is of the run, not of its start", situation({**STARTING, "startTime": LIMITED["runningTime"]}), None),
    (
        "over",
        situation(LIMITED, *UP[:2], pod(SERVER_1, "Succeeded"), timeLimit="60s"),
        Answer("Failed", "TimeLimitExceeded", "the run took longer than 60 s", delete=(SERVER_0,), again_s=60.0),
    ),
)
def test_time_limit_exceeded(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.time_limit_exceeded(found)) == expected


LATE: Final = {**STARTING, "startTime": timestamp(NOW - STARTUP_S - 30)}


@cases(
    ("not yet", situation(STARTING, *UP[:2]), None),
    ("the core goes first", situation({**LATE, "startTime": timestamp(NOW - STARTUP_S - 29)}, *UP[:2]), None),
    ("the run has begun", situation({**LATE, "runningTime": timestamp(NOW)}, *UP[:2]), None),
    (
        "who is missing is named, and why",
        situation(LATE, *UP[:2], pod(SERVER_1, "Pending", message="no node")),
        Answer(
            "Failed", "ServersNotReady", "not ready within 60 s: demo-server-1; demo-server-1: no node", again_s=60.0
        ),
    ),
    (
        "what could not be made too",
        situation(LATE, *UP[:2], refused={SERVER_1: Refusal("QuotaExceeded", "too many")}),
        Answer(
            "Failed", "ServersNotReady", "not ready within 60 s: demo-server-1; demo-server-1: too many", again_s=60.0
        ),
    ),
)
def test_not_ready_in_time(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.not_ready_in_time(found)) == expected


WAITS: Final = Answer("Pending", "WaitingForServers", "waiting for the simulation core", again_s=80.0)


@cases(
    ("all is there", situation(RUNNING, *UP), Answer("Running", "WorkloadRunning")),
    (
        "it has a limit",
        situation(RUNNING, *UP, timeLimit="60s"),
        Answer("Running", "WorkloadRunning", again_s=85.0),
    ),
    ("a new object", situation({}), WAITS._replace(make=(CORE, SERVER_0, SERVER_1), again_s=90.0)),
    ("what is missing is made", situation(STARTING, pod(CORE, "Pending")), WAITS._replace(make=(SERVER_0, SERVER_1))),
    (
        "what the cluster took goes first",
        situation(STARTING, pod(CORE, "Pending"), pod(SERVER_0, "Failed", disrupted=True), pod(SERVER_1, "Pending")),
        WAITS._replace(delete=(SERVER_0,)),
    ),
    (
        "nothing is made beside another attempt",
        situation({**STARTING, "attempt": 2}, pod(SERVER_0)),
        WAITS._replace(delete=(SERVER_0,)),
    ),
    (
        "nor beside its last pod",
        situation({**STARTING, "attempt": 2}, pod(SERVER_0, terminating=True)),
        WAITS,
    ),
    (
        "what was refused is tried again",
        situation(STARTING, *UP[:2], refused={SERVER_1: Refusal("QuotaExceeded", "too many")}),
        WAITS._replace(phase="Starting", make=(SERVER_1,), again_s=15.0),
    ),
    (
        "until the core's first word is over",
        situation(RUNNING, *UP[:2], pod(SERVER_1, "Failed", ended=ended(19))),
        Answer("Running", "WorkloadRunning", again_s=1.0),
    ),
)
def test_go_on(found: Situation, expected: Answer | None) -> None:
    assert answer(deciding.go_on(found)) == expected


# -- the order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "first", "second"),
    [
        pytest.param(
            situation({**FAILED, "phase": "Succeeded"}, *UP, suspend=True, core=says("Succeeded")),
            deciding.clean_up,
            deciding.suspend,
            id="what is final stays final",
        ),
        pytest.param(
            situation(RUNNING, *UP, suspend=True, core=says("Succeeded")),
            deciding.suspend,
            deciding.core_succeeded,
            id="a suspended run does not end",
        ),
        pytest.param(
            situation(RUNNING, *UP[1:], core=says("Failed", "Stuck")),
            deciding.core_failed,
            deciding.core_pod_lost,
            id="the core's last word counts, even of a pod that is gone",
        ),
        pytest.param(
            situation(RUNNING, *UP[:2], core=LOST),
            deciding.core_lost_a_server,
            deciding.core_failed,
            id="a loss may be a reason to restart",
        ),
        pytest.param(
            situation(RUNNING, pod(SERVER_0, "Failed", ended=ended(99)), pod(SERVER_1)),
            deciding.core_pod_lost,
            deciding.workload_failed,
            id="without a core all workloads fail",
        ),
        pytest.param(
            situation(LIMITED, *UP[:2], timeLimit="60s"),
            deciding.server_pod_lost,
            deciding.time_limit_exceeded,
            id="a cause goes before the time",
        ),
    ],
)
def test_the_first_answer_decides(found: Situation, first: deciding.Policy, second: deciding.Policy) -> None:
    """Both policies have an answer, so their order matters."""
    assert second(found) is not None
    answering = [policy for policy in POLICIES if policy(found) is not None]
    assert answering[0] is first
    assert answering.index(first) < answering.index(second)


def test_the_last_policy_answers_everything() -> None:
    assert POLICIES[-1] is deciding.go_on
    assert len(set(POLICIES)) == len(POLICIES)
