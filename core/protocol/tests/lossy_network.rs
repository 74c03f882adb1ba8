//! Both state machines over an in-memory network with a virtual clock. The network cuts streams and
//! control connections, kills the receiver and changes files, all at moments drawn from a seed.
//!
//! In every case the destination ends equal to the source, byte for byte, and every file is settled
//! once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_protocol::control::{ToReceiver, ToSender};
use penstock_protocol::digest::{self, Algorithm, Digest, DigestPart, RangeHasher};
use penstock_protocol::extents::{Extent, Extents};
use penstock_protocol::link::ControlLink;
use penstock_protocol::manifest::{Entry, EntryKind, RelativePath, Time};
use penstock_protocol::receiver::{DestinationCheck, FrameTarget, Receiver};
use penstock_protocol::sender::{FrameTask, Piece, ReadOutcome, Sender};
use penstock_protocol::wire::{self, Bytes};
use penstock_random::Random;
use proptest::prelude::*;

const BLOCK_BYTES: u32 = 64 << 10;
const STREAM_COUNT: u32 = 3;

/// Part of a frame in flight that belongs to one file.
#[derive(Clone)]
struct Chunk {
    file: u64,
    offset: u64,
    data: Vec<u8>,
    part: DigestPart,
    whole: bool,
}

struct Frame {
    sequence: u64,
    chunks: Vec<Chunk>,
}

/// Destination storage, which survives the receivers that write to it.
#[derive(Default)]
struct Store {
    placed: BTreeMap<RelativePath, (Vec<u8>, Time)>,
    /// By path and source time, so that a new version never meets bytes of an older one.
    partial: BTreeMap<(RelativePath, Time), (Vec<u8>, Vec<Extent>)>,
}

struct Network {
    random: Random,
    algorithm: Algorithm,
    now: Duration,
    sources: BTreeMap<RelativePath, (Vec<u8>, Time)>,
    store: Store,
    sender: Sender,
    receiver: Receiver,
    sender_link: ControlLink,
    receiver_link: ControlLink,
    streams: Vec<VecDeque<Frame>>,
    sent_bytes: u64,
    /// Number of changes to sources.
    changes: u64,
}

impl Network {
    fn new(seed: u64, algorithm: Algorithm) -> Self {
        let mut random = Random::new(seed);
        let mut sources = BTreeMap::new();
        for number in 0..1 + random.below(40) {
            let bytes = match random.below(4) {
                0 => random.below(10 * u64::from(BLOCK_BYTES)),
                1 => u64::from(BLOCK_BYTES) * random.below(5),
                _ => random.below(9000),
            };
            let data = (0..bytes).map(|_| random.below(256) as u8).collect();
            let path = RelativePath::new(format!("run/{number}").into_bytes()).expect("a path");
            sources.insert(path, (data, Time { seconds: number as i64, nanos: 0 }));
        }
        Self {
            random,
            algorithm,
            now: Duration::ZERO,
            sources,
            store: Store::default(),
            sender: Sender::new(algorithm, BLOCK_BYTES),
            receiver: Receiver::new(algorithm),
            sender_link: ControlLink::new(Duration::ZERO),
            receiver_link: ControlLink::new(Duration::ZERO),
            streams: Vec::new(),
            sent_bytes: 0,
            changes: 0,
        }
    }

    /// Starts a new session at both ends, as after a crash of either.
    fn begin(&mut self) {
        self.sender = Sender::new(self.algorithm, BLOCK_BYTES);
        self.receiver = Receiver::new(self.algorithm);
        self.sender_link = ControlLink::new(self.now);
        self.receiver_link = ControlLink::new(self.now);
        self.streams = (0..STREAM_COUNT).map(|_| VecDeque::new()).collect();
        self.reconnect();
        for (path, (data, modified)) in &self.sources {
            self.sender.announce(0, 1, entry(path, data, *modified));
        }
        self.sender.manifest_end();
    }

    fn reconnect(&mut self) {
        self.sender_link.disconnected();
        self.receiver_link.disconnected();
        let (sent, received) = (self.receiver_link.received(), self.sender_link.received());
        self.sender_link.connected(sent, self.now).expect("the link lost nothing");
        self.receiver_link.connected(received, self.now).expect("the link lost nothing");
    }

    fn control(&mut self) {
        while let Some(message) = self.sender.poll_message() {
            self.sender_link.send(wire::encode(&message));
        }
        while let Some(message) = self.receiver.poll_message() {
            self.receiver_link.send(wire::encode(&message));
        }
        let (mut down, mut up) = (Vec::new(), Vec::new());
        self.sender_link.transmit(self.now, 4096, &mut down).expect("the link is not idle");
        self.receiver_link.transmit(self.now, 4096, &mut up).expect("the link is not idle");
        let cut = self.random.one_in(12);
        if cut {
            down.truncate(self.random.below(down.len() as u64 + 1) as usize);
            up.truncate(self.random.below(up.len() as u64 + 1) as usize);
        }
        for message in self.receiver_link.receive(&down, self.now).expect("frames are complete") {
            let message: ToReceiver = wire::decode(&message).expect("a message");
            self.receiver.on_message(message).expect("the sender follows the protocol");
        }
        for message in self.sender_link.receive(&up, self.now).expect("frames are complete") {
            let message: ToSender = wire::decode(&message).expect("a message");
            self.sender.on_message(message).expect("the receiver follows the protocol");
        }
        if cut {
            self.reconnect();
        }
    }

    fn check_destination(&mut self) {
        while let Some((file, entry)) = self.receiver.poll_check() {
            let same = |(data, modified): &(Vec<u8>, Time)| {
                data.len() as u64 == entry.bytes && *modified == entry.modified
            };
            let key = (entry.path.clone(), entry.modified);
            let verdict = match (self.store.placed.get(&entry.path), self.store.partial.get(&key)) {
                (Some(placed), _) if same(placed) => DestinationCheck::Skip(Digest(Vec::new())),
                (_, Some((_, extents))) => DestinationCheck::Resume(extents.clone()),
                _ if entry.bytes == 0 => {
                    self.store.placed.insert(entry.path.clone(), (Vec::new(), entry.modified));
                    DestinationCheck::Done(Digest(Vec::new()))
                }
                _ => {
                    self.store.partial.insert(key, (vec![0; entry.bytes as usize], Vec::new()));
                    DestinationCheck::Send
                }
            };
            let algorithm = self.algorithm;
            for extent in self.receiver.decide(file, verdict) {
                let key = (entry.path.clone(), entry.modified);
                let (data, _) =
                    self.store.partial.get_mut(&key).expect("a resumed file has ranges");
                let range = extent.offset as usize..(extent.offset + extent.bytes) as usize;
                // Storage may have lost bytes.
                if self.random.one_in(4) {
                    data[range.start] ^= 1;
                }
                let mut hasher =
                    RangeHasher::new(algorithm, extent.offset, extent.bytes, entry.bytes)
                        .expect("a range of blocks");
                hasher.update(&data[range]);
                let is_intact = hasher.finish().0 == extent.part;
                self.receiver.verified(file, extent.offset, is_intact);
            }
        }
    }

    fn read_and_send(&mut self) {
        for _ in 0..self.random.below(4) {
            let Some(work) = self.sender.next_work(1) else { return };
            let Some(frame) = self.read(&work) else { continue };
            let stream = self.random.below(u64::from(STREAM_COUNT)) as u32;
            self.sent_bytes +=
                frame.chunks.iter().map(|chunk| chunk.data.len() as u64).sum::<u64>();
            self.sender.sent(stream, work);
            self.streams[stream as usize].push_back(frame);
        }
    }

    fn read(&mut self, work: &FrameTask) -> Option<Frame> {
        let (pieces, whole): (Vec<_>, bool) = match &work.piece {
            Piece::Block { source, offset, bytes } => {
                (vec![(source.clone(), *offset..*offset + *bytes)], false)
            }
            Piece::Pack(sources) => (
                sources.iter().map(|source| (source.clone(), 0..source.entry.bytes)).collect(),
                true,
            ),
            Piece::Compare { .. } | Piece::Digest(_) => unreachable!("no digests were requested"),
        };
        let mut chunks = Vec::new();
        for (source, range) in pieces {
            if self.random.one_in(200) {
                let (data, modified) = self.sources.get_mut(&source.entry.path).expect("a source");
                data.push(7);
                modified.nanos += 1;
                self.changes += 1;
            }
            let (data, modified) = &self.sources[&source.entry.path];
            if data.len() as u64 != source.entry.bytes || *modified != source.entry.modified {
                let fresh = entry(&source.entry.path, data, *modified);
                self.sender.read(&source, range, ReadOutcome::Changed(Some(Box::new(fresh))));
                continue;
            }
            let bytes = data[range.start as usize..range.end as usize].to_vec();
            let crc = digest::crc32c(&bytes);
            let part = digest::part(self.algorithm, range.start, data.len() as u64, &bytes, crc);
            self.sender.read(&source, range.clone(), ReadOutcome::Good(part));
            chunks.push(Chunk { file: source.file, offset: range.start, data: bytes, part, whole });
        }
        (!chunks.is_empty() || whole).then_some(Frame { sequence: work.sequence, chunks })
    }

    fn deliver(&mut self) {
        for stream in 0..STREAM_COUNT {
            if self.random.one_in(15) {
                self.streams[stream as usize].clear();
                self.sender.stream_lost(stream);
            }
            for _ in 0..self.random.below(3) {
                let Some(frame) = self.streams[stream as usize].pop_front() else { break };
                for chunk in frame.chunks {
                    self.write(chunk);
                }
                self.receiver.acknowledge(frame.sequence);
            }
        }
    }

    fn write(&mut self, chunk: Chunk) {
        let bytes = chunk.data.len() as u64;
        let place =
            self.receiver.accept(chunk.file, chunk.offset, bytes).expect("the frame is valid");
        let FrameTarget::Write(entry) = place else { return };
        let key = (entry.path.clone(), entry.modified);
        let partial = self.store.partial.get_mut(&key).expect("the file was started by its check");
        let start = chunk.offset as usize;
        partial.0[start..start + chunk.data.len()].copy_from_slice(&chunk.data);
        partial.1.push(Extent { offset: chunk.offset, bytes, part: chunk.part.0 });
        if chunk.whole {
            self.receiver.written_whole(chunk.file, bytes, chunk.part).expect("the pack is valid");
        } else {
            self.receiver
                .written(chunk.file, chunk.offset, bytes, chunk.part)
                .expect("the block is valid");
        }
    }

    fn place(&mut self) {
        while let Some((_, entry)) = self.receiver.poll_discard() {
            self.store.partial.remove(&(entry.path.clone(), entry.modified));
            self.receiver.discarded();
        }
        while let Some(finish) = self.receiver.poll_finish() {
            let key = (finish.entry.path.clone(), finish.entry.modified);
            let (data, extents) = self.store.partial.remove(&key).expect("the file was written");
            let mut whole = Extents::new(self.algorithm, data.len() as u64);
            for extent in extents {
                whole
                    .insert(extent.offset, extent.bytes, DigestPart(extent.part))
                    .expect("ranges do not overlap");
            }
            assert_eq!(whole.digest(), Some(finish.digest.clone()));
            let mut serial = digest::Serial::new(self.algorithm).expect("an algorithm");
            serial.update(&data);
            assert_eq!(
                serial.finish(),
                finish.digest,
                "the placed bytes have the announced digest"
            );
            self.store.placed.insert(key.0, (data, key.1));
            self.receiver.settle(finish.file, Ok(finish.digest));
        }
        if self.receiver.is_complete() {
            self.receiver.finished();
        }
    }

    fn run(&mut self, kills: u64) {
        let mut kills = kills;
        self.begin();
        for step in 0_u64.. {
            assert!(step < 200_000, "the transfer does not end");
            self.now += Duration::from_millis(1);
            self.control();
            self.check_destination();
            self.read_and_send();
            self.deliver();
            self.place();
            if self.sender.is_finished() {
                break;
            }
            if kills > 0 && self.random.one_in(60) {
                kills -= 1;
                self.begin();
            }
        }
    }
}

fn entry(path: &RelativePath, data: &[u8], modified: Time) -> Entry {
    Entry {
        path: path.clone(),
        kind: EntryKind::File,
        bytes: data.len() as u64,
        modified,
        changed: modified,
        inode: 1,
        mode: 0o644,
        uid: 0,
        gid: 0,
        sparse: false,
        link: Bytes::default(),
        xattrs: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..penstock_testkit::properties() })]

    #[test]
    fn dataset_arrives_despite_losses(seed: u64, kills in 0_u64..4, blake in any::<bool>()) {
        let algorithm = if blake { Algorithm::Blake3 } else { Algorithm::Crc32c };
        let mut network = Network::new(seed, algorithm);
        network.run(kills);
        let tally = network.sender.tally();
        let changed = tally.failed;
        prop_assert_eq!(tally.files + changed, network.sources.len() as u64, "{:?}", tally);
        let mut missing = 0;
        for (path, source) in &network.sources {
            // A file that changed in every attempt is reported and not committed.
            match network.store.placed.get(path) {
                Some(placed) if placed == source => {}
                _ => missing += 1,
            }
        }
        // A source may change again after it was placed, which no copy can undo.
        prop_assert!(missing >= changed);
        // A version committed before the sender reported the change counts at the receiver, and so does
        // its replacement.
        let placed = network.receiver.tally();
        let more = (placed.files - tally.files, placed.bytes - tally.bytes);
        prop_assert!(more.0 <= network.changes, "{more:?}");
        prop_assert!(network.changes > 0 || more == (0, 0), "{more:?}");
    }
}

#[test]
fn repeated_transfer_sends_nothing() {
    let mut network = Network::new(42, Algorithm::Crc32c);
    network.random = Random::new(7);
    network.run(0);
    let first = network.sent_bytes;
    network.run(0);
    assert_eq!(network.sent_bytes, first, "a repeated command sends nothing");
    assert_eq!(network.sender.tally().skipped_files, network.sender.tally().files);
}
