// A form from a JSON Schema: what the schema says becomes fields; what no field can say is written as JSON.

import { button, fill, h } from "./dom.js";

/** @typedef {{element: HTMLElement, value: () => any, focus?: () => void}} Field */

let numbered = 0;

/** A text in a field that is no value of its schema. */
export class FieldError extends Error {}

/**
 * @param {any} schema
 * @param {any} [initial]
 * @param {{label?: string, required?: boolean, root?: any, depth?: number}} [options]
 * @returns {Field} `value` raises FieldError; an optional field that is empty gives undefined
 */
export function formOf(schema, initial, { label = "Value", required = true, root = schema, depth = 0 } = {}) {
  const found = resolve(schema, root);
  const value = initial !== undefined ? initial : found.default;
  const title = found.title ?? label;
  const options = { label: title, required, description: found.description ?? "" };
  if (depth > 6) return jsonField(value, options);
  if (found.const !== undefined) {
    return { element: named(options, h("code", null, JSON.stringify(found.const))), value: () => found.const };
  }
  if (Array.isArray(found.enum)) return choice(found.enum, value, options);
  const variants = found.oneOf ?? found.anyOf;
  if (Array.isArray(variants)) {
    const named = variants.filter((one) => resolve(one, root).type !== "null");
    if (named.length === 1) return formOf(named[0], initial, { label: title, required: false, root, depth: depth + 1 });
    return variant(named, value, options, root, depth);
  }
  const type = Array.isArray(found.type) ? found.type.find((/** @type {string} */ one) => one !== "null") : found.type;
  if (type === "object" && found.properties) return objectField(found, value, options, root, depth);
  if (type === "array" && found.items && typeof found.items === "object" && !Array.isArray(found.items)) {
    return arrayField(found, value, options, root, depth);
  }
  if (type === "string") return text(found, value, options);
  if (type === "number" || type === "integer") return number(found, type, value, options);
  if (type === "boolean") return boolean(value, options);
  return jsonField(value, options);
}

/**
 * @param {any} schema
 * @param {any} root
 * @returns {any}
 */
function resolve(schema, root) {
  let found = schema;
  for (let depth = 0; depth < 8 && found && typeof found === "object" && typeof found.$ref === "string"; depth++) {
    if (!found.$ref.startsWith("#/")) return {};
    /** @type {any} */
    let target = root;
    for (const part of found.$ref.slice(2).split("/")) {
      target = target?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")];
    }
    found = target;
  }
  return found && typeof found === "object" ? found : {};
}

/**
 * @param {{label: string, required: boolean, description: string}} options
 * @param {HTMLElement} control
 */
function named({ label, required, description }, control) {
  const id = (control.id = control.id || `field-${++numbered}`);
  const about = description ? h("p", { class: "hint", id: `${id}-about` }, description) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  if (required && /^(INPUT|TEXTAREA|SELECT)$/.test(control.tagName)) control.setAttribute("aria-required", "true");
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label, required ? h("span", { class: "required" }, " (required)") : null),
    about,
    control,
  );
}

/** @param {any} schema @param {any} value @param {any} options @returns {Field} */
function text(schema, value, options) {
  const long = (schema.maxLength ?? 0) > 200 || schema.format === "textarea" || String(value ?? "").includes("\n");
  const types = /** @type {Record<string, string>} */ ({ email: "email", uri: "url", date: "date" });
  const control = long
    ? h("textarea", { rows: "4", value: value ?? "" })
    : h("input", { type: types[schema.format] ?? "text", value: value ?? "", autocomplete: "off" });
  if (schema.minLength) control.setAttribute("minlength", schema.minLength);
  if (schema.maxLength) control.setAttribute("maxlength", schema.maxLength);
  return {
    element: named(options, control),
    value: () => (control.value === "" && !options.required ? undefined : control.value),
    focus: () => control.focus(),
  };
}

/** @param {any} schema @param {string} type @param {any} value @param {any} options @returns {Field} */
function number(schema, type, value, options) {
  const control = h("input", { type: "number", step: type === "integer" ? "1" : "any", value: value ?? "" });
  if (schema.minimum !== undefined) control.min = schema.minimum;
  if (schema.maximum !== undefined) control.max = schema.maximum;
  return {
    element: named(options, control),
    value: () => {
      if (control.value === "") {
        if (options.required) throw new FieldError(`${options.label}: write a number`);
        return undefined;
      }
      return Number(control.value);
    },
    focus: () => control.focus(),
  };
}

/** @param {any} value @param {any} options @returns {Field} */
function boolean(value, options) {
  const control = h("input", { type: "checkbox", id: `field-${++numbered}` });
  control.checked = value === true;
  const about = options.description ? h("p", { class: "hint", id: `${control.id}-about` }, options.description) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return {
    element: h("div", { class: "field check" }, control, h("label", { for: control.id }, options.label), about),
    value: () => control.checked,
    focus: () => control.focus(),
  };
}

/** @param {any[]} choices @param {any} value @param {any} options @returns {Field} */
function choice(choices, value, options) {
  const control = h(
    "select",
    null,
    options.required ? null : h("option", { value: "" }, "—"),
    choices.map((one, index) => h("option", { value: String(index) }, typeof one === "string" ? one : JSON.stringify(one))),
  );
  const at = choices.indexOf(value);
  if (at >= 0) control.value = String(at);
  return {
    element: named(options, control),
    value: () => (control.value === "" ? undefined : choices[Number(control.value)]),
    focus: () => control.focus(),
  };
}

/** @param {any[]} variants @param {any} value @param {any} options @param {any} root @param {number} depth @returns {Field} */
function variant(variants, value, options, root, depth) {
  const holder = h("div", { class: "nested" });
  /** @type {Field} */
  let field;
  const select = h(
    "select",
    { onchange: () => show(undefined) },
    variants.map((one, index) => {
      const found = resolve(one, root);
      return h("option", { value: String(index) }, found.title ?? found.type ?? `choice ${index + 1}`);
    }),
  );
  /** @param {any} initial */
  function show(initial) {
    field = formOf(variants[Number(select.value)], initial, { label: "Value", root, depth: depth + 1 });
    fill(holder, field.element);
  }
  const at = value === undefined ? 0 : variants.findIndex((one) => fits(resolve(one, root), value));
  select.value = String(Math.max(0, at));
  show(value);
  return { element: h("div", { class: "field" }, named(options, select), holder), value: () => field.value() };
}

/**
 * Return whether a value may be of a schema, by its type and the members that it must have.
 * @param {any} schema
 * @param {any} value
 */
function fits(schema, value) {
  if (schema.const !== undefined) return JSON.stringify(schema.const) === JSON.stringify(value);
  if (Array.isArray(schema.enum)) return schema.enum.includes(value);
  const is = value === null ? "null" : Array.isArray(value) ? "array" : Number.isInteger(value) ? "integer" : typeof value;
  const types = [schema.type].flat();
  if (schema.type !== undefined && !types.includes(is) && !(is === "integer" && types.includes("number"))) return false;
  if (is !== "object") return true;
  const known = Object.entries(schema.properties ?? {});
  return (
    (schema.required ?? []).every((/** @type {string} */ name) => name in value) &&
    known.every(([name, inner]) => inner?.const === undefined || inner.const === value[name])
  );
}

/** @param {any} schema @param {any} value @param {any} options @param {any} root @param {number} depth @returns {Field} */
function objectField(schema, value, options, root, depth) {
  const wanted = new Set(schema.required ?? []);
  /** @type {[string, Field][]} */
  const fields = Object.entries(schema.properties).map(([name, inner]) => [
    name,
    formOf(inner, value?.[name], { label: name, required: wanted.has(name), root, depth: depth + 1 }),
  ]);
  const content = fields.map(([, field]) => field.element);
  const about = options.description ? h("p", { class: "hint" }, options.description) : null;
  return {
    element:
      depth === 0
        ? h("div", { class: "fields" }, about, content)
        : h("fieldset", null, h("legend", null, options.label), about, content),
    value: () => {
      /** @type {Record<string, any>} */
      const made = {};
      for (const [name, field] of fields) {
        const given = field.value();
        if (given !== undefined) made[name] = given;
      }
      return made;
    },
    focus: () => fields[0]?.[1].focus?.(),
  };
}

/** @param {any} schema @param {any} value @param {any} options @param {any} root @param {number} depth @returns {Field} */
function arrayField(schema, value, options, root, depth) {
  /** @type {Set<Field>} */
  const items = new Set();
  const list = h("div", { class: "nested" });
  /** @param {any} initial */
  const add = (initial) => {
    const field = formOf(schema.items, initial, { label: `${options.label} item`, root, depth: depth + 1 });
    const row = h("div", { class: "array-item" }, field.element, button("Remove", () => {
      items.delete(field);
      row.remove();
    }));
    items.add(field);
    list.append(row);
    return field;
  };
  if (Array.isArray(value)) value.forEach(add);
  return {
    element: h(
      "fieldset",
      null,
      h("legend", null, options.label),
      options.description ? h("p", { class: "hint" }, options.description) : null,
      list,
      button("Add", () => add(undefined).focus?.()),
    ),
    value: () => {
      const made = [...items].map((field) => field.value());
      return made.length === 0 && !options.required ? undefined : made;
    },
  };
}

/** @param {any} value @param {any} options @returns {Field} */
export function jsonField(value, options) {
  const control = h("textarea", {
    rows: "4",
    class: "mono",
    spellcheck: "false",
    value: value === undefined ? "" : JSON.stringify(value, null, 2),
  });
  return {
    element: named({ ...options, description: [options.description, "JSON"].filter(Boolean).join(" · ") }, control),
    value: () => {
      if (control.value.trim() === "") {
        if (options.required) throw new FieldError(`${options.label}: write a JSON value`);
        return undefined;
      }
      try {
        return JSON.parse(control.value);
      } catch (error) {
        throw new FieldError(`${options.label}: ${/** @type {Error} */ (error).message}`);
      }
    },
    focus: () => control.focus(),
  };
}
