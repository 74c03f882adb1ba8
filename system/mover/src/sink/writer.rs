//! Writer threads: write received frames to files and verify ranges of earlier runs.
//!
//! Each device has a queue and its writers. Blocks of large files use direct I/O with several
//! operations in flight; small files arrive in packs. The receiving state machine acknowledges every
//! written block and detects complete files. Ranges of an unfinished copy are read back here and
//! verified while other blocks arrive. A file that cannot be written fails alone.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_protocol::block::{self, FrameKind, Header};
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{Algorithm, DigestPart, RangeHasher, crc32c};
use penstock_protocol::extents::Extent;
use penstock_protocol::receiver::SenderFault;
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer};
use penstock_sys::fs;
use penstock_sys::ring::{BlockIo, Operation, OperationKind, block_io};

use super::destination::destination;
use super::file::{FileAccess, OpenFile, SinkFile};
use super::storage::StoredFile;
use super::work::{ReceivedFrame, SinkWork, WriteTask};
use crate::session::outcome::SessionOutcome;

/// I/O depth of a writer, in operations.
const WRITE_DEPTH: usize = 4;

/// Read-back chunk in bytes.
const READ_BACK_BYTES: usize = 1 << 20;

/// Smallest run of zeros kept as a hole in a sparse file, in bytes.
const HOLE_BYTES: usize = BUFFER_ALIGNMENT;

/// Starts the missing writers of a device.
pub(crate) fn spawn_missing(work: &Arc<SinkWork>, device: u64) {
    work.writers.spawn_missing(device, |number| {
        let work = Arc::clone(work);
        move || {
            work.session.pin_near_disk(device);
            run(&work, device, number);
        }
    });
}

/// Writes for one device until the session is over or fewer writers are requested.
fn run(work: &Arc<SinkWork>, device: u64, number: u16) {
    let serial = !work.session.options.algorithm.combines();
    let depth = if work.engine.uring && !serial { WRITE_DEPTH } else { 1 };
    let (io, why_not) = block_io(depth);
    if let (true, Some(reason)) = (depth > 1, why_not) {
        tracing::warn!("writing without io_uring: {reason}");
    }
    Writer::new(work, device, number, io).run();
}

struct Pending {
    header: Header,
    sink: Arc<SinkFile>,
    open: OpenFile,
}

/// One writer of one device.
pub(super) struct Writer<'a> {
    work: &'a Arc<SinkWork>,
    device: u64,
    number: u16,
    io: Box<dyn BlockIo>,
    pending: HashMap<u64, Pending>,
    token: u64,
    read_back: Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        work: &'a Arc<SinkWork>,
        device: u64,
        number: u16,
        io: Box<dyn BlockIo>,
    ) -> Self {
        let (pending, read_back) = (HashMap::new(), Vec::new());
        Self { work, device, number, io, pending, token: 0, read_back }
    }

    fn run(&mut self) {
        while !self.work.session.is_over() && self.work.writers.keeps(self.number) {
            let busy = self.io.in_flight() > 0;
            if !self.io.has_room() {
                self.complete();
                continue;
            }
            let timeout = if busy { Duration::ZERO } else { Duration::from_millis(200) };
            match self.work.tasks.pop(self.device, timeout) {
                Some(task) => self.begin(task),
                None if busy => self.complete(),
                None => {}
            }
        }
        while self.io.in_flight() > 0 {
            self.complete();
        }
    }

    /// Starts a task; completes it unless it needs asynchronous I/O.
    pub(super) fn begin(&mut self, task: WriteTask) {
        let result = match task {
            WriteTask::Write(received) => self.begin_write(received),
            WriteTask::Verify(sink, extent) => {
                self.verify(&sink, &extent);
                Ok(())
            }
        };
        if let Err(fault) = result {
            self.work.session.end(SessionOutcome::Failed(fault.to_string()));
        }
    }

    fn begin_write(&mut self, received: ReceivedFrame) -> Result<(), SenderFault> {
        let ReceivedFrame { header, sink, buffer } = received;
        match (header.kind, sink, buffer) {
            (FrameKind::Pack, _, Some(buffer)) => self.write_pack(&header, &buffer),
            (FrameKind::Block, Some(sink), Some(buffer)) => {
                self.begin_block(header, sink, buffer);
                Ok(())
            }
            (FrameKind::Hole, Some(sink), None) => self.write_hole(&header, &sink),
            _ => Err(SenderFault("a frame has no payload")),
        }
    }

    fn begin_block(&mut self, header: Header, sink: Arc<SinkFile>, mut buffer: Buffer) {
        let open = match self.work.destination.open(&sink) {
            Ok(open) => open,
            Err(error) => return self.failed(&header, &sink, &error),
        };
        self.work.session.record_engine(open.access.engine_name(self.work.engine));
        let bytes = header.payload_bytes as usize;
        self.work.digest_in_order(&sink, header.offset, &buffer[..bytes]);
        if sink.entry.sparse {
            let is_fresh = !sink.is_resumed && !self.work.session.options.inplace;
            let result = write_sparse(&*open.file, header.offset, &buffer[..bytes], is_fresh);
            return self.written(&header, &sink, &open, result);
        }
        if let FileAccess::Mapped(mapped) = &open.access {
            let result = mapped.write_all_at(&buffer[..bytes], header.offset);
            return self.written(&header, &sink, &open, result);
        }
        // Direct I/O transfers whole sectors: the tail of a file is padded and truncated when the file
        // is complete.
        let mut len = bytes;
        if matches!(open.access, FileAccess::Direct) {
            len = bytes.next_multiple_of(BUFFER_ALIGNMENT).min(buffer.len());
            buffer[bytes..len].fill(0);
        }
        let Some(file) = open.file.kernel_file().cloned() else {
            let result = open.file.write_all_at(&buffer[..len], header.offset);
            return self.written(&header, &sink, &open, result);
        };
        self.token += 1;
        let (token, offset) = (self.token, header.offset);
        let kind = OperationKind::Write;
        self.pending.insert(token, Pending { header, sink, open });
        self.io.submit(Operation { kind, file, buffer, start: 0, len, offset, token });
    }

    fn complete(&mut self) {
        let completion = match self.io.complete() {
            Ok(completion) => completion,
            Err(error) => {
                let text = format!("writing failed: {}", fs::describe(&error));
                return self.work.session.end(SessionOutcome::Failed(text));
            }
        };
        drop(completion.buffer);
        if let Some(pending) = self.pending.remove(&completion.token) {
            let Pending { header, sink, open } = pending;
            self.written(&header, &sink, &open, completion.result.map(|_| ()));
        }
    }

    fn written(&self, header: &Header, sink: &SinkFile, open: &OpenFile, result: io::Result<()>) {
        if let Err(error) = result {
            return self.failed(header, sink, &error);
        }
        if matches!(open.access, FileAccess::Buffered) {
            write_back(&*open.file, header.offset, header.bytes);
        }
        let extent = self.extent(header, || header.payload_crc);
        self.work.record(sink, extent);
        let accepted = self.work.with_machine(|machine| {
            machine.acknowledge(header.sequence);
            machine.written(header.file, header.offset, header.bytes, header.part())
        });
        if let Err(fault) = accepted {
            self.work.session.end(SessionOutcome::Failed(fault.to_string()));
        }
    }

    /// Extent of a frame for the journal; `crc` is the CRC-32C of its bytes in the file.
    fn extent(&self, header: &Header, crc: impl FnOnce() -> u32) -> Extent {
        let algorithm = self.work.session.options.algorithm;
        let mut part = header.part;
        if algorithm.of_ranges() != algorithm {
            part[..4].copy_from_slice(&crc().to_be_bytes());
        }
        Extent { offset: header.offset, bytes: header.bytes, part }
    }

    fn verify(&mut self, sink: &SinkFile, extent: &Extent) {
        // Open for writing too: the file is continued from here, even if no block of it follows.
        let part = self.work.destination.open(sink).and_then(|_| self.part_of(sink, extent));
        match part {
            Ok(part) => {
                let is_intact = part == Some(DigestPart(extent.part));
                if is_intact {
                    sink.touch();
                } else {
                    tracing::warn!(
                        "{}: {} bytes from {} of an unfinished copy are not what was received: \
                         they are sent again",
                        sink.entry.path,
                        extent.bytes,
                        extent.offset
                    );
                }
                self.work
                    .with_machine(|machine| machine.verified(sink.file, extent.offset, is_intact));
            }
            Err(error) => {
                self.work.with_machine(|machine| machine.fail(sink.file, destination(&error)));
            }
        }
    }

    /// Hashes a range of a file as stored on its device; `None` if the file is shorter.
    fn part_of(&mut self, sink: &SinkFile, extent: &Extent) -> io::Result<Option<DigestPart>> {
        let algorithm: Algorithm = self.work.session.options.algorithm.of_ranges();
        let (offset, bytes) = (extent.offset, extent.bytes);
        let Some(mut hasher) = RangeHasher::new(algorithm, offset, bytes, sink.entry.bytes) else {
            return Ok(None);
        };
        let file = sink.reopen()?;
        // Written pages may have been lost by the device without the cache noticing.
        file.drop_cache(offset, bytes)?;
        self.read_back.resize(READ_BACK_BYTES, 0);
        let mut done = 0;
        while done < bytes {
            let left = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(READ_BACK_BYTES);
            let read = file.read_at(&mut self.read_back[..left], offset + done)?;
            if read < left {
                return Ok(None);
            }
            hasher.update(&self.read_back[..left]);
            done += left as u64;
        }
        let _ = file.drop_cache(offset, bytes);
        Ok(Some(hasher.finish()))
    }

    fn failed(&self, header: &Header, sink: &SinkFile, error: &io::Error) {
        let failure = destination(error);
        self.work.with_machine(|machine| {
            machine.acknowledge(header.sequence);
            machine.fail(sink.file, failure);
        });
    }

    fn write_hole(&self, header: &Header, sink: &SinkFile) -> Result<(), SenderFault> {
        let make = || {
            let open = self.work.destination.open(sink)?;
            if self.work.session.options.inplace || sink.is_resumed {
                clear(&*open.file, header.offset, header.bytes)?;
            }
            Ok(())
        };
        if let Err(error) = make() {
            self.failed(header, sink, &error);
            return Ok(());
        }
        let zeros = vec![0; usize::try_from(header.bytes).unwrap_or(0)];
        self.work.digest_in_order(sink, header.offset, &zeros);
        self.work.record(sink, self.extent(header, || crc32c(&zeros)));
        self.work.with_machine(|machine| {
            machine.acknowledge(header.sequence);
            machine.written_hole(header.file, header.offset, header.bytes, header.part())
        })
    }

    fn write_pack(&self, header: &Header, buffer: &[u8]) -> Result<(), SenderFault> {
        let payload = &buffer[..header.payload_bytes as usize];
        let items = block::pack_items(header, payload)
            .map_err(|_| SenderFault("the table of a pack is damaged"))?;
        let places = self.work.places(&items)?;
        let mut written = Vec::with_capacity(items.len());
        for ((start, item), sink) in items.iter().zip(places) {
            let Some(sink) = sink else { continue };
            let bytes = item.bytes as usize;
            let data = &payload[*start..*start + bytes];
            // Direct I/O writes whole sectors; the bytes behind the file are truncated later.
            let sectors = &buffer[*start..];
            self.work.session.record_engine(self.work.destination.small_engine(&sink));
            let result = if crc32c(data) == item.crc {
                self.work.destination.write_small(&sink, data, sectors)
            } else {
                Err(io::ErrorKind::InvalidData.into())
            };
            written.push((item, result));
        }
        self.work.with_machine(|machine| {
            for (item, result) in written {
                match result {
                    Ok(()) => {
                        machine.written_whole(
                            item.file,
                            u64::from(item.bytes),
                            DigestPart(item.part),
                        )?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        let text = "it was damaged in the sender's memory: copy it again";
                        machine.fail(item.file, Failure::new(FailureKind::Integrity, text));
                    }
                    Err(error) => machine.fail(item.file, destination(&error)),
                }
            }
            machine.acknowledge(header.sequence);
            Ok(())
        })
    }
}

/// Starts writeback of a written range and drops an earlier one from the page cache.
fn write_back(file: &dyn StoredFile, offset: u64, bytes: u64) {
    // Ignored advice costs speed, not bytes.
    let _ = file.start_writeback(offset, bytes);
    if let Some(before) = offset.checked_sub(4 * bytes) {
        let _ = file.drop_cache(before, bytes);
    }
}

/// Makes a range read as zeros.
fn clear(file: &dyn StoredFile, offset: u64, bytes: u64) -> io::Result<()> {
    if file.punch_hole(offset, bytes)? {
        return Ok(());
    }
    let zeros = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX).min(READ_BACK_BYTES)];
    let mut done = 0;
    while done < bytes {
        let some = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(zeros.len());
        file.write_all_at(&zeros[..some], offset + done)?;
        done += some as u64;
    }
    Ok(())
}

/// Writes the nonzero parts. In a file that is not fresh the others are cleared, since old data may be
/// there.
fn write_sparse(file: &dyn StoredFile, offset: u64, data: &[u8], is_fresh: bool) -> io::Result<()> {
    let chunk = |at: usize| &data[at..data.len().min(at + HOLE_BYTES)];
    let is_zero = |at: usize| chunk(at).iter().all(|byte| *byte == 0);
    let mut start = 0;
    while start < data.len() {
        let hole = is_zero(start);
        let mut end = start + HOLE_BYTES;
        while end < data.len() && is_zero(end) == hole {
            end += HOLE_BYTES;
        }
        let end = end.min(data.len());
        let at = offset + start as u64;
        if !hole {
            file.write_all_at(&data[start..end], at)?;
        } else if !is_fresh {
            clear(file, at, (end - start) as u64)?;
        }
        start = end;
    }
    Ok(())
}
