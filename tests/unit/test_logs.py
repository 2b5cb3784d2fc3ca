"""Logs never reach stdout, name their run and hold no secret; a library stays silent by itself."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import logs
from agentflow.errors import ConfigurationError
from agentflow.events.tracing import SpanContext, active

ROOT = Path(__file__).parents[2]
READY = "logs.get_logger('agentflow.x').info('ready', pid=1)"


def run(code: str, **env: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def written(capsys):
    """Gives what was logged, as objects; afterwards the loggers are as before."""
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("root", "agentflow", "actors")}
    logs.configure("debug")
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for handler in [h for h in root.handlers if type(h).__module__ == "agentflow.logs"]:
        root.removeHandler(handler)
    logging.captureWarnings(False)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_without_configuration_information_is_silent():
    out, err = run(f"from agentflow import logs; {READY}")
    assert (out, err) == ("", "")


def test_configured_logs_are_json_lines_on_stderr():
    out, err = run(f"from agentflow import logs; logs.configure('info'); {READY}")
    assert out == ""
    line = json.loads(err)
    assert (line["event"], line["pid"], line["level"], line["logger"]) == ("ready", 1, "info", "agentflow.x")


def test_the_environment_names_the_level():
    code = f"from agentflow import logs; logs.configure(); {READY}"
    assert run(code)[1] == ""
    assert json.loads(run(code, AGENTFLOW_LOG_LEVEL="INFO")[1])["event"] == "ready"


@pytest.mark.parametrize("level", ["loud", "trace"])
def test_an_unknown_level_is_refused(level):
    with pytest.raises(ConfigurationError, match="AGENTFLOW_LOG_LEVEL"):
        logs.configure(level)


def test_libraries_are_heard_through_it(written):
    logging.getLogger("some.library").warning("odd: %s", 7)
    logging.getLogger("some.library").debug("not this")
    logging.getLogger("actors").debug("but this")
    assert [(line["event"], line["logger"]) for line in written()] == [
        ("odd: 7", "some.library"),
        ("but this", "actors"),
    ]


def test_configuring_twice_writes_once(written):
    logs.configure("info")
    logs.get_logger("agentflow.x").info("once")
    assert len(written()) == 1


def test_a_record_written_inside_a_run_names_it(written):
    span = SpanContext("wf_1", "0af7" * 8, "b7ad" * 4)
    with active(span):
        logs.get_logger("agentflow.x").info("in")
        logging.getLogger("some.library").warning("in too")
    logs.get_logger("agentflow.x").info("out")
    assert [(line.get("workflow_id"), line.get("trace_id")) for line in written()] == [
        ("wf_1", "0af7" * 8),
        ("wf_1", "0af7" * 8),
        (None, None),
    ]


def test_what_the_record_says_itself_holds(written):
    with active(SpanContext("wf_1", "0af7" * 8, "b7ad" * 4)):
        logs.get_logger("agentflow.x").info("about another", workflow_id="wf_2")
    assert written()[0]["workflow_id"] == "wf_2"


def test_secrets_are_not_written(written):
    log = logs.get_logger("agentflow.x")
    log.info(
        "request",
        headers={"Authorization": "Bearer s3cr3t-value-1", "X-Api-Key": "s3cr3t", "Accept": "*/*"},
        token="s3cr3t",
        access_token="s3cr3t",
        url="https://user:s3cr3t@example.org/x",
        nested=[{"deep": {"password": "s3cr3t"}}],
        input_tokens=12,
    )
    log.warning("sent Authorization: Bearer s3cr3t-value-1 and api_key=s3cr3t")
    logging.getLogger("library").warning("cookie: s3cr3t")
    try:
        raise ValueError("Bearer s3cr3t-value-1")
    except ValueError:
        log.exception("failed")
    lines = written()
    assert len(lines) == 4
    assert "s3cr3t" not in json.dumps(lines)
    assert lines[0]["input_tokens"] == 12
    assert lines[0]["headers"]["Accept"] == "*/*"
    assert "ValueError" in lines[3]["exception"]


def test_what_cannot_be_json_is_written_all_the_same(written):
    logs.get_logger("agentflow.x").info("odd", value=object(), deep=[[[[[[[[[[object()]]]]]]]]]])
    assert written()[0]["value"].startswith("<object")


def test_a_terminal_gets_lines_for_people_without_local_variables():
    leader, follower = pty.openpty()
    code = (
        "from agentflow import logs; logs.configure('info'); log = logs.get_logger('agentflow.x')\n"
        "def fails():\n    key = 's3cr3t-local'; raise ValueError('no')\n"
        "try: fails()\nexcept ValueError: log.exception('failed', step='a')"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=follower, timeout=50, cwd=ROOT)
    os.close(follower)
    text = os.read(leader, 65536).decode()
    os.close(leader)
    assert done.returncode == 0
    assert "failed" in text
    assert "ValueError: no" in text
    assert "{" not in text.splitlines()[0]
    assert text.count("s3cr3t-local") == text.count("key = 's3cr3t-local'")  # the source line at most
