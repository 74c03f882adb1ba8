// A fixed colour for each owner on all pages, ranges and orders, with a pattern for readers who do not
// distinguish colours. The colours are in style.css (--c0 ...), lighter in the dark theme.

export const COLOURS = 12;
export const PATTERNS = ["plain", "lines", "dots", "cross", "waves"];

/** Keys that are no owners: hatched, and last. */
export const SPECIAL = { unlabelled: "unlabelled", untrusted: "untrusted", other: "other", unknown: "unknown" };

// Fixed colours of the most frequent owners in the scitags registry.
const FIXED = { atlas: 0, cms: 1, lhcb: 2, alice: 3, belleii: 4, ska: 5, dune: 6, lsst: 7, ilc: 8, auger: 9, juno: 10, nova: 11, default: 9, xenon: 5 };

function hash(text) {
  // FNV-1a hash.
  let value = 0x811c9dc5;
  for (let at = 0; at < Math.min(text.length, 256); at += 1) {
    value = Math.imul(value ^ text.charCodeAt(at), 0x01000193) >>> 0;
  }
  return value >>> 0;
}

const isSpecial = (key) => Object.hasOwn(SPECIAL, key);

/**
 * Assigns a look to each key: `{colour: 0..11 or a special's name, pattern}`. The hash of the key selects the colour; if it is
 * in use, the next free one; if none is free, the same colour with another pattern.
 */
export function looks(keys, dimension) {
  const given = new Map();
  const taken = new Map();
  const sorted = [...new Set(keys)].sort();
  const wanted = (key) => (dimension === "owner" && Object.hasOwn(FIXED, key) ? FIXED[key] : hash(key) % COLOURS);
  const fixedFirst = [...sorted.filter((key) => dimension === "owner" && Object.hasOwn(FIXED, key)), ...sorted];
  for (const key of fixedFirst) {
    if (given.has(key)) continue;
    if (isSpecial(key)) {
      given.set(key, { colour: key, pattern: "hatch" });
      continue;
    }
    let colour = wanted(key);
    for (let tries = 0; tries < COLOURS && taken.has(colour) && taken.size < COLOURS; tries += 1) colour = (colour + 5) % COLOURS;
    const round = taken.get(colour) ?? 0;
    taken.set(colour, round + 1);
    given.set(key, { colour, pattern: PATTERNS[round % PATTERNS.length] });
  }
  return given;
}

const variable = (look) => (typeof look.colour === "number" ? `--c${look.colour}` : `--c-${look.colour}`);

/** CSS variable of a colour. */
export const css = (look) => `var(${variable(look)})`;

let probe = null;

/** Value of a CSS colour in the current theme, for a canvas. */
export function resolve(expression) {
  if (!probe) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = expression;
  return getComputedStyle(probe).color;
}

/** Canvas pattern over `colour`, or the colour itself for the plain pattern. */
export function fill(context, colour, pattern, ground) {
  if (pattern === "plain") return colour;
  const scale = devicePixelRatio || 1;
  const size = Math.round(8 * scale);
  const tile = new OffscreenCanvas(size, size);
  const draw = tile.getContext("2d");
  draw.fillStyle = colour;
  draw.fillRect(0, 0, size, size);
  draw.strokeStyle = ground;
  draw.fillStyle = ground;
  draw.globalAlpha = 0.6;
  draw.lineWidth = (pattern === "hatch" ? 2.2 : 1.4) * scale;
  const line = (...points) => {
    draw.beginPath();
    points.forEach(([x, y], at) => (at === 0 ? draw.moveTo(x * size, y * size) : draw.lineTo(x * size, y * size)));
    draw.stroke();
  };
  if (pattern === "hatch" || pattern === "cross") {
    line([-0.25, 0.25], [0.25, -0.25]);
    line([-0.25, 1.25], [1.25, -0.25]);
    line([0.75, 1.25], [1.25, 0.75]);
  }
  if (pattern === "cross") {
    line([-0.25, 0.75], [0.25, 1.25]);
    line([-0.25, -0.25], [1.25, 1.25]);
    line([0.75, -0.25], [1.25, 0.25]);
  }
  if (pattern === "lines") line([0, 0.5], [1, 0.5]);
  if (pattern === "waves") line([0, 0.3], [0.5, 0.7], [1, 0.3]);
  if (pattern === "dots") {
    draw.beginPath();
    draw.arc(size / 2, size / 2, size / 5, 0, 7);
    draw.fill();
  }
  return context.createPattern(tile, "repeat");
}
