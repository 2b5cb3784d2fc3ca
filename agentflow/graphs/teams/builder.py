"""What the builders of all teams share: participants, reviews, storage, and the graph around the team."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentflow.definition.diagnostics import or_which
from agentflow.errors import ConfigurationError
from agentflow.graphs.agents import Agent, AgentExecutor
from agentflow.graphs.builder import WorkflowBuilder
from agentflow.graphs.nodes import NodeArgument
from agentflow.graphs.teams.members import Member, members_of
from agentflow.graphs.teams.team import TeamExecutor

if TYPE_CHECKING:
    from agentflow.events.log import EventLog
    from agentflow.graphs.workflow import Workflow
    from agentflow.records.checkpoint_storage import CheckpointStorage
    from agentflow.runtime import Runtime

__all__ = ["TeamBuilder", "at_least", "one_of"]

_MAX_STEPS = 100_000  # activations of a run; the limits of a team end it long before


class TeamBuilder:
    """Builds the graph of a team. Subclasses add the rules."""

    kind = "team"

    def __init__(
        self,
        participants: Sequence[NodeArgument],
        *,
        name: str | None = None,
        output_from: Literal["all"] | Sequence[NodeArgument] | None = None,
    ) -> None:
        self.name = name or self.kind
        self.members = members_of(participants, self.kind)
        self._outputs: Literal["all"] | list[str] = (
            "all" if output_from == "all" else [self.find(given).id for given in output_from or ()]
        )
        self._reviewed: frozenset[str] = frozenset()
        self._storage: str | EventLog | Runtime | CheckpointStorage | None = None

    def with_request_info(self, agents: Sequence[NodeArgument] | None = None) -> Any:
        """Ask a person about each answer of these participants (default: of all) before the team goes on.

        The request is a TeamReview; its answer is text, which is empty if the answer is accepted.
        """
        chosen = self.members if agents is None else [self.find(agent) for agent in agents]
        self._reviewed = frozenset(member.id for member in chosen)
        return self

    def with_checkpointing(self, storage: str | EventLog | Runtime | CheckpointStorage) -> Any:
        """Say where runs are kept, as `WorkflowBuilder.with_checkpointing`."""
        self._storage = storage
        return self

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError."""
        raise NotImplementedError

    # -- for the builders of this package ----------------------------------------------------------

    def find(self, given: NodeArgument) -> Member:
        """Return the participant that is meant. Raises ConfigurationError."""
        for member in self.members:
            if given is member.given or given is member.node:
                return member
        agents = [
            member
            for member in self.members
            if isinstance(member.given, AgentExecutor) and given is member.given.agent
        ]
        if len(agents) == 1:
            return agents[0]
        for member in self.members:
            if isinstance(given, str) and given in (member.id, member.name):
                return member
        name = given if isinstance(given, str) else getattr(given, "name", None) or repr(given)
        known = [member.id for member in self.members]
        hint = f"the participants are {', '.join(known)}"
        raise ConfigurationError(f'"{name}" takes no part{or_which(str(name), known)}', hint=hint)

    def find_manager(self, manager: Agent | AgentExecutor) -> AgentExecutor:
        """Return the node of a manager that is an agent; its id and name are no participant's."""
        node = AgentExecutor(manager) if isinstance(manager, Agent) else manager
        if not isinstance(node, AgentExecutor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a {type(manager).__name__} cannot manage a {self.kind} team")
        if node.id in self._ids():
            hint = "pass AgentExecutor(agent, id) with another id"
            raise ConfigurationError(f'the manager and a participant have the id "{node.id}"', hint=hint)
        names = {member.name for member in self.members}
        agent = node.agent.with_name(node.id) if node.agent.name in names else node.agent
        return AgentExecutor(agent, node.id)

    def unused_id(self, wanted: str, taken: Collection[str] = ()) -> str:
        """Return an id that no participant and none of `taken` has."""
        taken = {*self._ids(), *taken}
        number, id = 1, wanted
        while id in taken:
            number += 1
            id = f"{wanted}_{number}"
        return id

    def graph(
        self, team: TeamExecutor, nodes: Sequence[NodeArgument] = (), members: Sequence[Member] | None = None
    ) -> WorkflowBuilder:
        """Return a builder with the team, and an edge to and from each participant and each of `nodes`."""
        outputs = "all" if self._outputs == "all" else [team.id, *self._outputs]
        builder = WorkflowBuilder(self.name, policy="eager", max_steps=_MAX_STEPS, output_from=outputs)
        if self._storage is not None:
            builder.with_checkpointing(self._storage)
        builder.set_start_executor(team)
        for node in (*(member.node for member in members or self.members), *nodes):
            builder.add_edge(team, node)
            builder.add_edge(node, team)
        return builder

    def _ids(self) -> set[str]:
        return {member.id for member in self.members}


def at_least(least: int, **values: int) -> None:
    """Raise ConfigurationError for a number that is below its least value."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{name} is {value!r}, not a number")
        if value < least:
            raise ConfigurationError(f"{name} is {value}, below {least}")


def one_of(allowed: Collection[str], **values: str) -> None:
    """Raise ConfigurationError for a word that is none of `allowed`."""
    for name, value in values.items():
        if value not in allowed:
            raise ConfigurationError(f'{name} is "{value}"{or_which(str(value), sorted(allowed))}')
