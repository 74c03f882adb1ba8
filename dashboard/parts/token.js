// Dialog for the token, which is kept for this tab and sent in a header to this host only.

import { call, token } from "../lib/api.js";
import { html, useState } from "../lib/html.js";
import { Command, Dialog, Problem } from "./bits.js";

export function TokenDialog({ onClose }) {
  const [error, fail] = useState(null);
  const [busy, wait] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const before = token.get();
    const given = new FormData(event.target).get("token").trim();
    // Only these characters are valid in a header; pasted line breaks and quotes are not part of a token.
    if (!/^[\x21-\x7e]{8,4096}$/.test(given)) {
      fail({ title: "This is no token.", message: "a token is one word of at least 8 characters: paste the line of the file 'token'" });
      return;
    }
    wait(true);
    token.set(given);
    try {
      await call("/api/v1/agent");
      onClose();
    } catch (problem) {
      token.set(before);
      fail(problem.status === 401 || problem.status === 403 ? { title: "The token was refused.", message: problem.message } : problem);
    }
    wait(false);
  };
  return html`<${Dialog} title="Token" onClose=${onClose}>
    <p>With the agent's own token transfers and requests can be changed, and alerts acknowledged. It is in the file <code>token</code> of the state directory:</p>
    <p><${Command}>sudo cat /var/lib/penstock/token<//></p>
    <form onSubmit=${submit}>
      <label>Token <input name="token" type="password" autocomplete="off" spellcheck=${false} maxlength="4096" autofocus /></label>
      <div class="buttons">
        ${token.get() && html`<button type="button" onClick=${() => { token.set(""); onClose(); }}>Forget it</button>`}
        <button type="submit" class="main" disabled=${busy}>Use it</button>
      </div>
    </form>
    <${Problem} error=${error} />
    <p class="note">The token is kept until this tab is closed, and sent to this host alone.</p>
  <//>`;
}
