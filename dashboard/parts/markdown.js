// The part of Markdown that reports use (headings, paragraphs, lists, tables, code, bold, pictures), as elements and never
// as HTML. A picture that a paragraph links to stands below it.

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";

/** Bold, code and links within a line; links show their text only, as a report may name files that are not served. */
function words(text) {
  return text.split(/(\*\*[^*]+\*\*|`[^`]+`|!?\[[^\]]*\]\([^)]+\))/).map((part) => {
    if (part.startsWith("**") && part.endsWith("**") && part.length > 4) return html`<b>${part.slice(2, -2)}</b>`;
    if (part.startsWith("`") && part.endsWith("`") && part.length > 2) return html`<code>${part.slice(1, -1)}</code>`;
    const link = /^!?\[([^\]]*)\]\(([^)]+)\)$/.exec(part);
    if (link) return /^https:\/\//.test(link[2]) ? html`<a href=${link[2]} rel="noreferrer noopener" target="_blank">${link[1]}</a>` : link[1];
    return part;
  });
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isNumber = (text) => /^[-–]?$|^[-+]?[\d.,\s]+(%|[kMGT]?b\/s|ms|s)?$/.test(text);

/** Table; its rows are cards on a narrow screen. */
function Grid({ lines }) {
  const [head, , ...body] = lines.map(cells);
  const place = useRef(null);
  const [narrow, change] = useState(false);
  useLayoutEffect(() => {
    let before = place.current.clientWidth;
    const size = new ResizeObserver(() => {
      const width = place.current?.clientWidth ?? before;
      if (Math.abs(width - before) < 2) return;
      before = width;
      change(false);
    });
    size.observe(place.current);
    return () => size.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!narrow && place.current.scrollWidth > place.current.clientWidth + 1) change(true);
  });
  const numbers = head.map((_, at) => body.length > 0 && body.every((row) => isNumber(row[at] ?? "")));
  const kind = (at) => (numbers[at] ? "number" : "");
  return html`<div class=${narrow ? "table cards" : "table"}><div class="scroll" ref=${place} tabindex="0" role="region" aria-label=${`table: ${head.join(", ")}`}><table role="table">
    <thead role="rowgroup"><tr role="row">${head.map((text, at) => html`<th role="columnheader" scope="col" class=${kind(at)}>${words(text)}</th>`)}</tr></thead>
    <tbody role="rowgroup">${body.map((row) => html`<tr role="row">${row.map((text, at) => html`<td role="cell" data-name=${head[at] ?? ""} class=${kind(at)}>${words(text)}</td>`)}</tr>`)}</tbody>
  </table></div></div>`;
}

/** Existing pictures to which `text` links: {name, title}. */
function linked(text, pictures) {
  return [...text.matchAll(/!?\[([^\]]*)\]\(([^)\s]+)\)/g)].map(([, title, file]) => ({ title, name: file.replace(/^\.\//, "") })).filter((one) => pictures.includes(one.name));
}

/** A picture with its name below it; a click opens it by itself. */
function Picture({ folder, name, title }) {
  const words = title || name.replace(/\.[a-z]+$/, "").replaceAll("-", " ");
  return html`<figure class="picture"><a href=${`${folder}${name}`} target="_blank" rel="noopener" title="open the picture by itself"><img src=${`${folder}${name}`} alt=${words} loading="lazy" /></a><figcaption>${words}</figcaption></figure>`;
}

/** A report as elements; `pictures` are the names of files in `folder`. */
export function Markdown({ text, pictures = [], folder = "" }) {
  const blocks = [];
  const shown = new Set();
  const show = (source) => {
    const found = linked(source, pictures).filter((one) => !shown.has(one.name));
    if (found.length === 0) return;
    for (const one of found) shown.add(one.name);
    blocks.push(html`<div class="pictures">${found.map((one) => html`<${Picture} key=${one.name} folder=${folder} name=${one.name} title=${one.title} />`)}</div>`);
  };
  const lines = text.split(/\r?\n/);
  let at = 0;
  const take = (test) => {
    const from = at;
    while (at < lines.length && test(lines[at])) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^(#{1,4}) (.*)$/.exec(line);
    if (line.trim() === "") at += 1;
    else if (heading) {
      blocks.push(heading[1].length === 1 ? html`<h2>${words(heading[2])}</h2>` : html`<h3>${words(heading[2])}</h3>`);
      at += 1;
    } else if (line.startsWith("```")) {
      at += 1;
      const code = take((one) => !one.startsWith("```"));
      at += 1;
      blocks.push(html`<pre class="command">${code.join("\n")}</pre>`);
    } else if (line.startsWith("|") && /^\|[\s:|-]+$/.test(lines[at + 1] ?? "")) blocks.push(html`<${Grid} key=${at} lines=${take((one) => one.startsWith("|"))} />`);
    else if (/^[-*] /.test(line)) {
      const items = [];
      while (at < lines.length && /^[-*] /.test(lines[at])) {
        const first = lines[at].slice(2);
        at += 1;
        items.push([first, ...take((one) => /^\s+\S/.test(one))].join(" "));
      }
      blocks.push(html`<ul>${items.map((item) => html`<li>${words(item)}</li>`)}</ul>`);
      show(items.join(" "));
    } else {
      const paragraph = take((one) => one.trim() !== "" && !/^(#|\||```|[-*] )/.test(one));
      // A line that only resembles the start of a block.
      if (paragraph.length === 0) {
        paragraph.push(line);
        at += 1;
      }
      blocks.push(html`<p>${words(paragraph.join(" "))}</p>`);
      show(paragraph.join(" "));
    }
  }
  // Pictures that the text does not mention.
  show(pictures.map((name) => `[](${name})`).join(" "));
  return html`<article class="report">${blocks}</article>`;
}
