"""Many agents on one budget, on the virtual clock: a provider whose true usage is known though it does not
report it, and what must hold of every log. Everything follows from a seed."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from typing import Any

import msgspec

from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError, ModelProfile, ModelReply, ModelRequest
from agentflow.runtime.run_handle import RunHandle
from tests.integration.support.runs import log_of, must_be_sound
from tests.integration.virtual import LoopClock

__all__ = ["play", "play_one_after_another"]

AGENTS = 50
_TEXTS = ("Is it urgent? ", "這張發票付了嗎？", "Ärger mit der Lieferung – bitte prüfen. ", "🙂🙃")
_BROKEN_OFF = ErrorInfo(category="transient", code="network_error", message="broke off", retryable=True)
_MALFORMED = ErrorInfo(category="invalid_output", code="invalid_response", message="no JSON")
_PRICES = {"input_price": 3.0, "output_price": 15.0}


def true_tokens(text: str) -> int:
    """Count as some tokenizer might: the same text always alike, and never more tokens than bytes."""
    body = text.encode()
    return len(body) * (20 + zlib.crc32(body) % 81) // 100


def _functions(count: int) -> Service:
    def made(number: int) -> Any:
        @function(name=f"look_{number}", side_effect="read")
        async def look(ctx: ToolContext, where: str = "here", how_often: int = 1) -> dict[str, int]:
            """Look at something that has a rather long description, so that its schema has a size."""
            await asyncio.sleep(number % 3)
            return {"seen": how_often}

        return look

    return Service.of("desk", *(made(number) for number in range(count)))


_SERVICES = {count: _functions(count) for count in (1, 100)}


class Provider:
    """Answers with calls, with text, late, cut at the limit, broken off; counts or not. What a call does
    depends on the seed, the agent and its turn alone, never on what other agents do."""

    name = limiter_key = "sim"
    max_concurrency = AGENTS

    def __init__(self, seed: int, *, wordy: bool = True) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.counts = rng.choice((0.0, 0.5, 1.0, 1.0))
        self.breaks = rng.choice((0.0, 0.0, 0.05, 0.3))
        self.overheads = rng.randint(1, 16), rng.randint(1, 8), rng.randint(1, 32)
        self.lengths = (3, 30, 30, 51, 51, 51, 400, *((5_000,) if wordy else ()))
        # What the network does may open the circuit of the provider, which ties the agents to each other.
        self.broken = _BROKEN_OFF if wordy else _MALFORMED
        self.true_input = self.true_output = self.calls = self.open = self.most_open = 0
        self.tries: Counter[str] = Counter()
        size = rng.choice((None, None, 1_024, 16_384, 128_000))
        self._profile = ModelProfile(max_output_tokens=size, **_PRICES)

    @property
    def true_cost(self) -> float:
        """What the provider will charge for all that it read and wrote, in US dollars."""
        return (self.true_input * _PRICES["input_price"] + self.true_output * _PRICES["output_price"]) / 1e6

    def profile(self, model: str) -> ModelProfile:
        return self._profile

    async def aclose(self) -> None:
        return None

    def _read(self, request: ModelRequest) -> int:
        read = self.overheads[0]
        for message in request.messages:
            parts = [message.content, *(c.name + c.arguments for c in message.tool_calls)]
            read += self.overheads[1] + sum(true_tokens(part) for part in parts)
        for tool in request.tools:
            read += self.overheads[2] + true_tokens(msgspec.json.encode(tool).decode())
        return read

    async def complete(self, request: ModelRequest, *, new_call_id: Any, on_delta: Any = None) -> ModelReply:
        turn = f"{request.messages[1].content} {len(request.messages)}"
        self.tries[turn] += 1
        rng = random.Random(f"{self.seed} {turn} {self.tries[turn]}")
        read, wanted = self._read(request), rng.choice(self.lengths)
        wrote = min(wanted, request.parameters["max_tokens"])
        # It is charged from here on, whatever becomes of the connection.
        self.calls, self.open = self.calls + 1, self.open + 1
        self.true_input, self.true_output = self.true_input + read, self.true_output + wrote
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(rng.choice((0, 0.1, 1, 30)))
        finally:
            self.open -= 1
        if rng.random() < self.breaks:
            raise ModelError(self.broken, partial="half an ans")
        usage = Usage(input_tokens=read, output_tokens=wrote, model_calls=1)
        counted = usage if rng.random() < self.counts else Usage(model_calls=1)
        message, reason = Message(role="assistant", content="done " * (wrote // 5)), "stop"
        if wrote < wanted:
            reason = "length"
        elif request.tools and len(request.messages) < 6 and rng.random() < 0.5:
            name = rng.choice(request.tools).name
            call = ToolCall(id=new_call_id(), name=name, arguments='{"where":"這裡"}')
            message, reason = Message(role="assistant", tool_calls=(call,)), "tool_calls"
        return ModelReply(message=message, finish_reason=reason, response_model="m", usage=counted)


class Fleet:
    """One run of 50 agents, and the budget that bounds it: on the run, or on the step that is all of it."""

    def __init__(self, seed: int, *, wordy: bool = True) -> None:
        rng = self.rng = random.Random(f"fleet {seed}")
        self.provider = Provider(seed, wordy=wordy)
        tools = rng.choice((0, 0, 1, 100))
        self.services = [_SERVICES[tools]] if tools else []
        self.limit = rng.choice(("max_tokens", "max_tokens", "max_cost_usd"))
        self.on_step = rng.random() < 0.3
        self.cases = [
            f"{i}: " + text * rng.choice((1, 5)) for i, text in enumerate(rng.choices(_TEXTS, k=AGENTS))
        ]
        self.log = MemoryLog()
        agent = {
            "systemPrompt": "You look at one case.",
            "input": "${{ item }}",
            "attachedFunctions": [{"service": "desk", "function": f"look_{i}"} for i in range(tools)]
            or "none",
            "model": "sim:m",
        }
        self.step: dict[str, Any] = {
            "type": "run",
            "id": "all",
            "for_each": "${{ inputs.cases }}",
            "agent": agent,
            "retry": {"max_attempts": 3, "backoff": "1s", "retry_on": ["transient", "invalid_output"]},
            "required": False,
        }
        self.at_once = rng.choice((8, AGENTS))

    def runtime(self) -> Runtime:
        """A process that works on the log."""
        return Runtime(self.log, models=[self.provider], services=self.services, clock=LoopClock())

    async def begin(self, runtime: Runtime, value: float) -> RunHandle:
        """Submit the run with this limit."""
        self.value = value if self.limit == "max_cost_usd" else int(value)
        budget = {self.limit: self.value}
        steps = [{**self.step, "budget": budget}] if self.on_step else [self.step]
        document = {"version": "1.0", "workflow": {"steps": steps, "max_parallel": self.at_once}}
        return await runtime.submit(document, {"cases": self.cases}, budget=None if self.on_step else budget)


async def play(seed: int) -> dict[str, int]:
    """Play a run on a scarce budget, which each pause raises as little as it asks for, until it completes.

    Some processes end in the middle of it. Returns how often it paused and how many calls it made.
    """
    fleet = Fleet(seed)
    rng, pauses, patience = fleet.rng, 0, fleet.rng.choice((3, 10, 30))
    value = rng.choice((1_000, 1_500, 10_000, 100_000))
    async with fleet.runtime() as runtime:
        handle = await fleet.begin(runtime, value * (1e-5 if fleet.limit == "max_cost_usd" else 1))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 20)
        else:
            await handle.result()
    async with fleet.runtime() as runtime:
        await runtime.recover()
        result = await (await runtime.attach(handle.workflow_id)).result()
        while result.state == "paused":
            events = await log_of(runtime, handle.workflow_id)
            raised = _raised(events, fleet.limit, generous=pauses > patience)
            pauses += 1
            result = await (await runtime.resume(handle.workflow_id, budget=raised)).result()
    assert result.state == "completed", result
    _must_hold(await must_be_sound(fleet.log, handle.workflow_id), fleet)
    await fleet.log.close()
    return {"pauses": pauses, "calls": fleet.provider.calls, "most_open": fleet.provider.most_open}


async def play_one_after_another(seed: int) -> int:
    """Play a run with no more budget than its calls need if they are made one after another; return how many
    calls were open at once. It must neither pause nor have an answer cut."""
    plenty = Fleet(seed, wordy=False)
    async with plenty.runtime() as runtime:
        handle = await plenty.begin(runtime, 1e12)
        result = await handle.result()
    assert result.state == "completed", result
    events = await log_of(plenty.log, handle.workflow_id)
    tokens = plenty.limit == "max_tokens"
    starts = [e.data.reserved for e in events if isinstance(e.data, ev.ModelCallStarted)]
    largest = max(r.tokens if tokens else r.cost_usd or 0.0 for r in starts)
    used = result.usage.input_tokens + result.usage.output_tokens if tokens else result.usage.cost_usd or 0.0
    tight = Fleet(seed, wordy=False)
    async with tight.runtime() as runtime:
        handle = await tight.begin(runtime, used + largest + (0 if tokens else 1e-9))
        result = await handle.result()
    assert result.state == "completed", result
    events = await must_be_sound(tight.log, handle.workflow_id)
    _must_hold(events, tight)
    assert "workflow.paused" not in {event.type for event in events}
    assert tight.provider.calls == plenty.provider.calls
    await plenty.log.close()
    await tight.log.close()
    return tight.provider.most_open


def _raised(events: list[Event[Any]], limit: str, *, generous: bool) -> dict[str, Any]:
    """The smallest budget with which the call that did not fit does; what stopped must have been right."""
    paused = next(e.data for e in reversed(events) if isinstance(e.data, ev.WorkflowPaused))
    assert paused.reason == "budget", paused
    figures = paused.budget
    (most,) = figures["limit"].values()
    assert figures["reserved"] == 0
    assert figures["requested"] > most - figures["used"], f"it would have fitted: {paused}"
    if generous:
        return {limit: 100_000_000}
    enough = figures["used"] + figures["requested"]
    return {limit: enough if limit == "max_tokens" else enough + 1e-9}


def _must_hold(events: list[Event[Any]], fleet: Fleet) -> None:
    """Used and reserved are within the limit behind every event, and the provider charges no more."""
    limit, value, provider = fleet.limit, fleet.value, fleet.provider
    used = 0.0
    held: dict[str, float] = {}
    for event in events:
        data = event.data
        if isinstance(data, ev.ModelCallStarted):
            amount = data.reserved.tokens if limit == "max_tokens" else data.reserved.cost_usd
            held[data.model_call_id] = amount
        elif isinstance(data, ev.ModelCallCompleted | ev.ModelCallFailed):
            held.pop(data.model_call_id)
            usage = getattr(data, "usage", None)
            if isinstance(usage, Usage):
                tokens = usage.input_tokens + usage.output_tokens
                used += tokens if limit == "max_tokens" else usage.cost_usd or 0.0
        elif isinstance(data, ev.WorkflowResumed) and isinstance(data.budget, dict):
            raised = data.budget.get("steps", {}).get("all", data.budget)
            value = raised[limit]
        assert used + sum(held.values()) <= value + 1e-9, f"offset {event.offset}: {used} of {value}"
    charged = provider.true_input + provider.true_output if limit == "max_tokens" else provider.true_cost
    assert charged <= used + 1e-9, f"the provider charges {charged}, {used} were counted"
