"""The table of kinds: a kind is one module and one line; nothing else in the package asks for kinds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agentflow.definition
from agentflow.definition import to_mermaid
from agentflow.definition.compare import compare
from agentflow.definition.dot import to_dot
from agentflow.definition.ir import EndNode, NodeBase, StartNode, Workflow, canonical_json, decode_ir
from agentflow.definition.kinds import KINDS, Kind, kind_of
from agentflow.definition.loader import definition_of
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


def test_only_the_folder_of_kinds_asks_for_kinds():
    folder = Path(agentflow.definition.__file__).parent
    specs = "|".join(kind.spec.__name__ for kind in KINDS.values())
    asks = re.compile(rf"""isinstance\([^)]*\b({specs})\b|kind\.name [!=]= |\.tag [!=]= """)
    found = [
        f"{path.name}:{number}"
        for path in folder.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if asks.search(line)
    ]
    assert found == []
