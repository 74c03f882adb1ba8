// Preact and htm in one import. Text is always inserted as text: the page sets no HTML.

import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(h);
