"""Files as artifacts: what is read, what is refused, and that no path leads out of the workspace."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentflow.pipeline.verification.files import FileReader, check_file
from agentflow.pipeline.verification.json_text import check_json
from agentflow.runtime.file_snapshots import snapshot_files
from agentflow.tools.toolsets.workspace import HASH_LIMIT_BYTES, Workspace, WorkspaceError, relative_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace `w` beside a directory with something that nobody may read."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key.txt").write_text("top secret")
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


def codes(place: Path, uri: str, type: str = "file", before: Any = None) -> list[str]:
    findings, _ = check_file(type, uri, FileReader(str(place)), before)
    return [one.code for one in findings if one.code is not None]


def test_evidence_is_that_of_the_file(place: Path) -> None:
    (place / "a.md").write_text("# A\n")
    findings, evidence = check_file("markdown", "a.md", FileReader(str(place)), None)
    assert [one.result for one in findings] == ["pass"] * 4
    found = os.stat(place / "a.md")
    digest = hashlib.sha256(b"# A\n").hexdigest()
    assert evidence == {"sha256": digest, "size": 4, "mtime": found.st_mtime_ns}


def test_five_cases_have_five_codes(place: Path) -> None:
    (place / "old.md").write_text("old")
    before = snapshot_files(str(place), ["old.md"])["old.md"]
    (place / "folder").mkdir()
    (place / "cut.json").write_text('{"a": [1, 2')
    (place / "link.md").symlink_to(place.parent / "outside" / "key.txt")
    found = [
        codes(place, "absent.md"),
        codes(place, "old.md", before=before),
        codes(place, "folder"),
        codes(place, "cut.json", "json"),
        codes(place, "link.md"),
    ]
    assert found == [
        ["artifact_missing"],
        ["artifact_stale"],
        ["artifact_not_regular"],
        ["artifact_invalid_json"],
        ["artifact_outside_workspace"],
    ]


LINKS_OUT = {
    "absolute": "/etc/hostname",
    "upwards": "../outside/key.txt",
    "upwards_from_within": "sub/../../outside/key.txt",
    "root": "/",
    "process": "/proc/self/environ",
}


@pytest.mark.parametrize("target", LINKS_OUT.values(), ids=LINKS_OUT)
def test_link_out_of_the_workspace_is_not_followed(place: Path, target: str) -> None:
    (place / "sub").mkdir()
    (place / "link").symlink_to(target)
    with pytest.raises(WorkspaceError) as refused:
        Workspace(place).read("link")
    assert refused.value.reason == "outside"


def test_directory_link_out_of_the_workspace_is_not_followed(place: Path) -> None:
    (place / "docs").symlink_to(place.parent / "outside", target_is_directory=True)
    assert codes(place, "docs/key.txt") == ["artifact_outside_workspace"]


@pytest.mark.parametrize("swapped", ["w", "above"])
def test_workspace_that_became_a_link_is_outside(tmp_path: Path, swapped: str) -> None:
    place = tmp_path / "above" / "w"
    place.mkdir(parents=True)
    (place / "a.md").write_text("a")
    assert codes(place, "a.md") == []
    moved = place if swapped == "w" else place.parent
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    assert place.is_dir()
    assert codes(place, "a.md") == ["artifact_outside_workspace"]


def test_links_inside_the_workspace_are_followed(place: Path) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "a.txt").write_text("a")
    (place / "relative").symlink_to("sub/../sub/a.txt")
    (place / "absolute").symlink_to(place / "sub" / "a.txt")
    (place / "folder").symlink_to("sub", target_is_directory=True)
    for uri in ("relative", "absolute", "folder/a.txt", "sub/../folder/./a.txt"):
        assert codes(place, uri) == [], uri


def test_circle_of_links_ends(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert codes(place, "a") == ["artifact_outside_workspace"]


OUTSIDE = [
    "../outside/key.txt",
    "/etc/hostname",
    "a/../../outside/key.txt",
    "~/x",
    "file:///etc/hostname",
    "a\0b",
]


@pytest.mark.parametrize("uri", OUTSIDE)
def test_path_out_of_the_workspace_is_refused(place: Path, uri: str) -> None:
    assert codes(place, uri) == ["artifact_outside_workspace"]


def test_fifo_socket_and_device_are_not_opened(place: Path) -> None:
    os.mkfifo(place / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "socket"))
        began = time.monotonic()
        assert codes(place, "fifo") == ["artifact_not_regular"]
        assert codes(place, "socket") == ["artifact_not_regular"]
    # A reader that opened the FIFO would let a writer in.
    with pytest.raises(OSError, match="No such device"):
        os.open(place / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    (place / "null").symlink_to("/dev/zero")
    assert codes(place, "null") == ["artifact_outside_workspace"]
    assert time.monotonic() - began < 2


def test_sparse_file_of_ten_gigabytes_takes_no_time_and_no_memory(place: Path) -> None:
    import tracemalloc

    with (place / "huge").open("wb") as stream:
        stream.truncate(10 << 30)
    tracemalloc.start()
    began = time.process_time()
    try:
        for type, expected in (
            ("file", []),
            ("json", ["artifact_invalid_json"]),
            ("markdown", ["artifact_invalid_text"]),
        ):
            assert codes(place, "huge", type) == expected
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 1
    assert peak < 8 << 20
    assert HASH_LIMIT_BYTES < 10 << 30


def test_hash_is_made_in_slices(place: Path) -> None:
    import tracemalloc

    with (place / "large").open("wb") as stream:
        stream.truncate(80 << 20)
    tracemalloc.start()
    try:
        found = Workspace(place).read("large", keep=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.sha256 == hashlib.sha256(bytes(80 << 20)).hexdigest()
    assert found.body is None
    assert peak < 8 << 20


@pytest.mark.parametrize("swapped", ["file", "directory"])
def test_swap_between_check_and_use_reads_nothing_outside(place: Path, swapped: str) -> None:
    """A thread replaces the file, or a directory on its way, by a link to the outside and back."""
    outside = place.parent / "outside"
    (place / "d").mkdir()
    (place / "d" / "key.txt").write_text("harmless")
    name = place / "d" / "key.txt" if swapped == "file" else place / "d"
    kept = place / "kept"
    target = outside / "key.txt" if swapped == "file" else outside
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            name.rename(kept)
            name.symlink_to(target)
            name.unlink()
            kept.rename(name)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: list[bytes] = []
    reasons: dict[str, int] = {}
    try:
        for _ in range(1_500):
            try:
                found = Workspace(place).read("d/key.txt", keep=True)
                seen.append(found.body or b"")
            except WorkspaceError as error:
                reasons[error.reason] = reasons.get(error.reason, 0) + 1
    finally:
        stop.set()
        thread.join()
    assert set(seen) <= {b"harmless"}
    assert set(reasons) <= {"outside", "missing", "not_regular"}  # the link itself, opened in between


def test_file_that_is_unchanged_is_stale_and_one_that_changed_is_not(place: Path) -> None:
    (place / "a").write_text("a")
    before = snapshot_files(str(place), ["./a"])["./a"]
    assert codes(place, "a", before=before) == ["artifact_stale"]
    found = os.stat(place / "a")
    (place / "a").write_text("b")
    os.utime(place / "a", ns=(found.st_atime_ns, found.st_mtime_ns))  # the time says nothing, the hash does
    assert codes(place, "a", before=before) == []


def test_what_is_hashed_before_a_step_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.runtime.file_snapshots.TOTAL_HASH_BYTES", 5_000)
    (place / "a").write_bytes(bytes(4_000))
    for link in ("b", "c"):
        (place / link).symlink_to("a")
    found = snapshot_files(str(place), ["a", "b", "c"])
    assert set(found.pop(".")) == {"time"}
    assert [one["sha256"] is None for one in found.values()] == [False, False, True]
    assert {(one["exists"], one["size"]) for one in found.values()} == {(True, 4_000)}


def test_empty_and_blank_files(place: Path) -> None:
    (place / "empty").touch()
    (place / "blank.md").write_text(" \n\t\n")
    (place / "latin.md").write_bytes("größe".encode("latin-1"))
    assert codes(place, "empty") == ["artifact_empty"]
    assert codes(place, "blank.md", "markdown") == ["artifact_blank"]
    assert codes(place, "latin.md", "markdown") == ["artifact_invalid_text"]


BAD_JSON = {
    "cut": b'{"a": 1',
    "nan": b"[NaN]",
    "infinity": b"[-Infinity]",
    "large_float": b"[1e999]",
    "twice": b'{"a": 1, "a": 2}',
    "twice_inside": b'[{"b": {"a": 1, "\\u0061": 2}}]',
    "latin": b'{"a": "\xe4"}',
    "bom": b"\xef\xbb\xbf{}",
    "deep": b"[" * 100_000,
    "two": b"{} {}",
    "blank": b"  ",
    "digits": b"1" * 5_000,
}


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
def test_invalid_json_is_refused(body: bytes) -> None:
    assert check_json(body) is not None


def test_large_json_is_checked_in_a_process(place: Path) -> None:
    good = json.dumps([{"n": n} for n in range(150_000)]).encode()
    assert len(good) > 1 << 20
    assert check_json(good) is None
    assert check_json(good[:-1]) == f"line 1, column {len(good)} is no JSON"
    assert check_json(good[:-1] + b',{"a":1,"a":1}]') == "an object has a key twice"


def test_absolute_paths_below_the_workspace_are_its_files(place: Path) -> None:
    (place / "a").write_text("a")
    assert relative_path(f"{place}/x/../a", str(place)) == "a"
    assert relative_path((place / "a").as_uri(), str(place)) == "a"
    assert relative_path(f"{place}x/a", str(place)) is None
    assert relative_path("file://elsewhere/a", str(place)) is None


@pytest.mark.parametrize("outside", [True, False])
def test_hard_link_is_not_read_because_its_file_may_be_outside(place: Path, outside: bool) -> None:
    known = place.parent / "outside" / "key.txt" if outside else place / "own.txt"
    known.write_text("top secret")
    os.link(known, place / "link.txt")
    assert codes(place, "link.txt") == ["artifact_outside_workspace"]
    content = FileReader(str(place)).content("link.txt")
    assert (content.exists, content.body, content.sha256) == (False, None, None)
    assert snapshot_files(str(place), ["link.txt"])["link.txt"].get("sha256") is None


@pytest.mark.parametrize(
    "link", ["/proc/self/environ", "/proc/self/cwd/a", "/proc/self/fd/0", "/proc/self/root/etc/hostname"]
)
def test_links_of_proc_lead_nowhere(place: Path, link: str) -> None:
    (place / "a").write_text("a")
    (place / "x").symlink_to(link)
    (place / "d").symlink_to(Path(link).parent)
    assert codes(place, "x") == ["artifact_outside_workspace"]
    assert codes(place, f"d/{Path(link).name}") == ["artifact_outside_workspace"]


def test_file_that_grows_or_is_cut_while_it_is_read_has_one_content(place: Path) -> None:
    """A thread writes and cuts without an end: each reading ends, and its hash is that of its bytes."""
    file, stop = place / "log", threading.Event()
    file.write_bytes(b"x" * (1 << 20))

    def change() -> None:
        with file.open("r+b", buffering=0) as stream:
            while not stop.is_set():
                stream.seek(0, os.SEEK_END)
                for _ in range(50):
                    stream.write(b"y" * 65_536)
                stream.truncate(1 << 20)

    thread = threading.Thread(target=change)
    thread.start()
    sizes: set[int] = set()
    try:
        for _ in range(40):
            found = Workspace(place).read("log", keep=True)
            assert found.body is not None
            assert len(found.body) == found.size
            assert found.sha256 == hashlib.sha256(found.body).hexdigest()
            sizes.add(found.size)
    finally:
        stop.set()
        thread.join()
    assert len(sizes) > 1  # it did change


def test_json_that_is_deep_or_no_text_is_refused_in_bounded_time(place: Path) -> None:
    bodies = {
        "deep": b"[" * (3 << 20),
        "deep_objects": b'{"a":' * (1 << 19),
        "surrogates": b'"' + b"\\ud800" * 400_000,
        "invalid": b'"' + b"\xff" * (2 << 20) + b'"',
    }
    began = time.process_time()
    for name, body in bodies.items():
        (place / name).write_bytes(body)
        assert codes(place, name, "json") == ["artifact_invalid_json"], name
    assert time.process_time() - began < 5  # of this process


def test_giant_markdown_is_checked_in_bounded_time_and_memory(place: Path) -> None:
    import tracemalloc

    from agentflow.definition.stage_schemas import Check
    from agentflow.pipeline.verification.checks import apply_check

    for body in (b"#\n", b"http://a/ ", "建".encode()):
        (place / "giant.md").write_bytes(body * ((32 << 20) // len(body)))
        check = Check(min_urls=3, headings=("Nothing",), contains=("nothing",))
        began = time.process_time()
        tracemalloc.start()
        try:
            assert codes(place, "giant.md", "markdown") == []
            found = apply_check(check, FileReader(str(place)).content("giant.md"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [one.code for one in found] == [
            "check_failed:contains",
            "check_failed:min_urls",
            "check_failed:headings",
        ]
        assert time.process_time() - began < 3
        assert peak < 200 << 20
