"""What the tests of the command line share: a model server, a sandbox of files, and both ways to call it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner, Result

from agentflow.cli import app

ROOT = Path(__file__).parents[3]
DOCUMENTS = ROOT / "tests/conformance/documents"

ECHO = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: greet
      agent:
        systemPrompt: Greet the person.
        input: ${{ inputs.name }}
        attachedFunctions: none
        resultSchema: {type: string}
"""


def user_text(body: dict[str, Any]) -> str:
    """The last message of a request."""
    return body["messages"][-1]["content"]


def echo(body: dict[str, Any]) -> Any:
    return f"hello {user_text(body)}"


class Refusal(NamedTuple):
    """A refusal with headers of its own."""

    status: int
    headers: dict[str, str]


class ModelServer:
    """An OpenAI-compatible server on 127.0.0.1. `answer` maps the request to the text of the answer, to
    `{"call": NAME, "arguments": {…}}`, to an int, the status of a refusal, or to a Refusal; it may block."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any] = echo) -> None:
        self.arrived: queue.Queue[dict[str, Any]] = queue.Queue()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.arrived.put(body)
                answered = answer(body)
                status, data = _response(answered)
                self.send_response(status)
                for name, value in answered.headers.items() if isinstance(answered, Refusal) else ():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the client went away, as some tests want it to

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _response(answer: Any) -> tuple[int, bytes]:
    if isinstance(answer, Refusal):
        answer = answer.status
    if isinstance(answer, int):
        return answer, json.dumps({"error": {"message": "refused", "type": "test"}}).encode()
    message: dict[str, Any] = {"role": "assistant", "content": answer}
    if isinstance(answer, dict):
        function = {"name": answer["call"], "arguments": json.dumps(answer["arguments"])}
        message = {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        }
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    return 200, json.dumps({"id": "r", "model": "m", "choices": [choice], "usage": usage}).encode()


class Sandbox:
    """A folder that is home, data and working directory at once, and the environment that says so."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[Any]] = []
        self.database = folder / "data/agentflow/agentflow.db"
        self.env = {
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TZ": "UTC",
            # The processes of one test session compile the product once, whatever the caller's setting is.
            "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
            **env,
        }

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def invoke(
        self, *args: str, input: str | bytes | None = None, env: Mapping[str, str] | None = None
    ) -> Result:
        """In this process; the working directory must be the folder already."""
        cleared = {name: None for name in os.environ if name.startswith(("AGENTFLOW_", "OPENAI_"))}
        known = {**cleared, **self.env, **(env or {})}
        return CliRunner().invoke(app, list(args), env=known, input=input, prog_name="agentflow")

    def start(self, *args: str, env: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[Any]:
        """In a process of its own, with pipes."""
        streams = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "text": True,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "agentflow", *args],
            cwd=self.folder,
            env={**self.env, **(env or {})},
            **{**streams, **more},
        )
        self._started.append(process)
        return process

    def call(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        process = self.start(*args, env=env)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def close(self) -> None:
        """End the processes that a failed test has left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
