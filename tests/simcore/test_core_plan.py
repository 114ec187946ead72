"""The core's section of the plan: every field is required, and what is wrong is named."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from bench import plans
from eidolon_simcore.core_plan import PlanError, parse

#: A plan in which nothing is left out that may be null.
FULL: dict[str, Any] = plans.document(
    servers=2,
    serverGroups=[{"name": "a", "servers": 1}, {"name": "b", "servers": 1, "gpu": {"model": "a100-40gb-sxm"}}],
    recording={"enabled": True},
    steps=3,
    timeLimit="1h",
)["core"]


def leaves(section: dict[str, Any], path: str = "core") -> Iterator[tuple[str, dict[str, Any]]]:
    """The path of every field, and the object that holds it."""
    for name, value in section.items():
        yield f"{path}.{name}", section
        if name in ("network", "recording"):
            yield from leaves(value, f"{path}.{name}")
        for index, item in enumerate(value or () if name == "server_groups" else ()):
            yield from leaves(item, f"{path}.{name}[{index}]")


#: With groups these three are said of each; ``core.gpu`` stays for readers of the plan.
OF_GROUPS = ("core.gpu", "core.gpu_memory_bytes")


@pytest.mark.parametrize("path", [path for path, _ in leaves(FULL) if path not in OF_GROUPS and path != "core.token"])
def test_every_field_that_the_operator_writes_is_required(path: str) -> None:
    core = copy.deepcopy(FULL)
    section = dict(leaves(core))[path]
    del section[path.rpartition(".")[2]]
    with pytest.raises(PlanError) as caught:
        parse(core)
    assert str(caught.value) == f"{path}: is missing"


@pytest.mark.parametrize("path", OF_GROUPS)
def test_without_groups_the_gpu_is_required(path: str) -> None:
    core = plans.document()["core"]
    del core[path.rpartition(".")[2]]
    with pytest.raises(PlanError, match=f"^{path}: is missing$"):
        parse(core)


def test_the_token_may_be_a_file_of_its_own() -> None:
    core = plans.document()["core"]
    assert parse(core).token == plans.TOKEN
    del core["token"]
    assert parse(core).token == ""


def test_what_may_be_left_open_is_null() -> None:
    core = plans.document()["core"]
    assert [name for name, value in core.items() if value is None] == [
        *(
            "server_groups",
            "fold",
            "steps",
            "tokens_per_step",
            "samples_per_step",
            "recording",
            "time_limit_s",
            "host_table",
        ),
    ]
    plan = parse(core)
    assert (plan.steps, plan.tokens_per_step, plan.samples_per_step) == (None, None, None)
    assert (plan.recording_limit_bytes, plan.time_limit_s) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"servers": None}, "core.servers: None is not of type int"),
        ({"servers": True}, "core.servers: True is not of type int"),
        ({"steps": 0}, "core.steps: 0 is not positive"),
        ({"strict": 1}, "core.strict: 1 is not of type bool"),
        ({"unknown_limit": "0.1"}, "core.unknown_limit: '0.1' is not of type float"),
        ({"host_cost": "guess"}, "core.host_cost: 'guess': table, measured are allowed"),
        ({"network": []}, r"core.network: \[\] is not of type dict"),
        ({"recording": {"limit_bytes": 0}}, "core.recording.limit_bytes: 0 is not positive"),
        ({"server_groups": [3]}, r"core.server_groups: \[3\] is not a list of objects"),
        (
            {"server_groups": [{"servers": 1, "gpu": "h900", "gpu_memory_bytes": 1}]},
            r"core.server_groups\[0\].gpu: unknown GPU 'h900'",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=f"^{message}"):
        parse({**plans.document()["core"], **changes})
