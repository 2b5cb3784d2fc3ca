"""Names of runs on the command line: prefixes, `@last` and its like, completion by the shell."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from agentflow import Runtime
from agentflow.cli import app
from agentflow.cli.names import resolve
from agentflow.cli.options import run_id, run_or_file
from agentflow.cli.target import Where, open_target
from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from tests.integration.support.runs import Desk, chain
from tests.unit.cli.support import ECHO, ModelServer, Sandbox

ASKED = ECHO.replace("id: greet", "id: greet\n      approval: {message: 'Greet ${{ inputs.name }}?'}")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    made.write("asked.yaml", ASKED)
    with ModelServer(lambda body: 401 if body["messages"][-1]["content"] == "bad" else "hello") as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield made
    made.close()


@pytest.fixture
def runs(sandbox: Sandbox) -> Sandbox:
    """wf_ant failed, wf_bee waits, wf_bear and wf_be are completed, in this order."""
    sandbox.invoke("run", "flow.yaml", "-i", "name=bad", "--id", "wf_ant")
    sandbox.invoke("run", "asked.yaml", "-i", "name=A", "--id", "wf_bee")
    for name in ("wf_bear", "wf_be"):
        assert sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", name).exit_code == 0
    return sandbox


def test_each_name_finds_its_run(runs: Sandbox):
    names = {"wf_a": "ant", "a": "ant", "wf_bea": "bear", "bee": "bee", "@last": "be"}
    names |= {"@failed": "ant", "@waiting": "bee", "wf_be": "be", "be": "be"}
    for name, found in names.items():
        shown = runs.invoke("show", name)
        assert shown.stdout.startswith(f"run        wf_{found}\n"), (name, shown.stderr)


def test_an_ambiguous_prefix_lists_the_candidates(runs: Sandbox):
    refused = runs.invoke("show", "b")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error ambiguous_id: several runs begin with wf_b\n")
    assert [line.split()[:2] for line in refused.stderr.splitlines()[2:]] == [
        ["wf_be", "completed"],
        ["wf_bear", "completed"],
        ["wf_bee", "waiting"],
    ]


def test_a_name_that_fits_no_run_is_not_found(runs: Sandbox):
    assert runs.invoke("approve", "@waiting", "greet").exit_code == 0
    nothing = runs.invoke("show", "@waiting")
    assert (nothing.exit_code, "no run is waiting" in nothing.stderr) == (4, True)
    assert "no run wf_zoo" in runs.invoke("show", "zoo").stderr
    unknown = runs.invoke("show", "@newest")
    assert (unknown.exit_code, "@last, @failed, @waiting" in unknown.stderr) == (2, True)


VERBS = [
    ("show", "be"),
    ("events", "@last"),
    ("log", "@last"),
    ("state", "be", "greet"),
    ("context", "be", "greet"),
    ("history", "@last"),
    ("graph", "wf_bea"),
    ("graph", "@last"),
    ("fork", "bea", "--from", "greet"),
    ("run", "flow.yaml", "--input-from", "bea:greet", "--as", "name"),
    ("expr", "steps.greet.status", "--run", "bea"),
    ("trace", "@last"),
    ("timeline", "be"),
    ("checkpoints", "be"),
    ("replay", "bea"),
    ("diff", "be", "bea"),
    ("signal", "bee", "paid"),
    ("cancel", "bee"),
    ("rm", "@failed"),
]


def test_every_verb_takes_a_name(runs: Sandbox):
    for words in VERBS:
        done = runs.invoke(*words)
        assert done.exit_code == 0, (words, done.stderr)


def parameters() -> list[tuple[str, click.Parameter]]:
    """Return each parameter of each verb that moves or shows runs."""
    found: list[tuple[str, click.Parameter]] = []
    context = click.Context(app)
    for name in app.list_commands(context):
        verb = app.get_command(context, name)
        assert verb is not None
        found += [(name, parameter) for parameter in verb.params]
    return found


def test_every_argument_that_names_a_run_takes_a_prefix():
    """Beside these, `graph FILE|ID` and `run --input-from ID:STEP` resolve the name themselves: VERBS."""
    ids = [(verb, p) for verb, p in parameters() if p.name in ("id", "a", "b", "run_id") or p.metavar == "ID"]
    others = {(verb, p.name) for verb, p in ids if not isinstance(p.type, type(run_id) | type(run_or_file))}
    assert others == {("run", "workflow_id")}  # a new id
    assert len(ids) > 20


def test_every_argument_that_names_a_step_or_request_is_completed():
    named = {(verb, p.name) for verb, p in parameters() if p.name in ("step", "request", "what")}
    assert {verb for verb, _ in named} >= {"retry", "approve", "deny", "answer", "fork", "state", "context"}
    completed = {(verb, p.name) for verb, p in parameters() if getattr(p, "_custom_shell_complete", None)}
    assert named <= completed


def test_a_new_id_is_taken_as_it_is(runs: Sandbox):
    made = runs.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_bea")
    assert "wf_bea completed" in made.stderr
    assert runs.invoke("run", "flow.yaml", "-i", "name=A", "--id", "bea").exit_code == 2


COMPLETIONS = {
    "agentflow show wf_be": ["wf_be", "wf_bear", "wf_bee"],
    "agentflow show @": ["@last", "@failed", "@waiting"],
    "agentflow retry wf_bee g": ["greet"],
    "agentflow fork wf_bee --from g": ["greet"],
    "agentflow trace wf_an": ["wf_ant"],
    "agentflow context nothing g": [],
}


def completed(sandbox: Sandbox, line: str) -> list[str]:
    """Return what the shell is offered at the end of the line."""
    env = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    asked = sandbox.invoke(env={"_AGENTFLOW_COMPLETE": "bash_complete", **env})
    assert asked.stderr == ""
    return [row.partition(",")[2] for row in asked.stdout.splitlines() if row]


def test_the_shell_completes_runs_steps_and_requests(runs: Sandbox):
    found = {line: completed(runs, line) for line in COMPLETIONS}
    assert found == COMPLETIONS
    assert [part[:4] for part in completed(runs, "agentflow approve wf_bee req")] == ["req_"]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store of 10,000 runs, wf_00000x to wf_09999x."""
    url = f"sqlite:{tmp_path_factory.mktemp('many') / 'many.db'}"

    async def fill() -> None:
        async with Runtime(services=[Desk().service()]) as runtime:
            handle = await runtime.submit(chain("look"), {}, workflow_id="wf_original")
            await handle.result()
            (last,) = await runtime.log.read("wf_original", await runtime.log.last("wf_original"), 1)
        body = last.body.replace(b'"offset":%d,' % last.offset, b'"offset":0,')
        log = open_log(url)
        appended: list[Awaitable[Any]] = []
        for i in range(10_000):
            run_id = f"wf_{i:05d}x"
            event = StoredEvent(0, last.ts, last.type, body.replace(b"wf_original", run_id.encode()))
            meta = RunMeta(name="n", definition_hash="h", created_at=i)
            appended.append(log.append(Append(run_id, 1, 0, [event], "completed", meta)))
        await asyncio.gather(*appended)
        await log.close()

    asyncio.run(fill())
    return url


NAMES = {"04711": "wf_04711x", "wf_04711": "wf_04711x", "wf_04711x": "wf_04711x", "@last": "wf_09999x"}
_ROUNDS = 5


@pytest.mark.parametrize("name", NAMES)
def test_a_name_among_10_000_runs_costs_little(
    many: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """At most 50 ms of CPU over `list`, the best of five."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    where = Where(many, None, False)

    async def list_runs() -> None:
        log = open_log(many, read_only=True)
        assert len((await log.runs(limit=50)).items) == 50
        await log.close()

    def cost(work: Callable[[], object]) -> float:
        begins = [(time.process_time(), work(), time.process_time()) for _ in range(_ROUNDS)]
        return min(end - begin for begin, _, end in begins)

    assert resolve(where, name) == NAMES[name]
    assert cost(lambda: resolve(where, name)) - cost(lambda: asyncio.run(list_runs())) < 0.05


def test_a_daemon_resolves_a_name_among_10_000_runs_at_little_cost(many: str, sandbox: Sandbox):
    """At most 50 ms of CPU over `list`, of this process and the daemon together."""
    socket = sandbox.folder / "d.sock"
    daemon = sandbox.start("serve", "--socket", str(socket), "--store", many)
    where = Where(None, f"unix:{socket}", False)

    def spent() -> float:
        fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cost(work: Callable[[], object]) -> float:
        begin = spent()
        for _ in range(_ROUNDS * 2):
            work()
        return (spent() - begin) / (_ROUNDS * 2)

    async def list_runs() -> None:
        async with open_target(where) as target:
            assert len(await target.listed(limit=50)) == 50

    try:
        while sandbox.invoke("health", "--url", f"unix:{socket}").exit_code != 0:
            assert daemon.poll() is None
        remote = ("--url", f"unix:{socket}")
        assert '"workflow_id":"wf_09998x"' in sandbox.invoke("events", "09998", "--no-follow", *remote).stdout
        assert sandbox.invoke("show", "@waiting", *remote).exit_code == 4
        ambiguous = sandbox.invoke("show", "0999", *remote)
        assert (ambiguous.exit_code, ambiguous.stderr.count("completed")) == (2, 10)
        asyncio.run(list_runs())
        listed = cost(lambda: asyncio.run(list_runs()))
        for name, run_id in NAMES.items():
            assert resolve(where, name) == run_id
            assert cost(lambda name=name: resolve(where, name)) - listed < 0.05, name
        begun = sandbox.invoke("run", "asked.yaml", "-i", "name=A", "--id", "wf_bee", *remote)
        assert begun.exit_code == 9
        for name in ("@waiting", "@last", "be"):
            assert sandbox.invoke("show", name, *remote).stdout.startswith("run        wf_bee\n")
    finally:
        daemon.terminate()
        daemon.communicate(timeout=20)
