// The Video tab: a clip, futures of it side by side, their spread as a heat map, all moved by one slider.
import { card, complaint, make, palette, slider } from "../parts.js";

export const title = "Video";

const HOLD = 0.7; // seconds for which the last frame stands before the film begins again
const HEAT = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]]; // dark to bright, told apart without colour

export function mount(root, studio) {
  const view = new Video(studio);
  root.append(view.node);
  return view;
}

class Video {
  constructor(studio) {
    Object.assign(this, { studio, made: null, clock: 0, playing: true, shown: false, running: false, first: true, number: 0, own: false });
    this.build();
  }

  build() {
    this.playButton = make("button", { type: "button", class: "quiet", id: "play", title: "Play or stop (space)", onclick: () => this.play(!this.playing) }, "Stop");
    this.scrub = make("input", { type: "range", id: "scrub", min: 0, max: 1, step: "any", value: 0, "aria-label": "Time", oninput: () => { this.play(false); this.clock = Number(this.scrub.value); this.draw(); } });
    this.time = make("output", { class: "when" });
    this.films = make("div", { class: "films" });
    this.hint = make("p", { class: "hint" }, "Four frames are given to the model. From there on every future is its own.");
    this.sheet = make("div", { class: "sheet" }, this.films);
    this.bottom = make("div", { class: "tools scrubber" }, this.playButton, this.scrub, this.time);
    this.complaint = complaint();
    this.fileComplaint = complaint();
    this.file = make("input", { type: "file", accept: "video/*,.gif,.mkv", hidden: true, id: "video-file", onchange: () => this.send(this.file.files[0]) });
    this.sceneButton = make("button", { type: "button", class: "primary", id: "scene", onclick: () => this.nextScene() }, "Another scene");
    this.cancelButton = make("button", { type: "button", class: "quiet", id: "video-cancel", hidden: true, title: "Cancel (Esc)", onclick: () => this.cancel() }, "Cancel");
    this.again = make("button", { type: "button", class: "quiet", id: "again", onclick: () => this.ask() }, "Draw again");
    this.noScenes = make("p", { class: "words", hidden: true }, "Scenes are simulated with pymunk, which is not installed. Give a clip of yours.");
    this.bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "Progress" });
    this.status = make("p", { class: "status", id: "video-status", role: "status" });
    this.rate = slider({ label: "Frames per second", name: "rate", words: "", min: 2, max: 24, step: 1, value: 5, onchange: () => this.sayRate() });
    this.num = slider({ label: "Futures", name: "num", words: "How many are drawn from the same frames.", min: 2, max: 6, step: 1, value: 4, onchange: () => {} });
    this.from = slider({ label: "Goes on from", name: "from", words: "Where in your clip the futures begin.", min: 0, max: 1, step: 0.05, value: 0.5, show: (v) => `${Math.round(100 * v)} %`, onchange: () => {} });
    this.from.node.hidden = true;
    const side = make("aside", { class: "side" },
      card("1 · Clip", make("div", { class: "buttons" }, this.sceneButton, make("button", { type: "button", class: "quiet", id: "own", onclick: () => this.file.click() }, "A clip of yours")), this.file, this.noScenes, this.fileComplaint.node),
      card("2 · Futures", this.rate.node, this.num.node, this.from.node, make("div", { class: "buttons after" }, this.again, this.cancelButton), this.bar, this.status, this.complaint.node),
      card("What you see", make("p", { class: "words" }, "Each future is one path of an SDE over latents, decoded to frames of 64 × 64 pixels. The spread shows where futures differ: bright is unsure."),
        make("p", { class: "words" }, "The model knows scenes of colliding objects, and nothing else. Futures of other clips soon look like its own world.")));
    this.node = make("div", { class: "work" }, make("div", { class: "board" }, make("div", { class: "tools" }, this.hint), this.sheet, this.bottom), side);
    this.node.addEventListener("dragover", (e) => e.preventDefault());
    this.node.addEventListener("drop", (e) => { e.preventDefault(); this.send(e.dataTransfer.files[0]); });
    this.sayRate();
  }

  sayRate() {
    const words = this.rate.value === 5 ? "About as many as the model learned from (5.12)." : "Any number: frames between those it learned are read from smooth paths of its latents.";
    this.rate.node.querySelector(".words").textContent = words;
  }

  // What the studio says

  state(state) {
    this.sceneButton.disabled = !state.scenes;
    this.noScenes.hidden = Boolean(state.scenes);
    this.scenes = state.scenes;
    this.own = Boolean(state.file);
    this.from.node.hidden = !this.own;
    if (state.given) this.take(state);
    const running = state.job && (state.job.state === "running" || state.job.state === "waiting");
    this.setRunning(running, state.job?.state);
    if (running) this.progress(state.progress);
    else if (state.job?.state === "failed") this.complaint.say(state.job.error);
    if (!state.job && state.scenes && this.first) this.ask();
    this.first = false;
  }

  event(message) {
    if (message.event === "progress") this.progress(message);
    if (message.event === "clip") this.take(message);
    if (message.event !== "end") return;
    this.setRunning(false);
    this.status.textContent = { cancelled: "Cancelled.", failed: "It did not work out." }[message.state] ?? "";
    if (message.state === "failed") this.complaint.say(message.error);
    if (message.state === "done") this.take(message);
  }

  take(made) {
    this.made = made;
    const rows = [];
    if (made.truth || !made.frames) rows.push({ name: made.frames ? "What happened" : "What is given", frame: (k, past) => (past ? pick(made.given, k) : made.truth && pick(made.truth, k)) });
    for (let p = 0; p < (made.frames?.shape[0] ?? 0); p++) rows.push({ name: `Future ${p + 1}`, frame: (k, past) => (past ? pick(made.given, k) : pick(made.frames, k, p)) });
    if (made.spread) rows.push({ name: "Spread of the futures", heat: true, frame: (k, past) => (past ? null : pick(made.spread, k)) });
    this.most = made.spread ? Math.max(24, ...made.spread.data) : 1;
    this.cells = rows.map((row) => {
      const [, , height, width] = made.given.shape;
      const canvas = make("canvas", { class: "film", role: "img", "aria-label": row.name, width, height });
      return { ...row, canvas, node: make("figure", { class: row.heat ? "still heat" : "still" }, canvas, make("figcaption", {}, row.name)) };
    });
    this.films.replaceChildren(...this.cells.map((c) => c.node));
    this.times = [...made.given_times, ...(made.times ?? [])];
    this.scrub.min = this.times[0];
    this.scrub.max = this.times[this.times.length - 1];
    this.clock = this.times[0];
    this.draw();
  }

  /** The frames of the time that is shown. */
  draw() {
    if (!this.made) return;
    const num = this.made.given_times.length;
    let at = 0;
    while (at + 1 < this.times.length && this.times[at + 1] <= this.clock + 1e-6) at++;
    const past = at < num, k = past ? at : at - num;
    this.scrub.value = this.clock;
    this.time.textContent = past ? `given, ${this.times[at].toFixed(2)} s` : `+${this.times[at].toFixed(2)} s`;
    this.films.classList.toggle("past", past);
    if (this.at === at && this.drawn === this.made) return;
    this.at = at;
    this.drawn = this.made;
    for (const cell of this.cells) paint(cell, cell.frame(k, past), this.most);
  }

  setRunning(running, state = "running") {
    this.running = Boolean(running);
    this.cancelButton.hidden = this.bar.hidden = !this.running;
    this.again.hidden = this.running;
    this.sheet.classList.toggle("busy", this.running);
    if (this.running) { this.complaint.say(""); this.status.textContent = state === "waiting" ? "Waiting for a free worker…" : "Starting…"; }
  }

  progress({ share, said }) {
    if (!this.running) return;
    if (share !== undefined) this.bar.value = share;
    if (said) this.status.textContent = `${said}…`;
  }

  // What the visitor does

  async ask() {
    const given = { rate: this.rate.value === 5 ? 5.12 : this.rate.value, num_paths: this.num.value, seed: Math.floor(Math.random() * 2 ** 31) };
    this.setRunning(true);
    try {
      if (this.own) await this.studio.ask("clip", { ...given, share: this.from.value });
      else await this.studio.ask("scene", { ...given, number: this.number });
    } catch (error) { this.setRunning(false); this.status.textContent = ""; this.complaint.say(error.message); }
  }

  nextScene() {
    this.number = this.own ? this.number : (this.number + 1) % this.scenes;
    this.own = false;
    this.from.node.hidden = true;
    this.ask();
  }

  async send(file) {
    this.file.value = "";
    if (!file) return;
    this.fileComplaint.say("");
    this.status.textContent = "Sending the clip…";
    try { await this.studio.upload(file); } catch (error) { this.fileComplaint.say(error.message); this.status.textContent = ""; return; }
    this.own = true;
    this.from.node.hidden = false;
    this.ask();
  }

  async cancel() {
    try { await this.studio.ask("cancel"); } catch (error) { this.complaint.say(error.message); }
  }

  play(on) {
    this.playing = on;
    this.playButton.textContent = on ? "Stop" : "Play";
  }

  key(event) {
    if (event.key === "Escape" && this.running) { this.cancel(); return true; }
    if (event.key === " " && event.target.tagName !== "BUTTON") { this.play(!this.playing); return true; }
    return false;
  }

  show() {
    if (this.shown) return;
    this.shown = true;
    let last = null;
    const frame = (now) => {
      if (!this.shown) return;
      const passed = last === null ? 0 : (now - last) / 1000;
      last = now;
      if (this.playing && this.made) {
        this.clock += Math.min(passed, 0.1);
        if (this.clock > this.times[this.times.length - 1] + HOLD) this.clock = this.times[0];
        this.draw();
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  hide() { this.shown = false; }
  theme() { this.drawn = null; this.draw(); }
}

/** One picture of an array of them. */
function pick({ data, shape }, k, path = null) {
  const size = shape.slice(path === null ? 1 : 2).reduce((a, b) => a * b, 1);
  const at = path === null ? k : path * shape[1] + k;
  return data.subarray(at * size, (at + 1) * size);
}

function paint({ canvas, heat }, values, most) {
  const { width, height } = canvas, context = canvas.getContext("2d"), num = width * height;
  if (!values) { context.fillStyle = palette().line; context.fillRect(0, 0, width, height); return; }
  const image = context.createImageData(width, height);
  for (let k = 0; k < num; k++) {
    const colour = heat ? warm(Math.min(1, values[k] / most)) : [values[k], values[num + k], values[2 * num + k]];
    image.data.set([...colour, 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
}

function warm(share) {
  const at = share * (HEAT.length - 1), k = Math.min(HEAT.length - 2, Math.floor(at)), part = at - k;
  return HEAT[k].map((v, i) => v + part * (HEAT[k + 1][i] - v));
}
