// The shell: navigation, session, and the view that the address names.

import { get, post, Problem, request, unreachable } from "./lib/api.js";
import { announce, button, fill, h, isKey, useKeys, usesKeys } from "./lib/dom.js";
import { problemView } from "./lib/parts.js";
import { TEXTS } from "./lib/texts.js";

/**
 * What a view is given. `signal` is aborted when the view is left.
 * @typedef {object} Context
 * @property {HTMLElement} root
 * @property {string[]} path the parts of the address behind the view's name
 * @property {URLSearchParams} query
 * @property {AbortSignal} signal
 * @property {{actor: string, scopes: string[]}} session
 * @property {(title: string) => void} setTitle
 * @property {(query: Record<string, any>) => void} setQuery changes the address without leaving the view
 */

/** @type {Record<string, (() => Promise<{show: (context: Context) => void | Promise<void>}>) | undefined>} */
const VIEWS = {
  runs: () => import("./views/runs.js"),
  run: () => import("./views/run.js"),
  call: () => import("./views/call.js"),
  compare: () => import("./views/compare.js"),
  inbox: () => import("./views/inbox.js"),
  usage: () => import("./views/usage.js"),
  definitions: () => import("./views/definitions.js"),
  system: () => import("./views/system.js"),
  docs: () => import("./views/docs.js"),
};
const NAVIGATION = [
  ["runs", TEXTS.runs],
  ["inbox", TEXTS.inbox],
  ["definitions", TEXTS.definitions],
  ["usage", TEXTS.usage],
  ["system", TEXTS.system],
  ["docs", TEXTS.docs],
];

const main = h("main", { id: "main", tabindex: "-1" });
const who = h("span", { class: "who" });
const waiting = h("span", { class: "count", hidden: true });
const links = NAVIGATION.map(([view, title]) =>
  h("a", { href: `#/${view}`, "data-view": view }, title, view === "inbox" ? waiting : null),
);
const theme = button("◐", changeTheme, { class: "icon-button", "aria-label": "Change between light and dark" });

/** @type {{actor: string, scopes: string[]} | null} */
let session = null;
let leave = new AbortController();

document.body.append(
  h("a", { class: "skip", href: "#main", onclick: (/** @type {Event} */ event) => {
    event.preventDefault();
    main.focus();
  } }, "Skip to the content"),
  h(
    "header",
    { class: "top" },
    h("a", { class: "brand", href: "#/runs" }, h("img", { src: "icon.svg", alt: "", width: "22", height: "22" }), "agentflow"),
    h("nav", { "aria-label": "Main" }, links),
    h("div", { class: "top-tools" }, who, button("?", showKeys, { class: "icon-button", "aria-label": "Keys" }), theme),
  ),
  main,
  h("div", { id: "announcements", class: "visually-hidden", "aria-live": "polite" }),
);

window.addEventListener("hashchange", () => void route());
window.addEventListener("unauthorized", () => {
  if (session) {
    session = null;
    void signIn();
  }
});
document.addEventListener("keydown", onKey);
applyTheme(read("theme"));
void begin();

async function begin() {
  /** @type {unknown} */
  let refused;
  const code = /^#code=([\w-]+)(?:&place=(\/runs\/[\w-]+))?$/.exec(location.hash);
  if (code) {
    // The code is worth nothing from now on, and must not stay in the history.
    history.replaceState(null, "", `${location.pathname}#${code[2] ?? "/runs"}`);
    try {
      await post("/session", { code: code[1] });
    } catch (error) {
      refused = error;
    }
  }
  try {
    session = await get("/session");
  } catch (error) {
    await signIn(error, refused);
    return;
  }
  await enter();
}

async function enter() {
  fill(who, h("span", { class: "who-name" }, session?.actor ?? "", " "), button("Sign out", () => void signOut(), { class: "link" }));
  if (!location.hash.startsWith("#/")) history.replaceState(null, "", "#/runs");
  void countRequests();
  await route();
}

async function signOut() {
  try {
    await request("DELETE", "/session", { as: "none" });
    location.reload();
  } catch (error) {
    main.prepend(problemView(error));
  }
}

/**
 * @param {unknown} [reason]
 * @param {unknown} [refused] why the link that was opened gave no session
 */
async function signIn(reason, refused) {
  leave.abort();
  clearTimeout(counting);
  waiting.hidden = true;
  who.replaceChildren();
  const unauthorized = /** @type {any} */ (reason)?.status === 401 || reason === undefined;
  const told = refused ?? (unauthorized ? null : reason);
  const problem = h("div", { "aria-live": "assertive" }, told ? problemView(told) : null);
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const form = h(
    "form",
    {
      class: "sign-in panel",
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        try {
          await post("/session", { token: token.value });
          session = await get("/session");
          await enter();
        } catch (error) {
          fill(problem, problemView(error));
        }
      },
    },
    h("h1", null, TEXTS.signIn),
    h("p", null, TEXTS.signInHow, " ", h("code", null, "agentflow ui")),
    h("div", { class: "field" }, h("label", { for: "token" }, TEXTS.token), token),
    problem,
    h("button", { type: "submit", class: "button primary" }, TEXTS.signIn),
  );
  fill(main, form);
  document.title = `${TEXTS.signIn} · agentflow`;
  token.focus();
}

/** Where an address leads: the name of the view and the parts behind it. */
function address() {
  const [path, query] = location.hash.slice(2).split("?", 2);
  const parts = (path ?? "").split("/").filter(Boolean).map(decoded);
  let view = parts.shift() ?? "runs";
  if (view === "runs" && parts.length) {
    view = parts[1] === "calls" ? "call" : parts[1] === "compare" ? "compare" : "run";
  }
  return { view, parts, query: new URLSearchParams(query ?? "") };
}

/** @param {string} part of an address, which people may have typed */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function route() {
  if (!session) return;
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const { view, parts, query } = address();
  const section = view === "run" || view === "call" || view === "compare" ? "runs" : view;
  for (const link of links) {
    if (link.dataset["view"] === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const load = Object.hasOwn(VIEWS, view) ? VIEWS[view] : undefined;
  const root = h("div", { class: `view view-${view}` });
  let module;
  try {
    if (!load) throw new Error(`${TEXTS.noView} ${view}`);
    module = await load().catch(() => {
      throw unreachable();
    });
    if (signal.aborted) return;
    fill(main, root);
    await module.show({
      root,
      path: parts,
      query,
      signal,
      session,
      setTitle: (title) => {
        document.title = `${title} · agentflow`;
        announce(title);
      },
      setQuery: (changed) => {
        const now = address().query;
        for (const [name, value] of Object.entries(changed)) {
          if (value === null || value === undefined || value === "") now.delete(name);
          else now.set(name, String(value));
        }
        const text = now.toString();
        history.replaceState(null, "", location.hash.split("?", 1)[0] + (text ? `?${text}` : ""));
      },
    });
  } catch (error) {
    if (signal.aborted || !session) return;
    fill(main, h("h1", { class: "visually-hidden" }, TEXTS.noShow), problemView(error));
    if (error instanceof Problem && error.status === 0) await comeBack(signal, module !== undefined);
  }
}

/**
 * Show the view once the daemon answers again.
 * @param {AbortSignal} signal
 * @param {boolean} isLoaded false: its module is not there, and a browser may not ask for it twice
 */
async function comeBack(signal, isLoaded) {
  for (let asked = 0; !signal.aborted; asked++) {
    try {
      await get("/healthz", { signal });
      if (isLoaded) await route();
      else if (asked) location.reload();
      return;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }
}

let counting = 0;

async function countRequests() {
  clearTimeout(counting);
  try {
    const { items } = await get("/inbox");
    waiting.textContent = String(items.length);
    waiting.hidden = items.length === 0;
    waiting.setAttribute("aria-label", `${items.length} open`);
  } catch {
    waiting.hidden = true;
  }
  clearTimeout(counting);
  if (session) counting = window.setTimeout(() => void countRequests(), document.hidden ? 60_000 : 10_000);
}

// -- keys

/** @type {Record<string, string>} */
const JUMPS = { r: "runs", i: "inbox", d: "definitions", u: "usage", s: "system", h: "docs" };
let going = 0;

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const writes = target.matches("input, textarea, select") || document.querySelector("dialog[open]");
  if (writes || !isKey(event)) return;
  if (event.key === "g") {
    going = Date.now();
    return;
  }
  const jump = JUMPS[event.key];
  if (jump && Date.now() - going < 1_000) {
    event.preventDefault();
    location.hash = `#/${jump}`;
  } else if (event.key === "?") showKeys();
  else if (event.key === "/") {
    const search = /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"));
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
  going = 0;
}

function showKeys() {
  const single = h("input", { type: "checkbox", id: "single-keys", onchange: () => useKeys(single.checked) });
  single.checked = usesKeys();
  const dialog = h(
    "dialog",
    { "aria-label": TEXTS.keys },
    h("h2", null, TEXTS.keys),
    h(
      "table",
      { class: "keys" },
      h("tbody", null, TEXTS.keyTable.map(([key, does]) => h("tr", null, h("th", { scope: "row" }, h("kbd", null, key)), h("td", null, does)))),
    ),
    h("div", { class: "field check" }, single, h("label", { for: single.id }, TEXTS.singleKeys)),
    button("Close", () => dialog.close()),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// -- light and dark

function changeTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset["theme"] ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  applyTheme(next);
  try {
    localStorage.setItem("theme", next);
  } catch {
    // for this page only, then
  }
}

/** @param {string | null} name */
function applyTheme(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset["theme"] = name;
}

/** @param {string} name */
function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
