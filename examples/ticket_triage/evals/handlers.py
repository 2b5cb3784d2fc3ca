"""The evaluator of the suite: how many of the two labels of a ticket a person would have given, too."""

from typing import Any


def labels(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the labels that is right, and which one is wrong."""
    actual, expected = payload["actual"], payload["expected"]
    wrong = [name for name in ("urgency", "topic") if actual[name] != expected[name]]
    return {
        "score": 1 - len(wrong) / 2,
        "reason": f"wrong: {', '.join(wrong)}" if wrong else "both are right",
    }
