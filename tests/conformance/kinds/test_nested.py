"""Kinds inside kinds: each leaf in each opener, and in openers of openers; a crash and a cancel behind every
batch of events, under both policies. The run ends in one way, and a cancel leaves nothing open."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from agentflow import engine
from agentflow.definition import load_value
from agentflow.definition.ir import Workflow
from agentflow.events import catalogue as ev
from tests.conformance.kinds.row import Play, Row, boom

_GATE = {"key_path": "input.k", "window": 2}
_ON = "ON"
"""Stands for what comes next; in a branch that is nothing."""
_RETRY = {"retry": {"max_attempts": 3, "backoff": "1s", "jitter": 0, "retry_on": ["tool"]}}
_COMPENSATED = {"tool": "s.bad", "max_retries": 1, "compensate_tool": "s.undo"}

LEAVES: dict[str, dict[str, Any]] = {
    "wait": {"type": "wait", "duration": 2},
    "person": {"type": "human_in_the_loop", "input_type": "text"},
    "choice in time": {
        "type": "human_in_the_loop",
        "input_type": "choice",
        "options": [1],
        "timeout": 3,
        "on_timeout": _ON,
    },
    "approval": {"type": "tool", "tool": "s.pay", "approval": {"before": "step", "message": "m"}},
    "signal": {"type": "event_trigger", "event": "go"},
    "debounce": {"type": "debounce", "mode": "trailing", **_GATE},
    "shared debounce": {"type": "debounce", "mode": "trailing", "scope": "definition", **_GATE},
    "throttle": {"type": "throttle", "mode": "delay", **_GATE},
    "window of time": {"type": "batch", "max_wait": 2},
    "window of items": {"type": "batch", "size": 2},
    "compensation": {"type": "retry_compensate", **_COMPENSATED},
    "caught": {"type": "tool", "tool": "s.bad", "on_error": "skip"},
    "failure": {"type": "tool", "tool": "s.bad"},
    "retry": {"type": "tool", "tool": "s.flaky", "policy": _RETRY},
    "model": {"type": "llm", "model": "scripted:m", "prompt": "{{ input.k }}"},
    "cache": {"type": "cache_read", "key_path": "input.k"},
    "global": {"type": "transform", "value": 1, "update_globals": {"g": {"op": "increment"}}},
    "map": {"type": "map", "items_path": "input.items", "tool": "s.pay", "max_in_flight": 2},
}
OPENERS = ("parallel", "collect", "first", "all", "quorum", "map", "map one by one", "loop", "inline")
_CALLS: dict[str, list[Any]] = {"pay": [1], "undo": ["undone"], "bad": [boom()], "flaky": [boom(), 7]}
_ROW = Row(
    kind="tool",
    name="nested",
    node={},
    input={"k": "a", "items": [1, 2, 3]},
    calls=_CALLS,
    said=("hi",),
    signals=tuple(("go", {"n": n}) for n in range(40)),
)


def block(spec: tuple[str, ...], at: str, on: str | None) -> tuple[list[dict[str, Any]], str]:
    """Return the nodes of openers and a leaf, outermost first, and the one that is entered; `on` is next."""
    name, inner = spec[0], spec[1:]
    way = {} if on is None else {"next": on}
    if not inner:
        leaf = {k: on if v == _ON else v for k, v in LEAVES[name].items() if v != _ON or on is not None}
        return [{"id": f"{at}x", **leaf, **way}], f"{at}x"
    opener, join = f"{at}o", f"{at}m"
    made: dict[str, Any] = {"id": opener}
    after: list[dict[str, Any]] = []
    if name in ("parallel", "collect", "first", "all", "quorum"):
        joined = join if name in ("first", "all", "quorum") else None
        (one, first), (two, second) = block(inner, f"{at}a", joined), block(inner, f"{at}b", joined)
        made |= {"type": "parallel", "branches": [first, second], **way}
        if name == "collect":
            made |= {"on_branch_error": "collect", "max_in_flight": 1}
        if joined is not None:
            made["next"] = join
            rule = {"quorum": 1, "rest": "drain"} if name == "quorum" else {}
            sources = {"sources": [first, second], "policy": name}
            after = [{"id": join, "type": "merge", **sources, **rule, **way}]
        return [made, *one, *two, *after], opener
    if name == "inline":
        nodes, entry = block(inner, f"{at}a", "end")
        ends = [{"id": "start", "type": "start", "next": entry}, {"id": "end", "type": "end"}]
        made |= {"type": "subgraph", "inline": {"name": "i", "nodes": [*ends, *nodes]}, **way}
        return [made], opener
    nodes, entry = block(inner, f"{at}a", None)
    if name == "loop":
        nodes, entry = block(inner, f"{at}a", opener)
        condition = f"nodes.{opener}.count < 2"
        made |= {"type": "loop", "condition": condition, "body": entry, "max_iterations": 3, **way}
    else:
        made |= {"type": "map", "items_path": "input.items", "body": entry, **way}
        made |= {"max_in_flight": 2} if name == "map" else {"max_in_flight": 1, "on_item_error": "collect"}
    return [made, *nodes], opener


class Nested(Play):
    """A run in which each question is answered, but for a choice, which nothing answers in time."""

    def _answer(self) -> bool:
        for request in self.state.requests.values():
            self.now += 1_000
            if isinstance(request.data, ev.ApprovalRequested):
                decide = engine.commands.decide_request
                self.advance(decide(self.state, request_id=request.request_id, granted=True, by="ada"))
            elif request.data.request["input_type"] == "text":
                self.advance(engine.commands.answer(self.state, {request.request_id: "yes"}, by="ada"))
            else:
                continue
            return True
        return False

    def after_crash(self, cut: int) -> Nested:
        """Return a process that finds the first `cut` events."""
        other = Nested(self.row, self.policy, self.workflow)
        other.log, other.accesses, other.asked_at = self.log[:cut], self.accesses[:], self.asked_at[:]
        other.bounds = [one for one in self.bounds if one < cut]
        other.forget_accesses(cut)
        other.now = other.log[-1][2]
        other.crash(cut)
        return other

    def outcome(self) -> dict[str, Any]:
        """Return what a crash does not change. Of two branches either may have been the first to finish."""
        return {k: v for k, v in super().outcome().items() if k not in ("way", "out")}

    def must_be_cancelled(self) -> None:
        """Cancel the run, unless it has just ended."""
        if self.state.terminal:
            return
        asked = ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="ada")
        self.advance([asked])
        self.advance(engine.cancel_finished(self.state, self.now, forced=False))
        assert self.state.status == "cancelled"


def graph(spec: tuple[str, ...], policy: str) -> Workflow:
    nodes, entry = block(spec, "", "end")
    ends = [{"id": "start", "type": "start", "next": entry}, {"id": "end", "type": "end"}]
    document = {"name": "w", "options": {"policy": policy}, "nodes": [*ends, *nodes]}
    return load_value(document).workflow  # type: ignore[return-value]


def must_end_in_one_way(spec: tuple[str, ...], policy: str, every: int = 1) -> None:
    """Run it whole, then on from behind each `every`th batch, and cancel it there."""
    whole = Nested(_ROW, policy, graph(spec, policy)).play()
    expected = whole.outcome()
    assert expected["status"] in ("completed", "failed")
    for cut in whole.bounds[1 + len(spec[-1]) % every :: every]:
        where = f"after event {cut - 1}, {whole.types()[cut - 1]}"
        assert whole.after_crash(cut).play().outcome() == expected, where
        whole.after_crash(cut).must_be_cancelled()


@pytest.mark.parametrize("spec", list(product(OPENERS, LEAVES)), ids=" of ".join)
def test_a_kind_in_an_opener_ends_in_one_way(spec: tuple[str, ...]):
    must_end_in_one_way(spec, "eager", every=4)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("opener", OPENERS)
def test_a_kind_in_an_opener_ends_in_one_way_whatever_the_crash(opener: str, policy: str):
    for leaf in LEAVES:
        must_end_in_one_way((opener, leaf), policy)


@pytest.mark.slow
@pytest.mark.parametrize("openers", list(product(OPENERS, OPENERS)), ids=" of ".join)
def test_a_kind_in_openers_ends_in_one_way(openers: tuple[str, ...]):
    for number, leaf in enumerate(LEAVES):
        must_end_in_one_way((*openers, leaf), ("eager", "superstep")[number % 2], every=6)
