"""Rows of gates, people and events: debounce, throttle, human_in_the_loop, event_trigger."""

from __future__ import annotations

from typing import Any

from tests.conformance.kinds.row import row

# A loop brings the token to the gate three times; each way leads back to the loop.
_ROUND = {
    "id": "first",
    "type": "loop",
    "condition": "nodes.first.count < 3",
    "body": "n",
    "next": "show",
    "max_iterations": 9,
}
_SHOW = {
    "id": "show",
    "type": "transform",
    "value": {"on": "{{ globals.on }}", "off": "{{ globals.off }}"},
    "next": "end",
}


def _count(id: str, key: str, next: str = "first") -> dict[str, Any]:
    return {
        "id": id,
        "type": "transform",
        "value": 1,
        "next": next,
        "update_globals": {key: {"op": "increment"}},
    }


def _gate(kind: str, name: str, node: dict[str, Any], **more: Any) -> None:
    other = {"debounce": "on_suppressed", "throttle": "on_throttled"}[kind]
    ways = {"next": "go", other: "halt"}
    if node.get("mode") == "delay":
        ways.pop(other)
    others = (_ROUND, _SHOW, _count("go", "on"), _count("halt", "off"))
    if node.get("mode") == "delay":
        others = others[:3]
    row(
        kind,
        name,
        {"key_path": "input.k", **ways, **node},
        others=others,
        **{"input": {"k": "a"}, "top": {"globals": {"on": 0, "off": 0}}, **more},
    )


_SEEN = {"key": "a", "suppressed": True}
_gate("debounce", "a burst, in steps", {"window_steps": 9}, out=_SEEN, way={"on": 1, "off": 2})
_gate("debounce", "steps that are far enough apart", {"window_steps": 1}, way={"on": 3, "off": 0})
_gate("debounce", "a burst, in time", {"window": "1h"}, out=_SEEN, way={"on": 1, "off": 2})
_gate(
    "debounce",
    "trailing",
    {"window": 5, "mode": "trailing"},
    out={"key": "a", "suppressed": False},
    way={"on": 3, "off": 0},
)
_gate("debounce", "of all runs", {"window": "1h", "scope": "definition"}, way={"on": 1, "off": 2})
_gate(
    "throttle",
    "one in so many steps",
    {"window_steps": 99},
    out={"key": "a", "throttled": True},
    way={"on": 1, "off": 2},
)
_gate("throttle", "two in a window", {"window": "1h", "limit": 2}, way={"on": 2, "off": 1})
_gate(
    "throttle",
    "delay",
    {"window": 5, "mode": "delay"},
    out={"key": "a", "throttled": False},
    way={"on": 3, "off": 0},
)
_gate("throttle", "of all runs", {"window": "1h", "scope": "definition"}, way={"on": 1, "off": 2})
for _kind in ("debounce", "throttle"):
    for _given in (None, 1, []):
        _gate(
            _kind,
            f"no key: {_given!r}",
            {"window": 5},
            input={"k": _given},
            failed="cache_key_not_string",
            category="invalid_input",
        )

_WAYS = {"on_approve": "yes", "on_reject": "no"}


def _human(name: str, node: dict[str, Any], **more: Any) -> None:
    row("human_in_the_loop", name, {**_WAYS, **node}, **more)


def _asked(name: str, node: dict[str, Any], **more: Any) -> None:
    row("human_in_the_loop", name, {"next": "done", **node}, **more)


for _given in (True, "Approve", " approved ", "YES", "true"):
    _human(
        f"decided by {_given!r}",
        {"decision_path": "input.d", "response_path": "input.r"},
        input={"d": _given, "r": "seen"},
        out={"approved": True, "response": "seen", "by": None},
        way="yes",
    )
for _given in (False, "reject", "Rejected", " no", "false"):
    _human(f"decided by {_given!r}", {"decision_path": "input.d"}, input={"d": _given}, way="no")
for _given in ("maybe", 1, [], ""):
    _human(
        f"no decision: {_given!r}",
        {"decision_path": "input.d"},
        input={"d": _given},
        failed="invalid_human_decision",
        category="invalid_input",
    )
for _given in (True, False):
    _human(
        f"a person answers {_given}",
        {
            "prompt": "Send {{ input.d }}?",
            "decision_path": "input.d",
            "assignees": ["ada"],
            "input_type": "approval",
        },
        input={},
        answers={"n": _given},
        out={"approved": _given, "response": None, "by": "ada"},
        way="yes" if _given else "no",
        events=(
            "workflow.step_started",
            "approval.requested",
            "workflow.step_waiting",
            "approval.granted" if _given else "approval.denied",
            "workflow.step_completed",
        ),
    )
_human("no answer in time", {"timeout": 5}, failed="input_timeout", category="timeout")
_human("a way at the time-out", {"timeout": 5, "on_timeout": "late"}, way="late")
_asked(
    "a choice",
    {"input_type": "choice", "options": ["a", {"value": 2, "label": "two"}]},
    answers={"n": 2},
    out=2,
    way="done",
    events=(
        "workflow.step_started",
        "input.requested",
        "workflow.step_waiting",
        "input.received",
        "workflow.step_completed",
    ),
)
_asked("a text", {"input_type": "text", "prompt": "Name?"}, answers={"n": "Ann"}, out="Ann")
_asked(
    "a form",
    {"input_type": "form", "form_schema": {"type": "object"}, "form_prefill": {"a": "{{ input.a }}"}},
    input={"a": [1]},
    answers={"n": {"a": [2]}},
    out={"a": [2]},
)
_asked(
    "a choice that is too late",
    {"input_type": "choice", "options": ["a"], "timeout": 5},
    failed="input_timeout",
)

_TRIGGER = {"event": "paid", "next": "done"}
_COMPARE = {**_TRIGGER, "event_path": "input.e", "on_mismatch": "other"}
row(
    "event_trigger",
    "a value matches",
    _COMPARE,
    input={"e": "paid"},
    out={"event": "paid", "matched": True, "actual": "paid"},
    way="done",
)
row(
    "event_trigger",
    "a value does not match",
    _COMPARE,
    input={"e": "sent"},
    out={"event": "paid", "matched": False, "actual": "sent"},
    way="other",
)
for _given in (None, 1, ["paid"]):
    row(
        "event_trigger",
        f"no name: {_given!r}",
        _COMPARE,
        input={"e": _given},
        failed="invalid_event_value",
        category="invalid_input",
    )
row(
    "event_trigger",
    "a signal",
    _TRIGGER,
    signals=(("other", 0), ("paid", {"n": 1})),
    out={"event": "paid", "matched": True, "data": {"n": 1}, "signal_id": "sig_1"},
    way="done",
)
row(
    "event_trigger",
    "a signal that matches",
    {**_TRIGGER, "match": "signal.data.n > input.n"},
    input={"n": 1},
    signals=(("paid", {"n": 1}), ("paid", {"n": 2})),
    out={"event": "paid", "matched": True, "data": {"n": 2}, "signal_id": "sig_1"},
)
row(
    "event_trigger",
    "no signal in time",
    {**_TRIGGER, "timeout": 5},
    failed="event_timeout",
    category="timeout",
)
row("event_trigger", "a way at the time-out", {**_TRIGGER, "timeout": 5, "on_timeout": "late"}, way="late")
row(
    "event_trigger",
    "a match that fails",
    {**_TRIGGER, "match": "signal.data > 1"},
    signals=(("paid", "x"),),
    failed="expression_error",
    details={"path": "/match"},
)
