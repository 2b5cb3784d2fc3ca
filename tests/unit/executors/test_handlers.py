"""Which handler takes a value, and what is wrong with executors (page 002 §3, §13)."""

from __future__ import annotations

import threading
from typing import Any, Literal

import msgspec
import pytest

from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.errors import ConfigurationError
from agentflow.executors import Executor, Never, WorkflowContext, executor, handler, response_handler
from agentflow.executors.handlers import choose
from agentflow.executors.problems import problems_of, tag_clashes


class Risk(msgspec.Struct):
    value: float = 0.0


class HighRisk(Risk):
    pass


class Highest(HighRisk):
    pass


class Claim(msgspec.Struct):
    id: str = ""


class Sorter(Executor):
    @handler
    async def z_any(self, value: Any, ctx: WorkflowContext) -> None: ...

    @handler
    async def y_union(self, value: int | Claim | str, ctx: WorkflowContext[Claim]) -> None: ...

    @handler
    async def x_risk(self, value: Risk, ctx: WorkflowContext[Risk | Claim, str]) -> None: ...

    @handler
    async def w_high(self, value: HighRisk, ctx: WorkflowContext) -> None: ...

    @handler
    async def v_bool(self, value: bool, ctx: WorkflowContext) -> None: ...

    @handler
    async def u_claims(self, value: list[Claim], ctx: WorkflowContext) -> None: ...

    @handler
    async def t_mixed(self, value: list[Claim | Risk], ctx: WorkflowContext) -> None: ...

    @handler
    async def s_list(self, value: list, ctx: WorkflowContext) -> None: ...  # type: ignore[type-arg]

    @handler
    async def r_words(self, value: dict[str, int], ctx: WorkflowContext) -> None: ...

    @handler
    async def q_yes(self, value: Literal["yes"], ctx: WorkflowContext) -> None: ...

    @response_handler
    async def on_answer(self, request: Risk, answer: bool, ctx: WorkflowContext[Never, Claim]) -> None: ...


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "v_bool"),
        (1, "y_union"),
        ("x", "y_union"),
        ("yes", "q_yes"),
        (Risk(), "x_risk"),
        (HighRisk(), "w_high"),
        (Highest(), "w_high"),
        (Claim(), "y_union"),
        ([Claim(), Claim()], "u_claims"),
        ([Claim(), Risk()], "t_mixed"),
        ([Claim(), 1], "s_list"),
        ({"a": 1}, "r_words"),
        ({"a": "b"}, "z_any"),
        (None, "z_any"),
        (1.5, "z_any"),
    ],
    ids=repr,
)
def test_the_nearest_handler_takes_a_value(value: Any, name: str):
    found = choose(Sorter("s").handlers, value)
    assert found is not None
    assert found.name == name


def test_types_of_an_executor_are_public_and_read_under_postponed_annotations():
    class Local(msgspec.Struct):
        x: int = 0

    class Small(Executor):
        @handler
        async def on_local(self, value: Local | None, ctx: WorkflowContext[list[Local], Local]) -> None: ...

    small = Small("small")
    assert small.input_types == [Local, type(None)]
    assert small.output_types == [list[Local]]
    assert small.workflow_output_types == [Local]
    assert small.accepts == ("Local", "None")
    assert small.emits == ("list[Local]",)
    assert small.can_handle(Local())
    assert not small.can_handle(1)


def test_handlers_of_a_base_class_stand_behind_and_may_be_replaced():
    class Base(Executor):
        @handler
        async def on_text(self, value: str, ctx: WorkflowContext) -> None: ...

        @handler
        async def on_number(self, value: int, ctx: WorkflowContext) -> None: ...

    class Derived(Base):
        @handler
        async def on_number(self, value: float, ctx: WorkflowContext) -> None: ...

    assert [(s.name, s.takes) for s in Derived("d").handlers] == [("on_number", float), ("on_text", str)]


def test_a_function_is_an_executor_and_still_a_function():
    @executor(id="rules", timeout="2m")
    def rules(claim: Claim) -> Risk | None:
        return Risk()

    assert (rules.id, rules.timeout, rules.accepts, rules.emits) == ("rules", 120.0, ("Claim",), ("Risk",))
    assert rules(Claim()) == Risk()


def test_options_take_durations_as_text_and_class_attributes_as_defaults():
    class Slow(Executor):
        timeout = 9.0
        side_effect = "read"

        @handler
        async def on_text(self, value: str, ctx: WorkflowContext) -> None: ...

    policy = RetryPolicy(max_attempts=4, backoff=Backoff(initial="200ms"), timeout="5s")
    slow = Slow("slow", retry=policy)
    assert slow.retry is not None
    assert (slow.retry.timeout, slow.retry.backoff.initial) == (5.0, 0.2)
    assert (slow.timeout, slow.side_effect, slow.on_error) == (9.0, "read", None)
    assert Slow("slow", timeout=3).timeout == 3.0
    for wrong in (
        {"id": "a/b"},
        {"id": ""},
        {"id": "x", "timeout": "soon"},
        {"id": "x", "timeout": -1},
        {"id": "x", "side_effect": "nothing"},
    ):
        with pytest.raises(ConfigurationError):
            Slow(**wrong)


def test_a_copy_for_a_run_shares_only_what_is_named():
    class Keeps(Executor):
        shared = ("lock",)

        def __init__(self) -> None:
            super().__init__("keeps")
            self.lock, self.seen = threading.Lock(), [1]

        @handler
        async def on_text(self, value: str, ctx: WorkflowContext) -> None: ...

    template = Keeps()
    copied = template.copy_for_run()
    assert isinstance(copied, Keeps)
    assert copied.lock is template.lock
    assert copied.seen is not template.seen
    assert problems_of(template) == []


def test_what_is_wrong_with_an_executor_is_named_with_its_fix():
    class Silent(Executor):
        pass

    class Twice(Executor):
        def __init__(self) -> None:
            super().__init__("twice")
            self.lock = threading.Lock()

        @handler
        async def first(self, value: Claim | str, ctx: WorkflowContext) -> None: ...

        @handler
        async def second(self, value: str, ctx: WorkflowContext) -> None: ...

        @handler
        async def third(self, value, ctx: WorkflowContext[threading.Event]) -> None: ...  # type: ignore[no-untyped-def]

    class Odd(Executor):
        @handler
        def on_text(self, value: str, ctx: WorkflowContext) -> None: ...

    assert [p.code for p in problems_of(Silent("silent"))] == ["E_NO_HANDLER"]
    found = {p.code: p for p in problems_of(Twice())}
    assert set(found) == {
        "E_DUPLICATE_HANDLER",
        "E_NOT_ENCODABLE",
        "W_UNTYPED_HANDLER",
        "E_EXECUTOR_NOT_COPYABLE",
    }
    assert found["E_DUPLICATE_HANDLER"].message == 'first and second of "twice" both take str'
    assert found["W_UNTYPED_HANDLER"].severity == "warning"
    assert all(p.hint and p.node == "twice" for p in found.values())
    (odd,) = problems_of(Odd("odd"))
    assert "async def" in odd.message


def test_two_types_of_one_name_in_one_workflow_clash():
    def one(name: str) -> Executor:
        kind = type("Same", (msgspec.Struct,), {"__annotations__": {"x": int}})

        async def take(value, ctx: WorkflowContext) -> None: ...  # type: ignore[no-untyped-def]

        take.__annotations__["value"] = kind
        return executor(id=name)(take)

    (clash,) = tag_clashes([one("a"), one("b")])
    assert clash.code == "E_TYPE_TAG_CLASH"
    assert tag_clashes([one("a")]) == []
