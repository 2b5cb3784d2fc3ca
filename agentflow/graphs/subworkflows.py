"""Workflows as nodes of another one (page 002 §11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["SubWorkflowRequest", "SubWorkflowResponse", "WorkflowExecutor"]


class WorkflowExecutor:
    """A workflow as a node: one child run for each message.

    Its outputs go on as messages, or with `output="output"` as outputs of the run. What it asks goes to a
    node behind an edge of this one that takes SubWorkflowRequest, else to the caller of the run.
    """

    def __init__(self, workflow: Workflow, id: str, output: Literal["message", "output"] = "message") -> None:
        self.workflow = workflow
        self.id = id
        self.output: Literal["message", "output"] = output


class SubWorkflowResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a request of a child run: the answer, or `forward` to ask the caller of the run."""

    child_workflow_id: str
    request_id: str
    executor_id: str
    forward: bool = False
    value: Any = None


class SubWorkflowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a child run, as a message. `executor_id` is the node of this graph that runs the child.

    `data` is what is asked, `response_type` the tag of the type of the answer, `deadline` when the child
    answers itself or fails (RFC 3339).
    """

    __packed__: ClassVar[tuple[str, ...]] = ("data",)

    child_workflow_id: str
    request_id: str
    executor_id: str
    data: Any
    response_schema: Any = True
    response_type: str | None = None
    deadline: str | None = None

    def answer(self, value: Any) -> SubWorkflowResponse:
        """Return the message that answers it: send it along any edge to the node `executor_id`."""
        return self._response(value=value)

    def forward(self) -> SubWorkflowResponse:
        """Return the message that passes it on to the caller of this run."""
        return self._response(forward=True)

    def _response(self, **more: Any) -> SubWorkflowResponse:
        return SubWorkflowResponse(
            child_workflow_id=self.child_workflow_id,
            request_id=self.request_id,
            executor_id=self.executor_id,
            **more,
        )
