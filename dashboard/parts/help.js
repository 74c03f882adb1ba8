// Help: keys and meaning of the figures.

import { html } from "../lib/html.js";
import { Dialog } from "./bits.js";

export const KEYS = [
  ["1 … 9", "Overview, Map, Transfers, Labels, Hosts, Alerts, Experiments, Requests, Classes"],
  ["p or Space", "pause, and continue"],
  ["+  -", "zoom in and out in time"],
  ["[  ]", "move back and forth in time"],
  ["0", "back to the whole range"],
  ["a", "absolute times and time zone"],
  ["b", "next dimension: owner, activity, VLAN, site …"],
  ["v", "next view: stacked, lines, panels, table"],
  ["e", "events in plots"],
  ["x", "patterns in addition to colours"],
  ["t", "light or dark"],
  ["k", "token"],
  ["← →", "in a plot: figures of a moment; with Shift ten steps"],
  ["?", "this help"],
];

export function Help({ keys, onClose }) {
  return html`<${Dialog} title="Keys and figures" onClose=${onClose}>
    <dl class="keys">${keys.map(([key, does]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>
    <p>Drag in a plot to zoom, double-click to go back. On the map the wheel or two fingers zoom, dragging moves it, a click on a link shows its history. All choices are in the address: send it to show others what you see.</p>
    <p>Rates are in bits per second (1 Gb/s = 10⁹ b/s), volumes in bytes (1 GB = 10⁹ B). Totals come from interface counters where available, shares from sampled packets; ± is the half-width of the 95 % interval. The 95th percentile is that of the points of the time shown. <b>Unlabelled</b> traffic carries no scitag, <b>untrusted</b> traffic carries one without confirmation; neither counts for an owner.</p>
  <//>`;
}
