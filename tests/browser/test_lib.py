"""The small modules of the page alone, in a real Chromium: forms, formats, differences, hidden text."""

from __future__ import annotations

import json

import jsonschema
import pytest
from playwright.async_api import expect

from agentflow.docs import TOPICS
from tests.browser.kit import opened
from tests.browser.test_views import address
from tests.unit.server.kit import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORM = """
async ([schema, initial]) => {
  const { formOf } = await import("./lib/form.js");
  const field = formOf(schema, initial ?? undefined, {label: "Answer"});
  window.field = field;
  document.querySelector("main").replaceChildren(field.element);
}
"""
VALUE = (
    "() => { try { return {value: window.field.value()} } catch (error) { return {error: error.message} } }"
)

SCHEMA = {
    "type": "object",
    "title": "<img src=x onerror=alert(1)>",
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    "properties": {
        "name": {"type": "string", "minLength": 1, "title": "<b>Name</b>"},
        "story": {"type": "string", "maxLength": 5_000},
        "mail": {"type": "string", "format": "email"},
        "day": {"type": "string", "format": "date"},
        "amount": {"type": "number", "minimum": 0, "maximum": 10},
        "count": {"type": "integer", "default": 3},
        "agreed": {"type": "boolean"},
        "size": {"enum": ["S", "M", 7, None]},
        "fixed": {"const": {"a": 1}},
        "maybe": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
        "either": {
            "oneOf": [
                {"title": "by mail", "type": "object", "properties": {"to": {"type": "string"}}},
                {"title": "by number", "type": "integer"},
            ]
        },
        "anything": {},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["name", "amount", "agreed", "size", "fixed", "place", "either"],
}


async def test_a_form_gives_what_its_schema_asks_for(browser, served):
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        await page.evaluate(FORM, [SCHEMA, None])
        label = page.get_by_label
        assert (await page.evaluate(VALUE))["error"] == "<b>Name</b>: write a text"
        await page.locator("main input[type=text]").first.fill("Ada")
        assert (await page.evaluate(VALUE))["error"] == "amount: write a number"
        assert await page.locator("main b, main img").count() == 0
        await label("story").fill("Once\nupon")
        await label("mail").fill("ada@example.com")
        await label("day").fill("2026-01-31")
        await label("amount").fill("2.5")
        await label("agreed").check()
        assert (await page.evaluate(VALUE))["error"] == "size: choose one"  # nothing is chosen for people
        await label("size").select_option(label="7")
        await page.get_by_role("button", name="Add").click()
        await label("tags item").fill("red")
        await page.get_by_role("button", name="Add").click()
        await label("tags item").nth(1).fill("blue")
        await page.get_by_role("button", name="Remove").first.click()
        await label("city").fill("London")
        await label("either").select_option(label="by number")
        await page.get_by_role("spinbutton", name="by number").fill("12")
        await label("map").fill('{"a": }')
        assert (await page.evaluate(VALUE))["error"].startswith("map: ")
        await label("map").fill('{"a": 1}')
        value = (await page.evaluate(VALUE))["value"]
        assert value == {
            "name": "Ada",
            "story": "Once\nupon",
            "mail": "ada@example.com",
            "day": "2026-01-31",
            "amount": 2.5,
            "count": 3,
            "agreed": True,
            "size": 7,
            "fixed": {"a": 1},
            "tags": ["blue"],
            "place": {"city": "London"},
            "either": 12,
            "map": {"a": 1},
        }
        jsonschema.validate(value, SCHEMA)
        # What was there before is in the fields.
        await page.evaluate(FORM, [SCHEMA, value])
        assert (await page.evaluate(VALUE))["value"] == value


@pytest.mark.parametrize(
    ("schema", "filled", "value"),
    [
        ({"type": "string"}, "XL", "XL"),
        ({"type": "integer"}, "7", 7),
        ({"type": "null"}, "null", None),
        (True, '{"a": [1]}', {"a": [1]}),
        ({"$ref": "https://elsewhere.example/x"}, "[1]", [1]),
        ({"$ref": "#"}, "1", 1),
        ({"type": "array", "items": [{"type": "string"}]}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "x", "x"),
        ({"allOf": [{"type": "string"}, {"maxLength": 4}]}, "x", "x"),
        ({"type": "string", "format": "date-time"}, "2026-01-31T10:00:00", "2026-01-31T10:00:00.000Z"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, "x", ["x"]),
    ],
    ids=json.dumps,
)
async def test_any_schema_has_a_field(browser, served, schema, filled, value):
    async with opened(browser, timezone_id="UTC") as (page, watch):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        await page.evaluate(FORM, [schema, None])
        await page.locator("main input, main textarea").first.fill(filled)
        assert (await page.evaluate(VALUE))["value"] == value
        assert not any("elsewhere" in url for url in watch.requests)


CHOICES = {
    "type": "object",
    "required": ["level"],
    "properties": {
        "level": {"oneOf": [{"const": 1, "title": "low"}, {"const": 2, "title": "high"}]},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "uniqueItems": True},
        "payment": {"oneOf": [{"title": "Card", "type": "object", "required": ["number"]}]},
        "size": {"enum": ["S", "M"]},
        "place": {
            "type": "object",
            "required": ["lat"],
            "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90}},
        },
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 1},
    },
}


async def test_nothing_is_chosen_or_made_up_for_people(browser, served):
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        await page.evaluate(FORM, [CHOICES, None])
        label = page.get_by_label
        assert await page.evaluate(VALUE) == {"error": "level: choose one"}
        await expect(label("level")).to_be_focused()
        await expect(label("level")).to_have_attribute("aria-invalid", "true")
        await label("level").select_option(label="high")
        assert await page.evaluate(VALUE) == {"value": {"level": 2}}
        await expect(label("level")).not_to_have_attribute("aria-invalid", "true")
        await label("green").check()
        await expect(page.locator("main")).to_contain_text("-90 to 90")
        await label("lat").fill("1.5")
        await page.get_by_role("button", name="Add").click()
        await expect(page.get_by_role("button", name="Add")).to_be_disabled()
        await label("tags item").fill("x")
        found = (await page.evaluate(VALUE))["value"]
        assert found == {"level": 2, "colours": ["green"], "place": {"lat": 1.5}, "tags": ["x"]}
        jsonschema.validate(found, CHOICES)
        # Members that the schema does not name stay; a schema of the log begins with what is required.
        kept = {"level": 1, "more": True}
        await page.evaluate(FORM, [CHOICES, kept])
        assert (await page.evaluate(VALUE))["value"] == kept
        ordered = """async () => {
          const { requiredFirst } = await import("./lib/form.js");
          const m = {default: {required: ["b"], properties: {}}};
          const schema = {required: ["z", "gone", "m"], properties: {a: {}, m, z: {}}};
          return Object.keys(requiredFirst(schema).properties);
        }"""
        assert await page.evaluate(ordered) == ["z", "m", "a"]


LIBRARY = """
async () => {
  const { duration, bytes, brief, count, money, shell, when } = await import("./lib/format.js");
  const { diffLines, stableText } = await import("./lib/diff.js");
  const { ticks } = await import("./lib/timeline.js");
  const { visible } = await import("./lib/dom.js");
  const large = Array.from({length: 2_000_000}, (_, i) => i);
  const began = performance.now();
  const begins = brief(large, 20);
  const took = performance.now() - began;
  const whole = performance.now();
  JSON.stringify(large);
  const stringified = performance.now() - whole;
  return {
    durations: [null, -1, 0, 999, 1000, 9_949, 59_000, 61_000, 3_600_000, 200_000_000].map(duration),
    bytes: [0, 1023, 1024, 1048576, 5 * 2**30].map(bytes),
    money: [0, 0.0000012, 0.5, 12.345].map(money),
    count: count(1234567),
    shell: ["abc", "a b", "it's", "$(rm)"].map(shell),
    when: when(Date.now() - 65_000),
    brief: [brief("a  b\\n c"), brief({a: [1, "x"]}), begins],
    cheap: took < stringified,
    diff: diffLines("a\\nb\\nc", "a\\nx\\nc\\nd").map(line => line.kind[0] + line.text),
    stable: stableText({b: 1, a: {d: 1, c: 2}}) === stableText({a: {c: 2, d: 1}, b: 1}),
    ticks: [1, 60, 86_400_000, 1e12].map(length => ticks(length).length),
    places: [13, 18_000, 150_000, 5_400_000].map(length => ticks(length, 5).map(one => one[1])),
    visible: visible("a\\u202eb\\u200bc").map(one => one.textContent ?? one),
  };
}
"""


async def test_the_small_functions(browser, served):
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        found = await page.evaluate(LIBRARY)
    assert found["durations"] == [
        *("", "0 ms", "0 ms", "999 ms", "1.0 s", "9.9 s", "59 s"),
        *("1 min 1 s", "1 h 0 min", "2 d 7 h"),
    ]
    assert found["bytes"] == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "5.0 GiB"]
    assert found["money"] == ["$0", "$0.000001", "$0.50", "$12.35"]
    assert (found["count"], found["when"]) == ("1,234,567", "1 min ago")
    assert found["shell"] == ["abc", "'a b'", "'it'\\''s'", "'$(rm)'"]
    assert found["brief"] == ["a b c", '{"a":[1,"x"]}', "[0,1,2,3,4,5,6,7,8,…"]
    assert found["cheap"]  # the beginning of a large value is not the whole of it
    assert found["diff"] == ["sa", "rb", "ax", "sc", "ad"]
    assert found["stable"]
    assert all(1 <= count <= 9 for count in found["ticks"])
    assert found["places"] == [
        ["0", "5 ms", "10 ms"],
        ["0", "5 s", "10 s", "15 s"],
        ["0", "30 s", "1 min", "1 min 30 s", "2 min"],
        ["0", "30 min", "1 h"],
    ]
    assert found["visible"] == ["a", "U+202E", "b", "U+200B", "c"]


LOG_ROWS = """
async keys => {
  const { LogRows } = await import("./lib/log_rows.js");
  const rows = new LogRows();
  const shown = [];
  keys.forEach((key, place) => {
    const type = place === 4 ? "workflow.step_failed" : "x";
    const fact = {key, step: key && "s", type, offset: place, at: 0, data: {}};
    const before = [...rows.rows];
    const changed = rows.take(fact, place);
    // What stands above the row that it names is as it was.
    if (rows.rows.slice(0, changed).join() !== before.slice(0, changed).join()) throw new Error(`${place}`);
  });
  const folded = [...rows.rows];
  const [fold] = rows.folds;
  const places = keys.map((_, place) => rows.rowOf(place));
  rows.toggle(fold);
  const unfolded = [...rows.rows];
  const open = keys.map((_, place) => rows.rowOf(place));
  const head = rows.headOf(fold);
  rows.toggle(fold);
  return {folded, unfolded, places, open, head, again: rows.rows, items: fold.items.size, failed: fold.failed,
    of: [rows.foldOf(0), rows.foldOf(1), rows.foldOf(9), rows.foldOf(10)].map(one => one && one.number)};
}
"""


async def test_events_of_items_that_stand_together_fold(browser, served):
    items = [f"/s#0[{i % 3}]" for i in range(9)]
    few = [f"/t#0[{i}]/inner#0" for i in range(3)]
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        found = await page.evaluate(LOG_ROWS, [None, *items, "/s#0", *few, None])
    assert found["folded"] == [0, -1, 10, 11, 12, 13, 14]  # fewer than eight do not fold
    assert found["again"] == found["folded"]
    assert found["unfolded"] == [0, -1, *range(1, 15)]
    assert found["places"] == [0, *[1] * 9, *range(2, 7)]
    assert found["open"] == [0, *range(2, 16)]
    assert (found["head"], found["items"], found["failed"]) == (1, 3, 1)
    assert found["of"] == [None, 0, 0, None]


@pytest.mark.slow
async def test_the_documentation_has_every_topic_of_help(browser, tmp_path):
    async with serving(tmp_path) as served, opened(browser) as (page, _):
        await page.goto(address(served, "#/docs"))
        links = page.locator(".docs nav a")
        await expect(links.first).to_be_visible()
        shown = await links.evaluate_all("all => all.map(one => one.hash.slice('#/docs/'.length))")
        assert set(shown) == set(TOPICS)
        for topic in shown:
            await page.goto(address(served, f"#/docs/{topic}"))
            await expect(page.locator(f'.docs nav a[href="#/docs/{topic}"]')).to_have_attribute(
                "aria-current", "page"
            )
            await expect(page.locator(".prose h1")).to_have_count(1)
            text = await page.locator(".prose").inner_text()
            assert "](" not in text, topic  # a link that was not read
            assert "\n```" not in text, topic


async def test_of_long_texts_the_differences_are_shown_and_the_rest_is_counted(browser, served):
    ways = """async ([before, after]) => {
      const { diffView } = await import("./views/call_view.js");
      document.querySelector("main").replaceChildren(diffView(before, after));
    }"""
    lines = [f"line {i}" for i in range(100_000)]
    other = [*lines[:50_000], "changed", *lines[50_001:]]
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        await page.evaluate(ways, ["\n".join(lines), "\n".join(other)])
        shown = page.locator(".diff span")
        assert await shown.count() == 44  # what differs, 20 lines on both sides, two counts
        await expect(shown.first).to_have_text("… 49980 lines are the same\n", use_inner_text=False)
        await expect(page.locator(".diff-removed")).to_contain_text("line 50000")
        await expect(page.locator(".diff-added")).to_contain_text("changed")
        # Where all differs, as much is drawn as is asked for.
        await page.evaluate(ways, ["\n".join(lines), "\n".join(f"x{i}" for i in range(100_000))])
        assert await shown.count() == 2_000
        await page.get_by_role("button", name="198,000 more lines").click()
        assert await shown.count() == 4_000
        # A short one is shown whole.
        await page.evaluate(ways, ["\n".join(lines[:90]), "\n".join([*lines[:89], "end"])])
        await expect(page.locator(".diff-gap")).to_have_count(0)
        assert await shown.count() == 91
