"""Requests: a text, or the plan of a template, becomes a run of the five stages (page 004 §13)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import msgspec

from agentflow.aside import compute_aside
from agentflow.config import data_folder
from agentflow.definition.delegates import DELEGATE_TASK
from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.plan_checks import check_plan
from agentflow.definition.plan_compiler import STEP_TIMEOUT_S
from agentflow.definition.run_options import step_policy
from agentflow.definition.stage_schemas import Activation, Matched, read, to_value
from agentflow.definition.toolsets import ToolEntry, Toolset, Toolsets
from agentflow.errors import CommandRefused, ConfigurationError, DefinitionError, InvalidOptions
from agentflow.models import ModelResolutionError
from agentflow.pipeline.activation import classify
from agentflow.pipeline.graph import pipeline_definition, pipeline_graph
from agentflow.pipeline.settings import PipelineSettings, workspace_in
from agentflow.pipeline.state_file import ImportedRun
from agentflow.pipeline.template_store import TemplateStore
from agentflow.pipeline.templates import bind
from agentflow.records.pipeline import REQUESTER_LABEL, requester_of
from agentflow.runtime.run_handle import RunHandle
from agentflow.runtime.runtime import Runtime
from agentflow.runtime.step_probes import PING_TIMEOUT_S
from agentflow.runtime.submit import is_run_id
from agentflow.tools import Service
from agentflow.tools.delegates import is_there
from agentflow.tools.toolsets.registry import ToolsetRegistry

__all__ = ["ALIASES", "Accepted", "Requests", "toolsets_of"]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "messaging": ("discord", "discord_admin", "telegram", "slack", "send_message"),
    "code_execution": ("execute_code",),
}
_OPTIONS = {"on_approval": ("wait", "skip"), "on_blocked": ("wait", "finish")}
_SHORT_MESSAGE = 4_000
"""Characters that are judged on the event loop: 8 ms at most."""
_OF_STEPS = ("retry", "timeout", "budget")
"""Options that hold for every step of a plan."""
_ANSWER_PROMPT = "Answer the message of the user in its language. Say so if you do not know."


class Accepted(NamedTuple):
    """What became of a text: how it was judged, and its run, if it has one."""

    activation: Activation
    run: RunHandle[Any] | None


class Requests:
    """Takes requests for a Runtime, which must be open.

    `toolsets` are those that plans may name, or a `registry` that knows which can be used now; without
    either, one for each service that is registered with the Runtime. Several may exist for one Runtime: what
    a run needs stands in its own graph. `templates` are found below the folder of the user by default.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: PipelineSettings | None = None,
        *,
        toolsets: Iterable[Toolset] | None = None,
        registry: ToolsetRegistry | None = None,
        templates: TemplateStore | None = None,
    ) -> None:
        self.runtime = runtime
        self.settings = settings or PipelineSettings()
        self.registry = registry
        self.templates = templates or TemplateStore(data_folder() / "templates")
        self._toolsets = None if toolsets is None else tuple(toolsets)

    @property
    def toolsets(self) -> tuple[Toolset, ...]:
        """Every toolset that a plan may name, enabled or not."""
        if self._toolsets is not None:
            return self._toolsets
        if self.registry is not None:
            return self.registry.toolsets()
        return toolsets_of(self.runtime.registry.services.values())

    def classify(self, message: str, *, review: bool = False) -> Activation:
        """Return what a text asks for; nothing is stored. Raises MessageLength."""
        return classify(message, review=review or self.settings.review == "always")

    async def classify_aside(self, message: str, *, review: bool = False) -> Activation:
        """The same; a long text in a thread, since 100,000 characters can take 0.2 s."""
        if len(message) <= _SHORT_MESSAGE:
            return self.classify(message, review=review)
        return await compute_aside(partial(self.classify, message, review=review))

    async def submit(
        self,
        message: str,
        *,
        mode: Literal["auto", "workflow", "direct"] = "auto",
        review: bool = False,
        answer: bool = False,
        workspace: str | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> Accepted:
        """Judge a text, and begin its run if it asks for one.

        `mode`: `workflow` skips the judgement, `direct` never begins a pipeline. `answer`: a text that asks
        for no workflow is answered by a run of one agent. `options` are those of every run with `on_approval`
        wait|skip and `on_blocked` wait|finish. The same words with the same `idempotency_key` or
        `workflow_id` give the first run, whatever toolsets, settings and delegate have become since.

        Raises MessageLength, ConfigurationError, and as `Runtime.submit`; nothing is stored then.
        """
        asked: dict[str, Any] = {
            "message": message,
            "mode": mode,
            "review": review,
            "answer": answer,
            **_asked(workspace, options, budget, labels),
        }
        known = await self.runtime.find_repeat(
            asked, workflow_id=workflow_id, idempotency_key=idempotency_key
        )
        if known is not None:
            judged = await self._activation_of(known.workflow_id)
            return Accepted(judged or await self.classify_aside(message, review=review), known)
        found = await self.classify_aside(message, review=review)
        if mode == "workflow" and found.trigger != "explicit_prefix":
            found = Activation(
                mode="workflow",
                trigger="api",
                matched=found.matched,
                execution_requested=not (review or found.matched.review or self.settings.review == "always"),
                user_input=message.strip(),
            )
        elif mode == "direct":
            found = msgspec.structs.replace(
                found, mode="direct_answer", trigger="none", execution_requested=False
            )
        if found.mode == "direct_answer":
            run = None
            if answer:
                run = await self._answer(
                    message, options, budget, labels, workflow_id, idempotency_key, asked, by, trusted
                )
            return Accepted(found, run)
        run = await self._begin(
            found,
            message,
            given=None,
            template=None,
            workspace=workspace,
            options=options,
            budget=budget,
            labels=labels,
            workflow_id=workflow_id,
            idempotency_key=idempotency_key,
            asked=asked,
            by=by,
            trusted=trusted,
        )
        return Accepted(found, run)

    async def submit_plan(
        self,
        plan: Mapping[str, Any],
        *,
        context: Mapping[str, Any] | None = None,
        template: str | None = None,
        review: bool = False,
        workspace: str | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle[Any]:
        """Begin a run of a plan that is there already, as that of a template: no model is asked for stages 1
        and 2. Raises DefinitionError with every problem of the plan."""
        asked: dict[str, Any] = {
            "plan": dict(plan),
            "context": dict(context or {}),
            "template": template,
            "review": review,
            **_asked(workspace, options, budget, labels),
        }
        known = await self.runtime.find_repeat(
            asked, workflow_id=workflow_id, idempotency_key=idempotency_key
        )
        return known or await self._begin_plan(
            plan,
            asked,
            context=context,
            template=template,
            review=review,
            workspace=workspace,
            options=options,
            budget=budget,
            labels=labels,
            workflow_id=workflow_id,
            idempotency_key=idempotency_key,
            by=by,
            trusted=trusted,
        )

    async def _begin_plan(
        self,
        plan: Mapping[str, Any],
        asked: Mapping[str, Any],
        *,
        context: Mapping[str, Any] | None,
        template: str | None,
        review: bool,
        **more: Any,
    ) -> RunHandle[Any]:
        checked = check_plan(
            plan,
            Toolsets(self.toolsets),
            self.settings.policy,
            approval_class=self.settings.approval_class,
            template=template,
        )
        if checked.plan is None:
            raise DefinitionError(list(checked.errors))
        summary = checked.plan.summary
        normalized: dict[str, Any] = {
            "status": "ready",
            "objective": summary.strip() or template or "run the plan",
            "constraints": [],
            "context": dict(context or {}),
            "success_criteria": [],
            "blockers": [],
        }
        activation = Activation(
            mode="workflow",
            trigger="template",
            matched=Matched(intent=(), action=(), review=()),
            execution_requested=not (review or self.settings.review == "always"),
            user_input=summary,
        )
        given: dict[str, Any] = {"normalized_request": normalized, "plan": dict(plan)}
        return await self._begin(activation, summary, given=given, template=template, asked=asked, **more)

    async def run_template(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        review: bool = False,
        workspace: str | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle[Any]:
        """Bind a template and begin its run; a repeat gives the first run as it does for `submit`, whatever
        has become of the template.

        Raises TemplateNotFound, and DefinitionError with every problem of inputs and plan.
        """
        asked: dict[str, Any] = {
            "template": name,
            "inputs": dict(inputs),
            "review": review,
            **_asked(workspace, options, budget, labels),
        }
        known = await self.runtime.find_repeat(
            asked, workflow_id=workflow_id, idempotency_key=idempotency_key
        )
        if known is not None:
            return known
        stored = await asyncio.to_thread(self.templates.get, name)
        bound = bind(stored.template, inputs, toolsets=Toolsets(self.toolsets))
        merged: dict[str, Any] = {**bound.options, **(options or {})}
        is_reviewed = merged.pop("review", False) is True or review
        return await self._begin_plan(
            bound.plan,
            asked,
            context=bound.context,
            template=stored.template.name,
            review=is_reviewed,
            workspace=workspace,
            options=merged,
            budget=budget,
            labels=labels,
            workflow_id=workflow_id,
            idempotency_key=idempotency_key,
            by=by,
            trusted=trusted,
        )

    async def import_run(
        self, line: ImportedRun, *, by: str = "local", workspace: str | None = None
    ) -> RunHandle[Any]:
        """Make a paused run of a line of a state file; `resume` goes on with it. Stages and steps whose
        results the line has are not done again; verdicts and approvals of it count for nothing. It keeps the
        id if that is one of agentflow.

        Raises DefinitionError with every problem of the plan, RunExists, ConfigurationError.
        """
        own_id = line.workflow_id if is_run_id(line.workflow_id) else None
        key = f"import {line.workflow_id}"
        asked: dict[str, Any] = {"import": msgspec.to_builtins(line), "workspace": workspace}
        known = await self.runtime.find_repeat(asked, workflow_id=own_id, idempotency_key=key)
        if known is not None:
            return known
        given: dict[str, Any] = {}
        if line.normalized_request is not None:
            given["normalized_request"] = line.normalized_request
        if line.plan is not None:
            checked = check_plan(
                line.plan,
                Toolsets(self.toolsets),
                self.settings.policy,
                approval_class=self.settings.approval_class,
            )
            if checked.plan is None:
                raise DefinitionError(list(checked.errors))
            given |= {"plan": line.plan, "results": line.results}
        activation = Activation(
            mode="workflow",
            trigger=cast("Any", line.trigger),
            matched=Matched(intent=(), action=(), review=()),
            execution_requested=line.execution_requested and self.settings.review != "always",
            user_input=line.user_input,
        )
        return await self._begin(
            activation,
            line.message,
            given=given,
            template=None,
            workspace=workspace,
            options=None,
            budget=None,
            labels={"imported_from": line.workflow_id},
            workflow_id=own_id,
            idempotency_key=key,
            asked=asked,
            by=by,
            trusted=True,
            imported=line.workflow_id,
        )

    async def latest(self, by: str = "local") -> str:
        """Return the id of the latest request of a caller that has not ended. Raises CommandRefused
        (`no_resumable_run`) if there is none."""
        cursor: str | None = None
        while True:
            page = await self.runtime.log.runs(label=(REQUESTER_LABEL, requester_of(by)), cursor=cursor)
            for row in page.items:
                if not row.ended:
                    return row.workflow_id
            cursor = page.next_cursor
            if cursor is None:
                raise CommandRefused("no request waits to go on", code="no_resumable_run")

    # -- beginning ------------------------------------------------------------------------------

    async def _begin(
        self,
        activation: Activation,
        message: str,
        *,
        given: dict[str, Any] | None,
        template: str | None,
        workspace: str | None,
        options: Mapping[str, Any] | None,
        budget: Mapping[str, Any] | None,
        labels: Mapping[str, str] | None,
        workflow_id: str | None,
        idempotency_key: str | None,
        asked: Mapping[str, Any],
        by: str,
        trusted: bool,
        imported: str | None = None,
    ) -> RunHandle[Any]:
        own, of_run = _split(options)
        execution = await self._execution()
        graph = pipeline_graph(
            {
                **self.settings.graph_settings(template=template),
                "toolsets": Toolsets(self.toolsets).to_value(),
            },
            given=_stages_given(given, activation),
            model=self.settings.model,
            name=template or "request",
        )
        roots = self.settings.roots
        folder = None if workspace is None else await asyncio.to_thread(workspace_in, roots, workspace)
        root = str(roots[0].resolve())
        request: dict[str, Any] = {
            "message": message,
            "activation": to_value(activation),
            "execution": execution,
            "options": own,
            "given": given,
            "workspace": folder,
            "workspace_root": root,
        }
        if imported is not None:
            request["imported"] = imported
        run = await self.runtime.submit(
            pipeline_definition(graph),
            request,
            workflow_id=workflow_id,
            labels=labels,
            options=of_run,
            budget=budget,
            idempotency_key=idempotency_key,
            asked=asked,
            by=by,
            trusted=trusted,
        )
        if folder is None:
            with suppress(OSError):  # a step that needs it says so
                await asyncio.to_thread(os.makedirs, f"{root}/{run.workflow_id}", exist_ok=True)
        return run

    async def _execution(self) -> dict[str, Any]:
        """Return how steps will be executed: by the built-in delegate if a model is configured, or by a
        foreign one that answers within 2 s. Raises ConfigurationError if that is no registered service."""
        if await self._has_delegate():
            return {"execution_mode": "delegated", "stage3_available": True, "partial_reason": ""}
        return {
            "execution_mode": "standalone",
            "stage3_available": False,
            "partial_reason": "delegate unavailable",
        }

    async def _has_delegate(self) -> bool:
        name = self.settings.delegate
        if name == "built-in":
            try:
                self.runtime.models.resolve(self.settings.model, aliases={})
            except ModelResolutionError:
                return False
            return True
        if name == "none":
            return False
        services = self.runtime.registry.services
        service = services.get(name)
        if service is None or DELEGATE_TASK not in service.tools:
            able = [one for one, known in services.items() if DELEGATE_TASK in known.tools]
            hint = did_you_mean(name, able) or "built-in, none, or a registered service with delegate_task"
            raise ConfigurationError(f'pipeline.delegate: "{name}" is no delegate', hint=hint)
        return await is_there(service, "", PING_TIMEOUT_S)

    async def _answer(
        self,
        message: str,
        options: Mapping[str, Any] | None,
        budget: Mapping[str, Any] | None,
        labels: Mapping[str, str] | None,
        workflow_id: str | None,
        idempotency_key: str | None,
        asked: Mapping[str, Any],
        by: str,
        trusted: bool,
    ) -> RunHandle[Any]:
        agent: dict[str, Any] = {"name": "answer", "system_prompt": _ANSWER_PROMPT, "tools": []}
        if self.settings.model is not None:
            agent["model"] = self.settings.model
        return await self.runtime.submit(
            {"name": "answer", "agents": [agent]},
            message,
            workflow_id=workflow_id,
            labels=labels,
            options=_split(options)[1],
            budget=budget,
            idempotency_key=idempotency_key,
            asked=asked,
            by=by,
            trusted=trusted,
        )

    async def _activation_of(self, workflow_id: str) -> Activation | None:
        """Return how the text of a run was judged; None for a run that only answers."""
        found = (await self.runtime.record(workflow_id)).input
        is_request = isinstance(found, dict) and "activation" in found
        return read(Activation, cast("Any", found)["activation"]) if is_request else None


def _asked(
    workspace: str | None,
    options: Mapping[str, Any] | None,
    budget: Mapping[str, Any] | None,
    labels: Mapping[str, str] | None,
) -> dict[str, Any]:
    given = {"workspace": workspace, "options": options, "budget": budget, "labels": labels}
    return {key: value for key, value in given.items() if value}


def toolsets_of(services: Iterable[Service], enabled: Iterable[str] | None = None) -> tuple[Toolset, ...]:
    """Return one toolset for each service, with the public functions that it offers."""
    names = None if enabled is None else frozenset(enabled)
    found: list[Toolset] = []
    for service in services:
        if DELEGATE_TASK in service.tools:
            continue  # it works on steps, and is none of their tools
        tools = sorted((t for t in service.tools.values() if not t.private), key=lambda tool: tool.function)
        found.append(
            Toolset(
                name=service.name,
                description="; ".join(t.description.split("\n")[0] for t in tools if t.description)[:500],
                tools=tuple(
                    ToolEntry(name=f"{t.service}.{t.function}", side_effect=t.side_effect) for t in tools
                ),
                aliases=ALIASES.get(service.name, ()),
                enabled=names is None or service.name in names,
            )
        )
    return tuple(found)


def _split(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the pipeline, and those of every run. Raises ConfigurationError."""
    own: dict[str, Any] = {}
    others: dict[str, Any] = {}
    given = {key: value for key, value in (options or {}).items() if value is not None}
    of_steps = {key: given.pop(key) for key in _OF_STEPS if key in given}
    if of_steps:
        own |= _of_steps(of_steps)
    for key, value in given.items():
        choices = _OPTIONS.get(key)
        if choices is None:
            others[key] = value
            continue
        if value not in choices:
            hint = did_you_mean(str(value), choices) or f"one of {', '.join(choices)}"
            raise ConfigurationError(f"option {key}: {value!r} is not one of {', '.join(choices)}", hint=hint)
        own[key] = value
    return own, others


def _of_steps(given: dict[str, Any]) -> dict[str, Any]:
    """Return policy and budget of the steps. Raises InvalidOptions with every problem."""
    policy, budget, problems = step_policy(given)
    if problems:
        raise InvalidOptions(problems)
    retry: Any = given.get("retry")
    if (
        policy is not None
        and policy.retry is not None
        and not (isinstance(retry, dict) and "timeout" in retry)
    ):
        longer = msgspec.structs.replace(policy.retry, timeout=STEP_TIMEOUT_S)
        policy = msgspec.structs.replace(policy, retry=longer)
    values = {"policy": policy, "budget": budget}
    return {key: msgspec.to_builtins(value) for key, value in values.items() if value is not None}


def _stages_given(given: Mapping[str, Any] | None, activation: Activation) -> frozenset[str]:
    """Return the stages that no model is asked for."""
    if given is None:
        return frozenset() if activation.user_input else frozenset({"normalize", "plan"})
    stages = {"normalized_request": "normalize", "plan": "plan"}
    return frozenset(stages[key] for key in stages if key in given)
