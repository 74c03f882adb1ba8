//! Execution of an order to send: transfers one after the other until each file has its outcome.
//!
//! Each group of files with one digest algorithm is one transfer; most orders have one group. A success is
//! reported at once, a failure when the transfer ends: a later session of it may still succeed. A transfer
//! that cannot begin or loses its other end is retried for [`NO_PROGRESS_TIMEOUT`] without progress.
//! [`ExecutionState`] alone decides whether another attempt may start: none does after a stop.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_control::agent::{EffectiveSettings, Outbox};
use penstock_control::execution::{ExecutionEvent, ExecutionState};
use penstock_control::orders::{
    FILES_MAX, FaultKind, OrderFault, OrderId, PathForecast, ReportedOutcome, Send,
};
use penstock_mover::CopyError;
use penstock_mover::{TransferSnapshot, key_hasher};
use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::digest::{Algorithm, Digest, UnknownAlgorithm};
use penstock_protocol::list::TEXT_BYTES_MAX;
use penstock_protocol::manifest::{PathError, RelativePath};

use super::engine::{EngineTransfer, TransferEngine, TransferRequest};
use super::faults::{FailureAction, fault, of_copy, of_file, permanent};

/// Time without progress after which an order fails.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for a stopped session to report what is in place. Nothing is sent meanwhile.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Back-off between attempts.
const RETRY_BACKOFF: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(5);

/// State of an order after a step.
#[derive(Debug)]
pub(super) enum SendStep {
    /// Waiting, with the reason.
    Waiting(String),
    /// A transfer is under way.
    Running,
    /// Ended, with a fault unless every file has its outcome.
    Ended(Option<OrderFault>),
}

/// Files of one transfer: they share a digest algorithm.
#[derive(Debug)]
struct DigestGroup {
    algorithm: Algorithm,
    expected: HashMap<Vec<u8>, Digest>,
    files: Vec<u32>,
}

/// An order to send under execution.
#[derive(Debug)]
pub(super) struct SendExecution {
    send: Send,
    key: [u8; 32],
    /// Index of each path in the order.
    index: HashMap<Vec<u8>, u32>,
    /// True for each file that has its outcome.
    has_outcome: Vec<bool>,
    /// Failures of the current transfer by file, with the bytes of the file.
    failed: BTreeMap<u32, (u64, OrderFault)>,
    groups: VecDeque<DigestGroup>,
    current: Option<Arc<dyn EngineTransfer>>,
    /// Settings that the current transfer has.
    applied: Option<EffectiveSettings>,
    /// Time of the next attempt, with the back-off before it.
    next_attempt: Option<(Instant, Duration)>,
    /// Reason why the last attempt failed.
    reason: String,
    last_progress: Instant,
    state: ExecutionState,
    /// Time and reason of the stop.
    stopped: Option<(Instant, String)>,
    /// Rates by earlier transfers, and the bytes for which they were computed.
    forecast: Option<PathForecast>,
    forecast_bytes: u64,
    /// Totals of the transfers before the current one.
    before: Totals,
    last: TransferSnapshot,
}

/// Sums over all transfers of an order.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    /// File bytes on the network.
    pub(super) moved_bytes: u64,
    /// TCP segments retransmitted by earlier attempts.
    pub(super) retransmits: u64,
}

impl SendExecution {
    /// Begins the order; files that cannot be sent get their outcome at once.
    ///
    /// # Errors
    /// When no file of the order can be sent.
    pub(super) fn begin(
        order: OrderId,
        mut send: Send,
        outbox: &mut Outbox<ReportedOutcome>,
        now: Instant,
    ) -> Result<Self, OrderFault> {
        if send.files.len() > FILES_MAX {
            let text = format!("{} files are more than {FILES_MAX}: split them", send.files.len());
            return Err(permanent(text));
        }
        if send.files.iter().map(|file| file.path.len() + 1).sum::<usize>() > TEXT_BYTES_MAX {
            return Err(permanent("its list of files is too long: split it"));
        }
        if send.addresses.is_empty() {
            return Err(permanent("it names no address of the other node"));
        }
        let mut index = HashMap::new();
        let mut has_outcome = vec![false; send.files.len()];
        let mut groups: BTreeMap<(bool, String), DigestGroup> = BTreeMap::new();
        for (number, file) in send.files.iter_mut().enumerate() {
            let place = u32::try_from(number).expect("there are few files");
            let path = std::mem::take(&mut file.path).into_bytes();
            let checked = RelativePath::new(path.clone())
                .map_err(|error| ListedFileError::Path { path: path.clone(), error });
            let checked = checked.and_then(|_| match index.contains_key(&path) {
                true => Err(ListedFileError::Twice),
                false => Ok(file.digest.as_deref().map(parse_digest).transpose()?),
            });
            match checked {
                Err(error) => {
                    has_outcome[number] = true;
                    let fault = Some(permanent(error.to_string()));
                    let outcome = ReportedOutcome {
                        file: place,
                        bytes: 0,
                        was_there: false,
                        digest: None,
                        fault,
                    };
                    outbox.push(outcome);
                }
                Ok(digest) => {
                    let algorithm = digest.as_ref().map_or(Algorithm::Crc32c, |given| given.0);
                    let key = (digest.is_some(), algorithm.to_string());
                    let new =
                        || DigestGroup { algorithm, expected: HashMap::new(), files: Vec::new() };
                    let group = groups.entry(key).or_insert_with(new);
                    group.files.push(place);
                    if let Some((_, digest)) = digest {
                        group.expected.insert(path.clone(), digest);
                    }
                    index.insert(path, place);
                }
            }
        }
        let mut hasher = key_hasher();
        let name = send.batch.clone().unwrap_or_else(|| format!("order {order}"));
        for part in [name.as_bytes(), send.to.as_bytes()] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        Ok(Self {
            key: *hasher.finalize().as_bytes(),
            send,
            index,
            has_outcome,
            failed: BTreeMap::new(),
            groups: groups.into_values().collect(),
            current: None,
            applied: None,
            next_attempt: None,
            reason: "it has not begun".to_owned(),
            last_progress: now,
            state: ExecutionState::default(),
            stopped: None,
            forecast: None,
            forecast_bytes: 0,
            before: Totals::default(),
            last: TransferSnapshot::default(),
        })
    }

    /// Advances the order by a step.
    pub(super) fn step(
        &mut self,
        engine: &dyn TransferEngine,
        settings: &EffectiveSettings,
        outbox: &mut Outbox<ReportedOutcome>,
        now: Instant,
    ) -> SendStep {
        if self.current.is_none() {
            if self.groups.is_empty() {
                self.on(ExecutionEvent::Completed);
                return SendStep::Ended(None);
            }
            if !self.state.may_start() {
                return self.end_stopped(outbox);
            }
            if self.next_attempt.is_some_and(|(at, _)| now < at) {
                return SendStep::Waiting(self.reason.clone());
            }
            match self.start(engine, settings) {
                Ok(outgoing) => {
                    self.on(ExecutionEvent::Started);
                    self.current = Some(outgoing);
                    self.applied = None;
                }
                Err(verdict) => return self.judge(verdict, now),
            }
        }
        let Some(current) = self.current.clone() else {
            return SendStep::Waiting(self.reason.clone());
        };
        if self.applied.as_ref() != Some(settings) && !self.state.is_stopped() {
            self.apply(&*current, settings);
        }
        // Read first: after an end, the results taken below are complete.
        let outcome = current.outcome();
        let before = self.last.tally.moved_bytes;
        self.last = current.snapshot();
        if self.last.tally.moved_bytes > before {
            self.last_progress = now;
        }
        for settled in current.take_settled() {
            self.settle(settled, outbox, now);
        }
        let tally = &self.last.tally;
        if tally.manifest_complete && tally.announced_bytes != self.forecast_bytes {
            self.forecast_bytes = tally.announced_bytes;
            self.forecast = engine.forecast(&self.send, self.forecast_bytes);
        }
        match outcome {
            None if self.is_stop_overdue(now) => {
                self.current = None;
                self.on(ExecutionEvent::AttemptFailed);
                self.end_stopped(outbox)
            }
            None if self.last.sessions == 0 || self.last.waiting.is_some() => {
                let waiting = self.last.waiting.clone();
                SendStep::Waiting(waiting.unwrap_or_else(|| "it connects".to_owned()))
            }
            None => SendStep::Running,
            Some(outcome) => self.ended(outcome, outbox, now),
        }
    }

    /// Stops the order for good; another order resumes from what is durable. Further calls do nothing.
    pub(super) fn stop(&mut self, reason: &str, now: Instant) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some((now, reason.to_owned()));
        self.on(ExecutionEvent::Stop);
        if let Some(current) = &self.current {
            current.cancel(reason);
        }
    }

    fn on(&mut self, event: ExecutionEvent) {
        self.state = self.state.transition(event);
    }

    fn is_stop_overdue(&self, now: Instant) -> bool {
        let overdue = |since: &Instant| now.duration_since(*since) > STOP_TIMEOUT;
        self.stopped.as_ref().is_some_and(|(since, _)| overdue(since))
    }

    /// Ends a stopped order; files that failed before the stop get their outcomes.
    fn end_stopped(&mut self, outbox: &mut Outbox<ReportedOutcome>) -> SendStep {
        self.record_failures(outbox);
        self.groups.clear();
        let reason = self.stopped.as_ref().map_or("it was stopped", |(_, reason)| reason.as_str());
        SendStep::Ended(Some(fault(FaultKind::Cancelled, reason)))
    }

    fn record_failures(&mut self, outbox: &mut Outbox<ReportedOutcome>) {
        for (file, (bytes, fault)) in std::mem::take(&mut self.failed) {
            self.record_outcome(file, bytes, false, None, Some(fault), outbox);
        }
    }

    /// Totals over all transfers, and the state of the current or last one.
    pub(super) fn progress(&self) -> (Totals, &TransferSnapshot) {
        let now = Totals {
            moved_bytes: self.before.moved_bytes + self.last.tally.moved_bytes,
            retransmits: self.before.retransmits + self.last.retransmits,
        };
        (now, &self.last)
    }

    /// Rates that it may have by earlier transfers; none where they are too few.
    pub(super) fn forecast(&self) -> Option<PathForecast> {
        self.forecast
    }

    fn ended(
        &mut self,
        outcome: Result<(), CopyError>,
        outbox: &mut Outbox<ReportedOutcome>,
        now: Instant,
    ) -> SendStep {
        self.current = None;
        self.before.moved_bytes += self.last.tally.moved_bytes;
        self.before.retransmits += self.last.retransmits;
        self.last = TransferSnapshot {
            mark: self.last.mark,
            transport: self.last.transport,
            transport_reason: std::mem::take(&mut self.last.transport_reason),
            ..TransferSnapshot::default()
        };
        match outcome {
            Ok(()) => {
                let group = self.groups.pop_front();
                for file in group.into_iter().flat_map(|group| group.files) {
                    let no_result =
                        || (0, fault(FaultKind::Transient, "the transfer ended without it"));
                    let (bytes, fault) = self.failed.remove(&file).unwrap_or_else(no_result);
                    self.record_outcome(file, bytes, false, None, Some(fault), outbox);
                }
                self.next_attempt = None;
                if self.groups.is_empty() {
                    self.on(ExecutionEvent::Completed);
                    return SendStep::Ended(None);
                }
                // The next group is another attempt, which a stopped order must not start.
                self.on(ExecutionEvent::AttemptFailed);
                if self.state.may_start() { SendStep::Running } else { self.end_stopped(outbox) }
            }
            Err(error) => {
                let step = self.judge(of_copy(&error), now);
                if matches!(step, SendStep::Ended(_)) {
                    self.record_failures(outbox);
                }
                step
            }
        }
    }

    /// Decides on a failure: schedules a retry of a transient one, ends the order otherwise.
    fn judge(&mut self, verdict: FailureAction, now: Instant) -> SendStep {
        let reason = match verdict {
            FailureAction::End(fault) => {
                self.on(ExecutionEvent::Completed);
                self.groups.clear();
                return SendStep::Ended(Some(fault));
            }
            FailureAction::Wait(reason) => reason,
        };
        self.on(ExecutionEvent::AttemptFailed);
        if let (false, Some((_, reason))) = (self.state.may_start(), &self.stopped) {
            let reason = fault(FaultKind::Cancelled, reason);
            self.groups.clear();
            return SendStep::Ended(Some(reason));
        }
        if now.duration_since(self.last_progress) > NO_PROGRESS_TIMEOUT {
            self.on(ExecutionEvent::Completed);
            self.groups.clear();
            return SendStep::Ended(Some(fault(FaultKind::Transient, reason)));
        }
        let pause = self
            .next_attempt
            .map_or(*RETRY_BACKOFF.start(), |(_, pause)| (pause * 2).min(*RETRY_BACKOFF.end()));
        self.next_attempt = Some((now + pause, pause));
        self.reason.clone_from(&reason);
        SendStep::Waiting(reason)
    }

    fn settle(&mut self, settled: Settled, outbox: &mut Outbox<ReportedOutcome>, now: Instant) {
        let Some(file) = self.index.get(&settled.path).copied() else { return };
        self.last_progress = now;
        self.next_attempt = None;
        match settled.result {
            Ok(digest) => {
                self.failed.remove(&file);
                let algorithm = self.groups.front().map_or(Algorithm::None, |one| one.algorithm);
                let digest = (!digest.0.is_empty()).then(|| format!("{algorithm}:{digest}"));
                self.record_outcome(file, settled.bytes, settled.was_there, digest, None, outbox);
            }
            Err(failure) => {
                self.failed.insert(file, (settled.bytes, of_file(&failure)));
            }
        }
    }

    /// Records the outcome of a file, once.
    fn record_outcome(
        &mut self,
        file: u32,
        bytes: u64,
        was_there: bool,
        digest: Option<String>,
        fault: Option<OrderFault>,
        outbox: &mut Outbox<ReportedOutcome>,
    ) {
        let has_outcome = self.has_outcome.get_mut(file as usize).expect("a file of the order");
        if !std::mem::replace(has_outcome, true) {
            outbox.push(ReportedOutcome { file, bytes, was_there, digest, fault });
        }
    }

    fn apply(&mut self, current: &dyn EngineTransfer, settings: &EffectiveSettings) {
        let before = self.applied.replace(settings.clone());
        current.change(Settings {
            rate_bps: Some(settings.rate_bps.map_or(0, |rate| rate.max(1))),
            streams: settings.streams,
            ..Settings::default()
        });
        if before.is_some_and(|before| before.path == settings.path) {
            return;
        }
        if let Err(error) = current.use_path(&settings.path) {
            tracing::warn!("transfer {}: its path stays: {error}", current.id());
        }
    }

    fn start(
        &self,
        engine: &dyn TransferEngine,
        settings: &EffectiveSettings,
    ) -> Result<Arc<dyn EngineTransfer>, FailureAction> {
        let Some(group) = self.groups.front() else {
            return Err(FailureAction::End(permanent("it has no files")));
        };
        // Files with an outcome are not sent again.
        let open: HashSet<u32> =
            group.files.iter().copied().filter(|file| !self.has_outcome[*file as usize]).collect();
        let mut paths: Vec<(u32, &[u8])> = self
            .index
            .iter()
            .filter(|(_, file)| open.contains(file))
            .map(|(path, file)| (*file, path.as_slice()))
            .collect();
        paths.sort_unstable();
        engine.send(TransferRequest {
            order: &self.send,
            key: self.key_of(group),
            algorithm: group.algorithm,
            expected: group.expected.clone(),
            paths: paths.into_iter().map(|(_, path)| path).collect(),
            rate_bps: settings.rate_bps.map(|rate| rate.max(1)),
            streams: settings.streams,
        })
    }

    /// Transfer key of a group. Groups differ, so that none deletes the partial files of another.
    fn key_of(&self, group: &DigestGroup) -> [u8; 16] {
        let mut hasher = key_hasher();
        hasher.update(&self.key).update(group.algorithm.to_string().as_bytes());
        hasher.update(&[u8::from(group.expected.is_empty())]);
        hasher.finalize().as_bytes()[..16].try_into().expect("a hash has 32 bytes")
    }
}

/// A file of an order that cannot be sent.
#[derive(Debug, thiserror::Error)]
enum ListedFileError {
    #[error("'{}' is no path below the directory: {error}", path.escape_ascii())]
    Path { path: Vec<u8>, error: PathError },
    #[error("the same file is listed twice")]
    Twice,
    #[error(transparent)]
    Digest(#[from] ListedDigestError),
}

/// A digest of an order that cannot be compared; texts have its first [`DIGEST_CHARS_SHOWN_MAX`] characters.
#[derive(Debug, thiserror::Error)]
enum ListedDigestError {
    #[error("'{0}' is no digest: write crc32c:0a0b0c0d")]
    Form(String),
    #[error("'{0}' is no digest: name its algorithm")]
    NoAlgorithm(String),
    #[error("'{0}' is no digest: it has another length, or is not hexadecimal")]
    Value(String),
    #[error(transparent)]
    Algorithm(#[from] UnknownAlgorithm),
}

const DIGEST_CHARS_SHOWN_MAX: usize = 100;

/// Parses `algorithm:hexadecimal`.
fn parse_digest(text: &str) -> Result<(Algorithm, Digest), ListedDigestError> {
    let shown = || text.chars().take(DIGEST_CHARS_SHOWN_MAX).collect();
    let (algorithm, hex) = text.split_once(':').ok_or_else(|| ListedDigestError::Form(shown()))?;
    let algorithm: Algorithm = algorithm.to_ascii_lowercase().parse()?;
    let length = match algorithm {
        Algorithm::None => return Err(ListedDigestError::NoAlgorithm(shown())),
        Algorithm::Crc32c | Algorithm::Adler32 => 4,
        Algorithm::Md5 => 16,
        Algorithm::Blake3 | Algorithm::Sha256 => 32,
    };
    // Some catalogues omit leading zeros.
    let padded = if length == 4 { format!("{hex:0>8}") } else { hex.to_owned() };
    let digits = padded.bytes().map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8));
    let digits: Option<Vec<u8>> = digits.collect();
    let digits = digits.filter(|digits| digits.len() == 2 * length);
    let digits = digits.ok_or_else(|| ListedDigestError::Value(shown()))?;
    Ok((algorithm, Digest(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())))
}

#[cfg(test)]
mod tests {
    use penstock_control::orders::{File, Overwrite, Verify};

    use super::*;

    #[test]
    fn catalogue_digests_parse() {
        let digest = |text: &str| parse_digest(text).map(|(a, d)| format!("{a}:{d}")).ok();
        assert_eq!(digest("adler32:0a0b0c0d").as_deref(), Some("adler32:0a0b0c0d"));
        assert_eq!(digest("ADLER32:A0B0C0D").as_deref(), Some("adler32:0a0b0c0d"));
        assert!(digest(&format!("sha256:{}", "ab".repeat(32))).is_some());
        for bad in ["", "crc32c", "crc32c:123456789", "crc32c:zz", "none:", "crc32:1", "md5:00"] {
            assert!(digest(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn unsendable_files_fail_at_once() {
        let files = ["a", "../b", "/c", "", "a", "d/../e", "f\0g", "./h", "i//j", "ok/k", "x"];
        let mut files: Vec<File> =
            files.map(|path| File { path: path.into(), digest: None }).into();
        files[10].digest = Some("md5:short".into());
        let send = Send {
            from: "/out".into(),
            to: "/in".into(),
            files,
            addresses: vec!["127.0.0.1:1".into()],
            fingerprint: String::new(),
            ticket: String::new(),
            batch: None,
            scitag: None,
            overwrite: Overwrite::Changed,
            verify: Verify::Transfer,
            tune: None,
            transport: None,
            encrypt: true,
        };
        let mut outbox = Outbox::default();
        let work =
            SendExecution::begin(OrderId::from(1), send, &mut outbox, Instant::now()).unwrap();
        let (_, outcomes) = outbox.pending(|_| true);
        let files: Vec<u32> = outcomes.iter().map(|outcome| outcome.file).collect();
        assert_eq!(files, [1, 2, 3, 4, 5, 6, 7, 8, 10]);
        for outcome in outcomes {
            assert_eq!(outcome.fault.unwrap().kind, FaultKind::Permanent);
        }
        assert_eq!(work.groups.front().unwrap().files, [0, 9]);
    }
}
