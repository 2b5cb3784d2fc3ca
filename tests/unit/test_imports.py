"""The arrows of the architecture, and that what is public is what `__all__` says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import agentflow

ROOT = Path(__file__).parents[2]


def test_arrows_point_one_way():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "agentflow",
        "agentflow.definition",
        "agentflow.engine",
        "agentflow.models",
        "agentflow.runtime",
        "agentflow.tools",
    ],
)
def test_all_names_what_there_is_and_is_sorted(name):
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None


# Page 002 §15.
GRAPH_ERRORS = (
    *("message_type_undeclared", "unknown_target", "routing_failed", "message_undelivered"),
    *("join_incomplete", "state_conflict", "executor_failed", "max_iterations_exceeded"),
    *("step_limit_exceeded", "pending_limit_exceeded", "message_limit_exceeded", "no_response_handler"),
    *("input_timeout", "unknown_speaker", "concurrency_rejected", "checkpoint_not_found"),
    *("graph_signature_mismatch", "invalid_edit"),
)


@pytest.mark.parametrize("code", GRAPH_ERRORS)
def test_each_error_of_graphs_is_an_exception_of_the_package(code: str):
    name = code.title().replace("_", "")
    assert name in agentflow.__all__
    assert issubclass(getattr(agentflow, name), agentflow.AgentflowError)
    assert getattr(agentflow, name).code == code


def test_the_package_imports_nothing_heavy_by_itself():
    heavy = ("httpx", "yaml", "jsonschema", "actors")
    code = f"import sys, agentflow; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=50)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_runtime_is_imported_without_what_a_run_or_a_log_record_needs():
    """daily-use: rich, through structlog, was 154 of 205 ms of CPU; actors and commands were 100 of 350, the
    engine 260 of 707 million instructions."""
    heavy = ("httpx", "yaml", "jsonschema", "jsonschema_rs", "structlog", "rich", "sqlite3")
    heavy += ("actors", "agentflow.engine", "agentflow.runtime.binding", "agentflow.definition.schemas")
    heavy += ("agentflow.judge", "referencing", "anyio", "tomllib", "tempfile")
    code = f"import sys; from agentflow import Runtime; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=50)
    assert done.stdout.strip() == "[]", done.stderr


def loaded_after(code: str) -> set[str]:
    """Return the packages of this project, two names deep, that a new process has imported after `code`."""
    code = f"import sys\n{code}\nprint(*sorted({{'.'.join(m.split('.')[:2]) for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=50)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["agentflow.client", "agentflow.records.read_model"])
def test_what_shows_runs_is_imported_without_what_carries_them_out(module: str):
    """engine, "The shape": the client loaded 193 modules, 40 of the runtime and 28 of the engine."""
    carries_out = {"actors", "agentflow.engine", "agentflow.runtime", "agentflow.models", "agentflow.tools"}
    assert not loaded_after(f"import {module}") & carries_out
