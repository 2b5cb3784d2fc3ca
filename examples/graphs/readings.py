"""A map over a list of 1,000: an activation for each reading, 50 at once, all results to one join."""

from __future__ import annotations

import asyncio

import msgspec

from agentflow import Never, RetryPolicy, WorkflowBuilder, WorkflowContext, executor


class Reading(msgspec.Struct, frozen=True):
    sensor: int
    celsius: float


class Checked(msgspec.Struct, frozen=True):
    sensor: int
    fahrenheit: float
    alarm: bool


class Summary(msgspec.Struct, frozen=True):
    readings: int
    alarms: list[int]
    hottest: float


async def measure(sensor: int) -> float:
    """A sensor that is asked over a network would be read here."""
    await asyncio.sleep(0)
    return 15 + sensor * 37 % 60 / 2


@executor(id="sensors")
async def sensors(count: int) -> list[Reading]:
    return [Reading(sensor, await measure(sensor)) for sensor in range(count)]


@executor(id="check", retry=RetryPolicy(max_attempts=3))
async def check(reading: Reading) -> Checked:
    return Checked(reading.sensor, reading.celsius * 1.8 + 32, reading.celsius > 44)


@executor(id="summary")
async def summary(checked: list[Checked], ctx: WorkflowContext[Never, Summary]) -> None:
    alarms = [one.sensor for one in checked if one.alarm]  # in the order of the readings
    await ctx.yield_output(Summary(len(checked), alarms, max(one.fahrenheit for one in checked)))


workflow = (
    WorkflowBuilder("readings", max_steps=10_000)  # 1,000 steps are the default; each reading is one
    .set_start_executor(sensors)
    .add_map_edges(sensors, check, summary, max_in_flight=50)
    .build()
)


async def main() -> None:
    result = await workflow.run(1_000)
    found: Summary = result.output
    print(
        f"map:        {found.readings} readings, {len(found.alarms)} alarms, at most {found.hottest:.1f} °F"
    )
