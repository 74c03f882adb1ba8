//! Commands of the clients, and one measured exchange between a client and a server.

use std::fmt::Write as _;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;

use super::servers::{DavServer, TOKEN};
use crate::bench::contest::{Contestant, RunSample};
use crate::bench::movers::find_program;
use crate::bench::process::{Cost, run_client};
use crate::bench::work::{BenchDataset, Work};

/// Time limit of a client.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Files that a client moves at once.
const PARALLEL_FILES: &str = "8";

/// A client of WebDAV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::bench) enum DavClient {
    /// curl, many files over eight connections.
    Curl,
    /// curl, many files over one connection.
    CurlSerial,
    /// davix, many files by eight processes, a connection each.
    Davix,
    /// rclone, many files over eight connections.
    Rclone,
}

impl DavClient {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Curl => "curl",
            Self::CurlSerial => "curl, one connection",
            Self::Davix => "davix",
            Self::Rclone => "rclone",
        }
    }

    fn program(self, is_upload: bool) -> &'static str {
        match self {
            Self::Curl | Self::CurlSerial => "curl",
            Self::Davix if is_upload => "davix-put",
            Self::Davix => "davix-get",
            Self::Rclone => "rclone",
        }
    }
}

/// A data set that a client moves from or to a server.
pub(super) struct DavExchange {
    pub(super) client: DavClient,
    pub(super) server: Rc<DavServer>,
    pub(super) work: Rc<Work>,
    pub(super) data: BenchDataset,
    pub(super) is_upload: bool,
    pub(super) stop: Arc<AtomicBool>,
}

impl DavExchange {
    fn command(&self) -> Result<Command> {
        let program = match self.client {
            DavClient::Davix if self.data.is_folder => "xargs",
            client => client.program(self.is_upload),
        };
        let mut command = Command::new(program);
        match self.client {
            DavClient::Curl | DavClient::CurlSerial => self.curl(&mut command)?,
            DavClient::Davix => self.davix(&mut command)?,
            DavClient::Rclone => self.rclone(&mut command),
        }
        Ok(command)
    }

    /// Names of the files below their folder.
    fn files(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in std::fs::read_dir(&self.data.path)? {
            let folder = folder?;
            for file in std::fs::read_dir(folder.path())? {
                let names_of = [folder.file_name(), file?.file_name()];
                names.push(names_of.map(|name| name.to_string_lossy().into_owned()).join("/"));
            }
        }
        names.sort();
        Ok(names)
    }

    fn curl(&self, command: &mut Command) -> Result<()> {
        let conf = self.work.configuration();
        command.args(["--silent", "--show-error", "--fail", "--cacert"]).arg(conf.join("ca.pem"));
        command.args(["--oauth2-bearer", TOKEN]);
        let name = self.data.name();
        match (self.data.is_folder, self.is_upload) {
            (false, false) => {
                command.args(["-o", "/dev/null"]).arg(self.server.url(&format!("src/{name}")));
            }
            (false, true) => {
                let url = self.server.url(&format!("dst/in/{name}"));
                command.args(["-o", "/dev/null", "-T"]).arg(&self.data.path).arg(url);
            }
            (true, is_upload) => {
                let mut list = String::new();
                for file in self.files()? {
                    let (below, local) = match is_upload {
                        true => {
                            let flat = file.rsplit('/').next().unwrap_or_default();
                            (format!("dst/in/{flat}"), self.data.path.join(&file))
                        }
                        false => (format!("src/{name}/{file}"), "/dev/null".into()),
                    };
                    let option = if is_upload { "upload-file" } else { "output" };
                    let url = self.server.url(&below);
                    let _ = writeln!(list, "url = \"{url}\"\n{option} = \"{}\"", local.display());
                    if is_upload {
                        list += "output = \"/dev/null\"\n";
                    }
                }
                let path = conf.join("curl.list");
                std::fs::write(&path, list)?;
                if self.client == DavClient::Curl {
                    command.args(["--parallel", "--parallel-max", PARALLEL_FILES]);
                }
                command.arg("--config").arg(path);
            }
        }
        Ok(())
    }

    /// For many files a process each, eight at a time: version 0.8.4 does not get folders, and fails after it has put one.
    fn davix(&self, command: &mut Command) -> Result<()> {
        let conf = self.work.configuration();
        let program = self.client.program(self.is_upload);
        if self.data.is_folder {
            let mut list = String::new();
            for file in self.files()? {
                let local = self.data.path.join(&file).display().to_string();
                let flat = file.rsplit('/').next().unwrap_or_default();
                let _ = match self.is_upload {
                    true => {
                        writeln!(list, "{local} {}", self.server.url(&format!("dst/in/{flat}")))
                    }
                    false => {
                        let url = self.server.url(&format!("src/{}/{file}", self.data.name()));
                        writeln!(list, "{url} /dev/null")
                    }
                };
            }
            let path = conf.join("davix.list");
            std::fs::write(&path, list)?;
            command.arg("--arg-file").arg(path);
            command.args(["--max-procs", PARALLEL_FILES, "--max-args", "2", program]);
        }
        command.arg("--capath").arg(conf.join("authorities"));
        command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
        let name = self.data.name();
        match (self.data.is_folder, self.is_upload) {
            (true, _) => {}
            (false, false) => {
                command.arg(self.server.url(&format!("src/{name}"))).arg("/dev/null");
            }
            (false, true) => {
                let url = self.server.url(&format!("dst/in/{name}"));
                command.arg(&self.data.path).arg(url);
            }
        }
        Ok(())
    }

    fn rclone(&self, command: &mut Command) {
        let conf = self.work.configuration();
        command.env("RCLONE_CONFIG", "/dev/null").arg("--ca-cert").arg(conf.join("ca.pem"));
        command.args(["--webdav-url", &self.server.url(""), "--webdav-vendor", "other"]);
        command.args(["--webdav-bearer-token", TOKEN, "--retries", "1"]);
        let parallel = ["--transfers", PARALLEL_FILES, "--checkers", PARALLEL_FILES];
        let name = self.data.name();
        match (self.data.is_folder, self.is_upload) {
            (false, false) => {
                command.arg("cat").arg(format!(":webdav:src/{name}"));
            }
            (true, false) => {
                command.arg("copy").args(parallel).arg(format!(":webdav:src/{name}"));
                command.arg(self.work.destination().join("in"));
            }
            (false, true) => {
                command.arg("copyto").arg(&self.data.path).arg(format!(":webdav:dst/in/{name}"));
            }
            (true, true) => {
                command.arg("copy").args(parallel).arg(&self.data.path).arg(":webdav:dst/in");
            }
        }
    }

    /// True if the client leaves what it got in the destination.
    fn delivers(&self) -> bool {
        self.is_upload || (self.data.is_folder && self.client == DavClient::Rclone)
    }
}

impl Contestant for DavExchange {
    fn name(&self) -> String {
        self.server.name.to_owned()
    }

    fn how(&self) -> String {
        let Ok(command) = self.command() else { return String::new() };
        let root = self.work.root.display().to_string();
        let arguments: Vec<_> =
            command.get_args().map(|one| one.to_string_lossy().replace(&root, "")).collect();
        format!("{} {}", command.get_program().to_string_lossy(), arguments.join(" "))
    }

    fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
        let program = self.client.program(self.is_upload);
        if find_program(program).is_none() {
            bail!("{program} is not installed");
        }
        let server = self.server.server.as_ref().ok_or_else(|| {
            anyhow!("{}", self.server.failure.as_deref().unwrap_or("the server does not run"))
        })?;
        self.work.reset_kept_cache()?;
        let log = self.work.log(&format!("{}-{}", self.client.name(), self.server.name));
        let cost: Cost = run_client(self.command()?, Some(server), RUN_LIMIT, &log, &self.stop)?;
        let sync = self.work.time_to_durable()?;
        if self.delivers() {
            self.work.check_delivered(&self.data)?;
        }
        let seconds = cost.wall.as_secs_f64();
        Ok(RunSample {
            seconds,
            durable_seconds: Some(seconds + sync.as_secs_f64()),
            bytes: self.data.bytes as f64,
            files: self.data.files,
            cpu_seconds: Some(cost.cpu_seconds),
            client_peak_bytes: cost.client_peak_bytes,
            server_peak_bytes: cost.server_peak_bytes,
        })
    }
}
