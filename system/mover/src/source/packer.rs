//! Packs: many small files read into one buffer, followed by their table.
//!
//! One packer per reader thread. Files are read with direct I/O, many at a time: in place if they begin
//! on a page of the pack, else through a bounce buffer. If direct I/O is not available they are read
//! one by one through the page cache. A file that cannot be read or has changed is left out.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use penstock_protocol::block::{self, FrameKind, Header, PACK_ALIGN_BYTES_MIN, PackItem};
use penstock_protocol::digest;
use penstock_protocol::sender::{FrameTask, ReadOutcome, SourceEntry};
use penstock_protocol::wire::WireFormat;
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer, BufferPool};
use penstock_sys::fs::{self, Open};
use penstock_sys::ring::{BatchRead, BatchReader};

use super::work::{ReadyBlock, SourceWork, failed};

/// Small files opened before the first is read.
const FILES_AT_ONCE: usize = 32;

/// Smaller files are not worth read-ahead advice.
const READ_AHEAD_BYTES_MIN: u64 = 4096;

/// Builds packs for one reader.
#[derive(Debug)]
pub(crate) struct Packer<'a> {
    source: &'a Arc<SourceWork>,
    batch: BatchReader,
    /// Bounce buffer: sectors of files that do not begin on a page of the pack.
    sectors: Buffer,
    /// Direct I/O is used, as far as is known.
    direct: bool,
}

/// Open small file.
struct Small {
    file: File,
    direct: bool,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(source: &'a Arc<SourceWork>) -> Self {
        let depth = if source.engine.uring { FILES_AT_ONCE as u32 } else { 1 };
        let sectors = BufferPool::new(1, FILES_AT_ONCE * PACK_ALIGN_BYTES_MIN).take();
        Self {
            source,
            batch: BatchReader::new(depth),
            sectors: sectors.expect("a pool that is not closed"),
            // Without io_uring the page cache reads ahead.
            direct: source.engine.direct && source.engine.uring,
        }
    }

    /// Reads whole files one after the other, and their table after them.
    pub(crate) fn read(
        &mut self,
        work: FrameTask,
        sources: &[Arc<SourceEntry>],
        mut buffer: Buffer,
    ) {
        let algorithm = self.source.algorithm();
        let mut at = 0;
        let mut table = Vec::new();
        let mut items = 0;
        let mut results = Vec::with_capacity(sources.len());
        for some in sources.chunks(FILES_AT_ONCE) {
            let files: Vec<_> = some.iter().map(|source| self.open(source)).collect();
            let mut ahead = self.read_direct(some, &files, at, &mut buffer).into_iter();
            for (source, file) in some.iter().zip(files) {
                let bytes = len(source);
                let start = block::pack_start(at, bytes);
                let read = file.and_then(|small| {
                    let read = if small.direct {
                        let (from, read) = ahead.next().expect("one for each direct file");
                        match from {
                            ReadTarget::Sectors(from) => buffer[start..start + bytes]
                                .copy_from_slice(&self.sectors[from..from + bytes]),
                            // Files before it were left out.
                            ReadTarget::Pack(from) if from != start => {
                                buffer.copy_within(from..from + bytes, start);
                            }
                            ReadTarget::Pack(_) => {}
                        }
                        read?
                    } else {
                        fs::read_at_most(&small.file, &mut buffer[start..start + bytes], 0)?
                    };
                    match self.source.changed(source, &small.file) {
                        None if read < bytes => Err(io::ErrorKind::UnexpectedEof.into()),
                        changed => Ok(changed),
                    }
                });
                results.push(match read {
                    Ok(None) => {
                        buffer[at..start].fill(0);
                        let data = &buffer[start..start + bytes];
                        let crc = digest::crc32c(data);
                        let part = digest::part(algorithm, 0, source.entry.bytes, data, crc);
                        at = start + bytes;
                        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                        PackItem { file: source.file, bytes, crc, part: part.0 }.put(&mut table);
                        items += 1;
                        ReadOutcome::Good(part)
                    }
                    Ok(Some(changed)) => changed,
                    Err(error) => failed(&error),
                });
            }
        }
        self.source.read_whole(sources, results);
        if items == 0 {
            return;
        }
        buffer[at..at + table.len()].copy_from_slice(&table);
        let payload = &buffer[..at + table.len()];
        let (payload_crc, hash) = self.source.session.check_payload(payload);
        let header = Header {
            kind: FrameKind::Pack,
            items,
            payload_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            sequence: work.sequence,
            bytes: at as u64,
            payload_crc,
            ..Header::end()
        };
        self.source.ready.push(ReadyBlock { work, header, buffer: Some(buffer), hash });
    }

    /// Opens a small file; has the device begin to read it, if that is not done by a batch.
    fn open(&mut self, source: &SourceEntry) -> io::Result<Small> {
        let (dir, path): (_, &Path) = self.source.locate(source);
        let how = Open { brief: true, ..Open::reading() };
        if self.direct {
            match dir.open_file(path, &Open { direct: true, ..how }) {
                Ok(file) => {
                    // What is no file could keep a batch waiting for ever.
                    if fs::stat_file(&file)?.kind != fs::Kind::File {
                        return Err(io::Error::other("it is no file any more"));
                    }
                    self.source.session.record_engine(self.source.engine.name(true));
                    return Ok(Small { file, direct: true });
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => self.direct = false,
                Err(error) => return Err(error),
            }
        }
        let file = dir.open_file(path, &how)?;
        self.source.session.record_engine(self.source.engine.name(false));
        if source.entry.bytes >= READ_AHEAD_BYTES_MIN {
            // Ignored advice costs speed only.
            let _ = fs::advise_will_need(&file, source.entry.bytes);
        }
        Ok(Small { file, direct: false })
    }

    /// Reads the direct ones of `files`, in place where possible; `at` is the offset in the pack of the
    /// first. Returns target and length of each. Direct I/O transfers whole sectors: bytes after a file
    /// are overwritten up to the next sector.
    fn read_direct(
        &mut self,
        sources: &[Arc<SourceEntry>],
        files: &[io::Result<Small>],
        mut at: usize,
        buffer: &mut Buffer,
    ) -> Vec<(ReadTarget, io::Result<usize>)> {
        let mut places = Vec::with_capacity(files.len());
        let (mut in_pack, mut in_sectors) = (Vec::new(), Vec::new());
        for (number, (source, small)) in sources.iter().zip(files).enumerate() {
            let Ok(small) = small else { continue };
            let bytes = len(source);
            let start = block::pack_start(at, bytes);
            at = start + bytes;
            if !small.direct {
                continue;
            }
            let part = |from| BatchRead {
                file: &small.file,
                range: from..from + bytes.next_multiple_of(BUFFER_ALIGNMENT),
            };
            if bytes < PACK_ALIGN_BYTES_MIN {
                let from = number * PACK_ALIGN_BYTES_MIN;
                in_sectors.push(part(from));
                places.push(ReadTarget::Sectors(from));
            } else {
                in_pack.push(part(start));
                places.push(ReadTarget::Pack(start));
            }
        }
        let mut in_pack = self.batch.read(buffer, &in_pack).into_iter();
        let mut in_sectors = self.batch.read(&mut self.sectors, &in_sectors).into_iter();
        if let Some(fault) = self.batch.take_error() {
            let why = fs::describe(&fault);
            tracing::warn!("io_uring takes no more ({why}): small files are read one by one");
        }
        let mut read = |place: &ReadTarget| match place {
            ReadTarget::Pack(_) => in_pack.next(),
            ReadTarget::Sectors(_) => in_sectors.next(),
        };
        let read: Vec<_> = places.iter().map_while(&mut read).collect();
        places.into_iter().zip(read).collect()
    }
}

/// Memory into which a file was read.
#[derive(Debug, Clone, Copy)]
enum ReadTarget {
    /// Offset in the pack.
    Pack(usize),
    /// Offset in bytes in [`Packer::sectors`].
    Sectors(usize),
}

fn len(source: &SourceEntry) -> usize {
    usize::try_from(source.entry.bytes).unwrap_or(usize::MAX)
}
