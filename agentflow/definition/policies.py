"""Retry, time-out and models of a document, merged over their levels; approval, cache and budget of a step
(page 000 §9, §10, page 001 §1.4)."""

from __future__ import annotations

from typing import Any

from agentflow.definition.common_checks import escaped
from agentflow.definition.ir import Approval, Budget, Cache, ModelRef, Policy
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.definition.report import Report, shown
from agentflow.definition.structure import Found

__all__ = [
    "Models",
    "compiled_approval",
    "compiled_budget",
    "compiled_cache",
    "compiled_step_budget",
    "merged_policy",
]

_MAX_CHAIN = 32


def merged_policy(levels: list[Found | None], timeout: float | None) -> Policy | None:
    """Return the policy from `retry` values, the strongest level last. None if nothing is declared.

    Levels merge key by key over the defaults; `false` is one attempt.
    """
    retry: dict[str, Any] = {}
    backoff: dict[str, Any] = {}
    declared = False
    for level in levels:
        if level is None:
            continue
        declared = True
        if level.value is False:
            retry["max_attempts"] = 1
            continue
        for key, found in level.items():
            if key == "backoff":
                backoff = _merged_backoff(backoff, found)
            elif key == "retry_on":
                retry[key] = tuple(dict.fromkeys(item.value for item in found.value))
            else:
                retry[key] = found.value if key == "max_attempts" else float(found.value)
    if not declared:
        return Policy(timeout=timeout) if timeout is not None else None
    return Policy(retry=RetryPolicy(**retry, backoff=Backoff(**backoff)), timeout=timeout)


def _merged_backoff(backoff: dict[str, Any], found: Found) -> dict[str, Any]:
    if not isinstance(found.value, dict):
        return {"initial": found.value, "multiplier": 1.0, "max": found.value}
    return backoff | {key: float(item.value) for key, item in found.items()}


def compiled_approval(found: Found | None) -> Approval | None:
    """Return the policy of an `approval`; `true` is an approval before the step, without a message or an end
    of its own."""
    if found is None:
        return None
    if found.value is True:
        return Approval()
    return Approval(
        before=found.plain("before", "step"),
        message=escaped(found.plain("message")),
        timeout=found.plain("timeout"),
        on_denied=found.plain("on_denied", "fail"),
    )


def compiled_cache(found: Found | None) -> Cache | None:
    """Return the policy of a `cache`; None too if its `ttl` is missing, which was reported."""
    if found is None or found.get("ttl") is None:
        return None
    return Cache(
        ttl=found.plain("ttl"), key=escaped(found.plain("key")), scope=found.plain("scope", "definition")
    )


def compiled_budget(found: Found | None) -> Budget | None:
    """Return the limits of a `budget`. An amount that may have a fraction is a float, whatever the source
    wrote."""
    if found is None:
        return None
    given = {key: member.value for key, member in found.items()}
    for key in ("max_cost_usd", "max_duration_s"):
        if key in given:
            given[key] = float(given[key])
    return Budget(**given)


def compiled_step_budget(found: Found | None, report: Report) -> Budget | None:
    """Return the budget of a step. `max_steps` in it is reported: a step begins none."""
    limit = None if found is None else found.get("max_steps")
    if limit is not None:
        message = "a step begins no steps: max_steps has no effect in its budget"
        hint = "set it in the budget of the run"
        report.error("E_CONFLICTING_FIELDS", message, limit.key, limit.pointer, hint)
    return compiled_budget(found)


class Models:
    """The `models` of a document, and what its agents make of them.

    A reference whose provider is not known here (an alias of the daemon's configuration) has the
    provider "" and the alias as its model; parameters for whatever model is chosen later have both "".
    `normal`: the document may be the normal form of a graph, which has the parameters in an object.
    """

    def __init__(self, declared: Found | None, report: Report, *, normal: bool = False) -> None:
        self._is_normal = normal
        self._declared: dict[str, Found] = declared.value if declared else {}
        self._report = report
        self._resolved: dict[str, dict[str, Any]] = {}
        for alias in self._declared:
            self._alias(alias, [])

    def table(self) -> dict[str, ModelRef]:
        """Return every declared alias with its model."""
        return {alias: _reference(self._with_default(self._alias(alias, []))) for alias in self._declared}

    def choose(self, found: Found | None) -> ModelRef | str | None:
        """Return the model of an agent: its own keys over `use`, over `models.default`; None if none says."""
        if found is None and "default" not in self._declared:
            return None
        keys = self._with_default(self._keys(found, []) if found else {})
        reference = _reference(keys)
        return (
            reference.model
            if not reference.provider and reference.model and not reference.parameters
            else reference
        )

    def choose_each(self, found: Found | None) -> tuple[ModelRef | str, ...]:
        """Return the models of a list, without those that nothing names."""
        chosen = (self.choose(one) for one in found.value) if found is not None else ()
        return tuple(model for model in chosen if model is not None)

    def _with_default(self, keys: dict[str, Any]) -> dict[str, Any]:
        default = self._alias("default", []) if "default" in self._declared else {}
        return _over(default, keys)

    def _alias(self, alias: str, path: list[str]) -> dict[str, Any]:
        if alias in self._resolved:
            return self._resolved[alias]
        found = self._declared[alias]
        if alias in path:
            circle = " → ".join([*path[path.index(alias) :], alias])
            first = self._declared[path[path.index(alias)]]
            self._report.error("E_VALUE", f"models form a cycle: {circle}", first.place, first.pointer)
            return {}
        if len(path) > _MAX_CHAIN:
            message = f"models name each other over more than {_MAX_CHAIN} aliases"
            self._report.error("E_VALUE", message, found.place, found.pointer)
            return {}
        keys = self._keys(found, [*path, alias])
        self._resolved[alias] = keys
        return keys

    def _keys(self, found: Found, path: list[str]) -> dict[str, Any]:
        """Return `provider`, `model` and parameters; an alias that is not declared stays as the model."""
        if isinstance(found.value, str):
            return self._named(found, path)
        keys = {key: item.value for key, item in found.items()}
        if self._is_normal:  # where parameters stand in an object of their own, and no choice is ""
            inside = keys.pop("parameters", None)
            keys = {key: value for key, value in keys.items() if value or key not in ("provider", "model")}
            keys |= inside if isinstance(inside, dict) else {}
        used = keys.pop("use", None)
        if "provider" in keys and "model" not in keys and used is None:
            self._report.error("E_REQUIRED", 'model has no "model"', found.key, found.pointer)
        if "model" in keys and "provider" not in keys:
            del keys["model"]
            keys = {**self._named(found.value["model"], path), **keys}
        return _over(self._named(found.value["use"], path), keys) if used is not None else keys

    def _named(self, found: Found, path: list[str]) -> dict[str, Any]:
        name: str = found.value
        provider, colon, model = name.partition(":")
        if colon:
            if not provider.strip() or not model.strip():
                message = f'model "{shown(name)}" is not written as provider:model'
                self._report.error("E_VALUE", message, found.place, found.pointer)
            return {"provider": provider, "model": model}
        if name in self._declared:
            return self._alias(name, path)
        near = self._report.nearest(name, self._declared)
        if near is not None:  # another name may be an alias of the configuration
            self._report.warning(
                "W_MODEL_UNDECLARED",
                f'model "{shown(name)}" is not declared here',
                found.place,
                found.pointer,
                f'did you mean "{near}"?',
            )
        return {"provider": "", "model": name}


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of one level over those of another; `provider` and `model` come together."""
    if "model" in above:
        below = {key: value for key, value in below.items() if key != "provider"}
    return {**below, **above}


def _reference(keys: dict[str, Any]) -> ModelRef:
    parameters = {key: value for key, value in keys.items() if key not in ("provider", "model")}
    return ModelRef(provider=keys.get("provider", ""), model=keys.get("model", ""), parameters=parameters)
