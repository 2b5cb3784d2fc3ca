"""WorkflowAgent: a workflow that is asked like an agent (page 002 §11, §16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.errors import ConfigurationError, WorkflowValidationError
from agentflow.graphs.agents import AgentResponse, Message
from agentflow.graphs.types import names_of

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow
    from agentflow.records.runs import RunResult

__all__ = ["WorkflowAgent", "check_conversation"]


class WorkflowAgent:
    """A workflow as an agent, made by `Workflow.as_agent`. Each call with a message is a run of its own."""

    def __init__(self, workflow: Workflow, name: str) -> None:
        """Name the agent. Raises WorkflowValidationError (E_TYPE_INCOMPATIBLE) if a start of the workflow
        does not take list[Message]."""
        if not name.strip():
            raise ConfigurationError("a workflow as an agent needs a name")
        check_conversation(workflow)
        self.workflow = workflow
        self.name = name

    @property
    def description(self) -> str:
        """What the workflow is for."""
        return self.workflow.description

    async def run(
        self,
        message: str | Message | Sequence[Message] | None = None,
        *,
        responses: Mapping[str, Any] | None = None,
        workflow_id: str | None = None,
    ) -> AgentResponse:
        """Run the workflow on a message, or answer requests of the run `workflow_id`; wait until it rests.

        The response has all outputs of the run as messages, and its open requests; answer these by
        `responses` (request id to value) with `workflow_id` of the response. With `workflow_id` alone, the
        response is that of the run as it rests. Raises ConfigurationError for other calls, and what
        `Workflow.run` and `Workflow.send_responses` raise.
        """
        if message is not None and responses is not None:
            raise ConfigurationError("pass a message or responses, not both: a message begins a run")
        if message is not None:
            result = await self.workflow.run(_conversation(message), workflow_id=workflow_id)
        elif workflow_id is not None:
            result = await self.workflow.send_responses(workflow_id, responses or {})
        else:
            asked = "responses need the workflow_id of their run" if responses else "pass a message"
            raise ConfigurationError(f"agent {self.name}: {asked}")
        return self._response(result)

    def _response(self, result: RunResult[Any]) -> AgentResponse:
        """Return the outputs of a run as messages, and what it asks."""
        said = [message for output in result.get_outputs() for message in self._messages(output)]
        last = said[-1] if said else None
        return AgentResponse(
            messages=said,
            text=last.text if last else "",
            data=last.data if last else None,
            requests=list(result.pending_requests),
            usage=result.usage,
            workflow_id=result.workflow_id,
        )

    def _messages(self, output: Any) -> list[Message]:
        """Return an output as messages; the output of a team stands for what it has said."""
        from agentflow.graphs.teams.team import TeamResult

        if isinstance(output, TeamResult):
            output = output.output
        if isinstance(output, AgentResponse) and output.messages:
            return list(output.messages)
        if isinstance(output, AgentResponse):
            output = output.text if output.data is None else output.data
        items = cast("list[Any]", output) if isinstance(output, list) else [output]
        if items and all(isinstance(item, Message) for item in items):
            return cast("list[Message]", items)
        if output is None or isinstance(output, str):
            return [Message("assistant", output, self.name)] if output else []
        data = msgspec.to_builtins(output, str_keys=True)
        return [Message("assistant", msgspec.json.encode(data).decode(), self.name, data)]

    def __repr__(self) -> str:
        return f"<WorkflowAgent {self.name} of {self.workflow.name}>"


def _conversation(message: str | Message | Sequence[Message]) -> list[Message]:
    if isinstance(message, str):
        return [Message("user", message)]
    if isinstance(message, Message):
        return [message]
    found = list(message)
    if not found:
        raise ConfigurationError("a conversation needs a message")
    for item in found:
        if not isinstance(item, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a conversation has messages, not {type(item).__name__}")
    return found


def check_conversation(workflow: Workflow) -> None:
    """Raise WorkflowValidationError if a start of a workflow does not take list[Message]."""
    problems: list[Diagnostic] = []
    for node_id in workflow.start_executor_ids:
        placed = workflow.placed(node_id)
        if placed is None:
            continue
        if placed.executor is not None:
            fits = placed.executor.can_handle([Message("user", "")])
        elif placed.workflow is not None:
            check_conversation(placed.workflow)
            fits = True
        else:
            fits = list[Message] in placed.takes
        if not fits:
            problems.append(
                Diagnostic(
                    code="E_TYPE_INCOMPATIBLE",
                    severity="error",
                    message=f'"{node_id}" takes {names_of(placed.takes)}, an agent is told list[Message]',
                    hint=f'add a handler of list[Message] to "{node_id}"',
                )
            )
    if problems:
        raise WorkflowValidationError(problems)
