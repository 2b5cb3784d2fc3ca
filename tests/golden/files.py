"""Where golden logs are kept, and how a scene becomes one: NAME.ndjson holds the events as they were stored,
NAME.json the facts of `adapter.Facts`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import tests.golden.scenes  # noqa: F401 - registers the scenes
from agentflow import __version__
from agentflow.events.catalogue import SystemStateSaved
from agentflow.events.envelope import decode
from tests.golden.adapter import Facts, watched
from tests.golden.stage import RUN, SCENES, Stage

__all__ = ["FOLDER", "log_names", "play", "read_facts", "read_lines", "write"]

FOLDER = Path(__file__).parent / "logs"


def log_names() -> list[str]:
    """Return the names of all stored logs."""
    return sorted(path.stem for path in FOLDER.glob("*.ndjson"))


def log_name(scene: str, run: str) -> str:
    """Return the name of one run's log; a second run of a scene has a suffix."""
    return scene if run == RUN else f"{scene}.{run.removeprefix('wf_')}"


def read_lines(name: str) -> list[bytes]:
    """Return the events of a golden log. The version of the product in the first one is today's."""
    lines = (FOLDER / f"{name}.ndjson").read_bytes().splitlines()
    return [line.replace(b'"runtime_version":"golden"', _version()) for line in lines]


def read_facts(name: str) -> Facts:
    """Return what the log was made with."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Facts)


def _version() -> bytes:
    return b'"runtime_version":"%s"' % __version__.encode()


@cache
def play(scene: str) -> dict[str, list[bytes]]:
    """Play a scene; return the stored events of its runs by the names of their logs."""
    stage = Stage()
    SCENES[scene][1](stage)
    return {log_name(scene, run): lines for run, lines in stage.logs().items()}


def write(scene: str) -> list[str]:
    """Play a scene and store its logs as golden; return their names."""
    mechanism, act = SCENES[scene]
    found: dict[str, Facts] = {}
    stage = Stage()
    with watched(mechanism, found):
        act(stage)
    names: list[str] = []
    for run, lines in stage.logs().items():
        facts = found[run]
        name = log_name(scene, run)
        for line in lines:
            data: Any = decode(line).data
            if isinstance(data, SystemStateSaved) and data.kind == "fork_base":
                facts.base = [text.decode() for text in stage.blob(data.ref).split(b"\n") if text]
        stored = [line.replace(_version(), b'"runtime_version":"golden"') for line in lines]
        (FOLDER / f"{name}.ndjson").write_bytes(b"\n".join(stored) + b"\n")
        text = msgspec.json.format(msgspec.json.encode(facts, order="sorted"), indent=1)
        (FOLDER / f"{name}.json").write_bytes(text + b"\n")
        names.append(name)
    return names
