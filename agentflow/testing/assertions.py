"""Assertions about a run whose failure shows the run."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from agentflow.records.runs import RunResult

__all__ = ["RunAssertions", "assert_run"]


def assert_run(result: RunResult[Any]) -> RunAssertions:
    """Begin assertions about a run: `assert_run(result).completed().output({"a": 1}).step("a", "completed")`.

    Each raises AssertionError with what was expected, what was there, and how every step ended.
    """
    return RunAssertions(result)


class RunAssertions:
    """Assertions about one run, which can be chained."""

    def __init__(self, result: RunResult[Any]) -> None:
        self.result = result

    def completed(self) -> RunAssertions:
        """Assert that the run is completed."""
        return self.state("completed")

    def failed(self, code: str | None = None) -> RunAssertions:
        """Assert that the run failed, with this code if one is given."""
        self.state("failed")
        found = self.result.error.code if self.result.error is not None else None
        return self if code is None or found == code else self._fail(f"failed with {found}, not with {code}")

    def waiting(self, requests: int = 1) -> RunAssertions:
        """Assert that the run waits, with this many open requests."""
        self.state("waiting")
        found = len(self.result.pending_requests)
        return self if found == requests else self._fail(f"has {found} open requests, not {requests}")

    def state(self, expected: str) -> RunAssertions:
        """Assert that the run is in this state."""
        if self.result.state == expected:
            return self
        return self._fail(f"is {self.result.state}, not {expected}")

    def output(self, expected: Any) -> RunAssertions:
        """Assert that the output equals this JSON value."""
        return self._equal("output", self.result.output, expected)

    def step(self, id: str, state: str = "succeeded", **expected: Any) -> RunAssertions:
        """Assert that a step is in this state; other arguments are fields of its StepSummary."""
        summary = self.result.steps.get(id)
        if summary is None:
            return self._fail(f'has no step "{id}"')
        if summary.state != state:
            return self._fail(f'step "{id}" is {summary.state}, not {state}')
        for name, value in expected.items():
            self._equal(f'{name} of step "{id}"', getattr(summary, name), value)
        return self

    def used(self, *, at_most: int) -> RunAssertions:
        """Assert that the run used at most this many tokens."""
        found = self.result.usage.input_tokens + self.result.usage.output_tokens
        return self if found <= at_most else self._fail(f"used {found:,} tokens, more than {at_most:,}")

    def _equal(self, what: str, found: Any, expected: Any) -> RunAssertions:
        found = msgspec.to_builtins(found)
        if found == msgspec.to_builtins(expected):
            return self
        lines = difflib.unified_diff(_lines(expected), _lines(found), "expected", "found", "", "", 3)
        return self._fail(f"{what} differs:\n" + "\n".join(lines))

    def _fail(self, problem: str) -> RunAssertions:
        raise AssertionError(f"run {self.result.workflow_id} {problem}\n{self._summary()}")

    def _summary(self) -> str:
        lines = [f"  {id}: {step.state}" for id, step in self.result.steps.items()]
        error = self.result.error
        if error is not None:
            lines.append(f"  error {error.code}: {error.message}")
        lines += [f"  open request {request.request_id}" for request in self.result.pending_requests]
        return "\n".join([f"state {self.result.state}", *lines])


def _lines(value: Any) -> list[str]:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode().splitlines()
