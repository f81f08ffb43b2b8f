// Fan charts with dates: what was observed, bands of what may come, several panels each with a y-axis of its own.
import { make, palette } from "./parts.js";

const BANDS = [[0, 6, 0.16], [1, 5, 0.2], [2, 4, 0.28]]; // quantiles at the ends of the 95, 80 and 50 % bands, and their tint
const MEDIAN = 3;
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR, MONTH = 30.44 * DAY, YEAR = 365.25 * DAY;
const STEPS = [1, 5, 15, 30].map((n) => n * SECOND).concat([1, 5, 15, 30].map((n) => n * MINUTE), [1, 3, 6, 12].map((n) => n * HOUR), [1, 2, 7, 14].map((n) => n * DAY));
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const UNFOLD = 700; // milliseconds in which a new fan opens

/** Round numbers from `low` to `high`, about `num` of them. */
export function ticks(low, high, num) {
  const raw = (high - low) / Math.max(1, num) || 1, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= raw * 0.999);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) found.push(Math.abs(v) < 1e-9 * step ? 0 : v);
  return { values: found, show: (v) => number(v, step) };
}

function number(v, step) {
  const size = Math.abs(v);
  if (size >= 1e7 || (size && size < 1e-4)) return v.toExponential(1);
  return v.toLocaleString("en", { maximumFractionDigits: Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9))) });
}

/** Ticks of dates in UTC: [{ at, text, above }], where `above` is the day, month or year that begins there. */
export function dateTicks(low, high, num) {
  const raw = (high - low) / Math.max(1, num), step = STEPS.find((s) => s >= raw);
  const found = [];
  if (step) {
    const start = step % (7 * DAY) === 0 ? 4 * DAY : 0; // weeks begin on Mondays
    for (let t = Math.ceil((low - start) / step) * step + start; t <= high; t += step) found.push(t);
  } else {
    const months = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600].find((m) => m * MONTH >= raw) ?? 1200;
    const first = new Date(low);
    let k = Math.ceil((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
    for (;; k += months) {
      const t = Date.UTC(Math.floor(k / 12), k % 12);
      if (t > high) break;
      if (t >= low) found.push(t);
    }
  }
  const short = step && step < DAY;
  let before = "";
  return found.map((at) => {
    const d = new Date(at), day = `${d.getUTCDate()} ${MONTHS[d.getUTCMonth()]}`;
    const clock = `${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}${step < MINUTE ? `:${pad(d.getUTCSeconds())}` : ""}`;
    const text = short ? clock : step ? day : raw > 0.8 * YEAR ? String(d.getUTCFullYear()) : MONTHS[d.getUTCMonth()];
    const over = short ? day : !step && raw > 0.8 * YEAR ? "" : String(d.getUTCFullYear());
    const above = over !== before ? over : "";
    before = over;
    return { at, text, above };
  });
}

const pad = (v) => String(v).padStart(2, "0");

/** A date as a reader says it, without a clock where all stamps are midnight. */
export function sayDate(at, clock) {
  const d = new Date(at), day = `${d.getUTCDate()} ${MONTHS[d.getUTCMonth()]} ${d.getUTCFullYear()}`;
  return clock ? `${day}, ${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}` : day;
}

/** Panels of forecasts: { node, set({ panels, axis }), look({ mode, past, paths }), draw() }. */
export class Fans {
  constructor({ label }) {
    this.node = make("div", { class: "fans", role: "group", "aria-label": label });
    Object.assign(this, { panels: [], cells: [], axis: null, how: { mode: "ahead", past: 3, paths: false }, born: -1e9 });
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  set({ panels, axis }, { unfold = false } = {}) {
    Object.assign(this, { panels, axis, born: unfold && !matchMedia("(prefers-reduced-motion: reduce)").matches ? performance.now() : -1e9 });
    this.clock = axis?.dates && panels.some((p) => p.past.t.some((t) => t % DAY));
    this.node.dataset.num = panels.length;
    this.cells = panels.map((panel) => this.cell(panel));
    this.node.replaceChildren(...this.cells.map((c) => c.node));
    this.draw();
  }

  look(how) { Object.assign(this.how, how); this.draw(); }

  cell(panel) {
    const canvas = make("canvas", { class: "layer", tabIndex: 0, role: "img", "aria-label": `${panel.title}: ${this.inWords(panel)}` });
    const tip = make("div", { class: "tip", hidden: true });
    const cell = { panel, canvas, tip, at: null, node: make("figure", { class: "fan" }, make("figcaption", {}, panel.title), make("div", { class: "plot" }, canvas, tip)) };
    canvas.addEventListener("pointermove", (e) => this.point(cell, e));
    canvas.addEventListener("pointerdown", (e) => this.point(cell, e));
    canvas.addEventListener("pointerleave", () => { cell.at = null; tip.hidden = true; this.drawCell(cell); });
    canvas.addEventListener("keydown", (e) => this.walk(cell, e));
    canvas.addEventListener("blur", () => { cell.at = null; tip.hidden = true; this.drawCell(cell); });
    return cell;
  }

  inWords(panel) {
    if (!panel.ahead?.t.length) return `${panel.num} observations`;
    const last = panel.ahead.t.length - 1, q = panel.ahead.q;
    return `at ${this.when(panel.ahead.t[last])} the median is ${q[MEDIAN][last]}, and 80 % of the futures are from ${q[1][last]} to ${q[5][last]}`;
  }

  when(t) { return this.axis?.dates ? sayDate(t, this.clock) : `${this.axis?.label ?? "time"} ${Number(t.toPrecision(6))}`; }

  draw() {
    cancelAnimationFrame(this.asked);
    this.asked = requestAnimationFrame(() => {
      for (let again = 0; again < 2; again++) for (const cell of this.cells) this.drawCell(cell); // then all leave the same room
      if (performance.now() - this.born < UNFOLD + 50) this.draw();
    });
  }

  /** Fans of the panel that are shown. */
  fansOf(panel) {
    if (this.how.mode === "tests") return panel.tests ?? [];
    return panel.ahead?.t.length ? [panel.ahead] : [];
  }

  range(panel, fans) {
    const { t, y } = panel.past;
    let first = t[0], last = t[t.length - 1];
    if (fans.length) {
      const span = fans[0].t[fans[0].t.length - 1] - fans[0].origin[0] || 1;
      const begin = Math.min(...fans.map((f) => f.origin[0]));
      last = Math.max(last, ...fans.map((f) => f.t[f.t.length - 1]));
      first = Math.max(first, begin - this.how.past * span);
    }
    let low = Infinity, high = -Infinity;
    const see = (v) => { if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); } };
    y.forEach((v, k) => { if (t[k] >= first) see(v); });
    for (const f of fans) { f.q[0].forEach(see); f.q[6].forEach(see); }
    if (this.how.paths && this.how.mode === "ahead") for (const f of fans) for (const p of f.paths ?? []) p.forEach(see);
    if (!(high > low)) { low -= 1; high += 1; }
    const room = 0.06 * (high - low);
    return { first, last, low: low - room, high: high + room };
  }

  drawCell(cell) {
    const box = cell.canvas.getBoundingClientRect(), ratio = Math.min(devicePixelRatio || 1, 2);
    if (!box.width || !box.height) return;
    const { width, height } = box, c = cell.canvas.getContext("2d"), colours = palette();
    cell.canvas.width = Math.round(width * ratio);
    cell.canvas.height = Math.round(height * ratio);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.font = "12px system-ui, sans-serif";
    const fans = this.fansOf(cell.panel), range = this.range(cell.panel, fans);
    const rows = ticks(range.low, range.high, Math.max(2, height / 48));
    cell.labels = Math.max(...rows.values.map((v) => c.measureText(rows.show(v)).width)) + 12;
    const left = Math.max(...this.cells.map((each) => each.labels ?? 0)), bottom = height - 34, right = width - 12, top = 8;
    const x = (t) => left + ((t - range.first) / (range.last - range.first || 1)) * (right - left);
    const y = (v) => bottom - ((v - range.low) / (range.high - range.low)) * (bottom - top);
    Object.assign(cell, { x, y, fans, left, right });
    this.drawAxes(c, { rows, range, x, y, left, right, top, bottom, colours });
    c.save();
    c.beginPath();
    c.rect(left, 0, right - left + 6, bottom + 4);
    c.clip();
    this.drawFans(c, fans, { x, y, colours });
    const { t, y: values } = cell.panel.past;
    const from = Math.max(0, t.findIndex((v) => v >= range.first) - 1);
    trace(c, t.slice(from), values.slice(from), x, y, { colour: colours.ink, width: 1.5, dots: (t.length - from) < 70 });
    if (this.how.mode === "ahead" && fans.length) mark(c, x(fans[0].origin[0]), top, bottom, colours.muted);
    if (cell.at !== null) mark(c, x(cell.at), top, bottom, colours.accent, []);
    c.restore();
  }

  drawAxes(c, { rows, range, x, y, left, right, top, bottom, colours }) {
    c.lineWidth = 1;
    c.strokeStyle = colours.line;
    c.fillStyle = colours.muted;
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const v of rows.values) {
      c.beginPath(); c.moveTo(left, Math.round(y(v)) + 0.5); c.lineTo(right, Math.round(y(v)) + 0.5); c.stroke();
      c.fillText(rows.show(v), left - 7, y(v));
    }
    const num = (right - left) / 78;
    const plain = () => { const found = ticks(range.first, range.last, num); return found.values.map((at) => ({ at, text: found.show(at), above: "" })); };
    c.textAlign = "center";
    c.textBaseline = "top";
    for (const { at, text, above } of this.axis?.dates ? dateTicks(range.first, range.last, num) : plain()) {
      c.beginPath(); c.moveTo(Math.round(x(at)) + 0.5, bottom); c.lineTo(Math.round(x(at)) + 0.5, bottom + 4); c.stroke();
      const half = Math.max(c.measureText(text).width, c.measureText(above).width) / 2;
      const place = Math.min(Math.max(x(at), left - 6 + half), right + 10 - half);
      c.fillText(text, place, bottom + 6);
      c.fillText(above, place, bottom + 20);
    }
    if (!this.axis?.dates && this.axis?.label) { c.textAlign = "right"; c.fillText(this.axis.label, right, bottom + 20); }
  }

  drawFans(c, fans, { x, y, colours }) {
    const open = Math.min(1, (performance.now() - this.born) / UNFOLD);
    for (const fan of fans) {
      const num = Math.max(1, Math.ceil(open * fan.t.length)), at = [fan.origin[0], ...fan.t.slice(0, num)];
      const line = (k) => [fan.origin[1] ?? fan.q[MEDIAN][0], ...fan.q[k].slice(0, num)];
      c.fillStyle = colours.accent;
      for (const [low, high, tint] of BANDS) {
        c.globalAlpha = tint;
        c.beginPath();
        line(high).forEach((v, k) => c[k ? "lineTo" : "moveTo"](x(at[k]), y(v)));
        line(low).forEach((v, k, all) => c.lineTo(x(at[all.length - 1 - k]), y(all[all.length - 1 - k])));
        c.fill();
      }
      c.globalAlpha = 0.75;
      if (this.how.paths && this.how.mode === "ahead") {
        for (const path of fan.paths ?? []) trace(c, at, [fan.origin[1], ...path.slice(0, num)], x, y, { colour: colours.warm, width: 1 });
      }
      c.globalAlpha = 1;
      trace(c, at, line(MEDIAN), x, y, { colour: colours.accent, width: 2.2 });
    }
  }

  point(cell, event) {
    const box = cell.canvas.getBoundingClientRect();
    const wanted = event.clientX - box.left;
    let best = null, near = Infinity;
    const see = (t) => { const d = Math.abs(cell.x(t) - wanted); if (d < near) { near = d; best = t; } };
    cell.panel.past.t.forEach(see);
    for (const fan of cell.fans) fan.t.forEach(see);
    this.tell(cell, best);
  }

  walk(cell, event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...new Set([...cell.panel.past.t, ...cell.fans.flatMap((f) => f.t)])].sort((a, b) => a - b);
    const at = cell.at === null ? cell.panel.past.t.length - 1 : all.indexOf(cell.at);
    this.tell(cell, all[Math.min(all.length - 1, Math.max(0, at + step))]);
  }

  /** What is known of a time, beside the pointer. */
  tell(cell, t) {
    cell.at = t;
    const seen = cell.panel.past.y[cell.panel.past.t.indexOf(t)], parts = [make("b", {}, this.when(t))];
    if (seen !== undefined) parts.push(make("span", {}, seen === null ? "not observed" : `observed ${say(seen)}`));
    for (const fan of cell.fans) {
      const k = fan.t.indexOf(t);
      if (k < 0) continue;
      parts.push(make("span", {}, `median ${say(fan.q[MEDIAN][k])}`), make("span", {}, `80 %: ${say(fan.q[1][k])} to ${say(fan.q[5][k])}`), make("span", {}, `95 %: ${say(fan.q[0][k])} to ${say(fan.q[6][k])}`));
      break;
    }
    cell.tip.replaceChildren(...parts);
    cell.tip.hidden = false;
    const place = cell.x(t), flip = place > (cell.left + cell.right) / 2;
    cell.tip.style.left = flip ? "auto" : `${place + 10}px`;
    cell.tip.style.right = flip ? `${cell.canvas.getBoundingClientRect().width - place + 10}px` : "auto";
    this.drawCell(cell);
  }
}

const say = (v) => Number(v.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });

/** A line that breaks where nothing was observed. */
function trace(c, times, values, x, y, { colour, width, dots = false }) {
  c.strokeStyle = c.fillStyle = colour;
  c.lineWidth = width;
  c.lineJoin = "round";
  c.beginPath();
  let down = false;
  values.forEach((v, k) => {
    if (v === null || v === undefined) { down = false; return; }
    c[down ? "lineTo" : "moveTo"](x(times[k]), y(v));
    down = true;
  });
  c.stroke();
  if (!dots) return;
  values.forEach((v, k) => {
    if (v === null) return;
    c.beginPath(); c.arc(x(times[k]), y(v), 2.2, 0, 7); c.fill();
  });
}

function mark(c, at, top, bottom, colour, dash = [3, 4]) {
  c.save();
  c.strokeStyle = colour;
  c.lineWidth = 1;
  c.setLineDash(dash);
  c.beginPath(); c.moveTo(at, top); c.lineTo(at, bottom); c.stroke();
  c.restore();
}
