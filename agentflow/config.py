"""Configuration: flags > `AGENTFLOW_*` > `agentflow.toml` > defaults (page 000 §12).

The file is looked for in the working directory and the directories above it, then in the user's
configuration folder; a key of the nearer file wins. This module is the only reader of these files. It never
writes, and never holds a credential: those stay in the environment (`OPENAI_API_KEY` …).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.errors import ConfigurationError
from agentflow.provider_settings import ProviderSettings
from agentflow.units import bytes_of, seconds_of

if TYPE_CHECKING:
    from agentflow.events.retention import RetentionPolicy

__all__ = [
    "FILE_NAME",
    "CodeExecutionConfig",
    "Config",
    "FileConfig",
    "MessagingConfig",
    "PriceConfig",
    "RetentionConfig",
    "ServerConfig",
    "TerminalConfig",
    "ToolsetsConfig",
    "WebConfig",
    "data_folder",
    "default_socket",
    "default_store",
    "find_files",
    "load_config",
]

FILE_NAME = "agentflow.toml"

_CREDENTIALS = ("api_key", "base_url")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[server]`: what the daemon listens on and whom it lets in (page 000 §8.3).

    `socket` "" means no Unix socket. `listen` are `HOST:PORT`. `hosts` are names beside those of loopback
    that requests may name as their host. `tokens` is a file of mode 0600. `definitions` is the
    folder of registered definitions. `drain` in seconds. `max_connections` and `max_streams`
    are lowered where the process has too few descriptors to leave some to runs.

    `trust_submitted_services`: every client that is let in may run code of this machine, not the owner on
    the Unix socket alone. What is registered or accepted in that time stays trusted when it is switched off.
    """

    socket: str | None = None
    listen: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    require_token: bool = False
    tokens: str | None = None
    insecure: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    trust_submitted_services: bool = False
    definitions: str | None = None
    max_streams: int = 1_000
    max_connections: int = 4_096
    drain: float = 30.0


class RetentionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[retention]`: which ended runs go (page 000 §7). `max_age` is a duration ("30d") or
    seconds, `max_bytes` a size ("10GiB") or bytes."""

    mode: Literal["infinite", "age", "size"] = "infinite"
    max_age: str | float | None = None
    max_bytes: str | int | None = None
    keep_failed: bool = True
    trim_to_events: int | None = None
    archive_first: bool = False


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A section `[prices."provider:model"]`: US dollars per million tokens. Cached input costs what input
    costs unless its own price is said."""

    input_price: float
    output_price: float
    cached_input_price: float | None = None
    cache_write_price: float | None = None


class FileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[toolsets.file]`: the largest file that is written, and that is read, in bytes."""

    max_bytes: int = 16 << 20
    max_read_bytes: int = 256 << 10


class WebConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[toolsets.web]`. `allowed_hosts` are HOST or HOST:PORT that may have a private address."""

    allowed_hosts: tuple[str, ...] = ()
    timeout_s: float = 30.0
    max_bytes: int = 2 << 20


class MessagingConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"sender": "from"}
):
    """The section `[toolsets.messaging]`. A URL with a password is named as a secret:
    `{ "$secret" = "NAME" }` is the value of AGENTFLOW_SECRET_NAME."""

    smtp_url: str | dict[str, str] | None = None
    sender: str | None = None
    webhook: str | dict[str, str] | None = None
    timeout_s: float = 30.0


class TerminalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[toolsets.terminal]`. `allow` are names of programs, or `*` for every command of a shell;
    without any the toolset is down."""

    allow: tuple[str, ...] = ()
    timeout_s: float = 60.0
    max_output_bytes: int = 64 << 10
    max_memory_bytes: int = 1 << 30
    max_processes: int = 32


class CodeExecutionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[toolsets.code_execution]`. `languages` are python, sh, bash or javascript; without any
    the toolset is down."""

    languages: tuple[str, ...] = ()
    timeout_s: float = 60.0
    max_output_bytes: int = 64 << 10
    max_memory_bytes: int = 1 << 30
    max_processes: int = 32


class ToolsetsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[toolsets]`: which toolsets plans and documents may use (page 004 §5). None is enabled
    unless it is named."""

    enabled: tuple[str, ...] = ()
    file: FileConfig = FileConfig()
    web: WebConfig = WebConfig()
    messaging: MessagingConfig = MessagingConfig()
    terminal: TerminalConfig = TerminalConfig()
    code_execution: CodeExecutionConfig = CodeExecutionConfig()


_TOOLSETS: Mapping[str, type[msgspec.Struct]] = {
    "file": FileConfig,
    "web": WebConfig,
    "messaging": MessagingConfig,
    "terminal": TerminalConfig,
    "code_execution": CodeExecutionConfig,
}


class _File(msgspec.Struct, kw_only=True):
    """The keys of `agentflow.toml` and their types."""

    store: str | None = None
    archive: str | None = None
    model: str | dict[str, Any] | None = None
    models: dict[str, str | dict[str, Any]] = {}
    on_unknown: Literal["ask", "fail"] | None = None
    server: ServerConfig | None = None
    retention: RetentionConfig | None = None
    prices: dict[str, PriceConfig] = {}
    providers: dict[str, ProviderSettings] = {}
    pipeline: dict[str, Any] = {}
    toolsets: ToolsetsConfig | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for this process.

    `model`, `models` (default and aliases), `prices` and `providers` are those of the files; AGENTFLOW_MODEL,
    which wins over `model`, is read by `Models` itself. `retention` None is infinite. `files` are the files
    that were read, the nearest first.
    """

    store: str
    archive: str | None = None
    """The object store that `agentflow archive` moves ended runs to, and that they are read from."""
    model: str | dict[str, Any] | None = None
    models: dict[str, str | dict[str, Any]] = {}
    prices: dict[str, PriceConfig] = {}
    providers: dict[str, ProviderSettings] = {}
    on_unknown: Literal["ask", "fail"] | None = None
    server: ServerConfig = ServerConfig()
    retention: RetentionPolicy | None = None
    pipeline: dict[str, Any] = {}
    """The section `[pipeline]` as it is written: the request pipeline reads it."""
    toolsets: ToolsetsConfig = ToolsetsConfig()
    files: tuple[Path, ...] = ()

    def for_models(self) -> dict[str, Any]:
        """The mapping that `agentflow.models.Models` takes as `config`."""
        return {
            "model": self.model,
            "models": self.models,
            "prices": msgspec.to_builtins(self.prices),
            "providers": msgspec.to_builtins(self.providers),
        }


def load_config(
    *,
    store: str | None = None,
    on_unknown: Literal["ask", "fail"] | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """The configuration; arguments are flags. `folder` stands for the working directory.

    Raises ConfigurationError that names the file and every wrong key of it, or the variable.
    """
    environment = os.environ if env is None else env
    files = find_files(environment, folder)
    merged = _File()
    for path in reversed(files):  # the nearest file last, so that it wins
        _merge(merged, _read(path))
    return Config(
        store=store or environment.get("AGENTFLOW_STORE") or merged.store or default_store(environment),
        archive=environment.get("AGENTFLOW_ARCHIVE") or merged.archive,
        model=merged.model,
        models=merged.models,
        prices=merged.prices,
        providers=merged.providers,
        pipeline=merged.pipeline,
        on_unknown=on_unknown or _on_unknown(environment) or merged.on_unknown,
        server=merged.server or ServerConfig(),
        retention=None if merged.retention is None else _policy(merged.retention),
        toolsets=_toolsets(merged.toolsets or ToolsetsConfig(), environment),
        files=tuple(files),
    )


def default_store(env: Mapping[str, str] | None = None) -> str:
    """`sqlite:` + `$XDG_DATA_HOME/agentflow/agentflow.db`, or the platform's place for it."""
    base = _home("XDG_DATA_HOME", env) or _platform_folder("data")
    return f"sqlite:{base / 'agentflow.db'}"


def default_socket(env: Mapping[str, str] | None = None) -> Path:
    """`$XDG_RUNTIME_DIR/agentflow/agentflow.sock`; without that variable beside the default store, since a
    folder below /tmp might be somebody else's."""
    base = _home("XDG_RUNTIME_DIR", env) or _home("XDG_DATA_HOME", env)
    return (base or _platform_folder("data")) / "agentflow.sock"


def data_folder(env: Mapping[str, str] | None = None) -> Path:
    """Return the folder of agentflow for data of the user."""
    return _home("XDG_DATA_HOME", env) or _platform_folder("data")


def find_files(env: Mapping[str, str] | None = None, folder: Path | None = None) -> list[Path]:
    """The configuration files that are there: the nearest from `folder` upwards, then the user's."""
    found: list[Path] = []
    start = (folder or Path.cwd()).absolute()
    for directory in (start, *start.parents):
        if (directory / FILE_NAME).is_file():
            found.append(directory / FILE_NAME)
            break
    users = (_home("XDG_CONFIG_HOME", env) or _platform_folder("config")) / FILE_NAME
    if users.is_file() and users not in found:
        found.append(users)
    return found


def _home(variable: str, env: Mapping[str, str] | None) -> Path | None:
    """The folder of agentflow below an XDG base directory; a relative one is to be ignored, says XDG."""
    value = (os.environ if env is None else env).get(variable, "")
    return Path(value) / "agentflow" if value and Path(value).is_absolute() else None


def _platform_folder(kind: Literal["data", "config"]) -> Path:
    """Return the platform's folder for the data or the configuration of agentflow."""
    import platformdirs  # 5 ms, which a start with XDG variables and --store does without

    if kind == "data":
        return platformdirs.user_data_path("agentflow", False)
    return platformdirs.user_config_path("agentflow", False)


def _on_unknown(env: Mapping[str, str]) -> Literal["ask", "fail"] | None:
    value = env.get("AGENTFLOW_ON_UNKNOWN")
    if not value:
        return None
    if value not in ("ask", "fail"):
        raise ConfigurationError(f'AGENTFLOW_ON_UNKNOWN is "{value}"', hint="write ask or fail")
    return value


def _toolsets(section: ToolsetsConfig, env: Mapping[str, str]) -> ToolsetsConfig:
    """Return the section with the names of AGENTFLOW_TOOLSETS, which wins even if it is empty."""
    named = env.get("AGENTFLOW_TOOLSETS")
    if named is None:
        return section
    names = dict.fromkeys(name.strip() for name in named.split(",") if name.strip())
    return msgspec.structs.replace(section, enabled=tuple(names))


def _read(path: Path) -> _File:
    import tomllib  # 3 ms, which a start without a file of configuration does without

    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        found = re.search(r"at line (\d+), column (\d+)", str(error))
        place = f"{path}:{found[1]}:{found[2]}" if found else str(path)
        raise ConfigurationError(f"{place} is not TOML", hint="quote texts; see toml.io") from error
    _check_keys(path, table)
    try:
        settings = msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        from agentflow.definition.type_errors import explain

        problem = explain(error, _File)
        raise ConfigurationError(f"{path}: {problem.sentence()}", hint=problem.hint) from error
    _check_models(path, settings)
    if settings.store is not None:
        settings.store = _relative_to(path.parent, settings.store)
    if settings.server is not None:
        settings.server = _server_beside(path.parent, settings.server)
    if settings.retention is not None:
        try:
            _policy(settings.retention)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: [retention] {error}", hint=error.hint) from None
    return settings


def _check_keys(path: Path, table: dict[str, Any]) -> None:
    _check_table(path, table, "", _File)
    sections = (("server", ServerConfig), ("retention", RetentionConfig), ("toolsets", ToolsetsConfig))
    for name, kind in sections:
        section = table.get(name)
        if isinstance(section, dict):
            _check_table(path, cast("dict[str, Any]", section), f" in [{name}]", kind)
    _check_toolsets(path, table.get("toolsets"))
    prices = table.get("prices")
    if isinstance(prices, dict):
        for model, section in cast("dict[str, Any]", prices).items():
            _check_price(path, model, section)
    providers = table.get("providers")
    if isinstance(providers, dict):
        for name, section in cast("dict[str, Any]", providers).items():
            _check_provider(path, name, section)


def _check_provider(path: Path, name: str, section: Any) -> None:
    where = f"[providers.{name}]"
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name == "local":
        hint = "use small letters, digits, '.', '_' and '-'; `local` is the embedded model"
        raise ConfigurationError(f"{path}: {where} is no name of a provider", hint=hint)
    if not isinstance(section, dict):
        raise ConfigurationError(f"{path}: {where} is no table", hint="write kind and base_url")
    members = cast("dict[str, Any]", section)
    _check_table(path, members, f" in {where}", ProviderSettings)
    if isinstance(members.get("key"), str):
        hint = 'write key = { "$secret" = "NAME" } and set AGENTFLOW_SECRET_NAME in the environment'
        raise ConfigurationError(f"{path}: a key must not stand in {where}", hint=hint)


def _check_toolsets(path: Path, toolsets: Any) -> None:
    """Check the keys of the tables of toolsets, and that no password stands in one."""
    for name, kind in _TOOLSETS.items():
        section = cast("dict[str, Any]", toolsets).get(name) if isinstance(toolsets, dict) else None
        if isinstance(section, dict):
            _check_table(path, cast("dict[str, Any]", section), f" in [toolsets.{name}]", kind)
    messaging: Any = cast("dict[str, Any]", toolsets).get("messaging") if isinstance(toolsets, dict) else None
    for key in ("smtp_url", "webhook"):
        url: Any = cast("dict[str, Any]", messaging).get(key) if isinstance(messaging, dict) else None
        if isinstance(url, str) and ":" in url.partition("://")[2].rpartition("@")[0]:
            raise ConfigurationError(
                f"{path}: a password must not stand in `toolsets.messaging.{key}`",
                hint=f'write {key} = {{ "$secret" = "NAME" }}, and set AGENTFLOW_SECRET_NAME',
            )


def _check_price(path: Path, model: str, section: Any) -> None:
    """A price that is none would make a budget that holds nothing."""
    where = f'[prices."{model}"]'
    provider, colon, name = model.partition(":")
    if not (provider and colon and name) or not isinstance(section, dict):
        hint = 'write [prices."openai:NAME"] with input_price and output_price'
        raise ConfigurationError(f"{path}: {where} is no table of a model provider:model", hint=hint)
    members = cast("dict[str, Any]", section)
    _check_table(path, members, f" in {where}", PriceConfig)
    for key in ("input_price", "output_price"):
        if key not in members:
            hint = "write US dollars per million tokens"
            raise ConfigurationError(f'{path}: {where} has no "{key}"', hint=hint)
    for key, value in members.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            hint = "write US dollars per million tokens, 0 or more"
            raise ConfigurationError(f"{path}: {key} in {where} is no price", hint=hint)


def _check_table(path: Path, table: dict[str, Any], where: str, kind: type[msgspec.Struct]) -> None:
    known = list(kind.__struct_encode_fields__)
    unknown = [key for key in table if key not in known]
    if not unknown:
        return
    names = ", ".join(f'"{key}"' for key in unknown)
    hints = [did_you_mean(key, known) for key in unknown]
    close = "; ".join(hint for hint in hints if hint is not None)
    raise ConfigurationError(
        f"{path}: unknown key{'s' if len(unknown) > 1 else ''} {names}{where}",
        hint=close or f"the keys are {', '.join(known)}",
    )


def _check_models(path: Path, settings: _File) -> None:
    """A model's table is recorded with every run: a credential must never stand in it."""
    tables = {"model": settings.model, **{f"models.{k}": v for k, v in settings.models.items()}}
    for where, table in tables.items():
        for key in _CREDENTIALS:
            if isinstance(table, dict) and key in table:
                raise ConfigurationError(
                    f'{path}: "{key}" must not stand in `{where}`',
                    hint="write them to the environment: OPENAI_API_KEY, OPENAI_BASE_URL",
                )


def _merge(into: _File, nearer: _File) -> None:
    for name in _File.__struct_fields__:
        value = getattr(nearer, name)
        if name == "models":
            into.models = {**into.models, **cast("dict[str, str | dict[str, Any]]", value)}
        elif name == "prices":
            into.prices = {**into.prices, **cast("dict[str, PriceConfig]", value)}
        elif name == "providers":
            into.providers = {**into.providers, **cast("dict[str, ProviderSettings]", value)}
        elif value is not None:
            setattr(into, name, value)


def _relative_to(folder: Path, store: str) -> str:
    """`sqlite:runs.db` in a file means the database beside that file, wherever the command is run."""
    scheme, colon, rest = store.partition(":")
    if scheme not in ("sqlite", "file") or not colon or not rest or rest.startswith("/"):
        return store
    return f"{scheme}:{folder / rest}"


def _server_beside(folder: Path, server: ServerConfig) -> ServerConfig:
    """Files that `[server]` names are beside the file that names them."""
    named = {
        name: getattr(server, name) for name in ("socket", "tokens", "tls_cert", "tls_key", "definitions")
    }
    placed = {name: str(folder / Path(value).expanduser()) for name, value in named.items() if value}
    return msgspec.structs.replace(server, **placed)


def _policy(section: RetentionConfig) -> RetentionPolicy:
    """The policy that a section stands for. ConfigurationError without the name of the file."""
    from agentflow.events.retention import RetentionPolicy  # imported for those who have such a section

    try:
        return RetentionPolicy(
            mode=section.mode,
            max_age=_seconds(section.max_age),
            max_bytes=_bytes(section.max_bytes),
            keep_failed=section.keep_failed,
            archive_first=section.archive_first,
            trim_to_events=section.trim_to_events,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _seconds(value: str | float | None) -> float | None:
    if not isinstance(value, str):
        return value
    found = seconds_of(value)
    if found is None:
        raise ConfigurationError(f'max_age: "{value}" is not a duration', hint='write "12h", "30d" or "8w"')
    return found


def _bytes(value: str | int | None) -> int | None:
    if not isinstance(value, str):
        return value
    found = bytes_of(value)
    if found is None:
        raise ConfigurationError(
            f'max_bytes: "{value}" is not a size', hint='write "500MB", "10GiB" or a number of bytes'
        )
    return found
