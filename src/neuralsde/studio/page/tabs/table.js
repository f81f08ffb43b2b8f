// The tab Your table: a CSV goes to the studio, and what was read, found and forecast comes back.
import { card, complaint, make, segments, slider, toggle } from "../parts.js";
import { Fans } from "../fan.js";

export const title = "Your table";

const MODES = [["ahead", "Forecast", "What may come (F)"], ["tests", "Backtest", "What was forecast of what then came (B)"]];
const HINTS = {
  none: "Drop a CSV file anywhere here: one row per observation, with a column of dates.",
  past: "This is what was read. Press forecast.",
  ahead: "The fan holds 50, 80 and 95 % of the futures that the model draws.",
  tests: "Fans made from the past alone, by a model that had not seen the rest. The observed line is what came.",
  no_tests: "There is no backtest: the series are too short to hold something back.",
};

export function mount(root, studio) {
  const view = new YourTable(studio);
  root.append(view.node);
  return view;
}

class YourTable {
  constructor(studio) {
    Object.assign(this, { studio, table: null, report: null, running: false, first: true });
    this.build();
    this.listen();
  }

  // What is on the page

  build() {
    this.fans = new Fans({ label: "Charts of the table and its forecasts" });
    this.modes = segments({ label: "What the chart shows", options: MODES, value: "ahead", onchange: (mode) => this.setMode(mode) });
    this.hint = make("p", { class: "hint" }, HINTS.none);
    this.legend = make("div", { class: "legend", hidden: true },
      ["observed", "median", "b50", "b80", "b95"].map((kind) => make("span", { class: `key ${kind}` }, { observed: "observed", median: "median", b50: "50 %", b80: "80 %", b95: "95 %" }[kind])));
    this.back = make("button", { type: "button", class: "quiet", onclick: () => this.page(-1) }, "← Before");
    this.next = make("button", { type: "button", class: "quiet", onclick: () => this.page(1) }, "More →");
    this.pages = make("div", { class: "buttons pages", hidden: true }, this.back, this.where = make("span", { class: "words" }), this.next);
    this.blank = make("div", { class: "blank", hidden: true });
    this.sheet = make("div", { class: "sheet" }, this.fans.node, this.blank);
    this.complaint = complaint();
    this.readComplaint = complaint();
    this.fitComplaint = complaint();
    this.keepComplaint = complaint();
    const tools = make("div", { class: "tools" }, this.modes.node, this.hint);
    this.node = make("div", { class: "work" }, make("div", { class: "board" }, tools, this.legend, this.sheet, this.pages), this.side = make("aside", { class: "side" }, this.sideCards()));
    this.modes.node.hidden = true;
  }

  sideCards() {
    this.file = make("input", { type: "file", accept: ".csv,.tsv,.txt", hidden: true, id: "table-file", onchange: () => this.send(this.file.files[0]) });
    this.drop = make("button", { type: "button", class: "drop", id: "choose", onclick: () => this.file.click() }, make("b", {}, "Drop a CSV here"), make("span", {}, "or choose one of your files"));
    this.examples = make("div", { class: "chips small", role: "group", "aria-label": "Example tables" });
    this.status = make("p", { class: "status", id: "table-status", role: "status" });
    this.diagnosis = make("div", { class: "choice", id: "diagnosis" });
    this.buildReading();
    this.horizon = make("input", { type: "number", min: 1, max: 500, step: 1, id: "horizon", inputMode: "numeric" });
    this.effort = make("select", { "aria-label": "Effort", id: "table-effort" },
      make("option", { value: "" }, "Quick"), make("option", { value: "30" }, "Search: 30 seconds"), make("option", { value: "120" }, "Search: 2 minutes"));
    this.go = make("button", { type: "button", class: "primary", id: "forecast", onclick: () => this.forecast(), disabled: true }, "Forecast");
    this.cancelButton = make("button", { type: "button", class: "quiet", id: "table-cancel", hidden: true, onclick: () => this.cancel(), title: "Cancel (Esc)" }, "Cancel");
    this.bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "Progress" });
    this.fitStatus = make("p", { class: "status", id: "fit-status", role: "status" });
    this.scores = make("div", { class: "scores", id: "scores" });
    this.choice = make("div", { class: "choice" });
    this.code = make("pre", { class: "code", hidden: true, tabIndex: 0 });
    this.past = slider({ label: "Past shown", name: "past", words: "In lengths of the forecast.", min: 1, max: 12, step: 1, value: 3, show: (v) => `${v} ×`, onchange: (v) => this.fans.look({ past: v }) });
    this.paths = toggle({ label: "Some single futures", name: "paths", on: false, onchange: (on) => this.fans.look({ paths: on }) });
    const keep = make("div", { class: "buttons" },
      make("button", { type: "button", class: "quiet", id: "download", onclick: () => this.download() }, "Download forecasts (CSV)"),
      make("button", { type: "button", class: "quiet", id: "table-copy", onclick: () => this.copy() }, "Copy the Python"));
    return [
      card("1 · Table", this.drop, this.file, make("p", { class: "words" }, "Or look at an example (made up):"), this.examples, this.complaint.node),
      this.readCard = card("2 · What was read", this.status, this.readComplaint.node, this.diagnosis, this.how),
      this.fitCard = card("3 · Forecast", make("label", { class: "field" }, make("span", {}, "Steps ahead"), this.horizon),
        make("div", { class: "buttons" }, this.go, this.effort, this.cancelButton), this.bar, this.fitStatus, this.fitComplaint.node),
      this.scoreCard = card("4 · How good is it?", this.scores),
      this.viewCard = card("View", this.paths.node, this.past.node),
      this.choiceCard = card("What the library chose, and why", this.choice),
      this.keepCard = card("Keep it", keep, this.keepComplaint.node, this.code),
    ];
  }

  buildReading() {
    const again = () => this.read();
    this.time = make("select", { id: "time", onchange: again });
    this.series = make("select", { id: "series", onchange: again });
    this.features = make("div", { class: "chips small", role: "group", "aria-label": "Columns to forecast" });
    this.format = make("input", { type: "text", id: "date-format", placeholder: "ISO, or e.g. %d/%m/%Y", onchange: again });
    this.missing = make("input", { type: "text", id: "na-values", placeholder: "e.g. -999", onchange: again });
    this.preview = make("div", { class: "preview", tabIndex: 0, role: "region", "aria-label": "First rows of the file" });
    const field = (words, node) => make("label", { class: "field" }, make("span", {}, words), node);
    this.how = make("details", {}, make("summary", {}, "How it is read"), field("Time", this.time), field("Series id", this.series),
      make("p", { class: "words" }, "Columns to forecast"), this.features, field("Date format", this.format), field("Missing values", this.missing), this.preview);
  }

  listen() {
    const over = (on) => (event) => { event.preventDefault(); this.node.classList.toggle("dropping", on); };
    this.node.addEventListener("dragover", over(true));
    this.node.addEventListener("dragleave", over(false));
    this.node.addEventListener("drop", (event) => { over(false)(event); this.send(event.dataTransfer.files[0]); });
  }

  key(event) {
    if (event.key === "Escape" && this.running) { this.cancel(); return true; }
    if (event.key === "f" && this.report) { this.setMode("ahead"); return true; }
    if (event.key === "b" && this.report) { this.setMode("tests"); return true; }
    return false;
  }

  theme() { this.fans.draw(); }
  show() { this.fans.draw(); }

  // What the studio says

  state(state) {
    this.examples.replaceChildren(...state.examples.map(([name, words]) => make("button", {
      type: "button", class: "chip", "data-example": name, "aria-pressed": "false", onclick: () => this.example(name),
    }, words)));
    this.take(state);
    const running = state.job && (state.job.state === "running" || state.job.state === "waiting");
    this.setRunning(running, state.job?.state);
    if (running) this.showProgress(state.progress);
    else if (state.job?.state === "failed") this.fitComplaint.say(state.job.error);
    if (!state.table && this.first) this.example("electricity");
    this.first = false;
  }

  event(message) {
    if (message.event === "progress") this.showProgress(message);
    if (message.event !== "end") return;
    this.setRunning(false);
    if (message.state === "done") {
      this.take(message, { unfold: true });
      this.fitStatus.textContent = "";
      this.side.scrollTo({ top: this.fitCard.offsetTop - this.side.offsetTop, behavior: "smooth" }); // on a phone the page scrolls, not the side
    }
    if (message.state === "failed") { this.fitComplaint.say(message.error); this.fitStatus.textContent = "It did not work out."; }
    if (message.state === "cancelled") this.fitStatus.textContent = "Cancelled.";
  }

  take(shown, { unfold = false } = {}) {
    this.table = shown.table;
    this.report = shown.report;
    this.shown = shown;
    this.readCard.hidden = this.fitCard.hidden = !shown.table;
    for (const node of [this.scoreCard, this.viewCard, this.choiceCard, this.keepCard]) node.hidden = !shown.report;
    this.modes.node.hidden = this.legend.hidden = !shown.report;
    if (!shown.report) this.code.hidden = true;
    for (const chip of this.examples.children) chip.setAttribute("aria-pressed", String(chip.dataset.example === shown.table?.example));
    if (shown.table) this.describe(shown.table);
    if (shown.report) { this.explain(shown.report); this.score(shown.report); }
    this.showBlank(shown.table);
    this.fans.set(shown, { unfold });
    this.setMode(shown.report ? this.modes.value : "ahead");
    this.pages.hidden = shown.num_panels <= shown.panels.length;
    this.where.textContent = `${shown.first + 1} to ${shown.first + shown.panels.length} of ${shown.num_panels} panels`;
    this.back.disabled = !shown.first;
    this.next.disabled = shown.first + shown.panels.length >= shown.num_panels;
  }

  describe(table) {
    this.readComplaint.say(table.error);
    this.go.disabled = Boolean(table.error);
    this.status.replaceChildren(make("b", {}, table.file), table.error ? "" : `: ${count(table.kept)} of ${count(table.read)} rows`);
    this.fillReading(table);
    if (table.error) { this.diagnosis.replaceChildren(); this.how.open = true; return; }
    const rhythm = table.every ? `One observation each ${table.every}` : "Observations at uneven times";
    const words = [`${rhythm}, from ${table.span[0]} to ${table.span[1]}.`];
    if (table.num_series > 1) words.unshift(`${table.num_series} series.`);
    this.horizon.placeholder = table.horizon || 20;
    const range = (f) => `${say(f[1])} to ${say(f[2])}, mean ${say(f[3])}${f[4] ? `, ${count(f[4])} missing` : ""}`;
    const list = (words, items) => (items.length ? make("details", {}, make("summary", {}, `${words} (${items.length})`), make("ul", {}, items)) : "");
    this.diagnosis.replaceChildren(make("p", {}, words.join(" ")),
      make("ul", { class: "features" }, table.features.map((f) => make("li", {}, make("b", {}, f[0]), ` ${range(f)}`))),
      ...table.dropped.map(([num, reason, line]) => make("p", { class: "note" }, `${count(num)} row${num > 1 ? "s" : ""} dropped: ${reason} (first: line ${line})`)),
      ...table.warnings.map((text) => make("p", { class: "note" }, text)),
      list("What was found", table.traits.map(([name, text]) => make("li", {}, make("b", {}, name), `: ${text}`))),
      list("Notes on reading", [...table.notes, ...table.unused.map(([name, why]) => `${name} is not used: ${why}`)].map((text) => make("li", {}, text))));
  }

  fillReading(table) {
    const options = (none, chosen) => [make("option", { value: "" }, none), ...table.names.map((name) => make("option", { value: name, selected: name === chosen }, name))];
    this.time.replaceChildren(...options("none: rows in their order", table.time));
    this.series.replaceChildren(...options("none: one series", table.id));
    this.time.value = table.time ?? "";
    this.series.value = table.id ?? "";
    this.format.value = table.date_format;
    this.missing.value = table.na_values;
    const free = table.names.filter((name) => name !== table.time && name !== table.id);
    this.features.replaceChildren(...free.map((name) => make("button", {
      type: "button", class: "chip", "data-column": name, "aria-pressed": String(table.columns.includes(name)), onclick: () => this.choose(name),
    }, name)));
    this.preview.replaceChildren(firstRows(table));
  }

  /** What stands in place of the chart where there is nothing to draw. */
  showBlank(table) {
    this.fans.node.hidden = !table || Boolean(table.error);
    this.blank.hidden = !this.fans.node.hidden;
    if (!table) this.blank.replaceChildren(make("p", {}, HINTS.none));
    else if (table.error) this.blank.replaceChildren(make("p", {}, "These are the first rows of your file. Say at the side how to read them."), make("div", { class: "preview" }, firstRows(table)));
  }

  explain(report) {
    const fit = report.kind === "series" ? "nsde.fit_series" : "nsde.fit_table";
    const tried = report.tried.map(([name, score]) => make("li", {}, `${name || "another"}: ${score.toFixed(3)}`));
    const season = report.kind !== "series" ? "" : report.seasons.length ? `Season: ${report.seasons.join(", ")}.` : "No season was found.";
    this.choice.replaceChildren(make("p", {}, make("b", {}, report.choice)), make("p", {}, `${season} ${report.reason}`.trim()),
      make("p", { class: "words" }, `${fit}, ${report.budget ? `a search of ${report.budget} seconds` : "quick: few models are tried"}.`),
      tried.length ? make("details", {}, make("summary", {}, "What was tried, CRPS"), make("ul", {}, tried)) : "",
      report.notes.length ? make("details", {}, make("summary", {}, "To note"), report.notes.map((note) => make("p", { class: "note" }, note))) : "");
  }

  score(report) {
    if (!report.standings.length) {
      this.scores.replaceChildren(make("p", { class: "words" }, report.verdict.join(" ") || "The series are too short to say how good forecasts are."));
      return;
    }
    const best = Math.max(...report.standings.map((s) => s.crps));
    const rows = report.standings.map((s) => {
      const fill = make("span", { class: "fill" });
      fill.style.width = `${Math.max(2, (100 * s.crps) / best)}%`;
      return make("tr", { class: s.name === "model" ? "own" : "", "data-name": s.name }, make("td", {}, s.name), make("td", { class: "wide" }, make("span", { class: "track" }, fill)),
        make("td", { class: "right" }, s.crps.toFixed(3)), make("td", { class: "right" }, `${Math.round(100 * s.coverage)} %`));
    });
    const held = report.words ? `Held out: ${report.words}.` : `On ${report.num_judged} later origins, which took no part in the choice.`;
    this.scores.replaceChildren(
      make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, ""), make("th", { class: "wide" }, "error (CRPS)"), make("th", { class: "right" }, ""), make("th", { class: "right" }, "in 80 % band"))), make("tbody", {}, rows)),
      make("p", { class: "words" }, `${held} CRPS ${report.unit}; smaller is better. The band should hold 80 %.`),
      ...report.verdict.map((line) => make("p", { class: line.startsWith("Better than") ? "note" : "words" }, line)));
  }

  setRunning(running, state = "running") {
    this.running = Boolean(running);
    this.go.hidden = this.effort.hidden = this.running;
    this.cancelButton.hidden = this.bar.hidden = !this.running;
    this.sheet.classList.toggle("busy", this.running);
    if (this.running) this.fitStatus.textContent = state === "waiting" ? "Waiting for a free worker…" : "Looking at the series…";
  }

  showProgress({ share, said }) {
    if (!this.running) return;
    if (share !== undefined) this.bar.value = share;
    if (said) this.fitStatus.textContent = said;
  }

  setMode(mode) {
    this.modes.set(mode);
    const has = this.shown?.panels.some((p) => p.tests?.length);
    this.hint.textContent = !this.table ? HINTS.none : !this.report ? (this.table.error ? "" : HINTS.past) : mode === "tests" && !has ? HINTS.no_tests : HINTS[mode];
    this.fans.look({ mode });
  }

  // What the visitor does

  async attempt(where, call) {
    this.sheet.classList.add("busy");
    try { where.say(""); return await call(); }
    catch (error) { where.say(error.message); return null; }
    finally { this.sheet.classList.toggle("busy", this.running); }
  }

  async example(name) {
    const shown = await this.attempt(this.complaint, () => this.studio.ask("example", { name }));
    if (shown) this.opened(shown);
  }

  async send(file) {
    this.file.value = "";
    if (!file) return;
    const shown = await this.attempt(this.complaint, () => this.studio.upload(file));
    if (shown) this.opened(shown);
    else this.take({ table: null, report: null, panels: [], first: 0, num_panels: 0, axis: null });
  }

  opened(shown) {
    this.how.open = false;
    this.horizon.value = "";
    this.fitComplaint.say("");
    this.fitStatus.textContent = "";
    this.setRunning(false);
    this.take(shown);
  }

  choose(name) {
    const chip = [...this.features.children].find((c) => c.dataset.column === name);
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    this.read();
  }

  async read() {
    const columns = [...this.features.children].filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.column);
    const taken = [this.time.value, this.series.value];
    const given = { time: this.time.value || null, id: this.series.value || null, columns: columns.filter((c) => !taken.includes(c)), date_format: this.format.value, na_values: this.missing.value };
    const shown = await this.attempt(this.readComplaint, () => this.studio.ask("read", given));
    if (shown) { this.setRunning(false); this.take(shown); }
  }

  async forecast() {
    if (this.running || this.go.disabled) return;
    this.fitComplaint.say("");
    const asked = new URLSearchParams(location.search);
    const given = { ...(this.effort.value ? { budget: Number(this.effort.value) } : {}), ...(this.horizon.value ? { horizon: Number(this.horizon.value) } : {}) };
    for (const name of ["trials", "steps"]) if (asked.get(name) && !this.effort.value) given[name] = Number(asked.get(name));
    this.bar.value = 0;
    this.setRunning(true);
    try { this.showProgress(await this.studio.ask("forecast", given)); }
    catch (error) { this.setRunning(false); this.fitStatus.textContent = ""; this.fitComplaint.say(error.message); }
  }

  async cancel() {
    try { await this.studio.ask("cancel"); } catch (error) { this.fitComplaint.say(error.message); }
  }

  async page(step) {
    const shown = await this.attempt(this.complaint, () => this.studio.ask("look", { first: this.shown.first + step * this.shown.panels.length }));
    if (shown) { this.take(shown); this.sheet.scrollTop = 0; }
  }

  async download() {
    await this.attempt(this.keepComplaint, async () => this.studio.toast(`Saved as ${await this.studio.download("forecast")}.`));
  }

  async copy() {
    await this.attempt(this.keepComplaint, async () => {
      const { code } = await this.studio.ask("python", {});
      this.code.textContent = code;
      this.code.hidden = false;
      try { await navigator.clipboard.writeText(code); this.studio.toast("Copied."); } catch { /* it is on the page to be copied by hand */ }
    });
  }
}

const firstRows = (table) => make("table", {}, make("thead", {}, make("tr", {}, table.names.map((n) => make("th", {}, n)))),
  make("tbody", {}, table.rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell))))));
const count = (v) => v.toLocaleString("en");
const say = (v) => (v === null ? "–" : Number(v.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 }));
