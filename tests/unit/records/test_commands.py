"""Each command is the same everywhere: every surface has what the table says, with the same members."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click
import msgspec
import pytest
import yaml

from agentflow import Client, RunHandle, Runtime, SyncClient
from agentflow.cli.app import app
from agentflow.client import RemoteRun
from agentflow.client.sync import SyncRun
from agentflow.events.catalogue import TYPES
from agentflow.records.commands import COMMANDS, Command, CommandBody
from agentflow.runtime import command_messages
from agentflow.server.app import described
from agentflow.server.routes.commands import OPERATIONS
from tests.unit.server.kit import APPROVAL, echo

ABOUT_ONE = [command for command in COMMANDS.values() if "{id}" in command.path]
KNOWN_TO_THE_DAEMON = {"by", "trusted", "via"}
IN_THE_PATH = {"workflow_id", "request_id"}
OF_A_DEFINITION = {"fork": {"definition_ref", "format", "file", "folder"}}
"""Members that say on the wire which `definition` is meant."""
OF_NEW_RUNS = {"fork", "replay", "resume_all"}
"""Commands that no supervisor is told."""
OWN_OPTIONS = {"detach", "json", "debug", "url", "store", "local", "load", "help"}
OPTIONS = {
    "edit": "edits",
    "plan edit": "plan",
    "hard": "mode",  # two values: a flag
    "from": "from_step",
    "id": "as_id",
    "all": "reason",  # `resume --all --reason R` is `resume_all`
}


def members(command: Command) -> set[str]:
    return set(command.body.__struct_fields__) - OF_A_DEFINITION.get(command.name, set())


def each(commands: Any) -> Any:
    return pytest.mark.parametrize("command", [pytest.param(c, id=c.name) for c in commands])


@each(COMMANDS.values())
def test_runtime_and_clients_have_its_method_with_its_members(command: Command):
    for home in (Runtime, Client, SyncClient):
        taken = set(inspect.signature(getattr(home, command.name)).parameters)
        own = taken - {"self"} - (IN_THE_PATH if "request_id" in command.path else {"workflow_id"})
        assert own - KNOWN_TO_THE_DAEMON == members(command), home
        if home is Runtime:
            assert ("trusted" in taken) == command.checks_trust
            assert "by" in taken
            assert ("via" in taken) == command.has_via
        else:
            assert not taken & KNOWN_TO_THE_DAEMON


@each(ABOUT_ONE)
def test_handles_have_its_method_with_its_members(command: Command):
    for handle in (RunHandle, RemoteRun, SyncRun):
        taken = set(inspect.signature(getattr(handle, command.name)).parameters)
        assert taken - {"self", "request_id"} - KNOWN_TO_THE_DAEMON == members(command) - {"request_id"}


@each(COMMANDS.values())
def test_it_has_one_route_and_the_document_describes_it(command: Command):
    (operation,) = [o for o in OPERATIONS if o.name == command.operation]
    assert (operation.method, operation.path, operation.body) == (
        command.method,
        f"/{command.path}",
        command.body,
    )
    document = json.loads(described())
    told = document["paths"][operation.path][operation.method.lower()]
    assert (told["operationId"], told["summary"]) == (command.operation, command.summary)
    assert {int(s) for s in told["responses"] if s.startswith("2")} == set(command.statuses)
    schema = document["components"]["schemas"][command.body.__name__]
    assert set(schema["properties"]) == set(command.body.__struct_encode_fields__)
    assert schema["additionalProperties"] is False


@each(c for c in COMMANDS.values() if c.name not in OF_NEW_RUNS)
def test_one_message_tells_the_supervisor_its_members(command: Command):
    (message,) = [m for m in command_messages.Command.__subclasses__() if issubclass(m, command.body)]
    told = set(message.__struct_fields__)
    assert "by" in told
    assert ("via" in told) == command.has_via


@each(COMMANDS.values())
def test_its_verbs_take_nothing_that_it_does_not_have(command: Command):
    context = click.Context(app)
    for verb in command.verbs:
        found = app.get_command(context, verb)
        assert found is not None
        options = [p for p in found.params if isinstance(p, click.Option)]
        names = {option.opts[0].removeprefix("--") for option in options}
        known = {name: OPTIONS.get(name, name.replace("-", "_")) for name in names - OWN_OPTIONS}
        taken = {OPTIONS.get(f"{verb} {name}", found) for name, found in known.items()}
        assert taken <= members(command), verb


def test_the_table_names_events_of_the_catalogue():
    for command in COMMANDS.values():
        assert command.events
        assert all(TYPES[event.EVENT_TYPE] is event for event in command.events)


SAID: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "cancel": [({"mode": "hard", "grace": 2.5, "reason": None}, {"mode": "hard", "grace_s": 2.5})],
    "decide": [
        (
            {"granted": True, "request_id": "req_1", "step_id": None},
            {"decision": "grant", "request_id": "req_1"},
        ),
        ({"granted": False, "claimed_actor": "ann"}, {"decision": "deny", "actor": "ann"}),
    ],
    "fork": [
        ({"from_failure": True, "as_id": "wf_b"}, {"from": "failure", "workflow_id": "wf_b"}),
        ({"from_failure": False, "offset": 3}, {"offset": 3}),
    ],
    "replay": [
        ({"policy": "Always", "input": None, "as_id": "wf_b"}, {"policy": "Always", "workflow_id": "wf_b"}),
        ({"policy": "Mixed", "input": {"x": 1}}, {"policy": "Mixed", "input": {"x": 1}}),
    ],
    "signal": [({"name": "go", "data": None, "signal_id": None}, {"name": "go"})],
}


@pytest.mark.parametrize(
    ("name", "arguments", "sent"), [(name, *case) for name, cases in SAID.items() for case in cases]
)
def test_what_is_sent_is_what_is_called(name: str, arguments: dict[str, Any], sent: dict[str, Any]):
    command = COMMANDS[name]
    assert command.on_the_wire(**arguments) == sent
    body: CommandBody = msgspec.json.decode(msgspec.json.encode(sent), type=command.body)
    called = body.arguments()
    assert {name: called[name] for name in arguments} == arguments


async def test_the_first_event_of_a_command_is_one_of_the_table():
    async with Runtime(models=[echo()]) as runtime:
        for run in ("wf_a", "wf_b"):
            await (await runtime.submit(yaml.safe_load(APPROVAL), workflow_id=run)).rest()

        async def told(name: str, run: str, *arguments: Any, **more: Any) -> None:
            last = await runtime.log.last(run)
            handle = await getattr(runtime, name)(run, *arguments, **more)
            led_to = handle.workflow_id
            rows = await runtime.log.read(led_to, last + 1 if led_to == run else 0, 1)
            assert rows[0].type in {event.EVENT_TYPE for event in COMMANDS[name].events}

        await told("signal", "wf_a", "go")
        await told("pause", "wf_a")
        await told("resume", "wf_a")
        await told("decide", "wf_a", granted=True, step_id="ask")
        await runtime.result("wf_a")
        await told("fork", "wf_a", offset=0, as_id="wf_c")
        await told("cancel", "wf_c")
        await told("replay", "wf_a", "Always", as_id="wf_d")
        (asked,) = await runtime.requests("wf_b")
        await told("withdraw", "wf_b", asked.request_id, "no longer needed")
