"""The package exports what it says, and importing its vocabulary does not import the loader."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentflow.definition as definition

LIGHT = """
import sys
import agentflow.definition.ir, agentflow.definition.diagnostics
assert "agentflow.definition.loader" not in sys.modules
import agentflow.definition.loader
for heavy in ("yaml", "jsonschema", "agentflow.definition.expressions"):
    assert heavy not in sys.modules, heavy
"""


def test_every_exported_name_is_there():
    assert sorted(definition.__all__) == definition.__all__
    for name in definition.__all__:
        assert getattr(definition, name).__module__.startswith("agentflow.definition."), name


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="nothing"):
        _ = definition.nothing


def test_the_loader_is_imported_late_and_its_parsers_later():
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=30)
