// Names that others chose: users, hosts, files. They may be ten kilobytes long, run from right to left or hold
// characters that no one sees. They are shown as text alone, cut, and with the unseen made visible.

import { html } from "./html.js";

/** Longest name that is shown whole, in characters. */
const SHOWN = 64;
/** Longest that has room in every cell: longer names have a tooltip. */
const WHOLE = 16;
/** Longest text of a tooltip. */
const TOLD = 512;

// Controls, marks of direction, zero widths, joiners, tags and unpaired surrogates.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

/** `text` in at most `most` characters, with a mark for each that cannot be seen. */
export function clean(text, most = SHOWN) {
  const whole = String(text ?? "");
  const points = Array.from(whole.slice(0, 2 * most + 2).replace(UNSEEN, "\ufffd"));
  if (points.length <= most && whole.length <= 2 * most + 2) return points.join("");
  return `${points.slice(0, most - 1).join("")}…`;
}

/** A name in a cell: its own direction, cut at its end, whole (up to a limit) in its tooltip. */
export function Name({ text, most = SHOWN }) {
  const shown = clean(text, most);
  const more = clean(text, TOLD);
  return html`<bdi class="name" title=${more === shown && more.length <= WHOLE ? undefined : more}>${shown === "" ? "(no name)" : shown}</bdi>`;
}

/** A path, of which the end says most. */
export function Path({ text, most = SHOWN }) {
  const told = clean(text, TOLD);
  const shown = told.length > most ? `…${told.slice(told.length - most + 1)}` : told;
  return html`<bdi class="name path" title=${told === shown ? undefined : told}>${shown === "" ? "(no name)" : shown}</bdi>`;
}
