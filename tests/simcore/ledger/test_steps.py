"""Marks to steps, records to memory."""

from __future__ import annotations

from eidolon_simcore.costs.sm_clock import Pace
from eidolon_simcore.engine.interface import Mark
from eidolon_simcore.fabric.network import Port
from eidolon_simcore.ledger.memory import MemoryView
from eidolon_simcore.ledger.steps import Cut, Steps

A, B = Port(0, 0), Port(0, 1)


def steps(*ranks: int) -> Steps:
    s = Steps()
    s.expect(len(ranks))
    for rank in ranks:
        s.join(rank)
    return s


def mark(s: Steps, rank: int, seq: int, end: int, backward: bool = True, peaks: dict[Port, int] | None = None) -> None:
    s.launched(rank, int(backward))
    s.mark(rank, seq, peaks or {})
    s.ended(Mark(rank, seq, end, end))


def ends(s: Steps) -> list[tuple[int, str, int, int]]:
    return [(x.index, x.name, x.end_ns, x.time_ns) for x in s.final()]


def test_a_step_ends_with_the_slowest_rank_and_lasts_since_the_one_before() -> None:
    s = steps(0, 1)
    mark(s, 0, 1, 100)
    mark(s, 1, 1, 120)
    assert ends(s) == []  # a further mark could still belong to it
    mark(s, 0, 2, 250)
    mark(s, 1, 2, 200)
    assert ends(s) == [(1, "startup", 120, 120)]
    s.leave(0)
    s.leave(1)
    assert ends(s) == [(2, "step", 250, 130)]


def test_marks_without_a_backward_pass_between_them_are_one_at_the_last() -> None:
    s = steps(0)
    mark(s, 0, 1, 100, peaks={A: 7})
    mark(s, 0, 2, 110, backward=False, peaks={A: 5, B: 1})
    mark(s, 0, 3, 200)
    s.leave(0)
    final = list(s.final())
    assert [(x.end_ns, x.peak_bytes) for x in final] == [(110, {A: 7, B: 1}), (200, {})]


def test_chained_marks_hold_what_each_of_them_tells_of_the_step() -> None:
    """The peaks are the highest, the reports add up, what is allocated is that of the last mark, and the pace is that
    of the first, for hardly any work follows it."""
    fast, slow = Pace(clock=1.0), Pace(clock=0.5)
    s = steps(0)
    s.launched(0, 1)
    for seq, peaks, held, tokens, pace in ((1, {A: 7, B: 2}, 3, 10, fast), (2, {A: 5, B: 4}, 1, 5, slow)):
        s.report(0, "tokens", tokens)
        s.mark(0, seq, peaks, {A: held}, pace)
        s.ended(Mark(0, seq, 100 * seq, 100 * seq))
    s.leave(0)
    (step,) = s.final()
    assert step.cuts == {0: Cut(2, 200)}
    assert step.peak_bytes == {A: 7, B: 4}
    assert step.reports == {"tokens": 15}
    assert step.allocated_bytes == {A: 1}
    assert step.paces == {0: fast}


def test_a_loop_that_never_goes_backward_makes_a_step_of_every_mark() -> None:
    s = steps(0)
    for i in range(3):
        mark(s, 0, i, 10 * i + 10, backward=False)
    s.leave(0)
    assert [x[2] for x in ends(s)] == [10, 20, 30]


def test_a_rank_that_left_with_fewer_marks_is_not_waited_for() -> None:
    s = steps(0, 1)
    mark(s, 0, 1, 10)
    mark(s, 1, 1, 12)
    s.leave(1)
    mark(s, 0, 2, 20)
    s.leave(0)
    assert [x[:3] for x in ends(s)] == [(1, "startup", 12), (2, "step", 20)]
    assert s.counts() == {0: 2, 1: 1}


def test_no_step_is_final_before_all_ranks_have_joined_or_its_end_is_known() -> None:
    s = Steps()
    s.expect(2)
    s.join(0)
    mark(s, 0, 1, 10)
    s.launched(0, 1)
    assert ends(s) == []
    s.join(1)
    s.launched(1, 1)
    s.mark(1, 1, {})
    s.launched(1, 1)
    assert ends(s) == []
    s.ended(Mark(1, 1, 5, 5))
    assert [x[2] for x in ends(s)] == [10]


def test_reports_belong_to_the_next_mark_and_add_up_over_ranks() -> None:
    s = steps(0, 1)
    for rank in (0, 1):
        s.report(rank, "tokens", 100)
        mark(s, rank, 1, 10)
        s.report(rank, "tokens", 50)
        mark(s, rank, 2, 20)
        s.leave(rank)
    assert [x.reports for x in s.final()] == [{"tokens": 200}, {"tokens": 100}]


def test_the_present_step_of_a_rank() -> None:
    s = steps(0)
    assert s.present(0) == 1
    mark(s, 0, 1, 10)
    assert s.present(0) == 2
    s.launched(0, 1)
    assert s.present(0) == 2


def test_memory_adds_ranks_of_a_device_and_begins_each_interval_with_what_is_there() -> None:
    m = MemoryView()
    m.update(0, A, 100)
    m.update(1, A, 50)
    m.update(0, A, 20)
    assert (m.allocated(A), m.peak(A)) == (70, 150)
    assert m.interval(0) == {A: 100}
    assert m.interval(0) == {A: 20}
    m.refused(0, A, 500, 3)
    assert (m.refusals[0].allocated_bytes, m.refusals[0].step) == (70, 3)
    m.left(1)
    assert m.allocated(A) == 20
