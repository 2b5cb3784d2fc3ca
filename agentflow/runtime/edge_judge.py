"""EdgeJudge: has the code on edges evaluated for the RunSupervisor, beside its mailbox. Decides nothing.

For messages that no ExecutorActor has judged: of agents and other nodes, of child runs, and of handlers whose
predicates read a shared state that others have written since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow import engine
from agentflow.engine import Outgoing
from agentflow.engine.child_runs import ChildReport
from agentflow.errors import MessageNotEncodable
from agentflow.executors.callables import NO_CALLABLES, Callables
from agentflow.runtime.edge_code import evaluate, has_code, is_stale
from agentflow.runtime.messages import Message

if TYPE_CHECKING:
    from actors import Context
    from agentflow.engine.graph import Node
    from agentflow.engine.state import RunState

__all__ = ["EdgeJudge", "EdgesJudged"]

Then = Callable[[int, tuple[Outgoing, ...]], None]


class EdgesJudged(Message, frozen=True, kw_only=True):
    """The results of the code on edges for the messages of question `number`, as of a version of the shared
    state."""

    number: int
    version: int
    messages: tuple[Outgoing, ...]


class _Question(NamedTuple):
    node: Node
    messages: Sequence[Outgoing]
    then: Then


class EdgeJudge:
    """The questions of one run that are under way. Reports of child runs keep their order."""

    def __init__(self, ctx: Context, state: RunState, code: Callables | None) -> None:
        self._ctx = ctx
        self._state = state
        self._code = code or NO_CALLABLES
        self._open: dict[int, _Question] = {}
        self._asked = 0
        self._reports: list[tuple[ChildReport, Callable[[ChildReport], None]]] = []

    def ask(self, node: Node, messages: Sequence[Outgoing], then: Then) -> None:
        """Evaluate the code on the edges of a node, then call `then` with the version of the shared state
        that it read and the messages with its results."""
        number, self._asked = self._asked, self._asked + 1
        self._open[number] = _Question(node, messages, then)
        self._evaluate(number)

    def answered(self, message: EdgesJudged) -> None:
        """Go on with what came of a question; asks it again if the shared state has changed meanwhile."""
        question = self._open[message.number]
        if is_stale(question.node, self._code, self._state.shared, message.version):
            self._evaluate(message.number)
            return
        del self._open[message.number]
        question.then(message.version, message.messages)

    def _evaluate(self, number: int) -> None:
        node, messages, _ = self._open[number]

        def judged(found: tuple[int, tuple[Outgoing, ...]]) -> EdgesJudged:
            return EdgesJudged(number=number, version=found[0], messages=found[1])

        self._ctx.pipe(evaluate(node, messages, self._code, self._state.shared), judged)

    def is_stale(self, node: Node, version: int) -> bool:
        """Return whether results of code on the edges of a node that were found at a version are outdated."""
        return is_stale(node, self._code, self._state.shared, version)

    # -- reports of child runs ------------------------------------------------------------------------

    def judge_report(self, report: ChildReport, then: Callable[[ChildReport], None]) -> None:
        """Call `then` with the report of a child and the results of the code on the edges of its step, for
        its outputs and requests; reports in the order in which they came."""
        self._reports.append((report, then))
        if len(self._reports) == 1:
            self._next_report()

    def _next_report(self) -> None:
        while self._reports:
            report, then = self._reports[0]
            activation = self._state.open.get(report.key)
            if activation is not None and activation.node.kind.is_typed(activation.node.spec):
                outputs = tuple(_typed(given, self._code) for given in report.outputs)
                report, requests = msgspec.structs.replace(report, outputs=outputs), dict[str, Outgoing]()
                if engine.takes_requests(activation.node):
                    for data in report.requests:
                        message = engine.request_message(activation, data, report.workflow_id)
                        if message is not None:
                            requests[data.request_id] = message
                if has_code(activation.node) and (outputs or requests):
                    self._ask_about(report, activation.node, requests, then)
                    return
                report = msgspec.structs.replace(report, asked=requests)
            del self._reports[0]
            then(report)

    def _ask_about(
        self,
        report: ChildReport,
        node: Node,
        requests: dict[str, Outgoing],
        then: Callable[[ChildReport], None],
    ) -> None:
        def judged(_: int, found: tuple[Outgoing, ...]) -> None:
            count = len(report.outputs)
            asked: Any = dict(zip(requests, found[count:], strict=True))
            del self._reports[0]
            then(msgspec.structs.replace(report, outputs=found[:count], asked=asked))
            self._next_report()

        self.ask(node, (*report.outputs, *requests.values()), judged)


def _typed(given: Outgoing, code: Callables) -> Outgoing:
    """Return an output of a child run with the base classes that this process knows."""
    try:
        payload = code.payloads.encode(code.payloads.decode(given.type, given.payload))
    except (ValueError, MessageNotEncodable):
        return Outgoing(type=given.type, payload=given.payload)
    bases = (payload.tag, *payload.bases) if payload.tag != given.type else payload.bases
    return Outgoing(type=given.type, payload=given.payload, bases=bases)
