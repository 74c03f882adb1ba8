//! Chromium driven by the DevTools protocol over a pipe: JSON objects with a zero byte after each.
//!
//! The pipe is the browser's file descriptors 3 and 4; when it closes, as it does when the test dies, the browser ends.
//! Every error that the page logs and every URL that it requests is recorded.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Limit of each wait, generous for busy machines.
pub(crate) const PAGE_TIMEOUT: Duration = Duration::from_secs(40);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: Option<String>,
    events: VecDeque<Value>,
    /// Errors of the page: console, exceptions, failed requests.
    pub(crate) errors: Vec<String>,
    /// URLs that the page requested.
    pub(crate) requests: Vec<String>,
    _dir: TempDir,
}

impl Browser {
    /// Starts a browser with a window of this size that resolves only names of this machine.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", "chromium"])
            .args([
                "--headless",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--no-first-run",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--disable-sync",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--force-color-profile=srgb",
            ])
            .arg(format!("--user-data-dir={}", dir.path().display()))
            .arg("about:blank")
            .env("HOME", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0) {
                let Ok(message) = message else { break };
                let Ok(value) = serde_json::from_slice(&message) else { continue };
                if send.send(value).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            next: 0,
            session: None,
            events: VecDeque::new(),
            errors: Vec::new(),
            requests: Vec::new(),
            _dir: dir,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(width, height);
        browser
    }

    /// Calls a DevTools method and returns its result.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).expect("chromium has ended: tools/setup.sh test installs it");
        let begun = Instant::now();
        loop {
            let message = match self.from.recv_timeout(PAGE_TIMEOUT.saturating_sub(begun.elapsed()))
            {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{method}: no answer within {PAGE_TIMEOUT:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("chromium has ended: tools/setup.sh test installs it")
                }
            };
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method} {params}: {}", message["error"]);
                return message["result"].clone();
            }
            self.event(message);
        }
    }

    fn event(&mut self, message: Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                let details = &params["exceptionDetails"];
                self.errors.push(format!("{} {}", details["text"], details["exception"]));
            }
            Some("Runtime.consoleAPICalled")
                if matches!(params["type"].as_str(), Some("error" | "warning" | "assert")) =>
            {
                self.errors.push(params["args"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                let entry = &params["entry"];
                self.errors.push(format!("{} {}", entry["text"], entry["url"]));
            }
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            _ => {
                self.events.push_back(message);
                if self.events.len() > 1000 {
                    self.events.pop_front();
                }
            }
        }
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Emulates the preferred colour scheme: `light` or `dark`.
    pub(crate) fn wish(&mut self, theme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete'");
    }

    /// Evaluates `script`, awaits promises, and returns the value.
    #[track_caller]
    pub(crate) fn ask(&mut self, script: &str) -> Value {
        let asked = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{script}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Polls `script` until its value is truthy, and returns it.
    #[track_caller]
    pub(crate) fn until(&mut self, script: &str) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.ask(script);
            let empty = answer == json!(0) || answer == json!("");
            if !matches!(answer, Value::Null | Value::Bool(false)) && !empty {
                return answer;
            }
            if begun.elapsed() > PAGE_TIMEOUT {
                let text = self.ask("document.body.innerText.slice(0, 2000)");
                let address = self.ask("location.href");
                panic!(
                    "not within {PAGE_TIMEOUT:?}: {script}\nat {address}\nerrors: {:?}\npage: {text}",
                    self.errors
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for `text` on the page.
    #[track_caller]
    pub(crate) fn sees(&mut self, text: &str) {
        // Numbers and units are joined by no-break spaces.
        self.until(&format!(
            "document.body.innerText.replaceAll('\\u00a0', ' ').includes({})",
            json!(text)
        ));
    }

    /// Sends the events of a pressed and released key.
    pub(crate) fn press(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let code = match key {
            "Escape" => 27,
            "Enter" => 13,
            "Tab" => 9,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for (kind, text) in [("keyDown", text), ("keyUp", "")] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if !text.is_empty() {
                event["text"] = text.into();
            }
            if key == "Enter" && kind == "keyDown" {
                event["text"] = "\r".into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types into the focused element.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Waits for a button or link whose text or label is `name` and clicks the first; again, if the page moved it away
    /// under the mouse.
    #[track_caller]
    pub(crate) fn click(&mut self, name: &str) {
        let begun = Instant::now();
        while !self.click_once(name) {
            assert!(begun.elapsed() < PAGE_TIMEOUT, "the button {name:?} is never hit");
        }
    }

    #[track_caller]
    fn click_once(&mut self, name: &str) -> bool {
        let place = self.until(&format!(
            "(() => {{
                const named = (one) => one.getAttribute('aria-label') === {0} || one.innerText.trim() === {0};
                const dialog = document.querySelector('dialog[open]') ?? document;
                const one = [...dialog.querySelectorAll('button, a')].find(named);
                if (!one || one.disabled) return null;
                one.scrollIntoView({{ block: 'center' }});
                const box = one.getBoundingClientRect();
                // Not rendered yet, or in a closed dialog.
                if (box.width === 0) return null;
                window.hit = false;
                one.addEventListener('click', () => {{ window.hit = true; }}, {{ once: true, capture: true }});
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()",
            json!(name)
        ));
        let (x, y) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
        self.mouse("mousePressed", x, y);
        self.mouse("mouseReleased", x, y);
        // After a navigation `hit` is undefined: the click left the page.
        self.ask("window.hit ?? true") == json!(true)
    }

    pub(crate) fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let held = if kind == "mouseMoved" { "none" } else { "left" };
        let event =
            json!({ "type": kind, "x": x, "y": y, "button": held, "buttons": 1, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Moves the mouse along a line with the button held.
    pub(crate) fn drag(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.mouse("mouseMoved", x1, y1);
        self.mouse("mousePressed", x1, y1);
        for step in 1..=4 {
            let part = f64::from(step) / 4.0;
            let (x, y) = (x1 + (x2 - x1) * part, y1 + (y2 - y1) * part);
            let event =
                json!({ "type": "mouseMoved", "x": x, "y": y, "button": "left", "buttons": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
        self.mouse("mouseReleased", x2, y2);
    }

    /// Saves a screenshot in `target/screenshots`.
    pub(crate) fn picture(&mut self, name: &str) {
        let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/../screenshots");
        let bytes = self.capture(json!({ "format": "png" }));
        assert!(bytes.starts_with(b"\x89PNG"));
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(format!("{folder}/{name}.png"), bytes).unwrap();
    }

    /// Saves a screenshot as a picture of the documents.
    pub(crate) fn document(&mut self, name: &str) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images");
        let bytes = self.capture(json!({ "format": "webp", "quality": 82 }));
        std::fs::write(format!("{folder}/{name}.webp"), bytes).unwrap();
    }

    fn capture(&mut self, how: Value) -> Vec<u8> {
        // Wait for two frames, so that the last change is drawn.
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        base64(self.call("Page.captureScreenshot", how)["data"].as_str().unwrap())
    }

    /// Asserts that all errors contain a text of `expected`, and that every request went to this machine.
    #[track_caller]
    pub(crate) fn assert_clean(&mut self, expected: &[&str]) {
        // Earlier log events arrive before this answer.
        self.ask("0");
        let unexpected: Vec<_> = self
            .errors
            .iter()
            .filter(|error| !expected.iter().any(|part| error.contains(part)))
            .collect();
        assert!(unexpected.is_empty(), "{unexpected:#?}");
        let elsewhere: Vec<_> = self
            .requests
            .iter()
            .filter(|url| {
                !["http://127.0.0.1:", "blob:http://127.0.0.1:", "about:"]
                    .iter()
                    .any(|own| url.starts_with(own))
            })
            .collect();
        assert!(elsewhere.is_empty(), "{elsewhere:?}");
        assert!(self.requests.len() > 10, "{:?}", self.requests);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its child processes end when their channels to it break.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base64 (RFC 4648) without line breaks, as DevTools sends screenshots.
fn base64(text: &str) -> Vec<u8> {
    let value = |byte| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().fold(0_u32, |bits, byte| bits << 6 | u32::from(value(*byte)));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}
