//! Output of a copy: a progress line on a terminal, a summary, one line for each failed file, or one JSON object.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::CpArgs;
use super::control_socket::ControlSocket;
use super::plan::{RunningCopy, StartError};
use super::ssh_remote::RemoteProcess;
use crate::buffer_limits::Ceiling;
use crate::exit::{Code, CommandFailure, say};
use crate::json::copy::{Copied, FileError};
use crate::local_transfers;
use anyhow::anyhow;
use penstock_agent::http::tuning::TuningFacts;
use penstock_mover::{CopyError, TransferSnapshot};
use penstock_protocol::control::{FailureKind, Placed, TransferTally};
use penstock_protocol::open::RefusalKind;
use penstock_units::{BitRate, ByteCount, display_count, display_duration};
use tempfile::TempPath;

use crate::terminal;

/// Most digests in the JSON object; a sum file has all.
const DIGESTS_MAX: usize = 10_000;

/// Output options of a copy.
#[derive(Debug)]
pub(crate) struct OutputOptions {
    json: bool,
    quiet: bool,
    checksum: String,
    /// Set when existing files are compared by digest, not by size and time.
    compares: bool,
    checksum_file: Option<PathBuf>,
    protect: &'static str,
    give_up_after: Duration,
    started: Instant,
}

impl OutputOptions {
    /// Extracts the output options from the arguments.
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
            give_up_after: args.give_up_after,
            started: Instant::now(),
        }
    }

    fn progress(&self) -> bool {
        !self.json && !self.quiet && io::stderr().is_terminal()
    }
}

/// Reports why a copy did not start; a copy of nothing succeeds.
pub(crate) fn not_started(
    shown: &OutputOptions,
    error: StartError,
) -> Result<Code, CommandFailure> {
    let print = |error: Option<&CopyError>| {
        if !shown.json {
            return Ok(());
        }
        let (snapshot, seconds) =
            (TransferSnapshot::default(), shown.started.elapsed().as_secs_f64());
        let end = CopyEnding { seconds, error, bound: "start", tuning: None };
        print_json(&json_of(shown, &snapshot, &BTreeMap::new(), end))
    };
    match error {
        StartError::Usage(text) => Err(CommandFailure::new(Code::Usage, anyhow!(text))),
        StartError::Identity(text) => Err(CommandFailure::new(Code::Refused, anyhow!(text))),
        StartError::Nothing => print(None).map(|()| Code::Done),
        StartError::Copy(error) => {
            // The start error takes precedence over an output error.
            let _ = print(Some(&error));
            Err(failure(error))
        }
    }
}

fn failure(error: CopyError) -> CommandFailure {
    let code = code_of(&error);
    CommandFailure::new(code, error)
}

/// Failure of a copy that had begun; names how to resume, and after which time without progress the client gave up.
fn failure_after_start(
    error: &CopyError,
    snapshot: &TransferSnapshot,
    shown: &OutputOptions,
) -> CommandFailure {
    const REMEDY: &str = "run the same command again to resume";
    let gave_up = error.is_transient() || matches!(error, CopyError::Forgotten(_));
    let text = match error {
        CopyError::Cancelled(reason) => format!("{reason}: {REMEDY}"),
        error if gave_up && (snapshot.sessions > 0 || error.is_busy()) => {
            format!("{error}; gave up after {}: {REMEDY}", display_duration(shown.give_up_after))
        }
        // The same command would meet the same obstacle.
        CopyError::Rdma(obstacle) => {
            format!("--transport rdma: {obstacle}; --transport auto copies by TCP then")
        }
        error if snapshot.sessions > 0 => format!("{error}: {REMEDY}"),
        error => error.to_string(),
    };
    CommandFailure::new(code_of(error), anyhow!(text))
}

fn code_of(error: &CopyError) -> Code {
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
    if refused { Code::Refused } else { Code::Failed }
}

impl RunningCopy {
    fn is_over(&self) -> bool {
        match self {
            Self::Remote { transfer, .. } => transfer.is_over(),
            Self::ThirdParty { transfer, .. } => transfer.is_over(),
            Self::Local(copy) => copy.is_over(),
        }
    }

    pub(crate) fn snapshot(&self) -> TransferSnapshot {
        match self {
            Self::Remote { transfer, .. } => transfer.snapshot(),
            Self::ThirdParty { transfer, .. } => transfer.snapshot(),
            Self::Local(copy) => copy.snapshot(),
        }
    }

    /// Message about a remote process of ssh that has ended.
    fn remote_ended(&mut self) -> Option<String> {
        match self {
            Self::Remote { remote, .. } => remote.as_mut()?.ended(),
            Self::ThirdParty { remotes, .. } => {
                remotes.iter_mut().flatten().find_map(RemoteProcess::ended)
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

    fn wait(&mut self) -> Result<TransferSnapshot, CopyError> {
        match self {
            Self::Remote { transfer, .. } => transfer.wait(),
            Self::ThirdParty { transfer, .. } => transfer.wait(),
            Self::Local(copy) => copy.wait(),
        }
    }
}

/// Committed files, for the sum file and the JSON object.
struct SumFile {
    file: Option<ListFile>,
    listed: BTreeMap<String, String>,
}

impl SumFile {
    fn take(&mut self, placed: Vec<Placed>) -> io::Result<()> {
        for Placed { path, digest } in placed {
            let digest = digest.to_string();
            if digest.is_empty() {
                continue;
            }
            if let Some(file) = &mut self.file {
                write_sum(&mut file.out, &digest, path.as_bytes())?;
            }
            if self.listed.len() < DIGESTS_MAX {
                self.listed.insert(path.to_string(), digest);
            }
        }
        Ok(())
    }
}

/// List of digests under a temporary name until it is complete; a pipe or device is written at once.
struct ListFile {
    path: PathBuf,
    out: BufWriter<File>,
    partial: Option<TempPath>,
}

impl ListFile {
    fn create(path: &Path) -> io::Result<Self> {
        // A link keeps leading to the list.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            let out = BufWriter::new(File::options().write(true).open(&path)?);
            return Ok(Self { path, out, partial: None });
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mode = Permissions::from_mode(0o666);
        let directory = directory.unwrap_or(Path::new("."));
        let created = tempfile::Builder::new()
            .prefix(".penstock-list-")
            .permissions(mode)
            .tempfile_in(directory)?;
        let (file, partial) = created.into_parts();
        Ok(Self { path, out: BufWriter::new(file), partial: Some(partial) })
    }

    /// Gives the list its name.
    fn finish(mut self, may_repeat: bool) -> io::Result<()> {
        self.out.flush()?;
        let Some(partial) = self.partial else { return Ok(()) };
        if may_repeat {
            drop_repeated(&partial)?;
        }
        partial.persist(&self.path).map_err(|error| error.error)
    }
}

/// Keeps the last line of each file: a restarted transfer lists files again that its first session committed.
fn drop_repeated(path: &Path) -> io::Result<()> {
    let text = std::fs::read(path)?;
    let mut last = BTreeMap::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        // The digest contains no space.
        let name = line.iter().position(|byte| *byte == b' ').map_or(line, |space| &line[space..]);
        last.insert(name, line);
    }
    std::fs::write(path, last.into_values().collect::<Vec<_>>().concat())
}

/// Writes a line as the coreutils do: names with newlines or backslashes are escaped and marked.
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

/// A flag that SIGINT, SIGTERM and SIGHUP set. The second SIGINT or SIGTERM ends the process at once; a
/// terminal that closes sends SIGHUP more than once. SIGHUP stays ignored below `nohup`.
fn catch_signals() -> Arc<AtomicBool> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let _ =
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&interrupted));
        let _ = signal_hook::flag::register(signal, Arc::clone(&interrupted));
    }
    if !penstock_sys::machine::ignores_signal(SIGHUP) {
        let _ = signal_hook::flag::register(SIGHUP, Arc::clone(&interrupted));
    }
    interrupted
}

/// Follows a copy to its end.
pub(crate) fn follow(
    mut running: RunningCopy,
    shown: &OutputOptions,
    steering: &ControlSocket,
) -> Result<Code, CommandFailure> {
    let mut sums = SumFile { file: None, listed: BTreeMap::new() };
    if let Some(path) = &shown.checksum_file {
        match ListFile::create(path) {
            Ok(file) => sums.file = Some(file),
            Err(error) => {
                let path = penstock_protocol::manifest::display_path(path.as_os_str().as_bytes());
                running.cancel("its sum file cannot be written");
                return Err(anyhow!("{path}: {}", penstock_sys::fs::describe(&error)).into());
            }
        }
    }
    let interrupted = catch_signals();
    let mut line = CopyProgress { drawn: false, enabled: shown.progress() };
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
        // The remote is not restarted. While streams live only ssh may have ended.
        if now.streams == 0
            && let Some(why) = running.remote_ended()
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
    if let Err(error) = local_transfers::keep_tuning(&running.tuning()) {
        tracing::debug!("the decisions about the streams are not kept: {error:#}");
    }
    if let Err(error) = local_transfers::keep_trace(running.samples()) {
        tracing::debug!("its trace is not kept: {error:#}");
    }
    let seconds = shown.started.elapsed().as_secs_f64();
    let snapshot = running.snapshot();
    let written = sums.take(running.take_placed()).and_then(|()| match sums.file.take() {
        Some(file) => file.finish(snapshot.sessions > 1),
        None => Ok(()),
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
    let printed = match () {
        () if shown.json => {
            let end = CopyEnding { seconds, error, bound, tuning: Some(running.tuning()) };
            print_json(&json_of(shown, &snapshot, &sums.listed, end))
        }
        () if error.is_none() && !shown.quiet => {
            // A closed pipe fails the summary, not the copy.
            let _ = summary(&snapshot, seconds, bound, shown);
            Ok(())
        }
        () => Ok(()),
    };
    match (result, written) {
        (Err(error), _) => Err(failure_after_start(&error, &snapshot, shown)),
        (Ok(_), Err(error)) => Err(anyhow!("the sum file is not complete: {error}").into()),
        (Ok(_), Ok(())) => printed.map(|()| outcome(&snapshot)),
    }
}

fn outcome(snapshot: &TransferSnapshot) -> Code {
    let tally = &snapshot.tally;
    match () {
        () if tally.integrity_failed => Code::Integrity,
        () if tally.failed > 0 && !tally.has_arrivals() => Code::Failed,
        () if tally.failed > 0 => Code::Partial,
        () => Code::Done,
    }
}

struct CopyProgress {
    drawn: bool,
    enabled: bool,
}

impl CopyProgress {
    fn draw(&mut self, now: &TransferSnapshot, elapsed: Duration) {
        if !self.enabled {
            return;
        }
        let text = progress_line(now, elapsed, terminal::columns_of(io::stderr()));
        let _ = write!(io::stderr(), "\r{text}\x1b[K");
        self.drawn = true;
    }

    /// Prints why no bytes move, once for each reason.
    fn say_waiting(&mut self, why: Option<&str>, shown: &OutputOptions) {
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

/// State of a copy in one line, shorter than `columns`: a terminal that fills its last column wraps. On narrow terminals
/// less important parts are left out.
fn progress_line(now: &TransferSnapshot, elapsed: Duration, columns: usize) -> String {
    let tally = &now.tally;
    // Holes of sparse files are not moved: they count once their file is in place.
    let done = tally.bytes.max(tally.moved_bytes + tally.resumed_bytes);
    let total = tally.announced_bytes;
    let left = total.saturating_sub(done);
    let eta = match now.bits_per_second / 8 {
        0 => "--".to_owned(),
        rate => display_duration(Duration::from_secs_f64(left as f64 / rate as f64)),
    };
    let more = if tally.manifest_complete { "" } else { "+" };
    // Each part with its priority: the smallest is left out first.
    let mut parts = vec![
        (6, format!("{} of {}{more}", ByteCount(done), ByteCount(total))),
        (2, display_count(tally.files, "file")),
        (5, BitRate(now.bits_per_second).to_string()),
        (4, format!("{eta} left{more}")),
        (1, display_duration(elapsed)),
        (3, format!("bound by {}", now.bound_by)),
    ];
    let room = columns.saturating_sub(1);
    loop {
        let texts: Vec<&str> = parts.iter().map(|(_, text)| text.as_str()).collect();
        let line = texts.join("  ");
        if terminal::width(&line) <= room || parts.len() == 1 {
            return terminal::cut(&line, room);
        }
        let least = parts.iter().map(|(importance, _)| *importance).min();
        parts.retain(|(importance, _)| Some(*importance) != least);
    }
}

/// Changes at the destination by a copy that sent no file, one per line.
fn changes_without_data(tally: &TransferTally, shown: &OutputOptions) -> Vec<String> {
    let count = |count: u64, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    };
    // Files with an equal digest get the attributes of the source; those of equal size and time are left alone.
    let files = Some(tally.files)
        .filter(|_| shown.compares)
        .and_then(|files| count(files, "file", "files"));
    let directories = tally.entries.saturating_sub(tally.files + tally.links);
    let directories = count(directories, "directory", "directories");
    let attributes: Vec<String> = files.into_iter().chain(directories).collect();
    let links = count(tally.links, "link has", "links have");
    let links = links.map(|links| format!("{links} the target and time of the source"));
    let attributes = (!attributes.is_empty()).then(|| {
        let have =
            if attributes.len() == 1 && attributes[0].starts_with("1 ") { "has" } else { "have" };
        format!(
            "{} {have} the mode, times and, where permitted, owner of the source",
            attributes.join(" and ")
        )
    });
    attributes.into_iter().chain(links).collect()
}

/// First line of the summary; `changes` are those without data.
fn headline(snapshot: &TransferSnapshot, seconds: f64, bound: &str, changes: &[String]) -> String {
    let tally = &snapshot.tally;
    let files = display_count(tally.files, "file");
    if has_nothing_to_do(snapshot) {
        let are = if tally.files == 1 { "is" } else { "are" };
        let verb = if changes.is_empty() { "do" } else { "send" };
        let bytes = ByteCount(tally.bytes);
        return format!("nothing to {verb}: {files} ({bytes}) {are} already there");
    }
    if tally.failed > 0 && !tally.has_arrivals() {
        return format!("nothing was copied: {} failed in {seconds:.1} s", tally.failed);
    }
    let failed = match tally.failed {
        0 => String::new(),
        count => format!(", {count} failed"),
    };
    let how = match tally.moved_bytes {
        0 => String::new(),
        _ => format!(": {}, bound by {bound}", mean_rate(snapshot, seconds)),
    };
    format!("copied {} in {files}{failed} in {seconds:.1} s{how}", ByteCount(tally.bytes))
}

/// True if all files were in place before.
fn has_nothing_to_do(snapshot: &TransferSnapshot) -> bool {
    let tally = &snapshot.tally;
    tally.files > 0
        && tally.skipped_files == tally.files
        && tally.moved_bytes == 0
        && tally.failed == 0
}

fn mean_rate(snapshot: &TransferSnapshot, seconds: f64) -> BitRate {
    BitRate((snapshot.tally.moved_bytes as f64 * 8.0 / seconds.max(1e-9)) as u64)
}

fn summary(
    snapshot: &TransferSnapshot,
    seconds: f64,
    bound: &str,
    shown: &OutputOptions,
) -> io::Result<()> {
    let tally = &snapshot.tally;
    let rate = mean_rate(snapshot, seconds);
    let mut out = io::stdout().lock();
    let changes = changes_without_data(tally, shown);
    writeln!(out, "{}", headline(snapshot, seconds, bound, &changes))?;
    if has_nothing_to_do(snapshot) {
        return changes.iter().try_for_each(|change| writeln!(out, "  {change}"));
    }
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
    if tally.verified_bytes > 0 {
        writeln!(
            out,
            "  {} of unfinished copies were kept: read back and compared with their checksums",
            ByteCount(tally.verified_bytes),
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
    if !snapshot.transport_reason.is_empty() {
        writeln!(out, "{}", transport_line(snapshot.transport, &snapshot.transport_reason))?;
    }
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

/// Line of the transport of the data streams and the reason for it.
pub(crate) fn transport_line(transport: &str, reason: &str) -> String {
    let name = match transport {
        "rdma" => "RDMA",
        "mixed" => "RDMA and TCP",
        _ => "TCP",
    };
    format!("  data by {name}: {reason}")
}

fn labelled(label: &str) -> &str {
    match label {
        "flow" => "in the flow label of every packet that carries data",
        "destination" => "in a destination option of every packet that carries data",
        "" => "how its packets are labelled is not known",
        // The reason names the method.
        other => other.strip_prefix("flow: ").unwrap_or(other),
    }
}

fn engine(name: &str) -> &str {
    if name.is_empty() { "metadata only" } else { name }
}

/// End of a copy, beside its counters.
struct CopyEnding<'a> {
    /// Duration of the copy.
    seconds: f64,
    /// Reason why it ended early.
    error: Option<&'a CopyError>,
    /// Most frequent bottleneck.
    bound: &'a str,
    /// Decisions about its streams; none where it did not start.
    tuning: Option<TuningFacts>,
}

fn json_of(
    shown: &OutputOptions,
    snapshot: &TransferSnapshot,
    digests: &BTreeMap<String, String>,
    end: CopyEnding<'_>,
) -> Copied {
    let CopyEnding { seconds, error, bound, tuning } = end;
    let tally = &snapshot.tally;
    let errors: Vec<_> = tally
        .errors
        .iter()
        .map(|error| {
            let kind = match error.failure.kind {
                FailureKind::Source => "source",
                FailureKind::Changed => "changed",
                FailureKind::Destination => "destination",
                FailureKind::Integrity | FailureKind::Unexpected => "integrity",
                FailureKind::Refused => "refused",
            };
            FileError { path: error.path.clone(), kind, error: error.failure.text.clone() }
        })
        .collect();
    let engine = match (&*snapshot.engines.0, &*snapshot.engines.1) {
        (one, other) if one == other || other.is_empty() => one.to_owned(),
        ("", other) => other.to_owned(),
        (one, other) => format!("{one} / {other}"),
    };
    Copied {
        ok: error.is_none() && tally.failed == 0,
        error: error.map(ToString::to_string),
        bytes: tally.bytes,
        files: tally.files,
        seconds,
        bits_per_second: tally.moved_bytes as f64 * 8.0 / seconds.max(1e-9),
        moved_bytes: tally.moved_bytes,
        network_bytes: snapshot.network_bytes,
        resumed_bytes: tally.resumed_bytes,
        skipped_bytes: tally.skipped_bytes,
        verified_bytes: tally.verified_bytes,
        rejected_bytes: tally.rejected_bytes,
        skipped_files: tally.skipped_files,
        failed: tally.failed,
        warnings: tally.warned,
        retransmits: snapshot.retransmits,
        streams: snapshot.streams_peak,
        streams_lost: snapshot.streams_lost,
        blocks_repeated: snapshot.repeated,
        sessions: snapshot.sessions,
        engine,
        engine_local: snapshot.engines.0.clone(),
        engine_remote: snapshot.engines.1.clone(),
        bound_by: bound.to_owned(),
        rtt_seconds: snapshot.rtt.map(|rtt| rtt.as_secs_f64()),
        stream_ceiling_bits_per_second: snapshot
            .rtt
            .and_then(Ceiling::here)
            .map(|ceiling| ceiling.bps),
        protect: shown.protect,
        transport: Some(snapshot.transport).filter(|name| !name.is_empty()),
        transport_reason: Some(snapshot.transport_reason.clone()).filter(|why| !why.is_empty()),
        scitag: snapshot.mark.map(|mark| mark.scitag),
        label: snapshot
            .label
            .split(':')
            .next()
            .filter(|label| !label.is_empty())
            .map(str::to_owned),
        label_note: snapshot.label.split_once(": ").map(|(_, why)| why.to_owned()),
        checksum: shown.checksum.clone(),
        cpu_local_seconds: snapshot.cpu_us.0 as f64 / 1e6,
        cpu_remote_seconds: snapshot.cpu_us.1 as f64 / 1e6,
        memory_peak_bytes: penstock_sys::machine::peak_resident_bytes(),
        paths_dropped: snapshot.dropped.clone(),
        digests: digests.clone(),
        digests_truncated: digests.len() >= DIGESTS_MAX,
        tuning,
        errors,
    }
}

/// Prints the object, which is the requested result: a failure to write, even to a closed pipe, fails the verb.
fn print_json(copied: &Copied) -> Result<(), CommandFailure> {
    let lost = |error: io::Error| {
        let why = penstock_sys::fs::describe(&error);
        anyhow!("the JSON object cannot be written: {why}; what was copied is there")
    };
    crate::json::print(copied).map_err(|error| lost(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(tally: TransferTally) -> TransferSnapshot {
        TransferSnapshot {
            tally,
            bits_per_second: 1_800_000_000,
            bound_by: "network",
            ..TransferSnapshot::default()
        }
    }

    fn running() -> TransferSnapshot {
        snapshot(TransferTally {
            moved_bytes: 300 << 20,
            announced_bytes: 700 << 20,
            files: 1,
            manifest_complete: true,
            ..TransferTally::default()
        })
    }

    #[test]
    fn progress_line_fits_every_width() {
        let elapsed = Duration::from_secs(4);
        let whole = progress_line(&running(), elapsed, 1000);
        assert_eq!(
            whole,
            "300 MiB of 700 MiB  1 file  1.80 Gb/s  1.9s left  4.0s  bound by network"
        );
        for columns in 0..200 {
            let line = progress_line(&running(), elapsed, columns);
            assert!(line.len() < columns.max(1), "{columns}: {line}");
            assert!(whole.starts_with(&line) || line.starts_with("300 MiB of 700 MiB"), "{line}");
        }
        assert_eq!(progress_line(&running(), elapsed, 34), "300 MiB of 700 MiB  1.80 Gb/s");
        assert_eq!(progress_line(&running(), elapsed, 8), "300 MiB");
    }

    #[test]
    fn headline_has_correct_plurals() {
        let one = TransferTally {
            files: 1,
            bytes: 700 << 20,
            skipped_files: 1,
            ..TransferTally::default()
        };
        let headline = |tally| headline(&snapshot(tally), 2.0, "network", &[]);
        assert_eq!(headline(one.clone()), "nothing to do: 1 file (700 MiB) is already there");
        let two = TransferTally { files: 2, skipped_files: 2, ..one.clone() };
        assert_eq!(headline(two), "nothing to do: 2 files (700 MiB) are already there");
        let moved = TransferTally { skipped_files: 0, moved_bytes: 700 << 20, ..one };
        let text = headline(moved.clone());
        assert_eq!(text, "copied 700 MiB in 1 file in 2.0 s: 2.94 Gb/s, bound by network");
        let failed = TransferTally { failed: 3, ..moved };
        assert!(headline(failed).starts_with("copied 700 MiB in 1 file, 3 failed in 2.0 s"));
        let renamed = TransferTally { files: 2, skipped_files: 2, ..TransferTally::default() };
        let changes = ["a change".to_owned()];
        let text = super::headline(&snapshot(renamed), 2.0, "network", &changes);
        assert_eq!(text, "nothing to send: 2 files (0 B) are already there");
        let none = TransferTally { failed: 2, ..TransferTally::default() };
        assert_eq!(headline(none), "nothing was copied: 2 failed in 2.0 s");
    }
}
