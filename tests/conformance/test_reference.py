"""The product agrees with the reference interpreter of page 001 on random step documents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conformance.played_documents import play
from tests.conformance.random_documents import Case, random_case
from tests.conformance.reference_interpreter import (
    Decision,
    Error,
    Fail,
    Outcome,
    Script,
    StepEnd,
    Turn,
    interpret,
)

QUICK, MANY, BATCH = 100, 2_200, 50


def comparable(outcome: Outcome, like: Outcome) -> Outcome:
    """Return an outcome without what the page leaves open: codes that `like` does not give."""

    def error_of(error: Error | None, other: Error | None) -> Error | None:
        open_code = error is not None and other is not None and other.code is None
        return replace(error, code=None) if open_code and error is not None else error

    def end_of(end: StepEnd, other: StepEnd | None) -> StepEnd:
        items, others = end.items, other.items if other is not None else None
        if items is not None:
            pairs = zip(items, others or [None] * len(items), strict=False)
            items = tuple(end_of(item, like_item) for item, like_item in pairs)
        return StepEnd(
            end.status,
            end.result if end.status == "success" else None,
            error_of(end.error, other.error if other is not None else None),
            end.reason,
            tuple(sorted(end.caused_by)),
            items,
        )

    return Outcome(
        state=outcome.state,
        output=outcome.output,
        error=error_of(outcome.error, like.error) if like.error is not None else None,
        steps={name: end_of(end, like.steps.get(name)) for name, end in sorted(outcome.steps.items())},
        failed_steps=sorted(outcome.failed_steps),
        skipped=sorted(outcome.skipped),
        started=outcome.started,
    )


def check(seeds: range) -> None:
    cases = [random_case(seed) for seed in seeds]
    for seed, case, played in zip(seeds, cases, play(cases), strict=True):
        expected = interpret(case.document, case.inputs, case.script)
        assert comparable(played, expected) == comparable(expected, expected), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, QUICK, BATCH))
def test_a_random_document_ends_as_the_page_says(first: int):
    check(range(first, first + BATCH))


def test_fail_fast_closes_an_approval_while_iterations_wait_for_a_slot():
    """Once nothing more is dispatched, a step that waits for a person is cancelled, also while iterations of
    two steps share one slot; with a free slot it is."""
    agent = {"input": "x", "resultSchema": {}, "attachedFunctions": "none"}
    each = {"for_each": "${{ inputs.items }}"}
    steps = [
        {"id": "asks", "approval": True, "agent": {"systemPrompt": "asks", **agent}},
        {"id": "fails", "retry": False, "agent": {"systemPrompt": "fails", **agent}},
        {"id": "one", **each, "agent": {"systemPrompt": "one ${{ index }}", **agent}},
        {"id": "two", **each, "agent": {"systemPrompt": "two ${{ index }}", **agent}},
    ]
    workflow = {"fail_fast": True, "max_parallel": 1, "steps": [{"type": "run", **step} for step in steps]}
    document = {"version": "1.0", "models": {"default": "scripted:m"}, "workflow": workflow}
    script = Script(
        turns={("fails", None): [Turn(1.0, Fail("auth"))]}, decisions={"asks": Decision(1.5, granted=True)}
    )
    case = Case(document, {"items": [1, 2]}, script)
    (played,) = play([case])
    expected = interpret(*case)
    assert expected.steps["asks"].status == "cancelled"
    assert comparable(played, expected) == comparable(expected, expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(QUICK, QUICK + MANY, BATCH))
def test_many_more_documents_end_as_the_page_says(first: int):
    check(range(first, first + BATCH))
