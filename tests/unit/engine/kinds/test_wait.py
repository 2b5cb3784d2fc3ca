"""`wait`: a durable timer (page 003 §4)."""

from __future__ import annotations

from agentflow.definition.ir import Options, WaitNode
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso
from tests.unit.engine.driver import Driver, call, graph, steps

SECOND = 1_000_000


def waiting(input: object = None, **fields: object) -> Driver:
    return Driver(graph(WaitNode(id="rest", next="after", **fields), call("after", "__end")), input)  # type: ignore[arg-type]


def test_a_duration_leaves_its_events_and_the_run_waits_meanwhile():
    driver = waiting(duration=30.0)
    due = iso(driver.now + 30 * SECOND)
    assert driver.types() == [
        "workflow.started",
        "workflow.step_started",
        "timer.scheduled",
        "workflow.step_waiting",
        "workflow.waiting",
    ]
    (waits,) = driver.events(ev.WorkflowStepWaiting)
    assert (waits.for_, waits.ref, waits.deadline) == ("timer", "wait", due)
    assert driver.state.status == "waiting"
    assert driver.state.nodes["rest"].status == "waiting"
    assert driver.events(ev.WorkflowWaiting)[0].timers == (f"timer wait /rest#0 {due}",)
    state = driver.run()
    assert state.status == "completed"
    (fired,) = driver.events(ev.TimerFired)
    end = driver.events(ev.WorkflowStepCompleted)[0]
    assert fired.due_at == due
    assert end.output == {"due_at": due, "fired_at": due}


def test_the_time_at_which_it_fired_is_that_of_the_event():
    driver = waiting(duration=1.0)
    driver.now += 5 * SECOND
    driver.advance([])
    end = driver.events(ev.WorkflowStepCompleted)[0]
    assert end.output == {"due_at": iso(2 * SECOND), "fired_at": iso(6 * SECOND)}


def test_until_is_a_template_of_a_moment():
    driver = waiting({"at": "1970-01-01T00:00:09Z"}, until="${{ input.at }}")
    assert driver.run().status == "completed"
    assert driver.now >= 9 * SECOND
    assert driver.events(ev.WorkflowStepCompleted)[0].output["due_at"] == iso(9 * SECOND)


def test_a_moment_in_the_past_is_no_wait():
    driver = waiting(until="1970-01-01T00:00:00Z")
    assert "timer.scheduled" not in driver.types()
    assert driver.events(ev.WorkflowStepCompleted)[0].output == {
        "due_at": iso(0),
        "fired_at": iso(driver.now),
    }


def test_what_is_no_moment_fails_the_node():
    for text in ("soon", "2030-01-31T08:00:00", None, 7):
        driver = waiting({"at": text}, until="${{ input.at }}")
        assert driver.run().status == "failed"
        (failed,) = driver.events(ev.WorkflowStepFailed)
        assert (failed.error.code, failed.error.category) == ("invalid_until", "invalid_input")


def test_a_wait_survives_a_crash_with_its_moment():
    driver = waiting(duration=30.0)
    driver.now += 10 * SECOND
    driver.crash()
    assert driver.run().status == "completed"
    assert driver.events(ev.TimerFired)[0].due_at == iso(31 * SECOND)
    assert len(driver.events(ev.TimerScheduled)) == 1


def test_a_crash_behind_each_event_gives_the_same_end():
    whole = waiting(duration=2.0)
    whole.run()
    for cut in whole.batches[1:]:
        driver = waiting(duration=2.0)
        driver.run()
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        assert driver.run().status == "completed"
        steps = [t for t in driver.types() if not t.startswith("tool.")]
        assert steps == [t for t in whole.types() if not t.startswith("tool.")]


def test_a_pause_does_not_move_the_moment():
    driver = waiting(duration=30.0)
    driver.advance([ev.WorkflowPaused(reason="operator", detail=None)])
    driver.now += 60 * SECOND
    driver.advance([])
    assert driver.state.status == "paused"
    driver.advance([ev.WorkflowResumed(reason=None)])
    assert driver.events(ev.TimerFired)[0].due_at == iso(31 * SECOND)
    assert driver.run().status == "completed"


def test_the_end_of_a_run_disarms_the_timer():
    driver = Driver(graph(WaitNode(id="rest", duration=30.0, next="__end"), options=Options(timeout=5.0)))
    state = driver.run()
    assert state.status == "failed"
    assert driver.types()[-4:] == [
        "workflow.waiting",
        "timer.cancelled",
        "workflow.step_failed",
        "workflow.failed",
    ]
    assert not state.scheduled
    assert not state.timers or set(state.timers) == {"run"}


def test_iterations_wait_each():
    node = WaitNode(
        id="rest", duration=2.0, join="all_succeeded", for_each="${{ inputs.items }}", max_parallel=1
    )
    driver = Driver(steps(node), {"items": [1, 2]})
    assert driver.run().status == "completed"
    assert [e.iteration for e in driver.events(ev.TimerFired)] == [0, 1]
    assert driver.state.nodes["rest"].slots == 0
