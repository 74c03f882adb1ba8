// Preact and htm as one thing to import. Text is always text here: nothing in this page sets HTML.

import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(h);
