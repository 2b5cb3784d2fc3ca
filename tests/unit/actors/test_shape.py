"""The shape of the package: `help` works, signatures and hints resolve, no import is for checkers only."""

import ast
import enum
import inspect
import pydoc
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import actors
import actors.testing

PUBLIC = {name: getattr(actors, name) for name in actors.__all__}
PUBLIC |= {f"testing.{name}": getattr(actors.testing, name) for name in actors.testing.__all__}
SOURCES = sorted(Path(actors.__file__).parent.rglob("*.py"))


def test_help_of_the_package_works():
    """D5"""
    text = pydoc.plain(pydoc.render_doc(actors))
    assert "Actors on asyncio" in text
    assert all(name in text for name in actors.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_help_of_each_public_name_works(name):
    """D5"""
    value = PUBLIC[name]
    text = pydoc.plain(pydoc.render_doc(value))
    assert name.removeprefix("testing.") in text or typing.get_origin(value) is typing.Literal
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value)


def callables(value):
    """The public functions of a class, or the function itself."""
    if inspect.isclass(value):
        for name, member in inspect.getmembers(value):
            if not name.startswith("_") or name == "__init__":
                member = member.fget if isinstance(member, property) else member
                if inspect.isfunction(member) and (member.__module__ or "").startswith("actors"):
                    yield member
    elif inspect.isfunction(value):
        yield value


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures_and_type_hints_of_each_public_name_resolve(name):
    """D5"""
    value = PUBLIC[name]
    if inspect.isclass(value) and not issubclass(value, enum.Enum):
        typing.get_type_hints(value)
        inspect.signature(value)
    for function in callables(value):
        inspect.signature(function)
        typing.get_type_hints(function)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_import_of_the_package_is_for_type_checkers_only(source):
    """So that the layers in pyproject.toml hold for types too."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            modules = [each.module for each in ast.walk(node) if isinstance(each, ast.ImportFrom)]
            assert not [module for module in modules if module.startswith("actors")]


def test_the_package_needs_nothing_but_the_standard_library():
    code = "import sys, actors, actors.testing; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SOURCES[0].parents[1], capture_output=True, text=True, check=True
    )
    own = {"actors", "__main__"} | set(sys.stdlib_module_names)
    assert not {"anyio", "msgspec", "typing_extensions"} & (set(done.stdout.split()) - own)
