// Small components shared by all pages.

import { token } from "../lib/api.js";
import { html, useLayoutEffect, useRef } from "../lib/html.js";
import { filtersOf, link, NAMES, set } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { percent } from "../lib/units.js";

/** A titled part of a page. */
export function Panel({ title, note, tools, children, id, wide }) {
  return html`<section class=${`panel${wide ? " wide" : ""}`} aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2>${note && html`<span class="note">${note}</span>`}<div class="tools">${tools}</div></header>
    ${children}
  </section>`;
}

/** Filters that are on, each with a button that removes it; `names` has the names of keys by dimension. */
export function Filters({ params, names = {} }) {
  const filters = filtersOf(params);
  const keys = Object.keys(filters);
  if (keys.length === 0) return null;
  return html`<p class="filters"><span>Filter</span> ${keys.map((by) => html`<button type="button" key=${by} title="remove this filter" onClick=${() => set({ [by]: undefined })}>${(names[by] ?? "").startsWith(NAMES[by]) ? "" : `${NAMES[by]} `}<${Name} text=${names[by] ?? filters[by]} most=${40} /> <span aria-hidden="true">✕</span></button>`)}</p>`;
}

/** Empty state, with its remedy. */
export function Empty({ title, children }) {
  return html`<div class="empty" role="status"><strong>${title}</strong><div>${children}</div></div>`;
}

export const Command = ({ children }) => html`<code class="command">${children}</code>`;

/** Error with its remedy. Former figures may stay beside it. */
export function Problem({ error, onToken }) {
  if (!error) return null;
  if (isNoCollector(error)) return html`<${NoCollector} />`;
  if (error.status === 401 || error.status === 403) {
    return html`<div class="problem" role="alert">
      <strong>${token.get() ? "The token was refused." : "A token is needed."}</strong>
      <span>${clean(error.message, 300)}</span>
      <button type="button" onClick=${onToken ?? askToken}>Enter the token</button>
    </div>`;
  }
  const what = error.title ?? (error.status === 404 ? "This host has no such data." : error.status === 0 ? "No connection." : `The host answered ${error.status}.`);
  return html`<div class="problem" role="alert"><strong>${what}</strong> <span>${clean(error.message, 300)}</span></div>`;
}

/** True for the answer of a host without the role that collects telemetry. */
export const isNoCollector = (error) => error?.status === 404 && /^no such path: \/api\/v1\/(telemetry|topology)\b/.test(error.message);

/** Notice that this host collects no telemetry, with its remedy. */
const NoCollector = () => html`<${Empty} title="This host is not a collector.">
  <p><a href=${link("transfers")}>Transfers</a> and <a href=${link("requests")}>Requests</a> work without one. For traffic open the dashboard of the host that is,
  or add this role to the others in the configuration (docs/telemetry.md):</p>
  <p><${Command}>roles = [..., "collector"]<//></p>
<//>`;

/** Notice that this host is no controller, with its remedy. */
export const NoController = () => html`<${Empty} title="This host is not a controller.">
  <p>Open the dashboard of the host that is, or make this one a controller in its configuration (docs/controller.md):</p>
  <p><${Command}>[controller]\ntopology = "network.toml"<//></p>
<//>`;

export const askToken = () => dispatchEvent(new Event("penstock:ask-token"));

export const Loading = () => html`<p class="waiting" role="status">Loading…</p>`;

/** Exclusive choice. Each option is a button, so that Tab and Enter work. */
export function Choice({ label, options, value, onChange, small }) {
  return html`<div class=${`choice${small ? " small" : ""}`} role="group" aria-label=${label}>
    ${options.map(
      (one) => html`<button type="button" key=${one.key} aria-pressed=${one.key === value ? "true" : "false"} disabled=${one.disabled} title=${one.title} onClick=${() => onChange(one.key)}>${one.name}</button>`,
    )}
  </div>`;
}

/** Severities, the most urgent first, with their styles. */
export const SEVERITIES = { critical: { rank: 0, look: "bad", mark: "▲" }, warning: { rank: 1, look: "warn", mark: "◆" }, info: { rank: 2, look: "", mark: "○" } };

export const Severity = ({ of }) => html`<span class=${`state ${SEVERITIES[of]?.look ?? ""}`}><span aria-hidden="true">${SEVERITIES[of]?.mark ?? "○"}</span> ${clean(of, 12)}</span>`;

/** Share as a bar; its text has the same value. */
export function Meter({ share, label, kind = "" }) {
  const width = Math.max(0, Math.min(1, share || 0));
  return html`<span class=${`meter ${kind}`} role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(width * 100)} aria-valuetext=${percent(share)}>
    <span style=${{ width: `${width * 100}%` }}></span>
  </span>`;
}

/** A square of colour and pattern beside a name. */
export function Swatch({ look }) {
  const colour = typeof look.colour === "number" ? `--c${look.colour}` : `--c-${look.colour}`;
  return html`<span class=${`swatch ${look.pattern}`} style=${{ "--swatch": `var(${colour})` }} aria-hidden="true"></span>`;
}

export function Tile({ title, value, note, kind = "", children, href }) {
  const inside = html`<span class="title">${title}</span><span class="value">${value}</span>${children}<span class="note">${note}</span>`;
  return href ? html`<a class=${`tile ${kind}`} href=${href}>${inside}</a>` : html`<div class=${`tile ${kind}`}>${inside}</div>`;
}

/** Modal dialog of the browser: focus stays in it, Escape closes it. */
export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  // Removing it closes it: the event of close() would arrive later, when another may be open.
  useLayoutEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose} onClick=${(event) => event.target === box.current && onClose()}>
    <div class="inside"><header><h2>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>${children}</div>
  </dialog>`;
}
