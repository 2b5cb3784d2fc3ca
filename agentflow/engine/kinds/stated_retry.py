"""What a node repeats whose `retry` names no categories (page 002 §16)."""

from __future__ import annotations

import msgspec

from agentflow.definition.policy import RetryPolicy

__all__ = ["REPEATED", "stated_retry"]

REPEATED = ("transient", "timeout", "rate_limited", "invalid_output", "agent", "tool", "interrupted")
"""Categories that another attempt may mend."""

_UNSTATED = RetryPolicy().retry_on


def stated_retry(policy: RetryPolicy) -> RetryPolicy:
    """Return a stated policy; one that names no categories repeats all that another attempt may mend."""
    if policy.retry_on != _UNSTATED or policy.max_attempts == 1:
        return policy
    return msgspec.structs.replace(policy, retry_on=REPEATED)
