"""Every block of the README and of the pages is executed: documents load, programs run, commands end as shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, README, TAGS, read_blocks, read_source
from tests.docs.obedient_model import answer
from tests.docs.runner import PageRunner, assert_output
from tests.unit.cli.support import ModelServer, Sandbox

LANGUAGES = {"sh", "python", "yaml", "toml", "json", "text", "mermaid", "ini"}
PROCESSES = ("tutorial",)  # every command in a process of its own, as a reader would start it


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = Sandbox(folder)
    with ModelServer(answer) as server:
        made.env |= {
            "OPENAI_BASE_URL": server.url,
            "AGENTFLOW_MODEL": "openai:test",
            "COLUMNS": "100",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # loading those of the tests takes seconds
            "XDG_RUNTIME_DIR": str(folder),
        }
        yield made
    made.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_does_what_the_page_says(page: str, sandbox: Sandbox):
    runner = PageRunner(sandbox, separate=page in PROCESSES)
    try:
        for block in read_blocks(page):
            try:
                runner.run(block)
            except Exception as error:
                raise AssertionError(f"{page}, block in line {block.line}: {error}") from error
    finally:
        runner.close()


@pytest.mark.parametrize("page", PAGES)
def test_blocks_have_known_languages_and_tags(page: str):
    for block in read_blocks(page):
        assert block.language in LANGUAGES, (page, block.line)
        assert block.tag in TAGS, (page, block.line)
        assert block.language != "text" or block.tag, (page, block.line)
    assert read_source(page).count("\n```") == 2 * len(read_blocks(page))


def test_the_readme_has_at_most_150_lines():
    assert len(read_source(README).splitlines()) <= 150


@pytest.mark.parametrize(
    ("printed", "shown"), [("a\n", "b\n"), ("a\nb\n", "a\n"), ("a b c\n", "a … d\n"), ("a\n", "…\nb\n")]
)
def test_output_that_differs_is_noticed(printed: str, shown: str):
    with pytest.raises(AssertionError):
        assert_output(printed, shown)


@pytest.mark.parametrize(
    ("printed", "shown"), [("a\n", "a\n"), ("a 1 c\n", "a … c\n"), ("x\ny\nb\n", "…\nb\n"), ("b\n", "…\nb\n")]
)
def test_output_that_fits_is_accepted(printed: str, shown: str):
    assert_output(printed, shown)
