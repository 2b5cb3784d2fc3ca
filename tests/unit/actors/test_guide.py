"""Every block of the guide, and of the page of each promise, runs as it stands."""

import importlib
import pkgutil
import re

import pytest

import actors
from actors import promises
from actors.errors import ActorError

PAGES = {
    page.name: importlib.import_module(f"actors.promises.{page.name}")
    for page in pkgutil.iter_modules(promises.__path__)
}
TEXTS = {"guide": actors.__doc__} | {name: page.__doc__ for name, page in PAGES.items()}
BLOCKS = {
    f"{name}-{number}": block
    for name, text in TEXTS.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block):
    exec(compile(BLOCKS[block], block, "exec"), {"__name__": block.replace("-", "_")})


def test_there_is_a_guide_and_a_page_for_each_promise():
    assert PAGES.keys() == {"asking", "backpressure", "delivery", "stopping", "supervision", "timeouts"}
    assert {block.partition("-")[0] for block in BLOCKS} == TEXTS.keys()
    for name, page in PAGES.items():
        assert re.search(rf"^- `{name}`: ", promises.__doc__, re.MULTILINE)
        assert not [public for public in vars(page) if not public.startswith("_")], "text and nothing else"


def test_every_error_is_explained_on_some_page():
    pages = " ".join(page.__doc__ for page in PAGES.values())
    errors = {
        name
        for name in actors.__all__
        if isinstance(getattr(actors, name), type) and issubclass(getattr(actors, name), ActorError)
    }
    assert {name for name in errors - {"ActorError", "NameTaken"} if f"`{name}`" not in pages} == set()
