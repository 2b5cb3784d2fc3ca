"""The table of kinds: a kind is one module and one line; nothing else in the package asks for kinds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import agentflow
from agentflow.definition import to_mermaid
from agentflow.definition.compare import compare
from agentflow.definition.dot import to_dot
from agentflow.definition.ir import EndNode, NodeBase, StartNode, Workflow, canonical_json, decode_ir
from agentflow.definition.kinds import KINDS, Kind, kind_of
from agentflow.definition.loader import definition_of
from agentflow.engine.kinds import KINDS as ENGINE_TABLE
from agentflow.errors import DefinitionError


class DelayNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="delay"):
    """A kind that only this test knows."""

    seconds: float
    next: str
    late: str | None = None


def delay_ports(spec: DelayNode) -> tuple[tuple[str, str], ...]:
    return (("next", spec.next), *((("late", spec.late),) if spec.late else ()))


DELAY = Kind(
    name="delay",
    spec=DelayNode,
    ports=delay_ports,
    check=lambda spec, at: at.range("seconds", spec.seconds, above=0),
    label=lambda spec, port: "overdue" if port == "late" else None,
    shape="box",
    structural=frozenset({"next", "late"}),
)


def with_delay(seconds: float = 1.0, late: str | None = "e") -> Workflow:
    nodes = (StartNode(id="s", next="d"), DelayNode(id="d", seconds=seconds, next="e", late=late))
    return Workflow(name="w", nodes=(*nodes, EndNode(id="e")))


@pytest.fixture
def delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "delay", DELAY)


@pytest.mark.usefixtures("delay")
def test_a_new_kind_is_one_line_in_the_table():
    graph = with_delay()
    decoded = decode_ir(canonical_json(graph))
    assert decoded == graph
    assert type(decoded) is Workflow
    assert kind_of(decoded.nodes[1]) is DELAY
    assert definition_of(graph).workflow == graph
    assert '  d -- "overdue" --> e\n' in to_mermaid(graph)
    assert 'label="overdue"' in to_dot(graph)
    assert [d.message for d in compare(graph, with_delay(late="d"))] == ['"d" leads to "d", it led to "e"']


@pytest.mark.usefixtures("delay")
def test_the_check_of_a_new_kind_is_asked():
    with pytest.raises(DefinitionError) as caught:
        definition_of(with_delay(seconds=0))
    assert [(d.code, d.path) for d in caught.value.diagnostics] == [("E_VALUE", "/nodes/1/seconds")]


def test_an_unknown_kind_is_refused():
    with pytest.raises(DefinitionError) as caught:
        definition_of(with_delay())
    assert [(d.code, d.path) for d in caught.value.diagnostics] == [("E_TYPE", "/nodes/1/type")]


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_named_like_its_module_and_its_tag(name: str):
    kind = KINDS[name]
    assert kind.name == name == kind.spec.__struct_config__.tag
    assert kind.spec.__module__ == f"agentflow.definition.kinds.{name}"


SPECS = {kind.spec.__name__ for kind in KINDS.values()}
# Executor and Agent are also the names of classes that users make nodes of.
ENGINE_KINDS = {type(kind).__name__ for kind in ENGINE_TABLE.values()} - {"Agent", "Executor"}


def names_one_of(node: ast.AST, names: set[str]) -> bool:
    return any(getattr(n, "id", getattr(n, "attr", "")) in names for n in ast.walk(node))


def is_question(node: ast.AST, names: set[str]) -> bool:
    """Return whether code asks for a kind: by the class of a node, its tag or the name of its kind."""
    match node:
        case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, classes]):
            return names_one_of(classes, names)
        case ast.MatchClass(cls=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in names
        case ast.Compare(left=left, comparators=others):
            sides = [ast.unparse(side) for side in (left, *others)]
            by_name = any(re.search(r"(\bkind\.name|_config__\.tag)$", side) for side in sides)
            return by_name or any(names_one_of(side, names) for side in (left, *others))
        case _:
            return False


def questions(source: str, names: set[str]) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(source)) if is_question(node, names)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(node, (ToolNode, ir.MapNode))",
        "isinstance(node, ToolNode | MapNode)",
        "type(node) is AgentNode",
        "node.__class__ in (AgentNode, ToolNode)",
        "node.kind.name == 'agent'",
        "kind.name in ('agent', 'tool')",
        "'agent' != spec.__struct_config__.tag",
        "match node:\n    case ToolNode(): pass",
    ],
)
def test_questions_for_a_kind_are_found(line: str):
    assert questions(line, SPECS) != []


def test_only_the_folders_of_kinds_ask_for_kinds():
    package = Path(agentflow.__file__).parent
    folders = (package / "definition" / "kinds", package / "engine" / "kinds")
    found = [
        f"{path.relative_to(package)}:{line}"
        for path in package.rglob("*.py")
        if path.parent not in folders
        for line in questions(path.read_text(encoding="utf-8"), SPECS | ENGINE_KINDS)
    ]
    assert found == []


def test_both_halves_of_a_kind_agree_on_what_does_its_work():
    assert {name for name, kind in KINDS.items() if kind.is_handled} == {
        name for name, kind in ENGINE_TABLE.items() if kind.sends
    }
