"""Examples of an agent, and the text of a truncated answer (page 000 §3, §9)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import DefinitionError, Runtime, Service, function
from agentflow.definition import load_value
from agentflow.events import catalogue as ev
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel, call, cut
from tests.integration.support.runs import document, log_of, must_be_sound, step


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


EXAMPLES = [
    {"input": "the sky {is} up", "output": {"colour": "blue"}},
    {"input": {"text": "grass"}, "output": "green"},
]


async def run(model: ScriptedModel, graph: Any, **more: Any) -> tuple[Any, list[Any]]:
    log = MemoryLog()
    async with Runtime(log, models=[model], **more) as runtime:
        handle = await runtime.submit(graph, {})
        result = await handle.rest()
        await must_be_sound(log, handle.workflow_id)
    return result, [e.data for e in await log_of(log, handle.workflow_id)]


def of_steps(agent: dict[str, Any]) -> Any:
    made = step("a")
    made["agent"] |= agent
    return load_value(document(made))


def of_list(agent: dict[str, Any]) -> Any:
    return load_value({"agents": [{"name": "a", "system_prompt": "a", **agent}]})


@pytest.mark.parametrize("made", [of_steps, of_list])
async def test_examples_are_turns_before_the_input(made: Any) -> None:
    model = ScriptedModel([{"ok": True}])
    result, events = await run(model, made({"examples": EXAMPLES}))
    assert result.state == "completed"
    (request,) = model.requests
    said = [(m.role, m.content) for m in request.messages]
    assert said[1:5] == [
        ("user", "the sky {is} up"),
        ("assistant", '{"colour":"blue"}'),
        ("user", '{"text":"grass"}'),
        ("assistant", "green"),
    ]
    (started,) = [e for e in events if isinstance(e, ev.ModelCallStarted)]
    assert [(m.role, m.content) for m in started.messages] == said  # the log has them


@pytest.mark.parametrize("wrong", [[{"input": 1}], [{"input": 1, "output": 2, "x": 3}], {"input": 1}])
@pytest.mark.parametrize("made", [of_steps, of_list])
def test_examples_that_are_none_are_refused(made: Any, wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        made({"examples": wrong})


async def test_the_text_of_a_truncated_answer_is_taken_where_the_agent_says_so() -> None:
    model = ScriptedModel([cut("half an ans")])
    result, events = await run(model, of_list({"accept_truncated": True}))
    assert (result.state, result.output) == ("completed", "half an ans")
    (completed,) = [e for e in events if isinstance(e, ev.ModelCallCompleted)]
    assert completed.finish_reason == "length"
    assert completed.usage.output_tokens == 3


async def test_calls_of_a_truncated_answer_are_not_executed_even_so() -> None:
    executed: list[Any] = []

    @function(side_effect="irreversible")
    def wipe(scope: str = "all") -> str:
        executed.append(scope)
        return "done"

    model = ScriptedModel([cut(call("s__wipe"))])
    graph = of_list({"accept_truncated": True, "tools": ["s.wipe"]})
    result, _ = await run(model, graph, services=[Service.of("s", wipe)])
    assert (result.state, executed) == ("failed", [])


async def test_a_truncated_answer_that_breaks_the_schema_is_repaired_like_any_other() -> None:
    model = ScriptedModel([cut('{"ok": tr'), '{"ok": true}'])
    schema = {"type": "object", "required": ["ok"]}
    result, _ = await run(model, of_list({"accept_truncated": True, "output_schema": schema}))
    assert (result.state, len(model.requests)) == ("completed", 2)
