// Pieces that several views show: states, errors, problems, tabs, dialogs, definition lists.

import { Problem } from "./api.js";
import { append, button, copyButton, fill, h, visible } from "./dom.js";
import { SIGNS } from "./format.js";
import { jsonView } from "./json.js";

/** @typedef {import("./dom.js").Child} Child */

/** @param {string} state */
export function badge(state) {
  return h(
    "span",
    { class: "badge", "data-state": state },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[state] ?? "•"),
    state,
  );
}

/**
 * A command line that can be copied.
 * @param {string} command
 */
export function commandLine(command) {
  return h("div", { class: "command" }, h("code", null, visible(command)), copyButton(command, "Copy the command"));
}

/**
 * An error of a run: code, category, message, causes and what helps.
 * @param {any} error
 * @param {string} [command] that mends it
 * @param {Child} [more]
 */
export function errorView(error, command, more) {
  const causes = [];
  for (let cause = error.cause; cause && causes.length < 10; cause = cause.cause) causes.push(cause);
  return h(
    "section",
    { class: "error-box", "aria-label": "Error" },
    h(
      "p",
      { class: "error-head" },
      h("span", { class: "sign", "aria-hidden": "true" }, "✕"),
      h("code", null, error.code),
      h("span", { class: "tag" }, error.category),
      error.retryable ? h("span", { class: "tag" }, "retryable") : null,
      error.http_status ? h("span", { class: "tag" }, `HTTP ${error.http_status}`) : null,
      error.provider ? h("span", { class: "tag" }, error.provider) : null,
    ),
    h("p", { class: "error-message" }, visible(String(error.message))),
    error.path ? h("p", { class: "muted" }, "at ", h("code", null, error.path)) : null,
    causes.length
      ? h(
          "ol",
          { class: "causes", "aria-label": "Causes" },
          causes.map((cause) => h("li", null, "caused by ", h("code", null, cause.code), " ", visible(String(cause.message)))),
        )
      : null,
    error.details && Object.keys(error.details).some((name) => name !== "step_id") ? jsonView(error.details, { open: 1, label: "details" }) : null,
    h("p", { class: "muted" }, h("code", null, `agentflow help ${error.code}`), " explains the code."),
    command ? commandLine(command) : null,
    more,
  );
}

/**
 * What a request was refused with.
 * @param {unknown} problem
 */
export function problemView(problem) {
  if (!(problem instanceof Problem)) {
    return h("div", { class: "problem", role: "alert" }, h("p", null, problem instanceof Error ? problem.message : String(problem)));
  }
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", null, h("span", { class: "sign", "aria-hidden": "true" }, "✕ "), visible(problem.message)),
    problem.hint ? h("p", { class: "muted" }, visible(problem.hint)) : null,
    problem.diagnostics.length
      ? h("ul", null, problem.diagnostics.map((one) => h("li", null, h("code", null, one.code), " ", visible(String(one.message)))))
      : null,
    problem.code ? h("p", { class: "muted" }, h("code", null, problem.code)) : null,
  );
}

/**
 * Names and values; those without a value are left out.
 * @param {[string, Child][]} rows
 */
export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, typeof value === "string" ? visible(value) : value))));
}

/**
 * @param {Child} title
 * @param {...Child} more
 */
export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), more);
}

/**
 * Tabs; the content of one is made when it is first shown.
 * @param {string} label
 * @param {{id: string, title: Child, make: () => Child}[]} tabs
 * @param {string} [chosen]
 * @param {(id: string) => void} [onChoose]
 */
export function tabs(label, tabs, chosen, onChoose) {
  const panel = h("div", { class: "tab-panel", role: "tabpanel", tabindex: "0" });
  const buttons = tabs.map((tab) =>
    h(
      "button",
      { type: "button", role: "tab", class: "tab", id: `tab-${tab.id}`, onclick: () => show(tab.id, true) },
      tab.title,
    ),
  );
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons);
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(/** @type {any} */ (document.activeElement));
    const next = event.key === "ArrowRight" ? at + 1 : event.key === "ArrowLeft" ? at - 1 : -1;
    const target = at < 0 || (event.key !== "ArrowRight" && event.key !== "ArrowLeft") ? undefined : buttons[(next + buttons.length) % buttons.length];
    if (target) {
      event.preventDefault();
      target.focus();
      target.click();
    }
  });
  /**
   * @param {string} id
   * @param {boolean} told
   */
  function show(id, told) {
    tabs.forEach((tab, index) => {
      const is = tab.id === id;
      buttons[index]?.setAttribute("aria-selected", String(is));
      buttons[index]?.setAttribute("tabindex", is ? "0" : "-1");
      if (is) {
        panel.setAttribute("aria-labelledby", `tab-${tab.id}`);
        fill(panel, tab.make());
      }
    });
    if (told) onChoose?.(id);
  }
  show(tabs.some((tab) => tab.id === chosen) ? /** @type {string} */ (chosen) : (tabs[0]?.id ?? ""), false);
  return h("div", { class: "tabbed" }, list, panel);
}

/**
 * Ask something in a dialog; resolves when it is closed. `confirm` may raise: the dialog stays and says why.
 * @param {object} options
 * @param {string} options.title
 * @param {Child[]} options.content
 * @param {string} options.action
 * @param {() => Promise<void>} options.confirm
 * @param {boolean} [options.danger]
 * @returns {Promise<boolean>}
 */
export function ask({ title, content, action, confirm, danger }) {
  return new Promise((resolve) => {
    const problem = h("div", { "aria-live": "assertive" });
    const submit = h("button", { type: "submit", class: danger ? "button danger" : "button primary" }, action);
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          submit.disabled = true;
          try {
            await confirm();
            done = true;
            dialog.close();
          } catch (error) {
            fill(problem, problemView(error));
          } finally {
            submit.disabled = false;
          }
        },
      },
      h("h2", null, title),
      content,
      problem,
      h("div", { class: "dialog-actions" }, button("Close", () => dialog.close()), submit),
    );
    const dialog = h("dialog", { "aria-label": title }, form);
    let done = false;
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * A button of a command that needs a scope; without it the button says why it cannot be pressed.
 * @param {Child} label
 * @param {{scopes: string[]}} session
 * @param {string} scope
 * @param {() => void} action
 * @param {Record<string, any>} [members]
 */
export function commandButton(label, session, scope, action, members) {
  if (session.scopes.includes(scope)) return button(label, action, members);
  const reason = `Needs the scope ${scope}`;
  return button(label, () => {}, { ...members, "aria-disabled": "true", title: reason, "aria-description": reason });
}

/**
 * A form that sends a command when it is submitted, by its button or by Enter in a field; without the scope
 * neither does.
 * @param {string} label of the button
 * @param {{scopes: string[]}} session
 * @param {string} scope
 * @param {() => void} action
 * @param {Record<string, any>} members
 * @param {...Child} content
 */
export function commandForm(label, session, scope, action, members, ...content) {
  const may = session.scopes.includes(scope);
  const submit = may ? h("button", { type: "submit", class: "button primary" }, label) : commandButton(label, session, scope, action);
  return h(
    "form",
    {
      ...members,
      novalidate: true,
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        if (may) action();
      },
    },
    content,
    h("div", { class: "actions" }, submit),
  );
}

/**
 * The heads of a table's columns; those from index `numbers` on are of numbers.
 * @param {string[]} names
 * @param {number} numbers
 */
export function heads(names, numbers) {
  return h("tr", null, names.map((name, index) => h("th", { scope: "col", class: index >= numbers ? "number" : null }, name)));
}

/**
 * @param {Child} title
 * @param {...Child} content
 */
export function panel(title, ...content) {
  const section = h("section", { class: "panel" }, h("h2", null, title));
  append(section, content);
  return section;
}
