"""The functions of the built-in toolsets, on real files, servers and processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiosmtpd.smtp import SMTP
from starlette.responses import HTMLResponse, JSONResponse, Response

from agentflow.config import (
    CodeExecutionConfig,
    FileConfig,
    MessagingConfig,
    TerminalConfig,
    ToolsetsConfig,
    WebConfig,
)
from agentflow.definition.toolsets import StepContext
from agentflow.tools import Service, ToolError
from agentflow.tools.toolsets import confined
from agentflow.tools.toolsets.registry import ToolsetRegistry
from agentflow.tools.toolsets.web_service import page_text
from tests.unit.tools.servers import CTX, Recorder, serve


def service(name: str, root: Path, **config: Any) -> Service:
    registry = ToolsetRegistry(
        ToolsetsConfig(enabled=(name,), **{name: config[name]} if config else {}), [root]
    )
    (found,) = registry.services()
    return found


async def call(found: Service, function: str, **arguments: Any) -> Any:
    ctx = msgspec.structs.replace(CTX, context=arguments.pop("context", None))
    return await found.call(found.tools[function], arguments, ctx)


async def refused(found: Service, function: str, **arguments: Any) -> ToolError:
    with pytest.raises(ToolError) as error:
        await call(found, function, **arguments)
    return error.value


# -- file ---------------------------------------------------------------------------------------


async def test_files_are_written_read_appended_and_listed(tmp_path: Path) -> None:
    files = service("file", tmp_path)
    written = await call(files, "write", path="a/b.md", content="héllo")
    assert (tmp_path / CTX.workflow_id / "a" / "b.md").read_text() == "héllo"
    assert written["size"] == 6
    assert (await call(files, "append", path="a/b.md", content="!"))["size"] == 7
    assert (await call(files, "read", path="./a/b.md"))["content"] == "héllo!"
    assert (await call(files, "list"))["entries"] == [{"name": "a", "type": "directory", "size": 0}]


async def test_step_of_a_plan_works_in_the_workspace_of_its_request(tmp_path: Path) -> None:
    files = service("file", tmp_path)
    context = StepContext(workspace=str(tmp_path / "mine"))
    await call(files, "write", path="a", content="x", context=context)
    assert (tmp_path / "mine" / "a").read_text() == "x"


async def test_context_of_a_document_chooses_no_workspace(tmp_path: Path) -> None:
    files = service("file", tmp_path / "roots")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_text("s3cret")
    error = await refused(files, "read", path="a", context={"workspace": str(tmp_path / "other")})
    assert error.info.code == "file_missing"
    error = await refused(files, "read", path="a", context=StepContext(workspace=str(tmp_path / "other")))
    assert error.info.code == "workspace_denied"


OUT = ["../x", "/etc/hostname", "a/../../x", "link", "dir/x", "~/x"]


@pytest.mark.parametrize("path", OUT)
async def test_no_path_leaves_the_workspace(tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("s3cret")
    place = tmp_path / "roots" / CTX.workflow_id
    place.mkdir(parents=True)
    (place / "link").symlink_to(outside / "x")
    (place / "dir").symlink_to(outside, target_is_directory=True)
    files = service("file", tmp_path / "roots")
    assert (await refused(files, "read", path=path)).info.code == "file_outside"
    if path != "link":  # a link at the place is replaced
        assert (await refused(files, "write", path=path, content="evil")).info.code == "file_outside"
    assert (await refused(files, "append", path=path, content="evil")).info.code == "file_outside"
    if path == "link":
        await call(files, "write", path=path, content="mine")
    assert (outside / "x").read_text() == "s3cret"
    assert os.listdir(outside) == ["x"]


async def test_hard_link_is_not_appended_to_and_write_leaves_the_other_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("kept")
    place = tmp_path / "roots" / CTX.workflow_id
    place.mkdir(parents=True)
    os.link(tmp_path / "x", place / "hard")
    files = service("file", tmp_path / "roots")
    assert (await refused(files, "append", path="hard", content="evil")).info.code == "file_outside"
    await call(files, "write", path="hard", content="new")
    assert (tmp_path / "x").read_text() == "kept"


async def test_fifo_and_directory_are_refused_at_once(tmp_path: Path) -> None:
    place = tmp_path / CTX.workflow_id
    place.mkdir()
    os.mkfifo(place / "fifo")
    (place / "dir").mkdir()
    files = service("file", tmp_path)
    for path in ("fifo", "dir"):
        for function, more in (("read", {}), ("write", {"content": "x"}), ("append", {"content": "x"})):
            error = await refused(files, function, path=path, **more)
            assert error.info.code == "file_not_regular", (path, function)


async def test_sizes_are_limited(tmp_path: Path) -> None:
    files = service("file", tmp_path, file=FileConfig(max_bytes=10, max_read_bytes=5))
    assert (await refused(files, "write", path="a", content="x" * 11)).info.code == "file_too_large"
    await call(files, "write", path="a", content="x" * 10)
    assert (await refused(files, "append", path="a", content="x")).info.code == "file_too_large"
    assert (await refused(files, "read", path="a")).info.code == "file_too_large"


async def test_write_leaves_no_part_behind(tmp_path: Path) -> None:
    files = service("file", tmp_path)
    await asyncio.gather(*(call(files, "write", path="a", content=str(n) * 100_000) for n in range(8)))
    content = (tmp_path / CTX.workflow_id / "a").read_text()
    assert len(set(content)) == 1
    assert os.listdir(tmp_path / CTX.workflow_id) == ["a"]


# -- web ----------------------------------------------------------------------------------------

PAGE = """<html><head><title>A &amp; B</title><style>p{}</style></head><body><h1>Top</h1><p>one <b>two</b></p>
<script>alert(1)</script><a href="/x#y">next</a></body></html>"""


async def test_page_is_given_as_text(tmp_path: Path) -> None:
    async with serve(Recorder(lambda _: HTMLResponse(PAGE)).app) as url:
        web = service("web", tmp_path, web=WebConfig(allowed_hosts=("127.0.0.1",)))
        found = await call(web, "fetch", url=f"{url}/a")
        await web.aclose()
    assert found["title"] == "A & B"
    assert found["text"] == "Top\none two\nnext"
    assert found["links"] == [f"{url}/x"]


async def test_fetch_reaches_no_private_address_by_itself_or_by_redirect(tmp_path: Path) -> None:
    recorder = Recorder(lambda _: Response(status_code=302, headers={"location": "http://127.0.0.1:1/"}))
    async with serve(recorder.app) as url:
        web = service("web", tmp_path, web=WebConfig(allowed_hosts=("localhost",)))
        assert (await refused(web, "fetch", url=url)).info.code == "service_denied"
        assert recorder.requests == []
        error = await refused(web, "fetch", url=url.replace("127.0.0.1", "localhost"))
        assert error.info.code == "service_denied"
        for bad in ("file:///etc/passwd", "http://u:p@localhost/", "x"):
            assert (await refused(web, "fetch", url=bad)).info.code == "invalid_tool_input"
        await web.aclose()


async def test_fetch_is_bounded_and_classes_errors(tmp_path: Path) -> None:
    answers = {"/large": Response(b"x" * 5_000, media_type="text/plain"), "/gone": Response(status_code=404),
               "/image": Response(b"x", media_type="image/png")}  # fmt: skip
    async with serve(Recorder(lambda r: answers[r.url.path]).app) as url:
        web = service("web", tmp_path, web=WebConfig(allowed_hosts=("127.0.0.1",), max_bytes=1_000))
        found = await call(web, "fetch", url=f"{url}/large")
        assert (len(found["text"]), found["truncated"]) == (1_000, True)
        assert (await refused(web, "fetch", url=f"{url}/gone")).info.http_status == 404
        assert (await refused(web, "fetch", url=f"{url}/image")).info.code == "invalid_tool_output"
        await web.aclose()


HOSTILE = {
    "comments": "<!--",
    "tags": "<",
    "links": "<a ",
    "ends": "</a",
    "declarations": "<!a",
    "instructions": "<?a",
    "titles": "<title>",
    "heads": "<head>",
    "drawings": "<svg>",
    "quotes": '<a href="',
    "references": "&#",
    "addresses": "<a href=//[>",
}


@pytest.mark.parametrize("part", HOSTILE.values(), ids=HOSTILE)
def test_hostile_page_takes_linear_time(part: str) -> None:
    began = time.process_time()
    page_text(part * 200_000, "http://a.org/")
    assert time.process_time() - began < 3


# -- messaging ----------------------------------------------------------------------------------


class Mailbox:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.recipients: list[list[str]] = []
        self.answer = "250 accepted"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        import email

        self.messages.append(email.message_from_bytes(envelope.content))
        self.recipients.append(envelope.rcpt_tos)
        return self.answer


@pytest.fixture
async def mailbox() -> AsyncGenerator[tuple[Mailbox, str]]:
    """A real SMTP server on loopback."""
    found = Mailbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(found, loop=loop), "127.0.0.1", 0)
    try:
        yield found, f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def mail(tmp_path: Path, url: str | dict[str, str]) -> Service:
    config = MessagingConfig(smtp_url=url, sender="bot@example.org", timeout_s=5)
    return service("messaging", tmp_path, messaging=config)


async def test_mail_is_sent_and_its_id_given(tmp_path: Path, mailbox: tuple[Mailbox, str]) -> None:
    box, url = mailbox
    found = await call(
        mail(tmp_path, url), "send", to="ada@example.org, bob@example.org", subject="Größe", body="hi\n"
    )
    assert found == {"message_id": box.messages[0]["Message-ID"], "to": "ada@example.org, bob@example.org"}
    assert box.recipients == [["ada@example.org", "bob@example.org"]]
    again = await call(mail(tmp_path, url), "send", to="ada@example.org", body="hi")
    assert again["message_id"] == found["message_id"]  # the same call: the same id in every attempt


@pytest.mark.parametrize(
    ("to", "subject"),
    [
        ("", "s"),
        ("nobody", "s"),
        ("a@b.org\nBcc: eve@x.org", "s"),
        ("a@b.org", "s\r\nBcc: eve@x.org"),
        ("a@b.org", "s\u2028Bcc: eve@x.org"),
        ("a@b.org", "s\x85Bcc: eve@x.org"),
        ("a@", "s"),
        ("(" * 5_000, "s"),
        ("a@b.org", "s" * 40_000),
    ],
)
async def test_header_injection_is_refused(
    tmp_path: Path, mailbox: tuple[Mailbox, str], to: str, subject: str
) -> None:
    box, url = mailbox
    error = await refused(mail(tmp_path, url), "send", to=to, subject=subject, body="x")
    assert (error.info.code, error.executed) == ("invalid_tool_input", False)
    assert box.messages == []


async def test_mail_that_the_server_refuses_has_no_id(tmp_path: Path, mailbox: tuple[Mailbox, str]) -> None:
    box, url = mailbox
    box.answer = "554 no"
    error = await refused(mail(tmp_path, url), "send", to="a@b.org", body="x")
    assert (error.info.code, error.unknown) == ("message_refused", False)


async def test_server_that_is_not_there_was_not_reached(tmp_path: Path) -> None:
    error = await refused(mail(tmp_path, "smtp://127.0.0.1:1"), "send", to="a@b.org", body="x")
    assert (error.info.code, error.executed, error.unknown) == ("network_error", False, False)


async def test_server_that_ends_in_the_middle_leaves_the_outcome_open(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in (b"220 x\r\n", b"250 x\r\n", b"250 x\r\n", b"250 x\r\n", b"354 x\r\n"):
            writer.write(line)
            await writer.drain()
            await reader.readline()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    error = await refused(mail(tmp_path, url), "send", to="a@b.org", body="x")
    server.close()
    assert (error.executed, error.unknown) == (True, True)


async def test_password_is_not_shown(
    tmp_path: Path, mailbox: tuple[Mailbox, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = mailbox
    monkeypatch.setenv("AGENTFLOW_SECRET_MAIL", url.replace("//", "//bot:hunter2secret@"))
    error = await refused(mail(tmp_path, {"$secret": "MAIL"}), "send", to="a@b.org", body="x")
    assert "hunter2secret" not in repr(error.info)
    assert error.executed is False


async def test_webhook_gives_its_id(tmp_path: Path) -> None:
    recorder = Recorder(lambda _: JSONResponse({"id": 17}, status_code=201))
    async with serve(recorder.app) as url:
        hook = service("messaging", tmp_path, messaging=MessagingConfig(webhook=f"{url}/hook?token=t"))
        found = await call(hook, "send", to="#general", body="hi")
        assert found == {"id": "17", "status": 201}
        assert msgspec.json.decode(recorder.last["body"]) == {"to": "#general", "subject": "", "body": "hi"}
        assert recorder.last["headers"]["idempotency-key"] == CTX.idempotency_key
        recorder.answer = lambda _: Response(status_code=503)
        assert (await refused(hook, "send", to="#general", body="hi")).info.http_status == 503
        await hook.aclose()


# -- terminal and code --------------------------------------------------------------------------


def shell(root: Path, **limits: Any) -> Service:
    return service("terminal", root, terminal=TerminalConfig(allow=("*",), **limits))


async def test_command_runs_in_the_workspace(tmp_path: Path) -> None:
    found = await call(shell(tmp_path), "run", command="pwd; echo err >&2; exit 3")
    assert found == {"exit_code": 3, "stdout": f"{tmp_path}/{CTX.workflow_id}\n", "stderr": "err\n",
                     "timed_out": False, "truncated": False}  # fmt: skip


@pytest.fixture(params=["namespace", "reaper"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to hold a command, of which the second is that of systems without PID namespaces."""
    if request.param == "reaper":
        source = Path(confined._LAUNCHER).read_text()  # pyright: ignore[reportPrivateUsage]
        line = "child, own = _start_isolated(spec)"
        assert line in source
        (tmp_path / "launcher.py").write_text(source.replace(line, "child, own = 0, 0"))
        monkeypatch.setattr(confined, "_LAUNCHER", str(tmp_path / "launcher.py"))
    elif subprocess.run(["unshare", "-Urpf", "--mount-proc", "true"], check=False).returncode:
        pytest.skip("this system lets no process have a PID namespace")
    return request.param


MARK = f"61.{os.getpid()}"
"""Seconds that only processes of these tests sleep, and of this worker."""


def _left() -> list[str]:
    """Processes of the commands of these tests that are alive."""
    found: list[str] = []
    for one in Path("/proc").iterdir():
        with suppress(OSError):
            if one.name.isdigit() and _is_alive(int(one.name)):
                words = (one / "cmdline").read_bytes().decode().split("\0")
                if words[:2] == ["sleep", MARK]:
                    found.append(" ".join(words))
    return found


async def test_environment_holds_no_secret(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")
    found = await call(shell(tmp_path), "run", command="env; cat /proc/$PPID/environ")
    assert "s3cret" not in found["stdout"]
    names = {line.partition("=")[0] for line in found["stdout"].replace("\0", "\n").splitlines()}
    assert names <= {"PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE", ""}


async def test_environment_of_this_process_is_not_to_be_seen(tmp_path: Path, launcher: str) -> None:
    if launcher == "reaper":
        pytest.skip("without a namespace a command reads what its user reads")
    found = await call(shell(tmp_path), "run", command=f"cat /proc/{os.getpid()}/environ; ls -d /proc/[0-9]*")
    assert "No such file" in found["stderr"]
    assert len(found["stdout"].split()) <= 5  # the init, the shell and what it runs


async def test_time_is_limited_and_all_processes_end(tmp_path: Path, launcher: str) -> None:
    """One process leaves the session, one ignores SIGTERM, two are orphaned, one stops its parents."""
    command = f"""(trap '' TERM; sleep {MARK}) &
        setsid sleep {MARK} &
        (sh -c 'exec sleep {MARK}' &)
        (setsid sh -c '(setsid sleep {MARK} &) &')
        echo begun; kill -STOP 1; sleep {MARK}"""
    began = time.monotonic()
    found = await call(shell(tmp_path, timeout_s=20), "run", command=command, timeout_s=1)
    assert (found["timed_out"], found["exit_code"], found["stdout"]) == (True, None, "begun\n")
    assert time.monotonic() - began < 8
    assert _left() == []


async def test_process_that_outlives_its_command_is_ended(tmp_path: Path, launcher: str) -> None:
    command = f"setsid sh -c 'touch there; exec sleep {MARK}' & while [ ! -e there ]; do :; done"
    assert (await call(shell(tmp_path), "run", command=command))["exit_code"] == 0
    assert _left() == []


async def test_command_that_kills_its_launcher_is_ended_too(tmp_path: Path, launcher: str) -> None:
    command = f"""(sh -c 'touch there; exec sleep {MARK}' &)
        while [ ! -e there ]; do :; done; kill -9 $PPID; sleep 0.1; exit 7"""
    began = time.monotonic()
    found = await call(shell(tmp_path, timeout_s=20), "run", command=command)
    assert found["exit_code"] == (7 if launcher == "namespace" else -9)
    assert time.monotonic() - began < 10
    assert _left() == []


async def test_no_signal_of_a_command_leaves_its_namespace(tmp_path: Path, launcher: str) -> None:
    if launcher == "reaper":
        pytest.skip("without a namespace a command signals what its user may")
    with subprocess.Popen(["sleep", "30"]) as outside:  # noqa: ASYNC220 - returns at once
        command = f"kill -9 {outside.pid}; setsid sleep {MARK} & kill -9 $PPID; echo on"
        found = await call(shell(tmp_path), "run", command=command)
        assert (found["stdout"], found["exit_code"]) == ("on\n", 0)
        assert outside.poll() is None
        outside.kill()
    assert _left() == []


@pytest.mark.parametrize("number", [6, 9, 11, 15])
async def test_exit_code_of_a_signal_is_that_of_a_shell(tmp_path: Path, launcher: str, number: int) -> None:
    found = await call(shell(tmp_path), "run", command=f"kill -{number} $$")
    assert found["exit_code"] == 128 + number


async def test_cancelled_call_ends_its_processes(tmp_path: Path, launcher: str) -> None:
    command = f"touch there; setsid sleep {MARK} & sleep {MARK}"
    task = asyncio.create_task(call(shell(tmp_path), "run", command=command))
    while not (tmp_path / CTX.workflow_id / "there").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _left() == []


async def test_output_is_limited_and_does_not_stop_the_command(tmp_path: Path) -> None:
    found = await call(
        shell(tmp_path, max_output_bytes=1_000), "run", command="head -c 3000000 /dev/zero; echo done > end"
    )
    assert (len(found["stdout"]), found["truncated"], found["exit_code"]) == (1_000, True, 0)
    assert (tmp_path / CTX.workflow_id / "end").exists()


async def test_memory_is_limited(tmp_path: Path) -> None:
    code = "import sys\ntry:\n  b = bytearray(600 << 20)\nexcept MemoryError:\n  sys.exit(7)\n"
    config = CodeExecutionConfig(languages=("python",), max_memory_bytes=300 << 20)
    runner = service("code_execution", tmp_path, code_execution=config)
    assert (await call(runner, "run", language="python", code=code))["exit_code"] == 7


async def test_processes_are_limited(tmp_path: Path, launcher: str) -> None:
    """A bomb that would have 1,000 processes and stop there."""
    command = f"b() {{ [ $1 -le 0 ] && sleep {MARK}; b $(($1-1)) & b $(($1-1)) & wait; }}; b 9"
    found = await call(shell(tmp_path, max_processes=10), "run", command=command)
    assert found["exit_code"] == 125
    assert "more than 10 processes" in found["stderr"]
    assert _left() == []


async def test_workspace_that_became_a_link_is_none(tmp_path: Path, launcher: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / CTX.workflow_id).symlink_to(outside)
    error = await refused(shell(root), "run", command="echo x > y")
    assert error.executed is False
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("swapped", ["workspace", "root"])
async def test_files_of_a_workspace_that_became_a_link_are_none(tmp_path: Path, swapped: str) -> None:
    """Another run's workspace below the same root is outside, too."""
    root = tmp_path / "root"
    (root / "other").mkdir(parents=True)
    (root / "other" / "a.txt").write_text("of another run")
    chosen = root / "deep" / "w"
    if swapped == "workspace":
        chosen.parent.mkdir()
        chosen.symlink_to(root / "other")
    else:
        (root / "other" / "w").mkdir()
        (root / "deep").symlink_to(root / "other")
    found = service("file", root)
    context = StepContext(workspace=str(chosen))
    for name, more in (("read", {}), ("write", {"content": "x"}), ("append", {"content": "x"})):
        error = await refused(found, name, context=context, path="a.txt", **more)
        assert error.info.code == "workspace_denied"
    assert (root / "other" / "a.txt").read_text() == "of another run"


async def test_only_programs_that_are_allowed_run_and_without_a_shell(tmp_path: Path) -> None:
    found = service("terminal", tmp_path, terminal=TerminalConfig(allow=("echo",)))
    assert (await call(found, "run", command="echo 'a b'; id > x && $(id)"))[
        "stdout"
    ] == "a b; id > x && $(id)\n"
    for command in ("id", "/bin/echo x", "sh -c id", "'"):
        assert (await refused(found, "run", command=command)).executed is False


async def test_code_of_a_language_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    runner = service(
        "code_execution", tmp_path, code_execution=CodeExecutionConfig(languages=("python", "sh"))
    )
    assert (await call(runner, "run", language="python", code="print(6 * 7)"))["stdout"] == "42\n"
    assert (await call(runner, "run", language="sh", code="exit 4"))["exit_code"] == 4
    assert (await refused(runner, "run", language="bash", code="")).info.code == "invalid_tool_input"


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
