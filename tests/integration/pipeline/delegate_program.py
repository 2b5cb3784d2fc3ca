"""A delegate as a program of its own: `python delegate_program.py mcp|http FOLDER`.

It writes each task to FOLDER/tasks, and the file that a task asks for into the workspace. What it answers
stands in FOLDER/answers, by step, if it is anything else. Over HTTP it prints its port.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

folder = Path(sys.argv[2])


def work(task: dict[str, Any]) -> Any:
    with (folder / "tasks").open("a") as tasks:
        tasks.write(json.dumps(task) + "\n")
    special = folder / "answers" / f"{task['step_id']}-{task['attempt']}"
    if special.exists():
        found = json.loads(special.read_text())
        if "sleep" in found:
            time.sleep(found["sleep"])
        if "answer" in found:
            return found["answer"]
    for one in task["expected_artifacts"]:
        uri = one if isinstance(one, str) else one["uri"]
        if not uri.startswith("mailto:"):
            Path(task["workspace"], uri).write_text(f"{task['goal']}\n")
    result = {"step_id": task["step_id"], "status": "done", "output": "by a program", "error": None}
    usage = {"input_tokens": 100, "output_tokens": 20, "model_calls": 2, "cost_usd": 0.01}
    return {"status": "completed", "result": result, "usage": usage}


def over_mcp() -> None:
    from mcp.server.mcpserver import MCPServer

    app = MCPServer("crew")

    @app.tool()
    def delegate_task(task: dict[str, Any]) -> dict[str, Any]:
        found = work(task)
        return found if isinstance(found, dict) else {"results": [{"summary": found}]}

    app.run()


def over_http() -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, not (folder / "away").exists())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with (folder / "keys").open("a") as keys:
                keys.write(f"{self.headers['Idempotency-Key']}\n")
            found = work(body["task"])
            status = found.pop("http", 200) if isinstance(found, dict) else 200
            self._answer(status, found)

        def _answer(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    {"mcp": over_mcp, "http": over_http}[sys.argv[1]]()
