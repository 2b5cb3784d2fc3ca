"""`cache_read` and `cache_write`: entries of a run, of a definition, of a store (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.ir import (
    CacheReadNode,
    CacheWriteNode,
    MapNode,
    Options,
    TransformNode,
    WaitNode,
)
from agentflow.engine.shared_store import Read, Write, applied
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph

INPUT = {"k": "a", "v": {"x": 1}, "null": None, "n": 7}


def read(id: str = "read", next: str = "__end", **more: Any) -> CacheReadNode:
    if "key" not in more:
        more.setdefault("key_path", "input.k")
    return CacheReadNode(id=id, next=next, **more)


def write(id: str = "write", next: str | None = "read", path: str = "input.v", **more: Any) -> CacheWriteNode:
    if "key" not in more:
        more.setdefault("key_path", "input.k")
    return CacheWriteNode(id=id, value_path=path, next=next, **more)


def end(driver: Driver, step: str = "read") -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step)


def failure(driver: Driver, step: str) -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step)


def played(*nodes: Any, input: Any = INPUT, **more: Any) -> Driver:
    keep = {k: more.pop(k) for k in ("store", "run") if k in more}
    driver = Driver(graph(*nodes, **more), input, **keep)
    driver.run()
    return driver


SCOPES = ["run", "definition", "global"]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_value_that_was_written_is_read(scope: Any):
    driver = played(write(scope=scope), read(scope=scope))
    assert end(driver, "write").output == {"key": "a", "value": {"x": 1}}
    assert end(driver).output == {"key": "a", "hit": True, "value": {"x": 1}}
    assert end(driver).next == "next"
    assert len(driver.accesses) == (0 if scope == "run" else 2)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_stored_null_is_a_hit(scope: Any):
    driver = played(
        write(path="input.null", scope=scope), read(scope=scope, on_miss="miss"), call("miss", "__end")
    )
    assert end(driver).output == {"key": "a", "hit": True, "value": None}
    assert end(driver).next == "next"


@pytest.mark.parametrize("scope", SCOPES)
def test_a_miss_goes_its_own_way(scope: Any):
    driver = played(read(scope=scope, on_miss="miss"), call("miss", "__end"))
    assert end(driver).output == {"key": "a", "hit": False, "value": None}
    assert end(driver).next == "on_miss"
    assert end(driver, "miss")


def test_a_miss_without_a_way_of_its_own_goes_to_next():
    driver = played(read(next="after"), call("after", "__end"))
    assert end(driver).next == "next"
    assert end(driver, "after").output["hit"] is False


def test_the_key_may_be_a_template():
    driver = played(write(key="v/{{ input.n }}"), read(key="v/7"))
    assert end(driver).output["hit"] is True


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    "more", [{"key_path": "input.n"}, {"key_path": "input.absent"}, {"key": "{{ input.v }}"}]
)
def test_a_key_that_is_no_text_fails(scope: Any, more: dict[str, Any]):
    for node in (read(scope=scope, **more), write(next="__end", scope=scope, **more)):
        error = failure(played(node), node.id)
        assert (error.code, error.category) == ("cache_key_not_string", "invalid_input")


@pytest.mark.parametrize("scope", SCOPES)
def test_an_expression_error_names_its_field(scope: Any):
    driver = played(write(next="__end", key="{{ input.k > 1 }}", scope=scope))
    assert failure(driver, "write").code == "expression_error"
    assert failure(driver, "write").details["path"] == "/key"
    assert not driver.accesses


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("pause", "hit"), [(4.9, True), (5.0, False)])
def test_an_entry_lives_as_long_as_its_ttl_by_the_times_of_events(scope: Any, pause: float, hit: bool):
    driver = played(
        write(next="rest", ttl=5.0, scope=scope),
        WaitNode(id="rest", duration=pause, next="read"),
        read(scope=scope),
    )
    assert end(driver).output["hit"] is hit


def test_a_later_write_replaces_the_value_and_its_time():
    driver = played(
        write(next="rest", ttl=1.0),
        WaitNode(id="rest", duration=3.0, next="again"),
        write("again", path="input.n"),
        read(),
    )
    assert end(driver).output == {"key": "a", "hit": True, "value": 7}


def test_the_entries_of_a_run_are_seen_by_its_paths():
    each = MapNode(id="each", items_path="input", body="write", max_in_flight=1, next="read")
    driver = played(each, write(next=None, key="{{ item }}", path="index"), read(key="b"), input=["a", "b"])
    assert end(driver).output == {"key": "b", "hit": True, "value": 1}


class TestOtherRuns:
    def test_the_runs_of_a_definition_share_its_entries(self):
        store: dict[str, Any] = {}
        nodes = [
            read(next="__end", on_miss="write", scope="definition"),
            write(next="__end", path="input.n", scope="definition"),
        ]
        first = played(*nodes, store=store)
        second = played(*nodes, store=store, run="wf_2")
        assert end(first).output["hit"] is False
        assert end(second).output == {"key": "a", "hit": True, "value": 7}
        other = played(*nodes, TransformNode(id="new", expression="1", next="__end"), store=store, run="wf_3")
        assert end(other).output["hit"] is False, "of another definition"

    def test_global_entries_are_those_of_the_store(self):
        store: dict[str, Any] = {}
        played(write(next="__end", scope="global"), store=store)
        assert end(played(read(scope="global"), store=store, run="wf_2")).output["hit"] is True
        assert end(played(read(scope="definition"), store=store, run="wf_3")).output["hit"] is False
        assert end(played(read(), store=store, run="wf_4")).output["hit"] is False

    def test_a_run_that_is_not_trusted_has_entries_of_its_own(self):
        store: dict[str, Any] = {}
        driver = Driver(
            graph(write(next="__end", scope="global")), INPUT, store=store, options={"trusted": False}
        )
        driver.run()
        assert end(played(read(scope="global"), store=store, run="wf_2")).output["hit"] is False

    def test_an_older_write_that_comes_late_replaces_nothing(self):
        newer, _ = applied(Write("new", at=2, until=None), None)
        assert applied(Write("old", at=1, until=None), newer) == (newer, True)
        assert applied(Read(), newer)[1].value == "new"  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_crash_behind_each_event_gives_the_same_end(scope: Any, policy: Any):
    nodes = [
        write(next="rest", ttl=60.0, scope=scope),
        WaitNode(id="rest", duration=2.0, next="read"),
        read(scope=scope, next="after", on_miss="miss"),
        call("after", "__end"),
        call("miss", "__end"),
    ]
    whole = played(*nodes, options=Options(policy=policy))
    assert whole.state.output == {"key": "a", "hit": True, "value": {"x": 1}}
    for cut in range(1, len(whole.log)):
        driver = played(*nodes, options=Options(policy=policy))
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        assert driver.run().output == whole.state.output


def test_a_replay_of_the_log_never_asks():
    driver = played(write(scope="global"), read(scope="global"))
    state = driver.refold()
    assert state.terminal
    assert state.nodes_view["read"]["output"]["hit"] is True
    assert len(driver.accesses) == 2
