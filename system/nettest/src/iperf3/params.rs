//! Parameters of an iperf3 test as its client sends them, and their limits. Pure.
//!
//! A missing key means the default, an unknown one is ignored (`get_parameters` of `iperf_api.c`).

use serde_json::{Map, Value};

use super::wire::{IperfError, PARAMS_BYTES_MAX};
use crate::params::{SECONDS_MAX, TestDirection, TestParams};

/// Limit of parallel streams in one direction (`MAX_STREAMS`).
pub const IPERF_STREAMS_MAX: u32 = 128;
/// Limit of the omitted start (`MAX_OMIT_TIME`).
pub const OMIT_SECONDS_MAX: u64 = 600;
/// Limit of the time (`MAX_TIME`).
const TIME_SECONDS_MAX: u64 = 86_400;
/// Limit of the socket buffers (`MAX_TCP_BUFFER`).
const WINDOW_BYTES_MAX: u64 = 512 << 20;
/// Limit of a TCP block; iperf3's own is 1 MiB.
const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Block without `-l` (`DEFAULT_TCP_BLKSIZE`).
const TCP_BLOCK_BYTES: u64 = 128 << 10;
/// Smallest block that a sender hands to the kernel.
const BLOCK_BYTES_MIN: u64 = 64;
/// Limit of the MSS (`MAX_MSS`).
const MSS_BYTES_MAX: u64 = (32 << 10) - 1;
/// Smallest datagram (`MIN_UDP_BLOCKSIZE`): its header.
pub const DATAGRAM_BYTES_MIN: u64 = 16;
/// Largest payload of a datagram (`MAX_UDP_BLOCKSIZE`).
pub const DATAGRAM_BYTES_MAX: u64 = 65_535 - 8 - 20;
/// Limit of a stream's rate: 10 Tb/s.
const STREAM_BPS_MAX: u64 = 10_000_000_000_000;

/// Parameters of an iperf3 test, within their limits.
#[derive(Clone, Debug, PartialEq)]
pub struct IperfParams {
    /// Parameters that other tests have too. `seconds` is `None` where bytes or blocks end the test.
    pub test: TestParams,
    /// Number of blocks that end the test (`-k`).
    pub blocks: Option<u64>,
    /// Datagrams count in 64 bits instead of 32.
    pub counters_64bit: bool,
    /// Requested MSS in bytes.
    pub mss: Option<u32>,
    /// Sends without Nagle's algorithm (`TCP_NODELAY`).
    pub no_delay: bool,
    /// IP type of service.
    pub tos: Option<u8>,
    /// The client prints the server's text.
    pub server_output: bool,
}

impl IperfParams {
    /// Decodes the parameters of a client.
    ///
    /// # Errors
    /// The number by which iperf3 names the faulty one.
    pub fn decode(json: &[u8]) -> Result<Self, IperfError> {
        if json.len() > PARAMS_BYTES_MAX {
            return Err(IperfError::Params);
        }
        let object: Map<String, Value> =
            serde_json::from_slice(json).map_err(|_| IperfError::Params)?;
        // 3.12 writes some flags as 1 (`get_server_output`, `udp_counters_64bit`).
        let flag = |key: &str| match object.get(key) {
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            value => value == Some(&Value::Bool(true)),
        };
        let number = |key: &str, limit: u64, error: IperfError| match object.get(key) {
            None => Ok(None),
            Some(value) => whole(value).filter(|n| *n <= limit).map(Some).ok_or(error),
        };
        if flag("sctp") {
            return Err(IperfError::Sctp);
        }
        let udp = flag("udp");
        let streams = number("parallel", IPERF_STREAMS_MAX.into(), IperfError::Streams)?;
        let streams = u32::try_from(streams.unwrap_or(1)).unwrap_or(0);
        if streams == 0 {
            return Err(IperfError::Streams);
        }
        let direction = match (flag("reverse"), flag("bidirectional")) {
            (true, true) => return Err(IperfError::ReverseBidir),
            (true, _) => TestDirection::Reverse,
            (_, true) => TestDirection::Bidir,
            _ => TestDirection::Forward,
        };
        let bytes = number("num", u64::MAX, IperfError::Params)?.filter(|bytes| *bytes > 0);
        let blocks = number("blockcount", u64::MAX, IperfError::Params)?.filter(|n| *n > 0);
        let time = number("time", TIME_SECONDS_MAX, IperfError::Duration)?.unwrap_or(10);
        let omit = number("omit", OMIT_SECONDS_MAX, IperfError::Omit)?.unwrap_or(0);
        let seconds = (time > 0 && bytes.is_none() && blocks.is_none()).then_some(time as f64);
        let rate = number("bandwidth", u64::MAX, IperfError::Params)?.filter(|rate| *rate > 0);
        let pacing = number("fqrate", u64::MAX, IperfError::Params)?.filter(|rate| *rate > 0);
        let rate = rate.into_iter().chain(pacing).min().map(|rate| rate.min(STREAM_BPS_MAX));
        let length = if udp {
            let length = number("len", DATAGRAM_BYTES_MAX, IperfError::DatagramSize)?;
            let length = length.filter(|length| *length > 0);
            if length.is_some_and(|length| length < DATAGRAM_BYTES_MIN) {
                return Err(IperfError::DatagramSize);
            }
            length
        } else {
            number("len", BLOCK_BYTES_MAX, IperfError::BlockSize)?
                .filter(|length| *length > 0)
                .map(|length| length.max(BLOCK_BYTES_MIN))
        };
        // The sender of this end stops by itself, as that of `iperf3 -s` does. It may not where a datagram can be lost, or bytes
        // are omitted: the client waits for all of them.
        let of_blocks =
            blocks.map(|blocks| blocks.saturating_mul(length.unwrap_or(TCP_BLOCK_BYTES)));
        let is_counted = direction == TestDirection::Reverse && !udp && omit == 0;
        let own_bytes = bytes.or(of_blocks).filter(|_| is_counted);
        let window = number("window", WINDOW_BYTES_MAX, IperfError::Window)?;
        let mss = number("MSS", MSS_BYTES_MAX, IperfError::Mss)?.filter(|mss| *mss > 0);
        let tos = number("TOS", u64::MAX, IperfError::Params)?
            .map(|tos| (tos & 0xff) as u8)
            .filter(|tos| *tos > 0);
        let congestion = match object.get("congestion").filter(|_| !udp) {
            Some(Value::String(name)) if is_congestion_name(name) => Some(name.clone()),
            Some(_) => return Err(IperfError::Congestion),
            None => None,
        };
        let small = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
        Ok(Self {
            test: TestParams {
                direction,
                streams,
                seconds,
                bytes: own_bytes,
                rate_bps: rate.map(|rate| rate.saturating_mul(streams.into())),
                congestion,
                window_bytes: small(window).filter(|window| *window > 0),
                block_bytes: small(length),
                omit_seconds: omit as f64,
                udp,
                ..TestParams::default()
            },
            blocks,
            counters_64bit: flag("udp_counters_64bit"),
            mss: small(mss),
            no_delay: flag("nodelay"),
            tos,
            server_output: flag("get_server_output"),
        })
    }

    /// Encodes the parameters of this client. Times are whole seconds, so a test of a part of a second
    /// asks for one more; this end ends it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut object = Map::new();
        let test = &self.test;
        object.insert(if test.udp { "udp" } else { "tcp" }.into(), true.into());
        object.insert("omit".into(), whole_seconds(test.omit_seconds).into());
        object.insert("time".into(), test.seconds.map_or(0, whole_seconds).into());
        object.insert("num".into(), test.bytes.unwrap_or(0).into());
        object.insert("blockcount".into(), self.blocks.unwrap_or(0).into());
        object.insert("parallel".into(), test.streams.into());
        match test.direction {
            TestDirection::Forward => {}
            TestDirection::Reverse => drop(object.insert("reverse".into(), true.into())),
            TestDirection::Bidir => drop(object.insert("bidirectional".into(), true.into())),
        }
        if let Some(block) = test.block_bytes {
            object.insert("len".into(), block.into());
        }
        if let Some(rate) = test.rate_bps {
            object.insert("bandwidth".into(), (rate / u64::from(test.streams)).max(1).into());
        }
        if let Some(window) = test.window_bytes {
            object.insert("window".into(), window.into());
        }
        if let Some(name) = &test.congestion {
            object.insert("congestion".into(), name.clone().into());
        }
        if let Some(mss) = self.mss {
            object.insert("MSS".into(), mss.into());
        }
        if let Some(tos) = self.tos {
            object.insert("TOS".into(), tos.into());
        }
        if self.no_delay {
            object.insert("nodelay".into(), true.into());
        }
        // Servers from 3.18 on ignore these two unless they are numbers.
        for (key, value) in
            [("udp_counters_64bit", self.counters_64bit), ("get_server_output", self.server_output)]
        {
            if value {
                object.insert(key.into(), 1.into());
            }
        }
        object.insert("pacing_timer".into(), 1000.into());
        object.insert("client_version".into(), CLIENT_VERSION.into());
        Value::Object(object).to_string().into_bytes()
    }
}

const CLIENT_VERSION: &str = concat!("penstock ", env!("CARGO_PKG_VERSION"));

fn whole_seconds(seconds: f64) -> u64 {
    seconds.clamp(0.0, SECONDS_MAX).ceil() as u64
}

/// Whole number of at least 0; floating-point ones are truncated, as cJSON does.
pub(super) fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        value.as_f64().filter(|number| (0.0..1.8e19).contains(number)).map(|number| number as u64)
    })
}

fn is_congestion_name(name: &str) -> bool {
    (1..=15).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn captured_parameters_are_decoded() {
        let json = br#"{"tcp":true,"omit":0,"time":0,"num":307200,"blockcount":0,"parallel":1,"len":102400,"pacing_timer":1000,"client_version":"3.12"}"#;
        let params = IperfParams::decode(json).unwrap();
        assert_eq!((params.test.seconds, params.test.bytes), (None, None));
        let own_bytes = |json: &str| IperfParams::decode(json.as_bytes()).unwrap().test.bytes;
        assert_eq!(own_bytes(r#"{"tcp":true,"num":5,"reverse":true}"#), Some(5));
        assert_eq!(own_bytes(r#"{"tcp":true,"blockcount":3,"reverse":true}"#), Some(3 << 17));
        assert_eq!(own_bytes(r#"{"tcp":true,"num":5,"omit":1,"reverse":true}"#), None);
        assert_eq!(own_bytes(r#"{"udp":true,"num":5,"reverse":true}"#), None);
        assert_eq!(params.test.block_bytes, Some(102_400));
    }

    #[test]
    fn missing_keys_mean_defaults() {
        let params =
            IperfParams::decode(br#"{"tcp":true,"parallel":2,"reverse":false,"x":[]}"#).unwrap();
        assert_eq!(params.test.seconds, Some(10.0));
        assert_eq!(params.test.streams, 2);
        assert_eq!(params.test.direction, TestDirection::Forward);
    }

    #[test]
    fn numbers_beyond_limits_are_refused() {
        for (json, error) in [
            (r#"{"parallel":0}"#, IperfError::Streams),
            (r#"{"parallel":129}"#, IperfError::Streams),
            (r#"{"parallel":-1}"#, IperfError::Streams),
            (r#"{"parallel":"2"}"#, IperfError::Streams),
            (r#"{"time":86401}"#, IperfError::Duration),
            (r#"{"time":1e300}"#, IperfError::Duration),
            (r#"{"omit":601}"#, IperfError::Omit),
            (r#"{"len":16777217}"#, IperfError::BlockSize),
            (r#"{"udp":true,"len":15}"#, IperfError::DatagramSize),
            (r#"{"udp":true,"len":65508}"#, IperfError::DatagramSize),
            (r#"{"window":536870913}"#, IperfError::Window),
            (r#"{"MSS":32768}"#, IperfError::Mss),
            (r#"{"sctp":true}"#, IperfError::Sctp),
            (r#"{"reverse":true,"bidirectional":true}"#, IperfError::ReverseBidir),
            (r#"{"congestion":"a b"}"#, IperfError::Congestion),
            (r#"{"num":-5}"#, IperfError::Params),
            ("[]", IperfError::Params),
            ("", IperfError::Params),
        ] {
            assert_eq!(IperfParams::decode(json.as_bytes()), Err(error), "{json}");
        }
        let long = format!(r#"{{"title":"{}"}}"#, "x".repeat(PARAMS_BYTES_MAX));
        assert_eq!(IperfParams::decode(long.as_bytes()), Err(IperfError::Params));
    }

    #[test]
    fn type_of_service_is_one_byte() {
        let tos = |json: &[u8]| IperfParams::decode(json).unwrap().tos;
        assert_eq!(tos(br#"{"TOS":40}"#), Some(40));
        assert_eq!(tos(br#"{"TOS":296}"#), Some(40));
        // Found by fuzzing: zero in the byte that counts.
        assert_eq!(tos(br#"{"TOS":666666666666666666.66}"#), None);
    }

    #[test]
    fn rate_is_per_stream() {
        let params = IperfParams::decode(br#"{"bandwidth":1000,"parallel":4}"#).unwrap();
        assert_eq!(params.test.rate_bps, Some(4000));
        assert_eq!(params.test.stream_bytes_per_second(), Some(125));
        let params = IperfParams::decode(br#"{"bandwidth":1e19,"parallel":128}"#).unwrap();
        assert!(params.test.rate_bps.unwrap() <= STREAM_BPS_MAX * 128);
        // `-b 0`, and a client that sends no rate.
        for unlimited in [&br#"{"udp":true,"bandwidth":0}"#[..], br#"{"udp":true}"#] {
            let params = IperfParams::decode(unlimited).unwrap();
            assert_eq!(params.test.rate_bps, None);
            let sent = String::from_utf8(params.encode()).unwrap();
            assert!(!sent.contains("bandwidth"), "{sent}");
        }
    }

    proptest! {
        #[test]
        fn encoded_parameters_decode_alike(
            streams in 1..=128_u32, seconds in 1..=86_400_u32, bits in 0..64_u32,
            rate in 1..1_000_000_000_u64, block in 64..65_000_u32,
        ) {
            let params = IperfParams {
                test: TestParams {
                    streams,
                    seconds: Some(seconds.into()),
                    direction: [TestDirection::Forward, TestDirection::Reverse,
                        TestDirection::Bidir][bits as usize % 3],
                    udp: bits & 4 != 0,
                    rate_bps: (bits & 8 != 0).then_some(rate * u64::from(streams)),
                    block_bytes: (bits & 16 != 0).then_some(block),
                    ..TestParams::default()
                },
                blocks: None,
                counters_64bit: bits & 32 != 0,
                mss: None,
                no_delay: bits & 1 != 0,
                tos: (bits & 2 != 0).then_some(8),
                server_output: bits & 1 != 0,
            };
            prop_assert_eq!(IperfParams::decode(&params.encode()), Ok(params));
        }
    }
}
