//! An order to send files: transfers one after the other until each file has its outcome.
//!
//! Files are sent in groups that have one digest in common; most orders have one group. What is in place is told at
//! once. What failed is told when the transfer is over: a later session of it may have done better. A transfer that cannot
//! begin, or whose other end is lost, is tried again for [`WAIT_MAX`] without any progress. Which attempt may start is
//! decided by [`ExecutionState`] alone: none does once the order was stopped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_mover::agent::outgoing::{OutgoingRequest, OutgoingTransfer};
use penstock_mover::client::{TransferSnapshot, key_hasher};
use penstock_mover::connector::{CopyError, PeerConnector};
use penstock_mover::dial::{AddressPair, TcpDial};
use penstock_mover::identity::{Fingerprint, tls_client_config};
use penstock_operations::execution::{ExecutionEvent, ExecutionState};
use penstock_operations::orders::{
    FILES_MAX, FaultKind, OrderFault, OrderId, Overwrite, ReportedOutcome, Send, Verify,
};
use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::digest::{Algorithm, Digest};
use penstock_protocol::list::{PathList, TEXT_BYTES_MAX};
use penstock_protocol::manifest::RelativePath;
use penstock_protocol::open::{Existing, Mark, Options, PacketLabel, Protection, Push};
use penstock_protocol::wire::Bytes;

use super::faults::{Verdict, fault, lasting, of_copy, of_file, of_own_refusal};
use super::outbox::Outbox;
use super::{Context, InForce};
use crate::gate::controller;
use penstock_mover::agent::Gatekeeper;

/// How long a transfer tries by itself before it is begun anew here.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// How long an order waits for the other end without any progress.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// How long a session that is stopped may take to report what it has put in place. Nothing is sent meanwhile.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(5);

/// Bytes in a block: what a stream carries to its end before it moves to another path.
const BLOCK_BYTES: u32 = 1 << 20;

/// Where an order to send stands.
#[derive(Debug)]
pub(super) enum Step {
    /// It waits, for this.
    Waiting(String),
    /// It runs.
    Running,
    /// It is over.
    Ended(Option<OrderFault>),
}

/// Files that are sent by one transfer.
#[derive(Debug)]
struct Group {
    algorithm: Algorithm,
    expected: HashMap<Vec<u8>, Digest>,
    files: Vec<u32>,
}

/// An order to send that is carried out.
#[derive(Debug)]
pub(super) struct SendWork {
    send: Send,
    key: [u8; 32],
    /// Which file a path is.
    index: HashMap<Vec<u8>, u32>,
    /// Which files have their outcome.
    told: Vec<bool>,
    /// Why files failed so far.
    failed: BTreeMap<u32, (u64, OrderFault)>,
    groups: VecDeque<Group>,
    current: Option<Arc<OutgoingTransfer>>,
    /// What the current transfer was told.
    applied: Option<InForce>,
    /// When to try again, after how long a pause.
    again: Option<(Instant, Duration)>,
    /// Why the last attempt failed.
    why: String,
    progress: Instant,
    state: ExecutionState,
    /// When and why it was stopped.
    stopped: Option<(Instant, String)>,
    /// What transfers before the current one did.
    before: Totals,
    last: TransferSnapshot,
}

/// What is summed up over transfers.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    /// File bytes that crossed the network.
    pub(super) moved_bytes: u64,
    /// TCP segments sent again.
    pub(super) retransmits: u64,
}

impl SendWork {
    /// Begins the order; what cannot be sent at all has its outcome at once.
    ///
    /// # Errors
    /// When nothing of it can be done.
    pub(super) fn begin(
        order: OrderId,
        mut send: Send,
        outbox: &mut Outbox<ReportedOutcome>,
    ) -> Result<Self, OrderFault> {
        if send.files.len() > FILES_MAX {
            let text = format!("{} files are more than {FILES_MAX}: split them", send.files.len());
            return Err(lasting(text));
        }
        if send.files.iter().map(|file| file.path.len() + 1).sum::<usize>() > TEXT_BYTES_MAX {
            return Err(lasting("its list of files is too long: split it"));
        }
        if send.addresses.is_empty() {
            return Err(lasting("it names no address of the other node"));
        }
        let mut index = HashMap::new();
        let mut told = vec![false; send.files.len()];
        let mut groups: BTreeMap<(bool, String), Group> = BTreeMap::new();
        for (number, file) in send.files.iter_mut().enumerate() {
            let place = u32::try_from(number).expect("there are few files");
            let path = std::mem::take(&mut file.path).into_bytes();
            let checked = RelativePath::new(path.clone()).map_err(|error| {
                format!("'{}' is no path below the directory: {error}", path.escape_ascii())
            });
            let checked = checked.and_then(|_| match index.contains_key(&path) {
                true => Err("the same file is listed twice".to_owned()),
                false => file.digest.as_deref().map(parse_digest).transpose(),
            });
            match checked {
                Err(text) => {
                    told[number] = true;
                    let fault = Some(lasting(text));
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
                    let new = || Group { algorithm, expected: HashMap::new(), files: Vec::new() };
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
            told,
            failed: BTreeMap::new(),
            groups: groups.into_values().collect(),
            current: None,
            applied: None,
            again: None,
            why: "it has not begun".to_owned(),
            progress: Instant::now(),
            state: ExecutionState::default(),
            stopped: None,
            before: Totals::default(),
            last: TransferSnapshot::default(),
        })
    }

    /// Goes on, as far as it is time to.
    pub(super) fn step(
        &mut self,
        context: &Context,
        in_force: &InForce,
        outbox: &mut Outbox<ReportedOutcome>,
    ) -> Step {
        if self.current.is_none() {
            if self.groups.is_empty() {
                self.on(ExecutionEvent::Completed);
                return Step::Ended(None);
            }
            if !self.state.may_start() {
                return self.end_stopped(outbox);
            }
            if self.again.is_some_and(|(at, _)| Instant::now() < at) {
                return Step::Waiting(self.why.clone());
            }
            match self.start(context, in_force) {
                Ok(outgoing) => {
                    self.on(ExecutionEvent::Started);
                    self.current = Some(outgoing);
                    self.applied = None;
                }
                Err(verdict) => return self.judge(verdict),
            }
        }
        let Some(current) = self.current.clone() else { return Step::Waiting(self.why.clone()) };
        if self.applied.as_ref() != Some(in_force) && !self.state.is_stopped() {
            self.apply(&current, in_force, context);
        }
        // Looked at first, so that what is taken after an end is all that there was.
        let outcome = current.outcome();
        let before = self.last.tally.moved_bytes;
        self.last = current.snapshot();
        if self.last.tally.moved_bytes > before {
            self.progress = Instant::now();
        }
        for settled in current.take_settled() {
            self.settle(settled, outbox);
        }
        match outcome {
            None if self.is_stop_overdue() => {
                self.current = None;
                self.on(ExecutionEvent::AttemptFailed);
                self.end_stopped(outbox)
            }
            None if self.last.sessions == 0 || self.last.waiting.is_some() => {
                let waiting = self.last.waiting.clone();
                Step::Waiting(waiting.unwrap_or_else(|| "it connects".to_owned()))
            }
            None => Step::Running,
            Some(outcome) => self.ended(outcome, outbox),
        }
    }

    /// Stops it for good; what is durable at the destination is taken up by another order. Stopped once, it stays so.
    pub(super) fn stop(&mut self, reason: &str) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some((Instant::now(), reason.to_owned()));
        self.on(ExecutionEvent::Stop);
        if let Some(current) = &self.current {
            current.cancel(reason);
        }
    }

    fn on(&mut self, event: ExecutionEvent) {
        self.state = self.state.transition(event);
    }

    fn is_stop_overdue(&self) -> bool {
        self.stopped.as_ref().is_some_and(|(since, _)| since.elapsed() > STOP_WITHIN)
    }

    /// The end of a stopped order: files that failed before it was stopped have their outcomes.
    fn end_stopped(&mut self, outbox: &mut Outbox<ReportedOutcome>) -> Step {
        self.tell_failed(outbox);
        self.groups.clear();
        let reason = self.stopped.as_ref().map_or("it was stopped", |(_, reason)| reason.as_str());
        Step::Ended(Some(fault(FaultKind::Cancelled, reason)))
    }

    fn tell_failed(&mut self, outbox: &mut Outbox<ReportedOutcome>) {
        for (file, (bytes, fault)) in std::mem::take(&mut self.failed) {
            self.tell(file, bytes, false, None, Some(fault), outbox);
        }
    }

    /// What it did in all its transfers, and how the last one is or was going.
    pub(super) fn progress(&self) -> (Totals, &TransferSnapshot) {
        let now = Totals {
            moved_bytes: self.before.moved_bytes + self.last.tally.moved_bytes,
            retransmits: self.before.retransmits + self.last.retransmits,
        };
        (now, &self.last)
    }

    fn ended(
        &mut self,
        outcome: Result<(), CopyError>,
        outbox: &mut Outbox<ReportedOutcome>,
    ) -> Step {
        self.current = None;
        self.before.moved_bytes += self.last.tally.moved_bytes;
        self.before.retransmits += self.last.retransmits;
        self.last = TransferSnapshot { mark: self.last.mark, ..TransferSnapshot::default() };
        match outcome {
            Ok(()) => {
                let group = self.groups.pop_front();
                for file in group.into_iter().flat_map(|group| group.files) {
                    let unsaid =
                        || (0, fault(FaultKind::Transient, "the transfer ended without it"));
                    let (bytes, fault) = self.failed.remove(&file).unwrap_or_else(unsaid);
                    self.tell(file, bytes, false, None, Some(fault), outbox);
                }
                self.again = None;
                if self.groups.is_empty() {
                    self.on(ExecutionEvent::Completed);
                    return Step::Ended(None);
                }
                // The next group is another attempt, which a stopped order does not start.
                self.on(ExecutionEvent::AttemptFailed);
                if self.state.may_start() { Step::Running } else { self.end_stopped(outbox) }
            }
            Err(error) => {
                let step = self.judge(of_copy(&error));
                if matches!(step, Step::Ended(_)) {
                    self.tell_failed(outbox);
                }
                step
            }
        }
    }

    /// Tries again later, for a while, what may pass.
    fn judge(&mut self, verdict: Verdict) -> Step {
        let why = match verdict {
            Verdict::End(fault) => {
                self.on(ExecutionEvent::Completed);
                self.groups.clear();
                return Step::Ended(Some(fault));
            }
            Verdict::Wait(why) => why,
        };
        self.on(ExecutionEvent::AttemptFailed);
        if let (false, Some((_, reason))) = (self.state.may_start(), &self.stopped) {
            let reason = fault(FaultKind::Cancelled, reason);
            self.groups.clear();
            return Step::Ended(Some(reason));
        }
        if self.progress.elapsed() > WAIT_MAX {
            self.on(ExecutionEvent::Completed);
            self.groups.clear();
            return Step::Ended(Some(fault(FaultKind::Transient, why)));
        }
        let pause = self.again.map_or(*PAUSE.start(), |(_, pause)| (pause * 2).min(*PAUSE.end()));
        self.again = Some((Instant::now() + pause, pause));
        self.why.clone_from(&why);
        Step::Waiting(why)
    }

    fn settle(&mut self, settled: Settled, outbox: &mut Outbox<ReportedOutcome>) {
        let Some(file) = self.index.get(&settled.path).copied() else { return };
        self.progress = Instant::now();
        self.again = None;
        match settled.result {
            Ok(digest) => {
                self.failed.remove(&file);
                let algorithm = self.groups.front().map_or(Algorithm::None, |one| one.algorithm);
                let digest = (!digest.0.is_empty()).then(|| format!("{algorithm}:{digest}"));
                self.tell(file, settled.bytes, settled.was_there, digest, None, outbox);
            }
            Err(failure) => {
                self.failed.insert(file, (settled.bytes, of_file(&failure)));
            }
        }
    }

    /// Gives a file its outcome, once.
    fn tell(
        &mut self,
        file: u32,
        bytes: u64,
        was_there: bool,
        digest: Option<String>,
        fault: Option<OrderFault>,
        outbox: &mut Outbox<ReportedOutcome>,
    ) {
        let told = self.told.get_mut(file as usize).expect("a file of the order");
        if !std::mem::replace(told, true) {
            outbox.push(ReportedOutcome { file, bytes, was_there, digest, fault });
        }
    }

    fn apply(&mut self, current: &OutgoingTransfer, in_force: &InForce, context: &Context) {
        let before = self.applied.replace(in_force.clone());
        current.change(Settings {
            rate_bps: Some(in_force.rate_bps.map_or(0, |rate| rate.max(1))),
            streams: in_force.streams,
            ..Settings::default()
        });
        if before.is_some_and(|before| before.path == in_force.path) {
            return;
        }
        match path(in_force, context) {
            Err(text) => tracing::warn!("transfer {}: its path stays: {text}", current.id()),
            Ok(path) => {
                if let Err(error) = current.use_path(&path) {
                    tracing::warn!("transfer {}: its path stays: {error}", current.id());
                }
            }
        }
    }

    fn start(
        &self,
        context: &Context,
        in_force: &InForce,
    ) -> Result<Arc<OutgoingTransfer>, Verdict> {
        let Some(group) = self.groups.front() else {
            return Err(Verdict::End(lasting("it has no files")));
        };
        let passing = |text: String| Verdict::End(fault(FaultKind::Transient, text));
        let fingerprint = parse_fingerprint(&self.send.fingerprint).map_err(Verdict::End)?;
        let dial = TcpDial::to_any(&addresses(&self.send.addresses)?)
            .map(|dial| dial.only_to(|to| context.gate.may_send_to(to, false)))
            .map_err(|error| Verdict::End(lasting(error.to_string())))?
            .map_err(|refusal| Verdict::End(lasting(refusal.text)))?;
        let protection = if self.send.encrypt { Protection::Full } else { Protection::Integrity };
        let to = PeerConnector {
            dial: Arc::new(dial),
            tls: tls_client_config(fingerprint, None)
                .map_err(|error| passing(error.to_string()))?,
            token: self.send.ticket.clone(),
            protection,
            give_up_after: GIVE_UP_AFTER,
        };
        let options = Options {
            block_bytes: BLOCK_BYTES,
            algorithm: group.algorithm,
            protection,
            inplace: false,
            xattrs: false,
            compare_digest: !group.expected.is_empty(),
            readback: self.send.verify == Verify::Readback,
            existing: match self.send.overwrite {
                Overwrite::Changed => Existing::Replace,
                Overwrite::Never => Existing::Keep,
            },
            mark: self.send.scitag.map(|scitag| Mark { scitag, label: PacketLabel::Flow }),
            settings: Settings {
                rate_bps: in_force.rate_bps.map(|rate| rate.max(1)),
                streams: Some(in_force.streams.unwrap_or_else(|| default_streams(group))),
                ..Settings::default()
            },
        };
        let push = Push {
            target: Bytes(self.send.to.clone().into_bytes()),
            into_directory: true,
            transfer_key: self.key_of(group),
            options,
        };
        // What has its outcome is not looked at again.
        let open: HashSet<u32> =
            group.files.iter().copied().filter(|file| !self.told[*file as usize]).collect();
        let mut paths: Vec<(u32, &[u8])> = self
            .index
            .iter()
            .filter(|(_, file)| open.contains(file))
            .map(|(path, file)| (*file, path.as_slice()))
            .collect();
        paths.sort_unstable();
        let mut text = Vec::new();
        for (_, path) in paths {
            text.extend_from_slice(path);
            text.push(0);
        }
        let sending = OutgoingRequest {
            to,
            push,
            from: self.send.from.clone().into_bytes(),
            files: Arc::new(PathList::of(text, 0)),
            expected: group.expected.clone(),
        };
        context.mover.send(controller(None), sending).map_err(|refusal| of_own_refusal(&refusal))
    }

    /// Another one for each group: what is left of one is not to be swept away with another.
    fn key_of(&self, group: &Group) -> [u8; 16] {
        let mut hasher = key_hasher();
        hasher.update(&self.key).update(group.algorithm.to_string().as_bytes());
        hasher.update(&[u8::from(group.expected.is_empty())]);
        hasher.finalize().as_bytes()[..16].try_into().expect("a hash has 32 bytes")
    }
}

/// One stream where a digest needs file order; else as many as a copy has by itself.
fn default_streams(group: &Group) -> u16 {
    if !group.algorithm.combines() {
        return 1;
    }
    u16::try_from(penstock_sys::machine::cores()).unwrap_or(8).clamp(2, 8)
}

fn path(in_force: &InForce, context: &Context) -> Result<Vec<AddressPair>, String> {
    let parse = |text: &str| {
        text.parse::<IpAddr>().map_err(|_| format!("'{text}' is no address: write it in figures"))
    };
    let pair = |pair: &penstock_operations::orders::AddressPair| {
        let pair = AddressPair { from: parse(&pair.from)?, to: parse(&pair.to)? };
        let port = crate::config::MOVER_PORT;
        context
            .gate
            .may_send_to(SocketAddr::new(pair.to, port), false)
            .map_err(|refusal| refusal.text)?;
        Ok(pair)
    };
    in_force.path.iter().map(pair).collect()
}

fn addresses(texts: &[String]) -> Result<Vec<SocketAddr>, Verdict> {
    let mut found = Vec::new();
    let mut why = String::new();
    for text in texts.iter().take(64) {
        match text.to_socket_addrs() {
            Ok(all) => found.extend(all),
            Err(error) => why = format!("{text}: {error}"),
        }
    }
    if found.is_empty() { Err(Verdict::Wait(why)) } else { Ok(found) }
}

/// In hexadecimal, with or without the word for SHA-256.
fn parse_fingerprint(text: &str) -> Result<Fingerprint, OrderFault> {
    let bare = text.strip_prefix("SHA256:").unwrap_or(text);
    format!("SHA256:{bare}").parse().map_err(|_| {
        lasting(
            "the other node's fingerprint is not 64 hexadecimal digits: it is to report it anew",
        )
    })
}

/// `algorithm:hexadecimal`.
fn parse_digest(text: &str) -> Result<(Algorithm, Digest), String> {
    let shown: String = text.chars().take(100).collect();
    let bad = |why: &str| format!("'{shown}' is no digest: {why}");
    let (algorithm, hex) = text.split_once(':').ok_or_else(|| bad("write crc32c:0a0b0c0d"))?;
    let algorithm: Algorithm = algorithm.to_ascii_lowercase().parse()?;
    let length = match algorithm {
        Algorithm::None => return Err(bad("name its algorithm")),
        Algorithm::Crc32c | Algorithm::Adler32 => 4,
        Algorithm::Md5 => 16,
        Algorithm::Blake3 | Algorithm::Sha256 => 32,
    };
    // Some write such numbers without the zeros before them.
    let padded = if length == 4 { format!("{hex:0>8}") } else { hex.to_owned() };
    let digits = padded.bytes().map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8));
    let digits: Option<Vec<u8>> = digits.collect();
    let digits = digits.filter(|digits| digits.len() == 2 * length);
    let digits = digits.ok_or_else(|| bad("it has another length, or is not hexadecimal"))?;
    Ok((algorithm, Digest(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())))
}

#[cfg(test)]
mod tests {
    use penstock_operations::orders::File;

    use super::*;

    #[test]
    fn digests_are_read_as_catalogues_write_them() {
        let digest = |text: &str| parse_digest(text).map(|(a, d)| format!("{a}:{d}"));
        assert_eq!(digest("adler32:0a0b0c0d").as_deref(), Ok("adler32:0a0b0c0d"));
        assert_eq!(digest("ADLER32:A0B0C0D").as_deref(), Ok("adler32:0a0b0c0d"));
        assert!(digest(&format!("sha256:{}", "ab".repeat(32))).is_ok());
        for bad in ["", "crc32c", "crc32c:123456789", "crc32c:zz", "none:", "crc32:1", "md5:00"] {
            assert!(digest(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_sent_has_its_outcome_at_once() {
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
            encrypt: true,
        };
        let mut outbox = Outbox::default();
        let work = SendWork::begin(1, send, &mut outbox).unwrap();
        let (_, told) = outbox.told(|_| true);
        let files: Vec<u32> = told.iter().map(|outcome| outcome.file).collect();
        assert_eq!(files, [1, 2, 3, 4, 5, 6, 7, 8, 10]);
        for outcome in told {
            assert_eq!(outcome.fault.unwrap().kind, FaultKind::Permanent);
        }
        assert_eq!(work.groups.front().unwrap().files, [0, 9]);
    }
}
