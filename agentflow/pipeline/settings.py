"""Settings of the request pipeline: the section `[pipeline]` of agentflow.toml, or given in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentflow.config import data_folder
from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.toolsets import PolicyRule, SideEffectClass
from agentflow.definition.type_errors import explain
from agentflow.errors import ConfigurationError, InvalidOptions

STATE_FILE = ".agentflow-workflow-state.jsonl"

__all__ = ["STATE_FILE", "PipelineSettings", "default_workspace_root", "settings_of", "workspace_in"]


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests are judged, planned, approved and executed."""

    review: Literal["requested", "always"] = "requested"
    """`always` makes every request review-first."""
    approval_class: SideEffectClass = "external"
    """Steps of this class and above need an approval."""
    policy: tuple[PolicyRule, ...] = ()
    distinct_approver: bool = False
    """True: who submitted a run cannot approve its steps."""
    delegate: str = "built-in"
    """Who works on steps: `built-in`, `none`, or the name of one of `delegates` or of a registered service
    with a function `delegate_task`."""
    delegates: dict[str, dict[str, Any]] = {}
    """Delegates that are programs, by name: each is declared as a service of a document, of type mcp, http or
    openapi (`[pipeline.delegates.NAME]`)."""
    quota_auto_resume: bool = True
    """True: a request that paused for a quota goes on by itself when the provider has said when."""
    state_file: str | None = STATE_FILE
    """Name of the state file in the workspace; None or an empty text writes none."""
    model: str | None = None
    """Of the stages and the delegate; by default that of the runtime."""
    max_parallel: int = 4
    workspace_roots: tuple[str, ...] = ()
    """Folders below which a workspace may lie; the first one has those that no request names."""
    verify_network: bool = True
    allowed_hosts: tuple[str, ...] = ()
    """Private hosts that verification may ask."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders below which a workspace may lie."""
        if not self.workspace_roots:
            return (default_workspace_root(),)
        return tuple(Path(root).expanduser() for root in self.workspace_roots)

    def graph_settings(self, *, template: str | None = None) -> dict[str, Any]:
        """Return what the graph of a request keeps of the settings."""
        found: dict[str, Any] = {
            "approval_class": self.approval_class,
            "policy": msgspec.to_builtins(self.policy),
            "max_parallel": self.max_parallel,
            "verify_network": self.verify_network,
        }
        if self.allowed_hosts:
            found["allowed_hosts"] = list(self.allowed_hosts)
        if self.delegate != "built-in":
            found["delegate"] = self.delegate
        if self.state_file:
            found["state_file"] = self.state_file
        if not self.quota_auto_resume:
            found["quota_auto_resume"] = False
        if self.distinct_approver:
            found["distinct_approver"] = True
        if template is not None:
            found["template"] = template
        return found


def settings_of(section: Mapping[str, Any]) -> PipelineSettings:
    """Return the settings of the section `[pipeline]`. Raises ConfigurationError naming the wrong key."""
    for key in section:
        if key not in PipelineSettings.__struct_fields__:
            known = PipelineSettings.__struct_fields__
            hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
            raise ConfigurationError(f"unknown key {key!r} in [pipeline]", hint=hint)
    try:
        return msgspec.convert(dict(section), PipelineSettings)
    except msgspec.ValidationError as error:
        problem = explain(error, PipelineSettings)
        raise ConfigurationError(f"[pipeline]: {problem.sentence()}", hint=problem.hint) from None


def default_workspace_root() -> Path:
    """Return the folder of workspaces in the data folder of the user."""
    return data_folder() / "workspaces"


def workspace_in(roots: tuple[Path, ...], wanted: str) -> str:
    """Return the real path of a workspace, and make the directory.

    Raises InvalidOptions if it lies below none of the roots, or cannot be made.
    """
    try:
        path = Path(wanted).expanduser()
        real = (path if path.is_absolute() else roots[0] / path).resolve()
        if not any(real == root.resolve() or root.resolve() in real.parents for root in roots):
            raise _refused(
                f"workspace {wanted[:200]} lies below no folder of pipeline.workspace_roots",
                "add its folder to [pipeline] workspace_roots",
            )
        real.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a NUL, ~ of an unknown user
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _refused(f"workspace {wanted[:200]!r} cannot be made: {why}", None) from None
    return str(real)


def _refused(message: str, hint: str | None) -> InvalidOptions:
    problem = Diagnostic(code="E_WORKSPACE", severity="error", message=message, path="/workspace", hint=hint)
    return InvalidOptions([problem])
