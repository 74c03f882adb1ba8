//! A control link that receives any bytes in pieces of any size and loses its connection at any moment.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use penstock_protocol::link::ControlLink;

fuzz_target!(|bytes: &[u8]| {
    let mut now = Duration::ZERO;
    let mut link = ControlLink::new(now);
    let mut rest = bytes;
    let mut out = Vec::new();
    let _ = link.connected(0, now);
    while let Some((step, after)) = rest.split_first() {
        now += Duration::from_millis(u64::from(*step));
        match step % 8 {
            0 => {
                link.disconnected();
                if link.connected(u64::from(*step) / 8, now).is_err() {
                    return;
                }
                rest = after;
            }
            1 => {
                if link.has_room() {
                    link.send(vec![*step; usize::from(*step)]);
                }
                rest = after;
            }
            _ => {
                let (piece, after) = after.split_at(after.len().min(usize::from(*step)));
                if link.receive(piece, now).is_err() {
                    return;
                }
                rest = after;
            }
        }
        if link.transmit(now, 4096, &mut out).is_err() {
            return;
        }
        out.clear();
    }
});
