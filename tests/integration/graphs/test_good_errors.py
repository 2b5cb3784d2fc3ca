"""Errors name the node, the edge, the types and what to do; every name of the API is importable."""

from __future__ import annotations

from typing import Any

import pytest

import agentflow
from agentflow import (
    Case,
    Default,
    Executor,
    Runtime,
    WorkflowBuilder,
    WorkflowContext,
    errors,
    executor,
    handler,
)
from agentflow.errors import (
    JoinIncomplete,
    MessageUndelivered,
    RoutingFailed,
    StateConflict,
    WorkflowValidationError,
)
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never

POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])

NAMES = """
AgentExecutor Backoff Case Default Edits EventLog Executor Never NodeFailure PendingRequest
RequestInfoEvent RequestInfoExecutor RetryPolicy RunHandle Runtime SubWorkflowRequest
SubWorkflowResponse Workflow WorkflowBuilder WorkflowContext WorkflowExecutor WorkflowFailedEvent
WorkflowOutputEvent WorkflowRunResult WorkflowStartedEvent WorkflowStatusEvent executor handler
reducers register_type response_handler ModelAnswer SequentialBuilder ConcurrentBuilder
GroupChatBuilder HandoffBuilder MagenticBuilder Agent AgentResponse Message
"""

CODES = """message_type_undeclared unknown_target routing_failed message_undelivered join_incomplete
state_conflict executor_failed max_iterations_exceeded step_limit_exceeded pending_limit_exceeded
message_limit_exceeded no_response_handler input_timeout unknown_speaker
concurrency_rejected checkpoint_not_found
graph_signature_mismatch invalid_edit"""


@pytest.mark.parametrize("name", NAMES.split())
def test_every_name_of_the_api_is_importable(name: str):
    assert getattr(agentflow, name) is not None
    assert name in agentflow.__all__


@pytest.mark.parametrize("code", CODES.split())
def test_every_code_is_an_exception_too(code: str):
    kind = getattr(errors, "".join(word.title() for word in code.split("_")))
    assert issubclass(kind, errors.AgentflowError)
    assert kind.code == code


@executor(id="begin")
async def begin(text: str, ctx: WorkflowContext[str | int]) -> None:
    await ctx.send_message(text)


@executor(id="numbers")
async def numbers(number: int, ctx: WorkflowContext[Never, int]) -> None:
    await ctx.yield_output(number)


@executor(id="texts")
async def texts(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(text)


async def failure(workflow: Any, message: Any) -> errors.WorkflowFailed:
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(errors.WorkflowFailed) as caught:
            await runtime.run(workflow, message)
    return caught.value


@POLICIES
async def test_a_message_that_nobody_takes(policy: Any):
    built = (
        WorkflowBuilder("w", policy=policy, on_undelivered="fail")
        .set_start_executor(begin)
        .add_edge(begin, numbers)
        .build()
    )
    error = await failure(built, "a")
    assert isinstance(error, MessageUndelivered)
    for part in ("begin", "str", "begin->numbers", "numbers", "int", "type_mismatch", "message 0"):
        assert part in str(error), part
    assert error.error.details["reason"] == "type_mismatch"
    assert 'add a handler of str to "numbers"' in str(error)


def test_a_type_that_nobody_handles_is_seen_when_the_graph_is_built():
    @executor(id="words")
    def words(text: str) -> str:
        return text

    with pytest.raises(WorkflowValidationError) as caught:
        WorkflowBuilder("w").set_start_executor(words).add_edge(words, numbers).build()
    for part in ("E_TYPE_INCOMPATIBLE", "words", "numbers", "str", "int", "add a handler of str"):
        assert part in str(caught.value), part


async def test_a_value_of_a_subclass_of_any_that_no_handler_takes():
    class Picky(Executor):
        @handler
        async def on_text(self, text: str, ctx: WorkflowContext) -> None: ...

    @executor(id="loose")
    async def loose(value: int, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message(value, target_id="picky")

    built = (
        WorkflowBuilder("w", on_undelivered="fail")
        .set_start_executor(loose)
        .add_edge(loose, Picky("picky"))
        .build()
    )
    error = await failure(built, 3)
    for part in ("loose", "picky", "int", "str"):
        assert part in str(error), part


@POLICIES
async def test_a_join_that_cannot_close(policy: Any):
    @executor(id="silent")
    async def silent(text: str, ctx: WorkflowContext[str]) -> None: ...

    class Gather(Executor):
        @handler
        async def on_texts(self, found: list[str], ctx: WorkflowContext) -> None: ...

    built = (
        WorkflowBuilder("w", policy=policy)
        .set_start_executor(begin, silent)
        .add_fan_in_edges([begin, silent], Gather("gather"), on_missing="fail")
        .build()
    )
    error = await failure(built, "a")
    assert isinstance(error, JoinIncomplete)
    for part in ("gather", "begin", "silent"):
        assert part in str(error), part
    assert 'state on_missing="partial"' in str(error)
    assert error.error.details == {"join": "gather", "arrived": ["begin"], "missing": ["silent"]}


@POLICIES
async def test_a_predicate_that_raises(policy: Any):
    def broken(text: str) -> bool:
        raise KeyError("amount")

    built = (
        WorkflowBuilder("w", policy=policy)
        .set_start_executor(begin)
        .add_switch_case_edge_group(begin, [Case(broken, texts), Default(numbers)])
        .build()
    )
    error = await failure(built, "a")
    assert isinstance(error, RoutingFailed)
    for part in ("begin", "broken", "texts", "KeyError", "amount", "str"):
        assert part in str(error), part


async def test_a_state_conflict():
    def writer(id: str, value: int) -> Executor:
        @executor(id=id)
        async def write(text: str, ctx: WorkflowContext) -> None:
            ctx.set_shared_state("total", value)

        return write

    built = (
        WorkflowBuilder("w", policy="superstep")
        .set_start_executor(writer("one", 1), writer("two", 2))
        .build()
    )
    error = await failure(built, "a")
    assert isinstance(error, StateConflict)
    for part in ("one", "two", '"total"', "reducer"):
        assert part in str(error), part
    assert "declare one: add_shared" in str(error)


def _graph() -> WorkflowBuilder:
    return WorkflowBuilder("w").set_start_executor(begin)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: _graph().add_edge("begin", "nmbers"), ("nmbers", "begin")),
        (
            lambda: _graph().add_switch_case_edge_group("begin", [Case("message > 1", numbers)]),
            ('"begin" has no default', "Default(node)"),
        ),
        (
            lambda: _graph().add_map_edges("begin", numbers, texts),
            ('an edge leaves "numbers", which sends nothing', "declare what it sends"),
        ),
    ],
    ids=["a node that is not there", "no default", "a worker that sends nothing"],
)
def test_a_mistake_of_the_builder_names_its_nodes_and_the_fix(make: Any, words: tuple[str, ...]):
    with pytest.raises(errors.WorkflowValidationError) as refused:
        make().build()
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "nothing]" not in str(refused.value)


async def test_the_failure_of_a_run_says_how_to_mend_what_its_handler_did():
    @executor(id="astray")
    async def astray(text: str, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(1, target_id="nobody")

    error = await failure(
        WorkflowBuilder("w").set_start_executor(astray).add_edge(astray, numbers).build(), "x"
    )
    assert '"astray" to "nobody"' in str(error)
    assert "send to one of: numbers" in str(error.hint)
