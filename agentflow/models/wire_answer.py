"""What the answers of all wire formats do alike: tool calls from blocks, ends, failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from agentflow.definition.conversation import Message, ReasoningPart, ToolCall, Usage
from agentflow.definition.type_errors import undecodable
from agentflow.models import faults
from agentflow.models.accumulator import Accumulator, TextPieces, end_of
from agentflow.models.base import AnswerEnd, DeltaSink, ModelError, ModelReply
from agentflow.models.event_json import decode_event
from agentflow.models.function_names import FunctionNames
from agentflow.models.http import HttpFailure

__all__ = ["ANSWER_FUNCTION", "WireAnswer", "WireCallBlock"]

ANSWER_FUNCTION = "answer"
"""The function by whose call a model answers by a schema, where the provider has no other way."""

T = TypeVar("T")


class WireCallBlock:
    """A tool call as its pieces arrive."""

    def __init__(self, id: str | None, name: str) -> None:
        self.id = id
        self.name = name
        self.arguments = TextPieces()


class WireAnswer(Accumulator):
    """An answer of one wire format. The subclass reads events and says the finish reason.

    `what` names in errors what the events should have been. With `answer_function` the call of
    ANSWER_FUNCTION is the answer's text.
    """

    what: str
    format: str

    def __init__(
        self,
        provider: str,
        model: str,
        names: FunctionNames,
        on_delta: DeltaSink | None,
        max_bytes: int,
        *,
        key: str | None = None,
        answer_function: bool = False,
    ) -> None:
        super().__init__(on_delta, max_bytes)
        self._provider = provider
        self._model = model
        self._names = names
        self._key = key
        self._answers_by_call = answer_function
        self.calls: list[WireCallBlock] = []
        self.reasoning: list[Any] = []
        self.model: str | None = None
        self.response_id: str | None = None
        self.finish_reason: str | None = None
        self.refusal = TextPieces()
        self.has_content = False
        self.done = False
        self.is_over = False
        self.counted: Usage | None = None

    def decode(self, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        """Read the data of one event. Raises ModelError for one that is none of the wire format."""
        try:
            return decode_event(data, decoder)
        except (msgspec.DecodeError, ValueError) as failure:
            is_json = isinstance(failure, msgspec.DecodeError)
            found = undecodable(failure, decoder.type) if is_json else str(failure)
            problem = faults.redact(f"the answer is not {self.what}: {found}", self._key)
            raise faults.broken_answer(self._provider, problem, partial=self.text) from None

    def failure(self, error: object) -> ModelError:
        """Return the error that an event says."""
        return faults.from_stream(self._provider, error, secret=self._key, partial=self.text)

    def end(self) -> AnswerEnd:
        """Return the end that the finish reason means."""
        return end_of(self.finish_reason)

    def reply(self, new_call_id: Callable[[], str]) -> ModelReply:
        """Return the answer with its end. Raises ModelError for one that is withheld or failed."""
        if not self.is_over:
            cut = HttpFailure("broken", "the stream ended before the answer did")
            raise faults.from_http_failure(self._provider, cut, partial=self.text)
        reason, end = self.finish_reason, self.end()
        refusal = str(self.refusal)
        if end == "withheld" or refusal:
            what = "the model refused to answer" if refusal else "the provider withheld the answer"
            raise faults.content_filtered(
                self._provider, what, partial=refusal or self.text, finish_reason=reason
            )
        if end == "failed":
            raise faults.failed_answer(self._provider, reason, self.has_content, partial=self.text)
        whole = end == "complete"
        text = self.text
        blocks = self.calls
        if self._answers_by_call:
            answers = [block for block in blocks if block.name == ANSWER_FUNCTION]
            blocks = [block for block in blocks if block.name != ANSWER_FUNCTION]
            if answers and not blocks:
                text = str(answers[0].arguments)
        calls = tuple(
            ToolCall(
                id=new_call_id(),
                name=self._names.read(block.name),
                arguments=str(block.arguments) or ("{}" if whole else ""),
                provider_id=block.id,
            )
            for block in blocks
        )
        parts = tuple(
            ReasoningPart(provider=self._provider, format=self.format, data=data) for data in self.reasoning
        )
        return ModelReply(
            message=Message(role="assistant", content=text, tool_calls=calls, reasoning=parts),
            finish_reason=("tool_calls" if calls else "stop") if whole else "length",
            response_model=self.model or self._model,
            end=end,
            provider_finish_reason=reason,
            response_id=self.response_id,
            usage=self.counted or Usage(model_calls=1),
            first_token_ms=self.first_token_ms,
        )
