"""20,000 mutated documents get equal diagnostics from both parsers of PyYAML (documents D4)."""

from __future__ import annotations

import pytest

from tests.unit.definition.test_yaml_installations import assert_equal_outcomes, needs_libyaml

pytestmark = pytest.mark.slow


@needs_libyaml
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(10))
def test_mutated_documents_get_the_same_diagnostics_from_both_parsers(
    monkeypatch: pytest.MonkeyPatch, seed: int
):
    assert_equal_outcomes(monkeypatch, 1_000 + seed, 2_000)
