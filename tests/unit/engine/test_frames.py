"""Frames: what a child path sees of its parents, and what is let go with it."""

from __future__ import annotations

from agentflow.definition.ir import MapNode
from agentflow.engine.frames import ABSENT, Frame
from tests.unit.engine.driver import Driver, call, graph, tool


def test_a_subgraph_sees_global_values_and_no_nodes_around_it():
    run = Frame()
    run.set("globals", "count", 1)
    run.set("nodes", "outside", {"output": 1})
    branch = Frame(run, run.open())
    branch.set("nodes", "beside", {"output": 2})
    inner = Frame(branch, branch.open(), is_isolated=True)
    inner.set("nodes", "inside", {"output": 3})
    assert inner.get("globals", "count") == 1
    assert inner.all("globals") == {"count": 1}
    assert inner.get("nodes", "outside") is ABSENT
    assert list(inner.names("nodes")) == ["inside"]
    assert set(branch.names("nodes")) == {"beside", "outside"}


def test_a_child_path_of_a_subgraph_sees_global_values_above_it():
    run = Frame()
    run.set("globals", "count", 1)
    inner = Frame(run, run.open(), is_isolated=True)
    below = Frame(inner, inner.open())
    run.set("globals", "count", 2)
    assert below.get("globals", "count") == 1, "as of the opening"
    assert list(below.names("globals")) == ["count"]


def test_nothing_is_kept_for_child_paths_once_their_group_has_ended():
    workflow = graph(
        MapNode(id="spread", items_path="input.items", body="look", next="__end"), call("look", None)
    )
    driver = Driver(workflow, {"items": [{}, {}]}, tools={"look": [tool("look")]})
    assert driver.state.root.frame.is_read, "child paths are open"
    assert driver.run().status == "completed"
    assert not driver.state.root.frame.is_read
