"""The reference pages say what the code does: they equal what is generated, and leave nothing out."""

from __future__ import annotations

import pytest

from agentflow.docs.codes import DIAGNOSTICS, FAILURES, VERDICTS
from tests.docs.blocks import read_source
from tests.docs.references import REFERENCES
from tests.docs.references.codes import used_diagnostics, used_failures, used_file_failures, used_verdicts
from tests.docs.references.configuration import VARIABLES, used_variables


@pytest.mark.parametrize("topic", REFERENCES)
def test_a_reference_page_is_what_the_code_generates(topic: str):
    assert read_source(topic) == REFERENCES[topic](), "run: python -m tests.docs.references"


def test_every_diagnostic_of_the_source_is_explained():
    assert used_diagnostics() == set(DIAGNOSTICS)


def test_every_failure_of_the_source_is_explained():
    assert used_failures() - set(FAILURES) == set()
    assert "outcome_unknown" in used_failures()


def test_every_verdict_and_every_failure_of_files_is_explained():
    assert used_verdicts() == set(VERDICTS) - {"check_failed:KEY"}
    assert used_file_failures() == {code for code in FAILURES if code.startswith("file_")}


def test_every_variable_of_the_source_is_explained():
    assert used_variables() - set(VARIABLES) == {"AGENTFLOW_SECRET"} & used_variables()
    assert "AGENTFLOW_MODEL" in used_variables()
