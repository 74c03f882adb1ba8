//! Untrusted bytes of an iperf3 test: parameters of a client, results of either end, cookies, states, first datagrams
//! and headers of datagrams. Parsed values are within the limits and encode to an equal value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_nettest::datagram::{CounterWidth, DatagramAccount, DatagramHeader, StreamHello};
use penstock_nettest::iperf3::params::{IPERF_STREAMS_MAX, IperfParams};
use penstock_nettest::iperf3::results::IperfResults;
use penstock_nettest::iperf3::wire::{
    COOKIE_BYTES, ControlState, Cookie, is_stream_reply, reply_to, server_error_reason,
};

fn params(json: &[u8]) {
    let Ok(params) = IperfParams::decode(json) else { return };
    let test = &params.test;
    assert!((1..=IPERF_STREAMS_MAX).contains(&test.streams));
    assert!(test.seconds.is_none_or(|seconds| seconds > 0.0 && seconds <= 86_400.0));
    assert!(test.block_bytes.is_none_or(|bytes| (17..=16 << 20).contains(&bytes)));
    let again = IperfParams::decode(&params.encode()).expect("written by this end");
    assert_eq!(again.test.streams, test.streams);
    assert_eq!(again.test.direction, test.direction);
    assert_eq!((again.mss, again.tos, again.test.udp), (params.mss, params.tos, test.udp));
}

fn results(json: &[u8]) {
    let Ok(results) = IperfResults::decode(json) else { return };
    assert!(results.streams.len() <= 2 * IPERF_STREAMS_MAX as usize);
    assert!(results.cpu_percent.is_finite());
    assert_eq!(IperfResults::decode(&results.encode()), Ok(results));
}

fn datagrams(width: CounterWidth, bytes: &[u8]) {
    let mut account = DatagramAccount::default();
    let (mut counted, mut all) = (0, 0);
    for datagram in bytes.chunks(20) {
        let Some(header) = DatagramHeader::decode(width, datagram) else { continue };
        all += 1;
        counted += u64::from(account.add(header, header.sent));
        assert_eq!(account.packets - account.lost, counted);
    }
    assert!(account.out_of_order <= counted && account.duplicates <= all - counted);
    assert!(account.jitter_seconds >= 0.0);
}

fn first_bytes(bytes: &[u8]) {
    if let Some(state) = bytes.first().and_then(|byte| ControlState::decode(*byte)) {
        assert_eq!(Some(state.byte()), bytes.first().copied());
    }
    if let Some(cookie) = bytes.first_chunk::<COOKIE_BYTES>().and_then(Cookie::decode) {
        assert!(Cookie::may_start_with(&cookie.bytes()[..COOKIE_BYTES - 1]));
    }
    if let Some(code) = bytes.first_chunk::<4>() {
        assert!(!server_error_reason(u32::from_be_bytes(*code)).is_empty());
    }
    if let Some(reply) = reply_to(bytes) {
        assert!(is_stream_reply(&reply) || bytes == b"6789");
    }
    if let Some(hello) = StreamHello::decode(bytes) {
        assert_eq!(hello.encode(), bytes);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 5 {
        0 => params(bytes),
        1 => results(bytes),
        2 => datagrams(CounterWidth::Bits32, bytes),
        3 => datagrams(CounterWidth::Bits64, bytes),
        _ => first_bytes(bytes),
    }
});
