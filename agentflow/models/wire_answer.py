"""What the answers of all wire formats do alike: tool calls from blocks, ends, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentflow.definition.conversation import Message, ReasoningPart, ToolCall, Usage
from agentflow.definition.type_errors import undecodable
from agentflow.models import faults
from agentflow.models.accumulator import Accumulator, TextPieces, end_of
from agentflow.models.base import AnswerEnd, DeltaSink, ModelError, ModelReply
from agentflow.models.event_json import decode_event
from agentflow.models.function_names import FunctionNames
from agentflow.models.http import HttpFailure

__all__ = ["SplitAnswer", "WireAnswer", "WireCallBlock", "split_answer"]

T = TypeVar("T")


class WireCallBlock:
    """A tool call as its pieces arrive."""

    def __init__(self, id: str | None, name: str) -> None:
        self.id = id
        self.name = name
        self.arguments = TextPieces()


class SplitAnswer(NamedTuple):
    """What an answer says: calls of functions (name, provider's id, arguments) with the reasoning that goes
    back to the provider, or the answer that was given by a call; None if it is text."""

    calls: list[tuple[str, str | None, str]]
    reasoning: list[Any]
    answer: str | None = None

    def message(
        self,
        text: str,
        names: FunctionNames,
        new_call_id: Callable[[], str],
        *,
        provider: str,
        format: str,
        is_whole: bool,
    ) -> Message:
        """Return the message of an answer whose text is `text` unless a call gave it. Empty arguments are an
        empty object only in a whole answer."""
        calls = tuple(
            ToolCall(
                id=new_call_id(),
                name=names.read(name),
                arguments=arguments or ("{}" if is_whole else ""),
                provider_id=id,
            )
            for name, id, arguments in self.calls
        )
        parts = tuple(ReasoningPart(provider=provider, format=format, data=data) for data in self.reasoning)
        content = text if self.answer is None else self.answer
        return Message(role="assistant", content=content, tool_calls=calls, reasoning=parts)


def split_answer(
    calls: Sequence[tuple[str, str | None, str]], reasoning: Sequence[Any], answer_function: str | None
) -> SplitAnswer:
    """Take the call of the answer function, if there is one, from the others. It is the answer if it is the
    only call; beside others it is left out, since their results are still to come. Parts of the reasoning
    that belong to one call (`call` is its position) follow it, or go with it.
    """
    kept = [i for i, call in enumerate(calls) if call[0] != answer_function]
    if len(kept) == len(calls):
        return SplitAnswer(list(calls), list(reasoning))
    places = {old: new for new, old in enumerate(kept)}
    parts = [
        {**part, "call": places[part["call"]]} if "call" in part else part
        for part in reasoning
        if "call" not in part or part["call"] in places
    ]
    answer = None if kept else next(call[2] for call in calls)
    return SplitAnswer([calls[i] for i in kept], parts, answer)


class WireAnswer(Accumulator):
    """An answer of one wire format. The subclass reads events and says the finish reason.

    `what` names in errors what the events should have been. The call of `answer_function`, a name on the
    wire, is the answer's text.
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
        answer_function: str | None = None,
    ) -> None:
        super().__init__(on_delta, max_bytes)
        self._provider = provider
        self._model = model
        self._names = names
        self._key = key
        self._answer_function = answer_function
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
        said = split_answer(
            [(block.name, block.id, str(block.arguments)) for block in self.calls],
            self.reasoning,
            self._answer_function,
        )
        message = said.message(
            self.text, self._names, new_call_id, provider=self._provider, format=self.format, is_whole=whole
        )
        return ModelReply(
            message=message,
            finish_reason=("tool_calls" if message.tool_calls else "stop") if whole else "length",
            response_model=self.model or self._model,
            end=end,
            provider_finish_reason=reason,
            response_id=self.response_id,
            usage=self.counted or Usage(model_calls=1),
            first_token_ms=self.first_token_ms,
        )
