// Parts of a page: elements, sliders, switches, colours. Tabs build what they show from these.

/** An element: make("button", { class: "x", onclick }, "text", child, …). */
export function make(name, given = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (key in node && key !== "list" && key !== "form" && !key.includes("-")) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A titled card of the side panel. */
export const card = (title, ...children) => make("section", { class: "card" }, title && make("h2", {}, title), ...children);

/** A slider with its value and one sentence: { node, value, set(value), disable(why) }. */
export function slider({ label, words, min, max, step, value, show = (v) => String(v), onchange, name }) {
  const output = make("output", {}, show(value));
  const input = make("input", { type: "range", min, max, step, value, "aria-label": label, name });
  const sentence = make("p", { class: "words" }, words);
  const part = { node: make("label", { class: "slider" }, make("span", { class: "row" }, make("b", {}, label), output), input, sentence) };
  const move = () => { output.textContent = show(part.value); };
  Object.defineProperty(part, "value", { get: () => Number(input.value) });
  input.addEventListener("input", () => { move(); onchange(part.value); });
  part.set = (v) => { input.value = v; move(); };
  part.disable = (why) => {
    input.disabled = Boolean(why);
    sentence.textContent = why || words;
  };
  return part;
}

/** A switch: { node, on }. */
export function toggle({ label, on = true, onchange, name }) {
  const input = make("input", { type: "checkbox", checked: on, name, role: "switch" });
  const part = { node: make("label", { class: "toggle" }, input, make("span", { class: "knob" }), make("span", { class: "text" }, label)) };
  Object.defineProperty(part, "on", { get: () => input.checked, set: (v) => { input.checked = v; } });
  input.addEventListener("change", () => onchange(input.checked));
  part.disable = (off) => { input.disabled = off; };
  return part;
}

/** A choice of one of several: { node, value, set(value) }. */
export function segments({ label, options, value, onchange }) {
  const buttons = options.map(([key, words, title]) => make("button", {
    type: "button", class: "segment", title, "data-value": key, "aria-pressed": String(key === value),
    onclick: () => { part.set(key); onchange(key); },
  }, words));
  const part = { node: make("div", { class: "segments", role: "group", "aria-label": label }, buttons), value };
  part.set = (key) => {
    part.value = key;
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.value === key));
  };
  return part;
}

/** A sentence where something went wrong: { node, say(text) }; empty text hides it. */
export function complaint() {
  const node = make("p", { class: "complaint", role: "alert", hidden: true });
  return { node, say: (text) => { node.textContent = text; node.hidden = !text; } };
}

/** Okabe and Ito's colours, which people with any colour vision tell apart. */
export const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const LIGHTER = ["#4aa8e0", "#f0b429", "#2fc99b", "#e39cc4", "#8fd0f5", "#f28442", "#f5ec7a"];

/** Colours of the theme: { ink, muted, line, paper, accent, warm, dark, series(k) }. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const dark = document.documentElement.dataset.theme === "dark";
  const colours = dark ? LIGHTER : COLOURS;
  return {
    ink: get("ink"), muted: get("muted"), line: get("line"), paper: get("stage"), accent: get("accent"), warm: get("warm"), dark,
    series: (k) => colours[((k % colours.length) + colours.length) % colours.length],
  };
}

/** Call at most once per animation frame, with the newest arguments. */
export function perFrame(call) {
  let waiting = null;
  return (...given) => {
    if (!waiting) requestAnimationFrame(() => { const last = waiting; waiting = null; call(...last); });
    waiting = given;
  };
}

/** One call at a time; of those asked for meanwhile, the last is made when it is over. */
export function lastWins(call) {
  let busy = false, next = null;
  return async function run(...given) {
    if (busy) { next = given; return; }
    busy = true;
    try { await call(...given); } finally {
      busy = false;
      if (next) { const last = next; next = null; run(...last); }
    }
  };
}
