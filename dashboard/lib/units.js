// Quantities as text, units always and never on another line. Rates are in bits per second and powers of 1000, volumes
// in bytes of 1000.

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

function scale(value) {
  let step = 0;
  let size = Math.abs(value);
  while (size >= 999.5 && step < PREFIXES.length - 1) {
    size /= 1000;
    step += 1;
  }
  return step;
}

function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 99.95) return value.toFixed(0);
  if (size >= 9.995) return value.toFixed(1);
  return value.toFixed(2);
}

function quantity(value, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const step = scale(value);
  const number = step === 0 ? String(Math.round(value)) : digits(value / 1000 ** step);
  return `${number}\u00a0${PREFIXES[step]}${unit}`;
}

/** "1.10 Tb/s". */
export const rate = (bps) => quantity(bps, "b/s");

/** Bits per second of a rate such as "2G" or "500 Mb/s"; null for another text. */
export function parseRate(text) {
  const found = /^(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:b|bit)?(?:\/s|ps)?$/i.exec(text.trim());
  if (found === null) return null;
  return Math.round(Number(found[1]) * 1000 ** " kmgtp".indexOf(found[2].toLowerCase() || " "));
}

/** "4.29 GB". */
export const bytes = (count) => quantity(count, "B");

/** "412 k packets" without the word. */
export const count = (number) => quantity(number, "").trim();

/** Whole numbers with thin spaces between thousands. */
export function whole(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  return Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** "31.2 ± 0.4 Gb/s": value and half-width of its 95 % interval, in one unit. */
export function rateWithError(bps, error) {
  if (bps === null || bps === undefined) return "–";
  if (!error) return rate(bps);
  const step = scale(Math.max(Math.abs(bps), Math.abs(error)));
  const unit = 1000 ** step;
  const [value, width] = [bps / unit, error / unit];
  const places = step === 0 ? 0 : width >= 10 ? 0 : width >= 0.1 ? 1 : 2;
  return `${value.toFixed(places)}\u00a0±\u00a0${width.toFixed(places)}\u00a0${PREFIXES[step]}b/s`;
}

/** "12.3 %" of a share between 0 and 1. */
export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value === 0) return "0\u00a0%";
  if (Math.abs(value) < 0.01) return "<\u00a00.01\u00a0%";
  return `${Math.abs(value) >= 99.95 ? value.toFixed(0) : Math.abs(value) < 1 ? value.toFixed(2) : value.toFixed(1)}\u00a0%`;
}

export function percentWithError(share, error) {
  if (share === null || share === undefined) return "–";
  return error ? `${(share * 100).toFixed(1)}\u00a0±\u00a0${(error * 100).toFixed(1)}\u00a0%` : percent(share);
}

/** "2 h 05 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const total = Math.max(0, seconds);
  if (total < 9.95) return `${total.toFixed(1)} s`;
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor((total / 3600) % 24), Math.floor((total / 60) % 60)];
  const rest = Math.floor(total % 60);
  const two = (number) => String(number).padStart(2, "0");
  if (days > 0) return `${days} d ${two(hours)} h`;
  if (hours > 0) return `${hours} h ${two(minutes)} min`;
  if (minutes > 0) return `${minutes} min ${two(rest)} s`;
  return `${Math.floor(total)} s`;
}

/** Time zone of all times that are shown; undefined is that of the browser. lib/route.js sets it from the address. */
let zone;
let format;

const OPTIONS = { hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** Chooses the time zone, an IANA name such as Europe/Zurich or UTC; what is none is that of the browser. */
export function setZone(name) {
  if (format && name === zone) return;
  try {
    format = new Intl.DateTimeFormat("en-GB", { ...OPTIONS, timeZone: name });
    zone = name;
  } catch {
    format = new Intl.DateTimeFormat("en-GB", OPTIONS);
    zone = undefined;
  }
}
setZone(undefined);

/** Name of the time zone that is on. */
export const zoneName = () => zone ?? format.resolvedOptions().timeZone;

/** Year, month, day, hour, minute and second as text, in the time zone that is on. */
export function partsOf(unixSeconds) {
  const parts = {};
  for (const { type, value } of format.formatToParts(new Date(unixSeconds * 1000))) parts[type] = value;
  return parts;
}

/** "14:03:07". */
export function clock(unixSeconds, withSeconds = true) {
  if (!Number.isFinite(unixSeconds)) return "–";
  const { hour, minute, second } = partsOf(unixSeconds);
  return `${hour}:${minute}${withSeconds ? `:${second}` : ""}`;
}

/** "2025-11-17 14:03:07". */
export function moment(unixSeconds) {
  if (!Number.isFinite(unixSeconds)) return "–";
  const { year, month, day } = partsOf(unixSeconds);
  return `${year}-${month}-${day} ${clock(unixSeconds)}`;
}

/** Seconds since 1970 of a wall clock in the time zone that is on; null where `text` is no "YYYY-MM-DD HH:MM[:SS]". */
export function parseMoment(text) {
  const found = /^\s*(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2}))?)?\s*$/.exec(text);
  if (!found) return null;
  const [year, month, day, hour, minute, second] = found.slice(1).map((part) => Number(part ?? 0));
  const wall = Date.UTC(year, month - 1, day, hour, minute, second) / 1000;
  const back = new Date(wall * 1000);
  // Fields that overflow, such as month 13, are no time.
  if (back.getUTCMonth() !== month - 1 || back.getUTCDate() !== day || hour > 23 || minute > 59 || second > 59) return null;
  // The offset depends on the time that is looked for: the second step settles it but in the hour that a change repeats.
  let guess = wall;
  for (let step = 0; step < 2; step += 1) {
    const at = partsOf(guess);
    const shown = Date.UTC(Number(at.year), Number(at.month) - 1, Number(at.day), Number(at.hour), Number(at.minute), Number(at.second)) / 1000;
    guess += wall - shown;
  }
  return guess;
}

/** "12 s ago". */
export function ago(unixSeconds) {
  return Number.isFinite(unixSeconds) ? `${duration(Math.max(0, Date.now() / 1000 - unixSeconds))} ago` : "never";
}

/** "1 link", "2 links". */
export const plural = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;
