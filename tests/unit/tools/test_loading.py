"""The loader: what is shared, what is refused, what takes too long; imports beside the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentflow.definition.ir import ServiceSpec
from agentflow.tools import ServiceLoader
from agentflow.tools.http_service import HttpService
from agentflow.tools.problems import unavailable

FUNCTIONS = {"f": {"method": "GET", "path": "/"}}


def http(url: str = "http://127.0.0.1:1", **more: Any) -> ServiceSpec:
    return ServiceSpec(type="http", functions=FUNCTIONS, options={"base_url": url, **more})


def python(module: str) -> ServiceSpec:
    return ServiceSpec(type="python", options={"module": module})


async def test_the_same_declaration_is_the_same_service(tmp_path: Path) -> None:
    loader = ServiceLoader()
    first = (await loader.load("a", http(), tmp_path)).service
    assert isinstance(first, HttpService)
    assert (await loader.load("a", http(), tmp_path)).service is first
    others = [
        await loader.load("b", http(), tmp_path),
        await loader.load("a", http("http://127.0.0.1:2"), tmp_path),
        await loader.load("a", http(), tmp_path / "elsewhere"),
    ]
    assert all(other.service is not None and other.service is not first for other in others)
    await loader.aclose()
    service, (found,) = await loader.load("a", http(), tmp_path)
    assert (service, found.message) == (None, 'service "a": the Runtime is closed')


async def test_at_the_same_time_it_is_opened_once(tmp_path: Path) -> None:
    loader = ServiceLoader()
    loaded = await asyncio.gather(*(loader.load("a", http(), tmp_path) for _ in range(20)))
    assert len({id(service) for service, _ in loaded}) == 1
    await loader.aclose()


async def test_what_could_not_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ServiceLoader()
    spec = http(headers={"K": {"$secret": "late"}})
    monkeypatch.delenv("AGENTFLOW_SECRET_LATE", raising=False)
    service, (found,) = await loader.load("a", spec, None)
    assert (service, found.code) == (None, "E_SERVICE_DENIED")
    monkeypatch.setenv("AGENTFLOW_SECRET_LATE", "x")
    service, problems = await loader.load("a", spec, None)
    assert (problems, service is not None) == ([], True)
    monkeypatch.delenv("AGENTFLOW_SECRET_LATE")
    assert (await loader.load("a", spec, None)).service is None
    monkeypatch.setenv("AGENTFLOW_SECRET_LATE", "x")
    assert (await loader.load("a", spec, None)).service is service
    await loader.aclose()


async def test_services_are_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr("agentflow.tools.loading._MOST_KEPT", 2)

    async def aclose(self: HttpService) -> None:
        closed.append(self.name)

    monkeypatch.setattr(HttpService, "aclose", aclose)
    loader = ServiceLoader()
    for name in ("a", "b", "a", "c"):
        await loader.load(name, http(), None)
    assert closed == ["b"]
    await loader.aclose()
    assert sorted(closed) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("spec", "message", "path"),
    [
        (python("tools"), "runs code, this submission may not", "/type"),
        (
            http(headers={"A/b": {"$secret": "x"}}),
            "needs a secret, which this submission may not use",
            "/headers/A~1b",
        ),
    ],
)
async def test_what_needs_trust(spec: ServiceSpec, message: str, path: str) -> None:
    service, (found,) = await ServiceLoader().load("a", spec, None, trusted=False)
    assert service is None
    assert (found.code, found.message, found.path) == ("E_SERVICE_DENIED", f'service "a" {message}', path)


async def test_a_trusted_service_is_not_lent_to_those_who_are_not(tmp_path: Path) -> None:
    loader = ServiceLoader()
    assert (await loader.load("a", http(), tmp_path)).service is not None
    service, (found,) = await loader.load("a", http(), tmp_path, trusted=False)
    assert (service, found.code, found.path) == (None, "E_SERVICE_DENIED", "/base_url")
    await loader.aclose()


async def test_a_module_is_imported_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neighbour_of_slow.py").write_text("WHO = 'me'")
    (tmp_path / "slow_tools.py").write_text(
        "import threading\nimport neighbour_of_slow\nfrom agentflow.tools import function\n"
        "THREAD = threading.get_ident()\n"
        "@function\ndef where() -> int: return THREAD\n"
        "@function\ndef who() -> str: return neighbour_of_slow.WHO\n"
    )
    loader = ServiceLoader()
    service, problems = await loader.load("a", python("slow_tools"), tmp_path)
    assert problems == []
    assert service is not None
    assert service.tools["where"].call() != threading.get_ident()  # type: ignore[attr-defined]
    assert service.tools["who"].call() == "me"  # type: ignore[attr-defined]
    begun: list[str] = []
    monkeypatch.setattr("agentflow.tools.loading.in_thread", lambda _, name: begun.append(name))
    again, _ = await loader.load("a", python("slow_tools"), tmp_path)
    assert again is not None
    assert again.identity == service.identity
    assert begun == []


async def test_a_module_that_never_ends_importing(tmp_path: Path) -> None:
    (tmp_path / "stuck_tools.py").write_text(
        "import threading\nGATE = threading.Event()\n"
        "import agentflow\nagentflow._gate_of_a_test = GATE\nGATE.wait(30)\n"
    )
    import agentflow

    loader = ServiceLoader(start_timeout=0.2)
    began = asyncio.get_running_loop().time()
    service, (found,) = await loader.load("a", python("stuck_tools"), tmp_path)
    assert asyncio.get_running_loop().time() - began < 5
    assert service is None
    assert found.message == 'service "a": it was not ready within 0.2 s'
    agentflow._gate_of_a_test.set()  # type: ignore[attr-defined]


async def test_importing_hides_no_module_from_others(tmp_path: Path) -> None:
    """A module beside the document of the name of another one is found by its neighbours alone."""
    (tmp_path / "chunk.py").write_text("")
    (tmp_path / "hiding_tools.py").write_text(
        "import importlib.util, threading\nfrom agentflow.tools import function\n"
        "seen = [importlib.util.find_spec('chunk').origin]\n"
        "t = threading.Thread(target=lambda: seen.append(importlib.util.find_spec('chunk').origin))\n"
        "t.start()\nt.join()\n"
        "@function\ndef where() -> list[str]: return seen\n"
    )
    service, problems = await ServiceLoader().load("a", python("hiding_tools"), tmp_path)
    assert problems == []
    assert service is not None
    here, there = service.tools["where"].call()  # type: ignore[attr-defined]
    assert here == str(tmp_path / "chunk.py")
    assert there != here


def test_a_type_that_is_none() -> None:
    from agentflow.tools.loading import declared_service

    with pytest.raises(ValueError, match='"soap"'):
        declared_service("a", ServiceSpec(type="soap"))


async def test_a_service_that_is_being_opened_while_the_loader_closes_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening = asyncio.Event()
    closed: list[str] = []

    async def stuck(self: HttpService) -> list[Any]:
        opening.set()
        await asyncio.Event().wait()
        return []

    async def aclose(self: HttpService) -> None:
        closed.append(self.name)

    monkeypatch.setattr(HttpService, "open", stuck)
    monkeypatch.setattr(HttpService, "aclose", aclose)
    loader = ServiceLoader()
    loading = asyncio.create_task(loader.load("a", http(), None))
    await opening.wait()
    await loader.aclose()
    service, (found,) = await loading
    assert (service, found.message, closed) == (None, 'service "a": the Runtime is closed', ["a"])


async def test_whoever_gives_up_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = asyncio.Event()

    async def stuck(self: HttpService) -> list[Any]:
        opening.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(HttpService, "open", stuck)
    loader = ServiceLoader()
    loading = asyncio.create_task(loader.load("a", http(), None))
    await opening.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await loader.aclose()


async def test_whoever_waits_for_a_failed_opening_tries_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, tries = 0, 0, 0

    async def fails_twice(self: HttpService) -> list[Any]:
        nonlocal at_once, most, tries
        at_once, tries = at_once + 1, tries + 1
        most = max(most, at_once)
        mine = tries
        await asyncio.sleep(0)
        at_once -= 1
        return [] if mine > 2 else [unavailable("a", "not yet")]

    monkeypatch.setattr(HttpService, "open", fails_twice)
    loader = ServiceLoader()
    loaded = await asyncio.gather(*(loader.load("a", http(), None) for _ in range(6)))
    assert most == 1
    assert [service is None for service, _ in loaded] == [True, True, False, False, False, False]
    assert len({id(service) for service, _ in loaded if service is not None}) == 1
    await loader.aclose()
