// A place to draw on: two canvases, one that stands and one that moves, in the square from -1 to 1 with equal scales.
import { make } from "./parts.js";

const HALF = 1.14;

export class Stage {
  /** `still(context)` is called when `stage.redraw()` asks, `moving(context, now)` in every frame while the stage is shown. */
  constructor({ label, still, moving }) {
    Object.assign(this, { still, moving });
    this.back = make("canvas", { class: "layer", "aria-hidden": "true" });
    this.front = make("canvas", { class: "layer front", tabIndex: 0, role: "img", "aria-label": label });
    this.node = make("div", { class: "stage" }, this.back, this.front);
    this.times = new Float32Array(240);
    this.frames = 0;
    this.shown = false;
    new ResizeObserver(() => this.resize()).observe(this.node);
  }

  resize() {
    const { width, height } = this.node.getBoundingClientRect();
    if (!width || !height) return;
    this.ratio = Math.min(devicePixelRatio || 1, 2);
    for (const canvas of [this.back, this.front]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
    }
    this.width = width;
    this.height = height;
    this.scale = Math.min(width, height) / (2 * HALF);
    this.redraw();
  }

  x(value) { return this.width / 2 + value * this.scale; }
  y(value) { return this.height / 2 - value * this.scale; }
  world(event) {
    const box = this.front.getBoundingClientRect();
    return [(event.clientX - box.left - this.width / 2) / this.scale, (this.height / 2 - event.clientY + box.top) / this.scale];
  }

  context(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  redraw() {
    if (!this.width || this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = 0; this.still(this.context(this.back)); });
  }

  show() {
    if (this.shown) return;
    this.shown = true;
    const frame = (now) => {
      if (!this.shown) return;
      if (this.width) {
        const began = performance.now();
        this.moving(this.context(this.front), now);
        this.times[this.frames++ % this.times.length] = performance.now() - began;
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  hide() { this.shown = false; }
}
