"""A model that answers by the script of a test, through the same protocol as a real one.

It must never be chosen for a user who did not register it, and never answer beyond its script.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import msgspec

from agentflow.aside import compute_aside
from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.models.base import DeltaSink, ModelError, ModelProfile, ModelReply, ModelRequest

__all__ = ["Call", "Ended", "ScriptedModel", "Step", "When", "call", "cut", "withheld"]

Step = Any
"""A string (answer text), a `Call` or a list of them (tool calls), `cut(…)` or `withheld(…)` of these, a
ModelError (raised), another JSON value (answered as compact JSON), or a function of the request that returns
one of these, plain or awaitable; awaiting in it delays the answer."""

_LONG_CHARACTERS = 256 * 1024

When = str | Callable[[ModelRequest], bool]
"""Text that must occur in the request's system messages, or a predicate of the request."""


class Call(NamedTuple):
    """A tool call that the model asks for; made by `call`."""

    name: str
    arguments: str


def call(name: str, /, **arguments: Any) -> Call:
    """Return a step of a script that calls one tool: `call("lookup", customer_id=7)`."""
    return Call(name, msgspec.json.encode(arguments).decode())


class Ended(NamedTuple):
    """A step whose answer does not end complete; made by `cut` and `withheld`."""

    step: Any
    finish_reason: str


def cut(step: Step) -> Ended:
    """Return a step whose answer is cut off by its length: `cut("half an ans")`, `cut(call("lookup",
    id=7))`."""
    return Ended(step, "length")


def withheld(step: Step = "") -> Ended:
    """Return a step whose answer the provider withholds."""
    return Ended(step, "content_filter")


async def _count_words(texts: list[str]) -> int:
    """Return how many words the texts have; long ones are split in a thread, 5 ms a MiB."""
    if sum(map(len, texts)) <= _LONG_CHARACTERS:
        return _words(texts)
    return await compute_aside(_words, texts)


def _words(texts: list[str]) -> int:
    return sum(len(text.split()) for text in texts)


class _Lane:
    """The steps for the requests that one `when` selects."""

    def __init__(self, steps: Callable[[ModelRequest], Any] | Iterable[Step], when: When | None) -> None:
        self.when = when
        self.answer = steps if callable(steps) else None
        self.steps: list[Step] = [] if callable(steps) else list(steps)
        self.used = 0
        self.refused = 0

    def matches(self, request: ModelRequest) -> bool:
        if self.when is None:
            return True
        if isinstance(self.when, str):
            wanted = self.when
            return any(m.role == "system" and wanted in m.content for m in request.messages)
        return self.when(request)

    def describe(self) -> str:
        return "the script" if self.when is None else f"the script for {self.when!r}"


class ScriptedModel:
    """A provider whose answers are steps, given as a sequence (used up in order) or as one function of the
    request (never used up). Each `add` appends a script; a request takes the next step of the first script
    whose `when` fits, scripts with a `when` before those without.

        model = ScriptedModel([call("lookup", id=7), {"urgency": "high"}])
        model.add(["A summary."], when="You summarise")

    `requests` holds every request in order of arrival. Token counts are numbers of words.
    """

    def __init__(
        self,
        steps: Callable[[ModelRequest], Any] | Iterable[Step] = (),
        *,
        when: When | None = None,
        name: str = "scripted",
        profile: ModelProfile | None = None,
        max_concurrency: int = 8,
    ) -> None:
        self.name = name
        self.max_concurrency = max_concurrency
        self.limiter_key = name
        self.requests: list[ModelRequest] = []
        self._profile = profile or ModelProfile(input_price=0.0, output_price=0.0)
        self._lanes: list[_Lane] = []
        self._counted: tuple[Message, ...] = ()
        self._words = 0
        if callable(steps) or (steps := list(steps)):
            self.add(steps, when=when)

    def add(
        self, steps: Callable[[ModelRequest], Any] | Iterable[Step], *, when: When | None = None
    ) -> ScriptedModel:
        """Append a script; returns the model itself."""
        self._lanes.append(_Lane(steps, when))
        self._lanes.sort(key=lambda lane: lane.when is None)
        return self

    def profile(self, model: str) -> ModelProfile:
        """Return the same profile for every model name: many tools, JSON by schema, no cost, unless given."""
        return self._profile

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """Answer with the next step. Raises the step's ModelError, or `script_exhausted`."""
        self.requests.append(request)
        number = len(self.requests)
        step = self._next(request)
        while callable(step) or inspect.isawaitable(step):
            step = await step if inspect.isawaitable(step) else step(request)
        if isinstance(step, BaseException):
            raise step
        step, finish_reason = step if isinstance(step, Ended) else (step, None)
        message = _message(step, new_call_id)
        if on_delta is not None:
            for piece in _pieces(message.content):
                on_delta("output", piece)
        usage = Usage(
            input_tokens=await self._count(request.messages),
            output_tokens=len(message.content.split())
            + sum(len(c.arguments.split()) for c in message.tool_calls),
            model_calls=1,
        )
        return ModelReply(
            message=message,
            finish_reason=finish_reason or ("tool_calls" if message.tool_calls else "stop"),
            response_model=request.model,
            response_id=f"{self.name}-{number}",
            usage=msgspec.structs.replace(usage, cost_usd=self._profile.cost(usage)),
            first_token_ms=0.0,
        )

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""

    def assert_complete(self) -> None:
        """Raise AssertionError unless every step was used and no request came without a step for it."""
        problems: list[str] = []
        for lane in self._lanes:
            if left := len(lane.steps) - lane.used:
                problems.append(f"{lane.describe()} has {left} of {len(lane.steps)} steps left")
            if lane.refused:
                problems.append(f"{lane.describe()} was asked {lane.refused} times too often")
        if problems:
            raise AssertionError("; ".join(problems))

    async def _count(self, messages: tuple[Message, ...]) -> int:
        """Return how many words the messages have; those of the last request, which a conversation repeats,
        are known."""
        known = len(self._counted)
        begin, words = (known, self._words) if messages[:known] == self._counted else (0, 0)
        words += await _count_words([message.content for message in messages[begin:]])
        self._counted, self._words = messages, words
        return words

    def _next(self, request: ModelRequest) -> Step:
        for lane in self._lanes:
            if not lane.matches(request):
                continue
            if lane.answer is not None:
                return lane.answer
            if lane.used < len(lane.steps):
                lane.used += 1
                return lane.steps[lane.used - 1]
            lane.refused += 1
            raise _exhausted(f"{lane.describe()} has no step left after {len(lane.steps)}", request)
        raise _exhausted("no script fits this request", request)


def _exhausted(problem: str, request: ModelRequest) -> ModelError:
    system = next((m.content for m in request.messages if m.role == "system"), "")
    last = request.messages[-1] if request.messages else Message(role="user")
    text = f"{problem}; system prompt {system[:120]!r}, last message ({last.role}) {last.content[:120]!r}"
    return ModelError(ErrorInfo(category="agent", code="script_exhausted", message=text, provider="scripted"))


def _message(step: Step, new_call_id: Callable[[], str]) -> Message:
    if isinstance(step, str):
        return Message(role="assistant", content=step)
    calls = [step] if isinstance(step, Call) else cast("list[Any]", step) if isinstance(step, list) else []
    if calls and all(isinstance(c, Call) for c in calls):
        made = tuple(
            ToolCall(id=new_call_id(), name=c.name, arguments=c.arguments, provider_id=f"scripted_{i}")
            for i, c in enumerate(calls)
        )
        return Message(role="assistant", tool_calls=made)
    return Message(role="assistant", content=msgspec.json.encode(step).decode())


def _pieces(text: str) -> Iterable[str]:
    """Return the text in words with their trailing blanks, as a stream would bring it."""
    start = 0
    for end in range(1, len(text)):
        if text[end - 1].isspace() and not text[end].isspace():
            yield text[start:end]
            start = end
    if text:
        yield text[start:]
