// Untrusted names of users, hosts and files. They may be ten kilobytes long, run from right to left or contain
// invisible characters. They are shown as text only, truncated, with invisible characters made visible.

import { html } from "./html.js";

/** Longest name that is shown whole, in characters. */
const SHOWN = 64;
/** Longest name that fits every cell, in characters: longer ones have a tooltip. */
const WHOLE = 16;
/** Longest text of a tooltip, in characters. */
const TOOLTIP_CHARS_MAX = 512;

// Controls, marks of direction, zero widths, joiners, tags and unpaired surrogates.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

/** Truncates `text` to `most` characters and replaces each invisible one by a mark. */
export function clean(text, most = SHOWN) {
  const whole = String(text ?? "");
  const points = Array.from(whole.slice(0, 2 * most + 2).replace(UNSEEN, "\ufffd"));
  if (points.length <= most && whole.length <= 2 * most + 2) return points.join("");
  return `${points.slice(0, most - 1).join("")}…`;
}

/** Name in a cell: isolated direction, truncated at the end, in full (up to a limit) in the tooltip. */
export function Name({ text, most = SHOWN }) {
  const shown = clean(text, most);
  const more = clean(text, TOOLTIP_CHARS_MAX);
  return html`<bdi class="name" title=${more === shown && more.length <= WHOLE ? undefined : more}>${shown === "" ? "(no name)" : shown}</bdi>`;
}

/** Path in a cell, truncated at the start: the end distinguishes it. */
export function Path({ text, most = SHOWN }) {
  const full = clean(text, TOOLTIP_CHARS_MAX);
  const shown = full.length > most ? `…${full.slice(full.length - most + 1)}` : full;
  return html`<bdi class="name path" title=${full === shown ? undefined : full}>${shown === "" ? "(no name)" : shown}</bdi>`;
}
