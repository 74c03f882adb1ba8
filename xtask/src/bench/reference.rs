//! Programs of `bench/reference`: the least that a task takes on this machine, in C.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::contest::{Contestant, RunSample};
use super::process::run_client;
use super::report::FILES_LIMIT;
use super::work::{BenchDataset, Work};
use crate::workspace_root;

const RUN_LIMIT: Duration = Duration::from_secs(180);

/// Compiles a program of `bench/reference` into the working folder.
pub(super) fn build(work: &Work, source: &str) -> Result<PathBuf> {
    let program = work.configuration().join(source.trim_end_matches(".c"));
    let status = Command::new("gcc")
        .args(["-O2", "-Wall", "-pthread"])
        .arg(workspace_root().join("bench/reference").join(source))
        .arg("-o")
        .arg(&program)
        .status()
        .context("cannot run gcc: tools/setup.sh build installs it")?;
    ensure!(status.success(), "bench/reference/{source} does not compile");
    Ok(program)
}

/// Files of the same number and size as a data set, written by one process as durably as our receiver writes them.
pub(super) struct FileLimit {
    program: PathBuf,
    data: BenchDataset,
    work: Rc<Work>,
    stop: Arc<AtomicBool>,
}

impl FileLimit {
    pub(super) fn new(
        work: &Rc<Work>,
        data: &BenchDataset,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let program = build(work, "files.c")?;
        Ok(Self { program, data: data.clone(), work: Rc::clone(work), stop: Arc::clone(stop) })
    }

    fn arguments(&self) -> [String; 2] {
        [self.data.files.to_string(), (self.data.bytes / self.data.files.max(1)).to_string()]
    }
}

impl Contestant for FileLimit {
    fn name(&self) -> String {
        FILES_LIMIT.to_owned()
    }

    fn how(&self) -> String {
        format!("files FOLDER {}", self.arguments().join(" "))
    }

    fn note(&self) -> Option<String> {
        Some("one process, no network: content from memory, a sync of the data of each group of files".to_owned())
    }

    fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
        self.work.reset(true)?;
        let mut command = Command::new(&self.program);
        command.arg(self.work.destination().join("in")).args(self.arguments());
        let cost = run_client(command, None, RUN_LIMIT, &self.work.log("files"), &self.stop)?;
        let sync = self.work.time_to_durable()?;
        self.work.check_delivered(&self.data)?;
        let seconds = cost.wall.as_secs_f64();
        Ok(RunSample {
            seconds,
            durable_seconds: Some(seconds + sync.as_secs_f64()),
            bytes: self.data.bytes as f64,
            files: self.data.files,
            cpu_seconds: Some(cost.cpu_seconds),
            client_peak_bytes: cost.client_peak_bytes,
            ..RunSample::default()
        })
    }
}
