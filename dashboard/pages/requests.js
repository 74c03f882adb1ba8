// Requests of the controller: their progress, and the rate of each of their orders with its reason.

import { call, token, usePoll } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/html.js";
import { set } from "../lib/route.js";
import { clean, Name, Path } from "../lib/text.js";
import { ago, bytes, duration, moment, percent, rate, whole } from "../lib/units.js";
import { Choice, Command, Dialog, Empty, Loading, Meter, NoController, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";

const PATH = "/api/v1/requests";
const STATES = { done: "good", failed: "bad", partial: "warn", cancelled: "warn" };
const ENDED = ["done", "failed", "partial", "cancelled"];

/** Reason why a request failed, waits, or will be late; empty if none is known. */
const obstacle = (of) => of.trouble ?? (hasEnded(of) ? "" : of.waiting ?? of.deadline_problem ?? "");

/** Source and destination as the command has them: SITE:/PATH. */
const sourceOf = (of) => `${of.source}:${of.from}`;
const destinationOf = (of) => `${of.destination}:${of.to}`;

/** Longest end of a source or destination that the list shows, in characters. */
const WAY_CHARS = 24;

const hasEnded = (one) => ENDED.includes(one.state);
const share = (one) => (one.files > 0 ? (one.files_done + one.files_failed + one.files_cancelled) / one.files : one.state === "done" ? 1 : 0);
const period = (params) => (Number(params.paused) > 0 ? 0 : 2);

/** State in text and colour, with the reason of a wait. */
function State({ of }) {
  const words = [of.state, of.paused && !hasEnded(of) ? "paused" : "", of.cancelling ? "cancelling" : "", of.open ? "open" : ""];
  return html`<span class=${`state ${STATES[of.state] ?? ""}`}>${clean(words.filter(Boolean).join(", "), 40)}</span>`;
}

/** Time until completion, with the range of earlier transfers where it is known. */
function forecast(of) {
  if (of.forecast_seconds === null || hasEnded(of)) return "";
  const range = of.forecast_p10_seconds === null ? "" : ` (80 %: ${duration(of.forecast_p10_seconds)} to ${duration(of.forecast_p90_seconds)})`;
  return `, done in ${duration(of.forecast_seconds)}${range}`;
}

/** Deadline compared with the forecast. */
function Deadline({ of }) {
  if (!of.deadline_unix_seconds) return "–";
  const left = of.deadline_unix_seconds - Date.now() / 1000;
  const late = hasEnded(of) ? of.ended_unix_seconds > of.deadline_unix_seconds : left < 0 || of.forecast_seconds > left;
  const text = hasEnded(of) ? (late ? "missed" : "met") : left < 0 ? `${duration(-left)} ago` : `in ${duration(left)}`;
  return html`<span class=${late ? "state bad" : ""} title=${moment(of.deadline_unix_seconds)}>${text}${late && !hasEnded(of) ? " ⚠" : ""}</span>`;
}

export function Requests({ params }) {
  const chosen = /^\d+$/.test(params.request ?? "") ? params.request : null;
  const state = params.state === "ended" ? "ended" : "live";
  const { data, error, again } = usePoll(`${PATH}?limit=500`, period(params));
  if (error?.status === 404) return html`<${Panel} id="requests" wide title="Requests"><${NoController} /><//>`;
  const all = data?.requests ?? [];
  const shown = all.filter((one) => hasEnded(one) === (state === "ended"));
  const options = [
    { key: "live", name: "Active", title: "requests that have not ended" },
    { key: "ended", name: "Ended", title: "done, failed, partial or cancelled" },
  ];
  const tools = html`<${Choice} small label="which requests" options=${options} value=${state} onChange=${(key) => set({ state: key === "live" ? undefined : key })} />`;
  return html`
    <${Panel} id="requests" wide title="Requests" note=${data ? whole(shown.length) : ""} tools=${tools}>
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && shown.length === 0 && html`<${Empty} title=${state === "live" ? "No active requests." : "No request has ended yet."}>
        <p>Submit one:</p><p><${Command}>penstock submit SITE:/DIRECTORY SITE:/DIRECTORY --class CLASS<//></p>
      <//>`}
      ${shown.length > 0 && html`<${List} rows=${shown} chosen=${chosen} />`}
    <//>
    ${chosen && html`<${One} key=${chosen} id=${chosen} params=${params} onChange=${again} />`}`;
}

function List({ rows, chosen }) {
  const columns = [
    { key: "id", name: "Id", number: true, sort: (row) => row.id, cell: (row) => html`<button type="button" class="plain" aria-label=${`request ${row.id}`} aria-pressed=${String(row.id) === chosen ? "true" : "false"} onClick=${() => set({ request: String(row.id) === chosen ? undefined : row.id })}>${row.id}</button>` },
    { key: "state", name: "State", sort: (row) => row.state, cell: (row) => html`<${State} of=${row} />` },
    { key: "class", low: 5, name: "Class", sort: (row) => row.class, cell: (row) => html`<${Name} text=${row.class} most=${24} />` },
    { key: "way", name: "Source and destination", sort: (row) => `${sourceOf(row)} ${destinationOf(row)}`, cell: (row) => html`<${Path} text=${sourceOf(row)} most=${WAY_CHARS} /> → <${Path} text=${destinationOf(row)} most=${WAY_CHARS} />` },
    { key: "progress", name: "Files", sort: share, cell: (row) => html`<span title=${`${whole(row.files_active)} active, ${whole(row.files_failed)} failed`}><${Meter} share=${share(row)} label=${`progress of request ${row.id}`} />${whole(row.files_done)} of ${whole(row.files)}${row.files_failed ? html` <span class="state bad">${whole(row.files_failed)} failed</span>` : ""}</span>` },
    { key: "bytes", name: "Volume", number: true, sort: (row) => row.bytes, cell: (row) => `${bytes(row.bytes_done)} of ${bytes(row.bytes)}` },
    { key: "priority", low: 7, name: "Priority", number: true, sort: (row) => row.priority, cell: (row) => row.priority },
    { key: "deadline", name: "Deadline", sort: (row) => row.deadline_unix_seconds, cell: (row) => html`<${Deadline} of=${row} />` },
    { key: "client", low: 8, name: "Submitted by", sort: (row) => row.client, cell: (row) => html`<${Name} text=${row.client} most=${20} />` },
    { key: "came", low: 6, name: "Submitted", number: true, sort: (row) => row.submitted_unix_seconds, cell: (row) => html`<span title=${moment(row.submitted_unix_seconds)}>${ago(row.submitted_unix_seconds)}</span>` },
    { key: "trouble", name: "Waits or problem", wrap: true, text: obstacle, cell: (row) => clean(obstacle(row), 120) },
  ];
  return html`<${Table} caption="Requests" columns=${columns} rows=${rows} keyOf=${(row) => row.id} onRow=${(row) => (String(row.id) === chosen ? "chosen" : "")} />`;
}

function One({ id, params, onChange }) {
  const seconds = period(params);
  const { data, error, again } = usePoll(`${PATH}/${id}`, seconds);
  const why = usePoll(`${PATH}/${id}/why`, seconds);
  const [asked, ask] = useState(null);
  const [known, know] = useState(Boolean(token.get()));
  useEffect(() => {
    const changed = () => know(Boolean(token.get()));
    addEventListener("penstock:token", changed);
    return () => removeEventListener("penstock:token", changed);
  }, []);
  const done = () => {
    ask(null);
    again();
    onChange();
  };
  const tools = known && data && !hasEnded(data) && html`<span class="actions">
    <button type="button" onClick=${() => ask("paused")}>${data.paused ? "Resume" : "Pause"}</button>
    <button type="button" onClick=${() => ask("priority")}>Change priority</button>
    <button type="button" class="danger" onClick=${() => ask("cancel")}>Cancel</button></span>`;
  const orders = why.data?.orders ?? [];
  return html`
    <${Panel} id="why" wide title=${`Request ${id}: rate and reasons`} note=${data ? `${rate(data.bits_per_second ?? 0)}${forecast(data)}` : ""} tools=${tools}>
      <${Problem} error=${error ?? why.error} />
      ${data && html`<p class="note"><${State} of=${data} />: <${Path} text=${sourceOf(data)} most=${60} /> → <${Path} text=${destinationOf(data)} most=${60} />, class <${Name} text=${data.class} most=${24} />, priority ${data.priority}, submitted by <${Name} text=${data.client} most=${24} /> ${moment(data.submitted_unix_seconds)}</p>`}
      ${data && obstacle(data) && html`<p class=${hasEnded(data) ? "state bad" : "note"}>${clean(obstacle(data), 300)}</p>`}
      ${why.data && orders.length === 0 && html`<${Empty} title="No active orders.">${data && hasEnded(data) ? "The request has ended." : data?.waiting ? `The request waits: ${clean(data.waiting, 200)}.` : "The request is queued: for a free slot, for a host, or for the time window of its class."}<//>`}
      ${orders.length > 0 && html`<${Orders} rows=${orders} />`}
    <//>
    <${Files} id=${id} ended=${data && hasEnded(data)} seconds=${seconds} failed=${params.files === "failed"} />
    <${History} id=${id} seconds=${seconds} />
    ${asked && data && html`<${Change} of=${data} what=${asked} onClose=${() => ask(null)} onDone=${done} />`}`;
}

export function Orders({ rows }) {
  const columns = [
    { key: "order", name: "Order", number: true, sort: (row) => row.order, cell: (row) => row.order },
    { key: "hosts", name: "Hosts", sort: (row) => row.from, cell: (row) => html`<${Name} text=${row.from} most=${20} /> ${row.to ? html`→ <${Name} text=${row.to} most=${20} />` : "lists"}` },
    { key: "phase", name: "Phase", sort: (row) => row.phase, cell: (row) => html`<span title=${clean(row.waiting ?? "", 200)}>${clean(row.state === "ending" ? "stopping" : row.phase, 20)}</span>` },
    { key: "allotted", name: "Allocated", number: true, sort: (row) => row.rate_bps, cell: (row) => rate(row.rate_bps) },
    { key: "measured", name: "Measured", number: true, sort: (row) => row.bits_per_second, cell: (row) => html`<span title=${row.applied_bps === null ? "the host has not reported a limit" : `limit in force: ${rate(row.applied_bps)}`}>${rate(row.bits_per_second)}</span>` },
    { key: "reason", name: "Reason", wrap: true, text: (row) => row.reason, cell: (row) => clean(row.reason, 160) },
    { key: "path", low: 2, name: "Path", wrap: true, cell: (row) => html`${row.path.length > 0 ? clean(row.path.join(" · "), 120) : "–"}${row.off_path ? html` <span class="state bad">not observed on this path</span>` : ""}` },
    { key: "bound", low: 3, name: "Limited by", sort: (row) => row.bound_by, cell: (row) => clean(row.bound_by, 40) },
    { key: "files", name: "Files", number: true, sort: (row) => row.files_settled, cell: (row) => `${whole(row.files_settled)} of ${whole(row.files)}` },
    { key: "moved", low: 4, name: "Moved", number: true, sort: (row) => row.moved_bytes, cell: (row) => bytes(row.moved_bytes) },
  ];
  return html`<${Table} caption="Orders of the request" columns=${columns} rows=${rows} keyOf=${(row) => row.order} />`;
}

const FILE_STATES = { done: "good", failed: "bad", cancelled: "warn" };

function Files({ id, ended, seconds, failed }) {
  const { data, error } = usePoll(`${PATH}/${id}/files?limit=200${failed ? "&state=failed" : ""}`, seconds);
  const rows = data?.files ?? [];
  const columns = [
    { key: "file", name: "No.", number: true, sort: (row) => row.file, cell: (row) => whole(row.file) },
    { key: "path", name: "Path", sort: (row) => row.path, cell: (row) => html`<${Path} text=${row.path} most=${60} />` },
    { key: "state", name: "State", sort: (row) => row.state, cell: (row) => html`<span class=${`state ${FILE_STATES[row.state] ?? ""}`}>${clean(row.state, 12)}</span>` },
    { key: "size", name: "Size", number: true, sort: (row) => row.size, cell: (row) => bytes(row.size) },
    { key: "attempts", name: "Attempts", number: true, sort: (row) => row.attempts, cell: (row) => whole(row.attempts) },
    { key: "fault", name: "Error", wrap: true, text: (row) => row.fault ?? "", cell: (row) => (row.fault ? clean(row.fault, 160) : "") },
    { key: "changed", low: 1, name: "Changed", number: true, sort: (row) => row.changed_unix_seconds, cell: (row) => ago(row.changed_unix_seconds) },
  ];
  const options = [
    { key: "all", name: "All" },
    { key: "failed", name: "Failed" },
  ];
  const tools = html`<${Choice} small label="which files" options=${options} value=${failed ? "failed" : "all"} onChange=${(key) => set({ files: key === "all" ? undefined : key })} />`;
  return html`<${Panel} id="files" wide title="Files" note=${data?.next === null || !data ? "" : `the first ${whole(rows.length)}`} tools=${tools}>
    <${Problem} error=${error} />
    ${data && html`<${Table} caption="Files of the request" columns=${columns} rows=${rows} keyOf=${(row) => row.file} empty=${failed ? "none failed" : ended ? "none" : "none yet"} />`}
  <//>`;
}

function History({ id, seconds }) {
  const { data, error } = usePoll(`${PATH}/${id}/history?limit=200`, seconds);
  const rows = data?.events ?? [];
  const columns = [
    { key: "when", name: "Time", down: true, sort: (row) => row.id, cell: (row) => moment(row.unix_seconds) },
    { key: "kind", name: "Event", sort: (row) => row.kind, cell: (row) => clean(row.kind.replaceAll("_", " "), 24) },
    { key: "text", name: "Description", wrap: true, text: (row) => row.text, cell: (row) => clean(row.text, 240) },
  ];
  return html`<${Panel} id="history" wide title="History">
    <${Problem} error=${error} />
    ${data && html`<${Table} caption="History of the request" columns=${columns} rows=${rows} keyOf=${(row) => row.id} sort=${{ key: "when", down: true }} empty="no events yet" />`}
  <//>`;
}

/** Pauses, resumes, re-prioritises or cancels, after a confirmation. */
function Change({ of, what, onClose, onDone }) {
  const [error, fail] = useState(null);
  const [busy, wait] = useState(false);
  // Local state: an update of the request must not reset the user's input.
  const [priority, choose] = useState(String(of.priority));
  const words = {
    paused: of.paused ? ["Resume", "The request continues from where it was."] : ["Pause", "Running transfers stop; files that arrived stay, and the request continues from there later."],
    priority: ["Change the priority of", "5 is the most urgent, among requests of the same class."],
    cancel: ["Cancel", "Files that arrived stay; the others are not transferred."],
  };
  const [verb, explanation] = words[what];
  const submit = async (event) => {
    event.preventDefault();
    wait(true);
    try {
      if (what === "cancel") await call(`${PATH}/${of.id}`, { method: "DELETE" });
      else if (what === "paused") await call(`${PATH}/${of.id}`, { method: "PATCH", body: { paused: !of.paused } });
      else await call(`${PATH}/${of.id}`, { method: "PATCH", body: { priority: Number(priority) } });
      onDone();
    } catch (problem) {
      fail(problem);
      wait(false);
    }
  };
  const title = `${verb} request ${of.id}`;
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>${explanation}</p>
      ${what === "priority" && html`<label>Priority, 1 to 5 <input name="priority" type="number" min="1" max="5" required value=${priority} onInput=${(event) => choose(event.target.value)} autofocus /></label>`}
      <div class="buttons"><button type="button" onClick=${onClose}>Close</button><button type="submit" class=${what === "cancel" ? "danger" : "main"} disabled=${busy}>${title}</button></div>
    </form>
    <${Problem} error=${error} />
  <//>`;
}
