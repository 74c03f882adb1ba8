//! The Python package of `python/`: its suites with the built binary, its notebooks, types and style.
//!
//! They run in a virtual environment in `target/python`, the operator of Airflow in `target/airflow`; each is made once
//! for a list of versions.

// It has more than this program needs.
#[allow(dead_code)]
#[path = "dashboard/browser.rs"]
mod browser;
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use penstock_testkit::{Requirement, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::browser::Browser;
use crate::common::wait_until;

/// Interpreter of the virtual environment: that of the system, for which the versions are chosen.
const INTERPRETER: &str = "/usr/bin/python3";

/// Serializes installations of tests that run at the same time.
static INSTALLATION: Mutex<()> = Mutex::new(());

/// The folder `python` of the checkout.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python").canonicalize().unwrap()
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A virtual environment.
struct PythonEnvironment {
    /// Name of its folder in `target`.
    name: &'static str,
    /// File with its versions, in `python`.
    requirements: &'static str,
    /// Folder of the plug-in that is installed in it, in `python`.
    plugin: &'static str,
}

const CLIENT_ENVIRONMENT: PythonEnvironment = PythonEnvironment {
    name: "python",
    requirements: "requirements-test.txt",
    plugin: "plugins/snakemake",
};

/// Apart from the client's: the hundred packages of Airflow would bind the versions of the others.
const AIRFLOW_ENVIRONMENT: PythonEnvironment = PythonEnvironment {
    name: "airflow",
    requirements: "requirements-airflow.txt",
    plugin: "plugins/airflow",
};

/// Returns the directory of the programs of a virtual environment. `None`, reported, where it cannot be made.
fn programs(environment: &PythonEnvironment) -> Option<PathBuf> {
    let _installing = INSTALLATION.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = folder().join("../target").join(environment.name);
    let programs = directory.join("bin");
    let requirements = folder().join(environment.requirements);
    let wanted = fs::read_to_string(&requirements).unwrap();
    let installed = directory.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Some(programs);
    }
    let pip = || {
        let mut command = Command::new(programs.join("python"));
        command.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]);
        command
    };
    let made = succeeds(Command::new(INTERPRETER).args(["-m", "venv"]).arg(&directory))
        && succeeds(pip().arg("-r").arg(&requirements))
        && [folder(), folder().join(environment.plugin)].iter().all(|package| {
            succeeds(pip().args(["--no-deps", "--no-build-isolation", "-e"]).arg(package))
        });
    if !made {
        let file = environment.requirements;
        skip(Requirement::Program, &format!("the packages of python/{file} (python3-venv, PyPI)"));
        return None;
    }
    fs::write(&installed, wanted).unwrap();
    Some(programs)
}

fn run(programs: &Path, program: &str, arguments: &[&str]) -> Output {
    Command::new(programs.join(program))
        .args(arguments)
        .current_dir(folder())
        .env("PENSTOCK_BINARY", common::PENSTOCK)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Asserts success and prints the last line of the output, which has the counts.
#[track_caller]
fn passes(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    println!("{}", text.lines().next_back().unwrap_or_default());
}

/// Runs files of tests; what they skip is listed with the skipped tests of the workspace.
fn pytest(environment: &PythonEnvironment, arguments: &[&str]) {
    let Some(programs) = programs(environment) else { return };
    let scratch = tempfile::tempdir().unwrap();
    let base = format!("--basetemp={}", scratch.path().join("pytest").display());
    let output = run(&programs, "pytest", &[&["-q", "--tb=short", &base], arguments].concat());
    passes(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.starts_with("SKIPPED [")) {
        skip(Requirement::Program, line);
    }
}

#[test]
fn client_suite_passes() {
    let others = ["fsspec", "libraries", "airflow"];
    let others = others.map(|name| format!("--ignore=tests/test_{name}.py"));
    pytest(&CLIENT_ENVIRONMENT, &others.each_ref().map(String::as_str));
}

#[test]
fn filesystem_suite_passes() {
    pytest(&CLIENT_ENVIRONMENT, &["tests/test_fsspec.py", "tests/test_libraries.py"]);
}

#[test]
fn notebooks_execute() {
    pytest(&CLIENT_ENVIRONMENT, &["--nbmake", "--nbmake-timeout=120", "notebooks"]);
}

/// Notebook whose requests progress under the eyes of the reader.
const LIVE_NOTEBOOK: &str = "campaign-with-deadlines.ipynb";

/// JupyterLab with a copy of that notebook. When dropped it ends its kernels, and those the daemons of the notebook.
struct JupyterLab {
    server: Child,
    url: String,
    _directory: TempDir,
}

impl JupyterLab {
    fn start(programs: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [files, settings, runtime] = ["files", "settings", "runtime"].map(|name| {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        });
        let notebooks = folder().join("notebooks");
        fs::copy(notebooks.join(LIVE_NOTEBOOK), files.join(LIVE_NOTEBOOK)).unwrap();
        symlink(notebooks.join("playground.py"), files.join("playground.py")).unwrap();
        let overrides = json!({
            "@jupyterlab/apputils-extension:notification": { "fetchNews": "false", "checkForUpdates": false },
            // Else cells outside the window are not in the document.
            "@jupyterlab/notebook-extension:tracker": { "windowingMode": "none" },
        });
        fs::write(settings.join("overrides.json"), overrides.to_string()).unwrap();
        let log = directory.path().join("log");
        let mut server = Command::new(programs.join("jupyter-lab"))
            .args(["--no-browser", "--allow-root", "--expose-app-in-browser"])
            .args(["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--IdentityProvider.token="])
            .arg(format!("--LabApp.app_settings_dir={}", settings.display()))
            .arg(format!("--ServerApp.root_dir={}", files.display()))
            .env("HOME", directory.path())
            .env("JUPYTER_RUNTIME_DIR", &runtime)
            .env("PENSTOCK_BINARY", common::PENSTOCK)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&files)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let file = runtime.join(format!("jpserver-{}.json", server.id()));
        let url = wait_until("JupyterLab serves", Duration::from_secs(60), || {
            let ended = server.try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(&log).unwrap());
            let facts: Value = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            facts["url"].as_str().map(str::to_owned)
        });
        Self { server, url, _directory: directory }
    }
}

impl Drop for JupyterLab {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.server.id().to_string()).status();
        let _ = self.server.wait();
    }
}

/// Bars of requests in the page, each with its state and percentage: `bars()`; and all that were ever shown: `window.seen`.
const BARS: &str = "
    window.bars = () => [...document.querySelectorAll('.jp-OutputArea-output [role=progressbar]')].map((bar) => ({
        state: bar.parentElement.querySelector('code').innerText,
        percent: Number(bar.ariaValueNow),
        width: bar.clientWidth,
        filled: bar.firstElementChild.getBoundingClientRect().width,
        colour: getComputedStyle(bar.firstElementChild).backgroundColor,
    }));
    window.seen = [];
    new MutationObserver(() => window.seen.push(...bars()))
        .observe(document.body, { subtree: true, childList: true, attributes: true });
";

#[test]
fn jupyterlab_shows_progress_in_place() {
    let Some(programs) = programs(&CLIENT_ENVIRONMENT) else { return };
    let lab = JupyterLab::start(&programs);
    let mut browser = Browser::start(1000, 1600);
    // Commands go to the notebook that has the focus.
    browser.call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }));
    browser.open(&format!("{}lab/tree/{LIVE_NOTEBOOK}", lab.url));
    browser.sees("Python 3 (ipykernel) | Idle");
    browser.ask(BARS);
    browser.ask("void jupyterapp.commands.execute('notebook:run-all-cells').then((good) => { window.good = good; })");
    browser.until(
        "seen.some((bar) => bar.state === 'active' && bar.percent > 0 && bar.percent < 100)",
    );
    for done in 1..=4 {
        browser.until(&format!("bars().filter((bar) => bar.state === 'done').length >= {done}"));
    }
    browser.until("window.good");
    browser.ask("[...document.querySelectorAll('[role=progressbar]')].at(-2).scrollIntoView({ block: 'end' })");
    browser.picture("jupyterlab");
    let bars = browser.ask("bars()");
    let bars = bars.as_array().unwrap();
    // The request that the notebook shows after its submission, and one bar for each of the four that it waited for.
    assert_eq!(bars.len(), 5, "{bars:?}");
    for bar in &bars[1..] {
        assert_eq!((&bar["percent"], &bar["colour"]), (&json!(100), &json!("rgb(46, 125, 50)")));
        assert!(bar["width"].as_f64() > Some(200.0), "{bar}");
        assert_eq!(bar["filled"].as_f64(), bar["width"].as_f64());
    }
}

#[test]
fn airflow_tasks_move_files() {
    pytest(&AIRFLOW_ENVIRONMENT, &["tests/test_airflow.py"]);
}

#[test]
fn sources_are_typed_and_formatted() {
    let Some(programs) = programs(&CLIENT_ENVIRONMENT) else { return };
    for (program, arguments) in [
        ("ruff", &["check", "."][..]),
        ("ruff", &["format", "--check", "."][..]),
        ("mypy", &[][..]),
    ] {
        passes(&run(&programs, program, arguments));
    }
}
