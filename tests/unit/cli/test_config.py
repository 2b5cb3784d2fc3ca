"""flags > AGENTFLOW_* > agentflow.toml > defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentflow.config import default_store, find_files, load_config
from agentflow.errors import ConfigurationError
from agentflow.models import Models
from tests.unit.cli.support import ECHO, Sandbox


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_the_default_store_is_in_the_data_folder(tmp_path: Path, env: dict[str, str]):
    config = load_config(env=env, folder=tmp_path)
    assert config.store == f"sqlite:{tmp_path / 'data/agentflow/agentflow.db'}"
    assert config.files == ()


def test_a_relative_data_folder_is_ignored(tmp_path: Path):
    assert "relative" not in default_store({"XDG_DATA_HOME": "relative"})


def test_precedence_of_the_store(tmp_path: Path, env: dict[str, str]):
    write(tmp_path / "config/agentflow/agentflow.toml", 'store = "sqlite:/user.db"')
    assert load_config(env=env, folder=tmp_path).store == "sqlite:/user.db"
    write(tmp_path / "agentflow.toml", 'store = "sqlite:/project.db"')
    assert load_config(env=env, folder=tmp_path).store == "sqlite:/project.db"
    env["AGENTFLOW_STORE"] = "sqlite:/env.db"
    assert load_config(env=env, folder=tmp_path).store == "sqlite:/env.db"
    assert load_config(store="memory:", env=env, folder=tmp_path).store == "memory:"


def test_precedence_of_on_unknown(tmp_path: Path, env: dict[str, str]):
    assert load_config(env=env, folder=tmp_path).on_unknown is None
    write(tmp_path / "agentflow.toml", 'on_unknown = "fail"')
    assert load_config(env=env, folder=tmp_path).on_unknown == "fail"
    env["AGENTFLOW_ON_UNKNOWN"] = "ask"
    assert load_config(env=env, folder=tmp_path).on_unknown == "ask"
    assert load_config(on_unknown="fail", env=env, folder=tmp_path).on_unknown == "fail"
    env["AGENTFLOW_ON_UNKNOWN"] = "maybe"
    with pytest.raises(ConfigurationError, match="AGENTFLOW_ON_UNKNOWN"):
        load_config(env=env, folder=tmp_path)


def test_the_nearest_file_upwards_is_read(tmp_path: Path, env: dict[str, str]):
    near = write(tmp_path / "a/b/agentflow.toml", 'model = "openai:near"')
    write(tmp_path / "a/agentflow.toml", 'model = "openai:far"')
    folder = tmp_path / "a/b/c"
    folder.mkdir()
    assert find_files(env, folder) == [near]
    assert load_config(env=env, folder=folder).model == "openai:near"


def test_files_are_merged_key_by_key(tmp_path: Path, env: dict[str, str]):
    write(
        tmp_path / "config/agentflow/agentflow.toml",
        'model = "openai:u"\n[models]\na = "openai:1"\nb = "openai:2"',
    )
    write(
        tmp_path / "agentflow.toml",
        '[models]\nb = "openai:3"\nc = {provider = "openai", model = "4", seed = 1}',
    )
    config = load_config(env=env, folder=tmp_path)
    assert config.model == "openai:u"
    assert config.models == {
        "a": "openai:1",
        "b": "openai:3",
        "c": {"provider": "openai", "model": "4", "seed": 1},
    }
    models = Models(config=config.for_models(), env={"OPENAI_API_KEY": "k"})
    assert models.resolve(None).name == "openai:u"
    assert models.resolve("c").parameters == {"seed": 1}


def test_a_relative_store_lies_beside_its_file(tmp_path: Path, env: dict[str, str]):
    write(tmp_path / "agentflow.toml", 'store = "sqlite:runs/a.db"')
    (tmp_path / "deep").mkdir()
    assert load_config(env=env, folder=tmp_path / "deep").store == f"sqlite:{tmp_path / 'runs/a.db'}"
    env["AGENTFLOW_STORE"] = "sqlite:runs/a.db"
    assert load_config(env=env, folder=tmp_path / "deep").store == "sqlite:runs/a.db"


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ('modle = "x"', 'unknown key "modle"', 'did you mean "model"?'),
        (
            "stores = 1\nmod-els = 2",
            'unknown keys "stores", "mod-els"',
            'did you mean "store"?; did you mean "models"?',
        ),
        ("colour = 1", 'unknown key "colour"', "the keys are store, archive, model, models, on_unknown"),
        ("store = 7", "store must be a string or null, not an integer", None),
        ('on_unknown = "maybe"', "maybe", None),
        ("[models]\na = 1", "models[…] must be a string or an object, not an integer", None),
        ("store = ", "is not TOML", None),
        (
            "[models.a]\nmodel = 'openai:x'\napi_key = 'sk-1'",
            '"api_key" must not stand in `models.a`',
            "OPENAI_API_KEY",
        ),
        ("[model]\nmodel = 'openai:x'\nbase_url = 'http://h'", '"base_url" must not stand in `model`', None),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, env: dict[str, str], text: str, says: str, hint: str | None):
    path = write(tmp_path / "agentflow.toml", text)
    with pytest.raises(ConfigurationError) as caught:
        load_config(env=env, folder=tmp_path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert "sk-1" not in str(caught.value)
    if hint is not None:
        assert hint in (caught.value.hint or "")


def test_a_file_that_is_not_text(tmp_path: Path, env: dict[str, str]):
    (tmp_path / "agentflow.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load_config(env=env, folder=tmp_path)


@pytest.mark.parametrize(
    "verb", [("run", "flow.yaml"), ("list",), ("show", "wf_1"), ("model", "list"), ("graph", "wf_1")]
)
def test_every_verb_that_needs_it_exits_78(sandbox: Sandbox, verb: tuple[str, ...]):
    sandbox.write("flow.yaml", ECHO)
    sandbox.write("agentflow.toml", 'modle = "x"')
    result = sandbox.invoke(*verb)
    assert result.exit_code == 78
    assert result.stderr.splitlines()[-1] == '  hint: did you mean "model"?'
    assert result.stdout == ""
    assert not (sandbox.folder / "data").exists()


def test_verbs_without_settings_do_not_mind(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    sandbox.write("agentflow.toml", 'modle = "x"')
    for verb in (("check", "flow.yaml"), ("graph", "flow.yaml"), ("expr", "1"), ("version",)):
        assert sandbox.invoke(*verb).exit_code == 0


def test_model_list_shows_what_is_configured(sandbox: Sandbox):
    sandbox.write("agentflow.toml", '[models]\nfast = "openai:small"\n')
    sandbox.env |= {"OPENAI_API_KEY": "sk-secret", "AGENTFLOW_MODEL": "fast"}
    found = json.loads(sandbox.invoke("model", "list", "--json").stdout)
    assert found == {
        "default": "openai:small",
        "providers": ["openai"],
        "aliases": {"fast": "openai:small"},
        "local": [],
    }
    text = sandbox.invoke("model", "list").stdout
    assert "default    openai:small" in text
    assert "fast   openai:small" in text
    assert "sk-secret" not in text


def test_model_list_without_any(sandbox: Sandbox):
    result = sandbox.invoke("model", "list")
    assert result.exit_code == 0
    assert result.stdout.startswith("default    none: no model is named")
    assert json.loads(sandbox.invoke("model", "list", "--json").stdout)["default"] is None


def test_model_install_refuses_an_unknown_name(sandbox: Sandbox):
    result = sandbox.invoke("model", "install", "smolm2-135m")
    assert result.exit_code == 78
    assert result.stderr.startswith('error model_install: "smolm2-135m" is not a model')
    assert result.stderr.endswith('  hint: did you mean "smollm2-135m"?\n')
    assert not (sandbox.folder / "data").exists()


# -- [retention]


def retention(tmp_path: Path, env: dict[str, str], text: str):
    write(tmp_path / "agentflow.toml", "[retention]\n" + text)
    return load_config(env=env, folder=tmp_path).retention


def test_retention_is_infinite_unless_it_is_configured(tmp_path: Path, env: dict[str, str]):
    assert load_config(env=env, folder=tmp_path).retention is None
    policy = retention(tmp_path, env, "")
    assert policy is not None
    assert (policy.mode, policy.keep_failed) == ("infinite", True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [('"30d"', 30 * 86_400), ('"1.5h"', 5_400), ('"2w"', 14 * 86_400), ("90", 90), ('"10 m"', 600)],
)
def test_ages_are_durations_or_seconds(tmp_path: Path, env: dict[str, str], text: str, seconds: float):
    policy = retention(tmp_path, env, f'mode = "age"\nmax_age = {text}\nkeep_failed = false')
    assert policy is not None
    assert (policy.max_age, policy.keep_failed) == (seconds, False)


@pytest.mark.parametrize(
    ("text", "size"),
    [('"10GiB"', 10 << 30), ('"500 MB"', 500_000_000), ('"1.5kib"', 1_536), ("4096", 4_096), ('"7b"', 7)],
)
def test_sizes_have_units_or_are_bytes(tmp_path: Path, env: dict[str, str], text: str, size: int):
    policy = retention(tmp_path, env, f'mode = "size"\nmax_bytes = {text}\ntrim_to_events = 20')
    assert policy is not None
    assert (policy.max_bytes, policy.trim_to_events) == (size, 20)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('mode = "age"\nmaxAge = "30d"', 'unknown key "maxAge" in [retention]', 'did you mean "max_age"?'),
        ('mode = "age"\nmax_age = "30 days"', '[retention] max_age: "30 days" is not a duration', '"30d"'),
        ('mode = "size"\nmax_bytes = "10 gigs"', 'max_bytes: "10 gigs" is not a size', '"10GiB"'),
        ('max_age = "30d"', 'max_age has no effect with mode = "infinite"; write mode = "age"', None),
        ('mode = "size"', 'mode = "size" needs max_bytes', None),
        ('mode = "aged"', 'retention.mode "aged" is not allowed', 'did you mean "age"?'),
        ('mode = "age"\nmax_age = "1d"\ntrim_to_events = 0', "trim_to_events is at least 1", None),
    ],
)
def test_a_retention_that_would_not_do_what_it_says_is_refused(
    tmp_path: Path, env: dict[str, str], text: str, message: str, hint: str | None
):
    with pytest.raises(ConfigurationError) as caught:
        retention(tmp_path, env, text)
    assert message in str(caught.value)
    assert str(tmp_path / "agentflow.toml") in str(caught.value)
    if hint is not None:
        assert hint in (caught.value.hint or "")


def test_a_store_in_a_directory_is_beside_the_file_that_names_it(tmp_path: Path, env: dict[str, str]):
    write(tmp_path / "agentflow.toml", 'store = "file:runs"')
    assert load_config(env=env, folder=tmp_path / "deep").store == f"file:{tmp_path / 'runs'}"
