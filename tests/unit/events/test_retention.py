"""What retention takes, decided from rows alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.events.retention import RetentionPolicy, RetentionScan
from agentflow.events.rows import RunRow

DAY = 86_400_000_000  # µs
NOW = 1_000 * DAY


def row(name, *, state="completed", age=1.0, size=100, last=9, **more):
    """A run that ended `age` days ago."""
    ended = NOW - int(age * DAY)
    return RunRow(
        workflow_id=f"wf_{name}",
        name=None,
        definition_hash="d",
        state=state,
        labels=more.pop("labels", {}),
        created_at=ended - 5,
        updated_at=ended,
        last_offset=last,
        epoch=1,
        owner=None,
        bytes=size,
        **more,
    )


def plan_retention(policy, rows, now):
    """Show a scan the rows as a store does: those at work first, the others by the time of their end."""
    everything = sorted(rows, key=lambda row: (row.updated_at, row.workflow_id))
    scan = RetentionScan(policy, now)
    open_runs, ended = ([r for r in everything if r.ended is is_ended] for is_ended in (False, True))
    for each in open_runs:
        scan.note(each)
    for each in ended if scan.weighs else ():
        scan.weigh(each)
    scan.begin()
    for each in ended:
        scan.take(each)
    return scan.plan()


def taken(policy, *rows):
    return [r.workflow_id.removeprefix("wf_") for r in plan_retention(policy, rows, NOW).removals]


def age(days, **more):
    return RetentionPolicy(mode="age", max_age=days * 86_400, **more)


def size(limit, **more):
    return RetentionPolicy(mode="size", max_bytes=limit, **more)


def test_by_default_everything_stays():
    plan = plan_retention(RetentionPolicy(), [row("a", age=900)], NOW)
    assert (plan.removals, plan.kept, plan.runs, plan.bytes, plan.bytes_after) == ([], [], 1, 100, 100)


def test_what_ended_too_long_ago_goes_the_oldest_first():
    rows = [row("a", age=29.9), row("b", age=40), row("c", age=31, state="cancelled"), row("d", age=30)]
    assert taken(age(30), *rows) == ["b", "c"]
    plan = plan_retention(age(30), rows, NOW)
    assert plan.removals[0].reason == "ended 40d ago, beyond 30d"
    assert (plan.bytes, plan.bytes_after) == (400, 200)


def test_the_oldest_go_until_the_rest_is_small_enough():
    rows = [row("a", age=3), row("b", age=9), row("c", age=6), row("d", state="running", age=99, size=150)]
    assert taken(size(450), *rows) == []
    assert taken(size(449), *rows) == ["b"]
    assert taken(size(250), *rows) == ["b", "c"]
    assert taken(size(0), *rows) == ["b", "c", "a"]


@pytest.mark.parametrize("state", ["pending", "running", "waiting", "paused"])
@pytest.mark.parametrize("policy", [age(1), size(0), size(0, trim_to_events=1)])
def test_what_has_not_ended_stays(policy, state):
    assert taken(policy, row("a", age=900, state=state)) == []


def test_failed_runs_stay_unless_told_otherwise():
    failed = row("a", age=900, state="failed")
    plan = plan_retention(age(1), [failed], NOW)
    assert [k.reason for k in plan.kept] == ["it failed, and keep_failed is set"]
    assert taken(age(1, keep_failed=False), failed) == ["a"]


def test_what_is_held_stays_whatever_the_value_of_the_label():
    for value in ("true", "", "no"):
        assert taken(age(1), row("a", age=900, labels={"hold": value})) == []


def test_a_run_stays_as_long_as_its_parent_or_child_has_not_ended():
    parent = row("parent", age=900)
    child = row("child", age=901, parent="wf_parent")
    assert taken(age(1), parent, child) == ["child", "parent"]
    open_child = row("child2", state="waiting", parent="wf_parent")
    assert taken(age(1), parent, child, open_child) == ["child"]
    open_parent = row("parent", state="running")
    plan = plan_retention(age(1), [open_parent, child], NOW)
    assert plan.removals == []
    assert [k.reason for k in plan.kept] == ["its parent wf_parent is running"]
    assert taken(age(1), child) == ["child"]  # its parent is gone


def test_what_stays_does_not_save_younger_runs_from_the_limit_of_size():
    rows = [row("a", age=9, labels={"hold": "x"}), row("b", age=8), row("c", age=7)]
    assert taken(size(100), *rows) == ["b", "c"]
    plan = plan_retention(size(50), rows, NOW)
    assert plan.bytes_after == 100  # still above: what is left may not go


def test_trimming_leaves_the_last_events_of_what_is_due():
    rows = [row("a", age=900, last=99, size=1_000), row("b", age=900, last=9), row("c", age=0.5, last=99)]
    plan = plan_retention(age(30, trim_to_events=10), rows, NOW)
    removal = plan.removals[0]
    assert [r.workflow_id for r in plan.removals] == ["wf_a"]  # b has no more than ten events
    assert (removal.action, removal.before, removal.bytes) == ("trim", 90, 900)
    again = row("a", age=900, last=99, size=100, earliest_offset=90)
    assert plan_retention(age(30, trim_to_events=10), [again], NOW).removals == []


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"mode": "age"}, "needs max_age"),
        ({"mode": "size"}, "needs max_bytes"),
        ({"max_age": 5.0}, 'write mode = "age"'),
        ({"mode": "age", "max_age": 5.0, "max_bytes": 7}, 'write mode = "size"'),
        ({"mode": "age", "max_age": -1.0}, "negative"),
        ({"trim_to_events": 0}, "at least 1"),
    ],
)
def test_a_policy_that_would_not_do_what_it_says_is_refused(members, match):
    with pytest.raises(ValueError, match=match):
        RetentionPolicy(**members)


ROWS = st.lists(
    st.builds(
        lambda n, state, days, size, last, parent, hold: (n, state, days, size, last, parent, hold),
        st.integers(0, 9),
        st.sampled_from(["running", "waiting", "completed", "failed", "cancelled"]),
        st.floats(0, 100),
        st.integers(0, 1_000),
        st.integers(0, 50),
        st.none() | st.integers(0, 9),
        st.booleans(),
    ),
    max_size=10,
    unique_by=lambda r: r[0],
)


@given(
    rows=ROWS,
    policy=st.builds(age, st.floats(0, 100), keep_failed=st.booleans())
    | st.builds(
        size, st.integers(0, 5_000), keep_failed=st.booleans(), trim_to_events=st.none() | st.just(3)
    ),
)
def test_no_policy_takes_what_must_stay(rows, policy):
    made = [
        row(
            str(n),
            state=state,
            age=days,
            size=bytes_,
            last=last,
            parent=None if parent is None else f"wf_{parent}",
            labels={"hold": ""} if hold else {},
        )
        for n, state, days, bytes_, last, parent, hold in rows
    ]
    by_id = {r.workflow_id: r for r in made}
    plan = plan_retention(policy, made, NOW)
    assert plan == plan_retention(policy, made[::-1], NOW)  # of the order of rows nothing depends
    ends = [(r.ended_at, r.workflow_id) for r in plan.removals]
    assert ends == sorted(ends)
    for removal in plan.removals:
        run = by_id[removal.workflow_id]
        assert run.ended
        assert "hold" not in run.labels
        assert run.parent not in by_id or by_id[run.parent].ended
        assert all(child.ended for child in made if child.parent == run.workflow_id)
        assert not (policy.keep_failed and run.state == "failed")
        assert 0 <= removal.bytes <= run.bytes
    if policy.mode == "size" and policy.trim_to_events is None and plan.bytes_after > policy.max_bytes:
        left = {r.workflow_id for r in made} - {r.workflow_id for r in plan.removals}
        kept = {k.workflow_id for k in plan.kept}
        assert all(not by_id[w].ended or w in kept for w in left)


def test_a_policy_survives_its_encoding():
    policy = size(5, trim_to_events=3)
    assert msgspec.convert(msgspec.to_builtins(policy), RetentionPolicy) == policy
