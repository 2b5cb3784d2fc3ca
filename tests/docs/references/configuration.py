"""The page `configuration`: agentflow.toml from the Structs that read it, and the environment variables."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from agentflow.config import (
    CodeExecutionConfig,
    FileConfig,
    MessagingConfig,
    PriceConfig,
    RetentionConfig,
    ServerConfig,
    TerminalConfig,
    ToolsetsConfig,
    WebConfig,
)
from agentflow.models.table import known_servers, price_table, table_version
from agentflow.provider_settings import ProviderSettings, SecretName
from tests.docs.blocks import ROOT
from tests.docs.references.tables import GENERATED, table

__all__ = ["VARIABLES", "make_configuration", "used_variables"]

_LIMITS = {
    "timeout_s": "Seconds for one call; a call may ask for less.",
    "max_output_bytes": "Bytes of standard output, and of standard error, that are kept.",
    "max_memory_bytes": "Bytes of address space of each process.",
    "max_processes": "Processes at once; beyond them all are killed.",
}
_ABOUT: dict[type[msgspec.Struct], dict[str, str]] = {
    ToolsetsConfig: {
        "enabled": "The toolsets that plans and documents may use; none without it.",
    },
    FileConfig: {
        "max_bytes": "The largest file that is written.",
        "max_read_bytes": "The largest file that is read.",
    },
    WebConfig: {
        "allowed_hosts": "`HOST` or `HOST:PORT` that may have a private address.",
        "timeout_s": "Seconds to the first byte, and between two reads.",
        "max_bytes": "Bytes of a page that are read.",
    },
    MessagingConfig: {
        "smtp_url": '`smtp://HOST:587` or `smtps://HOST:465`; with a password as `{ "$secret" = "NAME" }`.',
        "from": "The sender of mail.",
        "webhook": 'An address that gets `{to, subject, body}` as JSON; also as `{ "$secret" = "NAME" }`.',
        "timeout_s": "Seconds that the server may take.",
    },
    TerminalConfig: {
        "allow": "Programs that may run, without a shell; `*` for every command of `/bin/sh`.",
        **_LIMITS,
    },
    CodeExecutionConfig: {"languages": "Of `python`, `sh`, `bash`, `javascript`.", **_LIMITS},
    ServerConfig: {
        "socket": 'The Unix socket; `""` for none. Without it `$XDG_RUNTIME_DIR/agentflow/agentflow.sock`.',
        "listen": "Addresses `HOST:PORT` to listen on as well.",
        "hosts": "Names beside those of loopback that requests may name in `Host`.",
        "require_token": "Whether requests to loopback addresses need a token too. The Unix socket needs none.",
        "tokens": "A file of tokens with their scopes, of mode 0600.",
        "insecure": "Whether other addresses than loopback may be served without TLS, behind a proxy that has it.",
        "tls_cert": "The certificate, a PEM file.",
        "tls_key": "Its key, a PEM file.",
        "trust_submitted_services": "Whether every client that is let in may run code of this machine.",
        "definitions": "The folder of registered definitions.",
        "max_streams": "Event streams at once.",
        "max_connections": "Connections at once; lowered where the process has too few file descriptors.",
        "drain": "Seconds that a drain waits for work in flight.",
    },
    RetentionConfig: {
        "mode": "Which ended runs are deleted: none, those older than `max_age`, or the oldest beyond `max_bytes`.",
        "max_age": 'With `age`: `"30d"`, `"12h"` or seconds.',
        "max_bytes": 'With `size`: `"10GiB"` or bytes.',
        "keep_failed": "Whether failed runs are kept in any case.",
        "trim_to_events": "How many events an ended run keeps at least when its first ones are trimmed.",
        "archive_first": "Whether a run is written to the archive before it is removed or trimmed.",
    },
    PriceConfig: {
        "input_price": "US dollars per million tokens of input.",
        "output_price": "US dollars per million tokens of output.",
        "cached_input_price": "US dollars per million tokens of cached input; without it `input_price`.",
        "cache_write_price": "US dollars per million tokens written to the cache; without it `input_price`.",
    },
    ProviderSettings: {
        "kind": "The wire format: chat completions, Responses, Messages or Gemini.",
        "base_url": "The address, with its version (`…/v1`).",
        "key": 'The secret with the key: `{ "$secret" = "NAME" }` is the variable AGENTFLOW_SECRET_NAME.',
        "key_header": "The header of the key, if the server wants another one than its wire format.",
        "profile": "The server of the shipped table whose entry is used; without it that of the section's name.",
        "max_concurrency": "Calls at once; 8 if not set.",
        "requests_per_minute": "Requests of all runs within any 60 s; more wait.",
        "tokens_per_minute": "Tokens, read and written, of all runs within any 60 s; more wait.",
        "first_byte_timeout": "Seconds to the first byte, 0 for no limit; 120 if not set, no limit on loopback.",
        "byte_timeout": "Seconds between two bytes, 0 for no limit; 60 if not set.",
        "api_version": "The `anthropic-version` that is sent.",
        "betas": "The values of `anthropic-beta`.",
        "prompt_caching": "Whether the Messages API is asked to cache what later turns repeat.",
        "defaults": "Fields of the profile of every model: `context_tokens`, `max_output_tokens`, prices, "
        "`schema_mode` and `schema_mode_with_functions` (`native`, `tool`, `prompt`: how an answer by a schema "
        "is asked for, beside functions too), `stream_options`, `output_limit_name`, …",
        "models": "The same for single models, by name.",
    },
}
_TOP = (
    (
        "store",
        "text",
        "The store: `sqlite:FILE`, `file:DIR` or `memory:`. A relative path begins at the file.",
    ),
    (
        "archive",
        "text",
        "The object store that `agentflow archive` moves ended runs to: `s3://BUCKET/PREFIX`.",
    ),
    ("model", "text or table", "The default model: an alias, `PROVIDER:MODEL`, or a table with parameters."),
    ("[models]", "names", "Aliases for models, used by every document."),
    (
        "on_unknown",
        "`ask` · `fail`",
        "When a crash leaves open whether a call took effect: ask a person (default), or fail.",
    ),
    ("[server]", "table", "What the daemon listens on, and which clients it lets in."),
    ("[retention]", "table", "Which ended runs `agentflow gc` and the daemon delete."),
    ("[toolsets]", "table", "Which built-in toolsets there are, and their settings."),
    ('[prices."PROVIDER:MODEL"]', "table", "What a model costs, so that `max_cost_usd` can hold."),
    ("[providers.NAME]", "table", "A server of models; its models are called `NAME:MODEL`."),
)
VARIABLES: dict[str, str] = {
    "AGENTFLOW_ARCHIVE": "The object store of ended runs. Wins over `archive` of the file.",
    "AGENTFLOW_MODEL": "The default model, `PROVIDER:MODEL` or an alias. Wins over `model` of the file.",
    "AGENTFLOW_STORE": "The store. Wins over `store` of the file.",
    "AGENTFLOW_ON_UNKNOWN": "`ask` or `fail`. Wins over `on_unknown` of the file.",
    "AGENTFLOW_TOOLSETS": "Toolsets that are enabled, separated by commas. Wins over `[toolsets] enabled`.",
    "AGENTFLOW_URL": "The daemon that commands and `Client` talk to: `http://HOST:PORT` or `unix:PATH`.",
    "AGENTFLOW_TOKEN": "For a client: its token. For the daemon: a token that may do everything.",
    "AGENTFLOW_SOCKET": "The Unix socket of `agentflow serve`.",
    "AGENTFLOW_LISTEN": "Addresses of `agentflow serve`, separated by commas.",
    "AGENTFLOW_LOG_LEVEL": "`debug`, `info`, `warning` or `error`; `info` in the daemon, else `warning`.",
    "AGENTFLOW_LOCAL_THREADS": "Threads of the embedded model, 1 to 256; 1 if not set.",
    "AGENTFLOW_ALLOW_MODEL_REQUESTS": "`0` forbids requests to models other than the embedded one; for tests.",
    "AGENTFLOW_SECRET_NAME": "The value of `{ $secret: NAME }` in a document; NAME in capitals, others than letters and digits as `_`.",
    "OPENAI_API_KEY": "The key of the OpenAI-compatible server; also chooses it as the default model's provider.",
    "OPENAI_BASE_URL": "The address of an OpenAI-compatible server other than OpenAI's.",
    "ANTHROPIC_API_KEY": "The key of Anthropic; also chooses it as the default model's provider.",
    "ANTHROPIC_BASE_URL": "The address of a server of the Messages API other than Anthropic's.",
    "ANTHROPIC_VERSION": "The version of the Messages API, if not 2023-06-01.",
    "GEMINI_API_KEY": "The key of the Gemini API; also chooses it as the default model's provider.",
    "GEMINI_BASE_URL": "The address of a server of the Gemini API other than Google's.",
    "XDG_DATA_HOME": "Where the default store and the embedded model are: the folder `agentflow` in it.",
    "XDG_CONFIG_HOME": "Where the user's `agentflow/agentflow.toml` is.",
    "XDG_RUNTIME_DIR": "Where the default socket is.",
}


def used_variables() -> set[str]:
    """Return the variables of agentflow that its source names."""
    found: set[str] = set()
    for path in (ROOT / "agentflow").rglob("*.py"):
        if "docs" not in path.relative_to(ROOT).parts:
            found |= set(
                re.findall(
                    r'"((?:AGENTFLOW|OPENAI|ANTHROPIC|GEMINI)_[A-Z]+(?:_[A-Z]+)*)"',
                    path.read_text(encoding="utf-8"),
                )
            )
    return found - {"AGENTFLOW_COMPLETE"}


def make_configuration() -> str:
    """Return the page."""
    return f"""# Configuration

{GENERATED}

Options of a command win over environment variables, those over `agentflow.toml`, that over the defaults. The
file is looked for in the working directory and the directories above it, then in `$XDG_CONFIG_HOME/agentflow/`. Each key is
taken from the nearest file that has it. An unknown key is an error (exit code 78). Keys of providers never stand in the file.

```toml file=agentflow.toml
store = "sqlite:runs.db"
model = "small"

[models]
small = "openai:gpt-4.1-mini"

[server]
listen = ["127.0.0.1:8700"]
max_connections = 1000

[retention]
mode = "age"
max_age = "30d"

[prices."openai:gpt-4.1-mini"]
input_price = 0.4
output_price = 1.6

[providers.deepseek]
key = {{ "$secret" = "deepseek" }}

[providers.inhouse]
kind = "openai"
base_url = "http://127.0.0.1:8000/v1"

[providers.inhouse.models.qwen]
context_tokens = 32768
```

## Keys of agentflow.toml

{table(("key", "value", "what it does"), [(f"`{key}`", kind, about) for key, kind, about in _TOP])}
### `[server]`

{_struct(ServerConfig)}
### `[retention]`

{_struct(RetentionConfig)}
### `[prices."PROVIDER:MODEL"]`

{_struct(PriceConfig)}
Prices of the models of OpenAI and Anthropic are shipped, as of {price_table().as_of}, for their own addresses; yours
replace them.

### `[providers.NAME]`

{_struct(ProviderSettings)}
The profiles of models are shipped, as of {table_version()}; what a section states replaces a field of them. Kind and
address of these servers are known, so that their section may be empty or have a key alone:
{", ".join(f"`{name}`" for name in known_servers())}.

### `[toolsets]`

{_struct(ToolsetsConfig)}
{_toolsets()}
## Environment variables

{table(("variable", "what it does"), [(f"`{name}`", about) for name, about in VARIABLES.items()])}
Telemetry follows the standard `OTEL_*` variables; without them nothing is sent.
"""


def _toolsets() -> str:
    kinds = {
        "file": FileConfig,
        "web": WebConfig,
        "messaging": MessagingConfig,
        "terminal": TerminalConfig,
        "code_execution": CodeExecutionConfig,
    }
    return "\n".join(f"### `[toolsets.{name}]`\n\n{_struct(kind)}" for name, kind in kinds.items())


def _struct(kind: type[msgspec.Struct]) -> str:
    hints = get_type_hints(kind)
    rows: list[tuple[str, str, str, str]] = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.default, msgspec.Struct):
            continue  # a table of its own
        name = field.encode_name
        default = "**required**" if field.required else _default(field.default)
        rows.append((f"`{name}`", _type(hints[field.name]), default, _ABOUT[kind][name]))
    assert set(_ABOUT[kind]) == {row[0].strip("`") for row in rows}
    return table(("key", "value", "default", "what it does"), rows)


def _default(value: Any) -> str:
    if value is None or value is msgspec.NODEFAULT or value == ():
        return ""
    return f"`{msgspec.json.encode(value).decode()}`"


def _type(kind: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "boolean"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is tuple:
        return "array of text"
    if get_origin(kind) is dict or kind is SecretName:
        return "table"
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal:
        return " · ".join(f"`{part}`" for part in parts)
    return " or ".join(
        dict.fromkeys(_type(part) if not isinstance(part, str) else f"`{part}`" for part in parts)
    )
