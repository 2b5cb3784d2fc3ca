"""What the fault suites have done to each store and what they found, for the line at the end of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["TALLIES", "Tally", "verdict"]

PROBLEMS = ("lost", "gaps", "duplicates", "false_alarms")


@dataclass
class Tally:
    """Counts for one kind of store. `lost`: acknowledged or seen, and gone. `gaps`: an offset is missing or a
    batch is not whole. `false_alarms`: what a crash left was called damaged, or the log did not go on."""

    store: str
    images: int = 0
    kills: int = 0
    flips: int = 0
    harmless: int = 0
    lost: int = 0
    gaps: int = 0
    duplicates: int = 0
    false_alarms: int = 0
    silent: int = 0
    means: set[str] = field(default_factory=set)

    def blame(self, problems: list[tuple[str, str]]) -> None:
        """Count what was found wrong."""
        for kind, _ in problems:
            setattr(self, kind, getattr(self, kind) + 1)

    @property
    def clean(self) -> bool:
        return not self.silent and not any(getattr(self, kind) for kind in PROBLEMS)


TALLIES = {name: Tally(name) for name in ("sqlite", "file")}


def verdict() -> list[str]:
    """What to print at the end: means and flips, then one line a store."""
    done = [t for t in TALLIES.values() if t.images or t.kills or t.flips]
    lines = [f"killed by: {', '.join(sorted(t.means))} ({t.store})" for t in done if t.means]
    lines += [
        f"flips: store={t.store} flips={t.flips} harmless={t.harmless} "
        f"noticed={t.flips - t.harmless - t.silent} silent={t.silent}"
        for t in done
        if t.flips
    ]
    return lines + [
        f"store={t.store} images={t.images} kills={t.kills} "
        + " ".join(f"{kind}={getattr(t, kind)}" for kind in PROBLEMS)
        for t in done
    ]
