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
use super::report::{COPY_LIMIT, FILES_COPY_LIMIT, FILES_LIMIT};
use super::work::{BenchDataset, Work};
use crate::workspace_root;

const RUN_LIMIT: Duration = Duration::from_secs(180);
/// Streams of the copy of one large file: with more of them its buffers leave the processor's cache, which takes 1.8 times
/// the processor time with eight.
const REFERENCE_STREAMS: u32 = 2;

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

/// Parts of a copy whose least cost a program in C measures.
#[derive(Debug, Clone, Copy)]
pub(super) enum CopyParts {
    /// Many files are written from memory.
    Files,
    /// Many files are read and written.
    FilesAndSource,
    /// One file is read, sent over TCP and written.
    LargeFile,
}

/// A copy of a data set by a program in C, as durable as ours, without checksums.
pub(super) struct ReferenceCopy {
    parts: CopyParts,
    program: PathBuf,
    data: BenchDataset,
    work: Rc<Work>,
    stop: Arc<AtomicBool>,
}

impl ReferenceCopy {
    pub(super) fn new(
        parts: CopyParts,
        work: &Rc<Work>,
        data: &BenchDataset,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let source = match parts {
            CopyParts::Files | CopyParts::FilesAndSource => "files.c",
            CopyParts::LargeFile => "copy.c",
        };
        let program = build(work, source)?;
        let (data, work, stop) = (data.clone(), Rc::clone(work), Arc::clone(stop));
        Ok(Self { parts, program, data, work, stop })
    }

    fn arguments(&self) -> Vec<String> {
        let BenchDataset { path, files, bytes, .. } = &self.data;
        let (source, folder) = (path.display(), self.work.destination().join("in"));
        let folder = folder.display();
        let file_bytes = bytes / files.max(&1);
        match self.parts {
            CopyParts::Files => vec![folder.to_string(), files.to_string(), file_bytes.to_string()],
            CopyParts::FilesAndSource => {
                vec![
                    folder.to_string(),
                    files.to_string(),
                    file_bytes.to_string(),
                    source.to_string(),
                ]
            }
            CopyParts::LargeFile => {
                vec![source.to_string(), format!("{folder}/copy"), REFERENCE_STREAMS.to_string()]
            }
        }
    }
}

impl Contestant for ReferenceCopy {
    fn name(&self) -> String {
        let name = match self.parts {
            CopyParts::Files => FILES_LIMIT,
            CopyParts::FilesAndSource => FILES_COPY_LIMIT,
            CopyParts::LargeFile => COPY_LIMIT,
        };
        name.to_owned()
    }

    fn how(&self) -> String {
        let program = self.program.file_name().unwrap_or_default().to_string_lossy();
        let root = self.work.root.display().to_string();
        format!("{program} {}", self.arguments().join(" ").replace(&root, ""))
    }

    fn note(&self) -> Option<String> {
        let note = match self.parts {
            CopyParts::Files => {
                "one process, no network: content from memory, a sync of the data of each group of files"
            }
            CopyParts::FilesAndSource => "the same; 8 threads read the source",
            CopyParts::LargeFile => {
                "one process is both ends: direct reads, pages into the socket, direct writes, no checksum, a sync"
            }
        };
        Some(note.to_owned())
    }

    fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
        self.work.reset(self.data.is_folder)?;
        let mut command = Command::new(&self.program);
        command.args(self.arguments());
        let cost = run_client(command, None, RUN_LIMIT, &self.work.log("reference"), &self.stop)?;
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
