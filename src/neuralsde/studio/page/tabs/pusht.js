// The Push-T tab: poses come from the simulation in the studio; hands go back to it.
import { card, complaint, lastWins, make, palette, perFrame, segments, slider } from "../parts.js";
import { Stage } from "../stage.js";

export const title = "Push-T";

const SIZE = 512, RADIUS = 15, GOAL = [256, 256, Math.PI / 4], SUCCESS = 0.95;
const EDGE = [[-60, 0], [60, 0], [60, 30], [15, 30], [15, 120], [-15, 120], [-15, 30], [-60, 30]]; // of the T, in its own frame
const GAP = 14; // pixels between two tables
const TRAIL = 60; // places behind a pusher
const FIRST_SEED = 4;
const MODES = [["watch", "Watch", "The policy plays alone"], ["beside", "Play beside it", "A second table, for you (Y)"]];
const HINT = "Drag the T or the round pusher away: the policy plans anew when you let go.";
const HINT_PLAYING = "The pink pusher is yours: it follows your mouse or finger. Cover the dashed T before the policy does.";

export function mount(root, studio) {
  const view = new PushT(studio);
  root.append(view.node);
  return view;
}

class PushT {
  constructor(studio) {
    Object.assign(this, {
      studio, frame: null, before: null, plan: null, futures: null, curve: [], marks: [], episode: -1, hand: null, playing: false,
      paused: false, speed: 1, trails: [[], []], lacks: "", live: false, hover: "", own: 0, asked: new URLSearchParams(location.search),
    });
    this.stage = new Stage({
      label: "The table of Push-T. Tab here and move the T with the arrow keys; brackets turn it.",
      still: (c) => this.drawStill(c), moving: (c, now) => this.drawMoving(c, now),
    });
    this.front = this.stage.front;
    this.build();
    this.listen();
    this.sendHold = lastWins((given) => this.tell("hold", given));
    this.sendAim = lastWins((x, y) => this.tell("aim", { x, y }));
    this.sendControl = lastWins((given) => this.tell("control", given));
    this.moveHold = perFrame((given) => { if (this.hand && given.down) this.sendHold(given); });
    this.moveAim = perFrame((x, y) => this.sendAim(x, y));
  }

  // What is on the page

  build() {
    const button = (id, words, hint, onclick, kind = "quiet") => make("button", { type: "button", class: kind, id, title: hint, onclick }, words);
    this.hint = make("p", { class: "hint" }, HINT);
    this.verdict = make("div", { class: "verdict", role: "status", hidden: true });
    this.complaint = complaint();
    this.pauseButton = button("pusht-pause", "Pause", "Pause or go on (space)", () => this.pause(!this.paused), "primary");
    this.stepButton = button("pusht-step", "Step", "One action of the policy, while paused (.)", () => this.step());
    this.resetButton = button("pusht-reset", "Reset", "Begin this seed anew (R)", () => this.begin(this.seed));
    this.nextButton = button("pusht-next", "Next", "The next seed (N)", () => this.begin(this.seed + 1));
    this.seedInput = make("input", { type: "number", id: "pusht-seed", class: "number", min: 0, max: 2147483647, step: 1, value: FIRST_SEED, onchange: () => this.begin(this.seed) });
    this.speeds = segments({ label: "Speed", options: [["0.5", "½×"], ["1", "1×"], ["2", "2×"], ["4", "4×"]], value: "1", onchange: (v) => { this.speed = Number(v); this.sendControl({ speed: this.speed }); } });
    this.number = make("b", { id: "pusht-coverage", class: "large" }, "–");
    this.best = make("span", { class: "words" }, "");
    this.chart = make("canvas", { class: "chart curve", role: "img", "aria-label": "Share of the goal that the T covers, over time" });
    new ResizeObserver(() => this.drawCurve()).observe(this.chart);
    this.hz = make("b", { id: "pusht-hz" }, "–");
    this.ms = make("b", { id: "pusht-ms" }, "–");
    this.passes = make("b", {}, "–");
    const fact = (value, words) => make("div", { class: "fact" }, value, make("span", { class: "words" }, words));
    this.num = slider({
      label: "Plans drawn ahead", name: "futures", words: "Other futures of the same policy from the same place: one model, many plans.",
      min: 0, max: 48, step: 1, value: 12, onchange: (v) => { if (!v) this.futures = null; this.sendControl({ futures: v }); },
    });
    this.modes = segments({ label: "Who plays", options: MODES, value: "watch", onchange: (mode) => this.play(mode === "beside") });
    this.race = make("div", { id: "pusht-race" });
    this.raceCard = card("You and the policy", this.race);
    this.raceCard.hidden = true;
    const seedRow = make("label", { class: "field" }, make("span", {}, "Seed"), this.seedInput);
    const side = make("aside", { class: "side" },
      card("1 · Play", make("div", { class: "buttons" }, this.pauseButton, this.stepButton, this.resetButton), this.complaint.node,
        make("div", { class: "buttons row2" }, seedRow, this.nextButton), make("div", { class: "field row2" }, make("span", {}, "Speed"), this.speeds.node)),
      this.raceCard,
      card("2 · Coverage", make("div", { class: "reading" }, this.number, this.best), this.chart),
      card("3 · Control", make("div", { class: "facts" }, fact(this.hz, "actions a second"), fact(this.ms, "per plan of 8 actions"), fact(this.passes, "network passes a plan")), this.num.node),
      card("What plays", make("p", { class: "words" }, "A Neural SDE over the path of actions, learned from 206 demonstrations by hand. It sees the corners of the T and the place of the pusher, and draws its next actions as one random path. The goal is the dashed T: 95 % of it covered counts as solved.")));
    const tools = make("div", { class: "tools" }, this.modes.node, this.hint);
    this.node = make("div", { class: "work pusht" }, make("div", { class: "board" }, tools, this.stage.node, this.verdict), side);
    // A button that was clicked would keep the space bar to itself; one that was reached by keyboard does.
    this.node.addEventListener("click", (event) => { if (event.detail) event.target.closest("button")?.blur(); });
  }

  get seed() {
    const value = Math.floor(Number(this.seedInput.value));
    return Number.isFinite(value) ? Math.max(0, Math.min(2147483646, value)) : 0;
  }

  // What the studio says

  state(state) {
    this.lacks = state.lacks;
    if (this.lacks) { this.complaint.say(this.lacks); this.say("The simulator is not installed."); return; }
    const { settings, match, job } = state;
    this.setPaused(settings.paused);
    this.speed = settings.speed;
    this.speeds.set(String(settings.speed));
    this.num.set(settings.futures);
    this.setPlaying(match.playing);
    this.live = Boolean(job) && (job.state === "running" || job.state === "waiting");
    if (this.live) {
      this.seedInput.value = match.seed;
      this.curve = rows(state.curve);
      this.tell("watch", { on: true });
      if (!this.frame) this.say(job.state === "waiting" ? "Waiting for a free worker…" : "Setting the table…");
    } else if (job?.state === "failed") this.complaint.say(job.error);
    else this.first(match.seed);
  }

  /** The first visit: it plays by itself. An address may name a seed, a speed, and a step at which to wait. */
  first(seed) {
    const asked = (name) => (this.asked.has(name) ? Number(this.asked.get(name)) : null);
    const speed = asked("speed"), pause = asked("pause");
    if (speed) { this.speed = speed; this.speeds.set(String(speed)); this.startSpeed = speed; }
    this.begin(asked("seed") ?? (seed || FIRST_SEED), pause ? { pause_at: pause } : {});
  }

  event(message) {
    if (message.event === "frame") this.takeFrame(message);
    else if (message.event === "plan" && message.episode === this.episode) {
      this.plan = { at: message.plan.data, num: message.plan.shape[0], step: message.step };
      this.hz.textContent = message.hz ? `${message.hz.toFixed(1)} Hz` : "–";
      this.ms.textContent = `${message.ms < 10 ? message.ms.toFixed(1) : Math.round(message.ms)} ms`;
      this.passes.textContent = message.passes;
    } else if (message.event === "futures" && message.episode === this.episode && this.num.value) {
      const { data, shape } = message.futures;
      this.futures = { data, num: shape[0], times: shape[1], since: performance.now(), step: message.step };
    } else if (message.event === "end") {
      this.live = false;
      if (message.state === "failed") { this.complaint.say(message.error); this.say("Press reset to begin again."); }
      else if (message.state === "done") this.say("The match has ended. Press reset to begin again.");
    }
  }

  takeFrame(message) {
    const { data, shape } = message.poses;
    if (message.episode !== this.episode) {
      Object.assign(this, { episode: message.episode, plan: null, futures: null, before: null, trails: [[], []] });
      if (!this.curve.length || message.seconds < this.curve[this.curve.length - 1][0]) { this.curve = []; this.marks = []; }
      if (document.activeElement !== this.seedInput) this.seedInput.value = message.seed;
      if (this.startSpeed) { this.tell("control", { speed: this.startSpeed }); this.startSpeed = null; }
      this.complaint.say("");
    }
    this.live = true;
    this.before = this.frame && this.frame.num === shape[0] && this.before !== null ? this.frame : { data, num: shape[0] };
    this.frame = { data, num: shape[0], at: performance.now(), step: message.step, seconds: message.seconds, covered: message.covered, solved: message.solved, held: message.held };
    if (message.held && !this.held) this.marks.push(message.seconds);
    this.held = message.held;
    this.setPaused(message.paused);
    const last = this.curve[this.curve.length - 1];
    const point = [message.seconds, message.covered[0], message.covered[1] ?? 0];
    if (!last || message.seconds > last[0] + 0.09) this.curve.push(point);
    else if (message.seconds === last[0]) this.curve[this.curve.length - 1] = point; // moved by hand while paused
    for (let k = 0; k < shape[0]; k++) {
      const behind = this.trails[k][this.trails[k].length - 1];
      if (behind && Math.hypot(data[5 * k] - behind[0], data[5 * k + 1] - behind[1]) > 50) this.trails[k] = []; // it was put there
      this.trails[k].push([data[5 * k], data[5 * k + 1]]);
      if (this.trails[k].length > TRAIL) this.trails[k].shift();
    }
    this.number.textContent = percent(message.covered[0]);
    this.best.textContent = `of the goal · best ${percent(message.best[0])} · ${message.seconds.toFixed(1)} s · action ${message.step}`;
    this.tellRace(message);
    this.drawCurve();
  }

  tellRace({ covered, best, solved }) {
    const done = (at) => `solved it in ${at.toFixed(1)} s`;
    if (this.playing && covered.length > 1) {
      const colours = palette();
      this.race.replaceChildren(...[[1, "you", 3], [0, "policy", 0]].map(([k, name, colour]) => {
        const fill = make("span", { class: "fill" });
        fill.style.width = `${100 * covered[k]}%`;
        fill.style.background = colours.series(colour);
        const words = solved[k] === null ? `best ${percent(best[k])}` : done(solved[k]);
        return make("div", { class: "odd race" }, make("span", { class: "name" }, name), make("span", { class: "track" }, fill), make("b", {}, words));
      }));
    }
    if (solved[0] !== null) this.say(`The policy ${done(solved[0])}. Drag the T away if you like.`);
    else if (this.playing && solved[1] !== null && solved[1] !== undefined) this.say(`You ${done(solved[1])}!`);
    else this.say("");
  }

  say(text) { this.verdict.hidden = !text; this.verdict.textContent = text; }

  setPaused(paused) {
    if (this.pausing !== undefined && this.pausing !== paused) return; // what was asked is not heard yet
    this.pausing = undefined;
    this.paused = paused;
    this.pauseButton.textContent = paused ? "Go on" : "Pause";
    this.stepButton.disabled = !paused;
  }

  setPlaying(on) {
    this.playing = on;
    this.modes.set(on ? "beside" : "watch");
    this.raceCard.hidden = !on;
    this.node.classList.toggle("duel", on);
    this.hint.textContent = on ? HINT_PLAYING : HINT;
    this.stage.resize();
  }

  // What the visitor does

  async tell(action, given = {}) {
    try { await this.studio.ask(action, given); }
    catch (error) { this.complaint.say(error.message); }
  }

  async begin(seed, more = {}) {
    this.seedInput.value = seed;
    this.complaint.say("");
    this.curve = [];
    this.marks = [];
    if (!this.live) this.say("Setting the table…");
    this.live = true;
    this.pausing = undefined;
    await this.tell("begin", { seed, playing: this.playing, ...more });
  }

  play(on) {
    this.setPlaying(on);
    this.begin(this.seed);
    this.stage.node.scrollIntoView({ block: "nearest" });
  }

  async pause(paused) {
    if (!this.live) { this.begin(this.seed); return; }
    this.pausing = undefined;
    this.setPaused(paused);
    this.pausing = paused;
    await this.tell("control", { paused });
  }

  step() { if (this.paused) this.tell("step"); }

  key(event) {
    const arrow = { ArrowLeft: [-12, 0], ArrowRight: [12, 0], ArrowUp: [0, -12], ArrowDown: [0, 12] }[event.key];
    const turn = { "[": -0.2, "]": 0.2 }[event.key];
    if ((arrow || turn) && document.activeElement === this.front && this.frame) { this.nudge(arrow ?? [0, 0], turn ?? 0); return true; }
    if (event.key === " " && event.target.tagName === "BUTTON") return false;
    const call = { " ": () => this.pause(!this.paused), ".": () => this.step(), r: () => this.begin(this.seed), n: () => this.begin(this.seed + 1), y: () => this.play(!this.playing) }[event.key.toLowerCase()];
    if (!call) return false;
    call();
    return true;
  }

  /** A hand for one moment: by the middle of the T to shift it, by its foot to turn it. */
  async nudge([dx, dy], turn) {
    const pose = this.frame.data.subarray(2, 5), centre = onBlock(pose, 0, 45), foot = onBlock(pose, 0, 120);
    const x = foot[0] - centre[0], y = foot[1] - centre[1], cos = Math.cos(turn), sin = Math.sin(turn);
    const place = turn ? [centre[0] + x * cos - y * sin, centre[1] + x * sin + y * cos] : [centre[0] + dx, centre[1] + dy];
    const given = { what: "block", x: place[0], y: place[1], u: 0, v: turn ? 120 : 45 };
    await this.tell("hold", { ...given, down: true });
    await this.tell("hold", { ...given, down: false });
  }

  // Pointers: one may hold the T or the policy's pusher, another leads the visitor's own

  listen() {
    const { front } = this;
    front.addEventListener("pointerdown", (event) => {
      if (event.button || !this.frame) return;
      const { table, x, y } = this.where(event);
      front.setPointerCapture(event.pointerId);
      if (this.playing && table === 1) { this.own = event.pointerId; this.moveAim(x, y); return; }
      const hit = this.hit(x, y, event.pointerType === "touch" ? 16 : 6);
      if (!hit || this.hand) return;
      this.hand = { pointer: event.pointerId, ...hit };
      front.style.cursor = "grabbing";
      this.sendHold(this.given(x, y, true));
    });
    front.addEventListener("pointermove", (event) => {
      if (!this.frame) return;
      const { table, x, y } = this.where(event);
      if (this.hand?.pointer === event.pointerId) { const at = this.boxed(event, 0); this.hand.at = at; this.moveHold(this.given(...at, true)); return; }
      if (this.playing && (table === 1 || this.own === event.pointerId)) { this.moveAim(...this.boxed(event, 1)); front.style.cursor = "none"; return; }
      front.style.cursor = table === 0 && this.hit(x, y, 6) ? "grab" : "default";
    });
    const up = (event) => {
      if (this.own === event.pointerId) this.own = 0;
      if (this.hand?.pointer !== event.pointerId) return;
      const given = this.given(...this.boxed(event, 0), false);
      this.hand = null;
      front.style.cursor = "grab";
      this.sendHold(given);
    };
    front.addEventListener("pointerup", up);
    front.addEventListener("pointercancel", up);
  }

  given(x, y, down) {
    const { what, grip } = this.hand;
    return { what, x, y, u: grip[0], v: grip[1], down };
  }

  /** Which table a pointer is at, and where on it. */
  where(event) {
    const tables = this.tables(), box = this.front.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    const inside = tables.findIndex((t) => px >= t.x && px <= t.x + t.side && py >= t.y && py <= t.y + t.side);
    const table = Math.max(0, inside), t = tables[table];
    return { table: inside, x: ((px - t.x) / t.side) * SIZE, y: ((py - t.y) / t.side) * SIZE };
  }

  /** Where on a certain table, at most at its edge. */
  boxed(event, table) {
    const t = this.tables()[table], box = this.front.getBoundingClientRect();
    return [event.clientX - box.left - t.x, event.clientY - box.top - t.y].map((v) => Math.max(0, Math.min(SIZE, (v / t.side) * SIZE)));
  }

  hit(x, y, room) {
    const { data } = this.frame, pose = data.subarray(2, 5);
    if (Math.hypot(x - data[0], y - data[1]) < RADIUS + room) return { what: "agent", grip: [0, 0] };
    const [u, v] = inBlock(pose, x, y);
    const on = (Math.abs(u) <= 60 + room && v >= -room && v <= 30 + room) || (Math.abs(u) <= 15 + room && v >= 0 && v <= 120 + room);
    if (!on) return null;
    return { what: "block", grip: Math.hypot(u, v - 45) < 12 ? [0, 45] : [u, v] };
  }

  show() {
    this.stage.show();
    if (!this.lacks && this.live) this.tell("watch", { on: true });
  }

  hide() {
    this.stage.hide();
    if (!this.lacks && this.live) this.tell("watch", { on: false });
  }

  theme() { this.stage.redraw(); this.drawCurve(); }

  // Pictures

  /** Squares of the tables, in pixels of the stage: the policy's, then the visitor's. */
  tables() {
    const { width = 1, height = 1 } = this.stage, pad = 10;
    if (!this.playing) {
      const side = Math.min(width, height) - 2 * pad;
      return [{ x: (width - side) / 2, y: (height - side) / 2, side }];
    }
    const wide = width > height, room = wide ? (width - GAP - 2 * pad) / 2 : (height - GAP - 2 * pad) / 2;
    const side = Math.min(room, (wide ? height : width) - 2 * pad);
    const x = wide ? (width - 2 * side - GAP) / 2 : (width - side) / 2, y = wide ? (height - side) / 2 : (height - 2 * side - GAP) / 2;
    const there = wide ? { x: x + side + GAP, y, side } : { x, y: y + side + GAP, side };
    return [{ x, y, side }, there];
  }

  drawStill(c) {
    const colours = palette();
    this.tables().forEach((t, k) => {
      c.save();
      enter(c, t);
      c.fillStyle = colours.dark ? "#0f161e" : "#f7f9fb";
      c.strokeStyle = colours.line;
      c.lineWidth = 2;
      c.beginPath();
      c.roundRect(1, 1, SIZE - 2, SIZE - 2, 12);
      c.fill();
      c.stroke();
      shape(c, GOAL);
      c.fillStyle = colours.series(2);
      c.globalAlpha = 0.2;
      c.fill();
      c.globalAlpha = 0.9;
      c.strokeStyle = colours.series(2);
      c.setLineDash([7, 5]);
      c.lineWidth = 2;
      c.stroke();
      c.restore();
      if (this.playing) label(c, t, k ? "You" : "Policy", colours);
    });
  }

  drawMoving(c, now) {
    if (!this.frame) return;
    const colours = palette(), poses = this.between(now);
    this.tables().forEach((t, k) => {
      if (k >= this.frame.num) return;
      c.save();
      enter(c, t);
      c.lineJoin = c.lineCap = "round";
      const pose = poses.subarray(5 * k, 5 * k + 5), pusher = k ? colours.series(3) : colours.warm;
      this.drawTrail(c, this.trails[k], pusher);
      this.drawBlock(c, pose, colours);
      if (!k) this.drawPlans(c, colours, now);
      c.fillStyle = pusher;
      c.strokeStyle = colours.ink;
      c.lineWidth = 2;
      c.beginPath();
      c.arc(pose[0], pose[1], RADIUS, 0, 7);
      c.fill();
      c.stroke();
      if (!k && this.hand?.at) this.drawHand(c, pose, colours);
      c.restore();
    });
    if (this.paused) badge(c, this.tables()[0], "paused", colours);
  }

  /** Poses between the last two frames, so that motion is even whatever the rate at which they come. */
  between(now) {
    const { data, at } = this.frame, from = this.before?.data ?? data;
    const share = Math.min(1, (now - at) / 20), out = new Float32Array(data.length);
    for (let k = 0; k < data.length; k++) {
      let change = data[k] - from[k];
      if (k % 5 === 4) change = Math.atan2(Math.sin(change), Math.cos(change));
      else if (Math.abs(change) > 60) change = 0; // it was put there
      out[k] = data[k] - (1 - share) * change;
    }
    return out;
  }

  drawTrail(c, trail, colour) {
    c.strokeStyle = colour;
    c.lineWidth = 3;
    for (let k = 1; k < trail.length; k += 3) {
      const last = Math.min(trail.length - 1, k + 3);
      c.globalAlpha = 0.35 * (k / trail.length);
      c.beginPath();
      c.moveTo(...trail[k - 1]);
      for (let j = k; j <= last; j++) c.lineTo(...trail[j]);
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  drawBlock(c, pose, colours) {
    shape(c, pose.subarray(2, 5));
    c.fillStyle = colours.series(0);
    c.globalAlpha = 0.82;
    c.fill();
    c.globalAlpha = 1;
    c.strokeStyle = colours.ink;
    c.lineWidth = 1.6;
    c.stroke();
  }

  drawPlans(c, colours, now) {
    const fresh = this.futures && (this.held || this.frame.step - this.futures.step <= 9);
    if (fresh) {
      const { data, num, times, since } = this.futures, shown = Math.max(2, Math.ceil(times * Math.min(1, (now - since) / 250)));
      c.strokeStyle = colours.series(5);
      c.lineWidth = 1.5;
      for (const [first, last, alpha] of [[0, 8, 0.55], [7, times, 0.22]]) {
        c.globalAlpha = alpha;
        c.beginPath();
        for (let p = 0; p < num; p++) {
          const at = 2 * p * times;
          if (first >= shown) break;
          c.moveTo(data[at + 2 * first], data[at + 2 * first + 1]);
          for (let t = first + 1; t < Math.min(last, shown); t++) c.lineTo(data[at + 2 * t], data[at + 2 * t + 1]);
        }
        c.stroke();
      }
    }
    if (this.plan && !this.held) {
      const { at, num, step } = this.plan, done = Math.max(0, Math.min(num - 1, this.frame.step - step));
      c.globalAlpha = 1;
      c.strokeStyle = c.fillStyle = colours.ink;
      c.lineWidth = 2.4;
      c.beginPath();
      for (let t = done; t < num; t++) c[t > done ? "lineTo" : "moveTo"](at[2 * t], at[2 * t + 1]);
      c.stroke();
      for (let t = done; t < num; t++) { c.beginPath(); c.arc(at[2 * t], at[2 * t + 1], 2.6, 0, 7); c.fill(); }
    }
    c.globalAlpha = 1;
  }

  drawHand(c, pose, colours) {
    const from = this.hand.what === "agent" ? [pose[0], pose[1]] : onBlock(pose.subarray(2, 5), ...this.hand.grip);
    c.strokeStyle = c.fillStyle = colours.ink;
    c.setLineDash([4, 4]);
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(...from);
    c.lineTo(...this.hand.at);
    c.stroke();
    c.setLineDash([]);
    c.beginPath();
    c.arc(...from, 4, 0, 7);
    c.fill();
  }

  drawCurve() {
    const canvas = this.chart, { width } = canvas.getBoundingClientRect(), height = 132;
    if (!width) return;
    const ratio = devicePixelRatio || 1, colours = palette(), c = canvas.getContext("2d");
    if (canvas.width !== Math.round(width * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = height * ratio; }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    const left = 38, bottom = 20, top = 18, right = 6;
    const last = this.curve.length ? this.curve[this.curve.length - 1][0] : 0, span = Math.max(10, Math.ceil(last / 5) * 5);
    const x = (s) => left + (s / span) * (width - left - right), y = (v) => top + (1 - v) * (height - top - bottom);
    c.font = "11px system-ui, sans-serif";
    c.lineWidth = 1;
    c.textBaseline = "middle";
    for (const value of [0, 0.5, SUCCESS]) {
      const goal = value === SUCCESS;
      c.strokeStyle = goal ? colours.series(2) : colours.line;
      c.setLineDash(goal ? [5, 4] : []);
      c.beginPath();
      c.moveTo(left, y(value));
      c.lineTo(width - right, y(value));
      c.stroke();
      c.fillStyle = colours.muted;
      c.textAlign = "right";
      c.fillText(`${Math.round(100 * value)} %`, left - 5, y(value));
    }
    c.setLineDash([]);
    c.textAlign = "center";
    for (let s = 0; s <= span; s += span > 20 ? 10 : 5) c.fillText(`${s} s`, Math.min(width - right - 10, Math.max(left + 6, x(s))), height - 8);
    c.fillStyle = c.strokeStyle = colours.series(5);
    for (const mark of this.marks) {
      c.beginPath();
      c.moveTo(x(mark), top - 4);
      c.lineTo(x(mark), y(0));
      c.globalAlpha = 0.6;
      c.stroke();
      c.globalAlpha = 1;
      c.fillText("drag", Math.max(left + 12, x(mark)), top - 11);
    }
    for (const k of this.playing ? [2, 1] : [1]) {
      c.strokeStyle = k === 1 ? colours.series(0) : colours.series(3);
      c.lineWidth = 2;
      c.beginPath();
      this.curve.forEach((p, i) => c[i ? "lineTo" : "moveTo"](x(p[0]), y(p[k])));
      c.stroke();
    }
  }
}

const percent = (share) => `${Math.round(100 * share)} %`;

function rows({ data, shape: [num, width] }) {
  return Array.from({ length: num }, (_, k) => [...data.subarray(k * width, (k + 1) * width)]);
}

/** From the frame of the T to the table, and back. */
function onBlock([x, y, angle], u, v) {
  const cos = Math.cos(angle), sin = Math.sin(angle);
  return [x + u * cos - v * sin, y + u * sin + v * cos];
}

function inBlock([bx, by, angle], x, y) {
  const cos = Math.cos(angle), sin = Math.sin(angle);
  return [(x - bx) * cos + (y - by) * sin, (y - by) * cos - (x - bx) * sin];
}

function shape(c, pose) {
  c.beginPath();
  EDGE.forEach(([u, v], k) => c[k ? "lineTo" : "moveTo"](...onBlock(pose, u, v)));
  c.closePath();
}

function enter(c, { x, y, side }) {
  c.translate(x, y);
  c.scale(side / SIZE, side / SIZE);
  c.beginPath();
  c.rect(0, 0, SIZE, SIZE);
  c.clip();
}

function label(c, { x, y }, text, colours) {
  c.font = "600 14px system-ui, sans-serif";
  c.fillStyle = colours.muted;
  c.textBaseline = "top";
  c.fillText(text, x + 14, y + 12);
}

function badge(c, { x, y, side }, text, colours) {
  c.font = "600 13px system-ui, sans-serif";
  const width = c.measureText(text).width + 20;
  c.fillStyle = colours.ink;
  c.globalAlpha = 0.85;
  c.beginPath();
  c.roundRect(x + side - width - 12, y + 10, width, 24, 12);
  c.fill();
  c.globalAlpha = 1;
  c.fillStyle = colours.paper;
  c.textBaseline = "middle";
  c.fillText(text, x + side - width - 2, y + 22.5);
}
