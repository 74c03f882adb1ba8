// Transfers of this agent: progress, rate and bottleneck; of one, the decisions about its streams. With the token they can
// be changed and cancelled.

import { call, token, usePoll } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/html.js";
import { set } from "../lib/route.js";
import { clean, Name, Path } from "../lib/text.js";
import { ago, bytes, duration, moment, parseRate, percent, rate, whole } from "../lib/units.js";
import { Command, Dialog, Empty, Loading, Meter, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";
import { TuningPlot, TuningTable } from "../parts/tuning.js";

const PATH = "/api/v1/transfers";
/** Port of transfers that an address leaves out. */
const MOVER_PORT = "8620";

const runs = (one) => one.state === "running" || one.state === "waiting";
const share = (one) => (one.announced_bytes > 0 ? Math.min(1, arrived(one) / one.announced_bytes) : 0);
/** Bytes at the destination, of unfinished files too. */
const arrived = (one) => Math.max(one.bytes, one.moved_bytes + one.resumed_bytes);
const mean = (one) => (one.seconds > 0 ? (one.moved_bytes * 8) / one.seconds : 0);

/** Remaining seconds at the current rate; undefined while no data moves. */
function remaining(one) {
  const left = one.announced_bytes - arrived(one);
  return one.bits_per_second > 0 && left > 0 ? (left * 8) / one.bits_per_second : left <= 0 ? 0 : null;
}

export function Transfers({ params }) {
  const paused = Number(params.paused) > 0;
  const { data, error, again } = usePoll(PATH, paused ? 0 : 1);
  const [known, know] = useState(Boolean(token.get()));
  const [chosen, choose] = useState(null);
  useEffect(() => {
    const changed = () => know(Boolean(token.get()));
    addEventListener("penstock:token", changed);
    return () => removeEventListener("penstock:token", changed);
  }, []);

  const all = data?.transfers ?? [];
  const running = all.filter(runs);
  const ended = all.filter((one) => !runs(one)).sort((a, b) => b.id - a.id);
  const sum = running.reduce((total, one) => total + one.bits_per_second, 0);
  return html`
    <${Panel} id="running" wide title="Running" note=${data ? `${running.length} transfer${running.length === 1 ? "" : "s"}, ${rate(sum)}` : ""} tools=${!known && data && html`<span class="note">read-only: press k for the token</span>`}>
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && running.length === 0 && html`<${Idle} />`}
      ${running.length > 0 && html`<${Running} rows=${running} known=${known} onChange=${(id) => choose({ id, what: "change" })} onCancel=${(id) => choose({ id, what: "cancel" })} />`}
    <//>
    ${params.transfer && html`<${Tuning} key=${params.transfer} id=${params.transfer} transfer=${all.find((one) => String(one.id) === params.transfer)} running=${!paused && running.some((one) => String(one.id) === params.transfer)} />`}
    ${ended.length > 0 && html`<${Panel} id="ended" wide title="Recently ended"><${Ended} rows=${ended} /><//>`}
    ${chosen && html`<${Steer} transfer=${all.find((one) => one.id === chosen.id)} what=${chosen.what} onClose=${() => choose(null)} onDone=${() => { choose(null); again(); }} />`}
  `;
}

/** Empty state: how to copy something to this host, where it is an agent. */
function Idle() {
  const agent = usePoll("/api/v1/agent", 0).data;
  if (agent?.listen.length === 0) return html`<${Empty} title="This host is not an agent: it moves no files.">Orders of a controller run on its agents: open the dashboard of one.<//>`;
  const port = agent?.listen[0].match(/:(\d+)$/)?.[1] ?? MOVER_PORT;
  const name = agent?.exports.find((one) => one.mode !== "read")?.name ?? "/";
  const target = `${location.hostname || "HOST"}${port === MOVER_PORT ? "" : `:${port}`}${clean(name, 60)}${name.endsWith("/") ? "" : "/"}`;
  return html`<${Empty} title="No transfer is running."><p>Copy something to this host:</p><p><${Command}>penstock cp -r DATA penstock://${target}<//></p><//>`;
}

const direction = (one) => (one.direction === "send" ? "→" : "←");

const files = [
  { key: "id", name: "Id", number: true, sort: (row) => row.id, cell: (row) => html`<button type="button" class="link" title="decisions about its streams" aria-label=${`streams of transfer ${row.id}`} onClick=${() => set({ transfer: String(row.id) })}>${row.id}</button>` },
  { key: "path", name: "Path", sort: (row) => row.path, cell: (row) => html`<${Path} text=${row.path} most=${34} />` },
];
const peers = [
  { key: "peer", low: 0.4, name: "Peer", sort: (row) => row.peer, cell: (row) => html`<span title=${row.direction === "send" ? "sends to" : "receives from"}>${direction(row)}</span> <${Name} text=${row.peer} most=${42} />` },
  { key: "caller", low: 5, name: "Started by", sort: (row) => row.caller, cell: (row) => html`<${Name} text=${row.caller} most=${20} />` },
];
/** Column of the scitag, if any transfer has one. */
const tagOf = (rows) => (rows.some((row) => row.scitag) ? [tag] : []);
const owned = (row) => (row.owner ? `${row.owner}/${row.activity}` : String(row.scitag ?? ""));
const tag = { key: "scitag", low: 0.6, name: "Owner/activity", sort: owned, cell: (row) => (row.scitag ? html`<span title=${`scitag ${row.scitag}`}><${Name} text=${owned(row)} most=${28} /></span>` : html`<span class="note">–</span>`) };

function Running({ rows, known, onChange, onCancel }) {
  const columns = [
    ...files,
    { key: "progress", name: "Progress", sort: share, cell: (row) => html`<span title=${`${bytes(arrived(row))} of ${bytes(row.announced_bytes)}, ${whole(row.files)} files done${row.failed ? `, ${row.failed} failed` : ""}`}><${Meter} share=${share(row)} label=${`progress of transfer ${row.id}`} />${percent(share(row))}</span>` },
    { key: "bytes", low: 3, name: "Size", number: true, sort: (row) => row.announced_bytes, cell: (row) => bytes(row.announced_bytes) },
    { key: "rate", name: "Rate", number: true, sort: (row) => row.bits_per_second, cell: (row) => html`<span title=${row.rate_bps ? `limited to ${rate(row.rate_bps)}` : "no limit"}>${rate(row.bits_per_second)}${row.rate_bps ? " ⊤" : ""}</span>` },
    { key: "mean", low: 4, name: "Mean rate", number: true, sort: mean, cell: (row) => rate(mean(row)) },
    { key: "left", name: "Time left", number: true, sort: remaining, cell: (row) => duration(remaining(row)) },
    { key: "bound", name: "Limited by", sort: (row) => row.bound_by, cell: (row) => (row.state === "waiting" ? html`<span title=${clean(errorOf(row), 300)}>${errorOf(row) ? `waiting: ${clean(errorOf(row), 60)}` : "queued"}</span>` : clean(row.bound_by, 40)) },
    { key: "streams", low: 6, name: "Streams", number: true, sort: (row) => row.streams, cell: (row) => row.streams },
    ...peers,
    ...tagOf(rows),
  ];
  if (known) {
    columns.push({
      key: "steer",
      name: "",
      cell: (row) => html`<span class="actions"><button type="button" aria-label=${`change transfer ${row.id}`} onClick=${() => onChange(row.id)}>Change</button><button type="button" class="danger" aria-label=${`cancel transfer ${row.id}`} onClick=${() => onCancel(row.id)}>Cancel</button></span>`,
    });
  }
  return html`<${Table} caption="Running transfers" columns=${columns} rows=${rows} keyOf=${(row) => row.id} />`;
}

/** Reason of a failure or wait, where the agent carries the copy out itself. */
const errorOf = (one) => one.submitted?.error ?? "";
/** The same as a column, if any transfer has one. */
const problemOf = (rows) => (rows.some(errorOf) ? [{ key: "problem", name: "Problem", wrap: true, sort: errorOf, text: errorOf, cell: (row) => clean(errorOf(row), 120) }] : []);

const STATES = { done: "good", partial: "warn", failed: "bad", cancelled: "warn" };

function Ended({ rows }) {
  const columns = [
    ...files,
    { key: "state", name: "Outcome", sort: (row) => row.state, cell: (row) => html`<span class=${`state ${STATES[row.state] ?? ""}`}>${clean(row.state, 12)}</span>${row.failed ? html` <span class="state bad">${whole(row.failed)} files failed</span>` : ""}` },
    { key: "files", low: 1, name: "Files", number: true, sort: (row) => row.files, cell: (row) => whole(row.files) },
    { key: "bytes", name: "Volume", number: true, sort: arrived, cell: (row) => (row.state === "done" ? bytes(row.bytes) : html`<span title="at the destination, with the parts of unfinished files">${bytes(arrived(row))}${row.announced_bytes > 0 ? ` of ${bytes(row.announced_bytes)}` : ""}</span>`) },
    { key: "mean", name: "Mean rate", number: true, sort: (row) => row.bits_per_second, cell: (row) => rate(row.bits_per_second) },
    { key: "bound", low: 0.5, name: "Limited by", sort: (row) => row.bound_by, cell: (row) => clean(row.bound_by, 40) },
    { key: "took", low: 2, name: "Duration", number: true, sort: (row) => row.seconds, cell: (row) => duration(row.seconds) },
    { key: "end", name: "Ended", number: true, sort: (row) => row.started_unix_seconds + row.seconds, cell: (row) => html`<span title=${moment(row.started_unix_seconds + row.seconds)}>${ago(row.started_unix_seconds + row.seconds)}</span>` },
    ...peers,
    ...tagOf(rows),
    ...problemOf(rows),
  ];
  return html`<${Table} caption="Ended transfers" columns=${columns} rows=${rows} keyOf=${(row) => row.id} />`;
}

const nextSeconds = (one) => `Next ${one.seconds} s: ${rate(one.p50_bps)}, 80 % between ${rate(one.p10_bps)} and ${rate(one.p90_bps)}`;

/** Rate and streams of one transfer over time, and why it has as many. */
function Tuning({ id, transfer, running }) {
  const path = `${PATH}/${encodeURIComponent(id)}/tuning`;
  const { data, error } = usePoll(path, running ? 1 : 0);
  const [chosen, choose] = useState(null);
  const name = `transfer ${clean(id, 20)}`;
  const close = html`<button type="button" class="small" aria-label=${`close the streams of ${name}`} onClick=${() => set({ transfer: undefined })}>Close</button>`;
  const observes = data?.mode === "observe" ? " Decisions are listed, and not applied." : "";
  return html`<${Panel} id="tuning" wide title=${`Streams of ${name}`} tools=${close}>
    <${Problem} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${transfer && errorOf(transfer) && html`<p class=${transfer.state === "waiting" ? "why" : "why state bad"}>${clean(errorOf(transfer), 300)}</p>`}
    ${transfer?.submitted?.failures.length > 0 && html`<${Failures} rows=${transfer.submitted.failures} count=${transfer.failed} />`}
    ${data && html`<p class="why">${data.ended ? `${transfer && !runs(transfer) ? "No decisions" : "The streams stay"}: ${clean(data.ended, 300)}.` : data.latest ? clean(data.latest, 300) : "No decision yet: it measures the rate of its first streams."}${observes}</p>`}
    ${data?.forecasts?.length > 0 && html`<p class="note forecast">${data.forecasts.map(nextSeconds).join(". ")}.${data.forecast_synthetic ? " The model was trained with simulated transfers." : ""}</p>`}
    ${data?.series.length > 0 && html`<${TuningPlot} tuning=${data} label=${`Rate and streams of ${name} over time, with each decision; arrow keys go through them, and the table below lists them`} chosen=${chosen} onChoose=${choose} />`}
    ${data && (data.series.length > 0 || data.decisions.length > 0) && html`<${TuningTable} tuning=${data} caption=${`Decisions about the streams of ${name}`} chosen=${chosen} />`}
  <//>`;
}

/** Files that failed, as far as the agent keeps them. */
function Failures({ rows, count }) {
  const columns = [
    { key: "path", name: "Failed file", sort: (row) => row.path, cell: (row) => html`<${Path} text=${row.path} most=${60} />` },
    { key: "error", name: "Error", wrap: true, sort: (row) => row.error, cell: (row) => clean(row.error, 200) },
  ];
  return html`${count > rows.length && html`<p class="note">${whole(count)} files failed; the first ${whole(rows.length)} are listed.</p>`}
    <${Table} caption="Files that failed" columns=${columns} rows=${rows} keyOf=${(row) => row.path} />`;
}

/** Changes one transfer, or asks for confirmation before it is cancelled. */
function Steer({ transfer, what, onClose, onDone }) {
  const [error, fail] = useState(null);
  const [busy, wait] = useState(false);
  if (!transfer || !runs(transfer)) {
    return html`<${Dialog} title="Transfer ended" onClose=${onClose}><p>This transfer has ended.</p><div class="buttons"><button type="button" onClick=${onClose}>Close</button></div><//>`;
  }
  const submit = async (event) => {
    event.preventDefault();
    wait(true);
    try {
      if (what === "cancel") {
        await call(`${PATH}/${transfer.id}`, { method: "DELETE" });
      } else {
        const given = new FormData(event.target);
        const body = {};
        const wanted = given.get("rate").trim();
        // The host refuses what is no rate.
        if (wanted !== "") body.rate_bps = parseRate(wanted) ?? wanted;
        if (given.get("streams") !== "" && Number(given.get("streams")) !== transfer.streams) body.streams = Number(given.get("streams"));
        await call(`${PATH}/${transfer.id}`, { method: "PATCH", body });
      }
      onDone();
    } catch (problem) {
      fail(problem);
      wait(false);
    }
  };
  const title = `${what === "cancel" ? "Cancel" : "Change"} transfer ${transfer.id}`;
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p><${Path} text=${transfer.path} /> ${direction(transfer)} <${Name} text=${transfer.peer} /></p>
    <form onSubmit=${submit}>
      ${what === "cancel"
        ? html`<p>What has arrived stays; the same command resumes later.</p>`
        : html`<label>Rate limit, such as 2G or 500M; 0 for none <input name="rate" maxlength="20" autocomplete="off" placeholder=${transfer.rate_bps ? rate(transfer.rate_bps) : "no limit"} autofocus /></label>
            <label>Streams <input name="streams" type="number" min="1" max="65535" value=${transfer.streams} /></label>`}
      <div class="buttons"><button type="button" onClick=${onClose}>${what === "cancel" ? "Keep running" : "Close"}</button><button type="submit" class=${what === "cancel" ? "danger" : "main"} disabled=${busy}>${title}</button></div>
    </form>
    <${Problem} error=${error} />
  <//>`;
}
