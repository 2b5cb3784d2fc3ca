"""Executor: the base class of nodes written in Python, and the decorator that makes one of a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args, overload

import msgspec

from agentflow.definition.node import ErrorRoute
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.errors import ConfigurationError
from agentflow.executors.annotations import members_of, tags_of_annotation
from agentflow.executors.context import SideEffect, seconds
from agentflow.executors.handlers import HandlerSpec, choose, describe, handlers_of

__all__ = ["Executor", "FunctionExecutor", "OnError", "executor"]

OnError = Literal["fail", "skip"] | ErrorRoute


class Executor:
    """A node whose handlers are Python methods. An instance is a template: each run gets one deep copy.

    Subclasses mark methods with `@handler` and `@response_handler`; class attributes `retry`, `timeout`,
    `on_error` and `side_effect` are defaults. Fields named in `shared` go to all copies by reference.
    `snapshot_state()` and `restore_state(value)`, or an attribute `state`, survive a restart of the run.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    retry: RetryPolicy | None = None
    timeout: float | str | None = None
    on_error: OnError | None = None
    side_effect: SideEffect = "external"

    def __init__(
        self,
        id: str,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | str | None = None,
        on_error: OnError | None = None,
        side_effect: SideEffect | None = None,
    ) -> None:
        """Name the node. `retry`: without one a handler is attempted once. `timeout`: seconds, or "30s", of
        all attempts. `side_effect="none"`: what the handlers do beside their context may be repeated after a
        crash at no cost, so that they begin before their start is durable. Raises ConfigurationError for an
        option that is none of these."""
        if not isinstance(id, str) or not id.strip() or "/" in id:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"id {id!r} of an executor must be a text without a slash")
        self.id = id
        if retry is not None or self.retry is not None:
            self.retry = _policy(retry if retry is not None else self.retry, id)
        limit = self.timeout if timeout is None else timeout
        if limit is not None:
            self.timeout = seconds(limit, f"timeout of {id}")
        if on_error is not None:
            self.on_error = on_error
        if side_effect is not None:
            self.side_effect = side_effect
        if self.side_effect not in get_args(SideEffect):
            classes = ", ".join(get_args(SideEffect))
            raise ConfigurationError(f"side_effect {self.side_effect!r} of {id} is none of: {classes}")

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        """Its handlers and response handlers, in the order of the class body."""
        return _handlers_of(type(self))

    def can_handle(self, data: Any) -> bool:
        """Return whether one of its handlers takes this value."""
        return choose(self.handlers, data) is not None

    @property
    def input_types(self) -> list[Any]:
        """The types that its handlers take, in their order; of unions their members."""
        return self._types(spec.takes for spec in self.handlers if spec.kind == "message")

    @property
    def output_types(self) -> list[Any]:
        """The types that its handlers may send."""
        return self._types(sent for spec in self.handlers for sent in spec.sends)

    @property
    def workflow_output_types(self) -> list[Any]:
        """The types that its handlers may give out as outputs of the run."""
        return self._types(given for spec in self.handlers for given in spec.yields)

    @property
    def accepts(self) -> tuple[str, ...]:
        """Tags of `input_types`."""
        return self._tags(self.input_types)

    @property
    def emits(self) -> tuple[str, ...]:
        """Tags of `output_types`."""
        return self._tags(self.output_types)

    @property
    def annotations(self) -> list[Any]:
        """All types that its handlers name: what a workflow with this node can send and receive."""
        return [annotation for spec in self.handlers for annotation in spec.annotations]

    def _types(self, annotations: Any) -> list[Any]:
        return list(dict.fromkeys(member for one in annotations for member in members_of(one)))

    def _tags(self, annotations: list[Any]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tag for one in annotations for tag in tags_of_annotation(one)))

    def copy_for_run(self) -> Executor:
        """Return the copy of one run. Raises what the copying of a field raises."""
        memo: dict[int, Any] = {}
        for name in self.shared:
            if name in vars(self):
                memo[id(vars(self)[name])] = vars(self)[name]
        return copy.deepcopy(self, memo)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


@lru_cache(maxsize=4_096)
def _handlers_of(kind: type) -> tuple[HandlerSpec, ...]:
    return handlers_of(kind)


def _policy(policy: Any, id: str) -> RetryPolicy:
    """Return a retry policy with durations in seconds: texts as "200ms" are allowed."""
    if not isinstance(policy, RetryPolicy):
        raise ConfigurationError(f"retry of {id} must be a RetryPolicy, not {type(policy).__name__}")
    back: Any = policy.backoff
    if not isinstance(back, Backoff):
        wait = seconds(back, f"retry.backoff of {id}")
        back = Backoff(initial=wait, multiplier=1.0, max=wait)
    back = msgspec.structs.replace(
        back,
        initial=_seconds_or_zero(back.initial, f"retry.backoff.initial of {id}"),
        max=_seconds_or_zero(back.max, f"retry.backoff.max of {id}"),
    )
    given: Any = policy.timeout
    if not policy.max_attempts >= 1:
        raise ConfigurationError(f"retry.max_attempts of {id} is {policy.max_attempts}, below 1")
    return msgspec.structs.replace(
        policy,
        backoff=back,
        retry_on=tuple(policy.retry_on),
        timeout=None if given is None else seconds(given, f"retry.timeout of {id}"),
        max_elapsed=_seconds_or_zero(policy.max_elapsed, f"retry.max_elapsed of {id}"),
    )


def _seconds_or_zero(value: Any, name: str) -> float:
    return 0.0 if value == 0 else seconds(value, name)


class FunctionExecutor(Executor):
    """An executor with one handler, which is a function; calling it calls the function."""

    shared = ("function",)

    def __init__(self, function: Callable[..., Any], id: str, **options: Any) -> None:
        """Make an executor of a function: async (message) or (message, ctx), or sync (message)."""
        super().__init__(id, **options)
        self.function = function
        self._spec = describe(function, method=False)
        self.__doc__ = inspect.getdoc(function)

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        """Its one handler."""
        return (self._spec,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def copy_for_run(self) -> FunctionExecutor:
        """Return itself: a function keeps nothing for one run, and sees no executor."""
        return self


@overload
def executor(function: Callable[..., Any], /) -> FunctionExecutor: ...
@overload
def executor(
    *,
    id: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | str | None = None,
    on_error: OnError | None = None,
    side_effect: SideEffect | None = None,
) -> Callable[[Callable[..., Any]], FunctionExecutor]: ...
def executor(function: Any = None, /, *, id: str | None = None, **options: Any) -> Any:
    """Make an executor of a function; without `id`, the function's name is its id.

    An async function takes (message) or (message, ctx); a plain one takes (message) and runs in a worker
    thread. What it returns is sent, unless it is None. Raises TypeError for another signature.
    """

    def make(target: Any) -> FunctionExecutor:
        if not callable(target):
            raise TypeError(f"@executor takes a function, not {type(target).__name__}; name its options")
        return FunctionExecutor(target, id or getattr(target, "__name__", type(target).__name__), **options)

    return make if function is None else make(function)
