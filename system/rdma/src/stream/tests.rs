//! Streams over a simulated connection: two queues of events and the memory of both ends.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};

use penstock_testkit::properties;
use proptest::prelude::*;

use super::*;

/// State of one end.
#[derive(Default)]
struct SimulatedEnd {
    memory: Vec<u8>,
    receives: u32,
    events: VecDeque<RdmaEvent>,
}

struct SimulatedLink {
    ends: [SimulatedEnd; 2],
    /// Writes until the queue pairs fail.
    writes_left: u32,
    failure: Failure,
}

/// Report of a failure of the queue pairs to their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Reported,
    /// Requests never complete.
    Silent,
}

/// One end of a connection whose requests take effect at once, until it fails.
struct SimulatedChannel {
    link: Arc<(Mutex<SimulatedLink>, Condvar)>,
    end: usize,
    slot_bytes: usize,
}

impl SimulatedChannel {
    fn pair(slots: u32, slot_bytes: usize, writes_left: u32, failure: Failure) -> [Self; 2] {
        let end = || SimulatedEnd {
            memory: vec![0; slots as usize * slot_bytes],
            receives: slots,
            events: VecDeque::new(),
        };
        let link = SimulatedLink { ends: [end(), end()], writes_left, failure };
        let link = Arc::new((Mutex::new(link), Condvar::new()));
        [0, 1].map(|end| Self { link: Arc::clone(&link), end, slot_bytes })
    }

    /// Changes the link and wakes the other end.
    fn with<T>(&self, change: impl FnOnce(&mut SimulatedLink) -> T) -> T {
        let result = change(&mut self.link.0.lock().unwrap());
        self.link.1.notify_all();
        result
    }

    fn range(&self, slot: u32, offset: usize, count: usize) -> std::ops::Range<usize> {
        assert!(offset + count <= self.slot_bytes, "beyond the slot");
        let start = slot as usize * self.slot_bytes + offset;
        start..start + count
    }

    /// Delivers a message: it consumes a receive, which must be there.
    fn deliver(&self, link: &mut SimulatedLink, request: PostedRequest, bytes: u32) {
        let peer = &mut link.ends[1 - self.end];
        assert!(peer.receives > 0, "receiver not ready");
        peer.receives -= 1;
        peer.events.push_back(RdmaEvent::Message { bytes, immediate: request.slot });
        if request.signalled {
            link.ends[self.end].events.push_back(RdmaEvent::Completed(request.sequence));
        }
    }
}

impl SlotChannel for SimulatedChannel {
    type Block = Vec<u8>;

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn head_bytes(&self) -> usize {
        self.slot_bytes.div_ceil(2)
    }

    fn answer_timeout(&self) -> Duration {
        self.with(|link| match link.failure {
            Failure::Reported => Duration::from_secs(60),
            Failure::Silent => Duration::from_millis(1),
        })
    }

    fn copy_out(&self, slot: u32, offset: usize, bytes: &mut [u8]) {
        let range = self.range(slot, offset, bytes.len());
        self.with(|link| bytes.copy_from_slice(&link.ends[self.end].memory[range]));
    }

    fn write(
        &self,
        request: PostedRequest,
        head: &[u8],
        part: Option<(&Vec<u8>, Range<usize>)>,
    ) -> Result<(), RdmaFailure> {
        assert!(head.len() <= self.head_bytes(), "a head beyond its memory");
        let mut data = head.to_vec();
        data.extend_from_slice(part.map_or(&[], |(block, bytes)| &block[bytes]));
        let range = self.range(request.slot, 0, data.len());
        self.with(|link| {
            link.writes_left = link.writes_left.saturating_sub(1);
            if link.writes_left > 0 {
                link.ends[1 - self.end].memory[range].copy_from_slice(&data);
                self.deliver(link, request, data.len() as u32);
            }
        });
        Ok(())
    }

    fn grant(&self, request: PostedRequest) -> Result<(), RdmaFailure> {
        self.post_receive()?;
        self.with(|link| {
            if link.writes_left > 0 {
                self.deliver(link, request, 0);
            }
        });
        Ok(())
    }

    fn post_receive(&self) -> Result<(), RdmaFailure> {
        self.with(|link| link.ends[self.end].receives += 1);
        Ok(())
    }

    fn mark(&self) -> Result<(), RdmaFailure> {
        self.with(|link| {
            if link.writes_left > 0 {
                link.ends[self.end].events.push_back(RdmaEvent::Marker);
            }
        });
        Ok(())
    }

    fn wait(
        &self,
        _: Option<BorrowedFd<'_>>,
        timeout: Duration,
        events: &mut Vec<RdmaEvent>,
    ) -> Result<Readiness, RdmaFailure> {
        events.clear();
        let (link, changed) = &*self.link;
        let link = link.lock().unwrap();
        let has_failed =
            |link: &SimulatedLink| link.writes_left == 0 && link.failure == Failure::Reported;
        let is_idle =
            |link: &mut SimulatedLink| link.ends[self.end].events.is_empty() && !has_failed(link);
        let (mut link, _) = changed.wait_timeout_while(link, timeout, is_idle).unwrap();
        events.extend(link.ends[self.end].events.drain(..));
        if events.is_empty() && has_failed(&link) {
            let (device, status) = ("rxe0".to_owned(), "retry exceeded".to_owned());
            return Err(RdmaFailure::Completion { device, status });
        }
        Ok(Readiness::default())
    }
}

/// A whole block, of which the stream holds at most `blocks_held_max`.
fn whole(block: &Arc<Vec<u8>>, blocks_held_max: usize) -> BlockPart<'_, Vec<u8>> {
    BlockPart { block, bytes: 0..block.len(), blocks_held_max }
}

/// Writes `pieces`, each a head and two parts of one block, and reads all that arrives; returns both, and whether the writer succeeded.
fn stream(
    slots: u32,
    slot_bytes: usize,
    pieces: &[(usize, usize)],
    blocks_held_max: usize,
    read_bytes: usize,
    writes_left: u32,
) -> (Vec<u8>, Vec<u8>, bool) {
    let [near, far] = SimulatedChannel::pair(slots, slot_bytes, writes_left, Failure::Reported);
    let total: usize = pieces.iter().map(|(head, body)| head + body).sum();
    let data: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
    let (socket, _other) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writer = SlotWriter::new(near, slots, slots);
            let mut rest = &data[..];
            for (head, body) in pieces {
                let (head, left) = rest.split_at(*head);
                let (body, left) = left.split_at(*body);
                let block = Arc::new(body.to_vec());
                let part = |bytes| Some(BlockPart { block: &block, bytes, blocks_held_max });
                let middle = body.len() / 3;
                writer.write(head, part(0..middle), socket.as_fd())?;
                writer.write(&[], part(middle..body.len()), socket.as_fd())?;
                let last = writer.held.back().expect("its completion was not taken yet");
                assert!(Arc::ptr_eq(&last.block, &block) && last.end.is_some());
                rest = left;
            }
            writer.drain(socket.as_fd(), Duration::from_secs(60))?;
            assert_eq!((writer.written_bytes(), writer.held.len()), (total as u64, 0));
            Ok::<_, RdmaFailure>(())
        });
        let mut reader = SlotReader::new(far, slots);
        let (mut received, mut buffer) = (Vec::new(), vec![0; read_bytes]);
        while received.len() < total {
            match reader.read(&mut buffer, None) {
                Ok(SlotRead::Bytes(count)) => received.extend_from_slice(&buffer[..count]),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        assert_eq!(reader.read_bytes(), received.len() as u64);
        (data.clone(), received, writer.join().unwrap().is_ok())
    })
}

proptest! {
    #![proptest_config(properties())]

    /// All bytes arrive in order, whatever the sizes of slots, writes and reads.
    #[test]
    fn bytes_arrive_in_order(
        slots in 1_u32..9,
        slot_bytes in 1_usize..40,
        pieces in proptest::collection::vec((0_usize..30, 0_usize..200), 0..12),
        blocks_held_max in 0_usize..4,
        read_bytes in 1_usize..64,
    ) {
        let (sent, received, is_written) =
            stream(slots, slot_bytes, &pieces, blocks_held_max, read_bytes, u32::MAX);
        prop_assert!(is_written);
        prop_assert_eq!(sent, received);
    }

    /// A queue pair that fails ends both ends of its stream, and what was read before is right.
    #[test]
    fn failed_queue_pair_ends_stream(
        slots in 1_u32..9,
        pieces in proptest::collection::vec((0_usize..30, 1_usize..200), 4..12),
        writes_left in 1_u32..5,
    ) {
        let (sent, received, is_written) = stream(slots, 7, &pieces, 2, 16, writes_left);
        prop_assert_eq!(is_written, received.len() == sent.len());
        prop_assert!(sent.starts_with(&received));
    }
}

#[test]
fn message_beyond_slot_is_refused() {
    let [near, far] = SimulatedChannel::pair(2, 8, u32::MAX, Failure::Reported);
    let mut reader = SlotReader::new(far, 2);
    near.with(|link| {
        near.deliver(link, PostedRequest { sequence: 0, slot: 1, signalled: false }, 9)
    });
    let error = reader.read(&mut [0; 8], None).unwrap_err();
    assert!(matches!(error, RdmaFailure::MessageLength { bytes: 9, slot_bytes: 8 }), "{error}");
}

#[test]
fn blocks_are_held_until_complete() {
    let [near, _far] = SimulatedChannel::pair(16, 8, u32::MAX, Failure::Reported);
    let (socket, _other) = UnixStream::pair().unwrap();
    let mut writer = SlotWriter::new(near, 16, 16);
    let block = Arc::new(vec![7; 24]);
    writer.write(&[1; 3], Some(whole(&block, 2)), socket.as_fd()).unwrap();
    assert_eq!(Arc::strong_count(&block), 2, "no completion was requested");
    writer.check().unwrap();
    assert_eq!(Arc::strong_count(&block), 1);

    let [near, _far] = SimulatedChannel::pair(16, 8, 2, Failure::Silent);
    let mut writer = SlotWriter::new(near, 16, 16);
    writer.write(&[], Some(whole(&block, 1)), socket.as_fd()).unwrap();
    writer.check().unwrap();
    assert_eq!(Arc::strong_count(&block), 2, "its second message got lost");
    let failure = writer.write(&[], Some(whole(&Arc::new(vec![7; 24]), 1)), socket.as_fd());
    assert!(matches!(failure, Err(RdmaFailure::NoCompletion(_))), "{failure:?}");
    assert_eq!(Arc::strong_count(&block), 2, "the queue pair still exists");
    drop(writer);
    assert_eq!(Arc::strong_count(&block), 1);
}

#[test]
fn lost_messages_end_idle_sender() {
    // The third message gets lost. Its completion is not requested: the sender has slots left, and no more data.
    let [near, _far] = SimulatedChannel::pair(16, 8, 3, Failure::Silent);
    let (socket, _other) = UnixStream::pair().unwrap();
    let mut writer = SlotWriter::new(near, 16, 16);
    writer.write(&[1; 12], None, socket.as_fd()).unwrap();
    let failure = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        writer.check().err()
    });
    assert!(matches!(failure, Some(RdmaFailure::NoCompletion(_))), "{failure:?}");
}

#[test]
fn lost_messages_end_waiting_sender() {
    let [near, _far] = SimulatedChannel::pair(2, 8, 2, Failure::Silent);
    let (socket, _other) = UnixStream::pair().unwrap();
    let mut writer = SlotWriter::new(near, 2, 2);
    let failure = writer.write(&[1; 12], None, socket.as_fd()).unwrap_err();
    assert!(matches!(failure, RdmaFailure::NoCompletion(_)), "{failure}");
}

#[test]
fn lost_grants_end_receiver() {
    let [near, far] = SimulatedChannel::pair(2, 8, 3, Failure::Silent);
    let (socket, _other) = UnixStream::pair().unwrap();
    let mut writer = SlotWriter::new(near, 2, 2);
    writer.write(&[1; 8], None, socket.as_fd()).unwrap();
    far.with(|link| link.writes_left = 0);
    let mut reader = SlotReader::new(far, 2);
    let mut buffer = [0; 16];
    let failure = (0..100).find_map(|_| reader.read(&mut buffer, None).err());
    assert!(matches!(failure, Some(RdmaFailure::NoCompletion(_))), "{failure:?}");
}
