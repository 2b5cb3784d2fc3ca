"""`llm`: one question to a model, with calls of functions and a checked answer (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import LlmNode, Options, Policy
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.agents.healing import coerce, heal
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, call, graph, tool

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def asking(*said: Any, input: Any = None, after: Any = None, options: Any = None, **fields: Any) -> Driver:
    """A run whose model says these things one after another; the last one again and again."""
    node = LlmNode(id="ask", **{"model": "scripted:m", "prompt": "Say it", "next": "after", **fields})
    answers = list(said)

    def model(activation: Any, call: Any) -> Any:
        turn = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(turn, BaseException):
            raise turn
        return turn

    tools = {"ask": [tool("add")]} if fields.get("tools") else None
    work = graph(node, after or call("after", "__end"), options=options or Options())
    return Driver(work, input, tools=tools, model=model)


def end(driver: Driver) -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "ask")


def failure(driver: Driver) -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == "ask")


def wants(number: int = 1) -> Message:
    calls = tuple(ToolCall(id=f"c{i}", name="s__add", arguments='{"x": 1}') for i in range(number))
    return Message(role="assistant", content="", tool_calls=calls)


def test_its_events_are_those_of_a_step_and_of_a_model_call():
    driver = asking("hello", prompt="Greet {{ input.name }}", system="Be kind", input={})
    assert driver.run().status == "completed"
    of_step = [d for d, _, _ in driver.log if getattr(d, "step_id", None) == "ask"]
    assert [d.EVENT_TYPE for d in of_step] == [
        "workflow.step_started",
        "node.llm_input_resolved",
        "model.call_started",
        "model.call_completed",
        "workflow.step_completed",
    ]
    (resolved,) = driver.events(ev.NodeLlmInputResolved)
    assert (resolved.prompt, resolved.template) == ("Greet ", "Greet {{ input.name }}")
    assert (resolved.system, resolved.messages_count, resolved.model) == ("Be kind", 2, "scripted:m")
    (binding,) = resolved.bindings
    assert (binding.source_path, binding.resolved_type, binding.missing) == ("input.name", "null", True)
    assert of_step[2].agent_name is None
    assert end(driver).output == "hello"
    assert driver.state.usage.model_calls == 1


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("input.none", False),
        ("input.items[1]", False),
        ("input.items[2]", True),
        ("input.items.x", True),
        ("input.none.below", True),
        ("input['un' ]", True),
        ("input[input.key]", False),
        ("nodes.ask.output", True),
        ("input.none || input.lacks", True),
        ("input.none || null", False),
        ("input.items", False),
    ],
)
def test_a_binding_says_that_a_member_is_absent_and_not_that_it_is_null(expression: str, missing: bool):
    value = {"none": None, "items": [0, None], "key": "none"}
    driver = asking("ok", prompt=f"{{{{ {expression} }}}}", input=value)
    driver.run()
    (binding,) = driver.events(ev.NodeLlmInputResolved)[0].bindings
    assert binding.missing is missing


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), ({"a": 1}, '{"a":1}'), (None, ""), ("{{ x }}", "{{ x }}")]
)
def test_a_prompt_is_always_text(value, text):
    driver = asking("ok", prompt="{{ input.v }}", input={"v": value})
    driver.run()
    assert driver.requests[0][1] == [Message(role="user", content=text)]


def test_the_history_goes_before_the_prompt():
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    driver = asking("ok", messages_path="input.h", system="S", input={"h": history})
    driver.run()
    assert [m.role for m in driver.requests[0][1]] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize(
    "value", [None, [], "hi", [{"role": "boss", "content": "x"}], [{"rolle": "user"}]], ids=str
)
def test_a_history_that_is_none_fails_before_any_call(value):
    driver = asking("ok", messages_path="input.h", input={"h": value})
    assert driver.run().status == "failed"
    assert (failure(driver).code, failure(driver).category) == ("invalid_messages", "invalid_input")
    assert not driver.requests


def test_an_answer_that_does_not_fit_is_repaired_twice_at_most():
    driver = asking("no", '{"n": "x"}', '{"n": 3}', output_schema=SCHEMA)
    assert driver.run().status == "completed"
    assert end(driver).output == {"n": 3}
    assert [e.kind for e in driver.events(ev.WorkflowStepRetrying)] == ["repair", "repair"]
    assert len(driver.events(ev.NodeLlmInputResolved)) == 3
    driver = asking("no", output_schema=SCHEMA)
    assert driver.run().status == "failed"
    assert (failure(driver).code, failure(driver).cause.code) == ("invalid_output", "schema_mismatch")
    assert len(driver.requests) == 3


def policy(**retry: Any) -> Policy:
    return Policy(retry=RetryPolicy(backoff=Backoff(initial=1.0), jitter=0.0, **retry))


def test_a_model_that_fails_is_asked_again_and_then_given_up():
    driver = asking(Fault("transient", "server_error"), "ok", policy=policy(max_attempts=3))
    assert driver.run().status == "completed"
    assert [e.kind for e in driver.events(ev.WorkflowStepRetrying)] == ["model"]
    assert not driver.state.timers
    driver = asking(Fault("transient", "server_error"), policy=policy(max_attempts=3))
    assert driver.run().status == "failed"
    error = failure(driver)
    assert (error.code, error.category, error.cause.code) == (
        "llm_retry_exhausted",
        "transient",
        "server_error",
    )
    assert error.details["attempts"] == 3
    assert error.details["last_error"]["code"] == "server_error"


def test_one_attempt_that_fails_is_exhausted_too():
    driver = asking(Fault("auth", "authentication_failed"))
    assert driver.run().status == "failed"
    assert (failure(driver).code, failure(driver).details["attempts"]) == ("llm_retry_exhausted", 1)


def test_a_model_that_is_too_late_is_a_timeout_of_the_node():
    late = Fault("timeout", "response_timeout")
    driver = asking(late, policy=policy(max_attempts=2, timeout=5.0))
    assert driver.run().status == "failed"
    assert failure(driver).code == "llm_timeout"
    assert failure(driver).details == {"timeout_ms": 5000, "attempts": 2}


def test_its_functions_are_called_for_so_many_turns():
    driver = asking(wants(), "done", tools=("s.add",))
    assert driver.run().status == "completed"
    assert [e.tool_name for e in driver.events(ev.ToolCallCompleted)] == ["s__add", "s__after"]
    assert end(driver).output == "done"
    driver = asking(wants(), tools=("s.add",), max_tool_roundtrips=2)
    assert driver.run().status == "failed"
    assert failure(driver).code == "tool_roundtrips_exceeded"
    assert failure(driver).details == {"limit": 2}


def test_its_answer_is_the_last_of_a_model():
    driver = asking("42", after=call("after", "__end", input={"said": "${{ last_llm_output }}"}))
    assert driver.run().output == {"said": "42"}


def test_an_answer_is_healed_if_the_node_says_so():
    nearly = "Sure:\n```json\n{n: '3', /* so */ }\n```"
    driver = asking(nearly, output_schema=SCHEMA, heal=True, stream=True)
    assert driver.run().status == "completed"
    assert end(driver).output == {"n": 3}
    (healed,) = driver.events(ev.NodeHealed)
    assert "/n as integer" in healed.changes
    (off,) = driver.events(ev.NodeStreamDisabled)
    assert off.reason == "heal"
    driver = asking(nearly, '{"n": 1}', output_schema=SCHEMA)
    driver.run()
    assert not driver.events(ev.NodeHealed)
    assert end(driver).output == {"n": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{'a': 'it\\'s'}", {"a": "it's"}),
        ("{a: True, b: None}", {"a": True, "b": None}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("[1, // one\n 2]", [1, 2]),
        ('x ```\n{"a": "```"}', None),
        ('{"a": "cut of', None),
        ("{a: what}", None),
        ("no brackets", None),
        ('{"a": 1]', None),
        ('here {"u": "http://x"} there', {"u": "http://x"}),
    ],
)
def test_healing_puts_right_what_it_knows_and_nothing_else(text, value):
    found = heal(text)
    assert (None if found is None else found[0]) == value


def test_coercion_follows_the_schema():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"items": {"type": "boolean"}, "type": "array"}},
    }
    value, changes = coerce({"a": "1.5", "b": ["true", "x"], "c": "1"}, schema)
    assert value == {"a": 1.5, "b": [True, "x"], "c": "1"}
    assert changes == ["/a as number", "/b/0 as boolean"]


@pytest.mark.parametrize(
    ("value", "schema", "coerced"),
    [
        ("[1, '2']".replace("'", '"'), {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ('{"a": "1"}', {"type": "object", "properties": {"a": {"type": "number"}}}, {"a": 1}),
        ("7", {"type": ["integer", "null"]}, 7),
        (None, {"type": ["integer", "null"]}, None),
        ("7", {"type": ["integer", "string"]}, "7"),
        (7, {"type": ["string", "null"]}, "7"),
        (7, {"type": ["string", "number"]}, 7),
        (2.0, {"type": "integer"}, 2),
        ("[1]", {"type": "string"}, "[1]"),
        ('"7"', {"type": "integer"}, '"7"'),
        (True, {"type": "integer"}, True),
    ],
)
def test_coercion_reads_what_the_schema_names(value: Any, schema: Any, coerced: Any):
    assert coerce(value, schema)[0] == coerced


def test_an_answer_that_is_healed_and_does_not_fit_is_told_how():
    driver = asking("{n: 'x'}", "{n: 5}", output_schema=SCHEMA, heal=True)
    assert driver.run().status == "completed"
    (again,) = driver.events(ev.WorkflowStepRetrying)
    assert again.error.details["errors"][0]["path"] == "/n"
    assert end(driver).output == {"n": 5}


@pytest.mark.parametrize("heal", [False, True])
def test_of_several_blocks_the_last_is_the_answer(heal: bool):
    driver = asking('```json\n{"n": 1}\n```\nor\n```json\n{"n": 2}\n```', output_schema=SCHEMA, heal=heal)
    assert driver.run().status == "completed"
    assert end(driver).output == {"n": 2}
    assert not driver.events(ev.NodeHealed)


@pytest.mark.parametrize("flow", ["eager", "superstep"])
def test_a_crash_behind_each_batch_pays_for_no_answer_twice(flow):
    def whole() -> Driver:
        said = [wants(), "no", '{"n": 1}', '{"n": 1}']
        return asking(*said, tools=("s.add",), output_schema=SCHEMA, options=Options(policy=flow))

    first = whole()
    assert first.run().status == "completed"
    for cut in first.batches[1:]:
        driver = whole()
        driver.run()
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        assert driver.run().status == "completed"
        assert end(driver).output == {"n": 1}
        done = [e.model_call_id for e in driver.events(ev.ModelCallCompleted)]
        assert len(done) == len(set(done)) <= 4
