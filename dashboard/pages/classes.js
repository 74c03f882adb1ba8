// Classes of work against their floors, high-water marks and caps; the links that they share; reservations; rounds.

import { usePoll } from "../lib/api.js";
import { looks } from "../lib/colours.js";
import { isMarked, useEvents } from "../lib/events.js";
import { html, useMemo } from "../lib/html.js";
import { clean, Name } from "../lib/text.js";
import { ago, bytes, duration, moment, percent, rate, whole } from "../lib/units.js";
import { Choice, Command, Empty, Loading, Meter, NoController, Panel, Problem, Swatch } from "../parts/bits.js";
import { Plot } from "../parts/plot.js";
import { Table } from "../parts/table.js";
import { set } from "../lib/route.js";

/** Rounds of a request: those of the plot. */
const ROUNDS = 600;
/** Range of the marked events; constant, so that a new round sends no request. */
const EVENT_SPAN = { from: -7200, to: 0 };
const EXAMPLE = '[[controller.class]]\nname = "production"\nowner = "atlas"\nwho = ["alice"]\nweight = 3\nfloor = "20G"\nmark = "60G"';

export function Classes({ params, theme }) {
  const seconds = Number(params.paused) > 0 ? 0 : 2;
  const { data, error } = usePoll("/api/v1/classes", seconds);
  const classes = data?.classes ?? [];
  const look = useMemo(() => looks(classes.map((one) => one.name), "class"), [classes.map((one) => one.name).join(" ")]);
  if (error?.status === 404) return html`<${Panel} id="classes" wide title="Classes of work"><${NoController} /><//>`;
  return html`
    <${Panel} id="classes" wide title="Classes of work" note="measured rate against allocation, floor, high-water mark and cap; problems first">
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && classes.length === 0 && html`<${Empty} title="There are no classes."><p>Write one into the configuration:</p><p><${Command}>${EXAMPLE}<//></p><//>`}
      ${classes.length > 0 && html`<${Marks} rows=${classes} look=${look} />`}
    <//>
    ${classes.length > 0 && html`<${OverTime} classes=${classes} look=${look} params=${params} theme=${theme} seconds=${seconds} />`}
    ${data && html`<${Links} seconds=${seconds} /><${Calendar} seconds=${seconds} /><${Rounds} seconds=${seconds} />`}`;
}

/** Scale of a class's bar: its cap, else its largest value. */
const most = (one) => Math.max(one.cap_bps ?? 0, one.mark_bps ?? 0, one.floor_bps, one.allotted_bps, one.measured_bps, 1);

/** Measured rate as a bar, with ticks for allotment, floor, high-water mark and cap; the text beside it has the same values. */
function Bar({ of }) {
  const scale = most(of) * 1.05;
  const at = (bps) => ({ left: `${(bps / scale) * 100}%` });
  const strokes = [
    ["floor", of.floor_bps || null],
    ["mark", of.mark_bps],
    ["cap", of.cap_bps],
  ].filter(([, bps]) => bps !== null);
  const text = [`measured ${rate(of.measured_bps)}`, `allocated ${rate(of.allotted_bps)}`, ...strokes.map(([name, bps]) => `${name} ${rate(bps)}`)].join(", ");
  return html`<span class="marks" role="img" aria-label=${text} title=${text}>
    <span class="has" style=${{ width: `${(of.measured_bps / scale) * 100}%` }}></span>
    <span class="stroke allotted" style=${at(of.allotted_bps)}></span>
    ${strokes.map(([name, bps]) => html`<span key=${name} class=${`stroke ${name}`} style=${at(bps)}></span>`)}
  </span>`;
}

/** State of a class and its rank: 0 good, 1 warning, 2 bad. */
function stateOf(one) {
  const waits = one.queued_files > 0;
  if (waits && one.open && one.floor_bps > 0 && one.measured_bps < 0.9 * one.floor_bps) return { rank: 2, state: "below floor" };
  if (waits && one.open && one.allotted_bps === 0) return { rank: 2, state: "no rate allocated" };
  if (one.cap_bps && one.measured_bps >= 0.98 * one.cap_bps) return { rank: 1, state: "at cap" };
  if (one.mark_bps && one.measured_bps > one.mark_bps) return { rank: 1, state: "over high-water mark" };
  if (waits && !one.open) return { rank: 1, state: "outside its time window" };
  return { rank: 0, state: one.measured_bps > 0 ? "active" : waits ? "queued" : "idle" };
}

const LOOKS = ["good", "warn", "bad"];
const SIGNS = ["○", "◆", "▲"];

function Marks({ rows: classes, look }) {
  const rows = classes.map((one) => ({ ...one, ...stateOf(one) }));
  const columns = [
    { key: "state", name: "State", down: true, sort: (row) => row.rank, text: (row) => row.state, cell: (row) => html`<span class=${`state ${LOOKS[row.rank]}`}>${SIGNS[row.rank]} ${row.state}</span>` },
    { key: "name", name: "Class", sort: (row) => row.name, cell: (row) => html`<${Swatch} look=${look.get(row.name)} /> <${Name} text=${row.name} most=${28} />` },
    { key: "label", low: 8, name: "Label", sort: (row) => row.label, cell: (row) => (row.label ? html`<${Name} text=${row.label} most=${28} />` : "–") },
    { key: "bar", name: "Measured rate and limits", cell: (row) => html`<${Bar} of=${row} />` },
    { key: "measured", name: "Measured", number: true, sort: (row) => row.measured_bps, cell: (row) => rate(row.measured_bps) },
    { key: "allotted", name: "Allocated", number: true, sort: (row) => row.allotted_bps, cell: (row) => rate(row.allotted_bps) },
    { key: "floor", low: 4, name: "Floor", number: true, sort: (row) => row.floor_bps, cell: (row) => (row.floor_bps ? rate(row.floor_bps) : "–") },
    { key: "mark", name: "High-water mark", number: true, sort: (row) => row.mark_bps, cell: (row) => rate(row.mark_bps) },
    { key: "cap", low: 5, name: "Cap", number: true, sort: (row) => row.cap_bps, cell: (row) => rate(row.cap_bps) },
    { key: "weight", low: 7, name: "Weight", number: true, sort: (row) => row.weight, cell: (row) => html`<span title=${`tier ${row.tier}: ${row.tier === 0 ? "served first" : "served after lower tiers"}`}>${row.weight}${row.tier ? ` · tier ${row.tier}` : ""}</span>` },
    { key: "queue", name: "Queued", number: true, sort: (row) => row.queued_files, cell: (row) => `${whole(row.queued_files)} files, ${bytes(row.queued_bytes)}` },
    { key: "open", low: 6, name: "Time window", sort: (row) => (row.open ? 0 : row.opens_unix_seconds), cell: (row) => (row.open ? html`<span title=${row.windows.join(", ")}>${row.windows.length ? "open now" : "always"}</span>` : html`<span class="state warn" title=${row.windows.join(", ")}>opens ${moment(row.opens_unix_seconds)}</span>`) },
  ];
  return html`<${Table} caption="Classes of work" columns=${columns} rows=${rows} keyOf=${(row) => row.name} sort=${{ key: "state", down: true }} />`;
}

function OverTime({ classes, look, params, theme, seconds }) {
  const { data, error } = usePoll(`/api/v1/rounds?limit=${ROUNDS}`, seconds);
  const of = params.of === "allotted" ? "allotted" : "measured";
  const { events } = useEvents(params.events === "off" ? null : EVENT_SPAN);
  const shown = useMemo(() => {
    const rounds = (data?.rounds ?? []).slice().reverse();
    const times = rounds.map((round) => round.unix_seconds);
    const series = classes.map((one) => {
      const values = rounds.map((round) => round.classes.find((each) => each.class === one.name)?.[`${of}_bps`] ?? 0);
      return { key: one.name, name: one.name, look: look.get(one.name), values, errors: values.map(() => 0) };
    });
    return { times, series };
  }, [data, look, of]);
  const options = [
    { key: "measured", name: "Measured" },
    { key: "allotted", name: "Allocated" },
  ];
  const tools = html`<${Choice} small label="which rates" options=${options} value=${of} onChange=${(key) => set({ of: key === "measured" ? undefined : key })} />`;
  const { times, series } = shown;
  return html`<${Panel} id="over-time" wide title="Classes over time" note="at each scheduling round" tools=${tools}>
    <${Problem} error=${error} />
    ${times.length > 1
      ? html`<${Plot} label=${`${of === "measured" ? "measured" : "allocated"} rates of classes`} times=${times} series=${series} kind="stack" from=${times[0]} to=${times.at(-1)} theme=${theme} version=${`${of} ${times.at(-1)} ${times.length}`} height=${260} events=${params.events === "off" ? [] : events.filter(isMarked)} />`
      : data && html`<${Empty} title="No scheduling rounds yet.">The first follows the first request.<//>`}
  <//>`;
}

function Links({ seconds }) {
  const { data, error } = usePoll("/api/v1/links", seconds);
  const columns = [
    { key: "state", name: "State", down: true, sort: (row) => (row.down ? 2 : row.allotted_bps / row.capacity_bps / 2), text: (row) => (row.down ? "down" : "up"), cell: (row) => (row.down ? html`<span class="state bad" title=${clean(row.reason ?? "", 200)}>▲ down${row.since_unix_seconds ? ` for ${duration(Date.now() / 1000 - row.since_unix_seconds)}` : ""}</span>` : html`<span class="state good">○ up</span>`) },
    { key: "name", name: "Link", sort: (row) => row.name, cell: (row) => html`<${Name} text=${row.name} most=${36} />` },
    { key: "share", name: "Share allocated", number: true, sort: (row) => row.allotted_bps / row.capacity_bps, cell: (row) => html`<${Meter} share=${row.allotted_bps / (2 * row.capacity_bps)} label=${`share of ${clean(row.name, 40)} that is allocated`} />${percent(row.allotted_bps / (2 * row.capacity_bps))}` },
    { key: "allotted", name: "Allocated (both directions)", number: true, sort: (row) => row.allotted_bps, cell: (row) => `${rate(row.allotted_bps)} of ${rate(2 * row.capacity_bps)}` },
    { key: "measured", name: "Measured", number: true, sort: (row) => row.measured_bps, cell: (row) => rate(row.measured_bps) },
    { key: "orders", low: 2, name: "Orders", number: true, sort: (row) => row.orders, cell: (row) => whole(row.orders) },
  ];
  return html`<${Panel} id="links" wide title="Links" note="as the controller allocates them; problems first">
    <${Problem} error=${error} />
    ${data && html`<${Table} caption="Links" columns=${columns} rows=${data.links} keyOf=${(row) => row.name} empty="the topology has no links" sort=${{ key: "state", down: true }} />`}
  <//>`;
}

/** State of a reservation's circuit. */
function circuit(facts) {
  if (!facts) return "";
  const unused = facts.state === "up" && facts.verified === false;
  const look = facts.state === "up" && !unused ? "good" : facts.state === "broken" || unused ? "bad" : "";
  const text = unused ? "up, not used" : facts.state;
  return html`<span class="state ${look}" title=${clean(facts.reason ?? "", 200)}>${text}</span>`;
}

function Calendar({ seconds }) {
  const { data, error } = usePoll("/api/v1/reservations", seconds && 10);
  const columns = [
    { key: "id", name: "Id", number: true, sort: (row) => row.id, cell: (row) => row.id },
    { key: "way", name: "Source and destination", sort: (row) => `${row.source} ${row.destination}`, cell: (row) => html`<${Name} text=${row.source} most=${20} /> → <${Name} text=${row.destination} most=${20} />` },
    { key: "rate", name: "Rate", number: true, sort: (row) => row.rate_bps, cell: (row) => rate(row.rate_bps) },
    { key: "class", name: "Class", sort: (row) => row.class, cell: (row) => (row.class ? html`<${Name} text=${row.class} most=${24} />` : "all") },
    { key: "begin", name: "Begins", number: true, sort: (row) => row.begin_unix_seconds, cell: (row) => moment(row.begin_unix_seconds) },
    { key: "end", name: "Ends", number: true, sort: (row) => row.end_unix_seconds, cell: (row) => moment(row.end_unix_seconds) },
    { key: "active", name: "State", sort: (row) => row.active, cell: (row) => (row.active ? html`<span class="state good">active</span>` : "scheduled") },
    { key: "circuit", name: "Circuit", sort: (row) => row.circuit?.state ?? "", cell: (row) => circuit(row.circuit) },
    { key: "path", low: 1, name: "Path", wrap: true, cell: (row) => clean(row.path.join(" · "), 120) },
  ];
  return html`<${Panel} id="calendar" wide title="Reservations" note="guaranteed rates between sites">
    <${Problem} error=${error} />
    ${data && html`<${Table} caption="Reservations" columns=${columns} rows=${data.reservations} keyOf=${(row) => row.id} empty="no reservations" />`}
  <//>`;
}

/** Rate that a round allocated. */
const total = (round) => round.classes.reduce((sum, one) => sum + one.allotted_bps, 0);

function Rounds({ seconds }) {
  const { data, error } = usePoll("/api/v1/rounds?limit=50", seconds);
  const columns = [
    { key: "when", name: "When", number: true, sort: (row) => row.id, cell: (row) => html`<span title=${moment(row.unix_seconds)}>${ago(row.unix_seconds)}</span>` },
    { key: "cause", name: "Trigger", sort: (row) => row.cause, cell: (row) => clean(row.cause, 40) },
    { key: "took", name: "Duration", number: true, sort: (row) => row.seconds, cell: (row) => `${(row.seconds * 1000).toFixed(1)} ms` },
    { key: "orders", name: "Orders", number: true, sort: (row) => row.orders, cell: (row) => whole(row.orders) },
    { key: "started", name: "Started", number: true, sort: (row) => row.started, cell: (row) => whole(row.started) },
    { key: "changed", low: 3, name: "Changed", number: true, sort: (row) => row.changed, cell: (row) => whole(row.changed) },
    { key: "allotted", name: "Allocated", number: true, sort: total, cell: (row) => rate(total(row)) },
    { key: "notes", name: "Notes", wrap: true, cell: (row) => clean(row.notes.join("; "), 240) },
  ];
  return html`<${Panel} id="rounds" wide title="Scheduling rounds" note="the last 50">
    <${Problem} error=${error} />
    ${data && html`<${Table} caption="Rounds" columns=${columns} rows=${data.rounds} keyOf=${(row) => row.id} empty="none yet" pageRows=${10} />`}
  <//>`;
}
