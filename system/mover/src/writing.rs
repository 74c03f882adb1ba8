//! Writer threads: from received frames to files.
//!
//! Each device has a queue and its writers. Blocks of large files go past the page cache with several
//! operations at the device; small files come whole in packs and are written through the page cache.
//! What is written is told to the receiving machine, which acknowledges it and knows when a file is
//! whole. A file that cannot be written fails alone.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_protocol::block::{self, FrameKind, Header};
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{Part, crc32c};
use penstock_protocol::extents::Extent;
use penstock_protocol::receiver::SenderFault;
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer};
use penstock_sys::fs;
use penstock_sys::ring::{BlockIo, Operation, OperationKind, block_io};

use crate::placing::{SinkFile, destination};
use crate::receiving::ReceiverEnd;
use crate::session::Ending;

/// Operations that a writer keeps at the device.
const DEPTH: usize = 4;

/// Runs of zeros from this size on stay holes in a sparse file.
const HOLE_BYTES: usize = BUFFER_ALIGNMENT;

/// A frame that was received.
#[derive(Debug)]
pub struct Received {
    /// What it is.
    pub header: Header,
    /// The file it belongs to; none for a pack.
    pub sink: Option<Arc<SinkFile>>,
    /// Its payload, as long as the header says; none for a hole.
    pub buffer: Option<Buffer>,
}

/// Writes for one device until the session is over or fewer writers are wanted.
pub fn run(end: &Arc<ReceiverEnd>, device: u64, number: u16) {
    let serial = !end.session.options.algorithm.combines();
    let depth = if end.engine.uring && !serial { DEPTH } else { 1 };
    let (io, why_not) = block_io(depth);
    if let (true, Some(reason)) = (depth > 1, why_not) {
        tracing::warn!("writing without io_uring: {reason}");
    }
    Writer { end, device, number, io, pending: HashMap::new(), token: 0 }.run();
}

struct Pending {
    header: Header,
    sink: Arc<SinkFile>,
    file: Arc<File>,
    direct: bool,
}

struct Writer<'a> {
    end: &'a Arc<ReceiverEnd>,
    device: u64,
    number: u16,
    io: Box<dyn BlockIo>,
    pending: HashMap<u64, Pending>,
    token: u64,
}

impl Writer<'_> {
    fn run(&mut self) {
        while !self.end.session.is_over() && self.end.writers.wants(self.number) {
            let busy = self.io.in_flight() > 0;
            if !self.io.has_room() {
                self.complete();
                continue;
            }
            let timeout = if busy { Duration::ZERO } else { Duration::from_millis(200) };
            match self.end.next_received(self.device, timeout) {
                Some(received) => {
                    if let Err(fault) = self.begin(received) {
                        self.end.session.end(Ending::Failed(fault.to_string()));
                    }
                }
                None if busy => self.complete(),
                None => {}
            }
        }
        while self.io.in_flight() > 0 {
            self.complete();
        }
    }

    fn begin(&mut self, received: Received) -> Result<(), SenderFault> {
        let Received { header, sink, buffer } = received;
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
        let (file, direct) = match self.end.place.open(&sink) {
            Ok(open) => open,
            Err(error) => return self.failed(&header, &sink, &error),
        };
        self.end.session.name_engine(self.end.engine.name(direct));
        let bytes = header.payload_bytes as usize;
        self.end.digest_in_order(&sink, header.offset, &buffer[..bytes]);
        if sink.entry.sparse {
            let result = write_sparse(&file, header.offset, &buffer[..bytes]);
            return self.written(&header, &sink, &file, direct, result);
        }
        // Direct I/O moves whole sectors: the tail of a file is padded, and cut when the file is whole.
        let mut len = bytes;
        if direct {
            len = bytes.next_multiple_of(BUFFER_ALIGNMENT).min(buffer.len());
            buffer[bytes..len].fill(0);
        }
        self.token += 1;
        let (token, offset) = (self.token, header.offset);
        let operation = Operation {
            kind: OperationKind::Write,
            file: Arc::clone(&file),
            buffer,
            start: 0,
            len,
            offset,
            token,
        };
        self.pending.insert(token, Pending { header, sink, file, direct });
        self.io.submit(operation);
    }

    fn complete(&mut self) {
        let completion = match self.io.complete() {
            Ok(completion) => completion,
            Err(error) => {
                let text = format!("writing failed: {}", fs::describe(&error));
                return self.end.session.end(Ending::Failed(text));
            }
        };
        drop(completion.buffer);
        if let Some(pending) = self.pending.remove(&completion.token) {
            let Pending { header, sink, file, direct } = pending;
            self.written(&header, &sink, &file, direct, completion.result.map(|_| ()));
        }
    }

    fn written(
        &self,
        header: &Header,
        sink: &SinkFile,
        file: &File,
        direct: bool,
        result: io::Result<()>,
    ) {
        if let Err(error) = result {
            return self.failed(header, sink, &error);
        }
        if !direct {
            write_back(file, header.offset, header.bytes);
        }
        self.end.record(sink, &extent(header));
        let told = self.end.with_machine(|machine| {
            machine.acknowledge(header.sequence);
            machine.written(header.file, header.offset, header.bytes, header.part())
        });
        if let Err(fault) = told {
            self.end.session.end(Ending::Failed(fault.to_string()));
        }
    }

    fn failed(&self, header: &Header, sink: &SinkFile, error: &io::Error) {
        let failure = destination(error);
        self.end.with_machine(|machine| {
            machine.acknowledge(header.sequence);
            machine.fail(sink.file, failure);
        });
    }

    fn write_hole(&self, header: &Header, sink: &SinkFile) -> Result<(), SenderFault> {
        let make = || {
            let (file, _) = self.end.place.open(sink)?;
            if self.end.session.options.inplace || sink.resumed {
                fs::punch_hole(&file, header.offset, header.bytes)?;
            }
            Ok(())
        };
        if let Err(error) = make() {
            self.failed(header, sink, &error);
            return Ok(());
        }
        let zeros = vec![0; usize::try_from(header.bytes).unwrap_or(0)];
        self.end.digest_in_order(sink, header.offset, &zeros);
        self.end.record(sink, &extent(header));
        self.end.with_machine(|machine| {
            machine.acknowledge(header.sequence);
            machine.written(header.file, header.offset, header.bytes, header.part())
        })
    }

    fn write_pack(&self, header: &Header, buffer: &[u8]) -> Result<(), SenderFault> {
        let payload = &buffer[..header.payload_bytes as usize];
        let items = block::pack_items(header, payload)
            .map_err(|_| SenderFault("the table of a pack is damaged"))?;
        let places = self.end.places(&items)?;
        let mut written = Vec::with_capacity(items.len());
        for ((start, item), sink) in items.iter().zip(places) {
            let Some(sink) = sink else { continue };
            let bytes = item.bytes as usize;
            let data = &payload[*start..*start + bytes];
            // Direct I/O writes whole sectors; what is behind the file in the buffer is cut off again.
            let sectors = &buffer[*start..];
            self.end.session.name_engine(self.end.place.small_engine(&sink));
            let result = if crc32c(data) == item.crc {
                self.end.place.write_small(&sink, data, sectors)
            } else {
                Err(io::ErrorKind::InvalidData.into())
            };
            written.push((item, result));
        }
        self.end.with_machine(|machine| {
            for (item, result) in written {
                match result {
                    Ok(()) => {
                        machine.written_whole(item.file, u64::from(item.bytes), Part(item.part))?;
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

fn extent(header: &Header) -> Extent {
    Extent { offset: header.offset, bytes: header.bytes, part: header.part }
}

/// Has the kernel begin to write a range that was put into the page cache, and forget the one before.
fn write_back(file: &File, offset: u64, bytes: u64) {
    // Advice that is not taken costs speed, not bytes.
    let _ = fs::start_writeback(file, offset, bytes);
    if let Some(before) = offset.checked_sub(4 * bytes) {
        let _ = fs::drop_cache(file, before, bytes);
    }
}

/// Writes what is not zero.
fn write_sparse(file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
    let is_zero = |chunk: &[u8]| chunk.iter().all(|byte| *byte == 0);
    let mut start = 0;
    while start < data.len() {
        let chunk = |at: usize| &data[at..data.len().min(at + HOLE_BYTES)];
        if is_zero(chunk(start)) {
            start += HOLE_BYTES;
            continue;
        }
        let mut end = start + HOLE_BYTES;
        while end < data.len() && !is_zero(chunk(end)) {
            end += HOLE_BYTES;
        }
        let end = end.min(data.len());
        fs::write_all_at(file, &data[start..end], offset + start as u64)?;
        start = end;
    }
    Ok(())
}
