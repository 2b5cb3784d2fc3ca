"""Service behind the operations of the API: the Runtime and the state of the daemon itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from agentflow.aside import compute_aside
from agentflow.config import ServerConfig
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.loader import Definition, load_text, load_value
from agentflow.events.log import EventLog
from agentflow.events.retention import RetentionPolicy
from agentflow.pipeline.requests import Requests
from agentflow.runtime import Runtime
from agentflow.runtime.child_runs import RegisteredGraph
from agentflow.runtime.submission import LONG_SOURCE_BYTES, import_loader
from agentflow.server.access import Actor
from agentflow.server.definitions import Definitions
from agentflow.server.large_bodies import LargeBodies
from agentflow.server.metrics import Metrics
from agentflow.server.problems import TRUST_HINT, Refusal, with_trust_hint
from agentflow.server.sessions import Sessions
from agentflow.server.stream_registry import StreamRegistry
from agentflow.server.tokens import Tokens

if TYPE_CHECKING:
    from agentflow.graphs import Workflow

__all__ = ["Service", "Submitted"]

_KEPT = 256
_KEPT_SOURCE = 1 << 20
_REGISTRAR_HINT = "{} {} was registered by {}, who is not trusted; register its source again as the owner"


class Submitted(NamedTuple):
    """A definition that a client submits. `trusted`: it may run code of this machine, because the client may
    and, if it was registered, its registrar may too. `hint` says how it would be trusted."""

    definition: Definition
    trusted: bool
    hint: str
    workflow: Workflow | None = None
    """The workflow built in Python that the definition is of, with its code."""

    def message(self, input: Any) -> Any:
        """Return the input that the Runtime takes: of a workflow built in Python a value of its types.

        Raises DefinitionError (E_INPUT_INVALID).
        """
        return input if self.workflow is None else self.workflow.read_input(input)

    def explain(self, diagnostics: list[Diagnostic]) -> list[Diagnostic]:
        """Return the diagnostics; those of services that need trust get the hint."""
        return with_trust_hint(diagnostics, self.hint)


class Service:
    """One for each application. `describe` gives the OpenAPI document; `stop` asks the process to drain, None
    where the application is mounted in a server that is not ours. `metrics` is given where the Runtime has
    its telemetry."""

    def __init__(
        self,
        runtime: Runtime,
        config: ServerConfig,
        definitions: Definitions,
        describe: Callable[[], bytes],
        stop: Callable[[], None] | None = None,
        metrics: Metrics | None = None,
        tokens: Tokens | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.runtime = runtime
        self.config = config
        self.definitions = definitions
        self.describe = describe
        self.metrics = metrics or Metrics()
        self.tokens = tokens or Tokens()
        self.sessions = sessions or Sessions(self.tokens)
        self.streams = StreamRegistry(
            runtime.hub, runtime.delta_hub, runtime.log, self.metrics, config.max_streams
        )
        self.stop = stop
        self.requests = Requests(runtime)
        self.retention: RetentionPolicy | None = None
        self.draining = False
        self.ready = True
        self.large_bodies = LargeBodies()
        self._loaded: dict[tuple[Any, ...], Definition] = {}
        runtime.graph_source = self._registered_graph

    @property
    def log(self) -> EventLog:
        """The open store."""
        return self.runtime.log

    async def runs(self) -> dict[str, int]:
        """Return how many runs of the store have not ended, by state; at most 10,000 of each are counted."""
        found: dict[str, int] = {}
        for state in ("pending", "running", "waiting", "paused"):
            count, cursor = 0, None
            for _ in range(20):
                page = await self.log.runs(state=state, limit=500, cursor=cursor)
                count, cursor = count + len(page.items), page.next_cursor
                if cursor is None:
                    break
            found[state] = count
        return found

    async def _registered_graph(self, name: str) -> RegisteredGraph | None:
        """Return a registered definition as a graph that subgraphs may name, with its registrar's trust."""
        wanted, version = _reference(name)
        try:
            found = await self.definitions.find(wanted, version)
        except Refusal:
            return None
        loaded = await _load(found.source, 0, media=None, file=None, folder=None, format=found.format)
        return RegisteredGraph(loaded, found.trusted)

    async def load(
        self,
        actor: Actor,
        definition: Any,
        reference: Any = None,
        *,
        format: str | None = None,
        media: str | None = None,
        file: str | None = None,
        folder: str | None = None,
    ) -> Submitted:
        """Return the definition of a submission and its trust; the same text is parsed once.

        Raises DefinitionError, or Refusal when there is none or two.
        """
        if (definition is None) == (reference is None):
            raise Refusal("invalid_parameter", "give either definition or definition_ref")
        trusted, hint = actor.trusted, TRUST_HINT
        if reference is not None:
            name, version = _reference(reference)
            loaded = self.definitions.loaded(name, version)
            if loaded is not None:
                return Submitted(loaded.definition, trusted, hint, loaded)
            found = await self.definitions.find(name, version)
            definition, format = found.source, found.format
            if trusted and not found.trusted:
                trusted, hint = False, _REGISTRAR_HINT.format(found.name, found.version, found.by)
        # A folder is a place to import code from: only a trusted submission may name one.
        at = Path(folder) if folder is not None and trusted else None
        # A value is named by its bytes: order and layout of its keys included, for diagnostics.
        text = msgspec.json.encode(definition) if isinstance(definition, dict) else definition
        key = (text, media, file, folder if at else None, format)
        known = self._loaded.pop(key, None)
        if known is None:
            await import_loader(None if isinstance(definition, dict) else _media_of(text, media))
            known = await _load(definition, len(text), media=media, file=file, folder=at, format=format)
        if len(text) <= _KEPT_SOURCE:
            self._loaded[key] = known
            if len(self._loaded) > _KEPT:
                del self._loaded[next(iter(self._loaded))]
        return Submitted(known, trusted, hint)


async def _load(source: Any, size: int, **more: Any) -> Definition:
    if isinstance(source, dict):
        work = partial(load_value, source, folder=more["folder"], format=more["format"])
    else:
        work = partial(load_text, source, **more)
    return await compute_aside(work) if size > LONG_SOURCE_BYTES else work()


def _media_of(text: str | bytes, media: str | None) -> Literal["json", "yaml"]:
    """Return what a text is probably read as."""
    begins = text[:1] in ("{", b"{")
    return "json" if media is None and begins else "yaml"


def _reference(reference: Any) -> tuple[str, str | None]:
    if isinstance(reference, str):
        name, at, version = reference.partition("@")
        return name, version if at else None
    return reference.name, reference.version
