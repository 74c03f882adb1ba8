//! Both backends through the [`BlockIo`] trait, against real files.

use super::*;
use crate::buffer::BufferPool;
use crate::fs::{direct_alignment, read_exact_at, set_direct, write_all_at};
use std::io::{PipeReader, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;

const BLOCK_BYTES: usize = 64 << 10;

/// Creates a ring of `depth`; prints the reason and returns `None` if that is impossible.
fn ring(depth: usize) -> Option<Ring> {
    match Ring::probe() {
        Ok(()) => Some(Ring::new(depth).unwrap()),
        Err(reason) => {
            penstock_testkit::skip(penstock_testkit::Requirement::Kernel, &reason.to_string());
            None
        }
    }
}

/// All backends available here.
fn both(depth: usize) -> Vec<Box<dyn BlockIo>> {
    let mut both: Vec<Box<dyn BlockIo>> = vec![Box::new(SyncIo::new())];
    if let Some(ring) = ring(depth) {
        both.push(Box::new(ring));
    }
    both
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

fn file_with(content: &[u8]) -> Arc<File> {
    let file = tempfile::tempfile().unwrap();
    write_all_at(&file, content, 0).unwrap();
    Arc::new(file)
}

fn content_of(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.metadata().unwrap().len() as usize];
    read_exact_at(file, &mut content, 0).unwrap();
    content
}

fn write_all(io: &mut dyn BlockIo, pool: &BufferPool, file: &Arc<File>, content: &[u8]) {
    let mut blocks = content.chunks(BLOCK_BYTES).enumerate();
    loop {
        if io.has_room()
            && let Some((number, block)) = blocks.next()
        {
            let mut buffer = pool.take().unwrap();
            buffer[..block.len()].copy_from_slice(block);
            io.submit(Operation {
                kind: OperationKind::Write,
                file: Arc::clone(file),
                buffer,
                start: 0,
                len: block.len(),
                offset: (number * BLOCK_BYTES) as u64,
                token: number as u64,
            });
        } else if io.in_flight() > 0 {
            let completion = io.complete().unwrap();
            let left = content.len() - completion.token as usize * BLOCK_BYTES;
            assert_eq!(completion.result.unwrap(), left.min(BLOCK_BYTES));
        } else {
            return;
        }
    }
}

fn read_all(io: &mut dyn BlockIo, pool: &BufferPool, file: &Arc<File>, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    let mut next = 0;
    loop {
        if io.has_room() && next < len.div_ceil(BLOCK_BYTES) {
            io.submit(Operation {
                kind: OperationKind::Read,
                file: Arc::clone(file),
                buffer: pool.take().unwrap(),
                start: 0,
                len: BLOCK_BYTES,
                offset: (next * BLOCK_BYTES) as u64,
                token: next as u64,
            });
            next += 1;
        } else if io.in_flight() > 0 {
            let completion = io.complete().unwrap();
            assert_eq!(completion.kind, OperationKind::Read);
            let (start, read) =
                (completion.token as usize * BLOCK_BYTES, completion.result.unwrap());
            assert_eq!(read, (len - start).min(BLOCK_BYTES));
            content[start..start + read].copy_from_slice(&completion.buffer[..read]);
        } else {
            return content;
        }
    }
}

#[test]
fn unaligned_tail_round_trips() {
    for io in &mut both(8) {
        let pool = BufferPool::new(8, BLOCK_BYTES);
        for len in [1, 511, BLOCK_BYTES, BLOCK_BYTES + 1, 40 * BLOCK_BYTES + 12_345] {
            let content = pattern(len);
            let file = Arc::new(tempfile::tempfile().unwrap());
            write_all(io.as_mut(), &pool, &file, &content);
            assert_eq!(content_of(&file), content, "{} {len}", io.name());
            assert_eq!(read_all(io.as_mut(), &pool, &file, len), content, "{} {len}", io.name());
        }
        assert_eq!(pool.allocated(), pool.free());
    }
}

#[test]
fn direct_reads_stop_at_unaligned_eof() {
    for io in &mut both(8) {
        let pool = BufferPool::new(8, BLOCK_BYTES);
        for len in [
            1,
            512,
            4096,
            10_000,
            BLOCK_BYTES,
            20 * BLOCK_BYTES,
            20 * BLOCK_BYTES + 1536,
            20 * BLOCK_BYTES + 77,
        ] {
            let content = pattern(len);
            let file = file_with(&content);
            if direct_alignment(&file).unwrap().is_none_or(|alignment| alignment > 4096) {
                penstock_testkit::skip(penstock_testkit::Requirement::Kernel, "no O_DIRECT here");
                return;
            }
            file.sync_all().unwrap();
            set_direct(&file, true).unwrap();
            assert_eq!(read_all(io.as_mut(), &pool, &file, len), content, "{} {len}", io.name());
        }
    }
}

#[test]
fn direct_writes_are_read_back() {
    for io in &mut both(8) {
        let pool = BufferPool::new(8, BLOCK_BYTES);
        let content = pattern(33 * BLOCK_BYTES);
        let file = Arc::new(tempfile::tempfile().unwrap());
        if direct_alignment(&file).unwrap().is_none_or(|alignment| alignment > 4096) {
            penstock_testkit::skip(penstock_testkit::Requirement::Kernel, "no O_DIRECT here");
            return;
        }
        set_direct(&file, true).unwrap();
        write_all(io.as_mut(), &pool, &file, &content);
        set_direct(&file, false).unwrap();
        assert_eq!(content_of(&file), content, "{}", io.name());
    }
}

#[test]
fn unaligned_buffer_range_is_read() {
    for io in &mut both(2) {
        let pool = BufferPool::new(1, BLOCK_BYTES);
        let file = file_with(&pattern(1000));
        let mut buffer = pool.take().unwrap();
        buffer.fill(7);
        io.submit(Operation {
            kind: OperationKind::Read,
            file,
            buffer,
            start: 13,
            len: 100,
            offset: 333,
            token: 42,
        });
        let completion = io.complete().unwrap();
        assert_eq!((completion.token, completion.result.unwrap()), (42, 100));
        assert_eq!(completion.buffer[13..113], pattern(1000)[333..433]);
        assert!(
            completion.buffer[..13].iter().chain(&completion.buffer[113..]).all(|&byte| byte == 7)
        );
    }
}

#[test]
fn reads_past_the_end_are_empty() {
    for io in &mut both(2) {
        let pool = BufferPool::new(1, BLOCK_BYTES);
        let file = file_with(b"short");
        for (offset, read) in [(0, 5), (3, 2), (5, 0), (1 << 40, 0)] {
            io.submit(Operation {
                kind: OperationKind::Read,
                file: Arc::clone(&file),
                buffer: pool.take().unwrap(),
                start: 0,
                len: BLOCK_BYTES,
                offset,
                token: 0,
            });
            assert_eq!(io.complete().unwrap().result.unwrap(), read);
        }
    }
}

#[test]
fn failed_operation_returns_its_buffer() {
    for io in &mut both(2) {
        let pool = BufferPool::new(1, BLOCK_BYTES);
        let full = Arc::new(File::options().write(true).open("/dev/full").unwrap());
        let read_only = Arc::new(File::open("/dev/zero").unwrap());
        for (file, errno) in [(full, libc::ENOSPC), (read_only, libc::EBADF)] {
            io.submit(Operation {
                kind: OperationKind::Write,
                file,
                buffer: pool.try_take().unwrap(),
                start: 0,
                len: BLOCK_BYTES,
                offset: 0,
                token: 1,
            });
            let completion = io.complete().unwrap();
            assert_eq!(completion.result.unwrap_err().raw_os_error(), Some(errno), "{}", io.name());
            assert_eq!(completion.buffer.len(), BLOCK_BYTES);
        }
    }
}

#[test]
fn invalid_operation_finishes_at_once() {
    for io in &mut both(2) {
        let pool = BufferPool::new(1, BLOCK_BYTES);
        let file = file_with(b"content");
        for (start, len, offset) in [
            (0, BLOCK_BYTES + 1, 0),
            (BLOCK_BYTES + 1, 0, 0),
            (usize::MAX, 2, 0),
            (0, 1, u64::MAX),
            (0, 1, i64::MAX as u64),
        ] {
            for kind in [OperationKind::Read, OperationKind::Write] {
                io.submit(Operation {
                    kind,
                    file: Arc::clone(&file),
                    buffer: pool.try_take().unwrap(),
                    start,
                    len,
                    offset,
                    token: 9,
                });
                assert_eq!(io.in_flight(), 1);
                let completion = io.complete().unwrap();
                assert_eq!((completion.token, completion.kind), (9, kind));
                assert_eq!(completion.result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
        }
        let nothing = io.complete().unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(content_of(&file), b"content");
    }
}

#[test]
fn beyond_the_depth_nothing_is_lost() {
    for io in &mut both(2) {
        let pool = BufferPool::new(4, BLOCK_BYTES);
        let file = file_with(&pattern(BLOCK_BYTES));
        for token in 0..4 {
            io.submit(Operation {
                kind: OperationKind::Read,
                file: Arc::clone(&file),
                buffer: pool.take().unwrap(),
                start: 0,
                len: BLOCK_BYTES,
                offset: 0,
                token,
            });
        }
        assert!(!io.has_room());
        assert_eq!(io.in_flight(), 4);
        let mut refused = 0;
        for _ in 0..4 {
            match io.complete().unwrap().result {
                Ok(read) => assert_eq!(read, BLOCK_BYTES),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, if io.name() == "io_uring" { 2 } else { 3 });
        assert!(io.has_room());
        assert_eq!(pool.free(), 4);
    }
}

#[test]
fn nothing_to_move_moves_nothing() {
    for io in &mut both(2) {
        let pool = BufferPool::new(1, BLOCK_BYTES);
        for kind in [OperationKind::Read, OperationKind::Write] {
            io.submit(Operation {
                kind,
                file: file_with(b"x"),
                buffer: pool.take().unwrap(),
                start: BLOCK_BYTES,
                len: 0,
                offset: 0,
                token: 0,
            });
            assert_eq!(io.complete().unwrap().result.unwrap(), 0);
        }
    }
}

/// A read of a pipe that stays in flight until data is written to its other end.
fn blocked_read(pool: &BufferPool, reader: PipeReader) -> Operation {
    Operation {
        kind: OperationKind::Read,
        file: Arc::new(File::from(OwnedFd::from(reader))),
        buffer: pool.take().unwrap(),
        start: 0,
        len: 5,
        offset: 0,
        token: 0,
    }
}

#[test]
fn drop_waits_for_operations_in_flight() {
    let Some(mut ring) = ring(4) else { return };
    let pool = BufferPool::new(1, 4096);
    let (reader, mut writer) = io::pipe().unwrap();
    ring.submit(blocked_read(&pool, reader));
    assert_eq!((ring.in_flight(), pool.free()), (1, 0));
    let (dropping, about_to_drop) = mpsc::channel();
    let dropper = thread::spawn(move || {
        dropping.send(()).unwrap();
        drop(ring);
    });
    about_to_drop.recv().unwrap();
    assert_eq!(pool.free(), 0);
    writer.write_all(b"hello").unwrap();
    dropper.join().unwrap();
    // The pool has the buffer back, and the kernel had written to it by then.
    assert_eq!(&pool.try_take().unwrap()[..5], b"hello");
}

#[test]
fn drop_returns_all_buffers() {
    let pool = BufferPool::new(16, BLOCK_BYTES);
    for round in 0..20 {
        let Some(mut ring) = ring(16) else { return };
        let file = file_with(&pattern(16 * BLOCK_BYTES));
        for token in 0..16 {
            ring.submit(Operation {
                kind: if (token + round) % 2 == 0 {
                    OperationKind::Read
                } else {
                    OperationKind::Write
                },
                file: Arc::clone(&file),
                buffer: pool.try_take().unwrap(),
                start: 0,
                len: BLOCK_BYTES,
                offset: token * BLOCK_BYTES as u64,
                token,
            });
        }
        drop(ring);
        assert_eq!(pool.free(), 16);
        assert_eq!(Arc::strong_count(&file), 1);
    }
}

#[test]
fn ring_continues_after_short_reads() {
    let Some(mut ring) = ring(4) else { return };
    let pool = BufferPool::new(1, 4096);
    let (reader, mut writer) = io::pipe().unwrap();
    // A pipe returns the available bytes: three, then the rest.
    writer.write_all(b"hel").unwrap();
    ring.submit(blocked_read(&pool, reader));
    let completer = thread::spawn(move || {
        let completion = ring.complete().unwrap();
        (completion, ring)
    });
    writer.write_all(b"lo").unwrap();
    let (completion, _ring) = completer.join().unwrap();
    assert_eq!(completion.result.unwrap(), 5);
    assert_eq!(&completion.buffer[..5], b"hello");
}

#[test]
fn short_and_interrupted_calls_continue() {
    let pool = BufferPool::new(1, 4096);
    let begin = |kind| {
        PartialOperation::begin(Operation {
            kind,
            file: file_with(b""),
            buffer: pool.take().unwrap(),
            start: 1,
            len: 10,
            offset: 100,
            token: 0,
        })
        .unwrap()
    };
    let mut read = begin(OperationKind::Read);
    assert!(read.advance(Ok(3)).is_none());
    assert!(read.advance(Err(io::ErrorKind::Interrupted.into())).is_none());
    let (bytes, offset) = read.remaining();
    assert_eq!((bytes.len(), offset), (7, 103));
    assert!(matches!(read.advance(Ok(0)), Some(Ok(3))));
    drop(read);

    let mut write = begin(OperationKind::Write);
    assert!(write.advance(Ok(9)).is_none());
    assert!(matches!(write.advance(Ok(1)), Some(Ok(10))));
    drop(write);

    let mut write = begin(OperationKind::Write);
    assert!(write.advance(Ok(9)).is_none());
    let error = write.advance(Ok(0)).unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

#[test]
fn fallback_reports_its_reason() {
    assert_eq!(block_io(1).0.name(), "pread/pwrite");
    assert_eq!(block_io(1).1, None);
    let (io, reason) = block_io(4);
    match Ring::probe() {
        Ok(()) => assert_eq!((io.name(), reason), ("io_uring", None)),
        Err(why) => assert_eq!((io.name(), reason), ("pread/pwrite", Some(why.to_string()))),
    }
}

#[test]
fn batch_reads_whole_and_short_files() {
    for depth in [1, 4] {
        let mut batch = BatchReader::new(depth);
        let contents: Vec<_> = (0..11).map(|n| pattern(n * 1000)).collect();
        let files: Vec<_> = contents.iter().map(|content| file_with(content)).collect();
        let mut memory = vec![0xaa; 11 * 8192];
        let parts: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(n, file)| BatchRead { file, range: n * 8192..n * 8192 + 7000 })
            .collect();
        for (n, read) in batch.read(&mut memory, &parts).into_iter().enumerate() {
            let expected = &contents[n][..contents[n].len().min(7000)];
            assert_eq!(read.unwrap(), expected.len(), "file {n}");
            assert_eq!(&memory[n * 8192..][..expected.len()], expected, "file {n}");
            assert_eq!(memory[n * 8192 + 7000], 0xaa, "behind file {n}");
        }
    }
}

#[test]
fn direct_batch_stops_at_unaligned_eof() {
    let content = pattern(BLOCK_BYTES + 12_345);
    let file = tempfile::tempfile_in(".").unwrap();
    write_all_at(&file, &content, 0).unwrap();
    if direct_alignment(&file).unwrap().is_none() {
        penstock_testkit::skip(penstock_testkit::Requirement::Kernel, "no direct I/O here");
        return;
    }
    set_direct(&file, true).unwrap();
    let pool = BufferPool::new(1, 4 * BLOCK_BYTES);
    let mut buffer = pool.take().unwrap();
    let part = BatchRead { file: &file, range: BLOCK_BYTES..3 * BLOCK_BYTES };
    let read = BatchReader::new(2).read(&mut buffer, std::slice::from_ref(&part));
    assert_eq!(*read[0].as_ref().unwrap(), content.len());
    assert_eq!(buffer[BLOCK_BYTES..][..content.len()], content);
}

#[test]
fn batch_reports_unreadable_file() {
    let directory = File::open(".").unwrap();
    let file = file_with(b"content");
    let parts =
        [BatchRead { file: &directory, range: 0..10 }, BatchRead { file: &file, range: 10..20 }];
    let read = BatchReader::new(2).read(&mut [0; 20], &parts);
    assert!(read[0].is_err());
    assert_eq!(*read[1].as_ref().unwrap(), 7);
    assert!(BatchReader::new(2).read(&mut [0; 20], &[]).is_empty());
}

#[test]
#[should_panic(expected = "beyond the memory")]
fn batch_panics_beyond_its_memory() {
    let file = file_with(b"content");
    drop(BatchReader::new(2).read(&mut [0; 20], &[BatchRead { file: &file, range: 15..21 }]));
}
