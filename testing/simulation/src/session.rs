//! A session of a transfer: the two state machines of the mover's protocol over a simulated connection.
//!
//! Sender, receiver and control links are production code; simulated are the bytes. The content of a file is its identity,
//! and the checksum of a block a hash of identity and offset, so that a file with blocks of two contents has another
//! digest than its source, as in production.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use penstock_control::orders::OrderId;
use penstock_protocol::control::{Failure, FailureKind, ToReceiver, ToSender};
use penstock_protocol::digest::{Algorithm, Digest, DigestPart};
use penstock_protocol::extents::{Extent, coalesce};
use penstock_protocol::link::{ControlLink, LinkError};
use penstock_protocol::manifest::{Entry, EntryKind, RelativePath, Time};
use penstock_protocol::receiver::{DestinationCheck, Finish, FrameTarget, Receiver};
use penstock_protocol::sender::{FrameTask, Piece, ReadOutcome, Sender, SourceEntry};
use penstock_protocol::wire::{self, Bytes};
use penstock_random::Random;

use crate::data_plane::{DataPlane, DataPlaneTransfer, FileContent, FileKey, join};
use crate::scenario::Defect;

/// Largest block of a frame: a second of a slow transfer.
const BLOCK_BYTES: u32 = 32 << 20;

/// Data streams of a session.
const STREAM_COUNT: u32 = 2;

/// Device of all sources.
const SOURCE_DEVICE: u64 = 1;

/// Time to sync and rename a file at a host that is not slow.
const COMMIT_MS: u64 = 10;

/// Bytes of control messages that are in flight at once.
const CONTROL_WINDOW_BYTES: usize = 64 << 10;

/// Part of a frame that belongs to one file.
#[derive(Debug)]
struct FrameChunk {
    file: u64,
    offset: u64,
    bytes: u64,
    part: DigestPart,
    /// True for a packed file, which is whole.
    is_whole: bool,
}

/// A frame in flight.
#[derive(Debug)]
struct SimulatedFrame {
    sequence: u64,
    chunks: Vec<FrameChunk>,
}

/// An unfinished file at a destination, which survives the sessions that write it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PartialFile {
    extents: Vec<Extent>,
}

/// One session between two hosts.
#[derive(Debug)]
pub(crate) struct ProtocolSession {
    sender: Sender,
    receiver: Receiver,
    sender_link: ControlLink,
    receiver_link: ControlLink,
    streams: Vec<VecDeque<SimulatedFrame>>,
    /// Files that are being committed, with the time of their rename.
    commits: VecDeque<(u64, Finish)>,
    /// Bytes that may be sent now; negative after a large block.
    credit_bytes: i64,
}

fn time(now_ms: u64) -> Duration {
    Duration::from_millis(now_ms)
}

fn entry(path: &str, content: FileContent) -> Entry {
    Entry {
        path: RelativePath::new(path.as_bytes().to_vec()).expect("a path of the scenario"),
        kind: EntryKind::File,
        bytes: content.bytes,
        modified: Time { seconds: content.identity as i64, nanos: 0 },
        changed: Time { seconds: content.identity as i64, nanos: 0 },
        inode: content.identity,
        mode: 0o644,
        uid: 0,
        gid: 0,
        sparse: false,
        link: Bytes::default(),
        xattrs: Vec::new(),
    }
}

/// Content that an entry announces.
fn content_of(entry: &Entry) -> FileContent {
    FileContent { identity: entry.inode, bytes: entry.bytes }
}

/// Checksum of a block.
fn part_of(content: FileContent, offset: u64) -> DigestPart {
    let mut random = Random::new(content.identity.rotate_left(32) ^ offset);
    let mut part = DigestPart::default();
    part.0[..4].copy_from_slice(&(random.next_bits() as u32).to_be_bytes());
    part
}

impl ProtocolSession {
    /// Starts a session that announces `files`, none for a source that does not exist.
    pub(crate) fn new(files: &[(String, Option<FileContent>)], now_ms: u64) -> Self {
        let mut sender = Sender::new(Algorithm::Crc32c, BLOCK_BYTES);
        sender.keep_account();
        for (path, content) in files {
            match content {
                Some(content) => sender.announce(0, SOURCE_DEVICE, entry(path, *content)),
                None => {
                    let failure = Failure::new(FailureKind::Source, "no such file");
                    sender.scan_failed(path.as_bytes(), failure);
                }
            }
        }
        sender.manifest_end();
        let mut session = Self {
            sender,
            receiver: Receiver::new(Algorithm::Crc32c),
            sender_link: ControlLink::new(time(now_ms)),
            receiver_link: ControlLink::new(time(now_ms)),
            streams: (0..STREAM_COUNT).map(|_| VecDeque::new()).collect(),
            commits: VecDeque::new(),
            credit_bytes: 0,
        };
        session.connect_control(now_ms);
        session
    }

    /// Connects the control link again, where both ends send what the other has not received.
    fn connect_control(&mut self, now_ms: u64) {
        self.sender_link.disconnected();
        self.receiver_link.disconnected();
        let (sent, received) = (self.receiver_link.received(), self.sender_link.received());
        self.sender_link.connected(sent, time(now_ms)).expect("the link lost nothing");
        self.receiver_link.connected(received, time(now_ms)).expect("the link lost nothing");
    }

    /// Exchanges control messages; a cut delivers a part of them and connects again.
    fn exchange_control(&mut self, now_ms: u64, is_cut: bool, random: &mut Random) {
        while let Some(message) = self.sender.poll_message() {
            self.sender_link.send(wire::encode(&message));
        }
        while let Some(message) = self.receiver.poll_message() {
            self.receiver_link.send(wire::encode(&message));
        }
        let now = time(now_ms);
        let (mut down, mut up) = (Vec::new(), Vec::new());
        let is_silent = [
            self.sender_link.transmit(now, CONTROL_WINDOW_BYTES, &mut down),
            self.receiver_link.transmit(now, CONTROL_WINDOW_BYTES, &mut up),
        ]
        .contains(&Err(LinkError::IdleTimeout));
        if is_silent {
            // An end did not run for long: both drop the connection and make another.
            return self.connect_control(now_ms);
        }
        if is_cut {
            down.truncate(random.below(down.len() as u64 + 1) as usize);
            up.truncate(random.below(up.len() as u64 + 1) as usize);
        }
        for message in self.receiver_link.receive(&down, now).expect("whole frames") {
            let message: ToReceiver = wire::decode(&message).expect("a message");
            self.receiver.on_message(message).expect("the sender keeps the protocol");
        }
        for message in self.sender_link.receive(&up, now).expect("whole frames") {
            let message: ToSender = wire::decode(&message).expect("a message");
            self.sender.on_message(message).expect("the receiver keeps the protocol");
        }
        if is_cut {
            self.connect_control(now_ms);
        }
    }

    /// Reads a frame of the sender's work.
    fn read(&mut self, work: &FrameTask) -> SimulatedFrame {
        let (pieces, is_whole) = match &work.piece {
            Piece::Block { source, offset, bytes } => {
                (vec![(source.clone(), *offset, *bytes)], false)
            }
            Piece::Pack(sources) => {
                let whole = |source: &Arc<SourceEntry>| (source.clone(), 0, source.entry.bytes);
                (sources.iter().map(whole).collect(), true)
            }
            Piece::Compare { .. } | Piece::Digest(_) => unreachable!("no digest was requested"),
        };
        let mut chunks = Vec::new();
        for (source, offset, bytes) in pieces {
            let part = part_of(content_of(&source.entry), offset);
            self.sender.read(&source, offset..offset + bytes, ReadOutcome::Good(part));
            chunks.push(FrameChunk { file: source.file, offset, bytes, part, is_whole });
        }
        SimulatedFrame { sequence: work.sequence, chunks }
    }

    /// Reads and sends frames within the rate.
    fn send(&mut self, bytes: u64, random: &mut Random) {
        let limit = i64::from(BLOCK_BYTES);
        self.credit_bytes =
            (self.credit_bytes + bytes.min(1 << 40) as i64).min(limit.max(bytes as i64));
        while self.credit_bytes > 0 {
            let Some(work) = self.sender.next_work(SOURCE_DEVICE) else { return };
            let frame = self.read(&work);
            let sent: u64 = frame.chunks.iter().map(|chunk| chunk.bytes).sum();
            self.credit_bytes -= sent as i64;
            let stream = random.below(u64::from(STREAM_COUNT)) as u32;
            self.sender.sent(stream, work);
            self.streams[stream as usize].push_back(frame);
        }
    }
}

impl DataPlane {
    /// Begins a session of a transfer.
    pub(crate) fn begin_session(&self, transfer: &DataPlaneTransfer) -> ProtocolSession {
        let site = &self.hosts[&transfer.from].site;
        let content = |path: &String| {
            let source = (site.clone(), join(&transfer.source, path));
            (path.clone(), self.files.get(&source).copied())
        };
        let files: Vec<_> = transfer.files.iter().map(content).collect();
        ProtocolSession::new(&files, self.now_ms)
    }

    /// Advances a session: control messages, checks of the destination, frames, commits.
    pub(crate) fn run_session(
        &mut self,
        session: &mut ProtocolSession,
        transfer: &mut DataPlaneTransfer,
        order: OrderId,
        bytes: u64,
    ) {
        let is_cut = self.random.below(1000) < self.session_faults_permille;
        session.exchange_control(self.now_ms, is_cut, &mut self.random);
        self.check_destinations(session, transfer);
        session.exchange_control(self.now_ms, false, &mut self.random);
        session.send(bytes, &mut self.random);
        self.deliver(session, transfer, order);
        self.commit(session, transfer, order);
        session.exchange_control(self.now_ms, false, &mut self.random);
        for settled in session.sender.take_settled() {
            let path = String::from_utf8_lossy(&settled.path).into_owned();
            transfer.files.retain(|file| *file != path);
            transfer.settled.push(settled);
        }
        if session.sender.is_finished() {
            transfer.outcome = Some(Ok(()));
        }
    }

    fn target_of(&self, transfer: &DataPlaneTransfer, entry: &Entry) -> FileKey {
        let site = self.hosts[&transfer.to].site.clone();
        (site, join(&transfer.target, &String::from_utf8_lossy(entry.path.as_bytes())))
    }

    fn check_destinations(&mut self, session: &mut ProtocolSession, transfer: &DataPlaneTransfer) {
        while let Some((file, entry)) = session.receiver.poll_check() {
            let target = self.target_of(transfer, &entry);
            let content = content_of(&entry);
            let check = if self.files.get(&target) == Some(&content) {
                self.committed.insert((target, content));
                DestinationCheck::Skip(Digest(Vec::new()))
            } else {
                let partial = self.partials.entry((target, content)).or_default();
                if partial.extents.is_empty() {
                    DestinationCheck::Send
                } else {
                    let extents = std::mem::take(&mut partial.extents);
                    partial.extents = coalesce(Algorithm::Crc32c, content.bytes, extents);
                    DestinationCheck::Resume(partial.extents.clone())
                }
            };
            for extent in session.receiver.decide(file, check) {
                // Storage may have lost bytes.
                let is_intact = self.random.below(1000) >= self.session_faults_permille;
                session.receiver.verified(file, extent.offset, is_intact);
                if !is_intact {
                    let key = (self.target_of(transfer, &entry), content);
                    let partial = self.partials.entry(key).or_default();
                    partial.extents.retain(|one| one.offset != extent.offset);
                }
            }
        }
    }

    fn deliver(
        &mut self,
        session: &mut ProtocolSession,
        transfer: &mut DataPlaneTransfer,
        order: OrderId,
    ) {
        for stream in 0..STREAM_COUNT {
            if self.random.below(1000) < self.session_faults_permille {
                session.streams[stream as usize].clear();
                session.sender.stream_lost(stream);
            }
            while let Some(frame) = session.streams[stream as usize].pop_front() {
                for chunk in frame.chunks {
                    self.write(session, transfer, order, &chunk);
                }
                session.receiver.acknowledge(frame.sequence);
            }
        }
    }

    fn write(
        &mut self,
        session: &mut ProtocolSession,
        transfer: &mut DataPlaneTransfer,
        order: OrderId,
        chunk: &FrameChunk,
    ) {
        let receiver = &mut session.receiver;
        let accepted = receiver.accept(chunk.file, chunk.offset, chunk.bytes);
        let FrameTarget::Write(entry) = accepted.expect("an honest frame") else { return };
        let target = self.target_of(transfer, &entry);
        self.note_write(&target, order, transfer);
        let partial = self.partials.entry((target, content_of(&entry))).or_default();
        let FrameChunk { offset, bytes, part, .. } = *chunk;
        partial.extents.push(Extent { offset, bytes, part: part.0 });
        transfer.moved_bytes += bytes;
        let written = match chunk.is_whole {
            true => receiver.written_whole(chunk.file, bytes, part),
            false => receiver.written(chunk.file, offset, bytes, part),
        };
        written.expect("an honest frame");
    }

    fn commit(
        &mut self,
        session: &mut ProtocolSession,
        transfer: &DataPlaneTransfer,
        order: OrderId,
    ) {
        while let Some((_, entry)) = session.receiver.poll_discard() {
            self.partials.remove(&(self.target_of(transfer, &entry), content_of(&entry)));
            session.receiver.discarded();
        }
        let at_ms = self.now_ms + COMMIT_MS * self.hosts[&transfer.to].slowness;
        while let Some(finish) = session.receiver.poll_finish() {
            session.commits.push_back((at_ms, finish));
        }
        while session.commits.front().is_some_and(|(at_ms, _)| *at_ms <= self.now_ms) {
            let Some((_, finish)) = session.commits.pop_front() else { return };
            let target = self.target_of(transfer, &finish.entry);
            let content = content_of(&finish.entry);
            self.note_write(&target, order, transfer);
            self.partials.remove(&(target.clone(), content));
            if self.random.below(1000) < self.file_faults_permille {
                let kind = self.random.pick(&[
                    FailureKind::Changed,
                    FailureKind::Destination,
                    FailureKind::Integrity,
                ]);
                let failure = Failure::new(kind, "a simulated fault");
                session.receiver.settle(finish.file, Err(failure));
                continue;
            }
            self.notes.push(format!("order {order} commits {}:{}", target.0, target.1));
            if self.defect != Some(Defect::CommitSkipped) {
                self.files.insert(target.clone(), content);
                self.committed.insert((target, content));
            }
            session.receiver.settle(finish.file, Ok(finish.digest));
        }
        if session.receiver.is_complete() {
            session.receiver.finished();
        }
    }

    /// Drops what a lost session has not journalled.
    pub(crate) fn lose_session(&mut self, transfer: &mut DataPlaneTransfer) {
        transfer.session = None;
        if self.session_faults_permille == 0 {
            return;
        }
        let site = self.hosts[&transfer.to].site.clone();
        for file in &transfer.files {
            let target = (site.clone(), join(&transfer.target, file));
            let random = &mut self.random;
            let unfinished = self.partials.iter_mut().filter(|((key, _), _)| *key == target);
            for (_, partial) in unfinished {
                let kept = random.below(partial.extents.len() as u64 + 1) as usize;
                if random.one_in(4) {
                    partial.extents.truncate(kept);
                }
            }
        }
    }
}
