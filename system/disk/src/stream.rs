//! Reading a namespace at the rate of the path: many queues, each with many reads in flight.
//!
//! ```text
//! queue threads   take a buffer, claim the next block, send Read; receive data into the buffer
//! writer threads  checksum the block, write it, return the buffer
//! ```
//!
//! A buffer is taken before its block is claimed, so the lowest block that is missing always has one, and a destination
//! that needs order cannot stop the stream. The target sends no more than was asked for: slow writers slow the reads.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_nvme::command::{NvmeCommand, READ_BLOCKS_MAX};
use penstock_nvme::depth::{DepthLimits, ReadDepth};
use penstock_nvme::identify::NamespaceData;
use penstock_nvme::queue::{CommandQueue, QueueEvent};
use penstock_protocol::digest::{Algorithm, DigestPart, combine, crc32c, part};
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer, BufferPool};
use serde::Serialize;
use utoipa::ToSchema;

use crate::DiskError;
use crate::connection::QueueConnection;
use crate::controller::{KEEP_ALIVE_INTERVAL, RemoteController};
pub use crate::output::StreamDestination;
use crate::output::StreamOutput;

/// Largest size of a read.
pub const READ_BYTES_MAX: u32 = 16 << 20;
/// Size of reads without another choice.
pub const READ_BYTES_DEFAULT: u32 = 1 << 20;
/// Most queues: a thread each.
pub const QUEUES_MAX: u16 = 256;
/// Limit on the silence of a queue with reads in flight.
const STALL_TIME_MAX: Duration = Duration::from_secs(20);
/// Buffers beyond those of reads in flight, for each writer.
const BUFFERS_OF_WRITER: usize = 4;
/// Interval of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Parameters of a stream; what is `None` follows from the path.
#[derive(Debug, Clone)]
pub struct StreamParams {
    /// Namespace; `None` is the first.
    pub namespace: Option<u32>,
    /// First byte, a multiple of the block size.
    pub offset: u64,
    /// Number of bytes, a multiple of the block size; `None` is the rest of the namespace.
    pub length: Option<u64>,
    /// Wanted rate in bits per second, from which queues and depth follow.
    pub rate_bps: u64,
    /// Round-trip time to plan for; `None` is that of queue 0.
    pub rtt: Option<Duration>,
    /// Number of queues, each with a thread.
    pub queues: Option<u16>,
    /// Reads in flight of each queue.
    pub depth: Option<u16>,
    /// Bytes of a read, a power of two.
    pub size_bytes: u32,
    /// Threads that checksum and write.
    pub writers: usize,
    /// Digest of the stream: one that combines.
    pub digest: Algorithm,
}

/// Progress of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskStreamProgress {
    /// Bytes received since the first read.
    pub bytes: u64,
    /// Bytes of the stream.
    pub total_bytes: u64,
    /// Time since the first read.
    pub elapsed: Duration,
}

/// Result of a stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DiskStreamReport {
    /// Qualified name of the disk.
    pub nqn: String,
    /// Address of the target.
    pub peer: String,
    /// Number of the namespace.
    pub namespace: u32,
    /// Bytes of a block of the namespace.
    pub block_bytes: u32,
    /// First byte that was read.
    pub offset_bytes: u64,
    /// Bytes received from the target.
    pub bytes: u64,
    /// Time from the first read to the last byte, in seconds.
    pub seconds: f64,
    /// Rate of the received data.
    pub bits_per_second: f64,
    /// Round-trip time that was planned for.
    pub rtt_us: u64,
    /// Number of queues that were connected.
    pub queues: u16,
    /// Reads in flight of each queue.
    pub depth: u16,
    /// Bytes of a read.
    pub read_bytes: u32,
    /// Bytes in flight at most.
    pub in_flight_bytes: u64,
    /// Queues × depth × size ÷ round-trip time: the rate that these reads allow.
    pub law_bits_per_second: u64,
    /// True where the destination was written by direct I/O.
    pub direct: bool,
    /// Reason for which it was not; null where it was, or for no file.
    pub direct_reason: Option<String>,
    /// Algorithm of the digest.
    pub digest_algorithm: String,
    /// Digest of all bytes in hexadecimal digits; null without one.
    pub digest: Option<String>,
    /// Place of the scitag in the packets: `flow`, `destination` or `none`, with a reason; empty without a scitag.
    pub label: String,
}

/// Reads a part of a disk into `destination`.
///
/// # Errors
/// The first cause; then the destination is incomplete, and a file is removed. [`DiskError::Stopped`] once `stop` is set.
pub fn stream(
    controller: RemoteController,
    nqn: &str,
    params: &StreamParams,
    destination: &StreamDestination,
    stop: &AtomicBool,
    report: &mut dyn FnMut(DiskStreamProgress),
) -> Result<DiskStreamReport, DiskError> {
    let mut controller = controller;
    let namespace = controller.namespace(params.namespace)?;
    let (offset, bytes) = range(params, &namespace)?;
    check_size(&controller, params.size_bytes, &namespace)?;
    let rtt = params.rtt.unwrap_or_else(|| controller.rtt());
    let depth = choose_depth(&mut controller, params, rtt, bytes)?;
    let buffers = usize::from(depth.queues) * usize::from(depth.depth)
        + params.writers.max(1) * BUFFERS_OF_WRITER;
    check_memory(&depth, buffers)?;

    let queues = open_queues(&controller, &depth)?;
    let label = queues.first().map_or_else(String::new, |queue| queue.label.clone());
    let output = StreamOutput::open(destination, bytes)?;
    let work = StreamWork {
        namespace,
        offset,
        bytes,
        size_bytes: u64::from(params.size_bytes),
        claimed: AtomicU64::new(0),
        received: AtomicU64::new(0),
        pool: BufferPool::new(buffers, params.size_bytes as usize),
        output,
        digest: params.digest,
        parts: Mutex::default(),
        failure: Mutex::default(),
        is_over: AtomicBool::new(false),
        sockets: queues.iter().filter_map(|queue| queue.socket().try_clone().ok()).collect(),
    };
    let begun = Instant::now();
    let elapsed = work.run(&mut controller, queues, depth.depth, params.writers, stop, report);
    if let Some(error) = work.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    let mut parts = std::mem::take(&mut *work.parts.lock().unwrap_or_else(PoisonError::into_inner));
    parts.sort_unstable_by_key(|(offset, ..)| *offset);
    let digest = combine(params.digest, bytes, &parts).map(|digest| digest.to_string());
    work.output.finish()?;
    let seconds = elapsed.unwrap_or_else(|| begun.elapsed()).as_secs_f64();
    Ok(DiskStreamReport {
        nqn: nqn.to_owned(),
        peer: controller.peer().to_string(),
        namespace: namespace.number,
        block_bytes: namespace.block_bytes,
        offset_bytes: offset,
        bytes,
        seconds,
        bits_per_second: bytes as f64 * 8.0 / seconds.max(1e-9),
        rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
        queues: depth.queues,
        depth: depth.depth,
        read_bytes: depth.size_bytes,
        in_flight_bytes: depth.bytes_in_flight(),
        law_bits_per_second: depth.rate_bps(rtt),
        direct: work.output.is_direct(),
        direct_reason: work.output.indirect_reason(),
        digest_algorithm: params.digest.to_string(),
        digest: digest.filter(|text| !text.is_empty()),
        label,
    })
}

/// Connects all queues at once: each takes three round trips.
fn open_queues(
    controller: &RemoteController,
    depth: &ReadDepth,
) -> Result<Vec<QueueConnection>, DiskError> {
    std::thread::scope(|scope| {
        let open = |number| scope.spawn(move || controller.open_queue(number, depth.depth));
        let threads: Vec<_> = (1..=depth.queues).map(open).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    })
}

/// First byte and number of bytes, checked against the namespace.
fn range(params: &StreamParams, namespace: &NamespaceData) -> Result<(u64, u64), DiskError> {
    let whole = namespace.bytes();
    let length = params.length.unwrap_or_else(|| whole.saturating_sub(params.offset));
    let end = params.offset.saturating_add(length);
    let is_aligned = (params.offset | length).is_multiple_of(u64::from(namespace.block_bytes));
    if length == 0 || end > whole || !is_aligned {
        let (offset, block_bytes) = (params.offset, namespace.block_bytes);
        return Err(DiskError::Range { offset, end, bytes: whole, block_bytes });
    }
    Ok((params.offset, length))
}

fn check_size(
    controller: &RemoteController,
    size_bytes: u32,
    namespace: &NamespaceData,
) -> Result<(), DiskError> {
    let blocks = u64::from(namespace.block_bytes) * u64::from(READ_BLOCKS_MAX);
    let limit = controller.transfer_bytes_max().unwrap_or(u64::MAX).min(blocks);
    let most = u32::try_from(limit).unwrap_or(u32::MAX).min(READ_BYTES_MAX);
    let least = namespace.block_bytes.max(BUFFER_ALIGNMENT as u32);
    if size_bytes.is_power_of_two() && (least..=most).contains(&size_bytes) {
        return Ok(());
    }
    Err(DiskError::ReadSize { size_bytes, least, most })
}

fn choose_depth(
    controller: &mut RemoteController,
    params: &StreamParams,
    rtt: Duration,
    bytes: u64,
) -> Result<ReadDepth, DiskError> {
    let limits = DepthLimits {
        queues_max: params.queues.unwrap_or(QUEUES_MAX).clamp(1, QUEUES_MAX),
        depth_max: controller.depth_max(),
    };
    let blocks = bytes.div_ceil(u64::from(params.size_bytes));
    let cores = u16::try_from(penstock_sys::machine::cores()).unwrap_or(1).min(4);
    let least = u16::try_from(blocks).unwrap_or(u16::MAX).min(cores);
    let mut depth = ReadDepth::choose(params.rate_bps, rtt, params.size_bytes, least, limits);
    depth.queues = params.queues.unwrap_or(depth.queues).clamp(1, QUEUES_MAX);
    let granted = controller.request_queues(depth.queues)?.max(1);
    if granted < depth.queues {
        let limits = DepthLimits { queues_max: granted, ..limits };
        depth = ReadDepth::choose(params.rate_bps, rtt, params.size_bytes, granted, limits);
    }
    if let Some(wanted) = params.depth {
        if wanted == 0 || wanted > limits.depth_max {
            let (peer, queue) = (controller.peer(), 1);
            return Err(DiskError::QueueLimits { peer, queue, depth: wanted });
        }
        depth.depth = wanted;
    }
    Ok(depth)
}

/// Refuses more buffers than three quarters of the available memory.
fn check_memory(depth: &ReadDepth, buffers: usize) -> Result<(), DiskError> {
    let needed = buffers as u64 * u64::from(depth.size_bytes);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let Some(available) = kib.map(|kib| kib.saturating_mul(1024)) else { return Ok(()) };
    if needed <= available / 4 * 3 {
        return Ok(());
    }
    let (queues, size_bytes) = (depth.queues, depth.size_bytes);
    Err(DiskError::Memory { queues, depth: depth.depth, size_bytes, needed, available })
}

/// Block that was claimed.
struct ClaimedBlock {
    buffer: Buffer,
    /// Offset within the stream.
    offset: u64,
    bytes: u32,
}

/// State shared by the threads of a stream.
struct StreamWork {
    namespace: NamespaceData,
    /// First byte in the namespace.
    offset: u64,
    bytes: u64,
    size_bytes: u64,
    claimed: AtomicU64,
    received: AtomicU64,
    pool: BufferPool,
    output: StreamOutput,
    digest: Algorithm,
    parts: Mutex<Vec<(u64, u64, DigestPart)>>,
    failure: Mutex<Option<DiskError>>,
    is_over: AtomicBool,
    sockets: Vec<TcpStream>,
}

impl StreamWork {
    /// Runs all threads to their end; returns the time of the last byte.
    fn run(
        &self,
        controller: &mut RemoteController,
        queues: Vec<QueueConnection>,
        depth: u16,
        writers: usize,
        stop: &AtomicBool,
        report: &mut dyn FnMut(DiskStreamProgress),
    ) -> Option<Duration> {
        let begun = Instant::now();
        let (sender, receiver) = channel::<ClaimedBlock>();
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            for _ in 0..writers.max(1) {
                scope.spawn(|| self.write_blocks(&receiver));
            }
            let threads: Vec<_> = queues
                .into_iter()
                .map(|queue| {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        if let Err(error) = self.read_blocks(queue, depth, &sender) {
                            self.fail(error);
                        }
                        begun.elapsed()
                    })
                })
                .collect();
            drop(sender);
            let mut alive_at = Instant::now();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                std::thread::sleep(PROGRESS_INTERVAL.min(Duration::from_millis(20)));
                let bytes = self.received.load(Relaxed);
                report(DiskStreamProgress {
                    bytes,
                    total_bytes: self.bytes,
                    elapsed: begun.elapsed(),
                });
                if stop.load(Relaxed) {
                    self.fail(DiskError::Stopped);
                }
                if alive_at.elapsed() >= KEEP_ALIVE_INTERVAL && !self.is_over.load(Relaxed) {
                    alive_at = Instant::now();
                    if let Err(error) = controller.keep_alive() {
                        self.fail(error);
                    }
                }
            }
            threads.into_iter().filter_map(|thread| thread.join().ok()).max()
        })
    }

    /// Records the first failure and ends all threads.
    fn fail(&self, error: DiskError) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Sockets that this shuts down fail, too: the first failure is the cause.
        failure.get_or_insert(error);
        drop(failure);
        self.is_over.store(true, Relaxed);
        self.pool.close();
        for socket in &self.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Claims the next block for `buffer`.
    fn claim(&self, buffer: Buffer) -> Option<ClaimedBlock> {
        let offset = self.claimed.fetch_add(self.size_bytes, Relaxed);
        let left = self.bytes.checked_sub(offset).filter(|left| *left > 0)?;
        // At most `READ_BYTES_MAX`.
        let bytes = left.min(self.size_bytes) as u32;
        Some(ClaimedBlock { buffer, offset, bytes })
    }

    fn is_exhausted(&self) -> bool {
        self.is_over.load(Relaxed) || self.claimed.load(Relaxed) >= self.bytes
    }

    /// Runs a queue: keeps `depth` reads in flight until all blocks are claimed and have come.
    fn read_blocks(
        &self,
        mut connection: QueueConnection,
        depth: u16,
        filled: &Sender<ClaimedBlock>,
    ) -> Result<(), DiskError> {
        let peer = connection.peer();
        connection.set_timeout(STALL_TIME_MAX)?;
        let mut queue = CommandQueue::new(depth);
        let mut blocks: Vec<Option<ClaimedBlock>> =
            std::iter::repeat_with(|| None).take(usize::from(depth)).collect();
        let mut capsules = Vec::new();
        loop {
            capsules.clear();
            while queue.outstanding() < usize::from(depth) && !self.is_exhausted() {
                // A queue without reads in flight has nothing else to do than to wait for a buffer.
                let buffer = match queue.outstanding() {
                    0 => self.pool.take(),
                    _ => self.pool.try_take(),
                };
                let Some(block) = buffer.and_then(|buffer| self.claim(buffer)) else { break };
                let Some(id) = queue.issue(block.bytes) else { break };
                let first = (self.offset + block.offset) / u64::from(self.namespace.block_bytes);
                let count = block.bytes / self.namespace.block_bytes;
                let read = NvmeCommand::read(self.namespace.number, first, count, block.bytes);
                connection.write_capsule(&read, id, &[], &mut capsules);
                blocks[usize::from(id)] = Some(block);
            }
            if !capsules.is_empty() {
                connection.send(&capsules)?;
            }
            if queue.outstanding() == 0 {
                return Ok(());
            }
            let pdu = connection.read_pdu()?;
            let event = queue.receive(&pdu).map_err(|fault| DiskError::Protocol { peer, fault })?;
            let completion = match event {
                QueueEvent::Ended(completion) => Some(completion),
                QueueEvent::Data { command, offset, bytes } => {
                    // The queue has checked that the command is outstanding and the range within its block.
                    if let Some(block) = blocks[usize::from(command)].as_mut() {
                        let range = offset as usize..(offset + bytes) as usize;
                        connection.read(&mut block.buffer[range])?;
                    }
                    self.received.fetch_add(u64::from(bytes), Relaxed);
                    let ended = queue.data_received(command);
                    ended.map_err(|fault| DiskError::Protocol { peer, fault })?
                }
            };
            let Some(completion) = completion else { continue };
            let block = blocks[usize::from(completion.command)].take();
            let Some(block) = block else { continue };
            if !completion.status.is_success() {
                let command =
                    format!("reading {} B at {}", block.bytes, self.offset + block.offset);
                return Err(DiskError::Command { peer, command, status: completion.status });
            }
            // Fails only after the writers have ended because of a failure.
            let _ = filled.send(block);
        }
    }

    /// Runs a writer until the queues end.
    fn write_blocks(&self, filled: &Mutex<Receiver<ClaimedBlock>>) {
        loop {
            let next = filled.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(block) = next else { return };
            let data = &block.buffer[..block.bytes as usize];
            if self.digest != Algorithm::None {
                let crc = if self.digest == Algorithm::Crc32c { crc32c(data) } else { 0 };
                let one = part(self.digest, block.offset, self.bytes, data, crc);
                let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
                parts.push((block.offset, u64::from(block.bytes), one));
            }
            if let Err(error) = self.output.write(block.buffer, block.bytes as usize, block.offset)
            {
                self.fail(error);
            }
        }
    }
}
