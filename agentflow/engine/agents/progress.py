"""What is known of an agent's attempt and of calls of functions: the part of an activation that they fold."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.engine.bindings import ToolInfo

__all__ = ["AgentProgress", "Measured", "ToolRecord", "model_of"]


class ToolRecord:
    """One tool call of an agent or of a tool node, from the model's wish to its recorded end."""

    __slots__ = (
        "approval",
        "call",
        "denied",
        "error",
        "executed",
        "info",
        "name",
        "outcome",
        "output",
        "output_size",
        "parameters",
        "safe",
        "state",
        "tries",
    )

    def __init__(self, call: ToolCall, name: str) -> None:
        self.call = call
        self.name = name
        self.info: ToolInfo | None = None
        self.parameters: Any = None
        self.state: Literal["planned", "asked", "open", "done", "failed", "unknown"] = "planned"
        self.output: Any = None
        self.output_size = 0  # bytes of canonical JSON
        self.error: ErrorInfo | None = None
        self.executed = False
        self.outcome: str | None = None
        self.tries = 0
        self.safe = False  # may be made again when its outcome is unknown
        self.approval: str | None = None  # the request in which a person agreed to it
        self.denied: ErrorInfo | None = None


class Measured(NamedTuple):
    """The most input tokens that `model` has reported for the first `messages` messages of a context."""

    model: str
    messages: int
    tokens: int


class AgentProgress:
    """One attempt of an agent: its conversation, and what it is waiting for."""

    __slots__ = (
        "answer",
        "asked_at",
        "call_error",
        "calls",
        "context_id",
        "digest",
        "due_at",
        "failed_calls",
        "finish_reason",
        "first_failure",
        "found",
        "has_answer",
        "known_results",
        "loops_in",
        "measured",
        "messages",
        "min_output",
        "model_call",
        "model_index",
        "models",
        "need",
        "offered",
        "pending",
        "repairs",
        "rounds_without_news",
        "system_prompt",
        "told_of_loop",
        "tools",
        "turn",
        "turn_open",
        "user_input",
    )

    def __init__(self, context_id: str, system_prompt: str, user_input: Any) -> None:
        self.context_id = context_id
        self.system_prompt = system_prompt
        self.user_input = user_input
        self.models: tuple[ModelRef, ...] = ()
        self.model_index = 0
        self.messages: list[Message] = []
        self.pending: list[Message] = []  # what the next model call adds to the conversation
        self.digest = ""
        self.turn = 0
        self.turn_open = False  # begun, and its model call has not been answered
        self.asked_at: int | None = None  # microseconds; since then it wants a model call
        self.offered: frozenset[tuple[str, str]] = frozenset()  # names and schema hashes of its functions
        self.found: tuple[str, ...] = ()  # functions that it has searched for, which are offered too
        self.measured: Measured | None = None
        self.min_output = 0  # tokens; an answer was cut at one less because the budget left no more
        self.model_call: str | None = None  # the open one
        self.failed_calls = 0  # consecutive failures of the present model call
        self.first_failure: int | None = None
        self.due_at: int | None = None  # microseconds; a retry waits until then
        self.repairs = 0
        self.calls: list[dict[str, Any]] = []  # settled calls, of kinds that show them to expressions
        self.call_error: ErrorInfo | None = None  # of the first failed call of the last round
        self.known_results: dict[tuple[str, str], tuple[str, int]] = {}  # of a call: the last one, how often
        self.rounds_without_news = 0  # since the last one with a new call or result
        self.told_of_loop = False
        self.loops_in = ""  # the function that was called in a loop although the model was told
        self.finish_reason = ""
        self.tools: dict[str, ToolRecord] = {}  # of the last assistant message, in call order
        self.answer: str = ""
        self.has_answer = False
        self.need: Any = None  # a cache of `call_queue`: what the next call wants, and what it follows from

    @property
    def wants_call(self) -> bool:
        """True while its turn is open and its model call has not begun."""
        return self.turn_open and self.model_call is None and not self.tools and not self.has_answer


def model_of(progress: AgentProgress) -> ModelRef:
    """Return the model that serves the next call: the first one, or a fallback."""
    return progress.models[min(progress.model_index, len(progress.models) - 1)]
