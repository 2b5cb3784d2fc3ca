"""Python functions as services: marker, signature, module, overrides, and what is wrong with them."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal

import msgspec
import pytest

from agentflow.definition.ir import ServiceSpec
from agentflow.tools import Service, ToolContext, function, load_python_service
from agentflow.tools.python import make_tool


def python(module: str = "tools", **options: Any) -> ServiceSpec:
    return ServiceSpec(type="python", options={"module": module}, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return write


def load(folder: Path | None, spec: ServiceSpec | None = None, name: str = "crm") -> Service:
    service, problems = load_python_service(name, spec or python(), folder)
    assert problems == []
    assert service is not None
    return service


def problems(folder: Path | None, spec: ServiceSpec | None = None) -> list[tuple[str, str, str | None]]:
    service, found = load_python_service("crm", spec or python(), folder)
    assert service is None
    assert all(p.severity == "error" for p in found)
    return [(p.code, p.message, p.hint) for p in found]


# --- the marker and the tool


def test_a_bare_mark_leaves_the_function_as_it_is() -> None:
    def f(x: int) -> int:
        "Doubles."
        return 2 * x

    marked = function(f)
    assert marked is f
    assert f(2) == 4
    tool = make_tool("math", f)
    assert (tool.service, tool.function, tool.name, tool.description) == ("math", "f", "math__f", "Doubles.")
    assert (tool.side_effect, tool.declared, tool.idempotent) == ("external", False, False)
    assert (tool.timeout, tool.sensitive, tool.is_async, tool.accepts_ctx) == (60.0, False, False, False)


@pytest.mark.parametrize(
    ("side_effect", "idempotent"),
    [("none", True), ("read", True), ("write", False), ("external", False), ("irreversible", False)],
)
def test_idempotent_follows_the_side_effect(side_effect: Any, idempotent: bool) -> None:
    @function(side_effect=side_effect)
    def f() -> None: ...

    @function(side_effect=side_effect, idempotent=not idempotent)
    def g() -> None: ...

    assert make_tool("s", f).idempotent is idempotent
    assert make_tool("s", g).idempotent is not idempotent
    assert make_tool("s", f).declared


def test_options_of_the_mark() -> None:
    @function(name="getUser", description="Finds a user.", timeout=2, sensitive=True)
    async def get_user(ctx: ToolContext, mail: str) -> str:
        """Not shown."""
        return mail

    tool = make_tool("crm", get_user)
    assert (tool.function, tool.name, tool.description) == ("getUser", "crm__getUser", "Finds a user.")
    assert (tool.timeout, tool.sensitive, tool.is_async, tool.accepts_ctx) == (2.0, True, True, True)
    assert list(tool.input_schema["properties"]) == ["mail"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side_effect": "reads"}, 'side_effect "reads" is not one of none, read, write'),
        ({"timeout": 0}, "timeout 0 is not"),
        ({"timeout": -1}, "timeout -1 is not"),
        ({"effect": "read"}, "effect"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        function(**options)


def test_only_functions_are_marked() -> None:
    with pytest.raises(TypeError, match="marks functions, not str"):
        function("getUser")  # type: ignore[call-overload]


# --- signatures


class Color(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    sku: str
    parts: list[Item] = []


def schema(f: Callable[..., Any]) -> dict[str, Any]:
    found = make_tool("s", f).input_schema
    assert (found["type"], found["additionalProperties"]) == ("object", False)
    return found


def test_parameters_become_properties() -> None:
    def f(
        a: str,
        b: Annotated[int, msgspec.Meta(ge=1, description="How many.")],
        c: Literal["x", "y"],
        d: list[float],
        e: dict[str, bool] | None,
        g: datetime,
        h: Color,
        i,  # type: ignore[no-untyped-def]
        *,
        j: Any,
    ) -> None: ...

    found = schema(f)
    assert found["properties"] == {
        "a": {"type": "string"},
        "b": {"type": "integer", "minimum": 1, "description": "How many."},
        "c": {"enum": ["x", "y"]},
        "d": {"type": "array", "items": {"type": "number"}},
        "e": {"anyOf": [{"type": "object", "additionalProperties": {"type": "boolean"}}, {"type": "null"}]},
        "g": {"type": "string", "format": "date-time"},
        "h": {"enum": ["red"]} | {"title": "Color"},
        "i": {},
        "j": {},
    } or found["properties"]["h"] == {"$ref": "#/$defs/Color"}
    assert found["required"] == list("abcdeghij")


def test_no_parameters() -> None:
    def f(ctx: ToolContext) -> None: ...

    assert schema(f) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_defaults_are_shown_where_json_has_a_word_for_them() -> None:
    sentinel = object()

    def f(
        a: int = 3,
        b: list[int] = [1, 2],  # noqa: B006
        c: str = None,  # type: ignore[assignment]  # noqa: RUF013
        d: float = float("inf"),
        e: Any = sentinel,
        g: Color = Color.RED,
        h: dict[str, int] = {},  # noqa: B006
    ) -> None: ...

    found = schema(f)
    assert found["required"] == []
    defaults = {name: p["default"] for name, p in found["properties"].items() if "default" in p}
    assert defaults == {"a": 3, "b": [1, 2], "c": None, "g": "red", "h": {}}
    assert {"type": "null"} in found["properties"]["c"]["anyOf"]


def test_types_of_their_own_are_defined_inside_the_schema() -> None:
    def f(items: list[Item], first: Item) -> None: ...

    found = schema(f)
    assert found["properties"]["first"] == {"$ref": "#/$defs/Item"}
    assert found["$defs"]["Item"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Item"}


def test_methods_partials_and_objects() -> None:
    class Shop:
        @function(side_effect="read")
        def price(self, sku: str) -> int:
            "The price."
            return len(sku)

        async def __call__(self, n: int) -> int:
            return n

    service = Service.of("shop", Shop().price, Shop(), max_concurrency=3)
    assert list(service.tools) == ["price", "Shop"]
    assert list(service.tools["price"].input_schema["properties"]) == ["sku"]
    assert (service.tools["price"].side_effect, service.tools["Shop"].is_async) == ("read", True)
    assert service.spec.max_concurrency == 3


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(*rest): ...", "parameter *rest cannot be given by name"),
        ("def f(**more): ...", "parameter **more cannot be given by name"),
        ("def f(x, /): ...", "parameter x cannot be given by name"),
        ("def f(ctx, /): ...", "parameter ctx cannot be given by name"),
        ("def f(x: Missing): ...", "Missing"),
        ("class Odd: ...\ndef f(x: Odd): ...", "Odd"),
        ("def f(x: 3): ...", "3"),
    ],
)
def test_signatures_without_a_schema(folder: Callable[..., Path], source: str, reason: str) -> None:
    text = "from __future__ import annotations\nimport agentflow.tools\n" + source
    text = text.replace("def f", "@agentflow.tools.function\ndef f")
    ((code, message, _),) = problems(folder(tools=text))
    assert code == "E_TOOL_SCHEMA"
    assert message.startswith('function "f" of service "crm": ')
    assert reason in message


# --- modules

TOOLS = """
    from agentflow.tools import function

    @function
    def marked(x: int) -> int:
        return x

    @function(name="other")
    def renamed() -> int:
        return 2

    def plain(y: str) -> str:
        return y

    def _helper() -> None: ...
"""


def test_marked_functions_are_the_service(folder: Callable[..., Path]) -> None:
    service = load(folder(tools=TOOLS))
    assert service.name == "crm"
    assert list(service.tools) == ["marked", "other"]
    assert all(tool.service == "crm" for tool in service.tools.values())


def test_include_adds_functions(folder: Callable[..., Path]) -> None:
    service = load(folder(tools=TOOLS), python(include=("plain", "renamed")))
    assert list(service.tools) == ["marked", "other", "plain"]


def test_a_pattern_includes_the_functions_of_the_module(folder: Callable[..., Path]) -> None:
    text = TOOLS + "\n    from shared import plain as plain_too\n"
    path = folder(tools=text, shared=TOOLS)
    assert list(load(path, python(include=("pl*",))).tools) == ["marked", "other", "plain"]
    assert problems(path, python(include=("zz*",)))[0][0] == "E_SERVICE_UNAVAILABLE"


def test_include_names_a_function_that_is_not_there(folder: Callable[..., Path]) -> None:
    assert problems(folder(tools=TOOLS), python(include=("plan",))) == [
        (
            "E_SERVICE_UNAVAILABLE",
            'service "crm": its module has no function "plan", named in include',
            'did you mean "plain"?',
        )
    ]


def test_the_document_overrides_the_mark(folder: Callable[..., Path]) -> None:
    said = {
        "marked": {"side_effect": "read", "description": "Looks.", "timeout": 5, "private": True},
        "other": {"side_effect": "write", "idempotent": True},
    }
    service = load(folder(tools=TOOLS), python(functions=said, timeout=7.0))
    marked, other = service.tools["marked"], service.tools["other"]
    assert (marked.side_effect, marked.idempotent, marked.description) == ("read", True, "Looks.")
    assert (marked.timeout, marked.private, marked.declared) == (5.0, True, True)
    assert (other.side_effect, other.idempotent, other.timeout, other.private) == ("write", True, 7.0, False)


def test_overrides_of_a_function_that_is_not_there(folder: Callable[..., Path]) -> None:
    found = problems(folder(tools=TOOLS), python(functions={"markd": {"side_effect": "read"}}))
    assert found == [("E_UNKNOWN_FUNCTION", '"crm" has no "markd"', 'did you mean "marked"?')]


def test_two_functions_of_one_name(folder: Callable[..., Path]) -> None:
    text = TOOLS + '\n    @function(name="marked")\n    def again() -> None: ...\n'
    assert [p[0] for p in problems(folder(tools=text))] == ["E_TOOL_DUPLICATE"]


def test_a_module_without_functions(folder: Callable[..., Path]) -> None:
    assert problems(folder(tools="def f(): ...")) == [
        ("E_SERVICE_UNAVAILABLE", 'service "crm": it offers no function', "mark one with @agentflow.function")
    ]


def test_functions_of_another_module_are_not_this_service(folder: Callable[..., Path]) -> None:
    path = folder(
        tools="""
            from agentflow.tools import function
            from shared import marked, plain
            @function
            def own(): ...
        """,
        shared=TOOLS,
    )
    assert list(load(path).tools) == ["own"]
    assert list(load(path, python(include=("plain", "marked"))).tools) == ["marked", "plain", "own"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise Exception('x' * 10_000)", "Exception: xxx"),
    ],
)
def test_a_module_that_does_not_import(folder: Callable[..., Path], text: str, reason: str) -> None:
    before = list(sys.path), set(sys.modules)
    ((code, message, hint),) = problems(folder(tools=text))
    assert (code, hint) == ("E_SERVICE_UNAVAILABLE", None)
    assert message.startswith(f'service "crm": {reason}')
    assert len(message) < 400
    assert (list(sys.path), set(sys.modules)) == before


@pytest.mark.parametrize("module", ["nowhere_to_be_found", "nowhere.to.be.found"])
def test_a_module_that_is_not_there(tmp_path: Path, module: str) -> None:
    for place in (tmp_path, None):
        ((code, message, hint),) = problems(place, python(module))
        assert code == "E_SERVICE_UNAVAILABLE"
        assert (
            message
            == f'service "crm": there is no module "{module}" beside the document or on the import path'
        )
        assert hint is not None
        assert module.replace(".", "/") + ".py" in hint


@pytest.mark.parametrize("module", ["", "../tools", "/etc/tools", "tools.py/", "a..b", "tools\n", "to ols"])
def test_a_module_name_is_no_path(folder: Callable[..., Path], module: str) -> None:
    ((code, message, _),) = problems(folder(tools=TOOLS), python(module))
    assert code == "E_SERVICE_UNAVAILABLE"
    assert "is not the name of a module" in message


def test_a_module_of_the_import_path() -> None:
    service = load(None, python("shutil", include=("which",)), "shell")
    assert list(service.tools) == ["which"]
    assert service.tools["which"].input_schema["properties"]["cmd"] == {}


def test_the_folder_comes_before_the_import_path(folder: Callable[..., Path]) -> None:
    assert "marked" in load(folder(shutil=TOOLS), python("shutil")).tools


def test_two_folders_may_have_modules_of_one_name(tmp_path: Path) -> None:
    answers = {}
    services = {}
    for who in ("a", "b"):
        place = tmp_path / who
        place.mkdir()
        (place / "helpers_of_two.py").write_text(f"WHO = {who!r}")
        (place / "tools.py").write_text(
            "import helpers_of_two\nfrom agentflow.tools import function\n"
            "@function\ndef who():\n    return helpers_of_two.WHO\n"
        )
        services[who] = load(place)
    for who, service in services.items():
        answers[who] = service.tools["who"].call()
    assert answers == {"a": "a", "b": "b"}


def test_an_edited_module_is_read_again_and_an_old_one_is_not(folder: Callable[..., Path]) -> None:
    path = folder(tools=TOOLS)
    first, again = load(path), load(path)
    assert first.tools["marked"].call is again.tools["marked"].call
    file = folder(tools=TOOLS.replace("return x", "return x + 1")) / "tools.py"
    os.utime(file, ns=(1, 1))
    edited = load(path)
    assert edited.tools["marked"].call(1) == 2
    assert first.tools["marked"].call(1) == 1


def test_packages_beside_the_document(folder: Callable[..., Path]) -> None:
    path = folder(
        pkg__in____init__="from .inner import marked",
        pkg__in__inner="from . import values\n" + dedent(TOOLS) + "\n@function\ndef v(): return values.V",
        pkg__in__values="V = 42",
        loose__in__tools=TOOLS,
    )
    assert list(load(path, python("pkg")).tools) == ["marked"]
    inner = load(path, python("pkg.inner"))
    assert list(inner.tools) == ["marked", "other", "v"]
    assert inner.tools["v"].call() == 42
    assert list(load(path, python("loose.tools")).tools) == ["marked", "other"]


def test_types_that_name_each_other_across_modules(folder: Callable[..., Path]) -> None:
    path = folder(
        types_of_mine="""
            from __future__ import annotations
            import msgspec
            class Order(msgspec.Struct):
                lines: list[Line]
            class Line(msgspec.Struct):
                sku: str
        """,
        tools="""
            from __future__ import annotations
            from types_of_mine import Order
            from agentflow.tools import function
            @function
            def price(order: Order) -> int: ...
        """,
    )
    tool = load(path).tools["price"]
    assert set(tool.input_schema["$defs"]) == {"Order", "Line"}
