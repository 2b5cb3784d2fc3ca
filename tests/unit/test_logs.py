"""Logs never reach stdout; a library stays silent until its user configures logging."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import logs

ROOT = Path(__file__).parents[2]


def run(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_without_configuration_information_is_silent():
    out, err = run("from agentflow.logs import get_logger; get_logger('agentflow.x').info('ready', pid=1)")
    assert (out, err) == ("", "")


def test_configured_logs_are_json_lines_on_stderr():
    out, err = run(
        "from agentflow import logs; logs.configure('info');"
        "logs.get_logger('agentflow.x').info('ready', pid=1)"
    )
    assert out == ""
    line = json.loads(err)
    assert (line["event"], line["pid"], line["level"], line["logger"]) == ("ready", 1, "info", "agentflow.x")


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        logs.configure("loud")
