"""The actors of the product, and the Runtime that runs them."""

from agentflow.records.runs import RunRecord, RunResult, StepSummary
from agentflow.runtime.clock import Clock, SystemClock
from agentflow.runtime.run_handle import RunHandle
from agentflow.runtime.runtime import Runtime

__all__ = ["Clock", "RunHandle", "RunRecord", "RunResult", "Runtime", "StepSummary", "SystemClock"]
