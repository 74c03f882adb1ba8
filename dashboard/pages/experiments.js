// Reports of experiments embedded in this build, and their pictures.

import { call } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/html.js";
import { link } from "../lib/route.js";
import { clean } from "../lib/text.js";
import { Command, Empty, Loading, Panel, Problem } from "../parts/bits.js";
import { Markdown } from "../parts/markdown.js";

export function Experiments({ params }) {
  const [state, change] = useState({ reports: null, error: null });
  useEffect(() => {
    let gone = false;
    call("/ui/reports.json")
      .then((data) => gone || change({ reports: data.reports, error: null }))
      .catch((error) => gone || change({ reports: null, error }));
    return () => {
      gone = true;
    };
  }, []);
  const { reports, error } = state;
  const chosen = reports?.find((one) => one.name === params.report) ?? reports?.[0];
  return html`<${Panel} id="reports" wide title="Experiments" note="published results, reproduced with Penstock">
    <${Problem} error=${error} />
    ${!reports && !error && html`<${Loading} />`}
    ${reports?.length === 0 && html`<${Empty} title="This build has no reports."><p>Run an experiment:</p><p><${Command}>penstock experiment --help<//></p><//>`}
    ${chosen && html`<div class="split">
      <ul class="reports" aria-label="reports">${reports.map((one) => html`<li key=${one.name}><a href=${link("experiments", { report: one.name })} aria-current=${one === chosen ? "true" : undefined}><b>${clean(one.name, 40)}</b><span class="note">${clean(one.title, 120)}</span></a></li>`)}</ul>
      <${Markdown} key=${chosen.name} text=${chosen.text} pictures=${chosen.pictures ?? []} folder=${`/ui/reports/${chosen.name}/`} />
    </div>`}
  <//>`;
}
