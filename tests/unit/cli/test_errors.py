"""Every expected error: its exit code and its words on stderr, without a traceback."""

from __future__ import annotations

import click
import pytest

from agentflow import errors
from agentflow.cli.errors import CommandError, Exit, exit_of_diagnostics, exit_of_state, report
from agentflow.definition.diagnostics import Diagnostic
from agentflow.models import ModelResolutionError


def diagnostic(code: str, severity: str = "error") -> Diagnostic:
    return Diagnostic(code=code, severity=severity, message="m", file="f.yaml", line=1, column=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "code", "first"),
    [
        (errors.RunNotFound("no run wf_x"), 4, "error workflow_not_found: no run wf_x"),
        (errors.RunExists("wf_x exists"), 5, "error run_exists: wf_x exists"),
        (errors.RunTerminal("wf_x has ended"), 5, "error run_terminal: wf_x has ended"),
        (errors.Fenced("owned"), 5, "error fenced: owned"),
        (errors.OffsetConflict("wf_x", 1, 2), 5, "error offset_mismatch: wf_x: expected"),
        (errors.StoreError("disk full"), 74, "error storage_unavailable: disk full"),
        (errors.LogClosed("stopped"), 74, "error storage_unavailable: stopped"),
        (errors.LogCorrupt("bad bytes"), 74, "error log_corrupt: bad bytes"),
        (errors.ConfigurationError("no"), 78, "error configuration: no"),
        (ModelResolutionError("no model"), 78, "error E_UNKNOWN_MODEL: no model"),
        (errors.AgentflowError("lost"), 1, "error agentflow_error: lost"),
        (errors.DefinitionError([diagnostic("E_CYCLE")]), 3, "f.yaml:1:2: error E_CYCLE: m"),
        (errors.DefinitionError([diagnostic("E_UNKNOWN_MODEL")]), 78, "f.yaml:1:2: error E_UNKNOWN_MODEL: m"),
        (click.BadParameter("odd", param_hint="--x"), 2, "error usage: Invalid value for --x: odd"),
        (click.FileError("f", "gone"), 2, "error usage: Could not open file 'f': gone"),
        (CommandError(Exit.NOT_FOUND, "unknown_request", "none"), 4, "error unknown_request: none"),
        (ZeroDivisionError("oops"), 1, "error internal_error: ZeroDivisionError: oops"),
    ],
)
def test_exit_codes_and_messages(error: Exception, code: int, first: str, capsys: pytest.CaptureFixture[str]):
    assert report(error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(first)
    assert "Traceback" not in shown.err


def test_the_hint_of_the_error_wins(capsys: pytest.CaptureFixture[str]):
    report(errors.RunNotFound("no run", hint="look there"))
    report(errors.RunNotFound("no run"))
    hints = [line for line in capsys.readouterr().err.splitlines() if "hint" in line]
    assert hints == ["  hint: look there", "  hint: `agentflow list` shows the runs of the store"]


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]):
    try:
        raise errors.StoreError("disk full")
    except errors.StoreError as error:
        report(error, debug=True)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], 0),
        ([diagnostic("W_X", "warning")], 0),
        ([diagnostic("E_X"), diagnostic("W_X", "warning")], 3),
        ([diagnostic("E_UNKNOWN_MODEL"), diagnostic("W_X", "warning")], 78),
        ([diagnostic("E_UNKNOWN_MODEL"), diagnostic("E_INPUT_MISSING")], 3),
    ],
)
def test_diagnostics_decide(found: list[Diagnostic], code: int):
    assert exit_of_diagnostics(found) == code


def test_states_decide():
    codes = {"completed": 0, "failed": 1, "cancelled": 8, "waiting": 9, "paused": 9}
    assert {state: int(exit_of_state(state)) for state in codes} == codes
