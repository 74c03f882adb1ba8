//! Records of the sampler's ring: whatever is in one, a frame comes out whose bytes are no more than were taken and a tag.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_sampler::Taken;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (ethernet, mut bytes) = input;
    // A record is as long as the ring has it; shorter ones are none.
    bytes.resize(bytes.len().max(56), 0);
    if let Some(taken) = Taken::read(&bytes) {
        let mut room = Vec::new();
        let frame = taken.frame(ethernet, &mut room);
        let (header, length, last) = frame.sampled();
        assert!(header.len() <= bytes.len() - 56 + 4);
        assert!(last <= length);
    }
});
