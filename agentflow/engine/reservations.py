"""Reservations: what one model call may use at most, before it is made and after it ended without a count.

An upper bound of the input (the provider's tokenizer, else UTF-8 bytes), the limit of output that is sent
with the request, and the charge of a call whose usage the provider did not report (page 000 §10). Pure: the
figures depend on the recorded conversation, the agent's functions and the terms of the model alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Message, ToolSchema, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import AgentProgress
from agentflow.engine.bindings import ModelTerms, StepBinding
from agentflow.engine.state import OpenCall

__all__ = [
    "MIN_OUTPUT_TOKENS",
    "UNKNOWN_OUTPUT_TOKENS",
    "Need",
    "charge",
    "most_output",
    "need_of",
    "need_of_request",
    "output_limit",
    "terms_of",
    "with_output_limit",
    "written_at_most",
]

MIN_OUTPUT_TOKENS = 16
"""A call that may write fewer tokens is not made: providers refuse smaller limits, and hardly any answer
fits. A model or an agent whose own limit is smaller needs only that."""

UNKNOWN_OUTPUT_TOKENS = 4_096
"""The limit of a model whose maximum is unknown, unless the agent asks for another: few servers take more."""

_OUTPUT_LIMITS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "num_predict",
    "n_predict",
)
_OF_THE_PROTOCOL = frozenset({"max_tokens", "max_completion_tokens"})
_SCHEMA_TEXT = 128  # bytes of the sentence that tells a model of a schema which its protocol cannot carry
_NO_TERMS = ModelTerms()
_REFUSED = frozenset({"rate_limited", "quota", "auth", "invalid_input"})


class Need(NamedTuple):
    """What a call may use, in tokens.

    `output` is the limit that is sent if nothing is short, `least` the smallest one that is worth a call.
    `answers` is how many answers one request asks for, each up to the limit.
    """

    input: int
    output: int
    least: int
    answers: int
    ref: ModelRef
    terms: ModelTerms

    def tokens(self, output: int) -> int:
        """Return the bound of tokens, read and written, with this limit of output."""
        return self.input + output * self.answers

    def cost(self, output: int) -> float | None:
        """Return the bound in US dollars with this limit of output; None if a price is unknown."""
        return self.terms.worst_cost(self.input, output * self.answers)


def terms_of(binding: StepBinding, model: str) -> ModelTerms:
    """Return the terms of `provider:model`; those of an unknown model if the step is not bound to it."""
    return binding.terms.get(model, _NO_TERMS)


def need_of(progress: AgentProgress, activation: Activation, binding: StepBinding, ref: ModelRef) -> Need:
    """Return what the next call of this context may use."""
    terms = terms_of(binding, ref.name)
    output = output_limit(ref.parameters, terms)
    if progress.min_output > output:
        output = most_output(ref.parameters, terms)
    least = min(output, max(MIN_OUTPUT_TOKENS, progress.min_output))
    bound = _input_bound(progress, activation, binding, ref, terms)
    return Need(bound, output, least, _answers(ref.parameters), ref, terms)


def need_of_request(messages: Sequence[Message], schema: Any, ref: ModelRef, terms: ModelTerms) -> Need:
    """Return what a call that stands for itself may use."""
    bound = terms.request_overhead_tokens + _count(_texts(ref.parameters), terms)
    if schema is not None:
        bound += _SCHEMA_TEXT + _count(_json(schema), terms)
    bound += sum(_message(message, terms) for message in messages)
    output = output_limit(ref.parameters, terms)
    return Need(bound, output, min(output, MIN_OUTPUT_TOKENS), _answers(ref.parameters), ref, terms)


# -- input --------------------------------------------------------------------------------------


def _input_bound(
    progress: AgentProgress, activation: Activation, binding: StepBinding, ref: ModelRef, terms: ModelTerms
) -> int:
    """Bound the input: the count reported for the previous call and what is new, else all that is sent."""
    measured, offered = progress.measured, binding.offered(progress.found)
    if measured is not None and measured.model == ref.name:
        bound, begin = measured.tokens, measured.messages
        unseen = [t for t in offered if (t.name, t.schema_hash) not in progress.offered]
    else:
        bound, begin = terms.request_overhead_tokens + _count(_texts(ref.parameters), terms), 0
        unseen = offered
        spec = activation.node.agent
        if spec is not None and spec.output_schema is not None:
            bound += _SCHEMA_TEXT + _count(_json(spec.output_schema), terms)
    for tool in unseen:
        schema = ToolSchema(name=tool.name, description=tool.description, input_schema=tool.input_schema)
        bound += terms.tool_overhead_tokens + _count(_json(schema), terms)
    for message in progress.messages[begin:]:
        bound += _message(message, terms)
    for message in progress.pending:
        bound += _message(message, terms)
    return bound


def _message(message: Message, terms: ModelTerms) -> int:
    bound = terms.message_overhead_tokens + _count(message.content, terms)
    if message.name is not None:
        bound += _count(message.name, terms)
    for call in message.tool_calls:
        # Its id is sent twice: with the call and with its result.
        text = call.name + call.arguments + 2 * (call.provider_id or call.id)
        bound += terms.message_overhead_tokens + _count(text, terms)
    for part in message.reasoning:
        bound += _count(_json(part.data), terms)
    if message.media and terms.image_tokens is not UNSET:
        bound += len(message.media) * terms.image_tokens
    return bound


def _count(text: str, terms: ModelTerms) -> int:
    """Count by the provider's tokenizer. Bytes are the bound without one, and when an adapter's fails."""
    tokenizer: Callable[[str], Any] | None = terms.count_tokens
    if tokenizer is not None:
        try:
            count = tokenizer(text)
        except Exception:  # an adapter's bug must not reach the supervisor
            count = None
        if isinstance(count, int) and count >= 0:
            return count
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _texts(parameters: Mapping[str, Any]) -> str:
    """Return what parameters and `extra` say in more than a number: a schema, a grammar, functions."""
    said: list[Any] = [
        value
        for place in _places(parameters)
        for key, value in place.items()
        if key != "extra" and isinstance(value, str | list | dict)
    ]
    return _json(said) if said else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# -- output -------------------------------------------------------------------------------------


def output_limit(parameters: Mapping[str, Any], terms: ModelTerms) -> int:
    """Return the limit of output that parameters and model set, whatever a budget leaves: min(asked, the
    model's maximum)."""
    if not parameters:
        return UNKNOWN_OUTPUT_TOKENS if terms.max_output_tokens is None else terms.max_output_tokens
    asked = [
        value
        for place in _places(parameters)
        for key in _OUTPUT_LIMITS
        if isinstance(value := place.get(key), int) and not isinstance(value, bool) and value >= 1
    ]
    if terms.max_output_tokens is not None:
        asked.append(terms.max_output_tokens)
    return min(asked, default=UNKNOWN_OUTPUT_TOKENS)


def most_output(parameters: Mapping[str, Any], terms: ModelTerms) -> int:
    """Return the largest limit that is sent under a budget. An answer that was cut at the limit which stands
    for an unknown maximum is asked for once more, with four times as much."""
    limit = output_limit(parameters, terms)
    guessed = terms.max_output_tokens is None and limit == UNKNOWN_OUTPUT_TOKENS
    return 4 * limit if guessed and with_output_limit(parameters, limit) != parameters else limit


def written_at_most(parameters: Mapping[str, Any], terms: ModelTerms) -> int:
    """Return how many tokens a call with these recorded parameters may write."""
    return output_limit(parameters, terms) * _answers(parameters)


def with_output_limit(parameters: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return the parameters with this limit, under every name under which the agent asked for one.

    A name in `extra` may be one that the server ignores, so the limit is sent under its own name too.
    """
    limited = dict(parameters)
    asked = {key: limit for key in _OUTPUT_LIMITS if key in limited}
    extra = limited.get("extra")
    if isinstance(extra, dict):
        extra = cast("dict[str, Any]", extra)
        inner = {key: limit for key in _OUTPUT_LIMITS if key in extra}
        if inner:
            limited["extra"] = {**extra, **inner}
        if inner.keys() & _OF_THE_PROTOCOL:
            return {**limited, **asked}
    return {**limited, **(asked or {"max_tokens": limit})}


def _places(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    extra = parameters.get("extra")
    return [parameters, cast("Mapping[str, Any]", extra)] if isinstance(extra, dict) else [parameters]


def _answers(parameters: Mapping[str, Any]) -> int:
    """Return how many answers the request asks for; all are paid for, though only the first is used."""
    if not parameters:
        return 1
    return max(1, *(_number(place.get(key)) for place in _places(parameters) for key in ("n", "best_of")))


def _number(value: object) -> int:
    """Return the whole number that a lenient server reads in a value of `extra`; 0 if it is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return 0
    return math.ceil(value) if isinstance(value, int | float) and math.isfinite(value) else 0


# -- after the call -----------------------------------------------------------------------------


def charge(
    call: OpenCall, terms: ModelTerms, reported: Usage | None, *, wrote: bool, error: ErrorInfo | None = None
) -> Usage | None:
    """Return what a call that ended is charged; None if it cannot have been paid for.

    A part that the provider did not report is charged as it was reserved and marked `estimated`: no request
    reads 0 tokens, and no answer whose text arrived (`wrote`) has 0. A refusal costs nothing.
    """
    usage = reported or Usage()
    counted = usage.input_tokens > 0
    if not counted and usage.output_tokens == 0 and (not call.charged or _is_refusal(error)):
        return None
    missing: dict[str, Any] = {"model_calls": max(1, usage.model_calls)}
    if not counted:
        missing["input_tokens"] = call.input_tokens
    if usage.output_tokens == 0 and (wrote or not counted):
        missing["output_tokens"] = call.output_tokens
    estimated = len(missing) > 1
    usage = msgspec.structs.replace(usage, **missing)
    cost = usage.cost_usd
    if estimated:
        known = terms.worst_cost(usage.input_tokens, usage.output_tokens)
        bounds = (cost, call.cost if known is None else known)
        cost = max((bound for bound in bounds if bound is not None), default=None)
        return msgspec.structs.replace(usage, cost_usd=cost, estimated=True)
    return msgspec.structs.replace(usage, cost_usd=terms.cost(usage)) if cost is None else usage


def _is_refusal(error: ErrorInfo | None) -> bool:
    return error is not None and (error.category in _REFUSED or error.code == "circuit_open")
