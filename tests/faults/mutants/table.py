"""The mistakes: name, then (module, text, text in its place); each changes what the engine or the runtime does."""

# ruff: noqa: E501 - lines of the package are quoted whole

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EXPLAINED", "MUTANTS", "Mutant"]

_UNIT = "tests/unit/engine/"
ENGINE = ("tests/unit/engine", "tests/golden/test_golden_logs.py", "tests/conformance/kinds")


class Mutant(NamedTuple):
    """One mistake. `tests` are those that should notice it, in the order in which they run."""

    edits: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...] = ENGINE


def _with(first: tuple[str, ...], mutants: dict[str, Mutant]) -> dict[str, Mutant]:
    """Return the mutants, whose tests begin with those of these modules."""
    files = tuple(f"{_UNIT}{name}" for name in first)
    return {
        name: m._replace(tests=(*files, *m.tests)) if m.tests is ENGINE else m for name, m in mutants.items()
    }


def _of(module: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(((module, old, new),), tests or ENGINE)


FINDINGS = {
    "an empty text counts as true": _of(
        "engine/templates.py", 'value is None or value == "" or', "value is None or"
    ),
    "a resume keeps failed model calls": _of(
        "engine/folds/run.py",
        "activation.agent.failed_calls, activation.agent.first_failure = 0, None",
        "pass",
    ),
    "a fork keeps unfinished siblings": _of(
        "engine/replay.py", "name in cut or name not in over for name", "name in cut for name"
    ),
    "max_tool_calls ignores the present round": _of(
        "engine/tool_calls.py",
        "activation.tool_calls + begun >= spec.max_tool_calls",
        "activation.tool_calls >= spec.max_tool_calls",
    ),
    "an iteration does not take its slot back": _of(
        "engine/folds/slots.py", "    _count_item(state, activation, 1)\n", "    pass\n"
    ),
    "halt exceeds max_parallel": _of(
        "engine/decide.py",
        "or state.running >= state.max_parallel",
        "or (not only_below and state.running >= state.max_parallel)",
    ),
    "one interruption less is allowed": _of(
        "engine/decide.py",
        "activation.interruptions > MAX_INTERRUPTIONS",
        "activation.interruptions >= MAX_INTERRUPTIONS",
    ),
    "a cancelled dependency is graver than a failed one": _of(
        "engine/joins.py",
        '    ("failed", "dependency_failed"),\n    ("cancelled", "dependency_cancelled"),\n',
        '    ("cancelled", "dependency_cancelled"),\n    ("failed", "dependency_failed"),\n',
    ),
    "the window of the hub keeps overlapping events": _of(
        "events/live_window.py",
        "            events = events[self.end - first :]\n",
        "",
        "tests/unit/events/test_hub.py",
    ),
    "the hub gives other readers no turn": _of(
        "events/hub.py",
        "                if not has_yielded:\n",
        "                if False:\n",
        "tests/unit/events/test_hub.py",
    ),
    "calls begin while a run is suspended": _of(
        "runtime/effect_launcher.py",
        "            if self._run.suspending is None:\n                self._begin",
        "            if True:\n                self._begin",
        "tests/integration/test_storage_stall.py",
        "tests/integration/test_pauses.py",
    ),
    "a kept state serves other bindings": _of(
        "runtime/log_replay.py",
        " or kept[0].state.bound != bindings",
        "",
        "tests/integration/test_run_queue_and_fold_cache.py",
    ),
    "a claim is not released": _of(
        "runtime/runs_supervisor.py",
        "            self.ctx.pipe(self._log.release(run_id, self._owner), _ignore, _ignore)\n",
        "            pass\n",
        "tests/integration/test_passivation.py",
        "tests/integration/test_taking_up.py",
        "tests/integration/test_concurrency_limits.py",
    ),
    "a new run jumps the queue": _of(
        "runtime/run_queue.py",
        "return bool(self._order) or not self._has_free_slot",
        "return not self._has_free_slot",
        "tests/integration/test_run_queue_and_fold_cache.py",
        "tests/integration/test_concurrency_limits.py",
    ),
}

JOINS = {
    "a failure that is borne skips what depends on it": _of(
        "engine/joins.py",
        'if status != "succeeded" and not (place.excused and status == "failed"):',
        'if status != "succeeded":',
    ),
    "a failure far above is not seen": _of(
        "engine/arrivals.py",
        "target.upstream_failed |= failed or source.upstream_failed",
        "target.upstream_failed |= failed",
    ),
    "a cancelled dependency is not seen": _of(
        "engine/arrivals.py",
        'source.status == "cancelled" or source.upstream_cancelled',
        "source.upstream_cancelled",
    ),
    "a second end settles a dependency once more": _of(
        "engine/arrivals.py",
        "                continue  # its first end",
        "                pass  # its first end",
    ),
    "a node that is live twice counts twice": _of(
        "engine/arrivals.py", "    if place.live == 1:\n", "    if place.live >= 1:\n"
    ),
    "a window closes with the first of its senders": _of(
        "engine/arrivals.py",
        "place.windows and not (place.sources and any(place.sources.values()))",
        "place.windows",
    ),
    "what comes too late for a round counts for the next": _of(
        "engine/rounds.py", "            elif self.live[source]:\n", "            elif False:\n"
    ),
    "a charge outlives its source": _of(
        "engine/rounds.py",
        "            found.charged[source] = 0  # the charge",
        "            pass  # the charge",
    ),
    "a quorum needs one more": _of(
        "engine/rounds.py", "len(entries) >= fan.quorum", "len(entries) > fan.quorum"
    ),
    "a closed round makes nothing live": _of(
        "engine/rounds.py", "        revived.update(fan.target.fan_watchers)\n", ""
    ),
    "a round that waits is brought incomplete at its time": _of(
        "engine/rounds.py",
        'missing and held.fan.on_missing != "partial"',
        'missing and held.fan.on_missing == "fail"',
    ),
    "a timer of a round runs on after it closed": _of(
        "engine/arrivals.py",
        "    if held.is_armed:\n",
        "    if held.is_armed or held.due() is None:\n",
    ),
    "a round may close with sources that are live": _of(
        "engine/rounds.py",
        "all(held.live[s] == 0 and (index, s) not in revived for s in missing)",
        "all((index, s) not in revived for s in missing)",
    ),
    "a merge gives up one failure too early": _of(
        "engine/kinds/merge.py", "if len(finished) + left < needed:", "if len(finished) + left <= needed:"
    ),
    "a merge on one path takes the last outputs": _of(
        "engine/kinds/merge.py", "sorted(order)[:needed]", "sorted(order)[-needed:]"
    ),
    "drain cancels the other branches": _of(
        "engine/kinds/group.py", "            if cancels:\n", "            if True:\n"
    ),
    "a window takes one token more": _of(
        "engine/kinds/batch.py", "len(gathered.items) >= size", "len(gathered.items) > size"
    ),
    "a dependency that cannot come is not settled": _of(
        "engine/arrivals.py",
        'place.status = "skipped"\n            _settle(state, path, target, place)\n',
        'place.status = "skipped"\n',
    ),
}

POLICIES = {
    "a superstep commits before its barrier": _of(
        "engine/policies.py",
        "        state.shared.pending.append(writes)\n",
        "        Eager.commit(self, state, writes)\n",
    ),
    "a barrier does not wait for handlers": _of(
        "engine/policies.py",
        "if state.running or state.calls or mail.is_at_work:",
        "if state.running or state.calls:",
    ),
    "messages of a barrier come as they were sent": _of(
        "engine/policies.py",
        "key=lambda q: (q.path.key, q.node.index, q.order)",
        "key=lambda q: (q.path.key, q.node.index)",
    ),
    "targets of a barrier come in any order": _of(
        "engine/policies.py", "key=lambda q: (q.path.key, q.node.index, q.order)", "key=lambda q: q.order"
    ),
    "max_iterations allows one more": _of(
        "engine/policies.py", "for queued in mail.queue) >= limit:", "for queued in mail.queue) > limit:"
    ),
    "an answer does not count from the outside": _of(
        "engine/folds/requests.py",
        '    elif data.via != "deadline":\n        state.mail.since_outside.clear()\n',
        "",
    ),
    "a failed superstep commits": _of(
        "engine/policies.py",
        'if problem is None and state.on_failure == "halt" and state.has_failed:',
        "if False:",
    ),
    "a superstep counts as one step": _of(
        "engine/policies.py", "too_many_steps(state, now, more=len(mail.queue))", "too_many_steps(state, now)"
    ),
    "a commit at the version read is a conflict": _of(
        "engine/shared_state.py", "latest.number <= base", "latest.number < base"
    ),
    "a node conflicts with itself": _of(
        "engine/shared_state.py", "latest.step != writes.step and not _is_same", "not _is_same"
    ),
    "a barrier commits in the order of completion": _of(
        "engine/shared_state.py",
        "sorted(self.pending, key=lambda w: (w.step, w.path, w.visit))",
        "list(self.pending)",
    ),
    "reducers do not spare a conflict": _of(
        "engine/shared_state.py",
        "                if key not in self._reducers:\n",
        "                if True:\n",
    ),
    "a handler reads what was committed after it began": _of(
        "engine/shared_state.py", "            if found.number <= version:\n", "            if True:\n"
    ),
    "the version grows without writes": _of(
        "engine/shared_state.py", "return self.version + bool(self.pending)", "return self.version + 1"
    ),
    "rounds close within a superstep": _of(
        "engine/policies.py",
        "        if not state.mail.stepping:\n            close_rounds",
        "        if True:\n            close_rounds",
    ),
    "a path does not end at a barrier": _of(
        "engine/policies.py",
        "            if path.live == 0 and path.opener is not None:\n",
        "            if False:\n",
    ),
    "a round whose time is over comes last": _of(
        "engine/arrivals.py", "order = (0 if first else 1, fan", "order = (1, fan"
    ),
    "an actor handles two messages at once": _of(
        "engine/mail.py",
        "        if turns.current is None:\n            self._promote(turns)\n",
        "        if True:\n            self._promote(turns)\n",
    ),
    "handlers at work are not limited": _of(
        "engine/decide.py", "state.mail.inbox and len(state.mail.open) < MAX_HANDLERS", "state.mail.inbox"
    ),
    "a halted superstep keeps its messages": _of(
        "engine/decide.py",
        "    if any(q.path.opener is not None for q in state.mail.queue) and not (state.running or state.mail.open):",
        "    if False:",
    ),
}

FRAMES = {
    "a parent keeps no old value": _of(
        "engine/frames.py",
        "        if self._opened:\n            latest, oldest",
        "        if False:\n            latest, oldest",
    ),
    "only the first old value is kept": _of(
        "engine/frames.py", "if not kept or kept[-1][0] < latest:", "if not kept:"
    ),
    "a child sees what was written after its opening": _of(
        "engine/frames.py", "                if opening >= since:\n", "                if opening > since:\n"
    ),
    "old values go with the first child": _of(
        "engine/frames.py",
        "        if not self._opened:\n            self._kept.clear()\n",
        "        self._kept.clear()\n",
    ),
    "a subgraph sees the nodes around it": _of(
        "engine/frames.py",
        'if found is not ABSENT or (frame.is_isolated and root != "globals"):',
        "if found is not ABSENT:",
    ),
    "a subgraph does not see global values": _of(
        "engine/frames.py",
        'if found is not ABSENT or (frame.is_isolated and root != "globals"):',
        "if found is not ABSENT or frame.is_isolated:",
    ),
    "no subgraph is isolated": _of(
        "engine/kinds/group.py", "is_isolated=graph is not parent.graph", "is_isolated=False"
    ),
    "paths are joined in reverse": _of(
        "engine/kinds/group.py",
        "        for index in self.joined(activation, group):\n            child",
        "        for index in reversed(self.joined(activation, group)):\n            child",
    ),
    "a frame is kept open after its group": _of(
        "engine/kinds/group.py", "        activation.path.frame.close(group.opening)\n", ""
    ),
    "an end is written past the kept values": _of(
        "engine/folds/steps.py",
        '    if frame.is_read:\n        frame.set("nodes", node.name, view)\n',
        '    if False:\n        frame.set("nodes", node.name, view)\n',
    ),
    "names of a subgraph go on above it": _of(
        "engine/frames.py",
        'None if frame.is_isolated and root != "globals" else frame.parent',
        "frame.parent",
    ),
    "a failed branch gives its values": _of(
        "engine/kinds/group.py",
        "if group is None or not isinstance(data, ev.WorkflowStepCompleted):",
        "if group is None:",
    ),
    "the last global value of a branch wins": _of(
        "engine/kinds/group.py", "        if conflict is not None:\n", "        if False:\n"
    ),
    "an update sees the update before it": _of(
        "engine/globals.py",
        "            return _refused(key, op, old, operand)\n        found[key] = value\n",
        "            return _refused(key, op, old, operand)\n        found[key] = before[key] = value\n",
    ),
}

GATES = {
    "status functions do not lift the join": _of(
        "engine/gates.py",
        "by_status = guard is not None and bool(guard.status_functions)",
        "by_status = False",
    ),
    "success() needs one dependency": _of(
        "engine/gates.py",
        'return all(nodes[d].status == "succeeded"',
        'return any(nodes[d].status == "succeeded"',
    ),
    "an item is not guarded": _of(
        "engine/gates.py",
        "if activation.iteration is None or not activation.node.guard_per_item:",
        "if True:",
    ),
    "one item less is allowed": _of(
        "engine/gates.py", "if len(found) > MAX_ITEMS:", "if len(found) >= MAX_ITEMS:"
    ),
    "a step is asked about again and again": _of(
        "engine/decide.py", "if node.asks and activation.snapshot is None:", "if node.asks:"
    ),
    "what is shown is evaluated again": _of(
        "engine/decide.py",
        "        if activation.snapshot is not None:\n            items",
        "        if False:\n            items",
    ),
    "a question has no message": _of(
        "engine/gates.py", "        if node.approval_message is not None:\n", "        if False:\n"
    ),
    "a denial that skips fails": _of(
        "engine/approvals.py", 'policy.on_denied == "skip"', 'policy.on_denied == "fail"'
    ),
    "a withdrawn question skips its step": _of(
        "engine/approvals.py", 'if error.category == "policy" and policy is not None', "if policy is not None"
    ),
    "trust does not part kept results": _of(
        "engine/caching.py",
        '        where += "/untrusted"',
        '        where += ""',
        "tests/unit/engine/test_caching.py",
        "tests/integration/test_cache.py",
    ),
    "every result is global": _of(
        "engine/caching.py",
        'begin.ir_hash if cache.scope == "definition" and begin is not None else "global"',
        '"global"',
        "tests/unit/engine/test_caching.py",
        "tests/integration/test_cache.py",
    ),
    "never lowers what a document of a service asks": _of(
        "engine/approvals.py",
        '    if info.needs_approval:\n        return True\n    policy = activation.node.spec.approval\n    if policy is None or policy.before in ("step", "never"):\n        return False\n',
        '    policy = activation.node.spec.approval\n    if policy is None or policy.before in ("step", "never"):\n        return info.needs_approval and policy is None\n',
    ),
    "a read counts as a side effect": _of(
        "engine/approvals.py", 'info.side_effect not in ("none", "read")', 'info.side_effect not in ("none",)'
    ),
    "one step less is allowed": _of(
        "engine/limits.py", "    if state.clock + more > limit:\n", "    if state.clock + more >= limit:\n"
    ),
    "a budget of steps allows one less": _of(
        "engine/limits.py",
        "if limit is None or state.clock + more <= limit:",
        "if limit is None or state.clock + more < limit:",
    ),
    "halt withdraws questions of what has begun": _of(
        "engine/decide.py", "if waits and not _is_below(request.activation):", "if waits:"
    ),
    "a step is held twice": _of(
        "engine/folds/steps.py", 'state.on_failure == "hold" and not was_held:', 'state.on_failure == "hold":'
    ),
    "a retried for_each keeps items that changed": _of(
        "engine/folds/steps.py",
        'kept.status in ("succeeded", "skipped") and kept.item == item:',
        'kept.status in ("succeeded", "skipped"):',
    ),
    "a failure that is borne is not excused": _of(
        "engine/folds/steps.py", "    place.excused = handled\n", "    place.excused = False\n"
    ),
    "a granted step asks for its slot at the end": _of(
        "engine/arrivals.py",
        "if activation.verdict is not None or consent or node.iterates or not node.kind.takes_slot:",
        "if activation.verdict is not None or consent or node.iterates or activation.snapshot is not None or not node.kind.takes_slot:",
    ),
    "the question of a wait counts as its waiting": _of(
        "engine/folds/steps.py",
        'activation.node.kind.is_passive and activation.phase == "open"',
        "activation.node.kind.is_passive",
        "tests/conformance/kinds/test_common_fields.py",
    ),
    "a handler writes no globals": _of(
        "engine/handler_results.py",
        "if activation.node.writes is not None and activation.iteration is None:",
        "if False:",
        "tests/conformance/kinds/test_common_fields.py",
    ),
    "a kept result does not say what served it": _of(
        "engine/decisions.py",
        "    if cached is not msgspec.UNSET:\n",
        "    if False:\n",
        "tests/unit/engine/test_caching.py",
    ),
    "the last failure of hold ends the pause of the run": _of(
        "engine/held_steps.py",
        'if state.status == "paused" and sum(map(len, state.held_steps.values())) == 1:',
        'if state.status == "paused":',
    ),
}

SLOTS = {
    "an answer goes on without a slot": _of(
        "engine/folds/slots.py",
        "if not activation.node.kind.takes_slot or _is_free(state, activation):",
        "if True:",
    ),
    "steps that begin overtake the queue": _of(
        "engine/folds/slots.py", "    if state.returning:\n        _serve(state, ts)\n", ""
    ),
    "the queue is last in, first out": _of(
        "engine/folds/slots.py",
        "for activation in list(state.returning.values()):",
        "for activation in list(reversed(state.returning.values())):",
    ),
    "an item goes on beyond the limit of its node": _of(
        "engine/folds/slots.py", "state.node_of(activation).slots < limit\n", "True\n"
    ),
    "work that ends stays in the queue": _of(
        "engine/folds/slots.py",
        "        state.returning.pop(activation.key, None)\n        return\n",
        "        return\n",
    ),
    "queued work is asked what follows": _of(
        "engine/folds/common.py",
        "    if state.returning and activation.key in state.returning:\n        return\n",
        "",
    ),
    "an answer in a pause arms time limits": _of(
        "engine/folds/slots.py", '    if state.status == "paused":\n', "    if False:\n"
    ),
    "a child run that rests again takes a slot": _of(
        "engine/child_runs.py",
        'activation.status == "waiting" and activation.key not in state.returning',
        'activation.status == "waiting"',
    ),
    "the option max_parallel is not read": _of(
        "engine/folds/run.py", 'options.get("max_parallel") or state.max_parallel', "state.max_parallel"
    ),
    "an array is written whole": _of(
        "engine/globals.py",
        '        if all(w.op == "append" for side in sides for w in side):\n',
        "        if False:\n",
        "tests/unit/engine/kinds/test_globals.py",
    ),
    "a failed agent leaves out the call that failed": _of(
        "engine/call_results.py",
        "agent_failed(activation, error, now, closed=[failed])",
        "agent_failed(activation, error, now)",
    ),
}

MUTANTS: dict[str, Mutant] = {
    **_with(("test_slots.py", "test_fuzz.py"), SLOTS),
    **_with(
        ("test_steps.py", "test_agents.py", "test_forks.py", "test_approvals.py", "test_recovery.py"),
        FINDINGS,
    ),
    **_with(
        (
            "test_rounds.py",
            "kinds/test_merge.py",
            "kinds/test_batch.py",
            "kinds/test_parallel.py",
            "test_steps.py",
            "test_one_core.py",
        ),
        JOINS,
    ),
    **_with(
        ("test_superstep.py", "test_shared_state.py", "test_messages.py", "kinds/test_superstep_paths.py"),
        POLICIES,
    ),
    **_with(("kinds/test_globals.py", "kinds/test_subgraph.py", "kinds/test_parallel.py", "kinds"), FRAMES),
    **_with(("test_steps.py", "test_approvals.py", "test_holding.py"), GATES),
}

EXPLAINED: dict[str, str] = {}
"""Mistakes that change nothing which can be seen, and why."""
