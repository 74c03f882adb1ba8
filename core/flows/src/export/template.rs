//! Templates: which fields a record has, and how long each is.

use std::collections::VecDeque;

use super::Header;
use crate::bounded::{SeededMap, seeded};
use crate::exporter::Heard;
use crate::sflow::xdr::{Cut, Reader};

/// Most fields of a template.
pub const FIELDS_MAX: usize = 256;

/// Most templates of an exporter.
pub const TEMPLATES_MAX: usize = 256;

/// A field of this length has its own before it (RFC 7011 7).
const VARIABLE: u16 = 0xFFFF;

/// Marks a scope of version 9, whose numbers are other ones than those of fields.
const SCOPE: u32 = u32::MAX;

/// So many bytes of sets that wait take the place of one state of an exporter.
const BYTES_PER_STATE: usize = 512;

/// So many fields take the place of one state of an exporter.
const FIELDS_PER_STATE: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    id: u16,
    bytes: u16,
    enterprise: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Template {
    fields: Vec<Field>,
    /// What it describes is about the exporter, not about traffic.
    pub(crate) options: bool,
    /// No record is shorter.
    pub(crate) bytes_min: usize,
}

impl Template {
    /// Goes through the record at the front of `set`; fields of enterprises are left out. Returns what
    /// follows it.
    pub(crate) fn record<'a>(
        &self,
        set: &'a [u8],
        mut take: impl FnMut(u16, &'a [u8]),
    ) -> Result<&'a [u8], Cut> {
        let mut from = Reader::new(set);
        for field in &self.fields {
            let length = match field.bytes {
                VARIABLE => match from.take(1)? {
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

/// The templates of a set, each with its number. After one that is cut nothing more is found.
pub(super) fn read(
    set: &[u8],
    ipfix: bool,
    options: bool,
) -> impl Iterator<Item = Result<(u16, Template), Cut>> + '_ {
    let mut from = Reader::new(set);
    let mut failed = false;
    std::iter::from_fn(move || {
        // What is shorter than a head is padding.
        if failed || from.rest().len() < 4 || from.rest().iter().all(|byte| *byte == 0) {
            return None;
        }
        let template = one(&mut from, ipfix, options);
        failed = template.is_err();
        Some(template)
    })
    // A withdrawal has no fields; over UDP there is none.
    .filter(|template| !matches!(template, Ok((_, template)) if template.fields.is_empty()))
}

fn one(from: &mut Reader<'_>, ipfix: bool, options: bool) -> Result<(u16, Template), Cut> {
    let head = from.word()?;
    let (id, count) = ((head >> 16) as u16, (head & 0xFFFF) as usize);
    let half = |from: &mut Reader<'_>| -> Result<usize, Cut> {
        Ok(from.take(2)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    // IPFIX counts all fields and then those of the scope; version 9 counts bytes of each, four a field.
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
            (true, true) => Field { id: id & 0x7FFF, bytes, enterprise: from.word()? },
            (false, _) if at < scopes => Field { id, bytes, enterprise: SCOPE },
            _ => Field { id, bytes, enterprise: 0 },
        };
        let variable = ipfix && bytes == VARIABLE;
        template.bytes_min += if variable { 1 } else { usize::from(bytes) };
        template.fields.push(field);
    }
    Ok((id, template))
}

/// A set that came before its template.
#[derive(Debug)]
pub(super) struct Early {
    id: u16,
    pub(super) header: Header,
    pub(super) set: Vec<u8>,
}

impl Early {
    fn states(&self) -> usize {
        1 + self.set.len() / BYTES_PER_STATE
    }
}

/// What an exporter has told of its records.
#[derive(Debug)]
pub(crate) struct Templates {
    templates: SeededMap<u16, Template>,
    samplers: SeededMap<u64, u32>,
    early: VecDeque<Early>,
}

impl Templates {
    pub(crate) fn new(seed: u64) -> Self {
        let (templates, samplers) = (seeded(seed), seeded(seed));
        Self { templates, samplers, early: VecDeque::new() }
    }
}

impl Heard<'_> {
    /// Keeps a template in the place of the one with its number.
    pub(super) fn put_template(&mut self, id: u16, template: Template) {
        let states = template.states();
        let old = self.exporter.templates.templates.get(&id).map_or(0, Template::states);
        let full = old == 0 && self.exporter.templates.templates.len() >= TEMPLATES_MAX;
        if full || !self.charge(states.saturating_sub(old)) {
            return;
        }
        self.exporter.templates.templates.insert(id, template);
    }

    /// Lends a template, so that its records can be counted meanwhile.
    pub(super) fn take_template(&mut self, id: u16) -> Option<Template> {
        self.exporter.templates.templates.get_mut(&id).map(std::mem::take)
    }

    /// Takes it back.
    pub(super) fn return_template(&mut self, id: u16, template: Template) {
        self.exporter.templates.templates.insert(id, template);
    }

    /// Keeps a set whose template has not come; the oldest leaves for it. How many sets were lost by that.
    pub(super) fn keep(&mut self, id: u16, header: Header, set: &[u8]) -> u64 {
        let mut lost = 0;
        if self.exporter.templates.early.len() >= super::EARLY_SETS_MAX
            && let Some(oldest) = self.exporter.templates.early.pop_front()
        {
            lost += 1;
            self.release(oldest.states());
        }
        let early = Early { id, header, set: set.to_vec() };
        if self.charge(early.states()) {
            self.exporter.templates.early.push_back(early);
        } else {
            lost += 1;
        }
        self.exporter.unknown += lost;
        lost
    }

    /// The sets that waited for this template, oldest first.
    pub(super) fn waited(&mut self, id: u16) -> Vec<Early> {
        let early = std::mem::take(&mut self.exporter.templates.early);
        let (waited, others): (VecDeque<_>, _) = early.into_iter().partition(|one| one.id == id);
        self.exporter.templates.early = others;
        self.release(waited.iter().map(Early::states).sum());
        waited.into()
    }

    /// Keeps the rate of a sampler.
    pub(super) fn put_sampler(&mut self, sampler: u64, rate: u32) {
        let samplers = &self.exporter.templates.samplers;
        let (known, full) =
            (samplers.contains_key(&sampler), samplers.len() >= super::SAMPLERS_MAX);
        if !known && (full || !self.charge(1)) {
            return;
        }
        self.exporter.templates.samplers.insert(sampler, rate);
    }

    /// The rate of a sampler; without a number that of the only one.
    pub(super) fn sampler(&self, sampler: Option<u64>) -> Option<u32> {
        let samplers = &self.exporter.templates.samplers;
        match sampler {
            Some(sampler) => samplers.get(&sampler).copied(),
            None if samplers.len() == 1 => samplers.values().next().copied(),
            None => samplers.get(&0).copied(),
        }
    }
}
