//! What a copy prints: a progress line on a terminal, a summary, one line per file that failed, or one
//! JSON object.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use penstock_mover::client::Snapshot;
use penstock_mover::contact::CopyError;
use penstock_protocol::control::{FailureKind, Placed};
use penstock_protocol::open::RefusalKind;
use penstock_units::{BitRate, ByteCount, display_duration};
use serde_json::{Map, Value, json};

use super::CpArgs;
use super::far_end::Started;
use super::plan::{Running, StartError};
use super::steer::Steering;
use crate::exit::{Code, Failure, say};
use crate::limits::Ceiling;

/// Digests that the JSON object lists at most; a sum file has them all.
const DIGESTS_MAX: usize = 10_000;

/// What to print and how.
#[derive(Debug)]
pub(crate) struct Shown {
    json: bool,
    quiet: bool,
    checksum: String,
    /// Existing files are compared by digest, not by size and time.
    compares: bool,
    checksum_file: Option<PathBuf>,
    protect: &'static str,
    started: Instant,
}

impl Shown {
    /// As the arguments say.
    pub(crate) fn of(args: &CpArgs) -> Self {
        Self {
            json: args.json,
            quiet: args.quiet,
            checksum: args.checksum.to_string(),
            compares: args.compare.is_some(),
            checksum_file: args.checksum_file.clone(),
            protect: match args.protect {
                super::Protect::Full => "full",
                super::Protect::Integrity => "integrity",
            },
            started: Instant::now(),
        }
    }

    fn progress(&self) -> bool {
        !self.json && !self.quiet && io::stderr().is_terminal()
    }
}

/// Says why a copy did not start; one of nothing is done.
pub(crate) fn not_started(shown: &Shown, error: StartError) -> Result<Code, Failure> {
    let print = |error: Option<&CopyError>| {
        if !shown.json {
            return Ok(());
        }
        let (snapshot, seconds) = (Snapshot::default(), shown.started.elapsed().as_secs_f64());
        print_json(&json_of(shown, &snapshot, &BTreeMap::new(), seconds, error, "start"))
    };
    match error {
        StartError::Usage(text) => Err(Failure::new(Code::Usage, anyhow!(text))),
        StartError::Identity(text) => Err(Failure::new(Code::Refused, anyhow!(text))),
        StartError::Nothing => print(None).map(|()| Code::Done),
        StartError::Copy(error) => {
            // Why nothing was copied matters more than that the object is lost.
            let _ = print(Some(&error));
            Err(failure(error))
        }
    }
}

fn failure(error: CopyError) -> Failure {
    let refused = matches!(
        error,
        CopyError::Certificate(_)
            | CopyError::Refused(
                _,
                penstock_protocol::open::Refusal {
                    kind: RefusalKind::Identity | RefusalKind::Permission,
                    ..
                }
            )
    );
    Failure::new(if refused { Code::Refused } else { Code::Failed }, error)
}

impl Running {
    fn is_over(&self) -> bool {
        match self {
            Self::Remote { transfer, .. } => transfer.is_over(),
            Self::ThirdParty { transfer, .. } => transfer.is_over(),
            Self::Local(copy) => copy.is_over(),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        match self {
            Self::Remote { transfer, .. } => transfer.snapshot(),
            Self::ThirdParty { transfer, .. } => transfer.snapshot(),
            Self::Local(copy) => copy.snapshot(),
        }
    }

    /// What became of a far end of ssh that is gone.
    fn far_end_ended(&mut self) -> Option<String> {
        match self {
            Self::Remote { far_end, .. } => far_end.as_mut()?.ended(),
            Self::ThirdParty { far_ends, .. } => {
                far_ends.iter_mut().flatten().find_map(Started::ended)
            }
            Self::Local(_) => None,
        }
    }

    fn take_placed(&self) -> Vec<Placed> {
        match self {
            Self::Remote { transfer, .. } => transfer.take_placed(),
            Self::ThirdParty { transfer, .. } => transfer.take_placed(),
            Self::Local(copy) => copy.sender().take_placed(),
        }
    }

    pub(crate) fn cancel(&self, reason: &str) {
        match self {
            Self::Remote { transfer, .. } => transfer.cancel(reason),
            Self::ThirdParty { transfer, .. } => transfer.cancel(reason),
            Self::Local(copy) => copy.sender().cancel(reason),
        }
    }

    fn wait(&mut self) -> Result<Snapshot, CopyError> {
        match self {
            Self::Remote { transfer, .. } => transfer.wait(),
            Self::ThirdParty { transfer, .. } => transfer.wait(),
            Self::Local(copy) => copy.wait(),
        }
    }
}

/// Files that came into place, on their way to the sum file and the JSON object.
struct Sums {
    file: Option<BufWriter<File>>,
    listed: BTreeMap<String, String>,
}

impl Sums {
    fn take(&mut self, placed: Vec<Placed>) -> io::Result<()> {
        for Placed { path, digest } in placed {
            let digest = digest.to_string();
            if digest.is_empty() {
                continue;
            }
            if let Some(file) = &mut self.file {
                write_sum(file, &digest, path.as_bytes())?;
            }
            if self.listed.len() < DIGESTS_MAX {
                self.listed.insert(path.to_string(), digest);
            }
        }
        Ok(())
    }
}

/// Leaves the last line of each file. A transfer that began anew lists again what the first session
/// had put in place.
fn drop_repeated(path: &Path) -> io::Result<()> {
    let text = std::fs::read(path)?;
    let mut last = BTreeMap::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        // The digest has no space in it.
        let name = line.iter().position(|byte| *byte == b' ').map_or(line, |space| &line[space..]);
        last.insert(name, line);
    }
    std::fs::write(path, last.into_values().collect::<Vec<_>>().concat())
}

/// A line as the coreutils write it: names with newlines or backslashes are escaped and marked.
fn write_sum(out: &mut impl Write, digest: &str, path: &[u8]) -> io::Result<()> {
    if path.iter().any(|byte| matches!(byte, b'\n' | b'\\' | b'\r')) {
        write!(out, "\\{digest}  ")?;
        for byte in path {
            match byte {
                b'\n' => out.write_all(b"\\n")?,
                b'\r' => out.write_all(b"\\r")?,
                b'\\' => out.write_all(b"\\\\")?,
                other => out.write_all(&[*other])?,
            }
        }
    } else {
        write!(out, "{digest}  ")?;
        out.write_all(path)?;
    }
    out.write_all(b"\n")
}

/// Follows a copy to its end.
pub(crate) fn follow(
    mut running: Running,
    shown: &Shown,
    steering: &Steering,
) -> Result<Code, Failure> {
    let mut sums = Sums { file: None, listed: BTreeMap::new() };
    if let Some(path) = &shown.checksum_file {
        match File::create(path) {
            Ok(file) => sums.file = Some(BufWriter::new(file)),
            Err(error) => {
                let path = penstock_protocol::manifest::display_path(path.as_os_str().as_bytes());
                running.cancel("its sum file cannot be written");
                return Err(anyhow!("{path}: {}", penstock_sys::fs::describe(&error)).into());
            }
        }
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the process at once.
        let _ =
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&interrupted));
        let _ = signal_hook::flag::register(signal, Arc::clone(&interrupted));
    }
    let mut line = Progress { drawn: false, enabled: shown.progress() };
    let mut bounds: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut next_draw = Instant::now();
    let mut waiting = None;
    while !running.is_over() {
        std::thread::sleep(Duration::from_millis(10));
        if interrupted.swap(false, Ordering::SeqCst) {
            running.cancel("interrupted");
        }
        steering.answer(&running);
        if Instant::now() < next_draw {
            continue;
        }
        next_draw = Instant::now() + Duration::from_millis(200);
        let now = running.snapshot();
        // Nobody starts it again. While streams live it may be ssh alone that is gone.
        if now.streams == 0
            && let Some(why) = running.far_end_ended()
        {
            running.cancel(&why);
        }
        if now.bits_per_second > 0 {
            *bounds.entry(now.bound_by).or_default() += 1;
        }
        if now.waiting != waiting {
            waiting = now.waiting.clone();
            line.say_waiting(waiting.as_deref(), shown);
        }
        line.draw(&now, shown.started.elapsed());
        if let Err(error) = sums.take(running.take_placed()) {
            running.cancel(&format!("its sum file cannot be written: {error}"));
        }
    }
    let result = running.wait();
    let seconds = shown.started.elapsed().as_secs_f64();
    let snapshot = running.snapshot();
    let written = sums.take(running.take_placed()).and_then(|()| match &mut sums.file {
        Some(file) => file.flush(),
        None => Ok(()),
    });
    let written = written.and_then(|()| match &shown.checksum_file {
        Some(path) if snapshot.sessions > 1 => drop_repeated(path),
        _ => Ok(()),
    });
    line.clear();
    let bound =
        bounds.iter().max_by_key(|(_, count)| **count).map_or(snapshot.bound_by, |(b, _)| b);
    let bound = if bound == "starting" { "latency" } else { bound };
    if !shown.quiet {
        for warning in &snapshot.tally.warnings {
            say(format_args!("warning: {}: {}", warning.path, warning.failure.text));
        }
    }
    for error in &snapshot.tally.errors {
        say(format_args!("{}: {}", error.path, error.failure.text));
    }
    let error = result.as_ref().err();
    let told = match () {
        () if shown.json => {
            print_json(&json_of(shown, &snapshot, &sums.listed, seconds, error, bound))
        }
        () if error.is_none() && !shown.quiet => {
            // A closed pipe ends a summary, not a copy.
            let _ = summary(&snapshot, seconds, bound, shown);
            Ok(())
        }
        () => Ok(()),
    };
    match (result, written) {
        (Err(CopyError::Cancelled(reason)), _) => {
            Err(anyhow!("{reason}: run the same command again to go on from here").into())
        }
        (Err(error), _) => Err(failure(error)),
        (Ok(_), Err(error)) => Err(anyhow!("the sum file is not complete: {error}").into()),
        (Ok(_), Ok(())) => told.map(|()| outcome(&snapshot)),
    }
}

fn outcome(snapshot: &Snapshot) -> Code {
    let tally = &snapshot.tally;
    match () {
        () if tally.integrity_failed => Code::Integrity,
        () if tally.failed > 0 && tally.entries == 0 => Code::Failed,
        () if tally.failed > 0 => Code::Partial,
        () => Code::Done,
    }
}

struct Progress {
    drawn: bool,
    enabled: bool,
}

impl Progress {
    fn draw(&mut self, now: &Snapshot, elapsed: Duration) {
        if !self.enabled {
            return;
        }
        let tally = &now.tally;
        let done = tally.moved_bytes + tally.resumed_bytes;
        let total = tally.announced_bytes;
        let left = total.saturating_sub(done);
        let eta = match now.bits_per_second / 8 {
            0 => "--".to_owned(),
            rate => display_duration(Duration::from_secs(left / rate)),
        };
        let more = if tally.manifest_complete { "" } else { "+" };
        let text = format!(
            "{} of {}{more}  {} files  {}  {} left{}  {}  bound by {}",
            ByteCount(done),
            ByteCount(total),
            tally.files,
            BitRate(now.bits_per_second),
            eta,
            more,
            display_duration(elapsed),
            now.bound_by,
        );
        let _ = write!(io::stderr(), "\r\x1b[K{text}");
        self.drawn = true;
    }

    /// Says why nothing moves, once for each reason.
    fn say_waiting(&mut self, why: Option<&str>, shown: &Shown) {
        if let Some(why) = why
            && !shown.quiet
        {
            self.clear();
            say(format_args!("waiting: {why}"));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn summary(snapshot: &Snapshot, seconds: f64, bound: &str, shown: &Shown) -> io::Result<()> {
    let tally = &snapshot.tally;
    let rate = BitRate((tally.moved_bytes as f64 * 8.0 / seconds.max(1e-9)) as u64);
    let mut out = io::stdout().lock();
    let failed = match tally.failed {
        0 => String::new(),
        count => format!(", {count} failed"),
    };
    let how = match tally.moved_bytes {
        0 => String::new(),
        _ => format!(": {rate}, bound by {bound}"),
    };
    writeln!(
        out,
        "copied {} in {} files{failed} in {seconds:.1} s{how}",
        ByteCount(tally.bytes),
        tally.files,
    )?;
    if tally.skipped_files > 0 {
        let files = if tally.skipped_files == 1 { "file was" } else { "files were" };
        writeln!(
            out,
            "  {} {files} there already with {} ({})",
            tally.skipped_files,
            if shown.compares { "the same digest" } else { "the same size and time, and not read" },
            ByteCount(tally.skipped_bytes),
        )?;
    }
    let resumed = tally.resumed_bytes - tally.skipped_bytes.min(tally.resumed_bytes);
    if resumed > 0 {
        writeln!(
            out,
            "  {} of unfinished copies were kept: read back and compared with their checksums",
            ByteCount(resumed),
        )?;
    }
    if tally.rejected_bytes > 0 {
        writeln!(
            out,
            "  {} of unfinished copies were not what had been received, and were sent again",
            ByteCount(tally.rejected_bytes),
        )?;
    }
    writeln!(
        out,
        "  {} on every {}file, {} protection, {} to {}",
        shown.checksum,
        if tally.skipped_files > 0 { "copied " } else { "" },
        shown.protect,
        engine(&snapshot.engines.0),
        engine(&snapshot.engines.1),
    )?;
    let streams = usize::from(snapshot.streams_peak);
    if matches!(bound, "network" | "receiver" | "send buffer")
        && let Some(advice) = snapshot
            .rtt
            .and_then(Ceiling::here)
            .and_then(|ceiling| ceiling.advice(rate.0 as f64, streams))
    {
        writeln!(out, "  {advice}")?;
    }
    if let Some(mark) = snapshot.mark {
        let tag = crate::tag::name_of(mark.scitag);
        writeln!(out, "  scitag {tag}, {}", labelled(&snapshot.label))?;
    }
    for address in &snapshot.dropped {
        writeln!(out, "  path given up, it stayed dead: {address}")?;
    }
    Ok(())
}

fn labelled(label: &str) -> &str {
    match label {
        "flow" => "in the flow label of every packet that carries data",
        "destination" => "in a destination option of every packet that carries data",
        "" => "how its packets are labelled is not known",
        // The reason says what was done.
        other => other.strip_prefix("flow: ").unwrap_or(other),
    }
}

fn engine(name: &str) -> &str {
    if name.is_empty() { "metadata only" } else { name }
}

fn json_of(
    shown: &Shown,
    snapshot: &Snapshot,
    digests: &BTreeMap<String, String>,
    seconds: f64,
    error: Option<&CopyError>,
    bound: &str,
) -> Value {
    let tally = &snapshot.tally;
    let errors: Vec<_> = tally
        .errors
        .iter()
        .map(|error| {
            let kind = match error.failure.kind {
                FailureKind::Source => "source",
                FailureKind::Changed => "changed",
                FailureKind::Destination => "destination",
                FailureKind::Integrity => "integrity",
                FailureKind::Refused => "refused",
            };
            json!({"path": error.path, "kind": kind, "error": error.failure.text})
        })
        .collect();
    let engine = match (&*snapshot.engines.0, &*snapshot.engines.1) {
        (one, other) if one == other || other.is_empty() => one.to_owned(),
        ("", other) => other.to_owned(),
        (one, other) => format!("{one} / {other}"),
    };
    json!({
        "ok": error.is_none() && tally.failed == 0,
        "error": error.map(ToString::to_string),
        "bytes": tally.bytes,
        "files": tally.files,
        "seconds": seconds,
        "bits_per_second": tally.moved_bytes as f64 * 8.0 / seconds.max(1e-9),
        "moved_bytes": tally.moved_bytes,
        "network_bytes": snapshot.network_bytes,
        "resumed_bytes": tally.resumed_bytes,
        "skipped_bytes": tally.skipped_bytes,
        "verified_bytes": tally.resumed_bytes.saturating_sub(tally.skipped_bytes),
        "rejected_bytes": tally.rejected_bytes,
        "skipped_files": tally.skipped_files,
        "failed": tally.failed,
        "warnings": tally.warned,
        "retransmits": snapshot.retransmits,
        "streams": snapshot.streams_peak,
        "streams_lost": snapshot.streams_lost,
        "blocks_repeated": snapshot.repeated,
        "sessions": snapshot.sessions,
        "engine": engine,
        "engine_local": snapshot.engines.0,
        "engine_remote": snapshot.engines.1,
        "bound_by": bound,
        "rtt_seconds": snapshot.rtt.map(|rtt| rtt.as_secs_f64()),
        "stream_ceiling_bits_per_second": snapshot.rtt.and_then(Ceiling::here).map(|ceiling| ceiling.bps),
        "protect": shown.protect,
        "scitag": snapshot.mark.map(|mark| mark.scitag),
        "label": snapshot.label.split(':').next().filter(|label| !label.is_empty()),
        "label_note": snapshot.label.split_once(": ").map(|(_, why)| why),
        "checksum": shown.checksum,
        "cpu_local_seconds": snapshot.cpu_us.0 as f64 / 1e6,
        "cpu_remote_seconds": snapshot.cpu_us.1 as f64 / 1e6,
        "memory_peak_bytes": penstock_sys::machine::peak_resident_bytes(),
        "paths_dropped": snapshot.dropped,
        "digests": digests.iter().map(|(path, digest)| (path.clone(), Value::from(digest.clone()))).collect::<Map<_, _>>(),
        "digests_truncated": digests.len() >= DIGESTS_MAX,
        "errors": errors,
    })
}

/// The object is the result for whoever asked for it: lost, even to a closed pipe, it is a failure.
fn print_json(value: &Value) -> Result<(), Failure> {
    let lost = |error: io::Error| {
        let why = penstock_sys::fs::describe(&error);
        anyhow!("the JSON object cannot be written: {why}; what was copied is there")
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{value}").and_then(|()| out.flush()).map_err(|error| lost(error).into())
}
