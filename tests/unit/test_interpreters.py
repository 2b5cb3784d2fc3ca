"""`make test` runs the tests of actors on other interpreters; one that does not start is passed over."""

import sys

import pytest

from tests.interpreters import find, main, prepare


@pytest.mark.parametrize(
    "script",
    [
        "echo 'pyenv: python3.12: command not found' >&2; exit 127",
        "echo 3 13 cpython",
        "echo 3 12 pypy",
    ],
    ids=["a shim that selects nothing", "another version", "another implementation"],
)
def test_what_is_no_such_cpython_is_passed_over(script, tmp_path, monkeypatch, capsys):
    shim = tmp_path / "python3.12"
    shim.write_text(f"#!/bin/sh\n{script}\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find((3, 12)) is None
    assert main() == 0
    assert "CPython 3.12: passed over, no such interpreter here" in capsys.readouterr().out


def test_an_interpreter_that_starts_is_found(tmp_path, monkeypatch):
    version = sys.version_info[:2]
    (tmp_path / f"python{version[0]}.{version[1]}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(version) == str(tmp_path / f"python{version[0]}.{version[1]}")


def test_an_environment_that_cannot_be_made_is_no_failure(tmp_path):
    false = tmp_path / "false"
    false.write_text("#!/bin/sh\nexit 1\n")
    false.chmod(0o755)
    assert prepare(str(false), tmp_path / "env") is False
