"""Participants of a team: their nodes, ids and names, and what their answers are read as."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from agentflow.definition.diagnostics import or_which
from agentflow.errors import ConfigurationError, UnknownSpeaker
from agentflow.executors import Executor
from agentflow.graphs.agents import Agent, AgentExecutor, AgentResponse, Message
from agentflow.graphs.nodes import NodeArgument, UnfitNode, place

__all__ = [
    "Member",
    "Said",
    "answer_from",
    "call_function",
    "describe",
    "find_speaker",
    "members_of",
    "messages_in",
    "output_of",
    "text_of",
]

Said: TypeAlias = str | Message | list[Message] | AgentResponse
"""What a team is given as its task, and what participants answer."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A participant. `node` is what the graph takes; the executor of the team has none, because each run
    copies that executor."""

    id: str
    name: str
    description: str
    node: Any = None
    given: Any = None


def members_of(participants: Sequence[NodeArgument], kind: str) -> list[Member]:
    """Return the participants in their order.

    Agents of equal names are called by their ids, because an agent knows its own words by its name.
    Raises ConfigurationError for what cannot take part, and for two of one id.
    """
    found = [_member(given) for given in participants]
    if not found:
        raise ConfigurationError(f"a {kind} team needs participants")
    ids = [member.id for member in found]
    for id in ids:
        if ids.count(id) > 1:
            raise ConfigurationError(
                f'two participants have the id "{id}"', hint="name one of them AgentExecutor(agent, id)"
            )
    return [_renamed(member, found) for member in found]


def _member(given: NodeArgument) -> Member:
    node = AgentExecutor(given) if isinstance(given, Agent) else given
    if isinstance(node, AgentExecutor):
        agent = node.agent
        return Member(id=node.id, name=agent.name, description=agent.description, node=node, given=given)
    problem = ConfigurationError(f"a {type(given).__name__} cannot take part: pass agents and executors")
    if isinstance(node, str):
        raise problem
    try:
        executor = place(node).executor
    except UnfitNode as error:
        raise ConfigurationError(f"{error}", hint=error.hint) from None
    if executor is None:
        raise problem
    about = inspect.cleandoc(executor.__doc__ or "").partition("\n\n")[0] if _is_own(executor) else ""
    return Member(
        id=executor.id, name=executor.id, description=" ".join(about.split()), node=node, given=given
    )


def _is_own(executor: Executor) -> bool:
    """Return whether the docstring is of this executor, and not inherited from the library."""
    return "__doc__" in vars(executor) or not type(executor).__module__.startswith("agentflow.executors")


def _renamed(member: Member, others: Sequence[Member]) -> Member:
    taken = [name for other in others if other.id != member.id for name in (other.id, other.name)]
    if member.name not in taken or not isinstance(member.node, AgentExecutor):
        return member
    node = AgentExecutor(member.node.agent.with_name(member.id), member.id)
    return msgspec.structs.replace(member, name=member.id, node=node)


def find_speaker(wanted: Any, members: Sequence[Member], team: str) -> Member:
    """Return the participant of an id or name. Raises UnknownSpeaker."""
    for member in members:
        if wanted == member.id:
            return member
    for member in members:
        if wanted == member.name:
            return member
    known = [member.id for member in members]
    shown = wanted if isinstance(wanted, str) else repr(wanted)
    raise UnknownSpeaker(
        f'"{shown}" takes no part in {team}{or_which(shown, known)}',
        hint=f"the participants are {', '.join(known)}",
        details={"speaker": shown, "participants": known},
    )


def describe(members: Sequence[Member]) -> str:
    """Return a line for each participant: id, name and description, as a manager reads them."""
    lines: list[str] = []
    for member in members:
        name = "" if member.name == member.id else f" ({member.name})"
        lines.append(f"- {member.id}{name}" + (f": {member.description}" if member.description else ""))
    return "\n".join(lines)


def messages_in(said: Said) -> list[Message]:
    """Return a task as messages; text is said by the user."""
    if isinstance(said, str):
        return [Message("user", said)]
    if isinstance(said, AgentResponse):
        return list(said.messages) or [Message("assistant", said.text)]
    return [said] if isinstance(said, Message) else list(said)


def answer_from(name: str, said: Said) -> AgentResponse:
    """Return the answer of a participant: its messages carry its name, and hold the text."""
    if isinstance(said, str):
        return AgentResponse(messages=[Message("assistant", said, name)], text=said)
    if not isinstance(said, AgentResponse):
        messages = messages_in(said)
        said = AgentResponse(messages=messages, text=messages[-1].text if messages else "")
    messages = list(said.messages)
    if not messages and (said.text or said.data is not None):
        messages = [Message("assistant", said.text or text_of(said.data), name, said.data)]
    named = [
        msgspec.structs.replace(m, name=name) if m.role == "assistant" and m.name is None else m
        for m in messages
    ]
    text = said.text or (named[-1].text if named else "")
    return msgspec.structs.replace(said, messages=named, text=text)


def text_of(data: Any) -> str:
    """Return data as the text of a message: a string as it is, else JSON."""
    return data if isinstance(data, str) else msgspec.json.encode(data).decode()


def output_of(response: AgentResponse) -> Any:
    """Return the data of an agent with a schema, else the text of an answer."""
    return response.text if response.data is None else response.data


async def call_function(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of the user, in a thread unless it is async, and await what it returns if need be."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method of an object that is callable
    ):
        return await function(argument)
    value = await asyncio.to_thread(function, argument)
    return await value if inspect.isawaitable(value) else value
