//! `penstock tag decode`: decodes a number, bytes, a URL or a firefly.

use std::io::{self, Read, Write};

use anyhow::{Context, anyhow};
use penstock_scitags::firefly::read::RECEIVED_BYTES_MAX;
use penstock_scitags::firefly::{self, ReceivedFirefly, TransportProtocol};
use penstock_scitags::option::{self, Encoding, OptionError, PacketMark};
use penstock_scitags::{FlowLabel, Registry, Scitag, carry};
use serde::Serialize;
use utoipa::ToSchema;

use super::show::{Pair, TextRows, hex};
use crate::exit::{Code, CommandFailure, OrExit};
use value::DetectedValue;

mod value;

/// Decode a label, a number, option bytes, a URL or a firefly
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Up to 65535 a decimal number is a scitag number, above it a flow label; label: before it says that it is \
one. Labels of ordinary traffic are random: one whose pair is not in the registry is probably no scitag.

Examples:
  penstock tag decode 206
  penstock tag decode 0x20004
  penstock tag decode label:131076
  penstock tag decode '1E 03 00 03 0E 00'
  penstock tag decode 'https://se.example.org/f?scitag.flow=206'
  penstock tag decode 'SciTag: 206'
  penstock tag decode - < datagram --json")]
pub(super) struct TagDecodeArgs {
    /// The value, or - for standard input
    value: String,
}

/// Decoded value with its form.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Decoded {
    /// Form of the value: `scitag`, `flow_label`, `option`, `url`, `header` or `firefly`.
    read_as: &'static str,
    /// The pair.
    #[serde(flatten)]
    pair: Pair,
    /// Five bits of a flow label that distinguish flows of a pair.
    entropy: Option<u8>,
    /// Flow label in hexadecimal, where the value is or holds one.
    flow_label: Option<String>,
    /// Encoding of an option.
    encoding: Option<&'static str>,
    /// Bytes of an option in hexadecimal.
    option_bytes: Option<String>,
    /// Remarks on the value.
    notes: Vec<String>,
    /// Facts of a firefly; null where the value is none.
    firefly: Option<Report>,
}

/// Facts of a firefly; null where it lacks them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Firefly)]
pub(crate) struct Report {
    /// State of the flow: `start`, `ongoing` or `end`.
    state: &'static str,
    /// Transport protocol: `tcp` or `udp`.
    #[schema(value_type = String)]
    protocol: TransportProtocol,
    /// Source address and port.
    source: String,
    /// Destination address and port.
    destination: String,
    /// RFC 3339 time of the start of the flow.
    started: Option<String>,
    /// RFC 3339 time of the firefly.
    now: Option<String>,
    /// RFC 3339 time of the end of the flow.
    ended: Option<String>,
    /// Application that moves the data.
    application: Option<String>,
    /// Bytes sent by the source.
    sent_bytes: Option<u64>,
    /// Bytes received by the source.
    received_bytes: Option<u64>,
    /// Packets sent by the source.
    sent_packets: Option<u64>,
    /// Packets received by the source.
    received_packets: Option<u64>,
    /// Round-trip time.
    rtt_ms: Option<f64>,
    /// Time in the syslog line that carries the firefly, as written there.
    logged: Option<String>,
    /// Host in the syslog line that carries the firefly.
    host: Option<String>,
    /// Program in the syslog line that carries the firefly.
    program: Option<String>,
}

pub(super) fn run(args: &TagDecodeArgs, json: bool) -> Result<Code, CommandFailure> {
    let bytes = if args.value == "-" { standard_input()? } else { args.value.clone().into_bytes() };
    let value = DetectedValue::of(&bytes).or_exit(Code::Usage)?;
    let current = super::current();
    let decoded = decode(&value, &current.registry)?;
    let text = if json {
        format!("{}\n", serde_json::to_string(&decoded).context("plain data")?)
    } else {
        rows(&decoded)
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(Code::Done)
}

fn standard_input() -> Result<Vec<u8>, CommandFailure> {
    let mut bytes = Vec::new();
    // One byte more than allowed, so that the parser detects excess.
    io::stdin().take(RECEIVED_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn decode(value: &DetectedValue, registry: &Registry) -> Result<Decoded, CommandFailure> {
    match value {
        DetectedValue::Number(text) => of_number(text, registry),
        DetectedValue::Label(label) => of_label(*label, registry),
        DetectedValue::Options(bytes) => of_options(bytes, registry),
        DetectedValue::Header(text) => {
            let tag = carry::from_value(text).or_exit(Code::Usage)?;
            Ok(of_tag("header", tag, registry))
        }
        DetectedValue::Url(url) => {
            // A bare query is valid, too.
            let url = if url.contains('?') { url.clone() } else { format!("?{url}") };
            let tag = carry::from_url(&url).or_exit(Code::Usage)?;
            let none = || anyhow!("the URL carries no scitag: it has no {}=", carry::URL_KEY);
            Ok(of_tag("url", tag.ok_or_else(none)?, registry))
        }
        DetectedValue::Firefly(datagram) => {
            let received = firefly::read(datagram).map_err(anyhow::Error::from)?;
            Ok(of_firefly(&received, registry))
        }
    }
}

fn decoded(read_as: &'static str, pair: Pair) -> Decoded {
    Decoded {
        read_as,
        pair,
        entropy: None,
        flow_label: None,
        encoding: None,
        option_bytes: None,
        notes: Vec::new(),
        firefly: None,
    }
}

fn of_tag(read_as: &'static str, tag: Scitag, registry: &Registry) -> Decoded {
    decoded(read_as, Pair::new(tag, registry))
}

fn of_number(text: &str, registry: &Registry) -> Result<Decoded, CommandFailure> {
    let tag = carry::from_value(text).or_exit(Code::Usage)?;
    let mut found = of_tag("scitag", tag, registry);
    let as_label = text.parse().ok().and_then(FlowLabel::from_value).and_then(FlowLabel::scitag);
    if let Some(other) = as_label.filter(|other| registry.has(*other) && !registry.has(tag)) {
        let name = registry.name(other);
        found.notes.push(format!("as a flow label it is {name}: label:{text}"));
    }
    Ok(found)
}

fn of_label(label: FlowLabel, registry: &Registry) -> Result<Decoded, CommandFailure> {
    let none = || anyhow!("label {label} carries no scitag: its owner or its activity is zero");
    let tag = label.scitag().ok_or_else(none)?;
    let mut found = of_tag("flow_label", tag, registry);
    found.entropy = Some(label.entropy());
    found.flow_label = Some(label.to_string());
    if !found.pair.registered() {
        found.notes.push(
            "labels of ordinary traffic are random: this one is probably no scitag".to_owned(),
        );
    }
    Ok(found)
}

fn of_options(bytes: &[u8], registry: &Registry) -> Result<Decoded, CommandFailure> {
    let marks = read_marks(bytes).map_err(anyhow::Error::from)?;
    let mut readings = marks.iter().filter_map(|mark| Some((mark, mark.read(registry)?)));
    let none = || anyhow!("these options hold no scitag: it is option 0x1E with 3 bytes");
    let (mark, reading) = readings.next().ok_or_else(none)?;
    let pair = Pair::of_numbers(reading.owner.into(), reading.activity.into(), registry);
    let mut found = decoded("option", pair);
    found.encoding = Some(reading.encoding.as_str());
    found.option_bytes = Some(hex(&mark.bytes()));
    found.entropy = reading.label.map(FlowLabel::entropy);
    found.flow_label = reading.label.map(|label| label.to_string());
    if reading.encoding != Encoding::Pair {
        found.notes.push("an older encoding: the marker should be updated".to_owned());
    }
    if !reading.registered {
        found.notes.push(
            "option 0x1E is experimental: without a registered pair it may be something else"
                .to_owned(),
        );
    }
    let more = readings.count();
    if more > 0 {
        found.notes.push(format!("{more} more options hold a scitag; this is the first"));
    }
    Ok(found)
}

/// Marks of a whole header where the length in its second byte fits, else of bare options.
fn read_marks(bytes: &[u8]) -> Result<Vec<PacketMark>, OptionError> {
    let says = bytes.get(1).map(|length| (usize::from(*length) + 1) * 8);
    if says == Some(bytes.len()) {
        return option::marks_of_header(bytes)?.collect();
    }
    option::marks(bytes).collect()
}

fn of_firefly(received: &ReceivedFirefly, registry: &Registry) -> Decoded {
    let mut found =
        decoded("firefly", Pair::of_numbers(received.owner, received.activity, registry));
    let text = |time: Option<penstock_scitags::time::UtcTime>| time.map(|time| time.to_string());
    found.firefly = Some(Report {
        state: received.state.as_str(),
        protocol: received.protocol,
        source: received.source.to_string(),
        destination: received.destination.to_string(),
        started: text(received.started),
        now: text(received.now),
        ended: text(received.ended),
        application: received.application.clone(),
        sent_bytes: received.bytes.map(|bytes| bytes.sent),
        received_bytes: received.bytes.map(|bytes| bytes.received),
        sent_packets: received.packets.map(|packets| packets.sent),
        received_packets: received.packets.map(|packets| packets.received),
        rtt_ms: received.rtt_ms,
        logged: text(received.logged),
        host: received.host.clone(),
        program: received.program.clone(),
    });
    if let Err(error) = received.tag() {
        found.notes.push(error.to_string());
    }
    found
}

fn rows(found: &Decoded) -> String {
    let mut rows = TextRows::under(&found.pair.heading());
    rows.row("read as", found.read_as.replace('_', " "));
    if let Some(encoding) = found.encoding {
        rows.row("encoding", encoding);
    }
    if let Some(label) = &found.flow_label {
        rows.row("flow label", label);
    }
    if let Some(entropy) = found.entropy {
        rows.row("entropy", entropy);
    }
    if let Some(bytes) = &found.option_bytes {
        rows.row("option", bytes);
    }
    if let Some(report) = &found.firefly {
        report.rows(&mut rows);
    }
    for note in &found.notes {
        rows.row("note", note);
    }
    rows.text()
}

impl Report {
    fn rows(&self, rows: &mut TextRows) {
        let protocol = match self.protocol {
            TransportProtocol::Tcp => "TCP",
            TransportProtocol::Udp => "UDP",
        };
        rows.row("state", self.state);
        rows.row("flow", format!("{protocol} from {} to {}", self.source, self.destination));
        let texts = [
            ("started", &self.started),
            ("written", &self.now),
            ("ended", &self.ended),
            ("application", &self.application),
            ("logged", &self.logged),
            ("host", &self.host),
            ("program", &self.program),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                rows.row(name, text);
            }
        }
        let counts = [
            ("bytes", self.sent_bytes.zip(self.received_bytes)),
            ("packets", self.sent_packets.zip(self.received_packets)),
        ];
        for (name, count) in counts {
            if let Some((sent, received)) = count {
                rows.row(name, format!("{sent} sent, {received} received"));
            }
        }
        if let Some(rtt) = self.rtt_ms {
            rows.row("round trip", format!("{rtt} ms"));
        }
    }
}
