"""Which toolsets there are: configuration, environment, states, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow.config import CodeExecutionConfig, MessagingConfig, TerminalConfig, ToolsetsConfig, load_config
from agentflow.definition.toolsets import Toolsets
from agentflow.errors import ConfigurationError
from agentflow.tools import Service, ToolRegistry, function
from agentflow.tools.toolsets.registry import BUILT_IN, ToolsetRegistry

ROOTS = [Path("/nowhere")]


def registry(*enabled: str, **sections: Any) -> ToolsetRegistry:
    return ToolsetRegistry(ToolsetsConfig(enabled=enabled, **sections), ROOTS)


def test_nothing_configured_is_nothing_available() -> None:
    found = registry()
    assert {view.state for view in found.views()} == {"disabled"}
    assert found.services() == []
    assert not any(one.enabled for one in found.toolsets())


def test_enabled_and_not_configured_is_down() -> None:
    found = registry("file", "messaging", "terminal", "code_execution")
    states = {view.name: view.state for view in found.views()}
    assert states == {
        "web": "disabled",
        "file": "enabled",
        "messaging": "down",
        "terminal": "down",
        "code_execution": "down",
    }
    assert [service.name for service in found.services()] == ["file"]
    assert {view.name for view in found.views() if view.needs} == {"messaging", "terminal", "code_execution"}
    assert [one.name for one in found.toolsets() if one.enabled] == ["file"]


def test_secret_that_is_not_set_is_down_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry("messaging", messaging=MessagingConfig(smtp_url={"$secret": "MAIL"}, sender="a@b.org"))
    assert found.state_of("messaging") == "down"
    monkeypatch.setenv("AGENTFLOW_SECRET_MAIL", "smtp://localhost")
    assert found.state_of("messaging") == "enabled"


def test_listed_classes_are_those_of_the_functions() -> None:
    found = registry(
        *(one.name for one in BUILT_IN),
        messaging=MessagingConfig(webhook="http://localhost/x"),
        terminal=TerminalConfig(allow=("ls",)),
        code_execution=CodeExecutionConfig(languages=("sh",)),
    )
    listed = {tool.name: tool.side_effect for one in found.toolsets() for tool in one.tools}
    real = {f"{t.service}.{t.function}": t.side_effect for s in found.services() for t in s.tools.values()}
    assert listed == real
    classes = {view.name: view.side_effect for view in found.views()}
    assert classes == {
        "web": "read",
        "file": "write",
        "messaging": "external",
        "terminal": "external",
        "code_execution": "external",
    }
    names = {tool.name for service in found.services() for tool in service.tools.values()}
    assert {"file__write", "messaging__send", "code_execution__run"} <= names


def test_functions_are_offered_only_where_they_are_named() -> None:
    tools = ToolRegistry(registry("file", "web").services())
    assert tools.all_public() == []


@pytest.mark.parametrize("alias", ["discord", "discord_admin", "telegram", "slack", "send_message"])
def test_aliases_mean_messaging(alias: str) -> None:
    found = registry(alias)
    assert found.state_of("messaging") == "down"
    toolset = Toolsets(found.toolsets()).find(alias)
    assert toolset is not None
    assert toolset.name == "messaging"


def test_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r'no toolset "flie"; did you mean "file"\?'):
        registry("flie")


def test_registered_service_is_a_toolset_when_it_is_enabled() -> None:
    @function(side_effect="irreversible")
    def launch(code: str) -> str:
        """Launch it."""
        return code

    service = Service.of("rockets", launch)
    off = ToolsetRegistry(ToolsetsConfig(), ROOTS, services=[service])
    on = ToolsetRegistry(ToolsetsConfig(enabled=("rockets",)), ROOTS, services=[service])
    assert (off.state_of("rockets"), on.state_of("rockets")) == ("disabled", "enabled")
    view = next(view for view in on.views() if view.name == "rockets")
    assert (view.side_effect, view.tools) == ("irreversible", ("rockets.launch",))
    assert on.services() == []


BAD = {
    "no_sender": MessagingConfig(smtp_url="smtp://localhost"),
    "scheme": MessagingConfig(smtp_url="http://localhost", sender="a@b.org"),
    "no_host": MessagingConfig(webhook="https://"),
    "no_secret": MessagingConfig(webhook={"secret": "X"}),
}


@pytest.mark.parametrize("config", BAD.values(), ids=BAD)
def test_table_that_cannot_hold_is_refused(config: MessagingConfig) -> None:
    with pytest.raises(ConfigurationError):
        registry("messaging", messaging=config)


def _load(folder: Path, text: str, env: dict[str, str] | None = None) -> ToolsetsConfig:
    (folder / "agentflow.toml").write_text(text)
    return load_config(folder=folder, env={"XDG_CONFIG_HOME": str(folder / "none"), **(env or {})}).toolsets


def test_file_of_configuration(tmp_path: Path) -> None:
    found = _load(
        tmp_path,
        '[toolsets]\nenabled = ["file", "web"]\n[toolsets.messaging]\nsmtp_url = "smtp://localhost"\n'
        'from = "a@b.org"\n[toolsets.terminal]\nallow = ["git"]\ntimeout_s = 5\nmax_output_bytes = 9\n',
    )
    assert found.enabled == ("file", "web")
    assert (found.messaging.sender, found.terminal.allow, found.terminal.timeout_s) == (
        "a@b.org",
        ("git",),
        5,
    )


@pytest.mark.parametrize(
    ("value", "expected"), [("web", ("web",)), (" file , web,", ("file", "web")), ("", ())]
)
def test_environment_wins(tmp_path: Path, value: str, expected: tuple[str, ...]) -> None:
    found = _load(tmp_path, '[toolsets]\nenabled = ["terminal"]\n', {"AGENTFLOW_TOOLSETS": value})
    assert found.enabled == expected


WRONG = {
    "toolset": ("[toolsets.flie]\n", "flie"),
    "key": ("[toolsets.terminal]\nalow = []\n", "alow"),
    "from": ("[toolsets.messaging]\nsender = 'a'\n", "sender"),
    "password": ("[toolsets.messaging]\nsmtp_url = 'smtp://u:hunter2@h'\n", "a password must not stand"),
    "type": ("[toolsets]\nenabled = 'file'\n", "enabled"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_wrong_key_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as error:
        _load(tmp_path, text)
    assert "hunter2" not in str(error.value)
