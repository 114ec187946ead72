"""The life of an object, as the operator leads it: what is made, when it ends, and what is said of it.

The API server, the kubelet and the core are in memory (kubernetes_lab.py); time passes when a test says so.
"""

from __future__ import annotations

import asyncio
import dataclasses

from kubernetes_lab import Lab

from eidolon_operator.kubernetes.client import core_path
from eidolon_operator.kubernetes.status import Kind
from eidolon_operator.kubernetes.world import ApiError, Key

PODS = ["demo-core", "demo-server-0", "demo-server-1"]
STEP = {"index": 7, "time_ns": 71_300_000, "end_ns": 9, "tokens_per_s": 459_579.24, "samples_per_s": None, "mfu": 0.41}


def test_a_new_object_gets_its_status_first_then_what_it_needs_then_pods(lab: Lab) -> None:
    lab.apply()
    lab.look()
    status, *made = lab.api.writes()
    assert status == "apply /apis/eidolon.dev/v1alpha1/namespaces/lab/simulatedclusters/demo/status"
    core = "/api/v1/namespaces/lab"
    assert made[:3] == [
        f"create {core}/services/demo",
        f"create {core}/services/demo-core",
        f"create {core}/secrets/demo-ingest-1",
    ]
    assert sorted(made[3:]) == [f"create {core}/pods/{name}" for name in PODS]
    assert lab.status["phase"] == "Pending"
    assert lab.status["attempt"] == 1
    assert lab.status["runtime"]["coreImage"] == "registry.test/core:1"
    assert lab.condition("ServersReady") == (
        "False",
        "Creating",
        "0 of 2 are ready; being made and started: demo-server-0, demo-server-1",
    )


def test_looking_again_changes_nothing(lab: Lab) -> None:
    lab.start()
    for _ in range(3):
        lab.look(after_s=1)
    assert lab.api.writes() == []


def test_the_workload_runs_once_all_servers_are_there(lab: Lab) -> None:
    lab.apply()
    lab.look()
    lab.run_pod(*PODS)
    lab.core_says("Waiting", servers={"expected": 2, "said_hello": [0], "missing": [1], "ended": {}})
    lab.look(after_s=1)
    assert lab.status["phase"] == "Starting"
    assert lab.condition("CoreReady")[:2] == ("True", "Ready")
    assert lab.condition("ServersReady") == ("True", "Ready", "2 of 2")
    assert lab.condition("Running") == ("False", "WaitingForServers", "waiting for the agents of demo-server-1")
    lab.core_says("Running")
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"
    assert lab.condition("Running")[:2] == ("True", "WorkloadRunning")
    assert lab.status["readyServers"] == 2
    assert lab.status["gpus"] == 4


def test_a_folded_object_has_pods_for_servers_with_ranks_to_run(lab: Lab) -> None:
    """Of 64 servers three have ranks that run. They keep their numbers, and every count of servers is about them."""
    pods = ["demo-core", "demo-server-0", "demo-server-9", "demo-server-63"]
    lab.apply(servers=64, gpusPerServer=8, fold={"mode": "replica", "keep": [75, 511]})
    lab.look()
    assert sorted(lab.pod_names()) == sorted(pods)
    assert lab.condition("ServersReady")[2].startswith("0 of 3 are ready; being made and started: demo-server-0, ")
    assert lab.status["gpus"] == 512
    assert lab.status["folded"] == (
        "3 of 512 ranks run: rank 0 stands for 510 ranks, rank 75 for itself, rank 511 for itself"
    )
    lab.run_pod(*pods)
    lab.core_says("Running", servers={"expected": 3, "said_hello": [0, 9, 63], "missing": [], "ended": {"9": 0}})
    lab.look(after_s=5)
    assert lab.condition("ServersReady") == ("True", "Ready", "3 of 3")
    assert (lab.status["phase"], lab.status["readyServers"]) == ("Running", 3)
    lab.remove_pod("demo-server-9")
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running", "its workload had ended"
    lab.remove_pod("demo-server-63")
    lab.look(after_s=5)
    assert lab.condition("Failed") == ("True", "ServerLost", "lost after the run had begun: demo-server-63")


def test_figures_of_the_last_step(lab: Lab) -> None:
    lab.start()
    lab.core_says("Running", step=STEP, peak_bytes=9 * 2**30, cost_share={"measured": 0.75, "roofline": 0.25})
    lab.look(after_s=5)
    assert {key: lab.status[key] for key in ("step", "stepTimeNs", "stepTime", "throughput", "mfu")} == {
        "step": 7,
        "stepTimeNs": 71_300_000,
        "stepTime": "71.30 ms",
        "throughput": {"perSecond": 459_579.0, "unit": "tokens/s", "text": "459,579 tokens/s"},
        "mfu": 0.41,
    }
    assert (lab.status["peakMemoryBytes"], lab.status["peakMemory"]) == (9 * 2**30, "9.00 GiB")
    assert lab.status["costCoverage"] == {"measured": 0.75, "roofline": 0.25}


def test_throughput_without_tokens_is_in_steps(lab: Lab) -> None:
    lab.start()
    lab.core_says("Running", step={**STEP, "tokens_per_s": None, "time_ns": 500_000_000, "mfu": None})
    lab.look(after_s=5)
    assert lab.status["throughput"] == {"perSecond": 2.0, "unit": "steps/s", "text": "2 steps/s"}
    assert "mfu" not in lab.status


def test_what_makes_a_run_less_exact_is_told(lab: Lab) -> None:
    lab.start()
    note = "torch: no plugin for 2.3.0+cu118"
    lab.core_says("Running", notes=[note])
    lab.look(after_s=5)
    assert lab.status["notes"] == [note]
    lab.look(after_s=5)
    assert lab.events().count(("LessExact", note)) == 1


def test_success_is_what_the_core_says(lab: Lab) -> None:
    lab.start()
    lab.complete_pod("demo-server-0", "demo-server-1")
    lab.core_says("Succeeded", reason="WorkloadsEnded", message="all workloads ended", step=STEP)
    lab.look(after_s=5)
    assert lab.status["phase"] == "Succeeded"
    assert lab.condition("Succeeded") == ("True", "WorkloadsEnded", "all workloads ended")
    assert lab.condition("Failed")[0] == "False"
    assert lab.condition("Running")[:2] == ("False", "Finished")
    assert lab.status["step"] == 7
    assert ("Succeeded", "WorkloadsEnded: all workloads ended") in lab.events()


def test_what_is_over_stays_until_its_time_is_up(lab: Lab) -> None:
    lab.start(ttlSecondsAfterFinished=600)
    lab.complete_pod("demo-server-0", "demo-server-1")
    lab.core_says("Succeeded", reason="StepsDone")
    lab.look(after_s=5)
    lab.api.writes()
    assert lab.look(after_s=100) == 500
    lab.patch(ttlSecondsAfterFinished=300)
    assert lab.look() == 200
    assert lab.status["observedGeneration"] == 2
    assert lab.api.writes() == ["apply /apis/eidolon.dev/v1alpha1/namespaces/lab/simulatedclusters/demo/status"]
    assert lab.pod_names() == PODS
    assert lab.look(after_s=200) is None
    assert lab.api.writes() == ["delete /apis/eidolon.dev/v1alpha1/namespaces/lab/simulatedclusters/demo"]
    assert lab.look() is None


def test_workloads_that_do_not_end_are_deleted_a_minute_after_the_end(lab: Lab) -> None:
    lab.start()
    lab.core_says("Succeeded", reason="StepsDone")
    lab.look(after_s=5)
    assert lab.look(after_s=30) == 30
    lab.look(after_s=30)
    assert lab.api.writes()[-2:] == [f"delete /api/v1/namespaces/lab/pods/demo-server-{n}" for n in (0, 1)]


def test_a_failed_workload_shows_its_last_line(lab: Lab) -> None:
    lab.start()
    lab.fail_pod("demo-server-1", code=3, message="Traceback:\n  ...\nValueError: no data\n\n")
    lab.core_says("Failed", reason="WorkloadFailed", message="server 1: the workload ended with exit code 3")
    lab.look(after_s=5)
    assert lab.condition("Failed") == ("True", "WorkloadFailed", "server 1: the workload ended with exit code 3")
    (failure,) = lab.status["failures"]
    assert failure == {
        "attempt": 1,
        "pod": "demo-server-1",
        "container": "workload",
        "exitCode": 3,
        "reason": "Error",
        "message": "ValueError: no data",
        "time": "2027-01-15T08:00:10Z",
    }


def test_a_failure_that_the_core_knows_first_is_told_of_when_the_pod_shows_it(lab: Lab) -> None:
    lab.start()
    lab.core_says("Failed", reason="WorkloadFailed", message="server 1: the workload ended with exit code 3")
    lab.look(after_s=5)
    lab.fail_pod("demo-server-1", code=3, message="ValueError: no data")
    lab.look(after_s=1)
    lab.fail_pod("demo-server-0", code=143, message="ended with the run")
    lab.look(after_s=5)
    said, shown = lab.status["failures"]
    assert (said.get("pod"), said["message"]) == (None, "server 1: the workload ended with exit code 3")
    assert (shown["pod"], shown["exitCode"], shown["message"]) == ("demo-server-1", 3, "ValueError: no data")


def test_a_failed_workload_is_the_end_even_if_the_core_says_nothing(lab: Lab) -> None:
    lab.start()
    lab.fail_pod("demo-server-1", code=3, message="boom")
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running", "the core knows more: it has the first word"
    lab.look(after_s=20)
    assert lab.condition("Failed") == (
        "True",
        "WorkloadFailed",
        "demo-server-1: container workload ended with exit code 3: boom",
    )


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_pod_lost_before_the_start_is_made_again(lab: Lab) -> None:
    lab.apply()
    lab.look()
    lab.remove_pod("demo-server-1")
    lab.look(after_s=1)
    assert lab.pod_names() == PODS
    lab.set_pod("demo-server-0", phase="Failed", reason="Evicted", message="low on memory")
    lab.look(after_s=1)
    assert "deletionTimestamp" in lab.pod("demo-server-0")["metadata"]
    lab.remove_terminating()
    lab.look(after_s=1)
    assert lab.pod_names() == PODS
    assert lab.status["attempt"] == 1


def test_a_core_that_gave_up_on_a_lost_server_before_the_start_is_made_again_with_all(lab: Lab) -> None:
    lab.apply(startupTimeout="60s")
    lab.look()
    lab.run_pod(*PODS)
    servers = {"expected": 2, "said_hello": [0], "missing": [1], "ended": {"0": 143}}
    lab.core_says("Failed", reason="ServerLost", message="server 0 was taken down", servers=servers)
    lab.look(after_s=5)
    assert lab.status["phase"] == "Pending"
    assert lab.status["attempt"] == 2
    assert "restarts" not in lab.status, "the run had not begun"
    lab.remove_terminating()
    lab.look(after_s=1)
    assert lab.pod_names() == PODS
    lab.run_pod(*PODS)
    lab.core_says("Failed", reason="ServerLost", message="server 0 was taken down", servers=servers)
    lab.look(after_s=90)
    assert lab.condition("Failed")[:2] == ("True", "ServersNotReady"), "not for ever"


def test_a_pod_lost_after_the_start_ends_the_run(lab: Lab) -> None:
    lab.start()
    lab.remove_pod("demo-server-1")
    lab.look(after_s=5)
    assert lab.condition("Failed") == ("True", "ServerLost", "lost after the run had begun: demo-server-1")
    assert lab.status["failures"][0]["message"] == "demo-server-1: the pod is gone"
    lab.look(after_s=5)
    assert lab.pod_names() == ["demo-core", "demo-server-0"], "nothing is made again"


def test_a_lost_server_is_named_whoever_notices_first(lab: Lab) -> None:
    lab.start()
    asyncio.run(lab.api.delete(core_path("pods", "lab", "demo-server-1")))
    lab.core_says("Failed", reason="ServerLost", message="server 1 was taken down")
    lab.look(after_s=1)
    told = "lost after the run had begun: demo-server-1; server 1 was taken down"
    assert lab.condition("Failed") == ("True", "ServerLost", told)


def test_a_pod_that_only_the_watch_lost_is_not_lost(lab: Lab) -> None:
    lab.start()
    lab.reconciler._pods.drop(Key("lab", "demo"), "demo-server-1", lab.pod("demo-server-1")["metadata"]["uid"])
    lab._watch = lambda: None
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"


def test_a_server_whose_workload_had_ended_may_go(lab: Lab) -> None:
    lab.start()
    lab.core_says("Running", servers={"expected": 2, "said_hello": [0, 1], "missing": [], "ended": {"1": 0}})
    lab.remove_pod("demo-server-1")
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"


def test_restart_makes_everything_again_under_the_same_names(lab: Lab) -> None:
    lab.start(onServerLost="Restart", backoffLimit=1)
    lab.core_says("Running", step=STEP)
    lab.look(after_s=5)
    lab.remove_pod("demo-server-1")
    lab.look(after_s=5)
    assert lab.status["attempt"] == 2
    assert lab.status["restarts"] == 1
    assert "step" not in lab.status, "virtual time begins at 0"
    assert lab.condition("Running")[:2] == ("False", "Restarting")
    assert all("deletionTimestamp" in lab.pod(name)["metadata"] for name in lab.pod_names())
    lab.look(after_s=1)
    assert lab.pod_names() == ["demo-core", "demo-server-0"], "nothing is made beside the attempt before"
    assert lab.condition("CoreReady")[1] == "Terminating"
    lab.remove_terminating()
    lab.look(after_s=1)
    assert lab.pod_names() == PODS
    assert {lab.pod(name)["metadata"]["labels"]["eidolon.dev/attempt"] for name in PODS} == {"2"}
    assert not any(path.endswith("ingest-1") for path in lab.api.objects)
    assert any(path.endswith("ingest-2") for path in lab.api.objects)

    # A second loss is one too many.
    lab.run_pod(*PODS)
    lab.core_says("Running")
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"
    lab.remove_pod("demo-server-0")
    lab.look(after_s=5)
    assert lab.condition("Failed") == (
        "True",
        "BackoffLimitExceeded",
        "lost after the run had begun: demo-server-0; backoffLimit is 1",
    )


def test_the_word_of_a_core_of_another_attempt_counts_for_nothing(lab: Lab) -> None:
    lab.start(onServerLost="Restart")
    lab.remove_pod("demo-server-1")
    lab.look(after_s=5)
    lab.remove_terminating()
    lab.look(after_s=1)
    lab.run_pod(*PODS)
    lab.core_says("Succeeded", attempt=1)
    lab.look(after_s=5)
    assert lab.status["phase"] == "Starting"


def test_an_agent_that_is_lost_for_good_ends_the_run(lab: Lab) -> None:
    lab.start(onServerLost="Restart")
    lab.core_says("Failed", reason="AgentLost", message="server 1: its stream broke")
    lab.look(after_s=5)
    assert lab.condition("Failed") == ("True", "AgentLost", "server 1: its stream broke")


def test_a_lost_core_ends_the_run(lab: Lab) -> None:
    lab.start()
    lab.fail_pod("demo-core", container="core", code=137, message="Killed")
    lab.cores.says = None
    lab.look(after_s=5)
    assert lab.condition("Failed") == (
        "True",
        "SimulationCoreLost",
        "pod demo-core has ended: Error, exit code 137; Killed",
    )
    assert lab.status["failures"][0]["container"] == "core"


def test_a_lost_core_is_the_cause_even_if_the_servers_fail_first(lab: Lab) -> None:
    lab.start()
    lab.fail_pod("demo-server-1", code=70, message="simulation core lost")
    lab.cores.says = None
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"
    lab.fail_pod("demo-core", container="core", code=137)
    lab.look(after_s=1)
    assert lab.condition("Failed")[:2] == ("True", "SimulationCoreLost")


def test_a_core_that_does_not_answer_is_not_lost_yet(lab: Lab) -> None:
    lab.start()
    lab.cores.says = None
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"
    assert lab.condition("CoreReady")[:2] == ("Unknown", "Unreachable")


def test_who_is_not_there_in_time_is_named(lab: Lab) -> None:
    lab.apply(startupTimeout="60s")
    lab.look()
    lab.run_pod("demo-core", "demo-server-0")
    lab.set_pod(
        "demo-server-1",
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}],
    )
    lab.look(after_s=30)
    assert lab.condition("ServersReady") == (
        "False",
        "Unschedulable",
        "1 of 2 are ready; demo-server-1: 0/1 nodes are available",
    )
    lab.look(after_s=61)
    assert lab.condition("Failed") == (
        "True",
        "ServersNotReady",
        "not ready within 60 s: demo-server-1; demo-server-1: 0/1 nodes are available",
    )


def test_a_time_limit_that_the_core_does_not_keep_is_kept_here(lab: Lab) -> None:
    lab.start(timeLimit="60s")
    lab.look(after_s=80)
    assert lab.status["phase"] == "Running"
    lab.look(after_s=15)
    assert lab.condition("Failed") == ("True", "TimeLimitExceeded", "the run took longer than 60 s")
    assert "deletionTimestamp" in lab.pod("demo-server-0")["metadata"]


# -- what cannot be made -----------------------------------------------------------------------------------------------


def test_a_quota_shows_in_a_condition_and_is_tried_again(lab: Lab) -> None:
    lab.api.refuse["demo-server-1"] = ApiError(403, 'pods "demo-server-1" is forbidden: exceeded quota: small')
    lab.apply()
    assert lab.look() == 15
    assert lab.condition("ServersReady") == (
        "False",
        "QuotaExceeded",
        '0 of 2 are ready; demo-server-1: pods "demo-server-1" is forbidden: exceeded quota: small',
    )
    assert [reason for reason, _ in lab.events()].count("QuotaExceeded") == 1
    lab.look(after_s=15)
    assert [reason for reason, _ in lab.events()].count("QuotaExceeded") == 1, "said once"
    del lab.api.refuse["demo-server-1"]
    lab.look(after_s=15)
    assert lab.pod_names() == PODS
    lab.look(after_s=1)
    assert lab.condition("ServersReady")[1] == "Starting"


def test_a_foreign_pod_of_that_name_is_waited_for(lab: Lab) -> None:
    lab.api.put(
        "/api/v1/namespaces/lab/pods/demo-server-1",
        {"kind": "Pod", "metadata": {"name": "demo-server-1", "namespace": "lab", "uid": "else"}},
    )
    lab.apply()
    lab.look()
    status, reason, message = lab.condition("ServersReady")
    assert (status, reason) == ("False", "NameTaken")
    assert message.endswith("Pod demo-server-1 exists and belongs to nobody: waiting until it is gone")
    assert "deletionTimestamp" not in lab.pod("demo-server-1")["metadata"]


def test_a_foreign_service_of_that_name_is_not_taken_over(lab: Lab) -> None:
    theirs = {"kind": "Service", "metadata": {"name": "demo", "namespace": "lab", "uid": "else"}, "spec": {}}
    lab.api.put("/api/v1/namespaces/lab/services/demo", theirs)
    lab.apply()
    lab.look()
    assert lab.condition("CoreReady")[1] == "NameTaken"
    assert lab.pod_names() == []
    assert lab.api.objects["/api/v1/namespaces/lab/services/demo"]["spec"] == {}


def test_a_pod_made_before_a_crash_of_the_operator_is_taken_as_made(lab: Lab) -> None:
    lab.apply()
    lab.look()
    lab.api.writes()
    lab._watch = lambda: None
    lab.restart_operator()  # it knows of no pod at all
    lab.look()
    assert lab.pod_names() == PODS
    assert len([call for call in lab.api.writes() if "create" in call and "/pods/" in call]) == len(PODS)
    lab.look()
    assert not [call for call in lab.api.writes() if "create" in call], "it has found that they are ours"


def test_services_of_an_operator_before_are_brought_up_to_date(lab: Lab) -> None:
    lab.apply()
    lab.look()
    service = lab.api.objects["/api/v1/namespaces/lab/services/demo"]
    made = service["spec"]
    service["spec"] = {"of": "an older version"}
    lab.remove_pod(*PODS)
    lab.restart_operator()
    lab.look()
    assert lab.api.objects["/api/v1/namespaces/lab/services/demo"]["spec"] == made
    assert lab.pod_names() == PODS


def test_an_object_being_deleted_gets_nothing_more(lab: Lab) -> None:
    lab.apply()
    lab.document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert lab.look() is None
    assert lab.api.writes() == []


# -- suspend, upgrade --------------------------------------------------------------------------------------------------


def test_suspend_takes_the_pods_and_resume_is_a_new_attempt(lab: Lab) -> None:
    lab.start()
    lab.patch(suspend=True)
    lab.look(after_s=1)
    assert lab.status["phase"] == "Suspended"
    assert lab.condition("Suspended")[:2] == ("True", "Suspended")
    assert lab.condition("Running")[:2] == ("False", "Suspended")
    lab.remove_terminating()
    lab.look(after_s=1)
    assert lab.pod_names() == []
    lab.patch(suspend=False)
    lab.look(after_s=1)
    assert lab.pod_names() == PODS
    assert lab.status["attempt"] == 2
    assert "restarts" not in lab.status
    assert lab.condition("Suspended")[:2] == ("False", "NotSuspended")


def test_an_object_that_is_born_suspended_waits(lab: Lab) -> None:
    lab.apply(suspend=True)
    lab.look()
    assert lab.status["phase"] == "Suspended"
    lab.patch(suspend=False)
    lab.look()
    assert lab.status["attempt"] == 1
    assert lab.pod_names() == PODS


def test_an_upgrade_of_the_operator_touches_no_attempt(lab: Lab) -> None:
    lab.start(onServerLost="Restart")
    newer = dataclasses.replace(lab.settings, core_image="registry.test/core:2", run_as=None)
    lab.restart_operator(newer)
    lab.look(after_s=5)
    lab.look(after_s=5)
    assert lab.api.writes() == []
    assert lab.status["runtime"]["coreImage"] == "registry.test/core:1"
    lab.remove_pod("demo-server-1")
    lab.look(after_s=5)
    assert lab.status["runtime"]["coreImage"] == "registry.test/core:2", "the next attempt is made with what is new"


# -- a definition that is newer than the operator ----------------------------------------------------------------------


def newer(lab: Lab, **fields: object) -> None:
    """Fields that a later version has."""
    lab.document["spec"].update(fields)


def test_fields_that_are_not_known_are_left_aside_and_said(lab: Lab) -> None:
    lab.apply()
    newer(lab, checkpoints={"every": 10}, cost={**lab.document["spec"]["cost"], "energy": "auto"})
    lab.look()
    assert lab.pod_names() == PODS
    version = lab.status["runtime"]["version"]
    first, second = (
        f"spec.{field} is not known to operator {version} and left aside: the definition is newer"
        for field in ("checkpoints", "cost.energy")
    )
    assert lab.status["notes"] == [first, second]
    assert lab.events() == [("LessExact", first), ("LessExact", second)]
    lab.run_pod(*PODS)
    lab.core_says("Running", notes=["torch: no plugin"])
    lab.look(after_s=5)
    assert lab.status["notes"] == [first, second, "torch: no plugin"]
    lab.api.writes()
    lab.look(after_s=5)
    assert lab.api.writes() == []


def test_a_value_that_is_not_known_is_no_guess(lab: Lab) -> None:
    lab.apply()
    lab.document["spec"]["workload"]["launcher"] = "mpirun"
    lab.look()
    status, reason, message = lab.condition("Failed")
    assert (status, reason) == ("True", "InvalidSpec")
    assert message.startswith("spec.workload.launcher: 'mpirun' is not one of none, plain, torchrun (operator ")
    assert lab.pod_names() == []


def test_a_run_that_a_newer_operator_began_is_left_alone(lab: Lab) -> None:
    """After `helm rollback`: what this one does not understand it does not end."""
    lab.start()
    lab.document["spec"]["workload"]["launcher"] = "mpirun"
    before = lab.document["status"]
    before["conditions"].append({**before["conditions"][0], "type": "Checkpointed"})
    lab.look(after_s=5)
    assert lab.status["phase"] == "Running"
    assert [condition["type"] for condition in lab.status["conditions"]] == list(Kind)
    (note,) = lab.status["notes"]
    assert note.startswith("left alone: spec.workload.launcher: 'mpirun' is not one of")
    assert ("LessExact", note) in lab.events()
    lab.api.writes()
    lab.look(after_s=5)
    assert lab.api.writes() == []
    assert lab.pod_names() == PODS
    lab.document["spec"]["workload"]["launcher"] = "none"  # the newer one is back
    lab.core_says("Succeeded", reason="StepsDone")
    lab.look(after_s=5)
    assert lab.status["phase"] == "Succeeded"
    assert "notes" not in lab.status


def test_what_a_schema_cannot_say_ends_in_a_condition(lab: Lab) -> None:
    lab.apply(gpu={"model": "h100-smx"}, ttlSecondsAfterFinished=90)
    lab.look()
    status, reason, message = lab.condition("Failed")
    assert (status, reason) == ("True", "InvalidSpec")
    assert message.startswith("spec.gpu.model: 'h100-smx' is not in the GPU catalogue; did you mean h100-sxm?")
    assert lab.pod_names() == []
    assert lab.look(after_s=60) == 30, "it stays for ttlSecondsAfterFinished, as every object that is over"
    assert lab.look(after_s=30) is None
    assert lab.api.writes()[-1] == "delete /apis/eidolon.dev/v1alpha1/namespaces/lab/simulatedclusters/demo"
