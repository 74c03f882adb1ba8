// Export to files: numbers as CSV (RFC 4180), plots and the map as PNG.

import { resolve } from "./colours.js";

const iso = (unixSeconds) => new Date(unixSeconds * 1000).toISOString().replace(".000Z", "Z");

/** CSV cell, quoted if necessary. Text that a spreadsheet would read as a formula gets an apostrophe in front. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Formats rows of cells as CSV. */
export const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

/** Formats rates over time as rows: time in UTC, then each series with its error. */
export function seriesRows({ times, series, total }) {
  const lines = total ? [{ name: "total", ...total }, ...series] : series;
  const head = ["time_utc", ...lines.flatMap((one) => [`${one.name} bit/s`, `${one.name} error bit/s`])];
  return [head, ...times.map((time, at) => [iso(time), ...lines.flatMap((one) => [one.values[at], one.errors?.[at] ?? null])])];
}

/** File name: subject and time of creation. */
function fileName(name, ending) {
  const plain = name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80);
  return `penstock-${plain || "export"}-${iso(Math.floor(Date.now() / 1000)).replace(/[:]/g, "")}.${ending}`;
}

/** Downloads a file through the browser. */
export function save(name, ending, blob) {
  const address = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = fileName(name, ending);
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export const saveCsv = (name, rows) => save(name, "csv", new Blob([csv(rows)], { type: "text/csv" }));

const FONT = "system-ui, sans-serif";

/** Draws the plots of `element` (a panel) with their captions and the legend into one picture. */
export function plotPicture(element, title, legend) {
  const plots = [...element.querySelectorAll(".u-wrap canvas")].map((canvas) => ({
    canvas,
    caption: canvas.closest("figure")?.querySelector("figcaption")?.innerText.replace(/\s+/g, " ") ?? "",
  }));
  if (plots.length === 0) return null;
  const scale = devicePixelRatio || 1;
  const [margin, line, head] = [16 * scale, 18 * scale, 34 * scale];
  const columns = plots.length > 1 ? 2 : 1;
  const width = Math.max(...plots.map((one) => one.canvas.width));
  const caption = plots.length > 1 ? line : 0;
  const height = Math.max(...plots.map((one) => one.canvas.height)) + caption;
  const rows = Math.ceil(plots.length / columns);
  const perLine = Math.max(1, Math.floor((columns * width) / (260 * scale)));
  const made = document.createElement("canvas");
  made.width = columns * width + 2 * margin;
  made.height = head + rows * height + Math.ceil(legend.length / perLine) * line + 2 * margin;
  const context = made.getContext("2d");
  context.fillStyle = resolve("var(--ground)");
  context.fillRect(0, 0, made.width, made.height);
  context.textBaseline = "top";
  context.fillStyle = resolve("var(--text)");
  context.font = `600 ${15 * scale}px ${FONT}`;
  context.fillText(title, margin, margin);
  context.font = `${12 * scale}px ${FONT}`;
  plots.forEach(({ canvas, caption: text }, at) => {
    const [x, y] = [margin + (at % columns) * width, margin + head + Math.floor(at / columns) * height];
    if (caption > 0) context.fillText(text, x, y);
    context.drawImage(canvas, x, y + caption);
  });
  legend.forEach(({ name, colour }, at) => {
    const [x, y] = [margin + (at % perLine) * 260 * scale, margin + head + rows * height + Math.floor(at / perLine) * line];
    context.fillStyle = resolve(colour);
    context.fillRect(x, y, 11 * scale, 11 * scale);
    context.fillStyle = resolve("var(--text)");
    context.fillText(name.slice(0, 36), x + 17 * scale, y);
  });
  return made;
}

/** CSS properties that an exported drawing copies from the page. */
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "paint-order", "visibility", "display", "vector-effect"];

/** Renders an `svg` element to a canvas. */
export async function drawingPicture(svg) {
  const box = svg.getBoundingClientRect();
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((one, at) => {
    const style = getComputedStyle(originals[at]);
    for (const name of DRAWN) one.style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const scale = Math.max(2, devicePixelRatio || 1);
    const made = document.createElement("canvas");
    [made.width, made.height] = [Math.round(box.width * scale), Math.round(box.height * scale)];
    const context = made.getContext("2d");
    context.fillStyle = getComputedStyle(svg).backgroundColor;
    context.fillRect(0, 0, made.width, made.height);
    context.drawImage(image, 0, 0, made.width, made.height);
    return made;
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Downloads a canvas as PNG. */
export function savePng(name, canvas) {
  canvas?.toBlob((blob) => blob && save(name, "png", blob), "image/png");
}
