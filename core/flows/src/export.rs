//! Flow export of routers: IPFIX (RFC 7011), NetFlow version 9 (RFC 3954) and version 5.
//!
//! An exporter describes its records in templates, which it repeats; a set that precedes its
//! template is stored, up to [`EARLY_SETS_MAX`] per exporter. Templates belong to the address, port
//! and domain that sent them (RFC 7011 8), and their memory counts against the exporter's limit
//! (`crate::exporter`). The sampling rate comes from the record itself, from an options record of
//! its sampler, its interface or the exporter, or from the operator
//! ([`Intake::set_sampling_rates`](crate::intake::Intake::set_sampling_rates)).
//!
//! A record counts its traffic since the previous record: delta counts, else those of both
//! directions of a firewall event (231, 232), else post counts (23, 24), else the difference of
//! totals (85, 86). NAT and firewall events without counts are no traffic.
//!
//! Not for: SCTP and TCP, withdrawal of templates (which RFC 7011 8.4 forbids over UDP), structured
//! data, enterprise-specific fields.
//!
//! The crate `netflow_parser` parses the same formats, but reads the clock and allocates for each
//! field; the tests compare with it.

mod fields;
mod template;
mod totals;
mod v5;

use std::net::SocketAddr;
use std::time::Duration;

use crate::exporter::{DatagramContext, ExportProtocol, ExporterKey};
use crate::intake::{Intake, SamplePipeline, Sink};
use crate::packet::MappedAddress;
use crate::prefixes::Prefixes;
use crate::sflow::xdr::{Cut, XdrReader};
use totals::FlowTotals;

pub(crate) use template::Templates;
pub use template::{FIELDS_MAX, TEMPLATES_MAX};
pub use totals::FLOW_TOTALS_MAX;
pub(crate) use totals::LastTotals;

/// UDP port of IPFIX; NetFlow has no assigned port, 2055 is usual.
pub const IPFIX_PORT: u16 = 4739;

/// Most samplers and interfaces of an exporter whose sampling rates are stored.
pub const SAMPLERS_MAX: usize = 1024;

/// Most sets of an exporter that are stored until their template arrives.
pub const EARLY_SETS_MAX: usize = 64;

/// Lowest set id of data; lower ones are templates or reserved.
const DATA_SET_MIN: u16 = 256;

/// Error of a datagram's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Shorter than a header; holds the length in bytes.
    #[error(
        "{0} bytes hold no header of NetFlow or IPFIX: is another program sending to this port?"
    )]
    Short(usize),
    /// Unsupported version of NetFlow.
    #[error(
        "version {0} of NetFlow is not read: set the exporter to IPFIX (10) or to version 9 or 5"
    )]
    Version(u16),
}

/// Fields of the message header.
#[derive(Debug, Clone, Copy)]
struct ExportHeader {
    protocol: ExportProtocol,
    domain: u32,
    number: u32,
    uptime_ms: Option<u32>,
    /// Time of the export, in seconds since 1970.
    time_s: u32,
}

fn header<'a>(from: &mut XdrReader<'a>) -> Result<Result<(ExportHeader, &'a [u8]), u16>, Cut> {
    let first = from.word()?;
    let (version, low) = ((first >> 16) as u16, (first & 0xFFFF) as usize);
    match version {
        10 => {
            let [time_s, number, domain] = from.get()?;
            // The length includes the header; bytes beyond it belong to another message.
            let body =
                low.checked_sub(16).and_then(|length| from.rest().get(..length)).ok_or(Cut)?;
            let protocol = ExportProtocol::Ipfix;
            Ok(Ok((ExportHeader { protocol, domain, number, uptime_ms: None, time_s }, body)))
        }
        9 => {
            let [uptime_ms, time_s, number, domain] = from.get()?;
            let uptime_ms = Some(uptime_ms);
            let protocol = ExportProtocol::NetflowV9;
            Ok(Ok((ExportHeader { protocol, domain, number, uptime_ms, time_s }, from.rest())))
        }
        5 => {
            let [uptime_ms, time_s, _, number, engine] = from.get()?;
            let protocol = ExportProtocol::NetflowV5;
            let uptime_ms = Some(uptime_ms);
            // The lower half is the sampling, the upper one the engine.
            let header = ExportHeader { protocol, domain: engine >> 16, number, uptime_ms, time_s };
            Ok(Ok((header, from.rest())))
        }
        other => Ok(Err(other)),
    }
}

impl Intake {
    /// Sets the sampling rates, by address, of exporters that do not report theirs.
    pub fn set_sampling_rates(&mut self, rates: Prefixes<u32>) {
        self.sampling_rates = rates;
    }

    /// Processes a datagram of IPFIX or NetFlow.
    ///
    /// # Errors
    /// When the header is invalid; broken sets are counted and skipped.
    pub fn export(
        &mut self,
        now: Duration,
        from: SocketAddr,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ExportError> {
        let mut reader = XdrReader::new(bytes);
        let (header, body) = header(&mut reader)
            .map_err(|Cut| ExportError::Short(bytes.len()))
            .and_then(|header| header.map_err(ExportError::Version))
            .inspect_err(|_| self.counts.refused += 1)?;
        let key = ExporterKey {
            protocol: header.protocol,
            address: MappedAddress::from(from.ip()),
            port: from.port(),
            domain: header.domain,
        };
        self.counts.datagrams += 1;
        let rate = self.sampling_rates.find(key.address);
        let Self { exporters, trust, aggregator, counts, totals, .. } = self;
        // Version 9 counts datagrams, the others records.
        let number = (header.protocol == ExportProtocol::NetflowV9).then_some(header.number);
        let mut context = exporters.receive(now, key, from.ip(), number, header.uptime_ms);
        if number.is_none() {
            context.find_duplicate(bytes);
        }
        if context.arrival == crate::sequence::Arrival::Duplicate {
            counts.duplicates += 1;
            return Ok(());
        }
        sink.datagram(context.exporter, context.arrival);
        let mut message = MessageDecoder {
            header,
            rate,
            context: &mut context,
            pipeline: SamplePipeline { now, trust, aggregator, counts, sink },
            totals,
            records: Some(0),
        };
        match header.protocol {
            ExportProtocol::NetflowV5 => message.v5(bytes, body),
            _ => message.sets(body),
        }
        if header.protocol != ExportProtocol::NetflowV9 {
            let records = message.records;
            context.exporter.records.arrive(header.number, records);
        }
        Ok(())
    }
}

/// State of the decoding of one datagram.
struct MessageDecoder<'a, 'b, S> {
    header: ExportHeader,
    /// Sampling rate by the operator.
    rate: Option<u32>,
    context: &'a mut DatagramContext<'b>,
    pipeline: SamplePipeline<'a, S>,
    totals: &'a mut LastTotals,
    /// Count of records in the datagram; `None` if a template is missing.
    records: Option<u32>,
}

impl<S: Sink> MessageDecoder<'_, '_, S> {
    fn broken(&mut self) {
        self.pipeline.counts.broken += 1;
        self.context.exporter.broken += 1;
    }

    /// Counts the traffic of a record; `reported` is the sampling rate by the exporter.
    fn record(&mut self, fields: &fields::Fields<'_>, reported: Option<u32>) {
        let exporter = &self.context.exporter;
        let (id, first_seen) = (exporter.id, exporter.first_seen);
        let mut totals = FlowTotals { last: self.totals, exporter: id, first_seen };
        let both = fields.observations(&self.header, self.pipeline.now, &mut totals);
        for mut seen in both.into_iter().flatten() {
            seen.sampling_rate = reported.or(self.rate).unwrap_or(1).max(1);
            self.pipeline.observation(self.context, &seen);
        }
    }

    fn sets(&mut self, body: &[u8]) {
        let mut from = XdrReader::new(body);
        while let Ok(head) = from.word() {
            let (id, length) = ((head >> 16) as u16, head & 0xFFFF);
            let set = length.checked_sub(4).and_then(|length| from.take(length as usize).ok());
            let Some(set) = set else { return self.broken() };
            match (self.header.protocol, id) {
                (ExportProtocol::Ipfix, 2) | (ExportProtocol::NetflowV9, 0) => {
                    self.templates(set, false)
                }
                (ExportProtocol::Ipfix, 3) | (ExportProtocol::NetflowV9, 1) => {
                    self.templates(set, true)
                }
                (_, DATA_SET_MIN..) => self.data(id, set),
                _ => self.pipeline.counts.unknown += 1,
            }
        }
    }

    fn templates(&mut self, set: &[u8], options: bool) {
        let ipfix = self.header.protocol == ExportProtocol::Ipfix;
        for template in template::read(set, ipfix, options) {
            match template {
                Ok((id, template)) => {
                    if self.context.put_template(id, template) {
                        self.decode_early_sets(id);
                    } else {
                        self.pipeline.counts.unknown += self.context.drop_early_sets(id);
                    }
                }
                Err(Cut) => self.broken(),
            }
        }
    }

    /// Decodes the stored sets of a template, with the times of their own datagrams.
    fn decode_early_sets(&mut self, id: u16) {
        let (header, records) = (self.header, self.records);
        for early in self.context.take_early_sets(id) {
            self.header = early.header;
            self.data(id, &early.set);
        }
        // They are not records of this datagram.
        (self.header, self.records) = (header, records);
    }

    fn data(&mut self, id: u16, set: &[u8]) {
        let Some(template) = self.context.take_template(id) else {
            self.records = None;
            self.pipeline.counts.unknown += self.context.store_early_set(id, self.header, set);
            return;
        };
        let mut rest = set;
        while rest.len() >= template.bytes_min && template.bytes_min > 0 {
            let mut fields = fields::Fields::default();
            let Ok(after) = template.record(rest, |field, bytes| fields.take(field, bytes)) else {
                self.broken();
                break;
            };
            rest = after;
            self.records = self.records.map(|records| records + 1);
            if template.options {
                if let Some((scope, rate)) = fields.reported_rate() {
                    self.context.put_sampling_rate(scope, rate);
                }
            } else {
                let of_scope = || self.context.sampling_rate(fields.sampling_scopes());
                let reported = fields.rate().or_else(of_scope);
                self.record(&fields, reported);
            }
        }
        self.context.return_template(id, template);
    }
}
