//! The sender's state machine with a receiver of arbitrary messages, readers, and lost streams.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_protocol::control::{Failure, FailureKind, ToSender};
use penstock_protocol::digest::{Algorithm, Digest, DigestPart};
use penstock_protocol::manifest::{Entry, EntryKind, RelativePath, Time};
use penstock_protocol::sender::{Piece, ReadOutcome, Sender};
use penstock_protocol::wire::{Bytes, WireReader, WireFormat};

fn entry(number: u64) -> Entry {
    Entry {
        path: RelativePath::new(format!("file{number}").into_bytes()).expect("a good path"),
        kind: if number % 5 == 4 { EntryKind::Directory } else { EntryKind::File },
        bytes: if number % 5 == 4 { 0 } else { number * 50_000 },
        modified: Time { seconds: 1, nanos: 0 },
        changed: Time { seconds: 1, nanos: 0 },
        inode: number,
        mode: 0o644,
        uid: 0,
        gid: 0,
        sparse: false,
        link: Bytes(Vec::new()),
        xattrs: Vec::new(),
    }
}

fn work(machine: &mut Sender, chance: u8) {
    let Some(work) = machine.next_work(0) else { return };
    let result = || match chance % 7 {
        0 => ReadOutcome::Changed(Some(Box::new(entry(u64::from(chance))))),
        1 => ReadOutcome::Changed(None),
        _ => ReadOutcome::Good(DigestPart([0; 32])),
    };
    match &work.piece {
        Piece::Block { source, offset, bytes } => {
            machine.read(source, *offset..*offset + *bytes, result());
        }
        Piece::Pack(sources) => {
            for source in sources {
                machine.read(source, 0..source.entry.bytes, result());
            }
        }
        Piece::Compare { source, .. } => machine.compared(source, chance % 2 == 0),
        Piece::Digest(source) => machine.digested(
            source,
            match chance % 2 {
                0 => Ok(Digest(vec![0; 4])),
                _ => Err(Failure::new(FailureKind::Changed, "it changed")),
            },
        ),
    }
    if !matches!(work.piece, Piece::Compare { .. } | Piece::Digest(_)) {
        machine.sent(u32::from(chance % 3), work);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = WireReader::new(bytes);
    let Ok(algorithm) = Algorithm::take(&mut input) else { return };
    let mut machine = Sender::new(algorithm, 1 << 16);
    machine.keep_placed(true);
    (0..8).for_each(|number| machine.announce(0, 0, entry(number)));
    machine.manifest_end();
    while let Ok(step) = u8::take(&mut input) {
        match step % 4 {
            0 => {
                let Ok(message) = ToSender::take(&mut input) else { break };
                if machine.on_message(message).is_err() {
                    break;
                }
            }
            1 => {
                machine.stream_lost(u32::from(step % 3));
            }
            _ => work(&mut machine, step),
        }
        while machine.poll_message().is_some() {}
    }
});
