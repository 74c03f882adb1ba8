//! A resume journal with any tail: replayed ranges lie within recorded ones.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_protocol::journal::{self, Record};
use penstock_protocol::wire::{self, WireReader, WireFormat};

const BOOT: &str = "boot";

fuzz_target!(|bytes: &[u8]| {
    // As it is, and with corrected checksums.
    let _ = journal::replay(bytes, BOOT);
    let mut input = WireReader::new(bytes);
    let mut made = Vec::new();
    while input.remaining() > 0 {
        let Ok(record) = Record::take(&mut input) else { break };
        assert!(wire::decode::<Record>(&wire::encode(&record)).is_ok());
        journal::put(&record, &mut made);
    }
    if let Some((_, files)) = journal::replay(&made, BOOT) {
        assert!(files.len() <= made.len());
    }
});
