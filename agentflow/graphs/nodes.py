"""Node arguments of the builder, and the nodes of the graph that they stand for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.definition.ir import AgentNode, ExecutorNode, Node, Policy, SubgraphNode
from agentflow.errors import ConfigurationError
from agentflow.executors import Executor
from agentflow.executors.annotations import tags_of_annotation
from agentflow.executors.context import seconds
from agentflow.graphs.agents import Agent, AgentExecutor, AgentResponse, Message, slug
from agentflow.graphs.subworkflows import WorkflowExecutor

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["NodeArgument", "Placed", "UnfitNode", "place"]

NodeArgument = Any
"""Executor, class or factory of one, Agent, AgentExecutor, WorkflowExecutor, Workflow, or id of a node."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_AGENT_TAKES = (str, Message, list[Message], AgentResponse)


class UnfitNode(Exception):
    """A value that cannot be a node; carries code, message and hint."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the builder: its Struct of the IR, its types, and the code behind it.

    `template` makes the executor of each run; `executor` is one of them, of which the checks ask.
    """

    node: Node
    takes: tuple[Any, ...] = ()
    sends: tuple[Any, ...] = ()
    yields: tuple[Any, ...] = ()
    template: Executor | Callable[[], Executor] | None = None
    executor: Executor | None = None
    workflow: Workflow | None = None

    @property
    def exchanges(self) -> bool:
        """True for a nested workflow: it sends SubWorkflowRequest too, and takes SubWorkflowResponse."""
        return self.workflow is not None


def place(given: NodeArgument) -> Placed:
    """Return the node that an argument stands for. Raises UnfitNode."""
    from agentflow.graphs.workflow import Workflow

    if isinstance(given, Executor):
        return _executor(given, given)
    if isinstance(given, Agent):
        given = AgentExecutor(given)
    if isinstance(given, AgentExecutor):
        return _agent(given)
    if isinstance(given, Workflow):
        given = WorkflowExecutor(given, slug(given.name))
    if isinstance(given, WorkflowExecutor):
        return _workflow(given)
    if inspect.isclass(given) and issubclass(given, Executor):
        return _made(_factory_of(given), given.__name__)
    if callable(given):
        return _made(given, getattr(given, "__name__", type(given).__name__))
    raise UnfitNode("E_TYPE", f"a {type(given).__name__} is no node", "pass an Executor, an Agent or an id")


def _executor(executor: Executor, template: Executor | Callable[[], Executor]) -> Placed:
    """Return an executor's node; one whose handlers cannot be read has no types, which the checks report."""
    try:
        takes, sends = tuple(executor.input_types), tuple(executor.output_types)
        yields = tuple(executor.workflow_output_types)
        answers = [spec.answer for spec in executor.handlers if spec.kind == "response"]
    except (NameError, TypeError):
        takes, sends, yields, answers = (), (), (), []
    policy = None
    if executor.retry is not None or executor.timeout is not None:
        limit = None if executor.timeout is None else seconds(executor.timeout, f"timeout of {executor.id}")
        policy = Policy(retry=executor.retry, timeout=limit)
    node = ExecutorNode(
        id=executor.id,
        executor=executor.id,
        accepts=_tags(takes),
        emits=_tags(sends),
        answers=_tags(answers),
        policy=policy,
        on_error=executor.on_error or "fail",
    )
    return Placed(node=node, takes=takes, sends=sends, yields=yields, template=template, executor=executor)


def _tags(annotations: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag for one in annotations for tag in tags_of_annotation(one)))


def _factory_of(kind: type[Executor]) -> Callable[[], Executor]:
    """Return what makes an executor of a class: with the slug of its name as id, if it needs one."""
    parameters = list(inspect.signature(kind).parameters.values())
    if parameters and parameters[0].name == "id" and parameters[0].default is inspect.Parameter.empty:
        return cast("Callable[[], Executor]", partial(kind, slug(_HUMP.sub("_", kind.__name__))))
    return kind  # type: ignore[return-value]


def _made(factory: Callable[..., Any], name: str) -> Placed:
    hint = "decorate a function with @executor; a factory takes no arguments and returns an Executor"
    try:
        made = factory()
    except ConfigurationError as error:
        raise UnfitNode("E_VALUE", f"{name}: {error}", hint) from None
    except TypeError as error:
        raise UnfitNode("E_TYPE", f"{name} cannot make a node: {error}", hint) from None
    if not isinstance(made, Executor):
        raise UnfitNode("E_TYPE", f"{name} returns {type(made).__name__}, not an Executor", hint)
    return _executor(made, factory)


def _agent(given: AgentExecutor) -> Placed:
    node = AgentNode(id=given.id, agent=given.agent.spec())
    return Placed(node=node, takes=_AGENT_TAKES, sends=(AgentResponse,))


def _workflow(given: WorkflowExecutor) -> Placed:
    inner = given.workflow
    node = SubgraphNode(
        id=given.id,
        inline=inner.to_ir(),
        isolation="run",
        exchange=given.output,
        accepts=_tags(inner.input_types),
    )
    yields = inner.output_types if given.output == "output" else ()
    sends = inner.output_types if given.output == "message" else ()
    return Placed(node=node, takes=inner.input_types, sends=sends, yields=yields, workflow=inner)
