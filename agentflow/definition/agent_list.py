"""The agent list (page 000 §2, §3; page 001 §1.5): checks, then the chain of agents that it means."""

from __future__ import annotations

import re
from typing import Any, cast

from agentflow.definition.common_checks import (
    check_embedded_schema,
    compile_services,
    escaped,
    examples_of,
    service_names,
    warn_undeclared,
)
from agentflow.definition.document_lints import warn_of_unused_services
from agentflow.definition.ir import AgentNode, AgentSpec, EndNode, FunctionRef, Options, StartNode, Workflow
from agentflow.definition.ir_checks import check_graph
from agentflow.definition.ir_report import IrReport
from agentflow.definition.origin import DocumentOrigin, Words
from agentflow.definition.policies import Models, compiled_budget, compiled_step_budget, merged_policy
from agentflow.definition.report import Report, shown
from agentflow.definition.source_tree import Object
from agentflow.definition.structure import Found, check_structure
from agentflow.definition.vocabulary import AGENT_LIST

__all__ = ["compile_agent_list"]

_START, _END = "__start", "__end"
_STEP_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_SERVICE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ID_LENGTH = 128
_WORDS = Words(
    node="agent", id="agent id", duplicate="E_DUPLICATE_ID", reserved="E_VALUE", reserved_hint=None
)


def compile_agent_list(root: Object, default_name: str, report: Report) -> Workflow:
    """Return the chain of an agent list. All problems go to the report; with an error among them the graph
    must not be used."""
    document = check_structure(root, AGENT_LIST, report)
    return _AgentList(document, report).compile(default_name)


class _AgentList:
    def __init__(self, document: Found, report: Report) -> None:
        self._document = document
        self._report = report
        self._services = service_names(document)
        self._models = Models(document.get("models"), report)
        agents = document.get("agents")
        self._origin = DocumentOrigin(_WORDS)
        self._agents = cast("list[Found]", agents.value) if agents else []
        if agents is not None and not agents.json():
            report.error(
                "E_NO_AGENTS", "definition has no agents", agents.place, agents.pointer, "add an agent"
            )

    def compile(self, default_name: str) -> Workflow:
        document = self._document
        ids = self._step_ids()
        following = [*ids, _END][1:]
        nodes = [self._agent(i, *row) for i, row in enumerate(zip(self._agents, ids, following, strict=True))]
        description = document.plain("description")
        graph = Workflow(
            name=document.plain("name", default_name),
            nodes=(
                StartNode(id=_START, next=ids[0] if ids else _END),
                *nodes,
                EndNode(id=_END, index=len(nodes)),
            ),
            services=compile_services(document, self._report),
            models=self._models.table(),
            options=Options(
                on_failure=document.plain("on_failure", "halt"),
                timeout=document.plain("timeout"),
                budget=compiled_budget(document.get("budget")),
            ),
            metadata={"description": description} if description is not None else {},
        )
        check_graph(graph, IrReport(self._report, self._origin))
        if not self._report.has_errors:
            self._warn_of_unused(nodes)
        return graph

    def _warn_of_unused(self, nodes: list[AgentNode]) -> None:
        """Warn of services without a use; not if a tool without its service, or a misspelt one, may be it."""
        services = {ref.service for node in nodes for ref in node.agent.functions or ()}
        if services <= set(self._services or ()):
            warn_of_unused_services(self._document, services, self._report)

    def _step_ids(self) -> list[str]:
        """Return a step id for each agent: its id, its name or `step_<index>`; repeated: `_2`, `_3` …"""
        used: set[str] = set()
        for index, agent in enumerate(self._agents):
            found = agent.get("id")
            if found is not None:
                self._origin.fields[f"/nodes/{index + 1}/id"] = found
                used.add(found.value)
        ids: list[str] = []
        for index, agent in enumerate(self._agents):
            chosen: str | None = agent.plain("id")
            if chosen is None:
                chosen = _unused(_derived_id(agent, index), used)
                used.add(chosen)
            ids.append(chosen)
        return ids

    def _agent(self, index: int, agent: Found, step_id: str, following: str) -> AgentNode:
        document = self._document
        defaults = document.get("defaults")
        schema = agent.get("output_schema")
        number = int(agent.pointer.rpartition("/")[2]) + 1
        output_schema: dict[str, Any] | bool | None = None
        if schema is not None:
            output_schema = check_embedded_schema(
                schema, "E_SCHEMA", f"schema of agent {number}: ", self._report
            )
        retry = [document.get("retry"), defaults.get("retry") if defaults else None, agent.get("retry")]
        timeout = agent.plain("timeout", defaults.plain("timeout") if defaults else None)
        name: str = agent.plain("name", step_id)
        return AgentNode(
            id=step_id,
            name=name,
            index=index,
            policy=merged_policy(retry, timeout),
            budget=compiled_step_budget(agent.get("budget"), self._report),
            agent=AgentSpec(
                name=name,
                system_prompt=escaped(agent.plain("system_prompt", "")),
                model=self._models.choose(agent.get("model")),
                fallback=self._models.choose_each(agent.get("fallback")),
                output_schema=output_schema,
                functions=self._tools(agent.get("tools")),
                max_turns=agent.plain("max_turns", defaults.plain("max_turns", 10) if defaults else 10),
                max_tool_calls=agent.plain("max_tool_calls", 50),
                parallel_tool_calls=agent.plain("parallel_tool_calls", True),
                examples=examples_of(agent),
                accept_truncated=agent.plain("accept_truncated", False),
            ),
            next=following,
        )

    def _tools(self, tools: Found | None) -> tuple[FunctionRef, ...]:
        """Return the tools as references; a registered name without a service has the service ""."""
        references: list[FunctionRef] = []
        seen: set[FunctionRef] = set()
        for found in cast("list[Found]", tools.value) if tools else ():
            service, dot, function = found.value.partition(".")
            if dot and function and _SERVICE.fullmatch(service):
                reference = FunctionRef(service, function)
                warn_undeclared(
                    Found(service, found.node, found.pointer, found.key), self._services, self._report
                )
            else:
                reference = FunctionRef("", found.value)
            if reference in seen:
                message = f'"{shown(found.value)}" is listed twice'
                self._report.warning("W_DUPLICATE", message, found.place, found.pointer)
            seen.add(reference)
            references.append(reference)
        return tuple(references)


def _derived_id(agent: Found, index: int) -> str:
    name: str | None = agent.plain("name")
    if name is not None and _STEP_ID.fullmatch(name) and not name.startswith("__"):
        return name
    return f"step_{index}"


def _unused(base: str, used: set[str]) -> str:
    if base not in used:
        return base
    number = 2
    while True:
        suffix = f"_{number}"
        candidate = base[: _ID_LENGTH - len(suffix)] + suffix
        if candidate not in used:
            return candidate
        number += 1
