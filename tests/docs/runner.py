"""Executes the blocks of one page in a folder of their own, in their order."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentflow import check_file
from agentflow.config import load_config
from agentflow.pipeline.templates import read_template
from tests.docs.blocks import Block
from tests.unit.cli.support import Sandbox

_EXIT = re.compile(r"\s+# exit code (\d+)\b.*$")
_COMMENT = re.compile(r"\s+# .*$")
_IN_SHELL = re.compile(r"[|<>&;$`]|^[A-Z_]+=")
_LIMIT_S = 120.0
_PORTS = ("8700", "8711")  # of the pages; the tests put free ports in their places
_READY = ("agentflow serves", "is open")  # what servers of the pages print when they listen


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class PageRunner:
    """A sandbox for a page. `separate`: each command is a process of `python`; else most run here, which is
    quicker. `tell` takes each command line and what it printed."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        separate: bool = False,
        python: str = sys.executable,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._python = python
        self._tell = tell
        self.executed: list[Block] = []
        self._sandbox = sandbox
        self._separate = separate
        self._background: list[subprocess.Popen[Any]] = []
        self._printed = ""
        self._ports = {name: _free_port() for name in _PORTS}
        tools = sandbox.folder / "bin"
        tools.mkdir()
        # The shell finds the commands that the page names, wherever the tests run.
        for name, words in (("agentflow", "-m agentflow"), ("python", "")):
            script = tools / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} {words} "$@"\n')
            script.chmod(0o755)
        sandbox.env["PATH"] = f"{tools}:{sandbox.env['PATH']}"

    def run(self, block: Block) -> None:
        """Execute a block; an AssertionError tells what went wrong."""
        if block.tag == "not-run":
            return
        self.executed.append(block)
        for shown, free in self._ports.items():
            block = block._replace(body=block.body.replace(shown, free))
        if block.tag == "output":
            assert_output(self._printed, block.body)
            return
        if block.file is not None:
            self._sandbox.write(block.file, block.body)
        getattr(self, f"_run_{block.language}")(block)

    def close(self) -> None:
        """End the processes that the page left in the background."""
        for process in self._background:
            process.terminate()
        for process in self._background:
            process.communicate(timeout=_LIMIT_S)

    def _run_sh(self, block: Block) -> None:
        if block.file is not None:
            return
        self._printed = ""
        for line in block.body.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                self._run_line(line)

    def _run_line(self, line: str) -> None:
        expected = _EXIT.search(line)
        command = _COMMENT.sub("", _EXIT.sub("", line))
        if command.endswith(" &"):
            self._start(command.removesuffix(" &"))
            return
        first, pipe, rest = command.partition(" | ") if " > " not in command else command.partition(" > ")
        words = [] if _IN_SHELL.search(first) else shlex.split(first)
        if words[:1] == ["agentflow"] and not self._separate:
            done = self._sandbox.invoke(*words[1:])
            code, printed = done.exit_code, done.output
            if pipe and code == 0:
                # Starting agentflow takes a second; the shell gets what it has printed.
                shell = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", f"cat{pipe}{rest}"],
                    cwd=self._sandbox.folder,
                    env=self._sandbox.env,
                    input=done.stdout,
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=_LIMIT_S,
                )
                code, printed = shell.returncode, shell.stdout
        else:
            shell = subprocess.run(
                ["bash", "-c", command],
                cwd=self._sandbox.folder,
                env=self._sandbox.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
            )
            # bash replaces itself by its last command, whose signal a shell shows as 128 and its number.
            code, printed = shell.returncode, shell.stdout
            code = 128 - code if code < 0 else code
        assert code == int(expected[1] if expected else 0), f"{line}\nexit code {code}\n{printed}"
        self._printed += printed
        if self._tell is not None:
            self._tell(f"$ {line}\n{printed}")

    def _start(self, command: str) -> None:
        """Start a server and wait until it says that it listens."""
        words = shlex.split(command)
        words = [self._python, *(["-m", "agentflow"] if words[0] == "agentflow" else []), *words[1:]]
        process = subprocess.Popen(
            words,
            cwd=self._sandbox.folder,
            env=self._sandbox.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._background.append(process)
        assert process.stdout is not None
        told = ""
        while not any(word in told for word in _READY):
            line = process.stdout.readline()
            assert line, f"{command} ended: {told}"
            told += line

    def _run_yaml(self, block: Block) -> None:
        """Check a document. A part of one is checked within the smallest document that can hold it."""
        text = block.body
        if text.startswith("openapi:"):
            return  # the workflow that uses it reads it
        if block.file is not None and block.file.startswith("workflows/"):
            read_template(text, file=block.file)
            self._sandbox.write(block.file, text)
            return
        is_graph = re.search(r"^nodes:", text, re.MULTILINE) is not None
        if not is_graph and re.search(r"^(workflow|agents):", text, re.MULTILINE) is None:
            step = "{type: run, id: a, agent: {systemPrompt: p, input: i, attachedFunctions: none}}"
            text += f"workflow: {{steps: [{step}]}}\n"
        if not is_graph and not re.search(r"^(version|agents):", text, re.MULTILINE):
            text = 'version: "1.0"\n' + text
        path = Path(self._sandbox.write(block.file or f"block-{block.line}.yaml", text))
        assert [d for d in check_file(path) if d.severity == "error"] == []

    def _run_python(self, block: Block) -> None:
        if block.file is not None:
            compile(block.body, block.file, "exec")
            return
        done = subprocess.run(
            [self._python, "-W", "error", "-c", block.body],
            cwd=self._sandbox.folder,
            env=self._sandbox.env,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        self._printed = done.stdout

    def _run_toml(self, block: Block) -> None:
        if block.file is None:
            folder = self._sandbox.folder / f"block-{block.line}"
            folder.mkdir()
            (folder / "agentflow.toml").write_text(block.body)
            load_config(env=self._sandbox.env, folder=folder)
        else:
            tomllib.loads(block.body)

    def _run_json(self, block: Block) -> None:
        json.loads(block.body)


def assert_output(printed: str, shown: str) -> None:
    """Compare what was printed with what the page shows; `…` stands for any text within the line, a line
    that is `…` alone for any number of lines."""
    pattern = ""
    for line in shown.rstrip("\n").splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.split("…")) + "[ ]*\n"
    text = printed.rstrip("\n") + "\n"
    assert re.fullmatch(pattern, text), f"the page shows:\n{shown}\nprinted was:\n{text}"
