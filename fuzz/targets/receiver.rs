//! The receiver's state machine with a sender of arbitrary messages: it never panics, and bytes that it counts as moved
//! were written.

#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use penstock_protocol::control::{Failure, FailureKind, ToReceiver};
use penstock_protocol::digest::{Algorithm, Digest, DigestPart};
use penstock_protocol::extents::Extent;
use penstock_protocol::receiver::{FrameTarget, Receiver, DestinationCheck};
use penstock_protocol::wire::{WireReader, WireFormat};

fn failure() -> Failure {
    Failure::new(FailureKind::Destination, "no")
}

fn carry(machine: &mut Receiver, chance: u8) {
    while let Some((file, entry)) = machine.poll_check() {
        let verdict = match chance % 6 {
            0 => DestinationCheck::Skip(Digest(vec![chance; 4])),
            1 => DestinationCheck::Failed(failure()),
            2 => DestinationCheck::Compare(Digest(vec![chance; 4])),
            3 => DestinationCheck::Done(Digest(Vec::new())),
            4 => DestinationCheck::Resume(vec![Extent { offset: 0, bytes: entry.bytes / 2, part: [0; 32] }]),
            _ => DestinationCheck::Send,
        };
        for extent in machine.decide(file, verdict) {
            machine.verified(file, extent.offset, chance & 8 == 0);
        }
    }
    while machine.poll_discard().is_some() {
        machine.discarded();
    }
    while let Some(finish) = machine.poll_finish() {
        let result = if chance == 7 { Err(failure()) } else { Ok(finish.digest) };
        machine.settle(finish.file, result);
    }
    while machine.poll_message().is_some() {}
    if machine.is_complete() {
        machine.finished();
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = WireReader::new(bytes);
    let Ok(algorithm) = Algorithm::take(&mut input) else { return };
    let mut machine = Receiver::new(algorithm);
    machine.keep_placed();
    let mut written: HashMap<u64, u64> = HashMap::new();
    while let Ok(step) = u8::take(&mut input) {
        if step % 2 == 0 {
            let Ok(message) = ToReceiver::take(&mut input) else { break };
            if machine.on_message(message).is_err() {
                break;
            }
        } else {
            let Ok((file, (offset, count))) = <(u8, (u16, u16))>::take(&mut input) else { break };
            let (file, offset, count) = (u64::from(file), u64::from(offset), u64::from(count));
            let Ok(place) = machine.accept(file, offset, count) else { break };
            if let FrameTarget::Write(_) = place {
                let result = match step % 5 {
                    0 => machine.written_whole(file, count, DigestPart([0; 32])),
                    1 => {
                        machine.fail(file, failure());
                        Ok(())
                    }
                    _ => machine.written(file, offset, count, DigestPart([0; 32])),
                };
                if result.is_err() {
                    break;
                }
                *written.entry(file).or_default() += count;
            }
            machine.acknowledge(u64::from(step));
        }
        carry(&mut machine, step);
    }
    let moved: u64 = written.values().sum();
    assert!(machine.tally().moved_bytes <= moved);
});
