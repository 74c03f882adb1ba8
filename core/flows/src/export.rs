//! Flows that routers sum up and export: IPFIX (RFC 7011), NetFlow version 9 (RFC 3954) and version 5.
//!
//! An exporter describes its records in templates and sends them every so often; a set that comes before
//! its template waits for it, [`EARLY_SETS_MAX`] of them for each exporter. Templates belong to the address, port and domain that sent
//! them (RFC 7011 8), and their memory is the exporter's share (`crate::exporter`). Sampling rates come from the
//! record itself, from an options record of its sampler, or from the operator
//! ([`Intake::set_sampling_rates`](crate::intake::Intake::set_sampling_rates)).
//!
//! A record counts what it says of traffic since the record before: delta counts, else those of both directions of an
//! event of a firewall (231, 232), else post counts (23, 24), else the difference of totals (85, 86). Events of NAT
//! and firewalls that count nothing are no traffic.
//!
//! Not for: SCTP and TCP, withdrawal of templates (which RFC 7011 8.4 forbids over UDP), structured data,
//! fields of enterprises.
//!
//! The crate `netflow_parser` reads the same, reads the clock and allocates for each field; the tests
//! compare with it.

mod fields;
mod template;
mod totals;
mod v5;

use std::net::SocketAddr;
use std::time::Duration;

use crate::exporter::{Dialect, ExporterKey, Heard};
use crate::intake::{Intake, Sink, Way};
use crate::packet::Address;
use crate::prefixes::Prefixes;
use crate::sflow::xdr::{Cut, Reader};
use totals::FlowTotals;

pub(crate) use template::Templates;
pub use template::{FIELDS_MAX, TEMPLATES_MAX};
pub use totals::FLOW_TOTALS_MAX;
pub(crate) use totals::LastTotals;

/// UDP port of IPFIX; NetFlow has none of its own, 2055 is usual.
pub const PORT: u16 = 4739;

/// Most samplers of an exporter.
pub const SAMPLERS_MAX: usize = 64;

/// Most sets of an exporter that wait for their templates.
pub const EARLY_SETS_MAX: usize = 64;

/// Templates below this number are none: these sets have meanings of their own.
const DATA_SET_MIN: u16 = 256;

/// Why bytes are no export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Too short for a header.
    #[error(
        "{0} bytes hold no header of NetFlow or IPFIX: is another program sending to this port?"
    )]
    Short(usize),
    /// Another version.
    #[error(
        "version {0} of NetFlow is not read: set the exporter to IPFIX (10) or to version 9 or 5"
    )]
    Version(u16),
}

/// What the header says.
#[derive(Debug, Clone, Copy)]
struct Header {
    dialect: Dialect,
    domain: u32,
    number: u32,
    uptime_ms: Option<u32>,
    /// Seconds since 1970.
    time_s: u32,
}

fn header<'a>(from: &mut Reader<'a>) -> Result<Result<(Header, &'a [u8]), u16>, Cut> {
    let first = from.word()?;
    let (version, low) = ((first >> 16) as u16, (first & 0xFFFF) as usize);
    match version {
        10 => {
            let [time_s, number, domain] = from.get()?;
            // The length counts the header; what follows is another message, or nothing.
            let body =
                low.checked_sub(16).and_then(|length| from.rest().get(..length)).ok_or(Cut)?;
            let dialect = Dialect::Ipfix;
            Ok(Ok((Header { dialect, domain, number, uptime_ms: None, time_s }, body)))
        }
        9 => {
            let [uptime_ms, time_s, number, domain] = from.get()?;
            let uptime_ms = Some(uptime_ms);
            let dialect = Dialect::NetflowV9;
            Ok(Ok((Header { dialect, domain, number, uptime_ms, time_s }, from.rest())))
        }
        5 => {
            let [uptime_ms, time_s, _, number, engine] = from.get()?;
            let dialect = Dialect::NetflowV5;
            let uptime_ms = Some(uptime_ms);
            // The lower half is the sampling, the upper one the engine.
            let header = Header { dialect, domain: engine >> 16, number, uptime_ms, time_s };
            Ok(Ok((header, from.rest())))
        }
        other => Ok(Err(other)),
    }
}

impl Intake {
    /// Sampling rates of exporters that do not tell theirs, by their addresses.
    pub fn set_sampling_rates(&mut self, rates: Prefixes<u32>) {
        self.sampling_rates = rates;
    }

    /// Takes a datagram of IPFIX or NetFlow.
    ///
    /// # Errors
    /// When it is neither; sets that are broken are counted and left out.
    pub fn export(
        &mut self,
        now: Duration,
        from: SocketAddr,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ExportError> {
        let mut reader = Reader::new(bytes);
        let (header, body) = header(&mut reader)
            .map_err(|Cut| ExportError::Short(bytes.len()))
            .and_then(|header| header.map_err(ExportError::Version))
            .inspect_err(|_| self.counts.refused += 1)?;
        let key = ExporterKey {
            dialect: header.dialect,
            address: Address::from(from.ip()),
            port: from.port(),
            domain: header.domain,
        };
        self.counts.datagrams += 1;
        let rate = self.sampling_rates.find(key.address);
        let Self { exporters, trust, aggregator, counts, totals, .. } = self;
        // Version 9 counts datagrams, the others records.
        let number = (header.dialect == Dialect::NetflowV9).then_some(header.number);
        let mut heard = exporters.hear(now, key, from.ip(), number, header.uptime_ms);
        if heard.arrival == crate::sequence::Arrival::Duplicate {
            counts.duplicates += 1;
            return Ok(());
        }
        sink.datagram(heard.exporter, heard.arrival);
        let mut message = Message {
            header,
            rate,
            heard: &mut heard,
            way: Way { now, trust, aggregator, counts, sink },
            totals,
            records: Some(0),
        };
        match header.dialect {
            Dialect::NetflowV5 => message.v5(bytes, body),
            _ => message.sets(body),
        }
        if header.dialect != Dialect::NetflowV9 {
            let records = message.records;
            heard.exporter.records(header.number, records);
        }
        Ok(())
    }
}

/// One datagram on its way.
struct Message<'a, 'b, S> {
    header: Header,
    /// The operator's word on sampling.
    rate: Option<u32>,
    heard: &'a mut Heard<'b>,
    way: Way<'a, S>,
    totals: &'a mut LastTotals,
    /// How many records were in it; `None` where a template is missing.
    records: Option<u32>,
}

impl<S: Sink> Message<'_, '_, S> {
    fn broken(&mut self) {
        self.way.counts.broken += 1;
        self.heard.exporter.broken += 1;
    }

    /// Counts the traffic of a record; `told` is the sampling rate by the exporter's word.
    fn record(&mut self, fields: &fields::Fields<'_>, told: Option<u32>) {
        let exporter = &self.heard.exporter;
        let (id, first_heard) = (exporter.id, exporter.first_heard);
        let mut totals = FlowTotals { last: self.totals, exporter: id, first_heard };
        let both = fields.observations(&self.header, self.way.now, &mut totals);
        for mut seen in both.into_iter().flatten() {
            seen.sampling_rate = told.or(self.rate).unwrap_or(1).max(1);
            self.way.observation(self.heard, &seen);
        }
    }

    fn sets(&mut self, body: &[u8]) {
        let mut from = Reader::new(body);
        while let Ok(head) = from.word() {
            let (id, length) = ((head >> 16) as u16, head & 0xFFFF);
            let set = length.checked_sub(4).and_then(|length| from.take(length as usize).ok());
            let Some(set) = set else { return self.broken() };
            match (self.header.dialect, id) {
                (Dialect::Ipfix, 2) | (Dialect::NetflowV9, 0) => self.templates(set, false),
                (Dialect::Ipfix, 3) | (Dialect::NetflowV9, 1) => self.templates(set, true),
                (_, DATA_SET_MIN..) => self.data(id, set),
                _ => self.way.counts.unknown += 1,
            }
        }
    }

    fn templates(&mut self, set: &[u8], options: bool) {
        let ipfix = self.header.dialect == Dialect::Ipfix;
        for template in template::read(set, ipfix, options) {
            match template {
                Ok((id, template)) => {
                    self.heard.put_template(id, template);
                    self.catch_up(id);
                }
                Err(Cut) => self.broken(),
            }
        }
    }

    /// Reads what waited for a template, by the times of its own datagram.
    fn catch_up(&mut self, id: u16) {
        let (header, records) = (self.header, self.records);
        for early in self.heard.waited(id) {
            self.header = early.header;
            self.data(id, &early.set);
        }
        // They are not records of this datagram.
        (self.header, self.records) = (header, records);
    }

    fn data(&mut self, id: u16, set: &[u8]) {
        let Some(template) = self.heard.take_template(id) else {
            self.records = None;
            self.way.counts.unknown += self.heard.keep(id, self.header, set);
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
                if let Some((sampler, rate)) = fields.sampler() {
                    self.heard.put_sampler(sampler, rate);
                }
            } else {
                let told = fields.rate().or_else(|| self.heard.sampler(fields.sampler_id()));
                self.record(&fields, told);
            }
        }
        self.heard.return_template(id, template);
    }
}
