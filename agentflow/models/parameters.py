"""Parameters, `extra` and prices of a model object of a document.

Parameters go to the provider if its profile names them, `extra` as it stands, prices never (page 000 §3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.models.base import ModelProfile

__all__ = [
    "PRICES",
    "ParameterProblem",
    "parameter_problems",
    "price_problem",
    "sent_parameters",
    "take_output_limit",
    "with_prices",
]

PRICES: Final = ("input_price", "output_price", "cached_input_price", "cache_write_price")
"""US dollars per million tokens. They are terms of the runtime and are never sent."""

EXTRA: Final = "extra"


class ParameterProblem(NamedTuple):
    """What is wrong with one member of a model object."""

    code: str
    name: str
    message: str
    hint: str | None = None


def take_output_limit(body: dict[str, Any], names: Iterable[str]) -> Any:
    """Remove the limits of the answer from a request, under all their names; return the lowest one, since a
    budget counts on it, and None if there is none."""
    limits = [body.pop(name) for name in names if body.get(name) is not None]
    counts = [limit for limit in limits if isinstance(limit, int | float) and not isinstance(limit, bool)]
    return min(counts) if counts else next(iter(limits), None)


def sent_parameters(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters that are sent, and `extra`."""
    extra = given.get(EXTRA)
    named = {key: value for key, value in given.items() if key not in (*PRICES, EXTRA)}
    return named, dict(cast("dict[str, Any]", extra)) if isinstance(extra, dict) else {}


def parameter_problems(given: Mapping[str, Any], model: str, profile: ModelProfile) -> list[ParameterProblem]:
    """Return what of a model object cannot be used: names that the profile does not have, an `extra` that is
    no object, prices that are none."""
    found: list[ParameterProblem] = []
    for name, value in given.items():
        if name in PRICES:
            wrong = price_problem(value)
            if wrong is not None:
                found.append(ParameterProblem("E_VALUE", name, f"{name} {wrong}"))
        elif name == EXTRA:
            if not isinstance(value, dict):
                found.append(ParameterProblem("E_VALUE", name, "extra is no object"))
        elif profile.parameters is not None and name not in profile.parameters:
            message = f'"{name}" is not a parameter of {model}'
            near = did_you_mean(name, [*profile.parameters, *PRICES, EXTRA])
            hint = near or f"write it below `extra` to send it as it stands: extra: {{{name}: …}}"
            found.append(ParameterProblem("E_UNKNOWN_KEY", name, message, hint))
    return found


def price_problem(value: object) -> str | None:
    """Return what is wrong with a price, as the end of a sentence; None if nothing is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is no number of US dollars per million tokens"
    return None if math.isfinite(value) and value >= 0 else "is no price: it must be 0 or more"


def with_prices(profile: ModelProfile, stated: Mapping[str, Any]) -> ModelProfile:
    """Return the profile with the prices that `stated` has. They come from one place: a stated price of
    input or output takes away the prices of the cache that were known for others."""
    prices = {key: float(stated[key]) for key in PRICES if price_problem(stated.get(key)) is None}
    if not prices:
        return profile
    of_the_cache = {"cached_input_price": None, "cache_write_price": None}
    return msgspec.structs.replace(profile, **{**of_the_cache, **prices})
