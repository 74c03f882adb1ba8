// Time selector: ranges that end now, pause, absolute times, and the time zone.

import { html, useState } from "../lib/html.js";
import { RANGES, set, timeOf, windowOf } from "../lib/route.js";
import { clock, moment, parseMoment, zoneName } from "../lib/units.js";
import { Choice, Dialog } from "./bits.js";

/** Time zones of the browser; some browsers do not list UTC. */
const ZONES = ["UTC", ...(Intl.supportedValuesOf?.("timeZone") ?? []).filter((name) => name !== "UTC")];
const LOCAL = Intl.DateTimeFormat().resolvedOptions().timeZone;
const UNITS = { s: 1, m: 60, h: 3600, d: 86400, w: 7 * 86400 };

/** Parses "2026-11-23 14:00", "now" or "now-6h" to seconds since 1970; null for other texts. */
export function momentOf(text, now = Date.now() / 1000) {
  const relative = /^\s*now(?:\s*-\s*(\d+)\s*([smhdw]))?\s*$/i.exec(text);
  if (!relative) return parseMoment(text);
  return Math.floor(now - (relative[1] ? Number(relative[1]) * UNITS[relative[2].toLowerCase()] : 0));
}

const pause = (params) => {
  const time = timeOf(params);
  if (time.zoomed) return;
  set({ paused: time.paused ? undefined : Math.floor(Date.now() / 1000) });
};

export function Time({ params }) {
  const [picking, pick] = useState(false);
  const time = timeOf(params);
  const { from, to } = windowOf(time);
  return html`<div class="time" role="group" aria-label="time">
    <${Choice} label="time range" small options=${RANGES} value=${time.zoomed ? "" : time.range.key} onChange=${(range) => set({ range: range === "live" ? undefined : range, from: undefined, to: undefined, paused: undefined })} />
    <button type="button" aria-haspopup="dialog" title="absolute times and time zone (a)" onClick=${() => pick(true)}>Absolute…</button>
    ${time.zoomed
      ? html`<button type="button" class="zoom" title="back to the whole range (0)" onClick=${() => set({ from: undefined, to: undefined })}><span>${moment(from)} to ${to - from < 86400 ? clock(to) : moment(to)}</span> ✕</button>`
      : html`<button type="button" class=${`pause${time.paused ? " on" : ""}`} aria-pressed=${time.paused ? "true" : "false"} title="pause (p)" onClick=${() => pause(params)}>${time.paused ? `Paused at ${clock(time.paused)}` : "Pause"}</button>`}
    <button type="button" class="plain zone" title="time zone of all times" onClick=${() => pick(true)}>${zoneName()}</button>
    ${picking && html`<${Picker} params=${params} from=${from} to=${to} onClose=${() => pick(false)} />`}
  </div>`;
}

function Picker({ params, from, to, onClose }) {
  const [texts, type] = useState({ from: moment(from), to: moment(to) });
  const [error, fail] = useState(null);
  const zone = (name) => {
    set({ tz: name === LOCAL ? undefined : name });
    // The same instants in the new zone.
    type({ from: moment(from), to: moment(to) });
  };
  const submit = (event) => {
    event.preventDefault();
    const [begin, end] = [momentOf(texts.from), momentOf(texts.to)];
    if (begin === null || end === null) return fail(`${begin === null ? "From" : "To"} is no time: write 2026-11-23 14:00, now or now-6h.`);
    if (begin >= end) return fail("From is not before To.");
    set({ from: begin, to: end, paused: undefined }, { replace: false });
    return onClose();
  };
  const field = (name, label) => html`<label>${label} <input name=${name} autocomplete="off" spellcheck=${false} maxlength="30" value=${texts[name]} onInput=${(event) => type({ ...texts, [name]: event.target.value })} autofocus=${name === "from"} /></label>`;
  return html`<${Dialog} title="Time" onClose=${onClose}>
    <form onSubmit=${submit}>
      ${field("from", "From")}
      ${field("to", "To")}
      <label>Time zone <select name="tz" value=${params.tz ?? LOCAL} onChange=${(event) => zone(event.target.value)}>
        ${[LOCAL, ...ZONES.filter((name) => name !== LOCAL)].map((name) => html`<option key=${name} value=${name}>${name === LOCAL ? `${name} (of this browser)` : name}</option>`)}
      </select></label>
      <p class="note">YYYY-MM-DD HH:MM or HH:MM:SS, now, or now-6h (s, m, h, d, w). Seconds are kept for 10 minutes, minutes for 7 days, hours for a year.</p>
      ${error && html`<p class="problem" role="alert">${error}</p>`}
      <div class="buttons"><button type="button" onClick=${onClose}>Close</button><button type="submit" class="main">Apply</button></div>
    </form>
  <//>`;
}
