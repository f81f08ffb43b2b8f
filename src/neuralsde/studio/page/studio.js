// The shell of the page: tabs, theme, the line to the studio. Each tab is a module of its own in tabs/NAME.js.
import { Link } from "./link.js";
import { make } from "./parts.js";

const tabsNode = document.getElementById("tabs"), panels = document.getElementById("panels");
const linkState = document.getElementById("link-state"), toasts = document.getElementById("toasts");
const tabs = new Map(); // by name: { button, panel, module }
let current = null;

function toast(text, kind = "plain") {
  const node = make("div", { class: `toast ${kind}` }, text);
  toasts.append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 8000 : 3500);
}

const link = new Link({
  onState: (text) => { linkState.textContent = text; linkState.classList.toggle("on", Boolean(text)); },
  onEvent: (message) => tabs.get(message.tab)?.view?.event?.(message),
  onHello: async (hello) => {
    if (!tabs.size) {
      hello.tabs.forEach(add);
      const wanted = location.hash.slice(1);
      await show(tabs.has(wanted) ? wanted : hello.tabs[0]);
    } else {
      for (const tab of tabs.values()) if (tab.view) await restore(tab); // after a lost connection
    }
  },
});

/** What a tab gets: a line of its own to the server, and the means of the page. */
function toolsFor(name) {
  return {
    name,
    ask: (action, given) => link.ask(name, action, given),
    upload: (file) => link.upload(name, file),
    download: (what) => link.download(name, what),
    toast,
  };
}

function add(name) {
  const title = name[0].toUpperCase() + name.slice(1);
  const button = make("button", {
    class: "tab", type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, "aria-selected": "false",
    tabIndex: -1, onclick: () => show(name), onkeydown: walk,
  }, title);
  const panel = make("section", { class: "panel", role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true });
  tabsNode.append(button);
  panels.append(panel);
  const tab = { name, button, panel, view: null };
  tab.loading = import(`./tabs/${name}.js`).then((module) => { button.textContent = module.title; return module; });
  tabs.set(name, tab);
}

async function restore(tab) {
  try { tab.view.state?.(await link.ask(tab.name, "state")); } catch (error) { toast(error.message, "bad"); }
}

async function show(name) {
  if (current === name) return;
  const before = tabs.get(current), tab = tabs.get(name);
  before?.view?.hide?.();
  current = name;
  for (const each of tabs.values()) {
    const on = each === tab;
    each.panel.hidden = !on;
    each.button.setAttribute("aria-selected", String(on));
    each.button.tabIndex = on ? 0 : -1;
  }
  history.replaceState(null, "", `#${name}`);
  const module = await tab.loading;
  if (!tab.view) {
    tab.view = module.mount(tab.panel, toolsFor(name));
    tab.view.show?.();
    await restore(tab);
  } else tab.view.show?.();
}

function walk(event) {
  const names = [...tabs.keys()], at = names.indexOf(current);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = names[(at + step + names.length) % names.length];
  show(next);
  tabs.get(next).button.focus();
}

function switchTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("nsde-theme", root.dataset.theme); } catch { /* private windows may refuse */ }
  for (const tab of tabs.values()) tab.view?.theme?.();
}

document.getElementById("theme").addEventListener("click", switchTheme);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (event.key === "t" || event.key === "T") switchTheme();
  else if (tabs.get(current)?.view?.key?.(event)) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  const view = tabs.get(current)?.view;
  if (document.hidden) view?.hide?.(); else view?.show?.();
});
window.nsdeStudio = { tabs, link };
