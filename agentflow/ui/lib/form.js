// A form from a JSON Schema: what the schema says becomes fields; what no field can say is written as JSON.

import { button, fill, h, visible, visibleText } from "./dom.js";
import { Digits, numberOf, parse } from "./exact.js";

/** @typedef {{element: HTMLElement, value: () => any, focus?: () => void}} Field */

/** Fields that a schema may make at once: one that refers to itself could make any number. */
const MOST_FIELDS = 1_000;

let numbered = 0;

/** A text in a field that is no value of its schema. */
export class FieldError extends Error {
  /**
   * @param {string} message
   * @param {HTMLElement} control which gets the focus, and says that it is wrong until it is changed
   */
  constructor(message, control) {
    super(message);
    control.setAttribute("aria-invalid", "true");
    control.addEventListener("input", () => control.removeAttribute("aria-invalid"), { once: true });
    control.focus();
  }
}

/**
 * @param {any} schema
 * @param {any} [initial]
 * @param {{label?: string, required?: boolean}} [options]
 * @returns {Field} `value` raises FieldError; an optional field that is empty gives undefined
 */
export function formOf(schema, initial, { label = "Value", required = true } = {}) {
  try {
    return fieldOf(schema, initial, { label, required, root: { schema, left: MOST_FIELDS }, depth: 0 });
  } catch {
    // A schema that no form can be made of must not keep people from answering.
    return jsonField(initial, { label, required, description: "" });
  }
}

/** @typedef {{schema: any, left: number}} Root the whole schema, and how many fields may still be made */

/**
 * @param {any} schema
 * @param {any} initial
 * @param {{label: string, required: boolean, root: Root, depth: number}} options
 * @returns {Field}
 */
function fieldOf(schema, initial, { label, required, root, depth }) {
  const found = merged(resolve(schema, root), root);
  const value = initial !== undefined ? initial : found.default;
  const title = found.title ?? label;
  const options = { label: title, required, description: [found.description, limits(found)].filter(Boolean).join(" · ") };
  const isTooLarge = root.left-- <= 0 || depth > 6 || (Array.isArray(value) && value.length > root.left);
  if (isTooLarge || (value !== undefined && !isOfType(found, value))) return jsonField(value, options);
  if (found.const !== undefined) {
    return { element: named({ ...options, required: false }, h("code", null, visible(JSON.stringify(found.const)))), value: () => found.const };
  }
  if (Array.isArray(found.enum)) return choice(found.enum, value, options);
  const variants = found.oneOf ?? found.anyOf;
  if (Array.isArray(variants)) {
    const consts = variants.map((one) => resolve(one, root));
    if (consts.every((one) => one.const !== undefined)) {
      return choice(consts.map((one) => one.const), value, options, consts.map((one) => one.title));
    }
    const named = variants.filter((one) => resolve(one, root).type !== "null");
    if (named.length === 1) return fieldOf(named[0], value, { label: title, required: required && variants.length === 1, root, depth: depth + 1 });
    return variant(named, value, options, root, depth);
  }
  const type = Array.isArray(found.type) ? found.type.find((/** @type {string} */ one) => one !== "null") : found.type;
  if ((type === "object" || type === undefined) && found.properties) return objectField(found, value, options, root, depth);
  if (type === "array" && found.items && typeof found.items === "object" && !Array.isArray(found.items)) {
    const item = resolve(found.items, root);
    if (found.uniqueItems && Array.isArray(item.enum)) return severalOf(item.enum, value, options);
    return arrayField(found, value, options, root, depth);
  }
  if (type === "string") return text(found, value, options);
  if (type === "number" || type === "integer") return number(found, type, value, options);
  if (type === "boolean") return boolean(value, options);
  return jsonField(value, options);
}

/**
 * @param {any} schema
 * @param {Root} root
 * @returns {any}
 */
function resolve(schema, root) {
  let found = schema;
  for (let depth = 0; depth < 8 && found && typeof found === "object" && typeof found.$ref === "string"; depth++) {
    if (!found.$ref.startsWith("#/")) return {};
    /** @type {any} */
    let target = root.schema;
    for (const part of found.$ref.slice(2).split("/")) {
      target = own(target, decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~"));
    }
    found = target;
  }
  return found && typeof found === "object" ? found : {};
}

/**
 * A member of an object, and nothing that it inherits.
 * @param {any} value
 * @param {string} name
 */
const own = (value, name) => (value !== null && typeof value === "object" && Object.hasOwn(value, name) ? value[name] : undefined);

/**
 * A schema with the members of its `allOf`.
 * @param {any} schema
 * @param {Root} root
 * @returns {any}
 */
function merged(schema, root) {
  if (!Array.isArray(schema.allOf)) return schema;
  const { allOf, ...rest } = schema;
  return [...allOf.map((/** @type {any} */ one) => resolve(one, root)), rest].reduce(
    (all, one) => ({
      ...all,
      ...one,
      ...(all.properties || one.properties ? { properties: { ...all.properties, ...one.properties } } : {}),
      ...(all.required || one.required ? { required: [...(all.required ?? []), ...(one.required ?? [])] } : {}),
    }),
    {},
  );
}

const FORMS_OF_TEXT = /** @type {Record<string, string>} */ ({
  "date-time": "in your local time",
  time: "as 13:45:00Z",
  duration: "as PT1H30M",
  uuid: "a UUID",
  ipv4: "an IPv4 address",
  ipv6: "an IPv6 address",
  hostname: "a host name",
  regex: "a regular expression",
});

/**
 * What a value must be, in words.
 * @param {any} schema
 */
function limits(schema) {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  const told = [
    own(FORMS_OF_TEXT, schema.format),
    schema.pattern ? `must match ${schema.pattern}` : null,
    minimum !== undefined && maximum !== undefined ? `${minimum} to ${maximum}` : minimum !== undefined ? `at least ${minimum}` : maximum !== undefined ? `at most ${maximum}` : null,
    exclusiveMinimum !== undefined ? `more than ${exclusiveMinimum}` : null,
    exclusiveMaximum !== undefined ? `less than ${exclusiveMaximum}` : null,
    schema.multipleOf !== undefined ? `a multiple of ${schema.multipleOf}` : null,
    schema.minLength > 1 ? `at least ${schema.minLength} characters` : null,
    schema.maxLength !== undefined ? `at most ${schema.maxLength} characters` : null,
    schema.minItems > 0 ? `at least ${schema.minItems} ${schema.minItems === 1 ? "item" : "items"}` : null,
    schema.maxItems !== undefined ? `at most ${schema.maxItems} ${schema.maxItems === 1 ? "item" : "items"}` : null,
    schema.uniqueItems ? "no item twice" : null,
  ];
  return told.filter(Boolean).join(", ");
}

/**
 * @param {{label: string, required: boolean, description: string}} options
 * @param {HTMLElement} control
 */
function named({ label, required, description }, control) {
  const id = (control.id = control.id || `field-${++numbered}`);
  const about = description ? h("p", { class: "hint", id: `${id}-about` }, visible(description)) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  if (required && /^(INPUT|TEXTAREA|SELECT)$/.test(control.tagName)) control.setAttribute("aria-required", "true");
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, visible(label), required ? h("span", { class: "required" }, " (required)") : null),
    about,
    control,
  );
}

/** @param {any} schema @param {any} value @param {any} options @returns {Field} */
function text(schema, value, options) {
  const long = (schema.maxLength ?? 0) > 200 || schema.format === "textarea" || String(value ?? "").includes("\n");
  const types = /** @type {Record<string, string>} */ ({ email: "email", uri: "url", date: "date", "date-time": "datetime-local" });
  const isMoment = schema.format === "date-time" && !long && (value === undefined || !Number.isNaN(Date.parse(value)));
  const given = isMoment && value !== undefined ? localTime(new Date(value)) : (value ?? "");
  const control = long
    ? h("textarea", { rows: "4", value: given })
    : h("input", { type: schema.format === "date-time" && !isMoment ? "text" : (own(types, schema.format) ?? "text"), step: isMoment ? "1" : null, value: given, autocomplete: "off" });
  if (schema.minLength) control.setAttribute("minlength", schema.minLength);
  if (schema.maxLength) control.setAttribute("maxlength", schema.maxLength);
  return {
    element: named(options, control),
    value: () => {
      if (control.value === given && value !== undefined) return value;
      if (control.value === "" && !options.required) return undefined;
      if (control.value === "") throw new FieldError(`${options.label}: ${String(schema.format).startsWith("date") ? "choose a date" : "write a text"}`, control);
      return isMoment ? new Date(control.value).toISOString() : control.value;
    },
    focus: () => control.focus(),
  };
}

/** @param {Date} date */
function localTime(date) {
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** @param {any} schema @param {string} type @param {any} value @param {any} options @returns {Field} */
function number(schema, type, value, options) {
  const control = h("input", { type: "number", step: type === "integer" ? "1" : String(schema.multipleOf ?? "any"), value: value ?? "" });
  if (schema.minimum !== undefined) control.min = schema.minimum;
  if (schema.maximum !== undefined) control.max = schema.maximum;
  return {
    element: named(options, control),
    value: () => {
      if (control.value === "") {
        if (options.required) throw new FieldError(`${options.label}: write a number`, control);
        return undefined;
      }
      return numberOf(control.value);
    },
    focus: () => control.focus(),
  };
}

/** @param {any} value @param {any} options @returns {Field} */
function boolean(value, options) {
  const control = h("input", { type: "checkbox", id: `field-${++numbered}` });
  control.checked = value === true;
  const about = options.description ? h("p", { class: "hint", id: `${control.id}-about` }, visible(options.description)) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return {
    element: h("div", { class: "field check" }, control, h("label", { for: control.id }, visible(options.label)), about),
    value: () => control.checked,
    focus: () => control.focus(),
  };
}

/** @param {any[]} choices @param {any} value @param {any} options @param {(string | undefined)[]} [titles] @returns {Field} */
function choice(choices, value, options, titles = []) {
  const at = value === undefined ? -1 : choices.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
  // Nothing is chosen for people: what they must choose is asked for.
  const control = h(
    "select",
    null,
    options.required && (at >= 0 || choices.length === 1) ? null : h("option", { value: "" }, options.required ? "Choose…" : "—"),
    choices.map((one, index) => h("option", { value: String(index) }, visibleText(titles[index] ?? (typeof one === "string" ? one : JSON.stringify(one))))),
  );
  if (at >= 0) control.value = String(at);
  return {
    element: named(options, control),
    value: () => {
      if (control.value === "" && options.required) throw new FieldError(`${options.label}: choose one`, control);
      return control.value === "" ? undefined : choices[Number(control.value)];
    },
    focus: () => control.focus(),
  };
}

/**
 * A box to check for each of the choices.
 * @param {any[]} choices @param {any} value @param {any} options @returns {Field}
 */
function severalOf(choices, value, options) {
  const chosen = new Set((Array.isArray(value) ? value : []).map((one) => JSON.stringify(one)));
  const boxes = choices.map((one) => {
    const box = h("input", { type: "checkbox", id: `field-${++numbered}` });
    box.checked = chosen.has(JSON.stringify(one));
    return box;
  });
  return {
    element: group(options, h("div", { class: "boxes" }, boxes.map((box, index) => h("div", { class: "field check" }, box, h("label", { for: box.id }, visible(typeof choices[index] === "string" ? choices[index] : JSON.stringify(choices[index]))))))),
    value: () => {
      const made = choices.filter((_, index) => boxes[index]?.checked);
      return made.length === 0 && !options.required ? undefined : made;
    },
    focus: () => boxes[0]?.focus(),
  };
}

/**
 * Fields that belong together.
 * @param {{label: string, required: boolean, description: string}} options
 * @param {...import("./dom.js").Child} content
 */
function group({ label, required, description }, ...content) {
  return h(
    "fieldset",
    null,
    h("legend", null, visible(label), required ? h("span", { class: "required" }, " (required)") : null),
    description ? h("p", { class: "hint" }, visible(description)) : null,
    content,
  );
}

/** @param {any[]} variants @param {any} value @param {any} options @param {any} root @param {number} depth @returns {Field} */
function variant(variants, value, options, root, depth) {
  const holder = h("div", { class: "nested" });
  /** @type {Field} */
  let field;
  const at = value === undefined ? -1 : variants.findIndex((one) => fits(resolve(one, root), value));
  const select = h(
    "select",
    { onchange: () => show(undefined) },
    options.required ? null : h("option", { value: "" }, "—"),
    variants.map((one, index) => {
      const found = resolve(one, root);
      return h("option", { value: String(index) }, visibleText(String(found.title ?? found.type ?? `choice ${index + 1}`)));
    }),
  );
  /** @param {any} initial */
  function show(initial) {
    if (select.value === "") {
      field = { element: h("span"), value: () => undefined };
      fill(holder);
      return;
    }
    field = fieldOf(variants[Number(select.value)], initial, { label: "Value", required: true, root, depth: depth + 1 });
    fill(holder, field.element);
  }
  if (at >= 0) select.value = String(at);
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
  if (!isOfType(schema, value)) return false;
  if (value === null || typeof value !== "object" || Array.isArray(value) || value instanceof Digits) return true;
  const known = Object.entries(schema.properties ?? {});
  return (
    (schema.required ?? []).every((/** @type {string} */ name) => Object.hasOwn(value, name)) &&
    known.every(([name, inner]) => inner?.const === undefined || inner.const === value[name])
  );
}

/**
 * @param {any} schema
 * @param {any} value
 */
function isOfType(schema, value) {
  const isInteger = Number.isInteger(value) || value instanceof Digits;
  const is = value === null ? "null" : Array.isArray(value) ? "array" : isInteger ? "integer" : typeof value;
  const types = [schema.type].flat();
  return schema.type === undefined || types.includes(is) || (is === "integer" && types.includes("number"));
}

/** @param {any} schema @param {any} value @param {any} options @param {any} root @param {number} depth @returns {Field} */
function objectField(schema, value, options, root, depth) {
  const wanted = new Set(schema.required ?? []);
  /** @type {[string, Field][]} */
  const fields = Object.entries(schema.properties).map(([name, inner]) => [
    name,
    fieldOf(inner, own(value, name), { label: name, required: wanted.has(name), root, depth: depth + 1 }),
  ]);
  const content = fields.map(([, field]) => field.element);
  const element = depth === 0 ? h("div", { class: "fields" }, options.description ? h("p", { class: "hint" }, visible(options.description)) : null, content) : group(options, content);
  const before = written(element);
  return {
    element,
    value: () => {
      // One that need not be there, and that nobody has written in, is not there.
      if (depth > 0 && !options.required && value === undefined && written(element) === before) return undefined;
      const given = value !== null && typeof value === "object" ? Object.entries(value) : [];
      const kept = given.filter(([name]) => !Object.hasOwn(schema.properties, name));
      // Made of entries: by assignment `__proto__` would be no member.
      return Object.fromEntries([...kept, ...fields.map(([name, field]) => [name, field.value()]).filter(([, one]) => one !== undefined)]);
    },
    focus: () => fields[0]?.[1].focus?.(),
  };
}

/**
 * What the controls in an element hold.
 * @param {HTMLElement} element
 */
function written(element) {
  const controls = /** @type {NodeListOf<HTMLInputElement>} */ (element.querySelectorAll("input, select, textarea"));
  return JSON.stringify([...controls].map((one) => (one.type === "checkbox" ? one.checked : one.value)));
}

/** @param {any} schema @param {any} value @param {any} options @param {any} root @param {number} depth @returns {Field} */
function arrayField(schema, value, options, root, depth) {
  /** @type {Set<Field>} */
  const items = new Set();
  const list = h("div", { class: "nested" });
  const more = button("Add", () => {
    root.left = Math.max(root.left, MOST_FIELDS / 10);
    add(undefined).focus?.();
  });
  const full = () => (more.disabled = schema.maxItems !== undefined && items.size >= schema.maxItems);
  /** @param {any} initial */
  const add = (initial) => {
    const field = fieldOf(schema.items, initial, { label: `${options.label} item`, required: true, root, depth: depth + 1 });
    const row = h("div", { class: "array-item" }, field.element, button("Remove", () => {
      items.delete(field);
      row.remove();
      full();
    }));
    items.add(field);
    list.append(row);
    full();
    return field;
  };
  if (Array.isArray(value)) value.forEach(add);
  else if (options.required) for (let count = 0; count < Math.min(schema.minItems ?? 0, 20); count++) add(undefined);
  return {
    element: group(options, list, more),
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
        if (options.required) throw new FieldError(`${options.label}: write a JSON value`, control);
        return undefined;
      }
      try {
        return parse(control.value);
      } catch (error) {
        throw new FieldError(`${options.label}: ${/** @type {Error} */ (error).message}`, control);
      }
    },
    focus: () => control.focus(),
  };
}

/**
 * A schema from the log, which keeps members in the order of their names: what is required comes first, in the
 * order in which it is named.
 * @param {any} schema
 * @returns {any}
 */
export function requiredFirst(schema) {
  if (schema === null || typeof schema !== "object" || schema instanceof Digits) return schema;
  if (Array.isArray(schema)) return schema.map(requiredFirst);
  const made = Object.fromEntries(Object.entries(schema).map(([name, inner]) => [name, KEPT.has(name) ? inner : requiredFirst(inner)]));
  const { properties, required } = made;
  if (properties && typeof properties === "object" && Array.isArray(required)) {
    const names = [...new Set([...required.filter((name) => Object.hasOwn(properties, name)), ...Object.keys(properties)])];
    made["properties"] = Object.fromEntries(names.map((name) => [name, properties[name]]));
  }
  return made;
}

const KEPT = new Set(["enum", "const", "default", "examples", "required"]);
