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

/// Templates and sampling rates of an exporter.
#[derive(Debug)]
pub(crate) struct Templates {
    templates: SeededMap<u16, Template>,
    samplers: SeededMap<u64, u32>,
    early: VecDeque<EarlySet>,
}

impl Templates {
    pub(crate) fn new(seed: u64) -> Self {
        let (templates, samplers) = (seeded(seed), seeded(seed));
        Self { templates, samplers, early: VecDeque::new() }
    }
}

impl DatagramContext<'_> {
    /// Stores a template, replacing one with the same id.
    pub(super) fn put_template(&mut self, id: u16, template: Template) {
        let states = template.states();
        let old = self.exporter.templates.templates.get(&id).map_or(0, Template::states);
        let full = old == 0 && self.exporter.templates.templates.len() >= TEMPLATES_MAX;
        if full || !self.charge(states.saturating_sub(old)) {
            return;
        }
        self.exporter.templates.templates.insert(id, template);
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

    /// Stores the rate of a sampler.
    pub(super) fn put_sampler(&mut self, sampler: u64, rate: u32) {
        let samplers = &self.exporter.templates.samplers;
        let (known, full) =
            (samplers.contains_key(&sampler), samplers.len() >= super::SAMPLERS_MAX);
        if !known && (full || !self.charge(1)) {
            return;
        }
        self.exporter.templates.samplers.insert(sampler, rate);
    }

    /// Rate of a sampler; without an id, that of the only one.
    pub(super) fn sampler(&self, sampler: Option<u64>) -> Option<u32> {
        let samplers = &self.exporter.templates.samplers;
        match sampler {
            Some(sampler) => samplers.get(&sampler).copied(),
            None if samplers.len() == 1 => samplers.values().next().copied(),
            None => samplers.get(&0).copied(),
        }
    }
}
