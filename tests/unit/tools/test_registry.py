"""Names of tools, and what a reference to a function means."""

from __future__ import annotations

import hashlib

import pytest

from agentflow.definition.ir import FunctionRef, ServiceSpec
from agentflow.tools import Service, ToolRegistry, tool_name
from agentflow.tools.python import make_tool


def service(name: str, *functions: str, private: tuple[str, ...] = ()) -> Service:
    spec = ServiceSpec(type="python", functions={p: {"private": True} for p in private})
    tools = {}
    for function in functions:

        def f() -> None: ...

        f.__name__ = function
        tools[function] = make_tool(name, f, spec)
    return Service(name, spec, tools)


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry(
        [
            service("customer", "getCustomer", "deleteCustomer", "audit", private=("audit",)),
            service("web", "search", "fetch"),
            service("crm", "search"),
        ]
    )


@pytest.mark.parametrize(
    ("of", "function", "name"),
    [
        ("customer", "getCustomer", "customer__getCustomer"),
        ("a-b", "c_d", "a-b__c_d"),
        ("a", "b.c d/é", "a__b_c_d__"),
        ("s" * 30, "f" * 32, "s" * 30 + "__" + "f" * 32),
    ],
)
def test_tool_name(of: str, function: str, name: str) -> None:
    assert tool_name(of, function) == name


def test_a_long_tool_name_ends_in_a_hash() -> None:
    whole = "s" * 40 + "__" + "f" * 40
    name = tool_name("s" * 40, "f" * 40)
    assert name == whole[:55] + "_" + hashlib.sha256(whole.encode()).hexdigest()[:8]
    assert len(name) == 64
    assert tool_name("s" * 40, "f" * 39 + "g") != name


def test_a_function_by_service_and_name(registry: ToolRegistry) -> None:
    (tool,), problems = registry.resolve(FunctionRef("customer", "getCustomer"))
    assert (tool.service, tool.function, problems) == ("customer", "getCustomer", [])


def test_a_star_is_every_public_function(registry: ToolRegistry) -> None:
    tools, problems = registry.resolve(FunctionRef("customer", "*"))
    assert ([t.function for t in tools], problems) == (["getCustomer", "deleteCustomer"], [])


def test_a_private_function_may_be_named(registry: ToolRegistry) -> None:
    tools, problems = registry.resolve(FunctionRef("customer", "audit"))
    assert ([t.private for t in tools], problems) == ([True], [])


@pytest.mark.parametrize(
    ("ref", "code", "message", "hint"),
    [
        (("custmer", "x"), "E_UNKNOWN_SERVICE", 'no service "custmer"', 'did you mean "customer"?'),
        (("zzz", "*"), "E_UNKNOWN_SERVICE", 'no service "zzz"', "declare it under services"),
        (
            ("customer", "getCustomr"),
            "E_UNKNOWN_FUNCTION",
            '"customer" has no "getCustomr"',
            'did you mean "getCustomer"?',
        ),
        (("web", "zzz"), "E_UNKNOWN_FUNCTION", '"web" has no "zzz"', "it has search, fetch"),
        (("", "search"), "E_TOOL_UNKNOWN", '"search" is in web and crm', "write web.search"),
        (("", "serch"), "E_TOOL_UNKNOWN", 'no tool "serch"', 'did you mean "search"?'),
        (("", "zzz"), "E_TOOL_UNKNOWN", 'no tool "zzz"', None),
    ],
)
def test_references_to_nothing(
    registry: ToolRegistry, ref: tuple[str, str], code: str, message: str, hint: str | None
) -> None:
    tools, (problem,) = registry.resolve(FunctionRef(*ref))
    assert tools == []
    assert (problem.code, problem.message, problem.hint, problem.severity) == (code, message, hint, "error")


def test_a_name_alone_means_the_only_function_of_that_name(registry: ToolRegistry) -> None:
    (tool,), problems = registry.resolve(FunctionRef("", "fetch"))
    assert (tool.service, problems) == ("web", [])


def test_all_public(registry: ToolRegistry) -> None:
    assert [f"{t.service}.{t.function}" for t in registry.all_public()] == [
        "customer.getCustomer",
        "customer.deleteCustomer",
        "web.search",
        "web.fetch",
        "crm.search",
    ]


def test_a_declared_service_hides_a_registered_one(registry: ToolRegistry) -> None:
    copy = registry.copy()
    copy.add(service("web", "browse"))
    assert [t.function for t in copy.resolve(FunctionRef("web", "*"))[0]] == ["browse"]
    assert [t.function for t in registry.resolve(FunctionRef("web", "*"))[0]] == ["search", "fetch"]


def test_two_functions_of_one_tool_name() -> None:
    registry = ToolRegistry([service("a", "b__c", "d"), service("a__b", "c")])
    ((later, problem),) = registry.duplicates(registry.all_public())
    assert (later.service, later.function) == ("a__b", "c")
    assert (problem.code, problem.message, problem.hint) == (
        "E_TOOL_DUPLICATE",
        'a.b__c and a__b.c are both "a__b__c"',
        "rename a service",
    )
    tools = registry.all_public()
    assert registry.duplicates([tools[0], tools[0]]) == []
