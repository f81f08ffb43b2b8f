// The Draw tab: strokes go to the studio, and what moves here comes from it.
import { card, complaint, lastWins, make, palette, perFrame, segments, slider, toggle } from "../parts.js";
import { lines } from "../chart.js";
import { Stage } from "../stage.js";

export const title = "Draw";

const QUICK = 400; // steps of a quick training
const SPEED = 0.55; // of the particles: units of the model's time per second
const TAIL = 5; // positions behind a particle
const FAR = 0.45; // distance from the drawing at which fields have faded away

const MODES = [
  ["draw", "Draw", "Draw paths (D)"],
  ["start", "Start particles", "Click where particles begin (P)"],
  ["score", "Score a stroke", "Draw a stroke and see how likely it is (S)"],
];
const HINTS = {
  draw: "Draw a path with the mouse or a finger. Draw it twice with different ends, and the model learns both.",
  start: "Click anywhere: particles begin there and follow the model.",
  score: "Draw a stroke: its colour shows how likely each step is to the model.",
};

export function mount(root, studio) {
  const view = new Draw(studio);
  root.append(view.node);
  return view;
}

class Draw {
  constructor(studio) {
    Object.assign(this, {
      studio, drawing: [], stroke: null, kept: null, model: null, fields: null, particles: null, learning: null, score: null,
      losses: [], start: null, same: false, dt: 0.02, born: performance.now(), job: null, first: true,
    });
    this.stage = new Stage({
      label: "The drawing, and paths of the model. Tab here and move the start with the arrow keys.",
      still: (c) => this.drawStill(c), moving: (c, now) => this.drawMoving(c, now),
    });
    this.front = this.stage.front;
    this.build();
    this.listen();
    this.resample = lastWins(() => this.sample());
    this.askScore = lastWins((points) => this.scoreOf(points));
  }

  // What is on the page

  build() {
    this.modes = segments({ label: "What the pointer does", options: MODES, value: "draw", onchange: (mode) => this.setMode(mode) });
    this.hint = make("p", { class: "hint" }, HINTS.draw);
    this.verdict = make("div", { class: "verdict", role: "status", hidden: true });
    this.complaint = complaint();
    this.saveComplaint = complaint();
    this.undoButton = make("button", { type: "button", class: "quiet", onclick: () => this.change("undo"), title: "Undo (Z)", disabled: true }, "Undo");
    this.clearButton = make("button", { type: "button", class: "quiet", onclick: () => this.change("clear") }, "Clear");
    this.figures = make("div", { class: "chips", role: "group", "aria-label": "Ready figures" });
    this.learnButton = make("button", { type: "button", class: "primary", id: "learn", onclick: () => this.learn(), title: "Learn (L)" }, "Learn");
    this.cancelButton = make("button", { type: "button", class: "quiet", id: "cancel", hidden: true, onclick: () => this.cancel(), title: "Cancel (Esc)" }, "Cancel");
    this.effort = make("select", { "aria-label": "Effort", id: "effort" },
      make("option", { value: "" }, "Quick: one model"),
      make("option", { value: "30" }, "Search: 30 seconds"),
      make("option", { value: "120" }, "Search: 2 minutes"));
    this.bar = make("progress", { max: 1, value: 0, "aria-label": "Progress" });
    this.status = make("p", { class: "status", role: "status", id: "status" }, "Waking the model up…");
    this.chart = lines({ label: "Losses while the model learns" });
    this.progress = make("div", { class: "progress", hidden: true }, this.bar, this.chart.node);
    this.sliders = this.buildSliders();
    this.arrows = toggle({ label: "Arrows: where the drift points", name: "arrows", onchange: () => this.stage.redraw() });
    this.heat = toggle({ label: "Heat: how strong the noise is", name: "heat", onchange: () => this.stage.redraw() });
    this.why = make("p", { class: "words", hidden: true });
    this.heatWords = make("p", { class: "words" }, "The drift alone makes one path from each place. Noise makes paths differ, and decides where they part.");
    this.odds = make("div", { class: "odds", id: "odds" });
    this.choice = make("div", { class: "choice" });
    this.file = make("input", { type: "file", accept: ".zip", hidden: true, onchange: () => this.load() });
    this.saveButton = make("button", { type: "button", class: "quiet", id: "save", disabled: true, onclick: () => this.save() }, "Save");
    this.copyButton = make("button", { type: "button", class: "quiet", id: "copy", disabled: true, onclick: () => this.copy() }, "Copy the Python");
    const keep = make("div", { class: "buttons" }, this.saveButton,
      make("button", { type: "button", class: "quiet", id: "load", onclick: () => this.file.click() }, "Load"),
      this.copyButton);
    this.code = make("pre", { class: "code", hidden: true, tabIndex: 0 });
    const side = make("aside", { class: "side" },
      card("1 · Paths", this.figures, make("div", { class: "buttons" }, this.undoButton, this.clearButton)),
      card("2 · Learn", make("div", { class: "buttons" }, this.learnButton, this.effort, this.cancelButton), this.status, this.complaint.node, this.progress),
      this.watch = card("3 · Watch", this.odds, this.arrows.node, this.heat.node, this.heatWords, this.why, ...Object.values(this.sliders).map((s) => s.node)),
      this.chosen = card("What the library chose, and why", this.choice),
      card("Keep it", keep, this.saveComplaint.node, this.code, this.file));
    this.watch.hidden = this.chosen.hidden = true;
    const tools = make("div", { class: "tools" }, this.modes.node, this.hint);
    this.node = make("div", { class: "work" }, make("div", { class: "board" }, tools, this.stage.node, this.verdict), side);
  }

  buildSliders() {
    const again = () => { this.resample(); };
    const both = () => { this.resample(); this.readFields(); };
    return {
      num_paths: slider({ label: "Paths", name: "num_paths", words: "How many futures are drawn from the start.", min: 10, max: 500, step: 10, value: 200, onchange: again }),
      substeps: slider({
        label: "Time step", name: "substeps", words: "Finer steps follow the curve more closely and take longer.", min: 1, max: 16, step: 1, value: 4,
        show: (v) => (this.model ? (this.model.step / v).toFixed(3) : `1/${v}`), onchange: again,
      }),
      diffusion: slider({
        label: "Share of noise", name: "diffusion", words: "At 0 all paths from one place are the same; at 1 the noise is as it was learned.",
        min: 0, max: 3, step: 0.05, value: 1, show: (v) => `${Math.round(v * 100)} %`, onchange: both,
      }),
      pull: slider({
        label: "Pull", name: "pull", words: "How strongly paths are drawn back to yours; it also narrows them.",
        min: 0, max: 2, step: 0.05, value: 1, show: (v) => v.toFixed(2), onchange: both,
      }),
    };
  }

  settings() {
    const { num_paths, substeps, diffusion, pull } = this.sliders;
    return {
      num_paths: num_paths.value, substeps: substeps.value, diffusion: diffusion.value,
      ...(this.model?.pulls ? { pull: Math.min(pull.value, substeps.value) } : {}),
      ...(this.start ? { start: this.start } : {}),
    };
  }

  setMode(mode) {
    this.modes.set(mode);
    this.hint.textContent = HINTS[mode];
    this.node.dataset.mode = mode;
    if (mode !== "score") { this.score = null; this.verdict.hidden = true; }
  }

  // What the studio says

  state(state) {
    this.figures.replaceChildren(...state.figures.map(([name, words]) => make("button", {
      type: "button", class: "chip", "data-figure": name, "aria-pressed": "false", onclick: () => this.ready(name),
    }, words)));
    this.takeDrawing(state);
    this.losses = state.losses;
    this.drawLosses();
    this.takeModel(state.model);
    const running = state.job && (state.job.state === "running" || state.job.state === "waiting");
    this.setRunning(running, state.job?.state);
    if (running) this.showProgress(state.progress);
    else if (state.job?.state === "failed") this.complaint.say(state.job.error);
    if (!state.job && !state.model && !this.drawing.length && this.first) this.welcome();
    this.first = false;
  }

  /** The first visit: a figure learns by itself; `?figure=NAME` in the address names it, an empty one leaves the board free. */
  async welcome() {
    const name = new URLSearchParams(location.search).get("figure") ?? "y";
    if (name && await this.change("ready", { name })) await this.learn();
  }

  event(message) {
    if (message.event === "progress") {
      this.losses.push(...(message.losses ?? []));
      this.drawLosses();
      this.showProgress(message);
      if (message.paths) this.learning = { ...shaped(message.paths), dt: message.dt, since: performance.now() };
    } else if (message.event === "end") {
      this.setRunning(false);
      this.learning = null;
      if (message.state === "failed") { this.complaint.say(message.error); this.status.textContent = "It did not work out."; }
      if (message.state === "cancelled") this.status.textContent = `Cancelled. ${this.status.textContent}`;
      if (message.state === "done") { this.same = message.same; this.takeModel(message.model); }
    }
  }

  takeDrawing(message) {
    const { data } = message.drawing;
    let at = 0;
    this.drawing = message.lengths.map((num) => { const part = data.subarray(2 * at, 2 * (at + num)); at += num; return part; });
    this.undoButton.disabled = !message.undo;
    this.clearButton.disabled = !this.drawing.length;
    this.same = message.same;
    this.dt = message.dt;
    for (const chip of this.figures.children) chip.setAttribute("aria-pressed", String(chip.dataset.figure === message.figure));
    this.describe();
    this.stage.redraw();
  }

  takeModel(model) {
    this.model = model;
    this.watch.hidden = this.chosen.hidden = this.saveButton.disabled = this.copyButton.disabled = !model;
    this.fields = this.particles = null; // of the model before
    this.odds.replaceChildren(make("span", { class: "words" }, "Drawing paths…"));
    if (!model) return;
    const { substeps, diffusion, pull, num_paths } = this.sliders;
    substeps.set(model.substeps);
    diffusion.set(model.diffusion);
    pull.set(model.pull);
    num_paths.set(num_paths.value);
    pull.disable(model.pulls ? "" : "This model learned without noise on its inputs: it has nothing to pull with.");
    this.why.hidden = !model.fields;
    this.why.textContent = model.fields;
    this.arrows.node.hidden = this.heat.node.hidden = this.heatWords.hidden = Boolean(model.fields);
    this.start = null;
    this.stage.redraw();
    this.explain(model);
    this.describe();
    this.resample();
    this.readFields();
  }

  describe() {
    if (this.running) return;
    const num = this.drawing.length;
    if (!num) this.status.textContent = "Draw a path, or choose a figure.";
    else if (!this.model) this.status.textContent = `${num} path${num > 1 ? "s" : ""} drawn. Press learn.`;
    else if (this.same) this.status.textContent = `Learned from ${num} path${num > 1 ? "s" : ""}.`;
    else this.status.textContent = "The drawing has changed since the model learned. Press learn.";
    this.learnButton.disabled = !num;
  }

  explain(model) {
    const { choice } = model;
    const settings = Object.entries(choice.settings ?? {}).map(([k, v]) => make("li", {}, make("code", {}, `${k}=${v}`)));
    const traits = (choice.traits ?? []).map(([name, text]) => make("li", {}, make("b", {}, name), `: ${text}`));
    const how = choice.loaded ? "Loaded from a file." : choice.budget
      ? `nsde.fit compared ${choice.tried} trials in ${choice.budget} seconds.`
      : `Quick: the first model that nsde.fit would try, trained for ${choice.steps} steps.`;
    this.choice.replaceChildren(
      make("p", {}, make("b", {}, choice.name ?? "model"), ` · ${model.parameters.toLocaleString("en")} parameters · sampler: ${choice.sampler ?? ""}`),
      make("p", {}, choice.why ?? ""), make("p", { class: "words" }, how),
      choice.notes?.length ? make("details", {}, make("summary", {}, "To note"), choice.notes.map((note) => make("p", { class: "note" }, note))) : "",
      traits.length ? make("details", {}, make("summary", {}, "What it found in your paths"), make("ul", {}, traits)) : "",
      settings.length ? make("details", {}, make("summary", {}, "Settings"), make("ul", { class: "settings" }, settings)) : "");
  }

  setRunning(running, state = "running") {
    this.running = Boolean(running);
    this.learnButton.hidden = this.effort.hidden = this.running;
    this.cancelButton.hidden = !this.running;
    this.progress.hidden = !this.running && !this.losses.length;
    this.bar.hidden = !this.running;
    this.node.classList.toggle("learning", this.running);
    if (this.running) this.status.textContent = state === "waiting" ? "Waiting for a free worker…" : "Starting…";
    else this.describe();
  }

  showProgress(progress) {
    if (!this.running) return;
    if (progress.budget) {
      this.bar.value = progress.share ?? 0;
      const trials = progress.trials ? `${progress.trials} trials so far` : "Looking at your paths";
      const left = (progress.share ?? 0) < 0.99 ? `about ${Math.round((1 - (progress.share ?? 0)) * progress.budget)} s left` : "longer than planned: the machine is busy";
      this.status.textContent = progress.step ? `The best of them learns from everything: step ${progress.step}` : `${trials}, ${left}`;
    } else {
      this.bar.value = progress.step / progress.steps || 0;
      this.status.textContent = progress.step ? `Step ${progress.step} of ${progress.steps}: the thin lines are its paths right now` : "Looking at your paths…";
    }
  }

  drawLosses() {
    const names = ["flow", "diffusion", "denoiser"].filter((n) => this.losses.some((l) => n in l));
    this.chart.set(names.map((name) => ({
      name: { flow: "drift", diffusion: "noise", denoiser: "denoiser" }[name],
      points: this.losses.filter((l) => l[name] !== null && n(l[name])).map((l) => [l.step, name === "flow" ? Math.log10(l[name] + 1e-9) : l[name]]),
    })));
    function n(v) { return Number.isFinite(v); }
  }

  // What the visitor does

  async change(action, given) {
    try { this.takeDrawing(await this.studio.ask(action, given)); this.complaint.say(""); return true; }
    catch (error) { this.complaint.say(error.message); return false; }
  }

  async ready(name) {
    if (await this.change("ready", { name })) this.setMode(this.modes.value === "score" ? "draw" : this.modes.value);
  }

  async learn() {
    if (this.running) return;
    this.complaint.say("");
    const budget = this.effort.value ? Number(this.effort.value) : null;
    this.losses = [];
    this.setRunning(true);
    this.drawLosses();
    const steps = Number(new URLSearchParams(location.search).get("steps")) || QUICK;
    try { this.showProgress(await this.studio.ask("learn", budget ? { budget } : { steps })); }
    catch (error) { this.setRunning(false); this.complaint.say(error.message); }
  }

  async cancel() {
    try { await this.studio.ask("cancel"); } catch (error) { this.complaint.say(error.message); }
  }

  async sample() {
    if (!this.model) return;
    const model = this.model;
    this.stage.node.classList.add("busy");
    try {
      const drawn = await this.studio.ask("sample", { ...this.settings(), seed: Math.floor(Math.random() * 2 ** 31) });
      if (model !== this.model) return;
      this.particles = { ...shaped(drawn.paths), dt: drawn.dt, labels: drawn.labels.data, shares: drawn.shares, ends: drawn.ends, since: performance.now() };
      this.complaint.say("");
      this.showOdds(drawn);
    } catch (error) { this.complaint.say(error.message); }
    finally { this.stage.node.classList.remove("busy"); }
  }

  showOdds({ shares, labels }) {
    const colours = palette();
    const from = this.start ? "From here" : "From where your paths begin";
    if (!shares.length) {
      this.odds.replaceChildren(make("p", { class: "words" }, "No branches: all your paths end in one place."));
      return;
    }
    const rest = labels.data.filter((l) => l < 0).length / labels.data.length;
    const bars = shares.map((share, k) => {
      const fill = make("span", { class: "fill" });
      fill.style.width = `${100 * share}%`;
      fill.style.background = colours.series(k);
      return make("div", { class: "odd", "data-share": share }, make("span", { class: "name" }, `branch ${k + 1}`), make("span", { class: "track" }, fill), make("b", {}, `${Math.round(100 * share)} %`));
    });
    this.odds.replaceChildren(make("p", { class: "words" }, `${from}, paths end up at:`), ...bars,
      rest > 0.005 ? make("p", { class: "words" }, `${Math.round(100 * rest)} % go elsewhere.`) : "");
  }

  async readFields() {
    if (!this.model || this.model.fields) return;
    const { diffusion, pull } = this.settings();
    try {
      const got = await this.studio.ask("fields", { diffusion, ...(pull === undefined ? {} : { pull }) });
      this.fields = { drift: got.drift.data, diffusion: got.diffusion.data, away: got.away.data, num: got.num, side: got.side, largest: got.largest };
      this.stage.redraw();
    } catch (error) { this.complaint.say(error.message); }
  }

  async scoreOf(points) {
    try {
      const got = await this.studio.ask("likelihood", { points });
      if (!this.score || got.mean === null || got.mean === undefined) return;
      this.score.known = got;
      const shown = got.mean < -999 ? "below −999" : got.mean.toFixed(1);
      this.verdict.hidden = false;
      this.verdict.replaceChildren(make("b", {}, got.words), ` · log-likelihood per step ${shown}, your own paths ${got.typical.toFixed(1)}`);
    } catch (error) { this.complaint.say(error.message); }
  }

  async save() {
    try { this.studio.toast(`Saved as ${await this.studio.download("model")}.`); this.saveComplaint.say(""); }
    catch (error) { this.saveComplaint.say(error.message); }
  }

  async load() {
    const [file] = this.file.files;
    this.file.value = "";
    if (!file) return;
    try {
      await this.studio.upload(file);
      this.state(await this.studio.ask("state"));
      this.saveComplaint.say("");
      this.studio.toast("Loaded.");
    } catch (error) { this.saveComplaint.say(error.message); }
  }

  async copy() {
    try {
      const { text } = await this.studio.ask("python", this.settings());
      this.code.textContent = text;
      this.code.hidden = false;
      this.saveComplaint.say("");
      try { await navigator.clipboard.writeText(text); this.studio.toast("Copied."); }
      catch { this.studio.toast("Select the text below to copy it."); }
    } catch (error) { this.saveComplaint.say(error.message); }
  }

  // Pointer and keys

  listen() {
    const { front } = this;
    const move = perFrame(() => { if (this.score && this.stroke) this.askScore(this.stroke.slice()); });
    front.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      front.setPointerCapture(event.pointerId);
      this.stroke = [this.stage.world(event)];
      this.down = [event.clientX, event.clientY];
      if (this.modes.value === "score") { this.score = { points: this.stroke, known: null }; this.verdict.hidden = true; }
    });
    front.addEventListener("pointermove", (event) => {
      if (!this.stroke) return;
      if (this.modes.value === "start") return;
      for (const each of event.getCoalescedEvents?.() ?? [event]) {
        const point = this.stage.world(each), last = this.stroke[this.stroke.length - 1];
        if (Math.hypot(point[0] - last[0], point[1] - last[1]) > 0.006 && this.stroke.length < 3000) this.stroke.push(point);
      }
      move();
    });
    const up = (event) => {
      const stroke = this.stroke;
      this.stroke = null;
      if (!stroke || event.type === "pointercancel") return;
      const still = Math.hypot(event.clientX - this.down[0], event.clientY - this.down[1]) < 5 && stroke.length < 4;
      if (this.modes.value === "start" || still) this.startAt(stroke[0]);
      else if (this.modes.value === "score") this.askScore(stroke);
      else this.addStroke(stroke);
    };
    front.addEventListener("pointerup", up);
    front.addEventListener("pointercancel", up);
  }

  async addStroke(points) {
    const ready = [...this.figures.children].some((chip) => chip.getAttribute("aria-pressed") === "true");
    this.kept = points; // shown until the studio has it
    const done = await this.change("add", { points });
    this.kept = null;
    if (done && ready) this.studio.toast("Your own drawing. Undo brings the figure back.");
  }

  startAt(point) {
    this.start = point.map((v) => Math.round(v * 1e4) / 1e4);
    if (this.model) this.resample();
    else this.complaint.say("There is no model yet. Press learn.");
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (step && document.activeElement === this.front && this.model) {
      const from = this.start ?? [this.drawing[0]?.[0] ?? 0, this.drawing[0]?.[1] ?? 0];
      this.startAt(from.map((v, k) => Math.max(-1.1, Math.min(1.1, v + 0.05 * step[k]))));
      return true;
    }
    const actions = {
      d: () => this.setMode("draw"), p: () => this.setMode("start"), s: () => this.setMode("score"),
      l: () => this.learn(), z: () => this.change("undo"), Escape: () => this.running && this.cancel(),
    };
    const call = actions[event.key] ?? actions[event.key.toLowerCase()];
    if (!call) return false;
    call();
    return true;
  }

  show() { this.stage.show(); }
  hide() { this.stage.hide(); }
  theme() { this.stage.redraw(); this.chart.draw(); if (this.particles) this.showOdds({ shares: this.particles.shares, labels: { data: this.particles.labels } }); }

  // Pictures

  drawStill(c) {
    const colours = palette(), stage = this.stage;
    if (this.fields && this.model) {
      if (this.heat.on) this.drawHeat(c, colours);
      if (this.arrows.on) this.drawArrows(c, colours);
    }
    c.lineJoin = c.lineCap = "round";
    c.strokeStyle = colours.ink;
    c.globalAlpha = this.model ? 0.28 : 0.75;
    c.lineWidth = this.model ? 1.6 : 2.6;
    for (const path of this.drawing) {
      c.beginPath();
      for (let k = 0; k < path.length; k += 2) c[k ? "lineTo" : "moveTo"](stage.x(path[k]), stage.y(path[k + 1]));
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  drawHeat(c, colours) {
    const { num, side, diffusion, away, largest } = this.fields, stage = this.stage;
    const image = new ImageData(num, num), warm = rgb(colours.warm);
    for (let k = 0; k < num * num; k++) {
      const row = num - 1 - Math.floor(k / num), to = 4 * (row * num + (k % num));
      const value = Math.min(1, diffusion[k] / largest), fade = Math.max(0, 1 - away[k] / FAR);
      image.data.set(warm, to);
      image.data[to + 3] = 255 * (colours.dark ? 0.62 : 0.55) * value * fade;
    }
    const small = new OffscreenCanvas(num, num);
    small.getContext("2d").putImageData(image, 0, 0);
    const half = side * (1 + 1 / (num - 1));
    c.imageSmoothingEnabled = true;
    c.imageSmoothingQuality = "high";
    c.drawImage(small, stage.x(-half), stage.y(half), 2 * half * stage.scale, 2 * half * stage.scale);
  }

  drawArrows(c, colours) {
    const { num, side, drift, away } = this.fields, stage = this.stage, gap = (2 * side) / (num - 1);
    c.strokeStyle = c.fillStyle = colours.accent;
    c.lineWidth = 1.2;
    for (let row = 0; row < num; row += 2) {
      for (let column = 0; column < num; column += 2) {
        const k = row * num + column, size = Math.hypot(drift[2 * k], drift[2 * k + 1]);
        const fade = 1 - away[k] / FAR;
        if (fade <= 0.04 || size < 1e-4) continue;
        const length = 1.5 * gap * Math.min(1, size) * stage.scale;
        const x = stage.x(-side + column * gap), y = stage.y(-side + row * gap);
        const ux = drift[2 * k] / size, uy = -drift[2 * k + 1] / size;
        const ex = x + (ux * length) / 2, ey = y + (uy * length) / 2;
        c.globalAlpha = 0.55 * fade;
        c.beginPath();
        c.moveTo(x - (ux * length) / 2, y - (uy * length) / 2);
        c.lineTo(ex, ey);
        c.moveTo(ex - 4 * ux - 2.6 * uy, ey - 4 * uy + 2.6 * ux);
        c.lineTo(ex, ey);
        c.lineTo(ex - 4 * ux + 2.6 * uy, ey - 4 * uy - 2.6 * ux);
        c.stroke();
      }
    }
    c.globalAlpha = 1;
  }

  drawMoving(c, now) {
    const colours = palette();
    c.lineJoin = c.lineCap = "round";
    if (this.running) this.drawLearning(c, colours, now);
    else if (this.particles) this.drawParticles(c, colours, now);
    if (!this.particles || this.running) this.drawWalkers(c, colours, now);
    if (this.start && this.model && !this.running) ring(c, this.stage.x(this.start[0]), this.stage.y(this.start[1]), colours.accent);
    if (this.score) this.drawScore(c, colours);
    else if (this.kept) line(c, this.stage, this.kept, colours.accent, 3);
    if (!this.score && this.stroke && this.stroke.length > 1) line(c, this.stage, this.stroke, colours.accent, 3);
  }

  /** Before there is a model: a dot walks along each stroke, so that its direction is seen. */
  drawWalkers(c, colours, now) {
    c.fillStyle = colours.ink;
    for (const path of this.drawing) {
      const num = path.length / 2, at = 2 * Math.floor((((now - this.born) / 1000 / this.dt) * 0.8) % num);
      c.globalAlpha = 0.8;
      c.beginPath();
      c.arc(this.stage.x(path[at]), this.stage.y(path[at + 1]), 3.4, 0, 7);
      c.fill();
    }
    c.globalAlpha = 1;
  }

  drawLearning(c, colours, now) {
    const drawn = this.learning;
    if (!drawn) return;
    const { data, num, times } = drawn, age = Math.min(1, (now - drawn.since) / 600);
    const shown = Math.max(2, Math.ceil(times * age));
    c.strokeStyle = colours.accent;
    c.lineWidth = 1.3;
    c.globalAlpha = 0.6;
    c.beginPath();
    for (let p = 0; p < num; p++) {
      const at = 2 * p * times;
      c.moveTo(this.stage.x(data[at]), this.stage.y(data[at + 1]));
      for (let t = 1; t < shown; t++) c.lineTo(this.stage.x(data[at + 2 * t]), this.stage.y(data[at + 2 * t + 1]));
    }
    c.stroke();
    c.globalAlpha = 1;
  }

  drawParticles(c, colours, now) {
    const { data, num, times, dt, labels, shares, ends, since } = this.particles, stage = this.stage;
    const span = (times - 1) * dt, round = span + 0.25, clock = ((now - since) / 1000) * SPEED;
    const kinds = Math.max(1, shares.length);
    for (let kind = -1; kind < kinds; kind++) {
      c.strokeStyle = c.fillStyle = kind < 0 && kinds > 1 ? colours.muted : colours.series(Math.max(0, kind));
      c.globalAlpha = 0.5;
      c.lineWidth = 1.6;
      c.beginPath();
      const heads = [];
      for (let p = 0; p < num; p++) {
        if (kinds > 1 ? labels[p] !== kind : kind !== 0) continue;
        const age = clock - round * ((p * 0.618034) % 1);
        if (age < 0) continue;
        const at = (age % round) / dt;
        if (at >= times - 1) continue;
        const k = Math.floor(at), share = at - k, base = 2 * (p * times + k);
        const x = stage.x(data[base] + share * (data[base + 2] - data[base]));
        const y = stage.y(data[base + 1] + share * (data[base + 3] - data[base + 1]));
        const first = Math.max(0, k - TAIL);
        c.moveTo(stage.x(data[2 * (p * times + first)]), stage.y(data[2 * (p * times + first) + 1]));
        for (let t = first + 1; t <= k; t++) c.lineTo(stage.x(data[2 * (p * times + t)]), stage.y(data[2 * (p * times + t) + 1]));
        c.lineTo(x, y);
        heads.push(x, y);
      }
      c.stroke();
      c.globalAlpha = 0.95;
      for (let k = 0; k < heads.length; k += 2) c.fillRect(heads[k] - 1.7, heads[k + 1] - 1.7, 3.4, 3.4);
    }
    c.globalAlpha = 1;
    if (shares.length > 1) ends.forEach(([x, y], k) => pill(c, stage, x, y, `${Math.round(100 * shares[k])} %`, colours.series(k), colours));
  }

  drawScore(c, colours) {
    const { points, known } = this.score;
    line(c, this.stage, points, colours.muted, 2.5);
    if (!known?.at) return;
    const { values, at, typical, low } = known;
    for (let k = 0; k + 1 < values.data.length; k++) {
      const good = Math.max(0, Math.min(1, (values.data[k] - (low - 12)) / (typical - low + 12)));
      c.strokeStyle = good > 0.66 ? colours.series(0) : good > 0.33 ? colours.series(1) : colours.series(5);
      c.lineWidth = 5;
      c.beginPath();
      c.moveTo(this.stage.x(at.data[2 * k]), this.stage.y(at.data[2 * k + 1]));
      c.lineTo(this.stage.x(at.data[2 * k + 2]), this.stage.y(at.data[2 * k + 3]));
      c.stroke();
    }
  }
}

const shaped = ({ data, shape }) => ({ data, num: shape[0], times: shape[1] });

function rgb(colour) {
  const value = parseInt(colour.replace("#", ""), 16);
  return [value >> 16, (value >> 8) & 255, value & 255, 255];
}

function line(c, stage, points, colour, width) {
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.beginPath();
  points.forEach(([x, y], k) => c[k ? "lineTo" : "moveTo"](stage.x(x), stage.y(y)));
  c.stroke();
}

function ring(c, x, y, colour) {
  c.strokeStyle = colour;
  c.lineWidth = 2;
  c.beginPath();
  c.arc(x, y, 8, 0, 7);
  c.stroke();
}

function pill(c, stage, x, y, text, colour, colours) {
  c.font = "600 14px system-ui, sans-serif";
  const width = c.measureText(text).width + 16;
  const px = Math.min(stage.width - width - 4, Math.max(4, stage.x(x) - width / 2));
  const py = Math.min(stage.height - 28, Math.max(4, stage.y(y) + (y >= 0 ? -36 : 12)));
  c.fillStyle = colours.paper;
  c.strokeStyle = colour;
  c.lineWidth = 2;
  c.beginPath();
  c.roundRect(px, py, width, 24, 12);
  c.fill();
  c.stroke();
  c.fillStyle = colours.ink;
  c.fillText(text, px + 8, py + 17);
}
