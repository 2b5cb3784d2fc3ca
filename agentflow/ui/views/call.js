// Call: one model call, alone on a page.

import { follow, runPath } from "../lib/api.js";
import { fill, h, visible } from "../lib/dom.js";
import { callView } from "./call_view.js";

/** @param {import("../app.js").Context} context */
export function show({ root, path, signal, setTitle }) {
  const [id, , call] = /** @type {[string, string, string]} */ (path);
  setTitle(`Call ${call}`);
  /** @type {Map<string, string>} */
  const streamed = new Map();
  const holder = h("div", { class: "panel" });
  const draw = () => fill(holder, h("h2", { class: "visually-hidden" }, "Messages"), callView(id, call, { state: "running", streamed, signal, alone: true }));
  fill(root, h("div", { class: "view-head" }, h("a", { class: "back", href: `#/runs/${encodeURIComponent(id)}?select=call:${encodeURIComponent(call)}`, "aria-label": "The run" }, "‹"), h("h1", null, "Model call"), h("code", null, call)), holder);
  draw();
  let over = false;
  void follow(`${runPath(id)}/events`, {
    signal,
    query: () => (over ? null : { offset: 0, type: "model.call_completed,model.call_failed", deltas: true }),
    onState: (now) => {
      if (now === "live") streamed.clear(); // what was written so far comes again
      if (now === "live" && holder.querySelector(".problem")) draw();
    },
    onLines: (lines) => {
      for (const line of lines) {
        const event = JSON.parse(line);
        if (event.data?.model_call_id !== call) continue;
        if (event.type === "model.delta") {
          streamed.set(call, (streamed.get(call) ?? "") + event.data.text);
          const element = document.getElementById(`stream-${call}`);
          if (element) fill(element, visible(streamed.get(call) ?? ""));
        } else {
          if (!over) draw();
          over = true;
        }
      }
    },
  });
}
