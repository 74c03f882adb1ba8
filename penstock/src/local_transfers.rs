//! Running copies of this user: each listens on a Unix socket in the state directory, where `penstock transfers` finds
//! it.
//!
//! A connection carries one request and one reply, each a line of JSON. Only this user can access the directory. A
//! client that finds the socket of an ended copy removes it. The decisions about the streams of the latest copies stay in
//! files after their end, and the samples of long ones as traces.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use penstock_agent::history::EndedTrace;
use penstock_agent::http::api::{TransferChange, TransferFacts};
use penstock_agent::http::tuning::TuningFacts;
use penstock_daemon::state::StateDir;
use penstock_mover::TunerSample;
use serde::{Deserialize, Serialize};

use crate::credentials;

/// Longest request or reply.
const LINE_BYTES_MAX: u64 = 256 << 10;

/// Most ended copies whose decisions are kept; the latest are.
const ENDED_COPIES_MAX: usize = 32;

/// Limit on each read and write of either side.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Request to a running copy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlRequest {
    /// Report the state.
    Show,
    /// Report the decisions of its tuner.
    Why,
    /// Change rate, streams or threads.
    Set(TransferChange),
    /// End the copy; the same command resumes.
    Cancel,
}

/// Reply to a [`ControlRequest`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlReply {
    /// State of the copy; its id is the process id.
    #[serde(rename = "is")]
    Status(Box<TransferFacts>),
    /// Decisions about its streams.
    Tuning(TuningFacts),
    /// The reason why the copy refuses the request.
    #[serde(rename = "no")]
    Refused(String),
}

/// Directory of the sockets.
pub(crate) fn directory() -> anyhow::Result<PathBuf> {
    Ok(credentials::state()?.path().join("copies"))
}

/// Socket of the copy of a process.
pub(crate) fn socket_path(directory: &Path, process: u32) -> PathBuf {
    directory.join(format!("{process}.sock"))
}

/// Sends a value as one line of JSON.
pub(crate) fn send_line(stream: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives one line of JSON, of at most [`LINE_BYTES_MAX`].
pub(crate) fn receive_line<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> io::Result<T> {
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Sends a request to the copy of a process.
///
/// # Errors
/// When no such copy runs, or it refuses.
pub(crate) fn request(process: u32, what: &ControlRequest) -> anyhow::Result<TransferFacts> {
    request_if_running(process, what)?
        .with_context(|| format!("no copy cp{process} is running: `penstock transfers` lists them"))
}

/// Sends a request to the copy of a process; `None` when no such copy runs.
///
/// # Errors
/// When the copy refuses.
pub(crate) fn request_if_running(
    process: u32,
    what: &ControlRequest,
) -> anyhow::Result<Option<TransferFacts>> {
    request_at(&socket_path(&directory()?, process), what)
}

/// `None` when the copy has ended.
fn request_at(path: &Path, what: &ControlRequest) -> anyhow::Result<Option<TransferFacts>> {
    match exchange(path, what)? {
        None => Ok(None),
        Some(ControlReply::Status(transfer)) => Ok(Some(*transfer)),
        Some(ControlReply::Refused(why)) => Err(anyhow!(why)),
        Some(ControlReply::Tuning(_)) => Err(anyhow!("{}: another answer", path.display())),
    }
}

/// Decisions about the streams of a copy, which runs or is one of the latest that ended after decisions.
///
/// # Errors
/// When there is no such copy.
pub(crate) fn tuning(process: u32) -> anyhow::Result<TuningFacts> {
    let path = socket_path(&directory()?, process);
    match exchange(&path, &ControlRequest::Why)? {
        Some(ControlReply::Tuning(tuning)) => return Ok(tuning),
        Some(_) => return Err(anyhow!("{}: another answer", path.display())),
        None => {}
    }
    let kept = match std::fs::read(ended_directory()?.join(format!("{process}.json"))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    let kept = kept.with_context(|| {
        format!(
            "no copy cp{process} runs, and none is among the latest {ENDED_COPIES_MAX} that changed \
             their streams"
        )
    })?;
    Ok(serde_json::from_slice(&kept)?)
}

/// Directory of the decisions of ended copies.
fn ended_directory() -> anyhow::Result<PathBuf> {
    Ok(credentials::state()?.path().join("copies-ended"))
}

/// Keeps the decisions of this copy, which ends, for [`tuning`].
pub(crate) fn keep_tuning(tuning: &TuningFacts) -> anyhow::Result<()> {
    let directory = ended_directory()?;
    let name = format!("{}.json", std::process::id());
    if tuning.decisions.is_empty() {
        // Another process had this number.
        let _ = std::fs::remove_file(directory.join(name));
        return Ok(());
    }
    StateDir::open(&directory)?.write(&name, &serde_json::to_vec(tuning)?, 0o600)?;
    let age =
        |entry: std::fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut all: Vec<_> = std::fs::read_dir(&directory)?.flatten().filter_map(age).collect();
    all.sort();
    let surplus = all.len().saturating_sub(ENDED_COPIES_MAX);
    all.drain(..surplus).for_each(|(_, path)| drop(std::fs::remove_file(path)));
    Ok(())
}

/// Keeps the samples of this copy, which ends, for the training of models.
pub(crate) fn keep_trace(samples: Arc<VecDeque<TunerSample>>) -> anyhow::Result<()> {
    let ended_unix_seconds = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    let trace = EndedTrace { id: std::process::id().into(), ended_unix_seconds, samples };
    Ok(trace.keep(credentials::state()?.path())?)
}

/// `None` when the copy has ended, or ends before it answers; removes the socket of an ended one.
fn exchange(path: &Path, what: &ControlRequest) -> anyhow::Result<Option<ControlReply>> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(path);
            return Ok(None);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(anyhow!("{}: {error}", path.display())),
    };
    match send_line(&mut stream, what).and_then(|()| receive_line(&stream)) {
        Ok(reply) => Ok(Some(reply)),
        // It ended before it answered.
        Err(error) if is_end(&error) => Ok(None),
        Err(error) => Err(anyhow!("{}: no answer: {error}", path.display())),
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// States of all running copies, by process id.
pub(crate) fn running() -> anyhow::Result<Vec<TransferFacts>> {
    running_in(&directory()?)
}

/// As [`running`], of the sockets in a directory.
pub(crate) fn running_in(directory: &Path) -> anyhow::Result<Vec<TransferFacts>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "sock"));
    // Leaves out copies that end meanwhile.
    let mut all: Vec<_> =
        paths.filter_map(|path| request_at(&path, &ControlRequest::Show).ok().flatten()).collect();
    all.sort_by_key(|transfer| transfer.id);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn copy_that_ends_unanswered_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = socket_path(directory.path(), 1);
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for has_read in [true, false] {
                    let (stream, _) = listener.accept().unwrap();
                    if has_read {
                        let _: ControlRequest = receive_line(&stream).unwrap();
                    }
                }
            });
            for _ in 0..2 {
                assert!(request_at(&path, &ControlRequest::Show).unwrap().is_none());
            }
        });
    }
}
