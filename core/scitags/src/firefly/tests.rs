//! Tests of fireflies: the published schema, the reference collector's pattern, other programs' datagrams.

use proptest::prelude::*;
use regex::Regex;
use serde_json::Value;

use super::read::FlowState;
use super::*;

const FULL: TcpStats = TcpStats {
    rtt_us: Some(u32::MAX),
    rttvar_us: Some(u32::MAX),
    min_rtt_us: Some(u32::MAX),
    snd_mss: Some(u32::MAX),
    rcv_mss: Some(u32::MAX),
    pmtu: Some(u32::MAX),
    snd_cwnd: Some(u32::MAX),
    snd_ssthresh: Some(u32::MAX),
    retrans: Some(u32::MAX),
    total_retrans: Some(u32::MAX),
    lost: Some(u32::MAX),
    reordering: Some(u32::MAX),
    segs_in: Some(u32::MAX),
    segs_out: Some(u32::MAX),
    data_segs_in: Some(u32::MAX),
    data_segs_out: Some(u32::MAX),
    bytes_acked: Some(u64::MAX),
    bytes_received: Some(u64::MAX),
    delivery_rate: Some(u64::MAX),
    pacing_rate: Some(u64::MAX),
    busy_time_us: Some(u64::MAX),
    rwnd_limited_us: Some(u64::MAX),
    sndbuf_limited_us: Some(u64::MAX),
};

fn firefly(phase: FlowPhase) -> Firefly {
    let flow = FireflyFlow::new(
        "[2001:db8:1::10]:41344".parse().unwrap(),
        "[2001:db8:2::20]:5001".parse().unwrap(),
        TransportProtocol::Tcp,
    );
    Firefly {
        phase,
        started: UtcTime::new(1_772_359_200, 0),
        now: UtcTime::new(1_772_359_451, 250_000),
        flow: flow.unwrap(),
        tag: Scitag::new(8, 4).unwrap(),
        application: "penstock v0.1".to_owned(),
        bytes: Some(DirectionCounts { received: 0, sent: 1 << 40 }),
        packets: None,
        tcp: Some(TcpStats { rtt_us: Some(88_400), ..TcpStats::default() }),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct SchemaViolation(String);

/// The rules of the published schema v1.0.0, written by hand.
fn check_schema(json: &Value) -> Result<(), SchemaViolation> {
    let object = |value: &Value, name: &str, allowed: &[&str], required: &[&str]| {
        let object = value.as_object().ok_or(SchemaViolation(format!("{name} is no object")))?;
        if let Some(key) = object.keys().find(|key| !allowed.contains(&key.as_str())) {
            return Err(SchemaViolation(format!("{name} has {key}")));
        }
        match required.iter().find(|key| !object.contains_key(**key)) {
            Some(key) => Err(SchemaViolation(format!("{name} lacks {key}"))),
            None => Ok(()),
        }
    };
    let ensure = |holds: bool, what: &str| {
        if holds { Ok(()) } else { Err(SchemaViolation(what.to_owned())) }
    };
    let integer = |value: &Value| value.is_null() || value.is_u64() || value.is_i64();
    for key in ["version", "flow-lifecycle", "flow-id", "context"] {
        ensure(json.get(key).is_some(), key)?;
    }
    ensure(json["version"] == 1, "version")?;

    let life = &json["flow-lifecycle"];
    let state = life["state"].as_str().unwrap_or_default();
    let times = ["start-time", "end-time", "current-time"];
    let required: &[&str] = if state == "end" {
        &["state", "start-time", "end-time"]
    } else {
        &["state", "start-time"]
    };
    object(life, "flow-lifecycle", &["state", "start-time", "end-time", "current-time"], required)?;
    ensure(["start", "end", "ongoing"].contains(&state), "state")?;
    for key in times {
        let good =
            life[key].is_null() || life[key].as_str().is_some_and(|t| t.parse::<UtcTime>().is_ok());
        ensure(good, key)?;
    }

    let flow = &json["flow-id"];
    let keys = ["afi", "src-ip", "dst-ip", "protocol", "src-port", "dst-port"];
    object(flow, "flow-id", &keys, &keys)?;
    for key in ["src-ip", "dst-ip"] {
        let ip: IpAddr = flow[key]
            .as_str()
            .unwrap_or_default()
            .parse()
            .map_err(|_| SchemaViolation(key.to_owned()))?;
        ensure(flow["afi"] == if ip.is_ipv4() { "ipv4" } else { "ipv6" }, "afi")?;
    }
    ensure(flow["protocol"] == "tcp" || flow["protocol"] == "udp", "protocol")?;
    for key in ["src-port", "dst-port"] {
        ensure(flow[key].as_u64().is_some_and(|port| (1..=65535).contains(&port)), key)?;
    }

    if let Some(usage) = json.get("usage") {
        object(usage, "usage", &["received", "sent"], &[])?;
        ensure(integer(&usage["received"]) && integer(&usage["sent"]), "usage")?;
    }
    ensure(json.get("netlink").is_none_or(Value::is_object), "netlink")?;
    let context = &json["context"];
    let ids = ["experiment-id", "activity-id"];
    object(context, "context", &["experiment-id", "activity-id", "application"], &ids)?;
    ensure(ids.iter().all(|id| integer(&context[*id])), "ids")?;
    ensure(context.get("application").is_none_or(Value::is_string), "application")
}

/// Pattern of the reference collector (scitags/firefly-collector, conf/logstash/02-parsing.conf) with the definitions
/// of logstash-patterns-core substituted. Group 1 is the time, group 2 the message.
fn collector() -> Regex {
    let number = r"\b(?:[0-9]+)\b";
    let iso = r"(?:\d\d){1,2}-(?:0?[1-9]|1[0-2])-(?:(?:0[1-9])|(?:[12][0-9])|(?:3[01])|[1-9])[T ](?:2[0123]|[01]?[0-9]):?(?:[0-5][0-9])(?::?(?:(?:[0-5]?[0-9]|60)(?:[:.,][0-9]+)?))?(?:Z|[+-](?:2[0123]|[01]?[0-9])(?::?(?:[0-5][0-9])))?";
    let host =
        r"\b(?:[0-9A-Za-z][0-9A-Za-z-]{0,62})(?:\.(?:[0-9A-Za-z][0-9A-Za-z-]{0,62}))*(?:\.?|\b)";
    let word = "[!-~]+";
    Regex::new(&format!(
        r"^<{number}>{number}\s*(?:-|({iso}))\s*(?:-|{host})\s*(?:{word}|-)\s*(?:-|{word})\s*(?:-|{word})\s*(?:-|(?:\[.*?[^\\]\])+)(?:\s*(.*)|)$"
    ))
    .unwrap()
}

#[track_caller]
fn accepted(datagram: &[u8]) -> Value {
    let text = std::str::from_utf8(datagram).unwrap();
    let found = collector().captures(text).unwrap_or_else(|| panic!("dropped: {text}"));
    assert!(found.get(1).is_some(), "no time: {text}");
    let json: Value = serde_json::from_str(&found[2]).unwrap();
    check_schema(&json).unwrap_or_else(|fault| panic!("{fault}: {text}"));
    json
}

#[test]
fn documented_example_is_reproduced() {
    let end = UtcTime::new(1_772_359_451, 250_000);
    let full = Firefly {
        tcp: None,
        packets: Some(DirectionCounts { received: 3, sent: 7 }),
        ..firefly(FlowPhase::End(end))
    };
    let line = String::from_utf8(full.datagram("dtn1.example.org", "penstock")).unwrap();
    assert_eq!(
        line,
        "<134>1 2026-03-01T10:04:11.250000+00:00 dtn1.example.org penstock - firefly-json - \
         {\"version\":1,\"flow-lifecycle\":{\"state\":\"end\",\
         \"start-time\":\"2026-03-01T10:00:00.000000+00:00\",\
         \"current-time\":\"2026-03-01T10:04:11.250000+00:00\",\
         \"end-time\":\"2026-03-01T10:04:11.250000+00:00\"},\
         \"flow-id\":{\"afi\":\"ipv6\",\"src-ip\":\"2001:db8:1::10\",\"dst-ip\":\"2001:db8:2::20\",\
         \"protocol\":\"tcp\",\"src-port\":41344,\"dst-port\":5001},\
         \"usage\":{\"received\":0,\"sent\":1099511627776},\"packets\":{\"received\":3,\"sent\":7},\
         \"context\":{\"experiment-id\":8,\"activity-id\":4,\"application\":\"penstock v0.1\"}}"
    );
}

#[test]
fn collector_accepts_every_phase() {
    for phase in
        [FlowPhase::Start, FlowPhase::Ongoing, FlowPhase::End(UtcTime::new(1_772_359_451, 0))]
    {
        for host in
            ["dtn1", "dtn1.example.org.", "dtn_1", "", "-", "ho st", "dtn-", &"x".repeat(300)]
        {
            let json = accepted(&firefly(phase).datagram(host, "penstock"));
            assert_eq!(
                json["flow-lifecycle"]["end-time"].is_string(),
                matches!(phase, FlowPhase::End(_))
            );
            assert_eq!(json["netlink"]["rtt"], 88.4);
        }
    }
}

#[test]
fn longest_datagram_fits_a_frame() {
    let host = ["x".repeat(63), "y".repeat(63), "z".repeat(63), "w".repeat(62)].join(".");
    let longest = Firefly {
        application: "\u{1}\"\\é".repeat(100),
        bytes: Some(DirectionCounts { received: u64::MAX, sent: u64::MAX }),
        packets: Some(DirectionCounts { received: u64::MAX, sent: u64::MAX }),
        tcp: Some(FULL),
        flow: FireflyFlow::new(
            "[2001:db8:1111:2222:3333:4444:5555:6666]:41344".parse().unwrap(),
            "[2001:db8:7777:8888:9999:aaaa:bbbb:cccc]:50001".parse().unwrap(),
            TransportProtocol::Tcp,
        )
        .unwrap(),
        ..firefly(FlowPhase::End(UtcTime::new(u64::MAX, u32::MAX)))
    };
    let datagram = longest.datagram(&host, &"p".repeat(48));
    assert!(datagram.len() <= DATAGRAM_BYTES_MAX, "{}", datagram.len());
    let json = accepted(&datagram);
    assert!(json["netlink"]["rtt"].is_f64() && json["netlink"]["lost"].is_null(), "{json}");

    let usual =
        Firefly { tcp: Some(TcpStats { lost: Some(2), ..FULL }), ..firefly(FlowPhase::Ongoing) };
    let datagram = usual.datagram("dtn1.example.org", "penstock");
    assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
    assert_eq!(accepted(&datagram)["netlink"]["lost"], 2);
}

#[test]
fn unread_tcp_facts_are_left_out() {
    let json = accepted(&firefly(FlowPhase::Ongoing).datagram("h", "p"));
    assert_eq!(json["netlink"], serde_json::json!({ "rtt": 88.4 }));
    let nothing = Firefly { tcp: Some(TcpStats::default()), ..firefly(FlowPhase::Start) };
    let json = accepted(&nothing.datagram("h", "p"));
    assert!(json.get("netlink").is_none(), "{json}");
    let zero = Firefly { tcp: Some(TcpStats { lost: Some(0), ..TcpStats::default() }), ..nothing };
    assert_eq!(accepted(&zero.datagram("h", "p"))["netlink"], serde_json::json!({ "lost": 0 }));
}

#[test]
fn mapped_addresses_are_ipv4() {
    let flow = |a: &str, b: &str| {
        FireflyFlow::new(a.parse().unwrap(), b.parse().unwrap(), TransportProtocol::Udp)
    };
    let mapped = flow("[::ffff:192.0.2.1]:1", "192.0.2.2:2").unwrap();
    let json = accepted(&Firefly { flow: mapped, ..firefly(FlowPhase::Start) }.datagram("h", "p"));
    assert_eq!(
        (json["flow-id"]["afi"].as_str(), json["flow-id"]["src-ip"].as_str()),
        (Some("ipv4"), Some("192.0.2.1"))
    );
    assert!(matches!(flow("[::1]:1", "192.0.2.2:2"), Err(FlowError::Families(..))));
    assert_eq!(flow("[::1]:1", "[::1]:0"), Err(FlowError::Port));
}

/// Datagrams in the variants of other programs, constructed from their source code.
#[test]
fn fireflies_of_others_are_parsed() {
    let flow = r#""flow-id":{"afi":"ipv6","src-ip":"2001:db8::1","dst-ip":"2001:db8::2","protocol":"tcp","src-port":1094,"dst-port":40000}"#;
    let xrootd = format!(
        r#"<134>1 - se1.example.org xrootd - firefly-json - {{"version":1,"flow-lifecycle":{{"state":"end","current-time":"2026-03-01T10:00:09.000001+00:00","start-time":"2026-03-01T10:00:00.000001+00:00","end-time":"2026-03-01T10:00:09.000001+00:00"}},"usage":{{"received":5,"sent":12}},"netlink":{{"rtt":12.500}},"context":{{"experiment-id":2,"activity-id":26,"application":"http-get"}},{flow}}}"#
    );
    let read_one = read(xrootd.as_bytes()).unwrap();
    assert_eq!((read_one.logged, read_one.host.as_deref()), (None, Some("se1.example.org")));
    assert_eq!((read_one.program.as_deref(), read_one.state), (Some("xrootd"), FlowState::End));
    assert_eq!(read_one.bytes, Some(DirectionCounts { received: 5, sent: 12 }));
    assert_eq!((read_one.rtt_ms, read_one.packets), (Some(12.5), None));
    assert_eq!(read_one.tag(), Scitag::new(2, 26));
    assert_eq!(read_one.ended.unwrap().seconds() - read_one.started.unwrap().seconds(), 9);

    // flowd-go 2.4: an empty time, so two blanks; numbers outside the registry.
    let flowd_go = format!(
        r#"<134>1  dtn.example.org flowd-go - firefly-json - {{"version":1,"flow-lifecycle":{{"state":"start","start-time":"2026-03-01T10:00:00.1Z"}},{flow},"context":{{"experiment-id":3333,"activity-id":12,"application":""}},"netlink":{{"tcpInfo":{{"rtt":1500}}}},"skOps":{{"tcpInfo":null}}}}"#
    );
    let read_one = read(flowd_go.as_bytes()).unwrap();
    assert_eq!(
        (read_one.host.as_deref(), read_one.application.as_deref()),
        (Some("dtn.example.org"), None)
    );
    assert!(read_one.tag().is_err());
    assert_eq!((read_one.owner, read_one.now, read_one.rtt_ms), (3333, None, Some(1.5)));

    // dCache: more keys, Z; flowd: no log line, a start with an end, ids as text, IPv4 in IPv6.
    let dcache = format!(
        r#"<134>1 2026-03-01T10:00:09.000001Z pool1 dCache - firefly-json - {{"version":1,"storage-stats":{{"read-bw":1.5}},"flow-lifecycle":{{"state":"ongoing","start-time":"2026-03-01T10:00:00Z"}},"usage":{{"received":-1,"sent":3.0}},{flow},"context":{{"experiment-id":1,"activity-id":1,"x":0}}}}"#
    );
    let read_one = read(dcache.as_bytes()).unwrap();
    assert_eq!(
        (read_one.bytes, read_one.state),
        (Some(DirectionCounts { received: 0, sent: 3 }), FlowState::Ongoing)
    );
    assert_eq!(read_one.logged.unwrap().micros(), 1);
    let bare = r#" {"flow-lifecycle": {"state": "start", "end-time": "2026-03-01T10:00:00"}, "flow-id": {"src-ip": "::ffff:192.0.2.1", "dst-ip": "[2001:db8::2]", "protocol": "UDP", "src-port": "7", "dst-port": 8}, "context": {"experiment-id": "1", "activity-id": 1}}"#;
    let read_one = read([bare.as_bytes(), b"\n\0"].concat().as_slice()).unwrap();
    assert_eq!(read_one.source, "192.0.2.1:7".parse().unwrap());
    assert_eq!(
        (read_one.protocol, read_one.started, read_one.host),
        (TransportProtocol::Udp, None, None)
    );
}

#[test]
fn malformed_firefly_is_refused() {
    let deep = format!("{{\"x\":{}", "[".repeat(10_000));
    for (text, words) in [
        ("", "is it a firefly"),
        ("<134>1 - h p - firefly-json -", "is it a firefly"),
        ("hello {}", "is it a firefly"),
        ("<x>1 {}", "is it a firefly"),
        ("{", "JSON"),
        ("{} {}", "JSON"),
        (deep.as_str(), "recursion limit"),
        ("{}", "'flow-lifecycle.state' is missing"),
        (r#"{"flow-lifecycle":{"state":"paused"}}"#, "start, ongoing or end"),
        (r#"{"flow-lifecycle":{"state":"end"},"flow-id":{"protocol":"sctp"}}"#, "tcp or udp"),
        (
            r#"{"flow-lifecycle":{"state":"end"},"flow-id":{"protocol":"tcp","src-ip":"x"}}"#,
            "'flow-id.src-ip'",
        ),
    ] {
        let line = read(text.as_bytes()).unwrap_err().to_string();
        assert!(line.contains(words) && !line.contains('\n'), "{text}: {line}");
    }
    let long = vec![b'{'; read::RECEIVED_BYTES_MAX + 1];
    assert_eq!(read(&long), Err(FireflyError::TooLong(long.len())));
}

prop_compose! {
    fn any_firefly()(
        end in any::<u8>(), times in any::<[u64; 3]>(), micros in 0_u32..1_000_000, addresses in any::<[u128; 2]>(),
        v4 in any::<bool>(), ports in [1_u16.., 1_u16..], owner in 1_u64..=1023, activity in 1_u64..=63,
        application in "\\PC{0,80}", counts in any::<[Option<(u64, u64)>; 2]>(), rtt in any::<Option<u32>>(),
    ) -> Firefly {
        let moment = |at: usize| UtcTime::new(times[at], micros);
        let ip = |at: usize| -> IpAddr {
            if v4 { std::net::Ipv4Addr::from(addresses[at] as u32).into() } else { std::net::Ipv6Addr::from(addresses[at] | 1 << 127).into() }
        };
        let end_point = |at: usize| SocketAddr::new(ip(at), ports[at]);
        let count = |at: usize| counts[at].map(|(received, sent): (u64, u64)| DirectionCounts { received, sent });
        Firefly {
            phase: match end % 3 { 0 => FlowPhase::Start, 1 => FlowPhase::Ongoing, _ => FlowPhase::End(moment(2)) },
            started: moment(0),
            now: moment(1),
            flow: FireflyFlow::new(end_point(0), end_point(1), TransportProtocol::Tcp).unwrap(),
            tag: Scitag::new(owner, activity).unwrap(),
            application,
            bytes: count(0),
            packets: count(1),
            tcp: rtt.map(|rtt_us| TcpStats { rtt_us: Some(rtt_us), ..FULL }),
        }
    }
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn firefly_round_trips(firefly in any_firefly(), host in "[a-z0-9._-]{0,80}") {
        let datagram = firefly.datagram(&host, "penstock");
        prop_assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
        accepted(&datagram);
        let back = read(&datagram).unwrap();
        prop_assert_eq!((back.logged, back.started, back.now), (Some(firefly.now), Some(firefly.started), Some(firefly.now)));
        prop_assert_eq!((back.source, back.destination), (firefly.flow.source(), firefly.flow.destination()));
        prop_assert_eq!((back.tag(), back.bytes, back.packets), (Ok(firefly.tag), firefly.bytes, firefly.packets));
        prop_assert_eq!(back.rtt_ms, firefly.tcp.and_then(|tcp| tcp.rtt_us).map(|micros| f64::from(micros) / 1000.0));
        prop_assert_eq!(back.ended.is_some(), back.state == FlowState::End);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }

    #[test]
    fn changed_firefly_never_panics(at in 0_usize..400, byte: u8) {
        let mut datagram = firefly(FlowPhase::Start).datagram("dtn1", "penstock");
        let at = at % datagram.len();
        datagram[at] = byte;
        if let Ok(back) = read(&datagram) {
            let _ = back.tag();
        }
    }
}
