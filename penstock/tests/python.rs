//! The Python package of `python/`: its suites with the built binary, its notebooks, types and style.
//!
//! They run in a virtual environment in `target/python`, the operator of Airflow in `target/airflow`; each is made once
//! for a list of versions.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use penstock_testkit::{Requirement, skip};

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
