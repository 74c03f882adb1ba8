// The page: its frame, which of its parts is shown, keys, theme, dialogs. What is shown is in the address (lib/route.js).

import { html, render, useEffect, useState } from "./lib/html.js";
import { token } from "./lib/api.js";
import { link, RANGES, read, set, timeOf, useRoute, windowOf } from "./lib/route.js";
import { clock, moment } from "./lib/units.js";
import { Choice, Empty } from "./parts/bits.js";
import { Help, KEYS } from "./parts/help.js";
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
  { key: "map", name: "Map", view: NetworkMap },
  { key: "transfers", name: "Transfers", view: Transfers },
  { key: "labels", name: "Labels", view: Labels, time: true },
  { key: "hosts", name: "Hosts", view: Hosts },
  { key: "alerts", name: "Alerts", view: Alerts },
  { key: "experiments", name: "Experiments", view: Experiments },
  { key: "requests", name: "Requests", view: Requests },
  { key: "classes", name: "Classes", view: Classes },
];

const dark = matchMedia("(prefers-color-scheme: dark)");

/** The theme that is on: the address goes before the system's wish. */
const themeOf = (params) => (params.theme === "dark" || params.theme === "light" ? params.theme : dark.matches ? "dark" : "light");

function paint(params) {
  const root = document.documentElement;
  if (params.theme === "dark" || params.theme === "light") root.dataset.theme = params.theme;
  else delete root.dataset.theme;
}

// Before anything is drawn, so that no page flashes.
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

/** Zoom by a factor around the middle, or move by a part of what is shown. */
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

/** What each key does; KEYS in parts/help.js tells of them. */
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

function Time({ params }) {
  const time = timeOf(params);
  const { from, to } = windowOf(time);
  return html`<div class="time" role="group" aria-label="time">
    <${Choice} label="range of time" small options=${RANGES} value=${time.zoomed ? "" : time.range.key} onChange=${(range) => set({ range: range === "live" ? undefined : range, from: undefined, to: undefined, paused: undefined })} />
    ${time.zoomed
      ? html`<button type="button" class="zoom" title="back to the whole range (0)" onClick=${() => set({ from: undefined, to: undefined })}><span>${moment(from)} to ${to - from < 86400 ? clock(to) : moment(to)}</span> ✕</button>`
      : html`<button type="button" class=${`pause${time.paused ? " on" : ""}`} aria-pressed=${time.paused ? "true" : "false"} title="hold what is shown (p)" onClick=${() => pause(params)}>${time.paused ? `Paused at ${clock(time.paused)}` : "Pause"}</button>`}
  </div>`;
}

function App() {
  const { page: key, params } = useRoute();
  const theme = useTheme(params);
  const [dialog, open] = useState(null);
  const [known, know] = useState(Boolean(token.get()));
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
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>to the content</a>
    <header class="bar">
      <a class="brand" href=${link("overview")}><img src="/ui/icon.svg" alt="" width="22" height="22" />Penstock</a>
      <nav aria-label="pages">${PAGES.map((one) => html`<a key=${one.key} href=${link(one.key)} aria-current=${one.key === key ? "page" : undefined}>${one.name}</a>`)}</nav>
      <div class="tools">
        <button type="button" aria-label=${`theme: ${theme}`} title="light or dark (t)" onClick=${() => flipTheme(params)}>${theme === "dark" ? "Light" : "Dark"}</button>
        <button type="button" class=${known ? "on" : ""} title="token: needed to change anything (k)" onClick=${() => open("token")}>${known ? "Token ✓" : "Read-only"}</button>
        <button type="button" aria-label="help" title="keys and pages (?)" onClick=${() => open("help")}>?</button>
      </div>
    </header>
    <main id="main" tabindex="-1" aria-label=${page?.name ?? "Not found"}>
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
