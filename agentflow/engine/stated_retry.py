"""Which failures a stated retry repeats when it names no categories (page 002 §16). Pure."""

from __future__ import annotations

import msgspec

from agentflow.definition.policy import RetryPolicy

__all__ = ["REPEATED", "with_all_categories"]

REPEATED = ("transient", "timeout", "rate_limited", "invalid_output", "agent", "tool", "interrupted")
"""Every category that another attempt may mend."""

_UNSTATED = RetryPolicy().retry_on


def with_all_categories(policy: RetryPolicy) -> RetryPolicy:
    """Return the policy of an executor, tool or worker; without `retry_on` it repeats all of `REPEATED`."""
    return policy if policy.retry_on != _UNSTATED else msgspec.structs.replace(policy, retry_on=REPEATED)
