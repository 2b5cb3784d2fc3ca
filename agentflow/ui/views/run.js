// Run: graph, timeline and log side by side with one selection, at any offset of the log.

import { follow, get, post, runPath } from "../lib/api.js";
import { announce, button, copyButton, debounced, fill, h, isKey, perFrame, visible } from "../lib/dom.js";
import { parse } from "../lib/exact.js";
import { factOf, foldTo, RunFold } from "../lib/fold.js";
import { amount, brief, clock, count, duration, limitName, moment, money, when } from "../lib/format.js";
import { GraphView } from "../lib/graph.js";
import { LogRows } from "../lib/log_rows.js";
import { commandButton, badge, problemView } from "../lib/parts.js";
import { TEXTS } from "../lib/texts.js";
import { Timeline } from "../lib/timeline.js";
import { WindowedList } from "../lib/windowed.js";
import { askCancel, askFork, askReason, askResume } from "./run_commands.js";
import { inspector } from "./inspector.js";

const SLICE_MS = 8;
const LOG_ROW = 26;

/** @typedef {{kind: "run"} | {kind: "step", step: string, span?: string} | {kind: "event", offset: number} | {kind: "call", id: string}} Selection */

/** @param {import("../app.js").Context} context */
export async function show(context) {
  const { root, path, query, signal, session, setQuery } = context;
  const id = path[0] ?? "";
  context.setTitle(id);

  // The row of the store's index comes at once; the record is folded from the whole log, and follows.
  const [found, layout] = await Promise.all([
    get("/workflows", { signal, query: { prefix: id, limit: 1 } }),
    get(`${runPath(id)}/graph`, { signal, query: { format: "layout" } }).catch(() => null),
  ]);
  const row = found.items[0];
  let record = row?.workflow_id === id ? provisional(row) : await get(runPath(id), { signal });
  context.setTitle(record.definition.name ?? id);

  // -- the log as it comes

  /** @type {import("../lib/fold.js").Fact[]} */
  const facts = [];
  /** @type {string[]} */
  const lines = [];
  const fold = new RunFold();
  let shownFold = fold;
  /** @type {number | null} the offset that is looked at; null: the latest */
  let at = /^\d{1,9}$/.test(query.get("offset") ?? "") ? Number(query.get("offset")) : null;
  /** @type {Selection} */
  let selection = read(query.get("select"));
  /** @type {Map<string, string>} */
  const streamed = new Map();

  // -- head

  const live = h("span", { class: "live", role: "status" });
  const state = h("span");
  const numbers = h("div", { class: "numbers" });
  const actions = h("div", { class: "actions" });
  const notice = h("div", { "aria-live": "assertive" });
  const trimmed = h("div");
  const about = h("div", { class: "run-sub" });
  const drawAbout = () =>
    fill(
      about,
      h("code", null, id),
      copyButton(id, "Copy the id"),
      Object.entries(record.labels).map(([name, value]) => h("span", { class: "tag" }, visible(`${name}=${value}`))),
      record.forked_from
        ? h("a", { href: `#/runs/${encodeURIComponent(record.forked_from.workflow_id)}?offset=${record.forked_from.offset}` }, `forked from offset ${record.forked_from.offset}`)
        : null,
      record.parent ? h("a", { href: `#/runs/${encodeURIComponent(record.parent.workflow_id)}` }, `child of step ${record.parent.step_id}`) : null,
      record.children.map((/** @type {string} */ child) => h("a", { href: `#/runs/${encodeURIComponent(child)}` }, "child run")),
    );
  drawAbout();
  const head = h(
    "div",
    { class: "run-head" },
    h(
      "div",
      { class: "run-title" },
      h("a", { class: "back", href: "#/runs", "aria-label": "All runs" }, "‹"),
      h("h1", null, visible(record.definition.name ?? id)),
      state,
      live,
      h("span", { class: "grow" }),
      actions,
    ),
    about,
    numbers,
    trimmed,
    notice,
  );

  function drawHead() {
    const now = shownFold;
    fill(state, badge(at === null ? record.state : now.state), record.pause && at === null ? h("span", { class: "tag" }, record.pause) : null);
    const end = at === null ? (record.ended_at ? Date.parse(record.ended_at) : now.ended ? now.last : Date.now()) : now.last;
    const budget = Object.entries(record.budget?.limits ?? {});
    fill(
      numbers,
      number("Started", when(record.created_at), moment(record.created_at)),
      number("Duration", duration(now.start ? end - now.start : null)),
      number("Tokens", count(now.usage.input + now.usage.output), `${count(now.usage.input)} in, ${count(now.usage.output)} out`),
      number("Cost", now.usage.unpriced && !now.usage.cost ? "–" : money(now.usage.cost)),
      number("Model calls", count(now.usage.calls)),
      number("Tool calls", count(now.usage.tools)),
      number("Events", count(facts.length)),
      budget.map(([name, limit]) => budgetNumber(name, Number(limit), record.budget)),
    );
  }

  let drawnActions = "";
  function drawActions() {
    const key = JSON.stringify([record.state, record.pause, record.forked_from]);
    if (key === drawnActions) return;
    drawnActions = key;
    const ended = ["completed", "failed", "cancelled"].includes(record.state);
    const focused = actions.contains(document.activeElement) ? document.activeElement?.textContent : null;
    fill(
      actions,
      !ended && record.state !== "paused"
        ? commandButton("Pause", session, "run", () => void askReason(id, "pause").then(refresh))
        : null,
      record.state === "paused" ? commandButton("Resume", session, "run", () => (record.pause === "budget" ? void askResume(record, fold.pause).then(refresh) : void tell("resume")), { class: "button primary" }) : null,
      !ended ? commandButton("Cancel", session, "run", () => void askCancel(id).then(refresh), { class: "button danger" }) : null,
      commandButton("Fork", session, "run", () => {
        const step = selection.kind === "step" ? selection.step : null;
        askFork(record, { offset: at, step, input: record.input }).catch((error) => fill(notice, problemView(error)));
      }),
      h("a", { class: "button", href: `#/runs/${encodeURIComponent(id)}/compare${record.forked_from ? `/${encodeURIComponent(record.forked_from.workflow_id)}` : ""}` }, "Compare"),
    );
    // Who is at a button stays there while the run goes on.
    if (focused) /** @type {HTMLElement | undefined} */ ([...actions.children].find((one) => one.textContent === focused))?.focus();
  }

  /** @param {string} command */
  async function tell(command) {
    try {
      await post(`${runPath(id)}/${command}`, {});
      fill(notice);
    } catch (error) {
      fill(notice, problemView(error));
    }
    await refresh();
  }

  async function refresh() {
    try {
      record = await get(runPath(id), { signal });
    } catch (error) {
      if (signal.aborted) return;
      fill(notice, problemView(error));
      isUnread = true;
      return;
    }
    if (isUnread) fill(notice);
    isUnread = false;
    drawAbout();
    drawHead();
    drawActions();
    drawInspector();
  }
  let isUnread = false;
  const refreshSoon = debounced(() => void refresh(), 250, signal);

  // -- scrubber

  const slider = h("input", {
    type: "range",
    class: "scrubber",
    min: "0",
    max: "0",
    value: "0",
    "aria-label": "Offset of the log",
    oninput: () => moveTo(Number(slider.value)),
  });
  const place = h("output", { class: "place" });
  const latest = button("Latest", () => scrub(null), { class: "button small" });
  const scrubbing = h("div", { class: "scrub" }, button("‹", () => stepBy(-1), { class: "icon-button", "aria-label": "One event back" }), slider, button("›", () => stepBy(1), { class: "icon-button", "aria-label": "One event forth" }), place, latest);

  /** The first offset that is there, which is not 0 in a log that was trimmed. */
  const firstOffset = () => facts[0]?.offset ?? 0;
  const lastOffset = () => firstOffset() + Math.max(0, facts.length - 1);

  /** @param {number} offset */
  const moveTo = (offset) => scrub(offset >= lastOffset() ? null : offset);

  /** @param {number} by */
  function stepBy(by) {
    const next = (at ?? lastOffset()) + by;
    if (next >= firstOffset()) moveTo(next);
  }

  const refold = perFrame(() => {
    shownFold = at === null ? fold : foldTo(facts, at, shownFold === fold ? undefined : shownFold);
    draw();
    inspectSoon();
  }, signal);

  /** @param {number | null} offset */
  function scrub(offset) {
    at = offset;
    setQuery({ offset: at });
    root.classList.toggle("past", at !== null);
    refold();
    drawActions();
    if (at !== null) log.scrollTo(indexOf(at));
  }

  function drawScrubber() {
    slider.min = String(firstOffset());
    slider.max = String(lastOffset());
    slider.value = String(at ?? lastOffset());
    const fact = facts[indexOfFact(at ?? lastOffset())];
    slider.setAttribute("aria-valuetext", fact ? `offset ${fact.offset}, ${fact.type}` : "");
    fill(place, fact ? `${fact.offset} · ${fact.type} · ${clock(fact.at)}` : "no events");
    latest.disabled = at === null;
  }

  // -- graph, timeline, log

  const graph = layout ? new GraphView(layout, (step) => select(step === null ? { kind: "run" } : { kind: "step", step })) : null;
  /** @type {Map<string, RunFold>} of the runs that steps of this one began, as they are opened */
  const begun = new Map();
  const timeline = new Timeline((span, run) => {
    /** @type {Selection} */
    const chosen = span.kind === "step" ? { kind: "step", step: span.step, span: span.id } : { kind: "call", id: span.id };
    if (run === null) select(chosen);
    else location.hash = `#/runs/${encodeURIComponent(run)}?select=${encodeURIComponent(write(chosen))}`;
  }, foldOf);

  /** @param {string} run */
  function foldOf(run) {
    const known = begun.get(run);
    if (known) return known;
    const made = new RunFold();
    begun.set(run, made);
    const tick = perFrame(() => timeline.tick(), signal);
    void follow(`${runPath(run)}/events`, {
      signal,
      query: () => (made.ended ? null : { after: made.offset }),
      onLines: (batch) => {
        for (const line of batch) {
          const event = parse(line);
          if (event.offset !== undefined) made.take(factOf(event));
        }
        tick();
      },
    });
    return made;
  }

  const folded = new LogRows();
  /** @type {number[] | null} places in `facts` that the filter leaves; null: all, with items folded */
  let filtered = null;
  /** @type {import("../lib/log_rows.js").Fold | null} the fold whose row the keys are at */
  let marked = null;
  let follows = selection.kind !== "event"; // an address may name an event, which then has to be in sight
  const log = new WindowedList({
    rowHeight: LOG_ROW,
    members: { class: "windowed log", role: "listbox", "aria-label": "Log" },
    row: (index) => {
      if (filtered) return logRow(/** @type {number} */ (filtered[index]));
      const fold = folded.foldAt(index);
      return fold ? foldRow(fold) : logRow(folded.place(index));
    },
  });
  const rowCount = () => (filtered ?? folded.rows).length;
  let before = 0;
  log.element.addEventListener(
    "scroll",
    () => {
      // Only people scroll up; the end may have moved on since the page scrolled to it.
      follows = log.isAtEnd || (follows && log.top >= before);
      before = log.top;
    },
    { passive: true },
  );
  log.element.addEventListener("keydown", (event) => {
    if (marked && ["Enter", " ", "ArrowRight", "ArrowLeft"].includes(event.key)) {
      event.preventDefault();
      if (event.key !== "ArrowRight" || !marked.open) if (event.key !== "ArrowLeft" || marked.open) unfold(marked);
      return;
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const now = marked ? folded.headOf(marked) : selection.kind === "event" ? indexOf(selection.offset) : -1;
    const next = Math.max(0, Math.min(rowCount() - 1, now + (event.key === "ArrowDown" ? 1 : -1)));
    mark(filtered ? null : folded.foldAt(next));
    const fact = facts[filtered ? /** @type {number} */ (filtered[next]) : folded.place(next)];
    if (fact && !marked) select({ kind: "event", offset: fact.offset });
    log.scrollTo(next);
  });

  /** @param {import("../lib/log_rows.js").Fold | null} fold */
  function mark(fold) {
    if (fold === marked) return;
    marked = fold;
    log.refresh();
    if (fold) {
      log.element.setAttribute("aria-activedescendant", `fold-${fold.number}`);
      announce(foldText(fold));
    }
  }

  /** @param {import("../lib/log_rows.js").Fold} fold */
  function unfold(fold) {
    folded.toggle(fold);
    follows = false;
    log.setCount(rowCount());
    log.refresh();
  }
  const find = h("input", {
    type: "search",
    placeholder: "Filter the log   /",
    "aria-label": "Filter the log by type, step or text",
    value: query.get("log") ?? "",
    oninput: debounced(() => {
      setQuery({ log: find.value });
      refilter();
    }, 150, signal),
  });

  /** @type {string[]} */
  let words = [];
  let scanned = 0;
  let scans = 0;
  function refilter() {
    words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    filtered = words.length === 0 ? null : [];
    scanned = 0;
    marked = null;
    log.setCount(rowCount());
    log.refresh();
    void scan();
  }

  /** Look through what has not been looked at yet, in slices. */
  async function scan() {
    const mine = ++scans;
    let since = performance.now();
    while (filtered && scanned < facts.length) {
      if (matches(/** @type {import("../lib/fold.js").Fact} */ (facts[scanned]), scanned, words)) filtered.push(scanned);
      scanned++;
      if (performance.now() - since > SLICE_MS) {
        log.setCount(filtered.length);
        await new Promise((resolve) => setTimeout(resolve));
        if (mine !== scans || signal.aborted) return;
        since = performance.now();
      }
    }
    if (filtered) log.setCount(filtered.length);
  }

  /** @param {import("../lib/fold.js").Fact} fact @param {number} index @param {string[]} words */
  function matches(fact, index, words) {
    return words.every((word) => fact.type.includes(word) || fact.step?.toLowerCase().includes(word) || lines[index]?.toLowerCase().includes(word));
  }

  /** @param {number} offset */
  function indexOf(offset) {
    const base = offset - (facts[0]?.offset ?? 0);
    return filtered ? filtered.findIndex((index) => index >= base) : folded.rowOf(base);
  }

  /** @param {import("../lib/log_rows.js").Fold} fold */
  function foldText(fold) {
    const items = `${count(fold.items.size)} ${fold.items.size === 1 ? "item" : "items"}`;
    return `${count(fold.last - fold.first + 1)} events of ${items}, ${fold.open ? "unfolded" : "folded"}`;
  }

  /** @param {import("../lib/log_rows.js").Fold} fold */
  function foldRow(fold) {
    const begin = /** @type {import("../lib/fold.js").Fact} */ (facts[fold.first]);
    const end = /** @type {import("../lib/fold.js").Fact} */ (facts[fold.last]);
    const related = (selection.kind === "step" && fold.step === selection.step) || (!fold.open && selection.kind === "event" && begin.offset <= selection.offset && selection.offset <= end.offset);
    const items = `${count(fold.items.size)} ${fold.items.size === 1 ? "item" : "items"}`;
    const told = `${items}${fold.failed ? ` · ✕ ${count(fold.failed)} failed` : ""}`;
    return h(
      "div",
      {
        class: `log-row log-fold${related ? " related" : ""}${fold === marked ? " marked" : ""}${at !== null && begin.offset > at ? " later" : ""}`,
        role: "option",
        id: `fold-${fold.number}`,
        "aria-selected": "false",
        title: `offsets ${begin.offset} to ${end.offset}`,
        onclick: () => unfold(fold),
      },
      h("span", { class: "log-offset" }, begin.offset),
      h("span", { class: "log-time", title: moment(begin.at) }, clock(begin.at)),
      h("span", { class: "log-type" }, h("span", { "aria-hidden": "true" }, fold.open ? "▾ " : "▸ "), `${count(fold.last - fold.first + 1)} events`, h("span", { class: "visually-hidden" }, fold.open ? ", unfolded" : ", folded")),
      h("span", { class: "log-step" }, fold.step),
      h("span", { class: `log-detail${fold.failed ? " bad" : ""}` }, told),
    );
  }

  /** @param {number} index */
  function logRow(index) {
    const fact = /** @type {import("../lib/fold.js").Fact} */ (facts[index]);
    const chosen = selection.kind === "event" && selection.offset === fact.offset;
    const related = (selection.kind === "step" && fact.step === selection.step) || (selection.kind === "call" && (fact.data.model_call_id === selection.id || fact.data.tool_call_id === selection.id));
    const family = fact.type.slice(0, fact.type.indexOf("."));
    return h(
      "div",
      {
        class: `log-row${related ? " related" : ""}${at !== null && fact.offset > at ? " later" : ""}`,
        role: "option",
        id: `event-${fact.offset}`,
        "aria-selected": String(chosen),
        "data-family": family,
        onclick: () => {
          marked = null;
          select({ kind: "event", offset: fact.offset });
        },
      },
      h("span", { class: "log-offset" }, fact.offset),
      h("span", { class: "log-time", title: moment(fact.at) }, clock(fact.at)),
      h("span", { class: `log-type${fact.data.error ? " bad" : ""}` }, fact.type),
      h("span", { class: "log-step" }, fact.step ?? ""),
      h("span", { class: "log-detail", title: detail(fact) || null }, detail(fact)),
    );
  }

  // -- one selection for all

  const inspected = h("div", { class: "inspector" });
  let inspectedTab = query.get("tab") ?? "";

  /** @param {Selection} chosen */
  function select(chosen) {
    selection = chosen;
    setQuery({ select: write(chosen) });
    const fold = chosen.kind === "event" && !filtered ? folded.foldOf(indexOfFact(chosen.offset)) : null;
    if (fold && !fold.open) unfold(fold);
    drawActions();
    draw();
    drawInspector();
    if (chosen.kind === "event") {
      log.element.setAttribute("aria-activedescendant", `event-${chosen.offset}`);
      announce(`event ${chosen.offset}`);
    }
  }

  /** What the inspector says, in short: it is made anew when this changes, so that what people opened stays open. */
  function inspectedKey() {
    if (selection.kind === "event") return JSON.stringify([selection, facts.length > indexOfFact(selection.offset)]);
    const step = selection.kind === "step" ? selection : null;
    const spans = step ? (shownFold.steps.get(step.step) ?? []) : [];
    const span = selection.kind === "call" ? shownFold.calls.get(selection.id) : (spans.find((one) => one.id === step?.span) ?? spans[spans.length - 1]);
    const child = span?.children[span.children.length - 1];
    const shown = [selection, facts.length > 0, spans.length, span && [span.id, span.state, span.attempts.length, span.waits.length, span.children.length], child?.state];
    if (selection.kind === "call") return JSON.stringify(shown);
    const { state, pause, output, error, provisional, last_offset } = record;
    return JSON.stringify([
      shown, at, Boolean(provisional), state, pause, fold.pause?.offset, output !== null, error?.code, [...shownFold.requests.keys()],
      !step && inspectedTab === "usage" ? [shownFold.usage, record.budget] : null,
      !step && inspectedTab === "state" && at === null ? last_offset : null,
    ]);
  }

  const inspectSoon = debounced(() => drawInspector(), 200, signal);
  let drawnEmpty = true;
  let drawnFor = "";
  let drawnKey = "";
  function drawInspector() {
    const content = inspectedKey();
    if (content === drawnKey) return;
    const key = JSON.stringify(selection);
    const scroll = key === drawnFor ? inspected.scrollTop : 0;
    const focused = document.activeElement && inspected.contains(document.activeElement) ? document.activeElement.id : "";
    if (focused && key === drawnFor && /** @type {HTMLElement} */ (document.activeElement).matches("input, textarea, select")) return;
    drawnFor = key;
    drawnKey = content;
    drawnEmpty = facts.length === 0;
    fill(inspected, inspector({ id, record, selection, fold: shownFold, facts, lines, at, session, signal, streamed, tab: inspectedTab, select, scrub, refresh, onTab: (tab) => {
      inspectedTab = tab;
      setQuery({ tab });
    } }));
    if (scroll) inspected.scrollTop = scroll;
    if (focused) document.getElementById(focused)?.focus();
  }

  function draw() {
    drawHead();
    drawScrubber();
    const step = selection.kind === "step" ? selection.step : selection.kind === "call" ? (shownFold.calls.get(selection.id)?.step ?? null) : selection.kind === "event" ? (facts[indexOfFact(selection.offset)]?.step ?? null) : null;
    graph?.update((one) => shownFold.stepState(one));
    graph?.select(step);
    timeline.update(shownFold, selection.kind === "call" ? selection.id : selection.kind === "step" ? (selection.span ?? null) : null, step, at !== null);
    if (!filtered && changedFrom < log.count) log.refreshFrom(changedFrom);
    changedFrom = Infinity;
    log.setCount(rowCount());
    const rows = JSON.stringify([selection, at]);
    if (rows !== drawnRows) log.refresh();
    drawnRows = rows;
  }
  let drawnRows = "";
  /** The first row of the log that is not what was drawn: events that have come may have folded with others. */
  let changedFrom = Infinity;
  /** @param {number} offset */
  const indexOfFact = (offset) => offset - (facts[0]?.offset ?? 0);

  root.append(
    head,
    scrubbing,
    h(
      "div",
      { class: "panes" },
      h("section", { class: "pane pane-graph", "aria-label": "Graph" }, graph ? graph.element : h("p", { class: "muted" }, "The graph of this run is not there.")),
      h("section", { class: "pane pane-timeline", "aria-label": "Timeline" }, timeline.element),
      h("section", { class: "pane pane-log", "aria-label": "Events" }, h("div", { class: "pane-tools" }, find, h("a", { class: "button small", href: `${runHref(id)}/log`, download: `${id}.ndjson` }, "Export")), log.element),
      h("section", { class: "pane pane-inspector", "aria-label": "Selection" }, inspected),
    ),
  );
  document.addEventListener("keydown", (event) => {
    if (/** @type {HTMLElement} */ (event.target).matches("input, textarea, select") || document.querySelector("dialog[open]") || !isKey(event)) return;
    if (event.key === ",") stepBy(-1);
    else if (event.key === ".") stepBy(1);
    else if (event.key === "Home") moveTo(firstOffset());
    else if (event.key === "End") scrub(null);
    else if (event.key === "Escape") select({ kind: "run" });
  }, { signal });
  root.tabIndex = -1;
  root.classList.toggle("past", at !== null);
  if (find.value) refilter();
  drawActions();
  draw();
  drawInspector();
  if (record.provisional) void refresh();

  // -- live

  const redraw = perFrame(() => {
    if (at === null) {
      draw();
      if (follows) log.scrollToEnd();
    } else {
      drawScrubber();
      refoldIfReached();
    }
  }, signal);
  let reached = false;
  function refoldIfReached() {
    if (!reached && at !== null && facts.length && /** @type {import("../lib/fold.js").Fact} */ (facts[facts.length - 1]).offset >= at) {
      reached = true;
      scrub(at);
      drawInspector();
    }
  }
  let first = true;
  let isInSight = selection.kind !== "event";
  void follow(`${runPath(id)}/events`, {
    signal,
    query: () => {
      if (fold.ended && facts.length) return null;
      const last = facts[facts.length - 1];
      return last ? { after: last.offset, deltas: true } : { offset: 0, deltas: true };
    },
    onState: (now, problem) => {
      live.dataset["live"] = now;
      live.textContent = now === "live" ? TEXTS.live : now === "ended" ? TEXTS.ended : TEXTS.reconnecting;
      if (now === "ended" && problem) fill(notice, problemView(problem));
      if (now === "live") streamed.clear(); // what was written so far comes again
      if (now === "live" && !first) refreshSoon();
      first = false;
    },
    onLines: async (batch) => {
      let since = performance.now();
      for (const line of batch) {
        const event = parse(line);
        if (event.offset === undefined) {
          if (event.type === "model.delta") takeDelta(event);
          continue;
        }
        const fact = factOf(event);
        changedFrom = Math.min(changedFrom, folded.take(fact, facts.push(fact) - 1));
        lines.push(line);
        fold.take(fact);
        if (fact.type === "model.call_completed" || fact.type === "model.call_failed") streamed.delete(fact.data.model_call_id);
        if (/^(workflow|approval|input)\./.test(fact.type)) refreshSoon();
        if (performance.now() - since > SLICE_MS) {
          redraw();
          // A frame between slices: the page stays usable while a long log comes in.
          await new Promise((resolve) => setTimeout(resolve));
          since = performance.now();
        }
      }
      if (filtered) void scan();
      if (!isInSight && selection.kind === "event" && indexOfFact(selection.offset) < facts.length) {
        isInSight = true;
        select(selection);
        log.scrollTo(indexOf(selection.offset));
      }
      if (fold.ended && at !== null && at > lastOffset()) scrub(null); // there is no such offset, and never will be
      if (firstOffset() > 0) fill(trimmed, h("p", { class: "muted" }, `The events before offset ${firstOffset()} were removed: timeline and log show what is left.`));
      redraw();
      if (drawnEmpty) drawInspector();
      else inspectSoon();
    },
  });

  /** @param {any} delta */
  function takeDelta(delta) {
    const call = delta.data.model_call_id;
    streamed.set(call, (streamed.get(call) ?? "") + delta.data.text);
    const element = document.getElementById(`stream-${call}`);
    if (element) fill(element, visible(streamed.get(call) ?? ""));
  }

  const ticking = setInterval(() => {
    if (at === null && !fold.ended) {
      drawHead();
      timeline.tick();
    }
  }, 1_000);
  signal.addEventListener("abort", () => clearInterval(ticking));
}

/**
 * What the index of the store says of a run, in the shape of its record.
 * @param {any} row
 */
function provisional(row) {
  return {
    ...row,
    provisional: true,
    definition: { name: row.name },
    started_at: null,
    pause: null,
    input: null,
    output: null,
    error: null,
    steps: {},
    children: [],
    parent: null,
    forked_from: null,
    budget: { limits: {}, used: {}, reserved: {} },
  };
}

/** @param {string} id */
function runHref(id) {
  return new URL(`..${runPath(id)}`, document.baseURI).href;
}

/**
 * @param {string} name
 * @param {import("../lib/dom.js").Child} value
 * @param {string} [title]
 */
function number(name, value, title) {
  return h("div", { class: "number-box", title: title ?? null }, h("span", { class: "number-name" }, name), h("span", { class: "number-value" }, value || "–"));
}

/**
 * @param {string} name
 * @param {number} limit
 * @param {any} budget
 */
function budgetNumber(name, limit, budget) {
  const used = Number(budget.used?.[name] ?? 0) + Number(budget.reserved?.[name] ?? 0);
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  return h(
    "div",
    { class: "number-box" },
    h("span", { class: "number-name" }, `Budget: ${limitName(name).toLowerCase()}`),
    h("span", { class: "number-value" }, `${amount(name, used)} of ${amount(name, limit)}`),
    h("meter", { min: "0", max: "1", high: "0.8", value: String(share), "aria-label": `${limitName(name)}: ${amount(name, used)} of ${amount(name, limit)}` }),
  );
}

/** @param {import("../lib/fold.js").Fact} fact */
function detail(fact) {
  const { data } = fact;
  if (data.error) return `${data.error.code}: ${brief(data.error.message, 120)}`;
  const parts = [];
  if (data.tool_name) parts.push(data.tool_name);
  if (data.provider) parts.push(`${data.provider}:${data.model}`);
  if (data.turn) parts.push(`turn ${data.turn}`);
  if (data.kind) parts.push(data.kind);
  if (data.for) parts.push(`for ${data.for}`);
  if (data.reason) parts.push(String(data.reason));
  if (data.delay_ms) parts.push(`again in ${duration(data.delay_ms)}`);
  if (data.duration_ms !== undefined) parts.push(duration(data.duration_ms));
  if (data.by) parts.push(`by ${data.by}`);
  return parts.join(" · ");
}

/**
 * @param {string | null} text
 * @returns {Selection}
 */
function read(text) {
  const [kind, ...rest] = (text ?? "").split(":");
  const value = rest.join(":");
  if (kind === "step" && value) {
    const [step, span] = value.split("|");
    return span ? { kind, step: step ?? "", span } : { kind, step: step ?? "" };
  }
  if (kind === "event" && value) return { kind, offset: Number(value) };
  if (kind === "call" && value) return { kind, id: value };
  return { kind: "run" };
}

/** @param {Selection} selection */
function write(selection) {
  if (selection.kind === "step") return `step:${selection.step}${selection.span ? `|${selection.span}` : ""}`;
  if (selection.kind === "event") return `event:${selection.offset}`;
  if (selection.kind === "call") return `call:${selection.id}`;
  return "";
}
