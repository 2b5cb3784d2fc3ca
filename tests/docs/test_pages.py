"""The README and the pages are executed: documents load, programs run, commands end and print as shown."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow.cli.app import app
from agentflow.docs import TOPICS
from agentflow.docs.codes import DIAGNOSTICS
from agentflow.models.local.weights import models_folder
from tests.docs.blocks import PAGES, README, ROOT, TAGS, read_blocks, read_source
from tests.docs.obedient_model import answer
from tests.docs.runner import PageRunner, assert_output
from tests.docs.tutorial import INSTALLS
from tests.unit.cli.support import ModelServer, Sandbox
from tests.unit.models.local_model import environment

LANGUAGES = {"sh", "python", "yaml", "toml", "json", "text", "mermaid", "ini"}


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
            "PYTEST_PLUGINS": "agentflow.testing.plugin",
            "XDG_RUNTIME_DIR": str(folder),
        }
        yield made
    made.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_does_what_the_page_says(page: str, sandbox: Sandbox):
    runner = PageRunner(sandbox)
    try:
        for block in read_blocks(page):
            try:
                runner.run(block)
            except Exception as error:
                raise AssertionError(f"{page}, block in line {block.line}: {error}") from error
        assert [b.line for b in runner.executed] == [b.line for b in read_blocks(page) if b.tag != "not-run"]
    finally:
        runner.close()


def test_every_block_of_the_tutorial_runs_but_the_installation():
    """That is run by `python -m tests.docs.tutorial`, in a fresh environment."""
    assert tuple(b.body for b in read_blocks("tutorial") if b.tag == "not-run") == INSTALLS


@pytest.mark.local_model
@pytest.mark.timeout(240)
def test_the_tutorial_runs_with_the_embedded_model(tmp_path: Path):
    """Every command is a process of its own, as a reader starts it."""
    env = environment(tmp_path / "installed")
    sandbox = Sandbox(tmp_path, AGENTFLOW_MODEL="local:smollm2-135m", XDG_RUNTIME_DIR=str(tmp_path))
    models = tmp_path / "data/agentflow/models"
    models.parent.mkdir(parents=True)
    models.symlink_to(models_folder(env))
    runner = PageRunner(sandbox, separate=True)
    try:
        for block in read_blocks("tutorial"):
            runner.run(block)
    finally:
        runner.close()
        sandbox.close()


def test_the_pages_are_in_the_distribution():
    """Each page is package data; a folder of sources has them anyway."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = table["tool"]["setuptools"]["package-data"]["agentflow.docs"]
    packed = {path.name for pattern in patterns for path in (ROOT / "agentflow/docs").glob(pattern)}
    assert packed == {f"{topic}.md" for topic in TOPICS}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", read_source(page)):
        folder = ROOT if page == README else ROOT / "agentflow/docs"
        assert (folder / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_topics_that_a_page_names_exist(page: str):
    """`agentflow help X` names a topic, a command or a code."""
    known = {*TOPICS, *app.list_commands(None), *DIAGNOSTICS, "TOPIC", "CODE"}  # type: ignore[arg-type]
    assert set(re.findall(r"agentflow help ([A-Za-z_-]+)", read_source(page))) <= known


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
