// Inbox: who must decide. Every open question of all runs, and what was decided of late.

import { follow, get } from "../lib/api.js";
import { debounced, fill, h, visible } from "../lib/dom.js";
import { brief, moment, when } from "../lib/format.js";
import { empty, problemView } from "../lib/parts.js";
import { TEXTS } from "../lib/texts.js";
import { requestCard } from "./request_card.js";

/** @param {import("../app.js").Context} context */
export async function show({ root, query, signal, session, setTitle, setQuery }) {
  setTitle(TEXTS.inbox);
  const closed = query.get("show") === "closed";
  const kind = h(
    "select",
    { "aria-label": "Kind", onchange: () => {
      setQuery({ kind: kind.value });
      void load();
    } },
    [["", "all kinds"], ["step", "steps"], ["tool", "calls"], ["human", "decisions"], ["input", "questions"]].map(([value, text]) => h("option", { value }, text ?? "")),
  );
  kind.value = query.get("kind") ?? "";
  const list = h("div", { class: "cards" });
  const notice = h("div", { "aria-live": "polite" });
  fill(
    root,
    h("div", { class: "view-head" }, h("h1", null, TEXTS.inbox), h("span", { class: "grow" }), kind),
    h(
      "div",
      { class: "chips" },
      h("a", { class: "chip", href: "#/inbox", "aria-current": closed ? null : "page" }, "Open"),
      h("a", { class: "chip", href: "#/inbox?show=closed", "aria-current": closed ? "page" : null }, "Decided in the last day"),
    ),
    notice,
    list,
  );
  /** @type {Map<string, HTMLElement>} */
  const cards = new Map();

  async function load() {
    try {
      const { items } = await get("/inbox", { signal, query: { kind: kind.value, open: closed ? "false" : "" } });
      fill(notice);
      if (closed) drawClosed(items);
      else drawOpen(items);
    } catch (error) {
      // The cards stay: something may be written in them.
      if (!signal.aborted) fill(notice, problemView(error));
    }
  }

  /** @param {any[]} items */
  function drawOpen(items) {
    // A card that is being filled in stays as it is while others come and go.
    const wanted = new Set(items.map((one) => one.request_id));
    for (const [id, card] of cards) {
      if (!wanted.has(id)) {
        card.remove();
        cards.delete(id);
      }
    }
    list.querySelector(".empty")?.remove();
    for (const one of items) {
      if (!cards.has(one.request_id)) {
        const card = cardOf(one);
        cards.set(one.request_id, card);
        list.append(card);
      }
    }
    if (items.length === 0) fill(list, empty(TEXTS.inboxEmpty, h("p", null, "Approvals and questions of all runs come here as they are asked.")));
  }

  /** @param {any} one */
  function cardOf(one) {
    try {
      return requestCard(one, session, load);
    } catch (error) {
      // A question that cannot be shown must not hide those of other runs.
      return h("article", { class: "card request", "data-request": one.request_id }, h("a", { href: `#/runs/${encodeURIComponent(one.workflow_id)}` }, one.workflow_id), problemView(error));
    }
  }

  /** @param {any[]} items */
  function drawClosed(items) {
    if (items.length === 0) {
      fill(list, empty("Nothing was decided in the last day"));
      return;
    }
    const signs = /** @type {Record<string, string>} */ ({ granted: "✓", denied: "✕", answered: "✓", withdrawn: "–" });
    fill(
      list,
      h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "What was decided" }, h(
        "table",
        { class: "data wide" },
        h("thead", null, h("tr", null, ["Outcome", "Run", "Step", "What", "By", "When", "Reason"].map((name) => h("th", { scope: "col" }, name)))),
        h(
          "tbody",
          null,
          items.map((one) =>
            h(
              "tr",
              null,
              h("td", null, `${signs[one.outcome]} ${one.outcome}`),
              h("td", null, h("a", { href: `#/runs/${encodeURIComponent(one.request.workflow_id)}?offset=${one.offset}` }, one.request.workflow_id)),
              h("td", null, one.request.step_id),
              h("td", null, visible(brief(one.request.subject, 60))),
              h("td", null, one.by ?? ""),
              h("td", { title: moment(one.closed_at) }, when(one.closed_at)),
              h("td", null, visible(one.reason ?? brief(one.response, 60))),
            ),
          ),
        ),
      )),
    );
  }

  await load();
  const again = debounced(() => void load(), 150, signal);
  void follow("/events", {
    signal,
    query: () => ({ cursor: "latest", type: "approval.*,input.*,workflow.completed,workflow.failed,workflow.cancelled" }),
    onLines: again,
    onState: (state) => {
      if (state === "live") again();
    },
  });
}
