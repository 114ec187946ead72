"""The link between a core and an agent in one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eidolon_interposer.link import LostError
from eidolon_operator.one_host import CallLink, Server
from eidolon_proto.v1 import simulation_pb2 as pb
from eidolon_simcore.run.server import RejectedError

Item = pb.CoreMessage | RejectedError | None


class Service:
    """The core's side of one stream."""

    def __init__(self) -> None:
        self.came: list[bytes | None] = []
        self.to_agent: Callable[[Item], None]

    def attach(self, take: Callable[[Item], None]) -> Callable[[bytes | None], None]:
        self.to_agent = take
        return self.came.append


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def link(service: Service) -> CallLink:
    return CallLink(service)  # type: ignore[arg-type]


def test_a_server_is_named_by_its_number_in_the_cluster(tmp_path: Path) -> None:
    """Of a folded run only some servers are here: what the plan says of a server goes by its number."""
    groups = [{"servers": 3, "gpu": "new", "conf": {"gpu.cc": "9.0"}}, {"servers": 2, "gpu": "old", "conf": {}}]
    plan = {"server": {"devices": 2, "gpu": "new", "groups": groups, "conf": {"gpu.cc": "8.0"}}, "core": {}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    found = [Server.open(f"{number}={tmp_path}/s={number}", tmp_path / "plan.json") for number in (0, 4)]
    assert [(server.number, server.plan.gpu) for server in found] == [(0, "new"), (4, "old")]
    assert (tmp_path / "s=4" / "server.conf").read_text() == "gpu.cc=8.0\nserver=4\n"


def test_messages_go_both_ways_until_the_core_closes_the_stream(service: Service, link: CallLink) -> None:
    got: list[pb.CoreMessage] = []

    def messages() -> Iterator[bytes]:
        yield b"hello"
        service.to_agent(pb.CoreMessage(go=pb.Go()))
        yield b"goodbye"
        service.to_agent(None)

    link.run(messages(), got.append)
    assert service.came == [b"hello", b"goodbye", None], "at last the core is told that the agent has gone"
    assert got == [pb.CoreMessage(go=pb.Go())]
    assert link.over.is_set()


def test_a_stream_that_the_core_refuses_is_lost_with_its_reason(service: Service, link: CallLink) -> None:
    def messages() -> Iterator[bytes]:
        yield b"hello"
        service.to_agent(RejectedError("UNAUTHENTICATED", "wrong token"))
        yield b"more"

    with pytest.raises(LostError, match="UNAUTHENTICATED: wrong token"):
        link.run(messages(), lambda _: None)
    assert service.came == [b"hello", None]


def test_what_an_agent_cannot_take_ends_its_stream_and_not_the_simulation(service: Service, link: CallLink) -> None:
    def receive(message: pb.CoreMessage) -> None:
        raise ValueError("a bug")

    def messages() -> Iterator[bytes]:
        yield b"hello"
        service.to_agent(pb.CoreMessage())

    with pytest.raises(ValueError, match="a bug"):
        link.run(messages(), receive)


def test_an_agent_that_gives_up_does_not_wait_for_the_core(service: Service, link: CallLink) -> None:
    threading.Timer(0.05, link.cancel).start()
    with pytest.raises(LostError, match="CANCELLED"):
        link.run(iter([b"hello"]), lambda _: None)
    service.to_agent(pb.CoreMessage())  # comes too late, and is dropped
