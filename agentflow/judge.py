"""A process of its own for schemas and values that take long to judge (page 001 §5.5).

The library that judges holds the interpreter until it is done, so a thread does not help the event loop. What
may cost more than 20 ms by its estimate is sent here as JSON text: one child of this process, started when it
is first needed, with limits on its memory and on the time of one question. It knows no run and no secret.

`JudgeProcess.judge` blocks and is for threads. On the event loop use `judge_aside`, which leaves the answer
where `validate` finds it: decisions of the engine stay plain calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import struct
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from agentflow.definition.schemas import SchemaIssue, answer_aside, is_costly, validate

if TYPE_CHECKING:
    import subprocess

__all__ = ["JudgeProcess", "install_judge", "judge_aside", "release_judge"]

_TIMEOUT_S: Final = 10.0
_MEMORY_BYTES: Final = 512 * 1024 * 1024
_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG")
_LENGTH: Final = struct.Struct("!II")
_TOO_LONG: Final = SchemaIssue("", f"judging it by its schema took longer than {_TIMEOUT_S:g} s")
_TOO_LARGE: Final = SchemaIssue("", "judging it by its schema took too much memory")

_decoder = msgspec.json.Decoder(list[SchemaIssue])


class JudgeProcess:
    """One child that judges, started when it is first asked and again after it has died. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def judge(self, schema: bytes, value: bytes) -> list[SchemaIssue] | None:
        """Return the first ten breaches of a schema by a value, both as JSON text; blocks for at most 10 s.

        Returns None at once on the thread of a running event loop, which must not wait.
        """
        if _is_on_a_loop():
            return None
        with self._lock:
            child = self._running()
            try:
                return _ask(child, schema, value)
            except TimeoutError:
                self._kill()
                return [_TOO_LONG]
            except (OSError, EOFError):
                self._kill()
                return [_TOO_LARGE]

    @property
    def started(self) -> bool:
        """True if there is a child that `close` has to end."""
        return self._child is not None

    def close(self) -> None:
        """End the child, also while it judges. A later question starts another one."""
        child = self._child
        if child is not None:
            child.kill()  # a thread that waits for its answer holds the lock
        with self._lock:
            self._kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._kill()
            import subprocess  # 5 ms that no start of a program should take

            # -P: nothing is imported from the folder that this process works in.
            command = [sys.executable, "-P", "-c", "from agentflow.judge import main; main()"]
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        return self._child

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            child.wait()


class _Installed:
    """The judge of this process and how many Runtimes use it. A fork has a judge of its own."""

    def __init__(self) -> None:
        self.process = JudgeProcess()
        self.users = 0
        self.pid = os.getpid()


_installed: _Installed | None = None
_install_lock = threading.Lock()


def install_judge() -> None:
    """Let costly questions of this process go to a child; each call is paired with `release_judge`."""
    global _installed
    with _install_lock:
        if _installed is None or _installed.pid != os.getpid():
            _installed = _Installed()
        answer_aside(_installed.process.judge)
        _installed.users += 1


async def release_judge() -> None:
    """End the child when its last user is gone."""
    global _installed
    with _install_lock:
        found = _installed
        if found is None or found.pid != os.getpid():
            return
        found.users -= 1
        if found.users:
            return
        answer_aside(None)
        _installed = None
    if found.process.started:
        await asyncio.to_thread(found.process.close)


async def judge_aside(schema: Any, value: Any) -> None:
    """Judge a value in a thread and the child process if that may take long; `validate` finds the answer.

    Returns at once for everything else.
    """
    if is_costly(schema, value):
        await asyncio.to_thread(validate, schema, value)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _ask(child: subprocess.Popen[bytes], schema: bytes, value: bytes) -> list[SchemaIssue]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(_LENGTH.pack(len(schema), len(value)) + schema + value)
    child.stdin.flush()
    ready, _, _ = select.select([child.stdout], [], [], _TIMEOUT_S)
    if not ready:
        raise TimeoutError
    (length,) = struct.unpack("!I", _exactly(child.stdout, 4))
    return _decoder.decode(_exactly(child.stdout, length))


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def main() -> None:
    """Answer questions from standard input until it ends."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answer_aside(None)
    given, taken = sys.stdin.buffer, sys.stdout.buffer
    while head := given.read(_LENGTH.size):
        lengths = _LENGTH.unpack(head)
        schema, value = (msgspec.json.decode(_exactly(given, length)) for length in lengths)
        try:
            issues = validate(schema, value)
        except MemoryError:
            issues = [_TOO_LARGE]
        answer = msgspec.json.encode(issues)
        taken.write(struct.pack("!I", len(answer)) + answer)
        taken.flush()
