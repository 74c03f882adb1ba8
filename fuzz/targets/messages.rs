//! Every binary message: decoding is total, and what was decoded encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_protocol::control::{ToReceiver, ToSender};
use penstock_protocol::open::{Answer, Challenge, Join, OpenRequest};
use penstock_protocol::preamble::{self, PREAMBLE_BYTES};
use penstock_protocol::third_party::{FromSource, ToSource};
use penstock_protocol::wire::{self, WireFormat};

fn there_and_back<T: WireFormat>(bytes: &[u8]) {
    if let Ok(message) = wire::decode::<T>(bytes) {
        assert_eq!(wire::encode(&message), bytes);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 9 {
        0 => there_and_back::<OpenRequest>(bytes),
        1 => there_and_back::<Answer>(bytes),
        2 => there_and_back::<ToReceiver>(bytes),
        3 => there_and_back::<ToSender>(bytes),
        4 => there_and_back::<FromSource>(bytes),
        5 => there_and_back::<ToSource>(bytes),
        6 => there_and_back::<Join>(bytes),
        7 => there_and_back::<Challenge>(bytes),
        _ => {
            if let Ok(bytes) = <&[u8; PREAMBLE_BYTES]>::try_from(bytes)
                && let Ok(preamble) = preamble::decode(bytes)
            {
                assert_eq!(preamble::decode(&preamble::encode(preamble)), Ok(preamble));
            }
        }
    }
});
