"""Options that several verbs share, and the configuration that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from agentflow.config import Config

__all__ = [
    "ExportedRun",
    "is_export",
    "json_option",
    "new_run_id",
    "run_id",
    "run_or_file",
    "settings_of",
]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(help: str) -> Callable[[F], F]:
    """Add `--json`: stdout has JSON only."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def settings_of(store: str | None, on_unknown: Any = None) -> Config:
    """Return the configuration with these flags. Raises ConfigurationError."""
    from agentflow.config import load_config

    return load_config(store=store, on_unknown=on_unknown)


class _NewRunId(click.ParamType[str]):
    """`wf_` and 1 to 64 letters, digits, `_`, `-` (page 000 §1)."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        import re

        if not re.fullmatch(r"wf_[A-Za-z0-9_-]{1,64}", value):
            self.fail(
                f'"{value}" is not the id of a run: "wf_" and 1 to 64 letters, digits, "_", "-"', param, ctx
            )
        return value


new_run_id = _NewRunId()


class _RunId(_NewRunId):
    """A run that exists: its id, a unique prefix of it with or without `wf_`, or `@last` and its like."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        import re

        from agentflow.cli.names import NAMES, RunName

        if value.startswith("@"):
            if value not in NAMES:
                self.fail(f'"{value}" names no run; there are {", ".join(NAMES)}', param, ctx)
            return RunName(value)
        if re.fullmatch(r"[A-Za-z0-9_-]{1,67}", value) and not value.startswith("-"):
            return RunName(value)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from agentflow.cli.names import complete_runs

        return complete_runs(ctx, incomplete)


run_id = _RunId()


class ExportedRun(str):
    """The id of a run that is in a file, not in a store; what is read of it comes from `path`.

    Callers give `str(id)` to the Runtime, because what is made of the id is encoded as plain text.
    """

    __slots__ = ("path",)

    path: str

    @classmethod
    def of_file(cls, path: str) -> ExportedRun:
        """Return the run that the first line of a file is of. InvalidExport."""
        import msgspec

        from agentflow.errors import InvalidExport

        try:
            with open(path, "rb") as file:
                head: Any = msgspec.json.decode(file.readline())
                run = cls(head["workflow_id"])
        except OSError as error:
            raise InvalidExport(path, None, f"cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise InvalidExport(
                path, 1, "this is no event", hint="`agentflow log ID` writes such a file"
            ) from None
        run.path = path
        return run


def is_export(text: str) -> bool:
    """Return whether an argument names an exported file and not a run of the store."""
    return text.endswith(".ndjson")


class _RunOrFile(_RunId):
    """The id of a run of the store, or the path of a file that `agentflow log` wrote."""

    name = "id or file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return ExportedRun.of_file(value) if is_export(value) else super().convert(value, param, ctx)


run_or_file = _RunOrFile()
