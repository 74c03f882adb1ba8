// The part of Markdown that reports use (headings, paragraphs, lists, tables, code, bold), as elements and never as HTML.

import { html } from "../lib/html.js";

/** Bold, code and links within a line; links show their text alone, for a report may name files that are not served. */
function words(text) {
  return text.split(/(\*\*[^*]+\*\*|`[^`]+`|\[[^\]]+\]\([^)]+\))/).map((part) => {
    if (part.startsWith("**") && part.endsWith("**") && part.length > 4) return html`<b>${part.slice(2, -2)}</b>`;
    if (part.startsWith("`") && part.endsWith("`") && part.length > 2) return html`<code>${part.slice(1, -1)}</code>`;
    const link = /^\[([^\]]+)\]\(([^)]+)\)$/.exec(part);
    if (link) return /^https:\/\//.test(link[2]) ? html`<a href=${link[2]} rel="noreferrer noopener" target="_blank">${link[1]}</a>` : link[1];
    return part;
  });
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isNumber = (text) => /^[-–]?$|^[-+]?[\d.,\s]+(%|[kMGT]?b\/s|ms|s)?$/.test(text);

function table(lines) {
  const [head, , ...body] = lines.map(cells);
  const numbers = head.map((_, at) => body.length > 0 && body.every((row) => isNumber(row[at] ?? "")));
  const kind = (at) => (numbers[at] ? "number" : "");
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`table: ${head.join(", ")}`}><table>
    <thead><tr>${head.map((text, at) => html`<th scope="col" class=${kind(at)}>${words(text)}</th>`)}</tr></thead>
    <tbody>${body.map((row) => html`<tr>${row.map((text, at) => html`<td class=${kind(at)}>${words(text)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** A report as elements. */
export function Markdown({ text }) {
  const blocks = [];
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
    } else if (line.startsWith("|") && /^\|[\s:|-]+$/.test(lines[at + 1] ?? "")) blocks.push(table(take((one) => one.startsWith("|"))));
    else if (/^[-*] /.test(line)) {
      const items = [];
      while (at < lines.length && /^[-*] /.test(lines[at])) {
        const first = lines[at].slice(2);
        at += 1;
        items.push([first, ...take((one) => /^\s+\S/.test(one))].join(" "));
      }
      blocks.push(html`<ul>${items.map((item) => html`<li>${words(item)}</li>`)}</ul>`);
    } else {
      const paragraph = take((one) => one.trim() !== "" && !/^(#|\||```|[-*] )/.test(one));
      // A line that looks like the start of something and is not.
      if (paragraph.length === 0) {
        paragraph.push(line);
        at += 1;
      }
      blocks.push(html`<p>${words(paragraph.join(" "))}</p>`);
    }
  }
  return html`<article class="report">${blocks}</article>`;
}
