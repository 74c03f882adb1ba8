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

const two = (number) => String(number).padStart(2, "0");

/** "14:03:07", of the reader's time zone. */
export function clock(unixSeconds, withSeconds = true) {
  const at = new Date(unixSeconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

/** "2025-11-17 14:03:07". */
export function moment(unixSeconds) {
  if (!Number.isFinite(unixSeconds)) return "–";
  const at = new Date(unixSeconds * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(unixSeconds)}`;
}

/** "12 s ago". */
export function ago(unixSeconds) {
  return Number.isFinite(unixSeconds) ? `${duration(Math.max(0, Date.now() / 1000 - unixSeconds))} ago` : "never";
}
