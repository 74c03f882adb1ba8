//! Reader threads: from files to blocks ready to be sent.
//!
//! One loop drives either storage engine: it takes work from the state machine while the engine has
//! room and finishes completed operations. Blocks are hashed here, while in cache. A file that differs
//! from its announcement is noticed after each read and restarted by the state machine.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_protocol::block::{FrameKind, Header};
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{self, Digest};
use penstock_protocol::sender::{FrameTask, Piece, ReadOutcome, SourceEntry};
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer};
use penstock_sys::fs::{self, Open};
use penstock_sys::ring::{BlockIo, Operation, OperationKind, block_io};

use super::open_sources::OpenSource;
use super::packer::Packer;
use super::work::{ReadyBlock, SourceWork, failed};
use crate::base::file_digest::digest_file;
use crate::session::outcome::SessionOutcome;

/// I/O depth of a reader, in operations.
const READ_DEPTH: usize = 4;

/// Starts the missing readers of a device.
pub(crate) fn spawn_missing(work: &Arc<SourceWork>, device: u64) {
    work.readers.spawn_missing(device, |number| {
        let work = Arc::clone(work);
        move || {
            work.session.pin_near_disk(device);
            run(&work, device, number);
        }
    });
}

/// Reads for one device until the session is over or fewer readers are requested.
fn run(work: &Arc<SourceWork>, device: u64, number: u16) {
    let depth = if work.engine.uring && work.algorithm().combines() { READ_DEPTH } else { 1 };
    let (io, why_not) = block_io(depth);
    if let (true, Some(reason)) = (depth > 1, why_not) {
        tracing::warn!("reading without io_uring: {reason}");
    }
    let packer = Packer::new(work);
    DeviceReader { source: work, device, number, io, packer, pending: HashMap::new(), token: 0 }
        .run();
}

struct DeviceReader<'a> {
    source: &'a Arc<SourceWork>,
    device: u64,
    number: u16,
    io: Box<dyn BlockIo>,
    packer: Packer<'a>,
    pending: HashMap<u64, (FrameTask, Arc<SourceEntry>, Arc<OpenSource>)>,
    token: u64,
}

impl DeviceReader<'_> {
    fn run(&mut self) {
        let session = &self.source.session;
        while !session.is_over() && self.source.readers.keeps(self.number) {
            let busy = self.io.in_flight() > 0;
            if !self.io.has_room() {
                self.complete();
                continue;
            }
            // Take a buffer first: work taken without one would be lost to other readers.
            let in_use_max = self.source.blocks_in_use_max();
            let buffer = if busy {
                session.pool.try_take_within(in_use_max)
            } else {
                session.pool.take_timeout(in_use_max, Duration::from_millis(200))
            };
            let work = match buffer {
                Some(buffer) if busy => {
                    self.source.try_work(self.device).map(|work| (work, buffer))
                }
                Some(buffer) => self.source.wait_work(self.device).map(|work| (work, buffer)),
                None => None,
            };
            match work {
                Some((work, buffer)) => self.begin(work, buffer),
                None if busy => self.complete(),
                None => {}
            }
        }
        while self.io.in_flight() > 0 {
            self.complete();
        }
    }

    fn begin(&mut self, work: FrameTask, buffer: Buffer) {
        match &work.piece {
            Piece::Block { .. } => self.begin_block(work, buffer),
            Piece::Pack(sources) => {
                let sources = sources.clone();
                self.packer.read(work, &sources, buffer);
            }
            Piece::Compare { source, digest } => self.compare(source, digest, buffer),
            Piece::Digest(source) => self.digest(source, buffer),
        }
    }

    fn begin_block(&mut self, work: FrameTask, buffer: Buffer) {
        let Piece::Block { source, offset, bytes } = &work.piece else { return };
        let (source, offset, bytes) = (Arc::clone(source), *offset, *bytes);
        let open = match self.source.open.get(source.file, || self.source.open_source(&source)) {
            Ok(open) => open,
            Err(error) => {
                self.source.read(&source, offset..offset + bytes, failed(&error));
                return;
            }
        };
        if source.entry.sparse && is_hole(&open.file, offset, bytes) {
            return self.hole(work, &source, &open, buffer);
        }
        // Direct I/O transfers whole sectors: the tail of a file is rounded up and comes back short.
        let mut len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if open.direct {
            len = len.next_multiple_of(BUFFER_ALIGNMENT).min(buffer.len());
        }
        self.token += 1;
        let (file, token) = (Arc::clone(&open.file), self.token);
        self.pending.insert(token, (work, source, open));
        let kind = OperationKind::Read;
        self.io.submit(Operation { kind, file, buffer, start: 0, len, offset, token });
    }

    fn complete(&mut self) {
        let completion = match self.io.complete() {
            Ok(completion) => completion,
            Err(error) => {
                let text = format!("reading failed: {}", fs::describe(&error));
                return self.source.session.end(SessionOutcome::Failed(text));
            }
        };
        let Some((work, source, open)) = self.pending.remove(&completion.token) else { return };
        let Piece::Block { offset, bytes, .. } = work.piece else { return };
        let range = offset..offset + bytes;
        let short = match completion.result {
            Err(error) => {
                self.source.open.remove(source.file);
                return self.source.read(&source, range, failed(&error));
            }
            Ok(read) => (read as u64) < bytes,
        };
        match self.source.changed(&source, &open.file) {
            Some(read) => {
                self.source.open.remove(source.file);
                return self.source.read(&source, range, read);
            }
            None if short => {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return self.source.read(&source, range, failed(&error));
            }
            None => {}
        }
        let buffer = completion.buffer;
        let data = &buffer[..usize::try_from(bytes).unwrap_or(usize::MAX)];
        let (crc, hash) = self.source.session.check_payload(data);
        let part = digest::part(self.source.algorithm(), offset, source.entry.bytes, data, crc);
        self.source.digest_in_order(&source, offset, data);
        let header = Header {
            kind: FrameKind::Block,
            payload_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            sequence: work.sequence,
            file: source.file,
            offset,
            bytes,
            part: part.0,
            payload_crc: crc,
            ..Header::end()
        };
        self.source.read(&source, range, ReadOutcome::Good(part));
        self.source.ready.push(ReadyBlock { work, header, buffer: Some(buffer), hash });
    }

    fn hole(
        &mut self,
        work: FrameTask,
        source: &Arc<SourceEntry>,
        open: &OpenSource,
        mut buffer: Buffer,
    ) {
        let Piece::Block { offset, bytes, .. } = work.piece else { return };
        if let Some(read) = self.source.changed(source, &open.file) {
            return self.source.read(source, offset..offset + bytes, read);
        }
        let zeros = &mut buffer[..usize::try_from(bytes).unwrap_or(usize::MAX)];
        zeros.fill(0);
        let crc = digest::crc32c(zeros);
        let part = digest::part(self.source.algorithm(), offset, source.entry.bytes, zeros, crc);
        self.source.digest_in_order(source, offset, zeros);
        let header = Header {
            kind: FrameKind::Hole,
            sequence: work.sequence,
            file: source.file,
            offset,
            bytes,
            part: part.0,
            payload_crc: digest::crc32c(&[]),
            ..Header::end()
        };
        self.source.read(source, offset..offset + bytes, ReadOutcome::Good(part));
        self.source.ready.push(ReadyBlock { work, header, buffer: None, hash: None });
    }

    fn compare(&self, source: &SourceEntry, other: &Digest, mut buffer: Buffer) {
        let (dir, path) = self.source.locate(source);
        let digest = dir
            .open_file(path, &Open::reading())
            .and_then(|file| digest_file(&file, self.source.algorithm(), &mut buffer));
        match digest {
            Ok(digest) => self.source.compared(source, digest.as_ref() == Some(other)),
            Err(error) => self.source.read(source, 0..0, failed(&error)),
        }
    }
}

impl DeviceReader<'_> {
    /// Digests a skipped file.
    fn digest(&self, source: &SourceEntry, mut buffer: Buffer) {
        let (dir, path) = self.source.locate(source);
        let digest = dir.open_file(path, &Open::reading()).and_then(|file| {
            let digest = digest_file(&file, self.source.algorithm(), &mut buffer)?;
            Ok(digest.filter(|_| self.source.changed(source, &file).is_none()))
        });
        self.source.digested(
            source,
            match digest {
                Ok(Some(digest)) => Ok(digest),
                Ok(None) => {
                    let text =
                        "it changed while its digest was made: copy it again when it is at rest";
                    Err(Failure::new(FailureKind::Changed, text))
                }
                Err(error) => {
                    let text = format!("its digest cannot be made: {}", fs::describe(&error));
                    Err(Failure::new(FailureKind::Source, text))
                }
            },
        );
    }
}

fn is_hole(file: &File, offset: u64, bytes: u64) -> bool {
    match fs::next_data(file, offset) {
        Ok(None) => true,
        Ok(Some(data)) => data >= offset + bytes,
        Err(_) => false,
    }
}
