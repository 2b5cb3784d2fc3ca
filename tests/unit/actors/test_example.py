"""The example that embeds the library in an application of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "embed_supervisor" / "crawler.py"


@pytest.fixture
def folder(tmp_path):
    for i in range(40):
        path = tmp_path / f"d{i % 4}" / f"f{i}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(i // 2 if i < 4 else i))
    (tmp_path / "d0" / "broken").symlink_to("nowhere")
    return tmp_path


def expected(folder):
    return {
        "folders": 5,
        "files": 40,
        "bytes": 4 + 6 + 2 * 30,
        "unreadable": [str(folder / "d0" / "broken")],
        "duplicates": [
            [str(folder / "d0/f0"), str(folder / "d1/f1")],
            [str(folder / "d2/f2"), str(folder / "d3/f3")],
        ],
    }


def test_the_crawler_runs_from_the_command_line(folder):
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), str(folder), "--rate", "150"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True, env=env)
    summary = json.loads(done.stdout)
    summary["duplicates"] = [sorted(paths) for paths in summary["duplicates"]]
    assert summary == {**expected(folder), "restarts": 0}
    assert "files" in done.stderr
    wrong = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder / "nothing")], capture_output=True, check=False, env=env
    )
    assert wrong.returncode == 2


async def test_crashing_workers_change_nothing_but_the_restarts(folder, monkeypatch):
    spec = importlib.util.spec_from_file_location("crawler_example", SCRIPT)
    crawler = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, crawler)
    spec.loader.exec_module(crawler)
    monkeypatch.setattr(crawler, "ATTEMPTS", 100)
    summary = await crawler.crawl(folder, workers=3, rate=5000, flaky=0.3)
    assert summary.restarts > 0
    assert summary.files == 40
    assert summary.unreadable == expected(folder)["unreadable"]
    assert [sorted(paths) for paths in summary.duplicates] == expected(folder)["duplicates"]
