"""Runtime and Client, and their handles, have the same public methods with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agentflow import Client, RunHandle, Runtime, SyncClient
from agentflow.client import RemoteRun
from agentflow.client.sync import SyncRun

NOT_ON_THE_CLIENT = {
    "load": "reads a document in this process; the daemon does it within `submit` and `validate`",
    "bind": "resolves models and functions of this process",
    "recover": "a daemon recovers its store when it starts",
    "fold": "the engine's own state, which only a process with the store has; `state` gives it as data",
    "rows": "rows of the store's index; `summaries` gives them as records",
    "log": "the open store",
    "fork_graph": "takes a graph with the Python code of this process",
    "fork_source": "as `fork_graph`",
    "system": "the actor system of this process",
    "result_of_run": "for handles of this process",
    "rest_of_run": "for handles of this process",
    "find_repeat": "for what makes submissions of callers' words in this process, such as requests",
    "inject": "takes executors and handlers of this process for one run",
    "new_projection": "for who follows a run event by event in this process, such as the state file",
    "project": "as `new_projection`",
    "register": "takes Python code of this process, or names a graph for its subgraphs",
}
NOT_ON_THE_RUNTIME = {
    "url": "where the daemon is",
    "health": "about the daemon",
    "version": "about the daemon",
    "session_code": "for a link to the daemon's page",
    "drain": "ends the daemon; a Runtime ends with `async with`",
    "gc": "carries the daemon's retention policy out; a Runtime has none",
    "request": "a Runtime's are taken by `agentflow.pipeline.requests.Requests`, which stands above it",
    "classify": "as `request`",
    "toolsets": "as `request`",
    "templates": "as `request`",
    "run_template": "as `request`",
    "event_lines": "bytes as they come over HTTP; a Runtime's are those of its log",
}
PARAMETERS_OF_THE_RUNTIME = {
    "by": "the daemon knows who asks, by the token",
    "via": "the daemon knows by which way a decision came",
    "asked": "the daemon tells repeats of requests by their bodies",
    "code": "executors and handlers of this process",
    "trusted": "the daemon decides about trust, by the token",
}
NOT_ON_A_SYNC_CLIENT = {"client": "the client that it drives", "wait": "runs a coroutine in its loop"}
NOT_ABOUT_ONE_RUN = {
    *("submit", "run", "validate", "attach", "list", "records", "summaries", "tools", "blob", "resume_all"),
    *NOT_ON_THE_CLIENT,
    *NOT_ON_THE_RUNTIME,
} - {"event_lines"}
ATTRIBUTES_OF_A_HANDLE = {
    "typed": "gives the handle an output type; `attach` of the Runtime takes it as an argument",
}


_OVERLOADED = {"output_type": "overloaded in handles"}
_HERE, _THERE = " | WorkflowWithCode", " | RegisteredDefinition"


def methods(owner: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(owner) if not name.startswith("_")}


def parameters(method: Any, *, first: int = 1, without: Any = ()) -> list[tuple[str, Any, Any, str]]:
    """Name, kind, default and annotation of each parameter behind the first ones.

    Workflows with Python code are taken by the Runtime alone: a client has no way to send the code. The names
    of definitions that the daemon has are taken by the client alone. `output_type` is overloaded in handles,
    which have a type of their own.
    """
    found = list(inspect.signature(method).parameters.values())[first:]
    return [
        (
            p.name,
            p.kind,
            p.default,
            _OVERLOADED.get(p.name) or str(p.annotation).removesuffix(_HERE).removesuffix(_THERE),
        )
        for p in found
        if p.name not in without
    ]


def test_runtime_and_client_have_the_same_methods():
    here, there = methods(Runtime), methods(Client)
    assert here.keys() - there.keys() == set(NOT_ON_THE_CLIENT)
    assert there.keys() - here.keys() == set(NOT_ON_THE_RUNTIME)


@pytest.mark.parametrize("name", sorted(methods(Runtime).keys() & methods(Client).keys()))
def test_runtime_and_client_take_the_same_arguments(name: str):
    here = parameters(getattr(Runtime, name), without=PARAMETERS_OF_THE_RUNTIME)
    assert here == parameters(getattr(Client, name))


@pytest.mark.parametrize(
    ("handle", "home"), [(RunHandle, Runtime), (RemoteRun, Client), (SyncRun, SyncClient)]
)
def test_a_handle_has_the_methods_about_one_run(handle: type, home: type):
    about_one = methods(home).keys() - NOT_ABOUT_ONE_RUN - NOT_ON_A_SYNC_CLIENT.keys()
    assert methods(handle).keys() - ATTRIBUTES_OF_A_HANDLE.keys() == about_one
    for name in about_one:
        without_id = parameters(getattr(home, name), first=2)
        assert parameters(getattr(handle, name)) == without_id, name


def test_the_blocking_client_has_the_methods_of_the_client():
    blocking, client = methods(SyncClient), methods(Client)
    assert blocking.keys() - NOT_ON_A_SYNC_CLIENT.keys() == client.keys()
    for name in client.keys() - {"url"}:
        assert parameters(blocking[name]) == parameters(client[name]), name
