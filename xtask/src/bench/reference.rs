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
use super::report::{FILES_COPY_LIMIT, FILES_LIMIT};
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
    /// Content comes from the files of the data set, not from memory.
    reads_source: bool,
    work: Rc<Work>,
    stop: Arc<AtomicBool>,
}

impl FileLimit {
    pub(super) fn new(
        work: &Rc<Work>,
        data: &BenchDataset,
        reads_source: bool,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let program = build(work, "files.c")?;
        let (data, work, stop) = (data.clone(), Rc::clone(work), Arc::clone(stop));
        Ok(Self { program, data, reads_source, work, stop })
    }

    fn arguments(&self) -> Vec<String> {
        let bytes = self.data.bytes / self.data.files.max(1);
        let mut arguments = vec![self.data.files.to_string(), bytes.to_string()];
        if self.reads_source {
            arguments.push(self.data.path.display().to_string());
        }
        arguments
    }
}

impl Contestant for FileLimit {
    fn name(&self) -> String {
        if self.reads_source { FILES_COPY_LIMIT } else { FILES_LIMIT }.to_owned()
    }

    fn how(&self) -> String {
        let root = self.work.root.display().to_string();
        format!("files FOLDER {}", self.arguments().join(" ").replace(&root, ""))
    }

    fn note(&self) -> Option<String> {
        let content =
            if self.reads_source { "8 threads read the source" } else { "content from memory" };
        Some(format!(
            "one process, no network: {content}, a sync of the data of each group of files"
        ))
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
