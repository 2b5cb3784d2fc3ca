"""Random graph documents with models, agents and executors, and fields that random_graphs leaves out.

A document of `random_graphs` is extended: nodes of the kinds that it has not, fields, expressions, and a
graph inside.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import SubgraphNode, Workflow, agent_of
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault, tool
from tests.unit.engine.handlers import Graph
from tests.unit.engine.kinds.random_graphs import INPUT, Fate

__all__ = ["WordedFate", "extend"]

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
EXPRESSIONS = (
    *(
        "input.n > 0",
        "true",
        "${{ input.yes }}",
        "length(input.items) == 3",
        "$.input.n",
        "globals.g != null",
    ),
    *("nodes.__PREV__.output == null", "nodes.__PREV__.status == 'succeeded'", "last_llm_output == 'x'"),
    *("contains(input.items, 1) && !input.none", "input.n > 'x'", "inputs.name == 'go'", "input['k']"),
)
VALUES: tuple[Any, ...] = (
    *("{{ input.n }}", "n={{ input.items }}", {"a": ["{{ nodes.__PREV__.output }}"]}, None, 7, "plain"),
    *("{{ last_tool_output }}", "{{ globals.g }}", {"deep": {"er": "${{ input.name }}"}}),
)


class Extender:
    """Puts nodes behind the start of a document, one after another."""

    def __init__(self, rng: random.Random, value: dict[str, Any]) -> None:
        self.rng = rng
        self.value = value
        self.count = 0

    def run(self, depth: int) -> None:
        """Put some nodes in front of the first one."""
        for _ in range(self.rng.randint(1, 3)):
            start = next(node for node in self.value["nodes"] if node["type"] == "start")
            self.count += 1
            kind = self.rng.choice(_MAKERS if depth else _FLAT)
            node = getattr(self, f"_{kind}")(f"more{self.count}", start["next"])
            previous = f"more{self.count - 1}" if self.count > 1 else "start"
            node = _filled(node, previous)
            self._common(node)
            start["next"] = node["id"]
            self.value["nodes"].append(node)

    def _common(self, node: dict[str, Any]) -> None:
        rng = self.rng
        if rng.random() < 0.2:
            node["on_error"] = rng.choice(
                ["skip", "fail", {"next": "__end"}, {"next": "__end", "codes": ["tool"]}]
            )
        if rng.random() < 0.2:
            node["set_globals"] = {
                "g": rng.choice(["input.n", "$.input.items", f"nodes.{node['id']}.output"])
            }
        if rng.random() < 0.1:
            op = rng.choice(["append", "increment", "merge", "set"])
            node["update_globals"] = {"h": {"op": op, **({} if op == "increment" else {"from": "input.n"})}}
        if rng.random() < 0.1:
            node["capabilities"] = {
                "read": ["input", "nodes", "globals"],
                "write": rng.choice([["globals"], []]),
            }
        if rng.random() < 0.1:
            node["metadata"] = {"any": [1, None]}
        if rng.random() < 0.1:
            node["name"] = "A name"

    def _policy(self) -> dict[str, Any]:
        retry = {"max_attempts": self.rng.randint(1, 3), "backoff": {"initial": "10ms"}, "jitter": 0}
        return {"policy": {"retry": retry}} if self.rng.random() < 0.5 else {}

    def _llm(self, name: str, next: str) -> dict[str, Any]:
        rng = self.rng
        node: dict[str, Any] = {
            "id": name,
            "type": "llm",
            "model": "scripted:m",
            "next": next,
            **self._policy(),
        }
        node["prompt"] = rng.choice(["Say {{ input.n }}", "Plain", "{{ nodes.__PREV__.output }}"])
        if rng.random() < 0.3:
            node |= {
                "output_schema": SCHEMA,
                "heal": rng.choice([True, False]),
                "stream": rng.choice([True, False]),
            }
        if rng.random() < 0.3:
            node |= {"tools": ["s.call"], "max_tool_roundtrips": rng.randint(0, 2)}
            node["tool_errors"] = rng.choice(["return", "fail"])
        if rng.random() < 0.2:
            node |= {"system": "Be kind", "temperature": 0.3, "top_p": 1, "max_tokens": 5}
        return node

    def _agent(self, name: str, next: str) -> dict[str, Any]:
        agent: dict[str, Any] = {"system_prompt": "Work on {{ input.name }}", "model": "scripted:m"}
        if self.rng.random() < 0.5:
            agent |= {"tools": ["s.call"], "max_turns": self.rng.randint(1, 3)}
        if self.rng.random() < 0.3:
            agent["output_schema"] = SCHEMA
        return {"id": name, "type": "agent", "agent": agent, "next": next, **self._policy()}

    def _executor(self, name: str, next: str) -> dict[str, Any]:
        self.value.setdefault("edges", []).append({"source": name, "target": next})
        return {"id": name, "type": "executor", "executor": "echo", **self._policy()}

    def _transform(self, name: str, next: str) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {"id": name, "type": "transform", "value": self.rng.choice(VALUES), "next": next}
        return {"id": name, "type": "transform", "expression": self.rng.choice(EXPRESSIONS), "next": next}

    def _if(self, name: str, next: str) -> dict[str, Any]:
        kind = self.rng.choice(["if", "switch", "condition"])
        way = self.rng.choice([next, "__end"])
        expression = self.rng.choice(EXPRESSIONS)
        return {"id": name, "type": kind, "expression": expression, "on_true": next, "on_false": way}

    def _asking(self, name: str, next: str) -> dict[str, Any]:
        rng = self.rng
        more = rng.choice(
            [
                {"input_type": "text"},
                {"input_type": "choice", "options": ["a", {"value": 1, "label": "one"}]},
                {
                    "input_type": "form",
                    "form_schema": {"type": "object"},
                    "form_prefill": {"a": "{{ input.n }}"},
                },
            ]
        )
        limit: dict[str, Any] = {"timeout": rng.choice(["1s", 0.5])}
        if rng.random() < 0.5:
            limit["on_timeout"] = "__end"
        return {
            "id": name,
            "type": "human_in_the_loop",
            "next": next,
            "prompt": "Well, {{ input.n }}?",
            **more,
            **limit,
        }

    def _until(self, name: str, next: str) -> dict[str, Any]:
        until = self.rng.choice(["1970-01-01T00:00:05Z", "{{ input.name }}", "1970-01-01T00:01:00+01:00"])
        return {"id": name, "type": "wait", "until": until, "next": next}

    def _signal(self, name: str, next: str) -> dict[str, Any]:
        node = {
            "id": name,
            "type": "event_trigger",
            "event": "go",
            "match": "signal.data == input.n",
            "next": next,
        }
        return {**node, "timeout": 1, "on_timeout": "__end"}

    def _make_up(self, name: str, next: str) -> dict[str, Any]:
        tools = {
            "tool": "s.call",
            "input": {"n": "{{ input.n }}"},
            "compensate_tool": "s.call",
            "max_retries": 1,
        }
        more = (
            {"compensate_input": "{{ input }}", "on_compensated": "__end"} if self.rng.random() < 0.5 else {}
        )
        if self.rng.random() < 0.5:
            more["compensate_policy"] = {"retry": {"max_attempts": 2, "backoff": "10ms"}}
        return {"id": name, "type": "retry_compensate", "next": next, **tools, **more}

    def _inside(self, name: str, next: str) -> dict[str, Any]:
        inner: dict[str, Any] = {
            "name": "inner",
            "nodes": [
                {"id": "start", "type": "start", "next": "__end"},
                {
                    "id": "__end",
                    "type": "end",
                    **({"output": {"o": "{{ input }}"}} if self.rng.random() < 0.5 else {}),
                },
            ],
        }
        Extender(self.rng, inner).run(0)
        node: dict[str, Any] = {"id": name, "type": "subgraph", "inline": inner, "next": next}
        if self.rng.random() < 0.7:
            node["input"] = self.rng.choice(["{{ input }}", {"n": 1}, None])
        return node

    def _spread(self, name: str, next: str) -> dict[str, Any]:
        body = f"{name}b"
        self.value["nodes"].append({"id": body, "type": "transform", "value": ["{{ item }}", "{{ index }}"]})
        node = {"id": name, "type": "map", "items_path": "input.items", "body": body, "next": next}
        return {**node, "on_item_error": self.rng.choice(["fail", "collect", "skip"])}


_FLAT = ("llm", "agent", "transform", "if", "asking", "until", "signal", "make_up")
_MAKERS = (*_FLAT, "executor", "inside", "inside", "spread")


def _filled(value: Any, previous: str) -> Any:
    if isinstance(value, str):
        return value.replace("__PREV__", previous)
    if isinstance(value, dict):
        return {key: _filled(one, previous) for key, one in value.items()}
    return [_filled(one, previous) for one in value] if isinstance(value, list) else value


def extend(value: dict[str, Any], rng: random.Random) -> None:
    """Put random nodes of further kinds in front of a document's first node."""
    Extender(rng, value).run(1)


class _Whole(Graph):
    """A run of executors whose batches are those of the store."""

    def take(self, moves: list[Any]) -> None:
        begun = len(self.batches)
        super().take(moves)
        del self.batches[begun + 1 :]


class WordedFate(Fate):
    """What becomes of a run with models, agents and executors."""

    def __init__(self, seed: int, graph: Workflow) -> None:
        self.rng = random.Random(seed)
        self.cancel = 0.01 if self.rng.random() < 0.1 else 0.0
        tools = {step: [tool("call", schema={"type": "object"})] for step in _asking_steps(graph)}
        self.driver: Any = _Whole(
            graph,
            INPUT,
            handlers=_Handlers(self),  # type: ignore[arg-type]
            call=lambda name, parameters: self.execute(),
            model=lambda activation, call: self.say(call),
            tools=tools,
        )

    def say(self, call: Any) -> Any:
        """Return what a model says, or fail."""
        chance = self.rng.random()
        if chance < 0.1:
            raise Fault(self.rng.choice(["transient", "timeout", "invalid_request"]), "model")
        if chance < 0.4 and self.driver.state.bindings.of(call.activation.node.id).tools:
            name = self.rng.choice(["s__call", "s__call", "s__other"])
            arguments = self.rng.choice(["{}", '{"x": 1}', "no json"])
            return Message(
                role="assistant", content="", tool_calls=(ToolCall(id="c0", name=name, arguments=arguments),)
            )
        return self.rng.choice(["text", '{"n": 1}', "{n: 1,}", '{"n": "x"}', ""])

    def handle(self, context: Any) -> None:
        """Send the message on, or fail."""
        if self.rng.random() < 0.1:
            raise Fault("tool", "handler")
        context.send(context.input)

    def answer(self) -> None:
        """Answer the oldest request, which nothing else ends."""
        state = self.driver.state
        request = next(iter(state.requests.values()))
        self.driver.now += 1_000
        if isinstance(request.data, ev.ApprovalRequested):
            decide = engine.commands.decide_request
            moves = decide(state, request_id=request.request_id, granted=self.rng.random() < 0.5, by="ada")
        else:
            moves = engine.commands.withdraw(state, request.request_id, reason="no one is there", by="ada")
        self.driver.advance(moves)

    def move(self) -> None:
        """Let a handler return, or do what any run may do."""
        driver, rng = self.driver, self.rng
        if driver.state.status == "paused":
            super().move()
            return
        handlers = driver.open_handlers()
        stands = not driver.waiting and engine.next_due(driver.state) is None
        if handlers and rng.random() < 0.9:
            driver.work(rng.choice(handlers))
        elif stands and driver.state.requests:
            self.answer()
        elif stands and driver.begun:
            driver.now += 20_000_000
            driver.advance([])
        else:
            super().move()


class _Handlers(dict[str, Any]):
    """The one handler of every executor."""

    def __init__(self, fate: WordedFate) -> None:
        super().__init__()
        self.fate = fate

    def get(self, key: str, default: Any = None) -> Any:
        return self.fate.handle


def _asking_steps(graph: Workflow, prefix: str = "") -> Iterator[str]:
    for node in graph.nodes:
        agent = agent_of(node)
        if agent is not None and agent.functions:
            yield prefix + node.id
        if isinstance(node, SubgraphNode) and node.inline is not None:
            yield from _asking_steps(node.inline, f"{prefix}{node.id}/")
