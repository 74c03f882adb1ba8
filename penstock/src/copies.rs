//! The copies that this user runs now, whoever the other end is: each listens on a socket in the state
//! directory, where `penstock transfers` finds it.
//!
//! A connection carries one request and one answer, each a line of JSON. Nobody else reaches the
//! directory. A socket whose copy is gone is removed by whoever finds it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_agent::http::api::{Change, Transfer};
use serde::{Deserialize, Serialize};

use crate::credentials;

/// Longest request or answer.
const LINE_BYTES_MAX: u64 = 256 << 10;

/// How long either side waits for the other.
const WITHIN: Duration = Duration::from_secs(2);

/// What a copy can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// How it is going.
    Show,
    /// To change.
    Set(Change),
    /// To end; the same command resumes.
    Cancel,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// How it is going now; the number is the process's.
    Is(Box<Transfer>),
    /// It does not do that, and why.
    No(String),
}

/// Where the sockets are.
pub(crate) fn directory() -> anyhow::Result<PathBuf> {
    Ok(credentials::state()?.path().join("copies"))
}

/// Writes a line.
pub(crate) fn say(stream: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a line.
pub(crate) fn hear<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> io::Result<T> {
    stream.set_read_timeout(Some(WITHIN))?;
    stream.set_write_timeout(Some(WITHIN))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Asks the copy of this process.
///
/// # Errors
/// When there is none, or it does not do that.
pub(crate) fn ask(process: u32, what: &Ask) -> anyhow::Result<Transfer> {
    ask_if_running(process, what)?
        .with_context(|| format!("no copy cp{process} is running: `penstock transfers` lists them"))
}

/// Asks the copy of this process; `None` when there is none.
///
/// # Errors
/// When it does not do that.
pub(crate) fn ask_if_running(process: u32, what: &Ask) -> anyhow::Result<Option<Transfer>> {
    ask_at(&directory()?.join(format!("{process}.sock")), what)
}

/// `None` when nobody is there any more.
fn ask_at(path: &Path, what: &Ask) -> anyhow::Result<Option<Transfer>> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(path);
            return Ok(None);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(anyhow!("{}: {error}", path.display())),
    };
    say(&mut stream, what)?;
    match hear(&stream).with_context(|| format!("{}: no answer", path.display()))? {
        Answer::Is(transfer) => Ok(Some(*transfer)),
        Answer::No(why) => Err(anyhow!(why)),
    }
}

/// All that run, in the order of their processes' numbers.
pub(crate) fn running() -> anyhow::Result<Vec<Transfer>> {
    let entries = match std::fs::read_dir(directory()?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    // One that ends at this moment is none.
    let mut all: Vec<_> =
        paths.filter_map(|path| ask_at(&path, &Ask::Show).ok().flatten()).collect();
    all.sort_by_key(|transfer| transfer.id);
    Ok(all)
}
