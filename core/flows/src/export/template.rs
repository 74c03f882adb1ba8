//! Templates: the fields of a record and their lengths.

use std::collections::VecDeque;

use super::ExportHeader;
use crate::bounded::{SeededMap, seeded};
use crate::exporter::DatagramContext;
use crate::sflow::xdr::{Cut, XdrReader};

/// Most fields of a template that is stored.
pub const FIELDS_MAX: usize = 256;

/// Most templates of an exporter that are stored.
pub const TEMPLATES_MAX: usize = 256;

/// Length of a field that is preceded by its own length (RFC 7011 7).
const VARIABLE_LENGTH: u16 = 0xFFFF;

/// Version 9 scope of an interface; its value is an ifIndex, as that of field 10.
const SCOPE_INTERFACE: u16 = 2;

const INPUT_INTERFACE_FIELD: u16 = 10;

/// Enterprise of a version 9 scope, whose numbers differ from those of fields.
const SCOPE_ENTERPRISE: u32 = u32::MAX;

/// Bytes of stored sets that count as one state of an exporter.
const BYTES_PER_STATE: usize = 512;

/// Template fields that count as one state of an exporter.
const FIELDS_PER_STATE: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct TemplateField {
    id: u16,
    bytes: u16,
    enterprise: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Template {
    fields: Vec<TemplateField>,
    /// True for options records, which describe the exporter instead of traffic.
    pub(crate) options: bool,
    /// Length of the shortest record, in bytes.
    pub(crate) bytes_min: usize,
}

impl Template {
    /// Passes the fields of the record at the front of `set` to `take`, except enterprise-specific
    /// ones. Returns the bytes behind the record.
    pub(crate) fn record<'a>(
        &self,
        set: &'a [u8],
        mut take: impl FnMut(u16, &'a [u8]),
    ) -> Result<&'a [u8], Cut> {
        let mut from = XdrReader::new(set);
        for field in &self.fields {
            let length = match field.bytes {
                VARIABLE_LENGTH => match from.take(1)? {
                    [255] => {
                        from.take(2)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
                    }
                    short => short.iter().fold(0, |_, byte| usize::from(*byte)),
                },
                bytes => bytes.into(),
            };
            let bytes = from.take(length)?;
            if field.enterprise == 0 {
                take(field.id, bytes);
            }
        }
        Ok(from.rest())
    }

    fn states(&self) -> usize {
        1 + self.fields.len() / FIELDS_PER_STATE
    }
}

/// Parses the templates of a set, each with its id. A truncated template is the last item.
pub(super) fn read(
    set: &[u8],
    ipfix: bool,
    options: bool,
) -> impl Iterator<Item = Result<(u16, Template), Cut>> + '_ {
    let mut from = XdrReader::new(set);
    let mut failed = false;
    std::iter::from_fn(move || {
        // Fewer bytes than a header are padding.
        if failed || from.rest().len() < 4 || from.rest().iter().all(|byte| *byte == 0) {
            return None;
        }
        let template = one(&mut from, ipfix, options);
        failed = template.is_err();
        Some(template)
    })
    // A template without fields is a withdrawal, which is not allowed over UDP.
    .filter(|template| !matches!(template, Ok((_, template)) if template.fields.is_empty()))
}

fn one(from: &mut XdrReader<'_>, ipfix: bool, options: bool) -> Result<(u16, Template), Cut> {
    let head = from.word()?;
    let (id, count) = ((head >> 16) as u16, (head & 0xFFFF) as usize);
    let half = |from: &mut XdrReader<'_>| -> Result<usize, Cut> {
        Ok(from.take(2)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    // IPFIX has the count of all fields, then that of the scope; version 9 has the bytes of each,
    // four per field.
    let (scopes, count) = match (options, ipfix) {
        (false, _) => (0, count),
        (true, true) if count == 0 => (0, 0),
        (true, true) => (half(from)?, count),
        (true, false) => (count / 4, count / 4 + half(from)? / 4),
    };
    if count > FIELDS_MAX {
        return Err(Cut);
    }
    let mut template = Template { fields: Vec::with_capacity(count), options, bytes_min: 0 };
    for at in 0..count {
        let field = from.word()?;
        let (id, bytes) = ((field >> 16) as u16, (field & 0xFFFF) as u16);
        let field = match (ipfix, id & 0x8000 != 0) {
            (true, true) => TemplateField { id: id & 0x7FFF, bytes, enterprise: from.word()? },
            (false, _) if at < scopes && id == SCOPE_INTERFACE => {
                TemplateField { id: INPUT_INTERFACE_FIELD, bytes, enterprise: 0 }
            }
            (false, _) if at < scopes => TemplateField { id, bytes, enterprise: SCOPE_ENTERPRISE },
            _ => TemplateField { id, bytes, enterprise: 0 },
        };
        let variable = ipfix && bytes == VARIABLE_LENGTH;
        template.bytes_min += if variable { 1 } else { usize::from(bytes) };
        template.fields.push(field);
    }
    Ok((id, template))
}

/// A set that precedes its template.
#[derive(Debug)]
pub(super) struct EarlySet {
    id: u16,
    pub(super) header: ExportHeader,
    pub(super) set: Vec<u8>,
}

impl EarlySet {
    fn states(&self) -> usize {
        1 + self.set.len() / BYTES_PER_STATE
    }
}

/// Part of an exporter whose packets have a sampling rate of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SamplingScope {
    /// All packets without another scope.
    Exporter,
    /// Id of a sampler, or of a selector (RFC 5477).
    Sampler(u64),
    /// ifIndex.
    Interface(u32),
}

/// Templates and sampling rates of an exporter.
#[derive(Debug)]
pub(crate) struct Templates {
    templates: SeededMap<u16, Template>,
    sampling_rates: SeededMap<SamplingScope, u32>,
    early: VecDeque<EarlySet>,
}

impl Templates {
    pub(crate) fn new(seed: u64) -> Self {
        let (templates, sampling_rates) = (seeded(seed), seeded(seed));
        Self { templates, sampling_rates, early: VecDeque::new() }
    }
}

impl DatagramContext<'_> {
    /// Stores a template, replacing one with the same id; returns false beyond the limits.
    pub(super) fn put_template(&mut self, id: u16, template: Template) -> bool {
        let states = template.states();
        let old = self.exporter.templates.templates.get(&id).map_or(0, Template::states);
        let full = old == 0 && self.exporter.templates.templates.len() >= TEMPLATES_MAX;
        if full {
            self.exporter.untracked += 1;
        }
        if full || !self.charge(states.saturating_sub(old)) {
            return false;
        }
        self.exporter.templates.templates.insert(id, template);
        true
    }

    /// Drops the sets stored for a template that is beyond the limits, and returns their count.
    pub(super) fn drop_early_sets(&mut self, id: u16) -> u64 {
        let lost = self.take_early_sets(id).len() as u64;
        self.exporter.unknown += lost;
        lost
    }

    /// Moves a template out, so that the exporter's state can change while its records are decoded.
    pub(super) fn take_template(&mut self, id: u16) -> Option<Template> {
        self.exporter.templates.templates.get_mut(&id).map(std::mem::take)
    }

    /// Moves the template back.
    pub(super) fn return_template(&mut self, id: u16, template: Template) {
        self.exporter.templates.templates.insert(id, template);
    }

    /// Stores a set until its template arrives, evicting the oldest one. Returns the count of lost
    /// sets.
    pub(super) fn store_early_set(&mut self, id: u16, header: ExportHeader, set: &[u8]) -> u64 {
        // A further template would be refused.
        if self.exporter.templates.templates.len() >= TEMPLATES_MAX {
            self.exporter.unknown += 1;
            return 1;
        }
        let mut lost = 0;
        if self.exporter.templates.early.len() >= super::EARLY_SETS_MAX
            && let Some(oldest) = self.exporter.templates.early.pop_front()
        {
            lost += 1;
            self.release(oldest.states());
        }
        let early = EarlySet { id, header, set: set.to_vec() };
        if self.charge(early.states()) {
            self.exporter.templates.early.push_back(early);
        } else {
            lost += 1;
        }
        self.exporter.unknown += lost;
        lost
    }

    /// Removes and returns the sets stored for this template, oldest first.
    pub(super) fn take_early_sets(&mut self, id: u16) -> Vec<EarlySet> {
        let early = std::mem::take(&mut self.exporter.templates.early);
        let (take_early_sets, others): (VecDeque<_>, _) =
            early.into_iter().partition(|one| one.id == id);
        self.exporter.templates.early = others;
        self.release(take_early_sets.iter().map(EarlySet::states).sum());
        take_early_sets.into()
    }

    /// Stores the sampling rate of a scope.
    pub(super) fn put_sampling_rate(&mut self, scope: SamplingScope, rate: u32) {
        let rates = &self.exporter.templates.sampling_rates;
        if !rates.contains_key(&scope) {
            if rates.len() >= super::SAMPLERS_MAX {
                self.exporter.untracked += 1;
                return;
            }
            if !self.charge(1) {
                return;
            }
        }
        self.exporter.templates.sampling_rates.insert(scope, rate);
    }

    /// Sampling rate of the first of these scopes that has one, else that of the exporter; of a
    /// record without a sampler, also that of the only sampler.
    pub(super) fn sampling_rate(&self, scopes: [Option<SamplingScope>; 3]) -> Option<u32> {
        let rates = &self.exporter.templates.sampling_rates;
        let known = scopes.iter().flatten().chain([&SamplingScope::Exporter]);
        let found = known.filter_map(|scope| rates.get(scope).copied()).next();
        let only = || match rates.iter().next() {
            Some((SamplingScope::Sampler(_), rate)) if rates.len() == 1 => Some(*rate),
            _ => None,
        };
        found.or_else(|| only().filter(|_| scopes[0].is_none()))
    }
}
