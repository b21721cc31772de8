//! A headless Chromium, driven over the DevTools protocol through a pipe: JSON in, JSON out, each message ended by a zero.
//!
//! Chromium reads commands from file descriptor 3 and writes answers to 4; a shell gives it our two pipes under these numbers.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing here takes longer, on a slow machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at a page.
const LOOK: Duration = Duration::from_millis(50);

/// The browser, if there is one; says so loudly where there is none. `WEBBASE_BROWSER=required` makes that a failure.
pub(crate) fn found() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = |name: &'static str| std::env::split_paths(&path).map(move |folder| folder.join(name));
    let found = named("chromium").chain(named("chromium-browser")).find(|program| program.is_file());
    if found.is_none() {
        assert!(
            std::env::var("WEBBASE_BROWSER").as_deref() != Ok("required"),
            "WEBBASE_BROWSER=required, but there is no chromium"
        );
        eprintln!("SKIPPED: there is no chromium in PATH (Debian: apt-get install chromium)");
    }
    found
}

pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    events: VecDeque<Value>,
    session: Option<String>,
    next: u64,
    _profile: TempDir,
}

impl Browser {
    /// Starts one with one empty tab.
    pub(crate) fn start(program: &Path) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1"]).arg(program);
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (heard, answers) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while out.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
                bytes.pop();
                let Ok(value) = serde_json::from_slice(&bytes) else { break };
                if heard.send(value).is_err() {
                    break;
                }
                bytes.clear();
            }
        });
        let (events, session) = (VecDeque::new(), None);
        let mut browser = Browser { child, commands, answers, events, session, next: 1, _profile: profile };
        let tab = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": tab["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Gives a command and waits for its answer.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) if answer["id"] == id => {
                    assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                    return answer["result"].clone();
                }
                Ok(event) => self.events.push_back(event),
                Err(RecvTimeoutError::Timeout) => panic!("{method} was not answered"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser ended at {method}"),
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        self.until("document.readyState === 'complete'");
    }

    /// The value of an expression.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let until = Instant::now() + LIMIT;
        while self.eval(&format!("Boolean({expression})")) != true {
            if Instant::now() > until {
                let text = self.eval("document.body.innerText");
                panic!("never true: {expression}\n{}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Types a key.
    pub(crate) fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" && key.len() == 1 { key } else { "" };
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "text": text}));
        }
    }

    /// A window of this size, light or dark.
    pub(crate) fn look_like(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
        // Two frames, so that what follows from it is drawn.
        self.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
    }

    /// Keeps a picture of the whole page in target/screenshots.
    pub(crate) fn picture(&mut self, name: &str) {
        self.eval("scrollTo(0, 0)");
        let taken = self.call("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
        let data = taken["data"].as_str().unwrap();
        let bytes = data_encoding::BASE64.decode(data.as_bytes()).unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// What the browser complained of since it was asked last.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // Whatever was said before this answer has arrived with it.
        self.eval("0");
        let mut all = Vec::new();
        for event in self.events.drain(..) {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => all.push(params["exceptionDetails"].to_string()),
                "Log.entryAdded" if params["entry"]["level"] == "error" => {
                    all.push(params["entry"].to_string());
                }
                "Runtime.consoleAPICalled" if params["type"] == "error" => {
                    all.push(params["args"].to_string())
                }
                _ => {}
            }
        }
        all
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
