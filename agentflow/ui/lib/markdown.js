// Markdown of the package's own documentation, as elements: headings, lists, tables, code, links, emphasis.
// Only links within the page and to https are links.

import { append, copyButton, h } from "./dom.js";

/**
 * @param {string} text
 * @param {(target: string) => string | null} link the address of a link, or null if it must not be one
 * @returns {HTMLElement}
 */
export function markdown(text, link) {
  const root = h("div", { class: "prose" });
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = /** @type {string} */ (lines[at]);
    const fence = /^\s*(`{3,})(.*)$/.exec(line);
    if (fence) {
      const code = [];
      at++;
      while (at < lines.length && !/** @type {string} */ (lines[at]).trim().startsWith(/** @type {string} */ (fence[1]))) {
        code.push(lines[at++]);
      }
      at++;
      const whole = code.join("\n");
      root.append(h("div", { class: "code" }, copyButton(whole, "Copy code"), h("pre", { tabindex: "0" }, h("code", null, whole))));
      continue;
    }
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (heading) {
      const name = /** @type {"h2"} */ (`h${/** @type {string} */ (heading[1]).length}`);
      root.append(inline(h(name, null), /** @type {string} */ (heading[2]), link));
      at++;
    } else if (/^\s*\|/.test(line)) {
      const rows = [];
      while (at < lines.length && /^\s*\|/.test(/** @type {string} */ (lines[at]))) rows.push(/** @type {string} */ (lines[at++]));
      root.append(table(rows, link));
    } else if (/^\s*([-*]|\d+\.)\s+/.test(line)) {
      const list = h(/^\s*\d+\./.test(line) ? "ol" : "ul", null);
      while (at < lines.length && /^\s*([-*]|\d+\.)\s+/.test(/** @type {string} */ (lines[at]))) {
        let item = /** @type {string} */ (lines[at++]).replace(/^\s*([-*]|\d+\.)\s+/, "");
        while (at < lines.length && /^\s{2,}\S/.test(/** @type {string} */ (lines[at])) && !/^\s*([-*]|\d+\.)\s/.test(/** @type {string} */ (lines[at]))) {
          item += ` ${/** @type {string} */ (lines[at++]).trim()}`;
        }
        list.append(inline(h("li", null), item, link));
      }
      root.append(list);
    } else if (line.trim() === "") at++;
    else {
      const paragraph = [];
      while (at < lines.length && /** @type {string} */ (lines[at]).trim() !== "" && !/^\s*(```|#{1,6}\s|\||[-*]\s|\d+\.\s)/.test(/** @type {string} */ (lines[at]))) {
        paragraph.push(/** @type {string} */ (lines[at++]).trim());
      }
      if (paragraph.length === 0) paragraph.push(/** @type {string} */ (lines[at++]));
      root.append(inline(h("p", null), paragraph.join(" "), link));
    }
  }
  return root;
}

/**
 * @param {string[]} rows
 * @param {(target: string) => string | null} link
 */
function table(rows, link) {
  /** @param {string} row */
  const cells = (row) =>
    row
      .trim()
      .replace(/^\||\|$/g, "")
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim().replaceAll("\\|", "|"));
  const [head, , ...body] = rows;
  return h(
    "div",
    { class: "table-scroll", tabindex: "0" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, cells(head ?? "").map((cell) => inline(h("th", { scope: "col" }), cell, link)))),
      h("tbody", null, body.map((row) => h("tr", null, cells(row).map((cell) => inline(h("td", null), cell, link))))),
    ),
  );
}

/**
 * @template {HTMLElement} E
 * @param {E} element
 * @param {string} text
 * @param {(target: string) => string | null} link
 * @returns {E}
 */
function inline(element, text, link) {
  const pattern = /(`+)(.+?)\1|\[([^\]]+)\]\(([^)\s]+)\)|\*\*(.+?)\*\*|\*([^*\s][^*]*)\*/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    append(element, [text.slice(at, match.index)]);
    at = match.index + match[0].length;
    if (match[2] !== undefined) element.append(h("code", null, match[2]));
    else if (match[3] !== undefined) {
      const address = link(/** @type {string} */ (match[4]));
      element.append(address === null ? match[3] : h("a", { href: address, rel: "noreferrer" }, match[3]));
    } else element.append(inline(h(match[5] === undefined ? "em" : "strong", null), match[5] ?? match[6] ?? "", link));
  }
  append(element, [text.slice(at)]);
  return element;
}
