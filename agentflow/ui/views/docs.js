// Docs: the documentation of the package that runs here.

import { get } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { markdown } from "../lib/markdown.js";
import { TEXTS } from "../lib/texts.js";

/** @param {import("../app.js").Context} context */
export async function show({ root, path, signal, setTitle }) {
  const { items } = await get("/documentation", { signal });
  const topic = path[0] ?? items[0]?.topic ?? "";
  const page = await get(`/documentation/${encodeURIComponent(topic)}`, { signal });
  setTitle(page.title ?? TEXTS.docs);
  /** @type {Map<string, any[]>} */
  const groups = new Map();
  for (const item of items) groups.set(item.group, [...(groups.get(item.group) ?? []), item]);
  const known = new Set(items.map((/** @type {any} */ item) => item.topic));
  fill(
    root,
    h(
      "div",
      { class: "docs" },
      h("nav", { "aria-label": "Documentation" }, [...groups].map(([group, topics]) => [h("h2", null, group), h("ul", null, topics.map((item) => h("li", null, h("a", { href: `#/docs/${item.topic}`, "aria-current": item.topic === topic ? "page" : null }, item.title))))])),
      h("article", null, markdown(page.text, (target) => {
        const name = target.replace(/^\.\//, "").replace(/\.md(#.*)?$/, "");
        if (known.has(name)) return `#/docs/${name}`;
        return /^https:\/\//.test(target) ? target : null;
      })),
    ),
  );
  window.scrollTo(0, 0);
}
