"""The daemon as a process of its own, for tests that kill it."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PATIENCE = 40.0


class Process:
    """`tests.unit.server.daemon` in `folder`; as a context manager it is ended with the block."""

    def __init__(
        self,
        folder: Path,
        *listen: str,
        descriptors: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`descriptors`: the soft and the hard limit of the process."""
        self.folder = folder
        self._listen = listen
        self._descriptors = descriptors
        self._env = {**os.environ, "OTEL_SDK_DISABLED": "true", **(env or {})}
        self.names: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Process:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with (self.folder / "stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.unit.server.daemon", str(self.folder), *self._listen],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._env,
                preexec_fn=self._limit,
            )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(_PATIENCE), "the daemon did not become ready"
        self.names = self.process.stdout.readline().split()
        assert self.names, self.errors()

    def _limit(self) -> None:
        if self._descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptors)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a power failure would; harmless when it has ended."""
        if self.process is not None:
            self.process.kill()
            self.wait()

    def wait(self, seconds: float = _PATIENCE) -> int:
        """Its exit code."""
        assert self.process is not None
        code = self.process.wait(seconds)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    @property
    def url(self) -> str:
        return next(name for name in self.names if name.startswith("http"))

    @property
    def socket(self) -> str:
        return f"unix:{self.folder / 's'}"

    @property
    def memory(self) -> int:
        """Resident bytes."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_descriptors(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def cpu_seconds(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def effects(self) -> list[str]:
        """What the function has done, in order."""
        path = self.folder / "effects"
        return path.read_text().split() if path.exists() else []


def wait_until(condition, seconds: float = _PATIENCE) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
