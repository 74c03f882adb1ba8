// Alerts by state (pending, firing, acknowledged, resolved), their rules and history, and all other events.

import { call, token, usePoll } from "../lib/api.js";
import { KINDS, useEvents } from "../lib/events.js";
import { html, useMemo, useState } from "../lib/html.js";
import { DIMENSIONS, link, RANGES, set, spanOf, timeOf } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { ago, duration, moment, percent, rate, whole } from "../lib/units.js";
import { askToken, Choice, Command, Dialog, Empty, Loading, Panel, Problem, SEVERITIES, Severity } from "../parts/bits.js";
import { Table } from "../parts/table.js";

const T = "/api/v1/telemetry";

/** Formats a value in the unit of its rule. */
function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  return unit === "bit/s" ? rate(value) : unit === "s" ? duration(value) : percent(value);
}

const EXAMPLE = '[[collector.alert]]\nname = "cms fills the link"\nkind = "rate"\nby = "owner"\nkey = "cms"\nabove = "90G"\nfor = "30s"\nseverity = "critical"';

/** Link to the plot of a rule's figure, with a range that includes the start of the alert. */
function plotOf(alert) {
  const since = alert.since_s ?? Date.now() / 1000;
  const age = Date.now() / 1000 - since;
  const range = (RANGES.find((one) => one.seconds > age + 300) ?? RANGES.at(-1)).key;
  const time = { range: range === "live" ? undefined : range, from: undefined, to: undefined, paused: undefined };
  const clear = Object.fromEntries(DIMENSIONS.map((name) => [name, undefined]));
  if (alert.by === "link") return link("map", { ...clear, ...time, link: alert.key });
  if (alert.by === "exporter" || alert.kind === "silence" || alert.kind === "loss") return link("hosts", { ...clear, ...time, search: alert.key ?? undefined, state: alert.key ? undefined : "problems" });
  if (alert.kind === "unlabelled") return link("labels", { ...clear, ...time });
  if (alert.by && DIMENSIONS.includes(alert.by)) return link("overview", { ...clear, ...time, by: alert.by === "owner" ? undefined : alert.by, view: "lines", ...(alert.kind === "rate" ? { [alert.by]: alert.key } : {}) });
  return link("overview", { ...clear, ...time });
}

export function Alerts({ params }) {
  const paused = Number(params.paused) > 0;
  const { data, error, again } = usePoll(`${T}/alerts`, paused ? 0 : 3);
  const [chosen, choose] = useState(null);
  const alerts = data?.alerts ?? [];
  const active = alerts.filter((one) => one.state === "firing" || one.state === "pending");
  const others = alerts.filter((one) => !active.includes(one));
  const blind = others.filter((one) => one.state === "no_data").length;
  const open = active.filter((one) => one.firing && !one.acknowledged).length;
  const note = data && alerts.length > 0 ? [`${data.firing} firing`, `${data.pending} pending`, data.firing > open ? `${data.firing - open} acknowledged` : ""].filter(Boolean).join(", ") : "";
  const acknowledge = (name) => (token.get() ? choose(name) : askToken());
  return html`
    <${Panel} id="active" wide title="Active alerts" note=${note}>
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && alerts.length === 0 && html`<${Empty} title="There are no rules."><p>Write one into the configuration; docs/telemetry.md lists their kinds:</p><p><${Command}>${EXAMPLE}<//></p><//>`}
      ${alerts.length > 0 && active.length === 0 && html`<${Empty} title="No alert is firing or pending.">${blind === 0 ? `All ${whole(alerts.length)} rules are within their thresholds.` : `${whole(alerts.length - blind)} of ${whole(alerts.length)} rules are within their thresholds, the others have no data.`}<//>`}
      ${active.length > 0 && html`<${Rules} caption="Active alerts" rows=${active} onAcknowledge=${acknowledge} />`}
    <//>
    ${others.length > 0 && html`<${Panel} id="rules" wide title="Other rules" note=${whole(others.length)}><${Rules} caption="Other rules" rows=${others} /><//>`}
    <${EventLists} params=${params} />
    ${chosen !== null && html`<${Acknowledge} alert=${alerts.find((one) => one.name === chosen)} onClose=${() => choose(null)} onDone=${() => { choose(null); again(); }} />`}`;
}

const STATES = {
  firing: { rank: 3, look: "bad", text: "▲ firing" },
  pending: { rank: 2, look: "warn", text: "◆ pending" },
  no_data: { rank: 1, look: "", text: "– no data" },
  inactive: { rank: 0, look: "good", text: "○ inactive" },
};

/** Sort order: firing before pending, then by severity, unacknowledged first. */
const urgency = (row) => (STATES[row.state]?.rank ?? 0) * 100 - (SEVERITIES[row.severity]?.rank ?? 3) * 10 - (row.acknowledged ? 5 : 0);

function StateOf({ row }) {
  const state = STATES[row.state] ?? STATES.no_data;
  const pending = row.pending_since_s;
  return html`<span class=${`state ${state.look}`}>${state.text}</span>${row.acknowledged ? html` <span class="note" title=${`${moment(row.acknowledged.at_s)} ${clean(row.acknowledged.comment, 300)}`}>acknowledged${row.acknowledged.comment ? `: ${clean(row.acknowledged.comment, 40)}` : ""}</span>` : ""}${pending ? html` <span class="note">${duration(Math.max(0, Date.now() / 1000 - pending))} of ${duration(row.for_s)}</span>` : ""}`;
}

function Rules({ caption, rows, onAcknowledge }) {
  const columns = [
    { key: "state", name: "State", down: true, sort: urgency, text: (row) => row.state, cell: (row) => html`<span class="left"><${StateOf} row=${row} /></span>` },
    { key: "severity", name: "Severity", sort: (row) => row.severity, cell: (row) => html`<${Severity} of=${row.severity} />` },
    { key: "name", name: "Alert", sort: (row) => row.name, cell: (row) => html`<a href=${plotOf(row)} title="the plot of its figure"><${Name} text=${row.name} most=${48} /></a>` },
    { key: "of", low: 1, name: "Watches", sort: (row) => `${row.kind} ${row.key ?? ""}`, cell: (row) => html`${clean(row.kind, 20)}${row.key ? html` of ${clean(row.by ?? "", 20)} <${Name} text=${row.key} most=${36} />` : ""}` },
    { key: "value", name: "Now", number: true, sort: (row) => row.value, cell: (row) => shown(row.value, row.unit) },
    { key: "threshold", name: "Condition", number: true, sort: (row) => row.threshold, cell: (row) => `${row.above ? "above" : "below"} ${shown(row.threshold, row.unit)}${row.for_s > 0 ? ` for ${duration(row.for_s)}` : ""}` },
    { key: "clear", low: 2, name: "Clears", number: true, sort: (row) => row.clear, cell: (row) => `${row.above ? "at" : "from"} ${shown(row.clear, row.unit)}` },
    { key: "since", low: 0.5, name: "Since", number: true, sort: (row) => row.pending_since_s ?? row.since_s, cell: (row) => (row.since_s === null ? "–" : html`<span title=${moment(row.pending_since_s ?? row.since_s)}>${ago(row.pending_since_s ?? row.since_s)}</span>`) },
    { key: "times", low: 3, name: "Times fired", number: true, sort: (row) => row.times, cell: (row) => whole(row.times) },
  ];
  if (onAcknowledge) columns.push({ key: "acknowledge", name: "", cell: (row) => (row.firing ? html`<span class="actions"><button type="button" aria-label=${`${row.acknowledged ? "change acknowledgement of" : "acknowledge"} ${clean(row.name, 60)}`} onClick=${() => onAcknowledge(row.name)}>${row.acknowledged ? "Change" : "Acknowledge"}</button></span>` : "") });
  return html`<${Table} caption=${caption} columns=${columns} rows=${rows} keyOf=${(row) => row.name} sort=${{ key: "state", down: true }} />`;
}

/** Acknowledges an alert, or revokes it. */
function Acknowledge({ alert, onClose, onDone }) {
  const [error, fail] = useState(null);
  const [busy, wait] = useState(false);
  const [comment, write] = useState(alert?.acknowledged?.comment ?? "");
  if (!alert?.firing) return html`<${Dialog} title="Alert resolved" onClose=${onClose}><p>This alert is no longer firing.</p><div class="buttons"><button type="button" onClick=${onClose}>Close</button></div><//>`;
  const send = async (options) => {
    wait(true);
    try {
      await call(`${T}/alerts/${encodeURIComponent(alert.name)}/acknowledgement`, options);
      onDone();
    } catch (problem) {
      fail(problem);
      wait(false);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    send({ method: "PUT", body: { comment: comment.trim() } });
  };
  return html`<${Dialog} title=${`Acknowledge ${clean(alert.name, 60)}`} onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>The alert stays active; others see that it is being worked on. The acknowledgement ends when the alert clears.</p>
      <label>Comment <input name="comment" maxlength="200" autocomplete="off" value=${comment} onInput=${(event) => write(event.target.value)} autofocus /></label>
      <div class="buttons">
        <button type="button" onClick=${onClose}>Close</button>
        ${alert.acknowledged && html`<button type="button" disabled=${busy} onClick=${() => send({ method: "DELETE" })}>Withdraw</button>`}
        <button type="submit" class="main" disabled=${busy}>Acknowledge</button>
      </div>
    </form>
    <${Problem} error=${error} />
  <//>`;
}

const GROUPS = [
  { key: "all", name: "All" },
  { key: "alert", name: "Alerts" },
  { key: "failure", name: "Failures", title: "silent exporters, interfaces and links that are down, lost hosts, gaps" },
  { key: "drain", name: "Drains" },
];
const FAILURES = new Set(["exporter_silent", "exporter_restarted", "interface_down", "link", "host_lost", "collector_gap"]);

/** Events of the selected time, newest first. */
function EventLists({ params }) {
  const time = timeOf(params);
  // The live range of ten minutes is too short for a history.
  const span = time.live ? { from: -86400, to: 0 } : spanOf(time);
  const { events, error, loaded } = useEvents(span);
  const group = GROUPS.some((one) => one.key === params.of) ? params.of : "all";
  const rows = useMemo(() => events.filter((one) => group === "all" || (group === "failure" ? FAILURES.has(one.kind) : one.kind.startsWith(group))), [events, group]);
  const columns = [
    { key: "when", name: "Time", down: true, sort: (row) => row.at_s, text: (row) => moment(row.at_s), cell: (row) => html`<span title=${ago(row.at_s)}>${moment(row.at_s)}</span>` },
    { key: "severity", name: "Severity", sort: (row) => row.severity, cell: (row) => html`<${Severity} of=${row.severity} />` },
    { key: "kind", name: "Event", sort: (row) => KINDS[row.kind] ?? row.kind, cell: (row) => KINDS[row.kind] ?? clean(row.kind, 24) },
    { key: "subject", name: "Subject", sort: (row) => row.name ?? row.subject, text: (row) => `${row.name ?? ""} ${row.subject}`, cell: (row) => (row.link ? html`<a href=${link("map", { link: row.link })} title=${`history of link ${clean(row.link, 60)}`}><${Name} text=${row.kind.startsWith("alert") ? row.subject : row.link} most=${40} /></a>` : html`<span title=${row.name ? row.subject : undefined}><${Name} text=${row.name || row.subject || "–"} most=${40} /></span>`) },
    { key: "text", name: "Description", wrap: true, sort: (row) => row.text, cell: (row) => clean(row.text, 200) },
  ];
  const tools = html`<${Choice} small label="which events" options=${GROUPS} value=${group} onChange=${(key) => set({ of: key === "all" ? undefined : key })} />`;
  return html`<${Panel} id="events" wide title="History" note=${time.live ? "the last 24 h" : "of the time chosen"} tools=${tools}>
    <${Problem} error=${error} />
    ${!loaded && !error && html`<${Loading} />`}
    ${loaded && html`<${Table} caption="Events" columns=${columns} rows=${rows} keyOf=${(row) => row.id} sort=${{ key: "when", down: true }} empty="no events in this time" />`}
  <//>`;
}
