"""What annotations and docstrings of a function become: its schema, and the values that it gets."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest
from annotated_types import Interval, Len
from pydantic import BaseModel, Field
from typing_extensions import Doc, TypeAliasType

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.tools import ToolError, invoke
from agentflow.tools.python import make_tool
from tests.unit.tools.test_invoke import CTX

if TYPE_CHECKING:
    from decimal import Decimal


class Tree(BaseModel):
    n: int
    kids: list[Tree] = []


class Person(BaseModel):
    name: str = Field(description="As on the badge.", alias="fullName")


@pydantic.dataclasses.dataclass
class Positive:
    n: int = Field(gt=0)


@dataclasses.dataclass
class Circle:
    radius: float


@dataclasses.dataclass
class Ring:
    radius: float
    hole: float = 0.0


class Card(msgspec.Struct):
    number: str


class Iban(msgspec.Struct):
    iban: str


class Cash(TypedDict):
    currency: str


@dataclasses.dataclass
class Folder:
    path: Path
    owner: Person


class Odd: ...


Shape = TypeAliasType("Shape", Circle | Ring)


def schema(f: Callable[..., Any]) -> dict[str, Any]:
    return make_tool("s", f).input_schema


async def given(f: Callable[..., Any], value: Any) -> Any:
    """The value that parameter x of `f` gets for this JSON, which its schema allows."""
    tool = make_tool("s", f)
    assert validate(tool.input_schema, {"x": value}) == []
    got: list[Any] = []
    seen = dataclasses.replace(tool, call=lambda x: got.append(x), is_async=False)
    await invoke(seen, {"x": value}, CTX)
    return got[0]


async def refused(f: Callable[..., Any], value: Any) -> ErrorInfo:
    with pytest.raises(ToolError) as caught:
        await invoke(make_tool("s", f), {"x": value}, CTX)
    assert caught.value.executed is False
    return caught.value.info


def takes_tree(x: Tree) -> None: ...
def takes_person(x: Person) -> None: ...
def takes_positive(x: Positive) -> None: ...
def takes_trees(x: dict[str, list[Tree]]) -> None: ...
def takes_either_model(x: Tree | Person) -> None: ...
def takes_shape(x: Circle | Ring) -> None: ...
def takes_alias(x: Shape) -> None: ...
def takes_payment(x: Card | Iban | Cash | None) -> None: ...
def takes_shapes(x: list[Circle | Ring]) -> None: ...
def takes_path(x: Path) -> None: ...
def takes_pure_path(x: PurePosixPath) -> None: ...
def takes_path_or_number(x: Path | int) -> None: ...
def takes_folder(x: Folder) -> None: ...
def takes_field(x: Annotated[int, Field(ge=2)]) -> None: ...


@pytest.mark.parametrize(
    ("f", "value", "expected"),
    [
        (takes_tree, {"n": 1, "kids": [{"n": 2}]}, Tree(n=1, kids=[Tree(n=2)])),
        (takes_person, {"fullName": "Ann"}, Person(fullName="Ann")),
        (takes_positive, {"n": 3}, Positive(3)),
        (takes_trees, {"a": [{"n": 1}]}, {"a": [Tree(n=1)]}),
        (takes_either_model, {"n": 1}, Tree(n=1)),
        (takes_either_model, {"fullName": "Ann"}, Person(fullName="Ann")),
        (takes_shape, {"radius": 2.0}, Circle(2.0)),
        (takes_shape, {"radius": 2.0, "hole": 1.0}, Ring(2.0, 1.0)),
        (takes_alias, {"radius": 2.0, "hole": 1.0}, Ring(2.0, 1.0)),
        (takes_payment, {"iban": "DE"}, Iban("DE")),
        (takes_payment, {"currency": "EUR"}, {"currency": "EUR"}),
        (takes_payment, None, None),
        (takes_shapes, [{"radius": 1.0}, {"radius": 1.0, "hole": 0.5}], [Circle(1.0), Ring(1.0, 0.5)]),
        (takes_path, "/tmp/x", Path("/tmp/x")),
        (takes_pure_path, "a/b", PurePosixPath("a/b")),
        (takes_path_or_number, 4, 4),
        (takes_path_or_number, "a", Path("a")),
        (
            takes_folder,
            {"path": "a", "owner": {"fullName": "Ann"}},
            Folder(Path("a"), Person(fullName="Ann")),
        ),
        (takes_field, 2, 2),
    ],
)
async def test_a_function_gets_what_its_annotation_says(f: Callable[..., Any], value: Any, expected: Any):
    assert await given(f, value) == expected
    assert type(await given(f, value)) is type(expected)


@pytest.mark.parametrize(
    ("f", "value", "message"),
    [
        (takes_tree, {"n": "one"}, "s__takes_tree: x does not fit: n breaks the rule int_parsing"),
        (takes_tree, {}, "s__takes_tree: x does not fit: n is missing"),
        (takes_positive, {"n": 0}, "s__takes_positive: x does not fit: n breaks the rule greater_than"),
        (takes_trees, {"a": [{"n": None}]}, "does not fit: n breaks the rule int_type"),
        (takes_payment, {"iban": 3}, "s__takes_payment: x must be Card or Iban or Cash or None"),
        (takes_path, 3, "s__takes_path: x must be a string"),
        (takes_field, 1, "s__takes_field: x does not fit: the value breaks the rule greater_than_equal"),
    ],
)
async def test_what_does_not_fit_is_told_in_our_words(f: Callable[..., Any], value: Any, message: str):
    info = await refused(f, value)
    assert message in info.message
    assert info.code == "invalid_tool_input"
    assert "pydantic" not in info.message
    assert "http" not in info.message


async def test_the_value_is_not_repeated_in_the_message():
    assert "hunter2" not in (await refused(takes_tree, {"n": "hunter2"})).message


def test_descriptions_of_arguments():
    def f(
        a: Annotated[int, "How many."],
        b: Annotated[int, Doc("How long.")],
        c: Annotated[str, Field(description="Which.", min_length=2)],
        d: int = Field(5, ge=1, description="How often."),
        e: Annotated[int, Interval(ge=1, lt=9)] = 3,
        g: Annotated[list[int], Len(1, 4)] = [1],  # noqa: B006
    ) -> None: ...

    found = schema(f)["properties"]
    assert [found[name].get("description") for name in "abcd"] == [
        "How many.",
        "How long.",
        "Which.",
        "How often.",
    ]
    assert found["c"]["minLength"] == 2
    assert (found["d"]["minimum"], found["d"]["default"]) == (1, 5)
    assert (found["e"]["minimum"], found["e"]["exclusiveMaximum"], found["e"]["default"]) == (1, 9, 3)
    assert (found["g"]["minItems"], found["g"]["maxItems"]) == (1, 4)
    assert schema(f)["required"] == ["a", "b", "c"]


async def test_the_default_of_a_field_is_what_the_function_gets():
    def f(n: int = Field(5, ge=1), names: list[str] = Field(default_factory=list)) -> list[Any]:  # noqa: B008
        return [n, names]

    assert await invoke(make_tool("s", f), {}, CTX) == [5, []]

    def g(n: int = Field(ge=1)) -> int:
        return n

    assert schema(g)["required"] == ["n"]


STYLES = {
    "google": """Find a user.

    Looks everywhere.

    Args:
        name: The name,
            in any case.
        limit (int): At most so many.

    Returns:
        The users.
    """,
    "numpy": """Find a user.

    Looks everywhere.

    Parameters
    ----------
    name : str
        The name,
        in any case.
    limit
        At most so many.

    Returns
    -------
    list
        The users.
    """,
    "sphinx": """Find a user.

    Looks everywhere.

    :param name: The name,
        in any case.
    :param limit: At most so many.
    :returns: The users.
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_docstrings(style: str):
    def f(name: str, limit: int = 3) -> None: ...

    f.__doc__ = STYLES[style]
    tool = make_tool("s", f)
    assert tool.description == "Find a user.\n\nLooks everywhere.\n\nReturns: The users."
    found = tool.input_schema["properties"]
    assert found["name"]["description"] == "The name, in any case."
    assert found["limit"]["description"] == "At most so many."


@pytest.mark.parametrize(
    "doc",
    [
        "Plain.",
        "Plain.\n\nNote: no section.\nArgs: none to speak of.",
        "Other.\n\nArgs:\n    elsewhere: not of this function.",
        "",
    ],
)
def test_a_docstring_without_arguments_of_this_function_stays_as_it_is(doc: str):
    def f(name: str) -> None: ...

    f.__doc__ = doc
    tool = make_tool("s", f)
    assert tool.description == doc
    assert tool.input_schema["properties"]["name"] == {"type": "string"}


def test_an_annotation_wins_over_the_docstring():
    def f(name: Annotated[str, "From the annotation."]) -> None:
        """F.

        Args:
            name: From the docstring.
        """

    assert schema(f)["properties"]["name"]["description"] == "From the annotation."


def test_two_classes_of_one_name_have_two_definitions():
    def family() -> type[BaseModel]:
        class Node(BaseModel):
            kids: list[Node] = []  # type: ignore[valid-type]

        Node.model_rebuild(_types_namespace={"Node": Node})
        return Node

    class Node(BaseModel):
        name: str
        more: list[Node] = []

    Node.model_rebuild(_types_namespace={"Node": Node})
    other = family()

    def f(a, b) -> None: ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"a": Node, "b": other}
    found = schema(f)
    assert len(found["$defs"]) == 2
    assert validate(found, {"a": {"name": "x", "more": []}, "b": {"kids": [{"kids": []}]}}) == []
    assert validate(found, {"a": {"kids": []}, "b": {}}) != []


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Odd, 'parameter "x": no JSON Schema describes Odd; use builtins, a dataclass'),
        (list[Odd], 'parameter "x": no JSON Schema describes Odd'),
        (Odd | int, 'parameter "x": no JSON Schema describes Odd'),
        ("Missing", 'parameter "x": its module has no Missing at run time; import it at the top'),
        ("Decimal", 'parameter "x": its module has no Decimal at run time; import it at the top'),
        ("3 +", "parameter \"x\": its annotation '3 +' is no type"),
        (3, 'parameter "x"'),
        (Callable[[int], int], 'parameter "x"'),
    ],
)
def test_what_cannot_be_described_is_refused_with_the_way_out(annotation: Any, reason: str):
    def f(x) -> None: ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"x": annotation}
    with pytest.raises(TypeError) as caught:
        make_tool("s", f)
    assert reason in str(caught.value)
    assert "msgspec" not in str(caught.value).replace("msgspec.Struct", "")


def test_the_type_of_the_result_need_not_exist_at_run_time():
    def f(x: int) -> Decimal: ...  # type: ignore[empty-body]

    assert schema(f)["properties"] == {"x": {"type": "integer"}}


def test_pydantic_is_not_imported_for_others():
    code = (
        "import sys; from agentflow.tools.python import make_tool\n"
        "def f(x: int, y: list[str] = []) -> None: 'Do.'\n"
        "make_tool('s', f)\n"
        "assert not {'pydantic', 'docstring_parser'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
