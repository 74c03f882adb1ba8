//! Results that both ends of an iperf3 test exchange. Pure.
//!
//! Required keys are those that iperf3 requires (`get_results` of `iperf_api.c`). An unknown number is
//! -1, which 3.12 writes as 18446744073709551615; both are read as unknown.

use serde_json::{Map, Value, json};

use super::params::{IPERF_STREAMS_MAX, whole};
use super::wire::{IperfError, RESULTS_BYTES_MAX, stream_id, stream_index};

/// Limit of the text that a server sends.
const SERVER_TEXT_BYTES_MAX: usize = 64 << 10;

/// Results of one end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IperfResults {
    /// CPU use in percent; 100 is one core.
    pub cpu_percent: f64,
    /// True if the retransmits of this end's senders are known; `None` without a sender.
    pub has_retransmits: Option<bool>,
    /// Congestion control of this end.
    pub congestion: Option<String>,
    /// Text of a server for `--get-server-output`.
    pub server_text: Option<String>,
    /// Streams of this end.
    pub streams: Vec<IperfStream>,
}

/// One end of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IperfStream {
    /// Number of the stream, from 0.
    pub index: u32,
    /// Bytes without the omitted start.
    pub bytes: u64,
    /// Retransmitted segments of a sender.
    pub retransmits: Option<u64>,
    /// Interarrival jitter of a receiver in seconds.
    pub jitter_seconds: f64,
    /// Lost datagrams of a receiver, with those of the omitted start.
    pub lost: u64,
    /// Lost datagrams of the omitted start.
    pub omitted_lost: u64,
    /// Highest counter of a datagram, with those of the omitted start.
    pub packets: u64,
    /// Datagrams of the omitted start.
    pub omitted_packets: u64,
    /// Time from the start to the end, in seconds.
    pub seconds: f64,
}

impl IperfResults {
    /// Decodes the results of the other end.
    ///
    /// # Errors
    /// [`IperfError::Results`] for a missing key, a stream without a number or too many streams.
    pub fn decode(json: &[u8]) -> Result<Self, IperfError> {
        let wrong = IperfError::Results;
        if json.len() > RESULTS_BYTES_MAX {
            return Err(wrong);
        }
        let object: Map<String, Value> = serde_json::from_slice(json).map_err(|_| wrong)?;
        let text = |key: &str, limit: usize| {
            let text = object.get(key).and_then(Value::as_str)?;
            let end = text.floor_char_boundary(limit);
            Some(text[..end].to_owned())
        };
        for key in ["cpu_util_user", "cpu_util_system"] {
            object.get(key).filter(|value| value.is_number()).ok_or(wrong)?;
        }
        let has = object.get("sender_has_retransmits").ok_or(wrong)?;
        let list = object.get("streams").and_then(Value::as_array).ok_or(wrong)?;
        if list.len() > 2 * IPERF_STREAMS_MAX as usize {
            return Err(wrong);
        }
        Ok(Self {
            cpu_percent: seconds(object.get("cpu_util_total")).ok_or(wrong)?,
            has_retransmits: match has.as_i64() {
                Some(0) => Some(false),
                Some(1) => Some(true),
                _ => None,
            },
            congestion: text("congestion_used", 15),
            server_text: text("server_output_text", SERVER_TEXT_BYTES_MAX),
            streams: list.iter().map(IperfStream::decode).collect::<Option<_>>().ok_or(wrong)?,
        })
    }

    /// Encodes the results of this end.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let streams: Vec<Value> = self.streams.iter().map(IperfStream::encode).collect();
        let mut object = json!({
            "cpu_util_total": self.cpu_percent,
            "cpu_util_user": 0.0,
            "cpu_util_system": self.cpu_percent,
            "sender_has_retransmits": self.has_retransmits.map_or(-1, i32::from),
            "streams": streams,
        });
        for (key, text) in
            [("congestion_used", &self.congestion), ("server_output_text", &self.server_text)]
        {
            if let Some(text) = text {
                object[key] = text.as_str().into();
            }
        }
        object.to_string().into_bytes()
    }
}

impl IperfStream {
    fn decode(value: &Value) -> Option<Self> {
        let number = |key: &str| value.get(key).and_then(known);
        // Present, but unknown where negative.
        let required = |key: &str| {
            value.get(key).filter(|value| value.is_number()).map(|value| known(value).unwrap_or(0))
        };
        required("retransmits")?;
        let time = |key: &str| seconds(value.get(key)).unwrap_or(0.0);
        Some(Self {
            index: stream_index(required("id")?)?,
            bytes: required("bytes")?,
            retransmits: number("retransmits"),
            jitter_seconds: seconds(value.get("jitter"))?,
            lost: required("errors")?,
            omitted_lost: number("omitted_errors").unwrap_or(0),
            packets: required("packets")?,
            omitted_packets: number("omitted_packets").unwrap_or(0),
            seconds: (time("end_time") - time("start_time")).max(0.0),
        })
    }

    fn encode(&self) -> Value {
        json!({
            "id": stream_id(self.index),
            "bytes": self.bytes,
            "retransmits": self.retransmits.map_or(-1, u64::cast_signed),
            "jitter": self.jitter_seconds,
            "errors": self.lost,
            "omitted_errors": self.omitted_lost,
            "packets": self.packets,
            "omitted_packets": self.omitted_packets,
            "start_time": 0,
            "end_time": self.seconds,
        })
    }
}

/// Number of at least 0; `None` for -1 in either form.
fn known(value: &Value) -> Option<u64> {
    whole(value).filter(|number| *number <= i64::MAX as u64)
}

/// Number of at least 0 that a test can measure.
fn seconds(value: Option<&Value>) -> Option<f64> {
    value?.as_f64().map(|number| number.clamp(0.0, 1e9))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPTURED: &str = r#"{"cpu_util_total":1.5,"cpu_util_user":1,"cpu_util_system":0.5,"sender_has_retransmits":-1,"congestion_used":"cubic","streams":[{"id":3,"bytes":10,"retransmits":18446744073709551615,"jitter":0.001,"errors":2,"packets":5,"start_time":0,"end_time":1.25}]}"#;

    #[test]
    fn unknown_retransmits_have_two_forms() {
        for json in [CAPTURED.to_owned(), CAPTURED.replace("18446744073709551615", "-1")] {
            let results = IperfResults::decode(json.as_bytes()).unwrap();
            assert_eq!(results.streams[0].retransmits, None);
            assert_eq!((results.streams[0].index, results.streams[0].lost), (1, 2));
            assert_eq!(results.has_retransmits, None);
        }
    }

    #[test]
    fn missing_keys_are_refused() {
        for key in
            ["cpu_util_user", "sender_has_retransmits", "streams", "jitter", "retransmits", "id"]
        {
            let json = CAPTURED.replace(&format!("\"{key}\""), "\"other\"");
            assert_eq!(IperfResults::decode(json.as_bytes()), Err(IperfError::Results), "{key}");
        }
        let json = CAPTURED.replace("\"id\":3", "\"id\":2");
        assert_eq!(IperfResults::decode(json.as_bytes()), Err(IperfError::Results));
    }

    proptest! {
        #[test]
        fn encoded_results_decode_alike(
            counts in proptest::collection::vec(0..1_u64 << 53, 6), index in 0..256_u32,
            has in proptest::option::of(any::<bool>()), retransmits in proptest::option::of(0..1_u64 << 40),
        ) {
            let stream = IperfStream {
                index, bytes: counts[0], retransmits, jitter_seconds: 0.25, lost: counts[1],
                omitted_lost: counts[2], packets: counts[3], omitted_packets: counts[4], seconds: 2.5,
            };
            let results = IperfResults {
                cpu_percent: 12.5, has_retransmits: has, congestion: Some("bbr".into()),
                server_text: None, streams: vec![stream],
            };
            prop_assert_eq!(IperfResults::decode(&results.encode()), Ok(results));
        }
    }
}
