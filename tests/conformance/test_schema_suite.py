"""Every mandatory case of the official suite is judged as it says, but for remote references."""

from __future__ import annotations

import json

import pytest

from agentflow.definition.schemas import validate
from tests.conformance.schema_suite import mandatory_cases

_REMOTE = "http://localhost:1234/"
_REMOTE_META_SCHEMA = "custom metaschema with with no validation vocabulary"


@pytest.mark.timeout(180)
def test_the_mandatory_part_of_the_official_suite():
    cases = mandatory_cases()
    assert len(cases) > 1_200
    remote: list[str] = []
    wrong: list[str] = []
    for case in cases:
        issues = validate(case.schema, case.value)
        if (not issues) == case.valid:
            continue
        if _REMOTE in json.dumps(case.schema) and f"Resource '{_REMOTE}" in issues[0].message:
            remote.append(case.name)  # refused, because nothing is ever fetched
        elif _REMOTE_META_SCHEMA not in case.name:
            wrong.append(f"{case.name}: {issues}")
    assert wrong == []
    assert 0 < len(remote) < 25
    assert all(name.startswith(("refRemote.json", "dynamicRef.json")) for name in remote)
