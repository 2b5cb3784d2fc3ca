"""Exports of checkpoints as files: whole or not there, and found by ids of checkpoints alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow import FilesystemCheckpointStore, Runtime
from agentflow.errors import CheckpointNotFound, StorageUnavailable
from agentflow.records import checkpoint_store
from agentflow.records.export import export_pieces

SOURCE = {
    "id": "w",
    "entry_node": "a",
    "nodes": [{"id": "a", "node_type": {"transform": {"value": 1}}}],
    "edges": [],
}


@pytest.mark.parametrize(
    "export", [b'{"a":1}\n', {"a": [1, None]}, [], "text"], ids=["bytes", "object", "array", "text"]
)
def test_an_export_is_loaded_as_it_was_saved(tmp_path: Path, export: Any):
    store = FilesystemCheckpointStore(tmp_path / "kept")
    path = store.save("wf_a@3", export)
    assert path.parent == tmp_path / "kept"
    assert store.load("wf_a@3") == export
    store.save("wf_a@3", {"other": 1})
    assert FilesystemCheckpointStore(tmp_path / "kept").load("wf_a@3") == {"other": 1}
    store.save("wf_a@3", b"again")
    assert store.load("wf_a@3") == b"again"
    store.delete("wf_a@3")
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("method", ["load", "delete"])
@pytest.mark.parametrize("id", ["wf_a@4", "wf_a", "../x@1", "a/b@1", "wf_a@x", "wf_a@-1", "@1", ""])
def test_what_is_no_checkpoint_is_not_found(tmp_path: Path, id: str, method: str):
    store = FilesystemCheckpointStore(tmp_path)
    store.save("wf_a@3", 1)
    with pytest.raises(CheckpointNotFound) as refused:
        getattr(store, method)(id)
    assert refused.value.code == "checkpoint_not_found"


@pytest.mark.parametrize("id", ["../x@1", "wf_a", "a/b@1"])
def test_nothing_is_saved_under_another_name(tmp_path: Path, id: str):
    with pytest.raises(CheckpointNotFound):
        FilesystemCheckpointStore(tmp_path / "kept").save(id, 1)
    assert not (tmp_path / "kept").exists()


def test_a_write_that_fails_leaves_the_old_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = FilesystemCheckpointStore(tmp_path)
    store.save("wf_a@3", {"old": 1})

    def full(path: Path, body: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_store, "replace_file", full)
    with pytest.raises(StorageUnavailable, match="No space"):
        store.save("wf_a@3", {"new": 1})
    assert store.load("wf_a@3") == {"old": 1}


async def test_the_log_of_a_run_up_to_a_checkpoint_is_an_export(tmp_path: Path):
    store = FilesystemCheckpointStore(tmp_path)
    async with Runtime() as runtime:
        await runtime.run(SOURCE, {}, workflow_id="wf_a")
        checkpoint = (await runtime.checkpoints("wf_a"))[1]
        pieces = [piece async for piece in export_pieces(runtime.log, "wf_a", checkpoint.offset)]
        store.save(checkpoint, b"".join(pieces))
    lines = store.load(checkpoint).splitlines()
    assert b'"workflow.started"' in lines[0]
    assert not any(b'"workflow.completed"' in line for line in lines)
