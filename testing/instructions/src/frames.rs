//! Frames, messages and journal records of a copy, and requests of `root://`.

use penstock_protocol::block::{self, FrameKind, Header, PackItem};
use penstock_protocol::control::{Decision, FrameRange, ToSender};
use penstock_protocol::digest::Algorithm;
use penstock_protocol::extents::Extent;
use penstock_protocol::journal::{self, JOURNAL_VERSION, JournalHeader, Record};
use penstock_protocol::wire;
use penstock_xrootd::{RequestHead, XrdRequest};

use crate::{HotPath, count};

pub(crate) const PATHS: &[HotPath] = &[
    ("frame-header-encode", header_encode),
    ("frame-header-decode", header_decode),
    ("pack-table-decode", pack_table),
    ("control-message-codec", control_messages),
    ("journal-write-and-replay", journal_records),
    ("xrootd-request-parse", xrootd_requests),
];

/// Frames, messages, records or requests in one run.
const RUN_COUNT: u64 = 1000;

fn header(number: u64) -> Header {
    Header {
        kind: FrameKind::Block,
        payload_bytes: 4 << 20,
        sequence: number,
        file: number / 100,
        offset: number << 22,
        bytes: 4 << 20,
        payload_crc: number as u32,
        ..Header::end()
    }
}

fn header_encode() {
    let headers: Vec<Header> = (0..RUN_COUNT).map(header).collect();
    count(|| headers.iter().map(|header| u64::from(header.encode()[79])).sum::<u64>());
}

fn header_decode() {
    let headers: Vec<_> = (0..RUN_COUNT).map(|number| header(number).encode()).collect();
    count(|| {
        for bytes in &headers {
            Header::decode(bytes).expect("a valid header");
        }
    });
}

/// A pack of files of 1 KiB.
fn pack_table() {
    let item = |file: u64| PackItem { file, bytes: 1024, crc: file as u32, part: [7; 32] };
    let mut payload = vec![0; RUN_COUNT as usize * 1024];
    (0..RUN_COUNT).for_each(|file| payload.extend(wire::encode(&item(file))));
    let header = Header {
        kind: FrameKind::Pack,
        items: RUN_COUNT as u16,
        payload_bytes: payload.len() as u32,
        bytes: RUN_COUNT * 1024,
        ..Header::end()
    };
    count(|| block::pack_items(&header, &payload).expect("a valid table").len());
}

fn control_messages() {
    let written = ToSender::Written(
        (0..RUN_COUNT).map(|number| FrameRange { first: number * 8, count: 5 }).collect(),
    );
    let decisions =
        ToSender::Decisions((0..RUN_COUNT).map(|file| (file, Decision::Send(()))).collect());
    count(|| {
        for message in [&written, &decisions] {
            let bytes = wire::encode(message);
            wire::decode::<ToSender>(&bytes).expect("a valid message");
        }
    });
}

fn journal_records() {
    let boot = "5e7a0c3e";
    let header = JournalHeader {
        version: JOURNAL_VERSION,
        boot: boot.to_owned(),
        algorithm: Algorithm::Crc32c,
        block_bytes: 4 << 20,
    };
    let extent = |number: u64| Extent { offset: number << 22, bytes: 4 << 20, part: [1; 32] };
    let records: Vec<Record> = std::iter::once(Record::Header(header))
        .chain((0..RUN_COUNT).map(|number| Record::Written((0, extent(number)))))
        .collect();
    count(|| {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| journal::put(record, &mut bytes));
        journal::replay(&bytes, boot).is_some()
    });
}

fn xrootd_requests() {
    let request = |number: u64| {
        let mut bytes = [0; 24];
        // A read of 1 MiB (kXR_read).
        bytes[2..4].copy_from_slice(&3013_u16.to_be_bytes());
        bytes[8..16].copy_from_slice(&(number << 20).to_be_bytes());
        bytes[16..20].copy_from_slice(&(1_u32 << 20).to_be_bytes());
        bytes
    };
    let requests: Vec<[u8; 24]> = (0..RUN_COUNT).map(request).collect();
    count(|| {
        for bytes in &requests {
            let head = RequestHead::parse(bytes);
            XrdRequest::parse(&head, &[]).expect("a valid request");
        }
    });
}
