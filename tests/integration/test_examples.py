"""The pattern examples: each checks without a word, and its program prints what its README shows."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Runtime, check_file
from agentflow.testing import ScriptedModel
from examples.judge_loop import loop
from examples.patterns import demo as patterns
from examples.refinement import demo as refinement

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = [
    "refinement/demo.py",
    "judge_loop/loop.py",
    "patterns/demo.py",
    "graphs/demo.py",
    "node_graphs/demo.py",
    "requests/review.py",
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "offline:scripted")


def printed(program: str, *arguments: str, cwd: Path = ROOT) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTFLOW_", "OPENAI_"))}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


WORKFLOWS = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.parent.name != "evals"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_document_has_no_problem(file: Path):
    assert check_file(file, strict=True) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_what_its_readme_shows(program: str):
    readme = (EXAMPLES / program).parent / "README.md"
    (shown,) = [text for kind, text in FENCE.findall(readme.read_text(encoding="utf-8")) if not kind]
    assert printed(program) == shown


def test_every_readme_names_every_file():
    for program in PROGRAMS:
        folder = (EXAMPLES / program).parent
        text = (folder / "README.md").read_text(encoding="utf-8")
        for file in folder.iterdir():
            if file.suffix in (".yaml", ".py"):
                assert f"`{file.name}`" in text or file.name in text, file


async def test_a_text_without_problems_is_left_as_it_is():
    async with Runtime(models=[refinement.offline()]) as runtime:
        draft = await runtime.run(EXAMPLES / "refinement/draft.yaml", {"topic": "x"})
        shouting = {"workflow_id": draft.workflow_id, "step_id": "write", "as": "draft"}
        refined = await runtime.run(EXAMPLES / "refinement/refine.yaml", {}, input_from=shouting)
        assert refined.output["after"] == "We have x."
        again = {"draft": {"text": refined.output["after"]}}
        last = await runtime.run(EXAMPLES / "refinement/refine.yaml", again)
    assert last.output == {"before": "We have x.", "after": "We have x."}
    assert last.steps["rewrite"].state == "skipped"


async def test_the_loop_ends_when_its_rounds_are_used_up():
    async with Runtime(models=[loop.offline()]) as runtime:
        verdicts = await loop.improved(runtime, loop.TASK, name="two", rounds=2)
        rows = (await runtime.log.runs(label=("loop", "two"))).items
    assert [v["approved"] for v in verdicts] == [False, False]
    assert sorted(row.workflow_id for row in rows) == [
        "wf_two_1_judge",
        "wf_two_1_write",
        "wf_two_2_judge",
        "wf_two_2_write",
    ]


@pytest.mark.parametrize("cut_after", [1, 3, 4])
async def test_the_loop_goes_on_where_it_was_and_asks_for_nothing_twice(tmp_path: Path, cut_after: int):
    store = f"sqlite:{tmp_path / 'loop.db'}"
    first = loop.offline()
    complete, stopped = first.complete, asyncio.Event()

    async def until_it_stops(request, **more):
        if len(first.requests) == cut_after:
            stopped.set()
            await asyncio.Event().wait()
        return await complete(request, **more)

    first.complete = until_it_stops  # type: ignore[method-assign]
    async with Runtime(store, models=[first], grace=0.1) as runtime:
        working = asyncio.create_task(loop.improved(runtime, loop.TASK, name="slogan", rounds=5))
        await stopped.wait()
        working.cancel()
    second = loop.offline()
    async with Runtime(store, models=[second]) as runtime:
        verdicts = await loop.improved(runtime, loop.TASK, name="slogan", rounds=5)
    assert [v["approved"] for v in verdicts] == [False, False, True]
    assert cut_after + len(second.requests) == 6


def test_a_finished_loop_costs_nothing(tmp_path: Path):
    store = f"sqlite:{tmp_path / 'loop.db'}"
    first, second = (printed("judge_loop/loop.py", "--store", store) for _ in range(2))
    assert first.endswith("6 model calls\n")
    assert second == first.replace("6 model calls", "0 model calls")


async def test_the_newswire_answers_when_it_is_up():
    model = ScriptedModel(name="offline")
    model.add(["Rain."], when="the newswire")
    model.add(["Founded."], when="the archive")
    model.add(patterns.said, when="Put the answers together")
    async with Runtime(models=[model]) as runtime:
        result = await runtime.run(EXAMPLES / "patterns/parallel.yaml", {"question": "q"})
    assert result.output == {
        "answer": '{"archive":"Founded.","news":"Rain.","trouble":null}',
        "newswire": "success",
    }
    assert result.steps["yesterday"].state == "skipped"
