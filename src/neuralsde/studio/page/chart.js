// Small line charts: losses while a model learns, curves of other tabs.
import { make, palette } from "./parts.js";

/** { node, set([{ name, points: [[x, y], …] }, …]) }: each line in its own range, named at its end. */
export function lines({ label, height = 84 }) {
  const canvas = make("canvas", { class: "chart", role: "img", "aria-label": label });
  canvas.style.height = `${height}px`;
  let series = [];
  const draw = () => {
    const { width } = canvas.getBoundingClientRect();
    if (!width) return;
    const ratio = devicePixelRatio || 1, colours = palette();
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = "12px system-ui, sans-serif";
    const room = 74, most = Math.max(1, ...series.flatMap((s) => s.points.map((p) => p[0])));
    const tops = [];
    series.forEach((s, k) => {
      if (!s.points.length) return;
      const values = s.points.map((p) => p[1]);
      const low = Math.min(...values), span = Math.max(...values) - low || 1;
      const y = (v) => 6 + (1 - (v - low) / span) * (height - 14);
      c.strokeStyle = c.fillStyle = colours.series(k);
      c.lineWidth = 1.8;
      c.beginPath();
      s.points.forEach((p, i) => c[i ? "lineTo" : "moveTo"]((p[0] / most) * (width - room), y(p[1])));
      c.stroke();
      const last = s.points[s.points.length - 1];
      let top = y(last[1]) + 4;
      while (tops.some((t) => Math.abs(t - top) < 13)) top -= 13;
      if (top < 10) { top = height - 4; while (tops.some((t) => Math.abs(t - top) < 13)) top -= 13; }
      tops.push(top);
      c.fillText(s.name, (last[0] / most) * (width - room) + 6, top);
    });
  };
  new ResizeObserver(draw).observe(canvas);
  return { node: canvas, set: (given) => { series = given; draw(); }, draw };
}
