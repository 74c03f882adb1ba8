//! A controller with the interface of FTS3, and storages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use penstock_testkit::{Requirement, skip};
use serde_json::Value;

use crate::common::site::Operations;
use crate::site::{HostCertificate, Site};

/// Bearer token of a client at the controller.
pub(crate) const USER_TOKEN: &str = "the-token-of-an-fts-user";

/// Version of the client of FTS3 on PyPI.
const FTS3_CLIENT: &str = "fts3==3.14.2";

/// Serializes installations of tests that run at the same time.
static INSTALLATION: Mutex<()> = Mutex::new(());

/// Returns the directory of the programs of a package of PyPI, installed once in a virtual environment that is kept
/// between runs. `None`, reported, if that fails.
pub(crate) fn python_programs(name: &str, package: &str, program: &str) -> Option<PathBuf> {
    let _installing = INSTALLATION.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Path::new(crate::common::PENSTOCK).ancestors().nth(2).unwrap();
    let directory = target.join("fts").join(name);
    let programs = directory.join("bin");
    if programs.join(program).is_file() {
        return Some(programs);
    }
    let run = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    let made = run(Path::new("/usr/bin/python3"), &["-m", "venv", directory.to_str().unwrap()])
        && run(&programs.join("pip"), &["-q", "install", package]);
    if !made {
        let needs = "of PyPI (needs python3-venv, swig, libssl-dev, a C compiler, network)";
        skip(Requirement::Program, &format!("{package} {needs}"));
    }
    made.then_some(programs)
}

/// A controller, two gateways, and the certificate that all storages use.
pub(crate) struct Transfers {
    pub(crate) controller: Operations,
    pub(crate) a: Site,
    pub(crate) b: Site,
    pub(crate) certificate: HostCertificate,
    programs: PathBuf,
}

impl Transfers {
    /// Starts them with further lines in `[controller.fts]`; `None` without the client.
    pub(crate) fn start(more: &str) -> Option<Self> {
        let programs = python_programs("client-venv", FTS3_CLIENT, "fts-rest-whoami")?;
        let certificate = HostCertificate::new();
        let site = || Site::with(&certificate.config(), "[third_party]\nto = \"any\"\n");
        let (a, b) = (site(), site());
        let digest = sha256(USER_TOKEN);
        let scopes = "[\"submit:*\", \"operate\"]";
        let controller = Operations::start(&format!(
            "[[controller.token]]\nname = \"alice\"\nsha256 = \"{digest}\"\nscopes = {scopes}\n\
             [controller.fts]\nauthorities = {:?}\n{more}",
            certificate.path("ca.pem")
        ));
        Some(Self { controller, a, b, certificate, programs })
    }

    /// Runs a program of the client with a token.
    pub(crate) fn run_as(&self, token: &str, program: &str, arguments: &[&str]) -> Output {
        let url = format!("http://{}/fts", self.controller.listen);
        let mut command = Command::new(self.programs.join(program));
        command.args(["-s", &url, "--fts-access-token", token]).args(arguments);
        command.env("HOME", self.a.env.path("")).output().unwrap()
    }

    /// Runs a program of the client and returns what it prints; fails unless it succeeds.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run_as(USER_TOKEN, program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Submits a copy with the storages' token and waits for its end; returns the job with its files.
    #[track_caller]
    pub(crate) fn copy(&self, source: &str, destination: &str, more: &[&str]) -> Value {
        let id = self.submit(source, destination, more);
        self.wait(&id)
    }

    #[track_caller]
    pub(crate) fn submit(&self, source: &str, destination: &str, more: &[&str]) -> String {
        let token = crate::site::TOKEN;
        let mut words = vec!["--src-access-token", token, "--dst-access-token", token];
        // A checksum follows the URLs.
        let (checksums, options): (Vec<&str>, Vec<&str>) =
            more.iter().partition(|word| word.contains(':'));
        words.extend(options);
        words.extend([source, destination]);
        words.extend(checksums);
        let printed = self.run("fts-rest-transfer-submit", &words);
        printed.split_whitespace().next_back().unwrap().to_owned()
    }

    /// Waits until a job has ended.
    pub(crate) fn wait(&self, id: &str) -> Value {
        crate::common::wait_until("the job ends", std::time::Duration::from_secs(60), || {
            let job = self.get(&format!("jobs/{id}?files=file_state,reason,transferred"));
            let state = job["job_state"].as_str().unwrap().to_owned();
            (!["SUBMITTED", "READY", "ACTIVE"].contains(&state.as_str())).then_some(job)
        })
    }

    /// Reads a path of the interface.
    pub(crate) fn get(&self, path: &str) -> Value {
        let output = Command::new("curl")
            .args(["-s", "-u", &format!("alice:{USER_TOKEN}")])
            .arg(format!("http://{}/fts/{path}", self.controller.listen))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{path}: {error}: {output:?}"))
    }
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(text: &str) -> String {
    let command = format!("printf %s '{text}' | sha256sum");
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}
