// What the events of a run say, in order and without guessing: its state, the spans of its steps and calls,
// what it waits for, and what it used. The same at every offset as what the server's views say. Pure.

/**
 * What the page keeps of an event beside its text.
 * @typedef {{offset: number, at: number, type: string, step: string | null, key: string | null, data: any}} Fact
 */
/**
 * A stretch of time on the timeline.
 * @typedef {object} Span
 * @property {string} id
 * @property {"step" | "model" | "tool"} kind
 * @property {string} label
 * @property {string} step
 * @property {number | null} iteration
 * @property {string} state
 * @property {number} start
 * @property {number | null} end
 * @property {number} offset of the first event
 * @property {number} last offset of the last event
 * @property {number} attempt
 * @property {string} detail
 * @property {any} error
 * @property {{start: number, end: number | null, what: string}[]} waits
 * @property {{start: number, end: number | null, state: string, error: any, delay: number}[]} attempts
 * @property {Span[]} children
 * @property {string | null} run the id of the run that the step began
 * @property {any} usage
 */

const RUN_STATES = /** @type {Record<string, string>} */ ({
  "workflow.resumed": "running",
  "workflow.waiting": "waiting",
  "workflow.paused": "paused",
  "workflow.completed": "completed",
  "workflow.failed": "failed",
  "workflow.cancelled": "cancelled",
});
const ENDED = new Set(["completed", "failed", "cancelled"]);
const KEPT = new Set([
  "error", "attempt", "attempts", "next_attempt", "delay_ms", "duration_ms", "kind", "for", "reason", "provider",
  "model", "turn", "model_call_id", "tool_call_id", "tool_name", "usage", "request_id", "first_token_ms", "ref",
  "will_retry", "outcome", "child", "detail", "budget", "resume_after", "side_effect", "agent_name", "iteration", "by", "timer_id", "purpose", "digest",
]);

/**
 * @param {any} event as it is in the log
 * @returns {Fact}
 */
export function factOf(event) {
  const data = event.data ?? {};
  /** @type {Record<string, any>} */
  const kept = {};
  for (const name in data) if (KEPT.has(name)) kept[name] = data[name];
  const step = data.step_id ?? event.step ?? null;
  const key = data.activation === undefined ? null : activationKey(data);
  return { offset: event.offset, at: Date.parse(event.timestamp), type: event.type, step, key, data: kept };
}

/** @param {any} data */
function activationKey(data) {
  return data.iteration === null || data.iteration === undefined
    ? data.activation
    : `${data.activation}[${data.iteration}]`;
}

/** @param {any} into @param {any} usage */
function addUsage(into, usage) {
  if (!usage) return;
  into.input += usage.input_tokens ?? 0;
  into.output += usage.output_tokens ?? 0;
  into.cached += usage.cache_read_input_tokens ?? 0;
  into.calls += usage.model_calls ?? 1;
  if (usage.cost_usd === null || usage.cost_usd === undefined) into.unpriced = true;
  else into.cost += usage.cost_usd;
}

export const noUsage = () => ({ input: 0, output: 0, cached: 0, calls: 0, tools: 0, cost: 0, unpriced: false });

/** The fold of a prefix of a log. `take` every event from offset 0 on, in order. */
export class RunFold {
  constructor() {
    this.state = "pending";
    this.offset = -1;
    this.start = 0;
    this.last = 0;
    /** @type {any} */
    this.error = null;
    /** @type {Fact | null} the pause that the run is in */
    this.pause = null;
    /** @type {Span[]} */
    this.spans = [];
    /** @type {Map<string, Span>} the last span of each activation */
    this.activations = new Map();
    /** @type {Map<string, Span>} */
    this.calls = new Map();
    /** @type {Map<string, Span[]>} */
    this.steps = new Map();
    /** @type {Map<string, Fact>} */
    this.requests = new Map();
    /** @type {Map<string, Fact>} */
    this.timers = new Map();
    this.usage = noUsage();
    /** @type {Map<string, ReturnType<typeof noUsage>>} */
    this.usageOfStep = new Map();
    /** @type {Map<string, ReturnType<typeof noUsage>>} */
    this.usageOfModel = new Map();
  }

  get ended() {
    return ENDED.has(this.state);
  }

  /** @param {Fact} fact */
  take(fact) {
    this.offset = fact.offset;
    if (this.start === 0) this.start = fact.at;
    this.last = Math.max(this.last, fact.at);
    const dot = fact.type.indexOf(".");
    switch (fact.type.slice(0, dot)) {
      case "workflow":
        if (fact.type.startsWith("workflow.step_")) this._step(fact);
        else this._run(fact);
        break;
      case "model":
        this._call(fact, "model");
        break;
      case "tool":
        this._call(fact, "tool");
        break;
      case "approval":
      case "input":
        if (fact.type.endsWith(".requested")) this._asked(fact);
        else this._closed(fact);
        break;
      case "timer":
        if (fact.type === "timer.scheduled") this.timers.set(fact.data.timer_id, fact);
        else {
          this.timers.delete(fact.data.timer_id);
          this._moves();
        }
        break;
      case "superstep":
        this._moves();
        break;
      case "agent":
        this._agent(fact);
        break;
    }
  }

  /** @param {Fact} fact */
  _run(fact) {
    const state = RUN_STATES[fact.type];
    if (state !== undefined) this.state = state;
    if (fact.data.error) this.error = fact.data.error;
    // What does not move is waiting, whatever its step says.
    if (fact.type === "workflow.paused" && !this.pause) {
      for (const span of this.activations.values()) {
        if (span.end === null && span.state === "running") span.waits.push({ start: fact.at, end: null, what: `the pause (${fact.data.reason})` });
      }
    } else if (this.pause && fact.type !== "workflow.paused" && state !== undefined) {
      for (const span of this.activations.values()) if (span.end === null && span.state === "running") endWait(span, fact.at);
    }
    if (state !== undefined) this.pause = fact.type === "workflow.paused" ? fact : null;
    if (this.ended) {
      this.requests.clear();
      for (const span of this.activations.values()) if (span.end === null) close(span, fact, "cancelled");
    }
  }

  _moves() {
    if (this.state === "pending" || this.state === "waiting") this.state = "running";
  }

  /** @param {Fact} fact */
  _asked(fact) {
    if (fact.type === "approval.requested") this._moves();
    this.requests.set(fact.data.request_id, fact);
    let span = fact.key === null ? undefined : this.activations.get(fact.key);
    const before = fact.type === "approval.requested" && fact.data.kind === "step";
    if (before && (span === undefined || span.end !== null)) span = this._span(fact);
    if (!span) return;
    if (before) span.detail = "";
    span.last = fact.offset;
    if (span.state === "waiting") return;
    span.state = "waiting";
    span.waits.push({ start: fact.at, end: null, what: fact.type === "input.requested" ? "input" : "approval" });
  }

  /** @param {Fact} fact */
  _closed(fact) {
    const asked = this.requests.get(fact.data.request_id);
    this.requests.delete(fact.data.request_id);
    if (this.state === "waiting") this.state = "running";
    const span = fact.key === null ? undefined : this.activations.get(fact.key);
    if (!span || span.state !== "waiting") return;
    span.last = fact.offset;
    endWait(span, fact.at);
    if (asked?.data.kind !== "step") span.state = "running";
    else if (fact.type === "approval.granted") span.state = "pending";
  }

  /** @param {Fact} fact */
  _agent(fact) {
    const span = fact.key === null ? undefined : this.activations.get(fact.key);
    if (!span) return;
    span.last = fact.offset;
    if (span.state === "waiting") {
      span.state = "running";
      endWait(span, fact.at);
    }
    if (fact.type === "agent.retrying" && fact.data.delay_ms > 0) {
      span.waits.push({ start: fact.at, end: fact.at + fact.data.delay_ms, what: `${fact.data.kind} again` });
    }
  }

  /** @param {Fact} fact */
  _span(fact) {
    const key = fact.key ?? `${fact.step}`;
    const step = fact.step ?? key;
    /** @type {Span} */
    const span = {
      id: `${key}@${fact.offset}`,
      kind: "step",
      label: fact.data.iteration === null || fact.data.iteration === undefined ? step : `${step} [${fact.data.iteration}]`,
      step,
      iteration: fact.data.iteration ?? null,
      state: "running",
      start: fact.at,
      end: null,
      offset: fact.offset,
      last: fact.offset,
      attempt: fact.data.attempt ?? 1,
      detail: fact.data.kind ?? "",
      error: null,
      waits: [],
      attempts: [],
      children: [],
      run: null,
      usage: null,
    };
    this.spans.push(span);
    this.activations.set(key, span);
    const known = this.steps.get(step);
    if (known) known.push(span);
    else this.steps.set(step, [span]);
    return span;
  }

  /** @param {Fact} fact */
  _step(fact) {
    if (fact.type !== "workflow.step_waiting" && fact.type !== "workflow.step_retrying") this._moves();
    const known = this.activations.get(fact.key ?? "");
    const open = known !== undefined && known.end === null ? known : undefined;
    const { data } = fact;
    switch (fact.type) {
      case "workflow.step_started": {
        const span = open ?? this._span(fact);
        endWait(span, fact.at);
        span.state = "running";
        span.last = fact.offset;
        span.attempt = data.attempt ?? span.attempt;
        span.detail = data.kind ?? span.detail;
        span.run = data.child?.workflow_id ?? span.run;
        span.attempts.push({ start: fact.at, end: null, state: "running", error: null, delay: 0 });
        break;
      }
      case "workflow.step_waiting": {
        const span = open ?? this._span(fact);
        span.last = fact.offset;
        if (span.state === "waiting") break;
        span.state = "waiting";
        span.waits.push({ start: fact.at, end: null, what: data.for ?? "" });
        break;
      }
      case "workflow.step_retrying": {
        const span = open ?? this._span(fact);
        span.last = fact.offset;
        span.state = "running";
        endAttempt(span, fact.at, "failed", data.error, data.delay_ms ?? 0);
        span.waits.push({ start: fact.at, end: fact.at + (data.delay_ms ?? 0), what: "retry delay" });
        span.attempt = data.next_attempt ?? span.attempt + 1;
        break;
      }
      case "workflow.step_completed":
      case "workflow.step_failed":
      case "workflow.step_skipped": {
        const span = open ?? this._span(fact);
        const cancelled = data.error?.category === "cancelled";
        const ended = fact.type.slice("workflow.step_".length);
        const state = ended === "completed" ? "succeeded" : ended === "failed" && cancelled ? "cancelled" : ended;
        if (data.error) span.error = data.error;
        if (ended === "skipped") span.detail = (data.reason ?? "").replaceAll("_", " ");
        close(span, fact, state);
        break;
      }
    }
  }

  /**
   * @param {Fact} fact
   * @param {"model" | "tool"} kind
   */
  _call(fact, kind) {
    const { data } = fact;
    const id = kind === "model" ? data.model_call_id : data.tool_call_id;
    const parent = fact.key === null ? undefined : this.activations.get(fact.key);
    if (parent) {
      parent.last = fact.offset;
      if (parent.state === "waiting" && fact.type.endsWith("call_started")) {
        parent.state = "running";
        endWait(parent, fact.at);
      }
    }
    if (fact.type.endsWith("call_started")) {
      const again = this.calls.get(id);
      if (again && again.end === null) return;
      if (again) {
        again.state = "running";
        again.end = null;
        again.attempt += 1;
        again.attempts.push({ start: fact.at, end: null, state: "running", error: null, delay: 0 });
        return;
      }
      /** @type {Span} */
      const span = {
        id,
        kind,
        label: kind === "model" ? `${data.provider}:${data.model}` : data.tool_name,
        step: fact.step ?? "",
        iteration: data.iteration ?? null,
        state: "running",
        start: fact.at,
        end: null,
        offset: fact.offset,
        last: fact.offset,
        attempt: 1,
        detail: kind === "model" ? `turn ${data.turn}` : (data.side_effect ?? ""),
        error: null,
        waits: [],
        attempts: [{ start: fact.at, end: null, state: "running", error: null, delay: 0 }],
        children: [],
        run: null,
        usage: null,
      };
      this.calls.set(id, span);
      parent?.children.push(span);
      if (kind === "tool") {
        this.usage.tools += 1;
        this._usage(this.usageOfStep, fact.step ?? "").tools += 1;
      }
      return;
    }
    const span = this.calls.get(id);
    if (!span) return;
    if (data.error) span.error = data.error;
    close(span, fact, fact.type.endsWith("completed") ? "succeeded" : "failed");
    if (kind === "model" && data.usage) {
      span.usage = data.usage;
      addUsage(this.usage, data.usage);
      addUsage(this._usage(this.usageOfStep, span.step), data.usage);
      addUsage(this._usage(this.usageOfModel, span.label), data.usage);
    }
  }

  /**
   * @param {Map<string, ReturnType<typeof noUsage>>} table
   * @param {string} name
   */
  _usage(table, name) {
    let found = table.get(name);
    if (!found) table.set(name, (found = noUsage()));
    return found;
  }

  /**
   * What a step of the graph is shown as: the state that needs a look first.
   * @param {string} step
   * @returns {{state: string, counts: Record<string, number>, attempt: number} | null}
   */
  stepState(step) {
    const spans = this.steps.get(step);
    if (!spans) return null;
    /** @type {Record<string, number>} */
    const counts = {};
    let attempt = 1;
    // The last activation of each iteration counts; earlier visits are history.
    /** @type {Map<number | null, Span>} */
    const latest = new Map();
    for (const span of spans) latest.set(span.iteration, span);
    if (latest.size > 1) latest.delete(null);
    for (const span of latest.values()) {
      counts[span.state] = (counts[span.state] ?? 0) + 1;
      attempt = Math.max(attempt, span.attempt);
    }
    const order = ["running", "waiting", "failed", "cancelled", "succeeded", "skipped"];
    return { state: order.find((state) => counts[state]) ?? "pending", counts, attempt };
  }
}

/**
 * @param {Span} span
 * @param {number} at
 */
function endWait(span, at) {
  const wait = span.waits[span.waits.length - 1];
  if (wait && wait.end === null) wait.end = at;
}

/**
 * @param {Span} span
 * @param {number} at
 * @param {string} state
 * @param {any} error
 * @param {number} delay
 */
function endAttempt(span, at, state, error, delay) {
  const attempt = span.attempts[span.attempts.length - 1];
  if (attempt && attempt.end === null) Object.assign(attempt, { end: at, state, error, delay });
}

/**
 * @param {Span} span
 * @param {Fact} fact
 * @param {string} state
 */
function close(span, fact, state) {
  endWait(span, fact.at);
  endAttempt(span, fact.at, state, span.error, 0);
  span.state = state;
  span.end = fact.at;
  span.last = fact.offset;
}

/**
 * The fold of the events up to and with an offset.
 * @param {Fact[]} facts
 * @param {number} offset
 * @param {RunFold} [before] of fewer events; it goes on with the rest
 */
export function foldTo(facts, offset, before) {
  const fold = before && before.offset <= offset ? before : new RunFold();
  const first = facts[0]?.offset ?? 0;
  for (let at = fold.offset < first ? 0 : fold.offset + 1 - first; at < facts.length; at++) {
    const fact = /** @type {Fact} */ (facts[at]);
    if (fact.offset > offset) break;
    fold.take(fact);
  }
  return fold;
}
