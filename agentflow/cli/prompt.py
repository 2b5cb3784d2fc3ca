"""Questions to the person at the terminal: a line of stdin, read by the event loop.

Asks only where stdin and stderr are a terminal; a script, a pipe and TERM=dumb get the commands that answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

from agentflow.cli.output import is_terminal, printable, say, styled

if TYPE_CHECKING:
    from agentflow.cli.decisions import Decision, Instruction

__all__ = ["ask", "can_ask"]

_CHUNK = 4096  # bytes; the longest line that a terminal hands over at once


def can_ask() -> bool:
    """Return True if a person can answer: stdin and stderr are a terminal, this process in its foreground."""
    try:
        if not (sys.stdin.isatty() and is_terminal(sys.stderr)):
            return False
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # a stream that is closed or was replaced
        return False
    with contextlib.suppress(OSError):
        # A job in the background that reads would be stopped. Without a controlling terminal there is none.
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    return True


async def ask(decision: Decision) -> Instruction | None:
    """Return what the person decides; None for `later`. Raises EOFError at the end of the input.

    Cancelling it leaves stdin as it was.
    """
    _drop_typed_ahead()
    say(decision.text)
    while True:
        line = (await _read_line(f"  {decision.answers}, show, later: ")).strip()
        if line == "later":
            return None
        if line == "show":
            say(_details(decision))
            continue
        if not line:
            continue
        try:
            return decision.parse(line)
        except click.BadParameter as error:
            say(f"  {printable(error.message)}")


def _details(decision: Decision) -> str:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(decision.details), indent=2).decode()
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


def _drop_typed_ahead() -> None:
    """Forget what was typed before the question was shown: it is no answer to it."""
    import termios

    with contextlib.suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def _read_line(prompt: str) -> str:
    """Show `prompt` and return the line that is typed. Raises EOFError at the end of the input."""
    click.echo(styled(prompt, "bold"), err=True, nl=False)
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    typed, done = bytearray(), loop.create_future()

    def read() -> None:
        # Not a thread with `input()`: it could not be ended, and the process would hang on it.
        try:
            data = os.read(descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            data = b""
        typed.extend(data)
        if (not data or data.endswith(b"\n")) and not done.done():
            done.set_result(None)

    loop.add_reader(descriptor, read)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
        if not typed.endswith(b"\n"):
            say("")  # the next line does not begin behind the prompt
    if not typed:
        raise EOFError
    return typed.decode(errors="surrogateescape")
