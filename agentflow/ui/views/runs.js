// Runs: what is running, what is stuck, what needs me. Live, filtered by the address, any number of rows.

import { follow, get, post, runPath } from "../lib/api.js";
import { announce, button, debounced, fill, h, isKey, visible } from "../lib/dom.js";
import { count, duration, moment, money, SIGNS, tokens, when } from "../lib/format.js";
import { ask, badge, commandButton, empty } from "../lib/parts.js";
import { TEXTS } from "../lib/texts.js";
import { WindowedList } from "../lib/windowed.js";

const PAGE = 200;
const ROW = 44;
const STATES = ["running", "waiting", "paused", "pending", "completed", "failed", "cancelled"];
const LOADING = 6;

/** @param {import("../app.js").Context} context */
export async function show(context) {
  const { root, query, signal, session, setQuery } = context;
  context.setTitle(TEXTS.runs);
  const filter = {
    state: query.get("state") ?? "",
    name: query.get("name") ?? "",
    label: query.get("label") ?? "",
    search: query.get("q") ?? "",
    since: query.get("since") ?? "",
  };
  /** @type {any[]} */
  let rows = [];
  /** @type {Map<string, number>} */
  let places = new Map();
  /** @type {string | null} */
  let cursor = null;
  let loading = false;
  let generation = 0;
  /** @type {Map<string, {offset: number, record: any}>} */
  const records = new Map();
  /** @type {Set<string>} */
  const selected = new Set();

  // -- filters

  const chips = h("div", { class: "chips", role: "group", "aria-label": "State" });
  const search = h("input", {
    type: "search",
    placeholder: "Name or id   /",
    "aria-label": "Search by name or id",
    value: filter.search,
    oninput: debounced(() => change({ search: search.value.trim() }), 200, signal),
  });
  const label = h("input", {
    type: "text",
    placeholder: "label=value",
    "aria-label": "Label, as name=value",
    value: filter.label,
    onchange: () => change({ label: label.value.trim() }),
  });
  const since = h(
    "select",
    { "aria-label": "Started", value: filter.since, onchange: () => change({ since: since.value }) },
    [["", "any time"], ["1", "last hour"], ["24", "last day"], ["168", "last week"]].map(([value, text]) =>
      h("option", { value }, text ?? ""),
    ),
  );
  since.value = filter.since;
  const live = h("span", { class: "live", role: "status" });
  const bar = h("div", { class: "bulk", hidden: true });
  const notice = h("div", { "aria-live": "polite" });

  /** @param {Partial<typeof filter>} changed */
  function change(changed) {
    Object.assign(filter, changed);
    setQuery({ state: filter.state, name: filter.name, label: filter.label, q: filter.search, since: filter.since });
    void reload();
    drawChips({});
  }

  /** @type {Record<string, number>} */
  let totals = {};
  /** @param {Record<string, number>} counted */
  function drawChips(counted) {
    totals = Object.keys(counted).length ? counted : totals;
    const all = Object.values(totals).reduce((sum, one) => sum + one, 0);
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset["state"];
    fill(
      chips,
      chip("", "All", all),
      STATES.map((state) => chip(state, state, totals[state] ?? 0)),
    );
    if (focused !== undefined) /** @type {HTMLElement | null} */ (chips.querySelector(`[data-state="${focused}"]`))?.focus();
  }

  /** @param {string} state @param {string} title @param {number} number */
  function chip(state, title, number) {
    return h(
      "button",
      {
        type: "button",
        class: "chip",
        "data-state": state,
        "aria-pressed": String(filter.state === state),
        onclick: () => change({ state }),
      },
      state ? h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[state]) : null,
      title,
      h("span", { class: "number" }, count(number)),
    );
  }

  // -- the table

  const list = new WindowedList({
    rowHeight: ROW,
    row,
    onWindow: (first, last) => {
      if (last >= rows.length - 40 && cursor !== null) void more();
      fetchRecords(first, last);
    },
    members: { class: "windowed runs-list", tabindex: null, role: null },
  });
  list.body.setAttribute("role", "rowgroup");
  const table = h(
    "div",
    { class: "table", role: "table", "aria-label": TEXTS.runs },
    h(
      "div",
      { role: "rowgroup", class: "table-head" },
      h(
        "div",
        { role: "row", class: "run-row head" },
        ["", "State", "Workflow", "Steps", "Started", "Duration", "Tokens", "Cost"].map((title) =>
          h("span", { role: "columnheader" }, title || h("span", { class: "visually-hidden" }, "Selected")),
        ),
      ),
    ),
    list.element,
  );
  const blank = h("div", { hidden: true });

  /** @param {number} index */
  function row(index) {
    const run = rows[index];
    const known = records.get(run.workflow_id)?.record;
    // What a run that has ended never came to was not there to be done.
    const steps = Object.values(known?.steps ?? {}).filter((/** @type {any} */ step) => !run.ended_at || step.state !== "pending");
    const done = steps.filter((/** @type {any} */ step) => step.state === "succeeded" || step.state === "skipped").length;
    const usage = known?.usage ?? run.usage;
    const ms = run.duration_ms ?? Date.now() - Date.parse(run.created_at);
    const labels = Object.entries(run.labels).slice(0, 3);
    const check = h("input", {
      type: "checkbox",
      "aria-label": `Select ${run.workflow_id}`,
      onchange: () => select(run.workflow_id, check.checked),
    });
    check.checked = selected.has(run.workflow_id);
    return h(
      "div",
      { class: "run-row", role: "row", "aria-rowindex": String(index + 2), "data-id": run.workflow_id, "data-key": run.workflow_id },
      h("span", { role: "cell" }, check),
      h("span", { role: "cell" }, badge(run.state), known ? because(run, known) : null),
      h(
        "span",
        { role: "cell", class: "run-name" },
        h("a", { href: `#/runs/${encodeURIComponent(run.workflow_id)}` }, visible(run.name ?? run.workflow_id)),
        h("span", { class: "run-id" }, run.workflow_id),
        labels.map(([name, value]) =>
          button(visible(`${name}=${value}`), () => {
            label.value = `${name}=${value}`;
            change({ label: label.value });
          }, { class: "tag", title: "Only runs with this label" }),
        ),
      ),
      h("span", { role: "cell" }, steps.length ? progress(done, steps) : null),
      h("span", { role: "cell", title: moment(run.created_at) }, when(run.created_at)),
      h("span", { role: "cell", class: "number" }, duration(ms)),
      h("span", { role: "cell", class: "number" }, usage ? count(tokens(usage)) : ""),
      h("span", { role: "cell", class: "number" }, usage ? money(usage.cost_usd) || "–" : ""),
    );
  }

  /** @param {string} id @param {boolean} on */
  function select(id, on) {
    if (on) selected.add(id);
    else selected.delete(id);
    drawBulk();
  }

  function drawBulk() {
    bar.hidden = selected.size === 0;
    fill(
      bar,
      h("strong", null, `${selected.size} selected`),
      ["pause", "resume", "cancel"].map((command) =>
        commandButton(command, session, "run", () => void bulk(command), { class: "button" }),
      ),
      commandButton("delete", session, "admin", () => void bulk("delete"), { class: "button danger" }),
      selected.size === 2
        ? button("compare", () => {
            const [a, b] = [...selected];
            location.hash = `#/runs/${encodeURIComponent(a ?? "")}/compare/${encodeURIComponent(b ?? "")}`;
          })
        : null,
      button("none", () => {
        selected.clear();
        list.refresh();
        drawBulk();
      }, { class: "link" }),
    );
  }

  /** @param {string} command */
  async function bulk(command) {
    const ids = [...selected];
    const reason = h("input", { type: "text", id: "reason", autocomplete: "off" });
    await ask({
      title: `${command} ${ids.length} ${ids.length === 1 ? "run" : "runs"}?`,
      content: [command === "delete" ? null : h("div", { class: "field" }, h("label", { for: "reason" }, "Reason"), reason)],
      action: command,
      danger: command === "delete" || command === "cancel",
      confirm: async () => {
        const { items } = await post("/workflows/bulk", {
          command,
          workflow_ids: ids,
          ...(reason.value && command !== "delete" ? { reason: reason.value } : {}),
        });
        const refused = items.filter((/** @type {any} */ one) => one.code);
        if (command === "delete") {
          const deleted = new Set(items.map((/** @type {any} */ one) => (one.code ? null : one.workflow_id)));
          rows = rows.filter((run) => !deleted.has(run.workflow_id));
        }
        selected.clear();
        for (const one of refused) selected.add(one.workflow_id);
        fill(notice, refused.map((/** @type {any} */ one) => h("p", { class: "problem" }, `${one.workflow_id}: ${one.detail}`)));
        drawBulk();
        await reload();
      },
    });
  }

  // -- what stands in it

  /** @param {string | null} after @param {number} limit */
  async function page(after, limit) {
    const hours = Number(filter.since);
    const isId = /^wf_/.test(filter.search);
    return get("/workflows", {
      signal,
      query: {
        state: filter.state,
        name: isId ? "" : filter.search || filter.name,
        prefix: isId ? filter.search : "",
        label: filter.label.includes("=") ? filter.label : "",
        since: hours ? new Date(Date.now() - hours * 3_600_000).toISOString() : "",
        limit,
        cursor: after,
        usage: true,
      },
    });
  }

  async function reload() {
    const mine = ++generation;
    const [found, counted] = await Promise.all([page(null, PAGE), get("/totals", { signal })]);
    if (signal.aborted || mine !== generation) return;
    // What stands behind the first page stays: rows that people have scrolled to do not go away.
    const fresh = new Set(found.items.map((/** @type {any} */ run) => run.workflow_id));
    const keep = loadedFilter === JSON.stringify(filter) ? rows.filter((run) => !fresh.has(run.workflow_id)) : [];
    const last = found.items[found.items.length - 1];
    const older = last && found.next_cursor !== null ? keep.filter((run) => run.created_at <= last.created_at) : [];
    rows = [...found.items, ...older];
    if (older.length === 0) cursor = found.next_cursor;
    loadedFilter = JSON.stringify(filter);
    place();
    drawChips(counted.runs);
    list.setCount(rows.length);
    list.refresh();
    const filtered = Boolean(filter.state || filter.search || filter.label || filter.since);
    blank.hidden = rows.length > 0;
    table.hidden = rows.length === 0;
    fill(
      blank,
      rows.length
        ? null
        : empty(
            filtered ? TEXTS.noRuns : TEXTS.noRunsYet,
            filtered ? button("Show all", () => change({ state: "", search: "", label: "", since: "", name: "" })) : h("p", null, h("code", null, "agentflow run workflow.yaml"), " starts one, or ", h("a", { href: "#/definitions" }, "a registered definition"), "."),
          ),
    );
  }
  let loadedFilter = "";

  function place() {
    places = new Map(rows.map((run, index) => [run.workflow_id, index]));
  }

  async function more() {
    if (loading || cursor === null) return;
    loading = true;
    const mine = generation;
    try {
      const found = await page(cursor, 500);
      if (mine !== generation || signal.aborted) return;
      rows = rows.concat(found.items);
      cursor = found.next_cursor;
      place();
      list.setCount(rows.length);
    } finally {
      loading = false;
      // The list was loaded anew meanwhile: nobody has asked for what follows it.
      if (mine !== generation && !signal.aborted) list.refresh();
    }
  }

  // -- steps and cost of the rows in sight

  let fetching = 0;
  /** @type {any[]} */
  let wanted = [];
  /** @param {number} first @param {number} last */
  function fetchRecords(first, last) {
    wanted = rows.slice(first, last).filter((run) => records.get(run.workflow_id)?.offset !== run.last_offset);
    pump();
  }
  function pump() {
    while (fetching < LOADING && wanted.length && !signal.aborted) {
      const run = wanted.shift();
      fetching++;
      get(runPath(run.workflow_id), { signal })
        .then((record) => {
          records.set(run.workflow_id, { offset: run.last_offset, record });
          if (records.size > 2_000) records.delete(/** @type {string} */ (records.keys().next().value));
          const at = places.get(run.workflow_id);
          if (at !== undefined) list.refreshRow(at);
        })
        .catch(() => {})
        .finally(() => {
          fetching--;
          pump();
        });
    }
  }

  // -- keys

  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches("input:not([type=checkbox]), select, textarea") || document.querySelector("dialog[open]") || !isKey(event)) return;
    const at = Number(target.closest("[aria-rowindex]")?.getAttribute("aria-rowindex") ?? 1) - 2;
    const down = event.key === "j" || event.key === "ArrowDown";
    const up = event.key === "k" || event.key === "ArrowUp";
    if (down || up) {
      const next = Math.max(0, Math.min(rows.length - 1, at + (down ? 1 : -1)));
      event.preventDefault();
      list.scrollTo(next);
      list.shown(next)?.querySelector("a")?.focus();
    } else if (event.key === "x" && at >= 0 && rows[at]) {
      select(rows[at].workflow_id, !selected.has(rows[at].workflow_id));
      list.refreshRow(at);
    }
  }, { signal });

  fill(
    root,
    h("div", { class: "view-head" }, h("h1", null, TEXTS.runs), live, h("span", { class: "grow" }), h("a", { class: "button primary", href: "#/definitions" }, "Start a run")),
    chips,
    h("div", { class: "filters" }, search, label, since),
    bar,
    notice,
    table,
    blank,
  );
  drawChips({});
  await reload();
  if (signal.aborted) return;

  // -- live: an event of a run as a whole says that the list has changed

  const again = debounced(() => void reload().catch(() => {}), 300, signal);
  /** @type {Set<string>} */
  const moved = new Set();
  const step = debounced(() => {
    for (const id of moved) {
      const at = places.get(id);
      if (at !== undefined) {
        rows[at] = { ...rows[at], last_offset: -Date.now() };
        list.refreshRow(at);
        wanted.push(rows[at]);
      }
    }
    moved.clear();
    pump();
  }, 400, signal);
  void follow("/events", {
    signal,
    query: () => ({ cursor: "latest", type: "workflow.*" }),
    onState: (state) => {
      live.dataset["live"] = state;
      live.textContent = state === "live" ? TEXTS.live : TEXTS.reconnecting;
      if (state === "live") again();
    },
    onLines: (lines) => {
      for (const line of lines) {
        const event = JSON.parse(line);
        if (String(event.type).startsWith("workflow.step_")) moved.add(event.workflow_id);
        else {
          again();
          if (event.type === "workflow.failed") announce(`${event.workflow_id} failed`);
        }
      }
      if (moved.size) step();
    },
  });
  let seconds = 0;
  const ticking = setInterval(() => {
    seconds += 1;
    rows.forEach((run, index) => {
      if (!list.shown(index)) return;
      // Ages are told in seconds in the first minute, in minutes after it.
      const moves = run.duration_ms === null || Date.now() - Date.parse(run.created_at) < 60_000 || seconds % 60 === 0;
      if (moves) list.refreshRow(index);
    });
  }, 1_000);
  signal.addEventListener("abort", () => clearInterval(ticking));
}

/**
 * Why a run stands still, or what it waits for.
 * @param {any} run
 * @param {any} record
 */
function because(run, record) {
  const { requests = [], timers = [], signals = [] } = record.waiting ?? {};
  const text =
    run.state === "paused" ? record.pause : run.state !== "waiting" ? null : requests.length ? "a person" : signals.length ? "a signal" : timers.length ? "a timer" : null;
  return text ? h("span", { class: "because" }, run.state === "waiting" ? `for ${text}` : String(text).replaceAll("_", " ")) : null;
}

/**
 * @param {number} done
 * @param {any[]} steps
 */
function progress(done, steps) {
  const failed = steps.filter((step) => step.state === "failed").length;
  return h(
    "span",
    { class: "progress", title: `${done} of ${steps.length} steps${failed ? `, ${failed} failed` : ""}` },
    h("span", { class: "progress-bar", "aria-hidden": "true" },
      h("span", { class: "progress-done", style: { width: `${(done / steps.length) * 100}%` } }),
      failed ? h("span", { class: "progress-failed", style: { width: `${(failed / steps.length) * 100}%` } }) : null),
    `${done}/${steps.length}`,
    failed ? ` ✕${failed}` : null,
  );
}
