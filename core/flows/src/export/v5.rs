//! NetFlow version 5: records of 48 bytes, IPv4 only.

use super::MessageDecoder;
use super::fields::Fields;
use crate::intake::Sink;

const RECORD_BYTES: usize = 48;

/// Offset of the sampling in the header: two bits of mode, fourteen of rate.
const SAMPLING_AT: usize = 22;

/// Fields of a record: IPFIX element, offset, length in bytes.
const FIELD_LAYOUT: [(u16, usize, usize); 17] = [
    (8, 0, 4),
    (12, 4, 4),
    (10, 12, 2),
    (14, 14, 2),
    (2, 16, 4),
    (1, 20, 4),
    (22, 24, 4),
    (21, 28, 4),
    (7, 32, 2),
    (11, 34, 2),
    (6, 37, 1),
    (4, 38, 1),
    (5, 39, 1),
    (16, 40, 2),
    (17, 42, 2),
    (9, 44, 1),
    (13, 45, 1),
];

impl<S: Sink> MessageDecoder<'_, '_, S> {
    pub(super) fn v5(&mut self, datagram: &[u8], body: &[u8]) {
        let count = datagram.get(3).map_or(0, |count| usize::from(*count));
        let sampling = datagram.get(SAMPLING_AT..SAMPLING_AT + 2).unwrap_or_default();
        let sampling = sampling.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)) & 0x3FFF;
        let sampling_rate = (sampling > 0).then_some(sampling);
        let records = body.chunks_exact(RECORD_BYTES);
        for record in records.take(count) {
            let mut fields = Fields::default();
            for (field, at, length) in FIELD_LAYOUT {
                fields.take(field, record.get(at..at + length).unwrap_or_default());
            }
            self.records = self.records.map(|records| records + 1);
            self.record(&fields, sampling_rate);
        }
        if body.len() / RECORD_BYTES < count {
            self.broken();
        }
    }
}
