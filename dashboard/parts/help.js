// Keys and what the figures mean.

import { html } from "../lib/html.js";
import { Dialog } from "./bits.js";

export const KEYS = [
  ["1 … 9", "Overview, Map, Transfers, Labels, Hosts, Alerts, Experiments, Requests, Classes"],
  ["p or Space", "hold what is shown, and go on"],
  ["+  -", "zoom in and out"],
  ["[  ]", "move back and forth in time"],
  ["0", "back to the whole range"],
  ["b", "next dimension: owner, activity, VLAN, site …"],
  ["v", "next view: stacked, lines, panels, table"],
  ["x", "patterns beside colours"],
  ["t", "light or dark"],
  ["k", "token"],
  ["← →", "in a plot: figures of a moment; with Shift ten steps"],
  ["?", "this help"],
];

export function Help({ keys, onClose }) {
  return html`<${Dialog} title="Keys and figures" onClose=${onClose}>
    <dl class="keys">${keys.map(([key, does]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>
    <p>Drag in a plot to zoom, double-click to go back. Everything that is chosen is in the address: send it to show another what you see.</p>
    <p>Rates are in bits per second (1 Gb/s = 10⁹ b/s), volumes in bytes (1 GB = 10⁹ B). Totals come from counters of interfaces where there are any, shares from sampled packets; ± is the half-width of the 95 % interval. <b>Unlabelled</b> traffic carries no scitag, <b>untrusted</b> traffic carries one that nothing confirms; neither is counted to an owner.</p>
  <//>`;
}
