"""Labels chosen by what the input says, not by what the prompt suggests. Pure.

A small model prefers one label of a prompt (often that of the last example), whatever the input. What it
says to an input without content is that preference alone; subtracting it (contextual calibration) lifts
labels of two to four classes from 51 % right to 80 %, on average over 14 prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.models.local.prompts import Example

__all__ = ["Choice", "TokenChoice", "biases", "choices_of", "empty_inputs"]

_FEWEST_EXAMPLES: Final = 2
_WORDS: Final = 12
_DRAWS: Final = 3
_STRONGEST: Final = 20.0


class Choice(NamedTuple):
    """A property of the answer, and the texts that may stand for it."""

    name: str
    texts: tuple[str, ...]


class TokenChoice(NamedTuple):
    """One token that the model wrote, and the likeliest ones in its place: text to (id, log probability)."""

    text: str
    top: Mapping[str, tuple[int, float]]


def choices_of(schema: object, examples: Sequence[Example]) -> list[Choice]:
    """Return the properties of a schema that only chooses among labels; empty when it does anything else, or
    when there are too few examples to prefer one."""
    if not isinstance(schema, dict) or len(examples) < _FEWEST_EXAMPLES:
        return []
    node = cast("dict[str, Any]", schema)
    properties: dict[str, Any] = node.get("properties") or {}
    if node.get("type") != "object" or set(node.get("required") or ()) != set(properties):
        return []
    choices = [Choice(name, _labels(each)) for name, each in properties.items()]
    return choices if choices and all(len(choice.texts) > 1 for choice in choices) else []


def empty_inputs(examples: Sequence[Example]) -> list[str]:
    """Return inputs without content: nothing, and words of the examples at random (always the same)."""
    words = " ".join(example.text for example in examples).split()
    draw = random.Random(0)
    mixed = [" ".join(draw.sample(words, min(_WORDS, len(words)))) for _ in range(_DRAWS)]
    return [*mixed, "N/A", ""]


def biases(choices: Sequence[Choice], answers: Sequence[Sequence[TokenChoice]]) -> dict[int, float]:
    """Return what to add to the log probability of each label's token, from the answers to empty inputs.

    A property whose labels do not part in one token, or whose labels the model did not consider, gets none.
    """
    found: dict[int, list[float]] = {}
    for position in range(len(choices)):
        seen = [_at_the_choice(choices, position, answer) for answer in answers]
        scored = [each for each in seen if each is not None]
        if len(scored) != len(answers) or not scored:
            continue
        ids = [{label: token for label, (token, _) in each.items()} for each in scored]
        if any(each != ids[0] for each in ids):
            continue
        mean = {label: math.fsum(each[label][1] for each in scored) / len(scored) for label in ids[0]}
        middle = math.fsum(mean.values()) / len(mean)
        for label, token in ids[0].items():
            bias = max(-_STRONGEST, min(_STRONGEST, middle - mean[label]))
            found.setdefault(token, []).append(bias)
    # Two properties may share a label; the sampler has one bias for both.
    return {token: math.fsum(each) / len(each) for token, each in found.items()}


def _labels(schema: object) -> tuple[str, ...]:
    if not isinstance(schema, dict):
        return ()
    node = cast("dict[str, Any]", schema)
    if node.get("type") == "boolean" and "enum" not in node:
        return ("true", "false")
    values: list[Any] = node.get("enum") or []
    return tuple(msgspec.json.encode(value).decode() for value in values if isinstance(value, str | bool))


def _at_the_choice(
    choices: Sequence[Choice], position: int, answer: Sequence[TokenChoice]
) -> dict[str, tuple[int, float]] | None:
    """Return for each label of one property the token that begins it and its log probability, at the place
    where the model chose; None when the labels do not part there."""
    labels = _label_texts(choices, position, "".join(token.text for token in answer))
    before = ""
    for token in answer:
        if not all(text.startswith(before) for text in labels.values()):
            return None
        if (scored := _score(labels, before, token)) is not None:
            return scored
        before += token.text
    return None


def _label_texts(choices: Sequence[Choice], position: int, written: str) -> dict[str, str]:
    """Return the answer's text up to the end of each label of a property, after the values that the model
    wrote for the properties before it."""
    prefix = ""
    for index, choice in enumerate(choices[: position + 1]):
        prefix += ("{" if index == 0 else ", ") + msgspec.json.encode(choice.name).decode() + ": "
        if index < position:
            prefix += next((text for text in choice.texts if written.startswith(prefix + text)), "")
    return {label: prefix + label for label in choices[position].texts}


def _score(labels: Mapping[str, str], before: str, token: TokenChoice) -> dict[str, tuple[int, float]] | None:
    scored: dict[str, tuple[int, float]] = {}
    for label, full in labels.items():
        fitting = [
            (logprob, number)
            for text, (number, logprob) in token.top.items()
            # A token that another label begins with too decides nothing.
            if text
            and full.startswith(before + text)
            and sum(other.startswith(before + text) for other in labels.values()) == 1
        ]
        if not fitting:
            return None
        logprob, number = max(fitting)
        scored[label] = (number, logprob)
    return scored
