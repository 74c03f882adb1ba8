// Frame of the dashboard: selection of the page, keyboard, theme, dialogs. The address holds this state (lib/route.js).

import { html, render, useEffect, useState } from "./lib/html.js";
import { token } from "./lib/api.js";
import { useFreshness } from "./lib/freshness.js";
import { link, read, set, timeOf, useRoute, windowOf } from "./lib/route.js";
import { clock, duration } from "./lib/units.js";
import { Empty } from "./parts/bits.js";
import { Help, KEYS } from "./parts/help.js";
import { Time } from "./parts/time.js";
import { TokenDialog } from "./parts/token.js";
import { Alerts } from "./pages/alerts.js";
import { Classes } from "./pages/classes.js";
import { Experiments } from "./pages/experiments.js";
import { Hosts } from "./pages/hosts.js";
import { Labels } from "./pages/labels.js";
import { NetworkMap } from "./pages/map.js";
import { Overview } from "./pages/overview.js";
import { Requests } from "./pages/requests.js";
import { Transfers } from "./pages/transfers.js";

const PAGES = [
  { key: "overview", name: "Overview", view: Overview, time: true },
  { key: "map", name: "Map", view: NetworkMap, time: true },
  { key: "transfers", name: "Transfers", view: Transfers },
  { key: "labels", name: "Labels", view: Labels, time: true },
  { key: "hosts", name: "Hosts", view: Hosts },
  { key: "alerts", name: "Alerts", view: Alerts, time: true },
  { key: "experiments", name: "Experiments", view: Experiments },
  { key: "requests", name: "Requests", view: Requests },
  { key: "classes", name: "Classes", view: Classes },
];

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Current theme: the address overrides the system's preference. */
const themeOf = (params) => (params.theme === "dark" || params.theme === "light" ? params.theme : dark.matches ? "dark" : "light");

function paint(params) {
  const root = document.documentElement;
  if (params.theme === "dark" || params.theme === "light") root.dataset.theme = params.theme;
  else delete root.dataset.theme;
}

// Before the first rendering, so that the page does not flash in the other theme.
paint(read().params);

function useTheme(params) {
  const [, again] = useState(0);
  useEffect(() => {
    const changed = () => again((old) => old + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  paint(params);
  return themeOf(params);
}

/** Zooms by a factor around the middle, or moves by a fraction of the visible range. */
function reframe(params, { factor = 1, move = 0 }) {
  const time = timeOf(params);
  const { from, to } = windowOf(time);
  const half = Math.max(5, ((to - from) / 2) * factor);
  const middle = (from + to) / 2 + move * (to - from);
  const end = Math.min(Math.floor(Date.now() / 1000), Math.round(middle + half));
  set({ from: Math.round(end - 2 * half), to: end });
}

const pause = (params) => {
  const time = timeOf(params);
  if (time.zoomed) return;
  set({ paused: time.paused ? undefined : Math.floor(Date.now() / 1000) });
};

const flipTheme = (params) => set({ theme: themeOf(params) === "dark" ? "light" : "dark" });

/** Action of each key; KEYS in parts/help.js documents them. */
function keys(open) {
  const actions = {
    "?": () => open("help"),
    k: () => open("token"),
    t: (params) => flipTheme(params),
    p: (params) => pause(params),
    " ": (params) => pause(params),
    "+": (params) => reframe(params, { factor: 0.5 }),
    "=": (params) => reframe(params, { factor: 0.5 }),
    "-": (params) => reframe(params, { factor: 2 }),
    "[": (params) => reframe(params, { move: -0.5 }),
    "]": (params) => reframe(params, { move: 0.5 }),
    0: () => set({ from: undefined, to: undefined }),
    v: () => dispatchEvent(new Event("penstock:next-view")),
    b: () => dispatchEvent(new Event("penstock:next-dimension")),
    a: () => document.querySelector(".time [aria-haspopup=dialog]")?.click(),
    e: (params) => set({ events: params.events === "off" ? undefined : "off" }),
    x: (params) => set({ patterns: params.patterns ? undefined : 1 }),
  };
  PAGES.forEach((page, at) => {
    actions[at + 1] = () => (location.hash = link(page.key));
  });
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const on = event.target;
    if (on.closest?.("input, textarea, select, dialog")) return;
    // Space presses a button that has the focus.
    if (event.key === " " && on.closest?.("button, a, [role=region]")) return;
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
    if (!action) return;
    event.preventDefault();
    action(read().params);
  };
}

const BADGES = {
  current: { look: "good", text: (state) => `Data ${duration(state.age)} old` },
  late: { look: "warn", text: (state) => `Data ${duration(state.age)} old` },
  hung: { look: "bad", text: (state) => `No answer for ${duration(state.silent)}` },
  quiet: { look: "warn", text: (state) => `No telemetry for ${duration(state.quiet)}` },
  empty: { look: "warn", text: () => "No telemetry yet" },
  starting: { look: "", text: () => "Connecting" },
};

/** Indicator of the age of the data, on each page. */
function Age({ state }) {
  const badge = BADGES[state.kind];
  if (!badge) return null;
  return html`<span class=${`age ${badge.look}`} title="age of the newest second of telemetry"><span class="dot" aria-hidden="true"></span>${badge.text(state)}</span>`;
}

/** Banner for a collector that does not answer, or for late data. */
function Announcement({ state }) {
  if (state.kind === "hung") return html`<p class="problem wide" role="alert"><strong>The collector does not answer.</strong> <span>${state.since ? `Last answer at ${clock(state.since)}; what is shown is from then.` : "There was no answer since this page was opened."} Check that penstock serve is running on its host, and the path to it.</span></p>`;
  if (state.kind === "late" && state.announced) return html`<p class="problem wide" role="alert"><strong>The collector lags.</strong> <span>Its newest second is ${duration(state.age)} old: the host is overloaded, or the service was stopped.</span></p>`;
  if (state.kind === "quiet") return html`<p class="problem wide" role="alert"><strong>No exporter sends.</strong> <span>The last datagram came at ${clock(state.since)}; figures since then are unknown, not zero. Check the exporters and the path to the collector's sockets.</span></p>`;
  return null;
}

function App() {
  const { page: key, params } = useRoute();
  const theme = useTheme(params);
  const [dialog, open] = useState(null);
  const [known, know] = useState(Boolean(token.get()));
  const age = useFreshness();
  const page = PAGES.find((one) => one.key === key);

  useEffect(() => {
    const pressed = keys(open);
    const ask = () => open("token");
    const changed = () => know(Boolean(token.get()));
    addEventListener("keydown", pressed);
    addEventListener("penstock:ask-token", ask);
    addEventListener("penstock:token", changed);
    return () => {
      removeEventListener("keydown", pressed);
      removeEventListener("penstock:ask-token", ask);
      removeEventListener("penstock:token", changed);
    };
  }, []);
  useEffect(() => {
    document.title = `${page?.name ?? "Not found"} · Penstock`;
  }, [page]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
    <header class="bar">
      <a class="brand" href=${link("overview")}><img src="/ui/icon.svg" alt="" width="22" height="22" />Penstock</a>
      <nav aria-label="pages">${PAGES.map((one) => html`<a key=${one.key} href=${link(one.key)} aria-current=${one.key === key ? "page" : undefined}>${one.name}</a>`)}</nav>
      <div class="tools">
        <${Age} state=${age} />
        <button type="button" title="light or dark (t)" onClick=${() => flipTheme(params)}>${theme === "dark" ? "Light" : "Dark"}</button>
        <button type="button" class=${known ? "on" : ""} title="token: needed to change anything (k)" onClick=${() => open("token")}>${known ? "Token ✓" : "Read-only"}</button>
        <button type="button" aria-label="help" title="keys and pages (?)" onClick=${() => open("help")}>?</button>
      </div>
    </header>
    <main id="main" tabindex="-1" aria-label=${page?.name ?? "Not found"}>
      <h1 class="unseen">${page?.name ?? "Not found"}</h1>
      <${Announcement} state=${age} />
      ${page?.time && html`<${Time} params=${params} />`}
      ${page ? html`<${page.view} key=${key} params=${params} theme=${theme} />` : html`<${Empty} title="There is no such page."><a href=${link("overview")}>Go to the overview.</a><//>`}
    </main>
    ${dialog === "help" && html`<${Help} keys=${KEYS} onClose=${() => open(null)} />`}
    ${dialog === "token" && html`<${TokenDialog} onClose=${() => open(null)} />`}
  `;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
