"""A pseudo-terminal with the command line on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import termios
from typing import Any

from tests.unit.cli.support import Sandbox

__all__ = ["Terminal", "plain"]


class Terminal:
    """A pseudo-terminal with a process on it; `text` is all that it showed."""

    def __init__(self, sandbox: Sandbox, *args: str, stdout: Any = None, **env: str) -> None:
        self.fd, other = pty.openpty()
        env = {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", **env}
        streams: dict[str, Any] = {"stdin": other, "stderr": other, "text": False, "start_new_session": True}
        streams["stdout"] = other if stdout is None else stdout
        # As its controlling terminal: a typed ^C interrupts the process.
        streams["preexec_fn"] = _take_terminal
        self.process = sandbox.start(*args, env=env, **streams)
        os.close(other)
        self.text = ""
        self._answered = 0

    def read(self, until: str | None = None) -> str:
        """Read up to a text, else up to the end of the process."""
        while until is None or until not in self.text[self._answered :]:
            ready, _, _ = select.select([self.fd], [], [], 30)
            assert ready, self.text
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # Linux's way to say that the other side is closed
                data = b""
            if not data:
                assert until is None, f"it ended without {until!r}: {self.text}"
                break
            self.text += data.decode()
        return self.text

    def answer(self, prompt: str, typed: str) -> None:
        """Wait until `prompt` is shown after the last answer, then type; a line unless it is a control
        character."""
        self.read(prompt)
        self._answered = len(self.text)
        os.write(self.fd, (typed if typed < " " else f"{typed}\n").encode())

    def end(self) -> int:
        """Read to the end of the process and return its exit code."""
        self.read()
        os.close(self.fd)
        return self.process.wait(30)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def plain(text: str) -> str:
    """Return what a terminal showed without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
