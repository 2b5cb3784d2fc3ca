"""Every block of the guide, and of the page of each promise, runs as it stands."""

import re
from pathlib import Path

import pytest

import actors
from actors.errors import ActorError

DOCS = Path(__file__).parents[3] / "actors" / "docs"
PAGES = {page.stem: page.read_text() for page in sorted(DOCS.glob("[a-z]*.md"))}
TEXTS = {"guide": actors.__doc__} | PAGES
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
    index = (DOCS / "README.md").read_text()
    for name in PAGES:
        assert re.search(rf"^- \[`{name}`\]\({name}\.md\): ", index, re.MULTILINE)


def test_every_error_is_explained_on_some_page():
    pages = " ".join(PAGES.values())
    errors = {
        name
        for name in actors.__all__
        if isinstance(getattr(actors, name), type) and issubclass(getattr(actors, name), ActorError)
    }
    assert {name for name in errors - {"ActorError", "NameTaken"} if f"`{name}`" not in pages} == set()
