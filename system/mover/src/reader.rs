//! Reader threads: from files to blocks ready to be sent.
//!
//! One loop drives either storage engine: it takes work from the state machine while the engine has
//! room and finishes completed operations. Blocks are hashed here, while in cache. A file that differs
//! from its announcement is noticed after each read and restarted by the state machine.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_protocol::block::{FrameKind, Header};
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::digest::{self, Algorithm, Digest, Serial};
use penstock_protocol::sender::{FrameTask, Piece, ReadOutcome, SourceEntry};
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer};
use penstock_sys::fs::{self, Open};
use penstock_sys::ring::{BlockIo, Operation, OperationKind, block_io};

use crate::packer::Packer;
use crate::scan;
use crate::sender::{ReadyBlock, SenderEnd};
use crate::session::lock;
use crate::sink::StoredFile;

/// I/O depth of a reader, in operations.
const READ_DEPTH: usize = 4;

/// Smaller files are read through the page cache: direct I/O costs more than it saves.
const DIRECT_BYTES_MIN: u64 = 1 << 20;

/// Limit of cached open sources.
const OPEN_SOURCES_MAX: usize = 64;

/// Open source file.
#[derive(Debug)]
struct OpenSource {
    file: Arc<File>,
    direct: bool,
}

/// Cache of open sources shared by readers of all devices, so that a file is opened once.
#[derive(Debug, Default)]
pub struct OpenSources(Mutex<VecDeque<(u64, Arc<OpenSource>)>>);

impl OpenSources {
    fn get(&self, end: &SenderEnd, source: &SourceEntry) -> io::Result<Arc<OpenSource>> {
        if let Some((_, open)) = lock(&self.0).iter().find(|(file, _)| *file == source.file) {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(end.open_source(source)?);
        let mut files = lock(&self.0);
        if files.len() == OPEN_SOURCES_MAX {
            files.pop_front();
        }
        files.push_back((source.file, Arc::clone(&open)));
        Ok(open)
    }

    fn forget(&self, file: u64) {
        lock(&self.0).retain(|(open, _)| *open != file);
    }
}

impl SenderEnd {
    fn open_source(&self, source: &SourceEntry) -> io::Result<OpenSource> {
        let (dir, path) = self.locate(source);
        let wanted = self.engine.direct && source.entry.bytes >= DIRECT_BYTES_MIN;
        if wanted {
            let open = Open { direct: true, ..Open::reading() };
            match dir.open_file(path, &open) {
                Ok(file) => {
                    self.session.record_engine(self.engine.name(true));
                    return Ok(OpenSource { file: Arc::new(file), direct: true });
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let file = dir.open_file(path, &Open::reading())?;
        self.session.record_engine(self.engine.name(false));
        if source.entry.bytes >= DIRECT_BYTES_MIN {
            // Ignored advice costs nothing.
            let _ = fs::advise_sequential(&file);
        }
        Ok(OpenSource { file: Arc::new(file), direct: false })
    }

    /// Checks a source against its announcement; `None` if unchanged.
    ///
    /// Programs can set a modification time back, but not a change time: without it a file that is rewritten while it
    /// is copied, or replaced between scan and opening, could arrive as a mixture of both contents.
    pub(crate) fn changed(&self, source: &SourceEntry, file: &File) -> Option<ReadOutcome> {
        let stat = match fs::stat_file(file) {
            Ok(stat) => stat,
            Err(error) => return Some(failed(&error)),
        };
        let announced = &source.entry;
        if stat.kind == fs::Kind::File
            && (stat.size, stat.inode) == (announced.bytes, announced.inode)
            && scan::time(stat.mtime) == announced.modified
            && scan::time(stat.ctime) == announced.changed
        {
            return None;
        }
        let (dir, path) = self.locate(source);
        let arrives_as = scan::native(&source.entry.path);
        let fresh = dir.stat(path).ok().and_then(|stat| {
            scan::entry(dir, path, arrives_as, &stat, self.session.options.xattrs).ok()
        });
        Some(ReadOutcome::Changed(fresh.map(Box::new)))
    }
}

pub(crate) fn failed(error: &io::Error) -> ReadOutcome {
    ReadOutcome::Failed(Failure::new(FailureKind::Source, fs::describe(error)))
}

/// Reads for one device until the session is over or fewer readers are requested.
pub fn run(end: &Arc<SenderEnd>, device: u64, number: u16) {
    let depth = if end.engine.uring && end.algorithm().combines() { READ_DEPTH } else { 1 };
    let (io, why_not) = block_io(depth);
    if let (true, Some(reason)) = (depth > 1, why_not) {
        tracing::warn!("reading without io_uring: {reason}");
    }
    let packer = Packer::new(end);
    DeviceReader { end, device, number, io, packer, pending: HashMap::new(), token: 0 }.run();
}

struct DeviceReader<'a> {
    end: &'a Arc<SenderEnd>,
    device: u64,
    number: u16,
    io: Box<dyn BlockIo>,
    packer: Packer<'a>,
    pending: HashMap<u64, (FrameTask, Arc<SourceEntry>, Arc<OpenSource>)>,
    token: u64,
}

impl DeviceReader<'_> {
    fn run(&mut self) {
        let session = &self.end.session;
        while !session.is_over() && self.end.readers.keeps(self.number) {
            let busy = self.io.in_flight() > 0;
            if !self.io.has_room() {
                self.complete();
                continue;
            }
            // Take a buffer first: work taken without one would be lost to other readers.
            let buffer = if busy {
                session.pool.try_take()
            } else {
                session.pool.take_timeout(Duration::from_millis(200))
            };
            let work = match buffer {
                Some(buffer) if busy => self.end.try_work(self.device).map(|work| (work, buffer)),
                Some(buffer) => self.end.wait_work(self.device).map(|work| (work, buffer)),
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
        let open = match self.end.open.get(self.end, &source) {
            Ok(open) => open,
            Err(error) => {
                self.end.read(&source, offset..offset + bytes, failed(&error));
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
                return self.end.session.end(crate::session::SessionOutcome::Failed(text));
            }
        };
        let Some((work, source, open)) = self.pending.remove(&completion.token) else { return };
        let Piece::Block { offset, bytes, .. } = work.piece else { return };
        let range = offset..offset + bytes;
        let short = match completion.result {
            Err(error) => {
                self.end.open.forget(source.file);
                return self.end.read(&source, range, failed(&error));
            }
            Ok(read) => (read as u64) < bytes,
        };
        match self.end.changed(&source, &open.file) {
            Some(read) => {
                self.end.open.forget(source.file);
                return self.end.read(&source, range, read);
            }
            None if short => {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return self.end.read(&source, range, failed(&error));
            }
            None => {}
        }
        let buffer = completion.buffer;
        let data = &buffer[..usize::try_from(bytes).unwrap_or(usize::MAX)];
        let crc = digest::crc32c(data);
        let part = digest::part(self.end.algorithm(), offset, source.entry.bytes, data, crc);
        self.end.digest_in_order(&source, offset, data);
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
        self.end.read(&source, range, ReadOutcome::Good(part));
        self.end.ready.push(ReadyBlock { work, header, buffer: Some(buffer) });
    }

    fn hole(
        &mut self,
        work: FrameTask,
        source: &Arc<SourceEntry>,
        open: &OpenSource,
        mut buffer: Buffer,
    ) {
        let Piece::Block { offset, bytes, .. } = work.piece else { return };
        if let Some(read) = self.end.changed(source, &open.file) {
            return self.end.read(source, offset..offset + bytes, read);
        }
        let zeros = &mut buffer[..usize::try_from(bytes).unwrap_or(usize::MAX)];
        zeros.fill(0);
        let crc = digest::crc32c(zeros);
        let part = digest::part(self.end.algorithm(), offset, source.entry.bytes, zeros, crc);
        self.end.digest_in_order(source, offset, zeros);
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
        self.end.read(source, offset..offset + bytes, ReadOutcome::Good(part));
        self.end.ready.push(ReadyBlock { work, header, buffer: None });
    }

    fn compare(&self, source: &SourceEntry, other: &Digest, mut buffer: Buffer) {
        let (dir, path) = self.end.locate(source);
        let digest = dir
            .open_file(path, &Open::reading())
            .and_then(|file| digest_file(&file, self.end.algorithm(), &mut buffer));
        match digest {
            Ok(digest) => self.end.compared(source, digest.as_ref() == Some(other)),
            Err(error) => self.end.read(source, 0..0, failed(&error)),
        }
    }
}

impl DeviceReader<'_> {
    /// Digests a skipped file.
    fn digest(&self, source: &SourceEntry, mut buffer: Buffer) {
        let (dir, path) = self.end.locate(source);
        let digest = dir.open_file(path, &Open::reading()).and_then(|file| {
            let digest = digest_file(&file, self.end.algorithm(), &mut buffer)?;
            Ok(digest.filter(|_| self.end.changed(source, &file).is_none()))
        });
        self.end.digested(
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

/// File readable at any offset.
pub trait ReadAt {
    /// Reads until the buffer is full or the file ends; returns the bytes read.
    ///
    /// # Errors
    /// If reading fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fs::read_at_most(self, buffer, offset)
    }
}

impl ReadAt for dyn StoredFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        StoredFile::read_at(self, buffer, offset)
    }
}

/// Digests an open file through `buffer`; `None` if the algorithm is none.
///
/// # Errors
/// If reading fails.
pub fn digest_file<F: ReadAt + ?Sized>(
    file: &F,
    algorithm: Algorithm,
    buffer: &mut [u8],
) -> io::Result<Option<Digest>> {
    let Some(mut serial) = Serial::new(algorithm) else { return Ok(None) };
    while let count @ 1.. = file.read_at(buffer, serial.next())? {
        serial.update(&buffer[..count]);
    }
    Ok(Some(serial.finish()))
}

/// Advances `serial` to `end` by reading the bytes between.
///
/// # Errors
/// If reading fails or the file ends early.
pub fn catch_up<F: ReadAt + ?Sized>(serial: &mut Serial, file: &F, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while serial.next() < end {
        let left = usize::try_from(end - serial.next()).unwrap_or(usize::MAX).min(buffer.len());
        match file.read_at(&mut buffer[..left], serial.next())? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => serial.update(&buffer[..count]),
        }
    }
    Ok(())
}
