"""`agentflow gc`: delete or trim ended runs by the retention policy, or list them (page 000 §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option
from agentflow.cli.output import columns, emit, emit_json
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.cli.session import Interrupts
    from agentflow.events.retention import RetentionPlan, RetentionPolicy
    from agentflow.records.upkeep import Collected, Upkeep
    from agentflow.runtime.archiving import Archived

__all__ = ["archive", "gc"]


@click.command("gc", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only say what would go, and why.")
@json_option("Print {dry_run, policy, removals, kept, runs, bytes, bytes_after, …} as JSON.")
@target_options
def gc(dry_run: bool, as_json: bool, where: Where) -> Exit:
    """Take the ended runs that retention takes.

    \b
    In agentflow.toml:
      [retention]
      mode = "age"          # or "size"; "infinite", the default, takes nothing
      max_age = "30d"       # mode age; max_bytes = "10GiB" for mode size
      keep_failed = true
      trim_to_events = 100  # keep so many events of a run instead of deleting it; not with a file: store

    They are deleted, or trimmed. A run labelled hold stays, and so does one whose parent or child has not
    ended. Then the space of all that is gone is given back.
    """
    from agentflow.cli.session import run_async

    async def work(interrupts: Interrupts) -> Exit:
        done = await interrupts.guard(_upkeep(where, dry_run))
        if as_json:
            emit_json(_as_json(done.policy, done.plan, done.collected))
        else:
            emit(_as_text(done.policy, done.plan, done.collected))
        return Exit.DONE

    return run_async(work)


@click.command("archive", cls=Command)
@json_option("Print {runs, bytes, skipped} as JSON.")
@target_options
def archive(as_json: bool, where: Where) -> Exit:
    """Move the ended runs into the archive.

    \b
    In agentflow.toml, or as AGENTFLOW_ARCHIVE:
      archive = "s3://BUCKET/PREFIX"

    A run is deleted from the store when the archive was read back and holds it; from then on it is read
    there. A run labelled hold stays, and so does one whose parent or child has not ended. Credentials are
    taken from the environment, as the tools of the provider do (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …).
    """
    from agentflow.cli.session import run_async

    async def work(interrupts: Interrupts) -> Exit:
        from agentflow.cli.progress import count
        from agentflow.units import size_text

        done = await interrupts.guard(_archive(where))
        if as_json:
            emit_json(done)
        else:
            lines = [f"{each.workflow_id} stays: {each.reason}" for each in done.skipped]
            lines.append(f"{count(done.runs, 'run')} archived, {size_text(done.bytes)}")
            emit("\n".join(lines))
        return Exit.DONE

    return run_async(work)


async def _archive(where: Where) -> Archived:
    from agentflow.cli.session import store_exists
    from agentflow.errors import ConfigurationError
    from agentflow.events.archive import open_archive
    from agentflow.events.open import open_log
    from agentflow.runtime.archiving import Archived, archive_ended_runs
    from agentflow.runtime.clock import SystemClock

    config = where.config()
    if config.archive is None:
        raise ConfigurationError(
            "no archive is configured", hint='set archive = "s3://BUCKET/PREFIX" in agentflow.toml'
        )
    target = open_archive(config.archive)
    await target.check()
    if not store_exists(config.store):
        return Archived(runs=0, bytes=0, skipped=[])
    log = open_log(config.store)
    try:
        return await archive_ended_runs(log, target, SystemClock().now())
    finally:
        await log.close()


async def _upkeep(where: Where, dry_run: bool) -> Upkeep:
    url = where.daemon()
    if url is not None:
        from agentflow.client import Client

        async with Client(url) as client:
            return await client.gc(dry_run=dry_run)
    from agentflow.cli.session import store_exists
    from agentflow.events.open import open_log
    from agentflow.runtime.clock import SystemClock
    from agentflow.runtime.result_cache import ResultCache
    from agentflow.runtime.retention import upkeep

    config, clock = where.config(), SystemClock()
    store = config.store if store_exists(config.store) else "memory:"
    log = open_log(store, archive=config.archive)
    try:
        done = await upkeep(log, config.retention, clock.now(), dry_run=dry_run)
        if not dry_run:
            await ResultCache(log, clock).sweep()
        return done
    finally:
        await log.close()


def _as_json(policy: RetentionPolicy, plan: RetentionPlan, collected: Collected | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "dry_run": collected is None,
        "policy": policy,
        "removals": plan.removals if collected is None else collected.done,
        "kept": plan.kept,
        "runs": plan.runs,
        "bytes": plan.bytes,
        "bytes_after": plan.bytes_after,
        "removal_count": plan.removal_count if collected is None else collected.done_count,
        "kept_count": plan.kept_count,
    }
    if collected is not None:
        found |= {"skipped": collected.skipped, "swept": collected.swept}
    return found


def _as_text(policy: RetentionPolicy, plan: RetentionPlan, collected: Collected | None) -> str:
    from agentflow.cli.progress import count
    from agentflow.units import size_text

    removals = plan.removals if collected is None else collected.done
    lines: list[str] = []
    if policy.mode == "infinite":
        lines.append('nothing goes: retention is "infinite" (see [retention] in agentflow.toml)')
    if removals:
        rows = [(r.workflow_id, r.action, r.state, size_text(r.bytes), r.reason) for r in removals]
        lines += [columns(("ID", "ACTION", "STATE", "SIZE", "WHY"), rows), ""]
    kept = plan.kept if collected is None else [*plan.kept, *collected.skipped]
    lines += [f"{each.workflow_id} stays: {each.reason}" for each in kept]
    gone = plan.removal_count if collected is None else collected.done_count
    if gone > len(removals):
        lines += [f"… and {count(gone - len(removals), 'more run')}", ""]
    verb = "would go" if collected is None else "gone"
    lines.append(
        f"{gone} of {count(plan.runs, 'run')} {verb}, {size_text(plan.freed)} of {size_text(plan.bytes)}"
    )
    if policy.max_bytes is not None and plan.bytes_after > policy.max_bytes:
        over = size_text(plan.bytes_after - policy.max_bytes)
        lines.append(f"still {over} above max_bytes: what is left has not ended, or may not go")
    if collected is not None:
        swept = collected.swept
        lines.append(
            f"{count(swept.blobs, 'blob')} and {count(swept.definitions, 'definition')} that no run names "
            f"are gone; the store is {size_text(swept.bytes)} smaller"
        )
    return "\n".join(lines)
