//! Records of the sampler's ring: any record decodes to a frame of at most the captured bytes and a tag.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_sampler::SampledSegments;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (ethernet, mut bytes) = input;
    // Ring records have a fixed size; shorter inputs are padded.
    bytes.resize(bytes.len().max(56), 0);
    if let Some(taken) = SampledSegments::read(&bytes) {
        let mut room = Vec::new();
        let frame = taken.frame(ethernet, &mut room);
        let (header, length, last) = frame.sampled();
        assert!(header.len() <= bytes.len() - 56 + 4);
        assert!(last <= length);
    }
});
