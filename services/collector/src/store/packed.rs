//! All sums of one kind over one minute or hour as one value of 16 bytes per key: a year of hours
//! loads in the time of a week of single rows.
//!
//! An entry is the key's id (u32), the squared error, or for counters the seconds (f32), and the
//! bytes (f64), little endian, in the order of keys. Counters have no error, and only counters have
//! seconds.

use std::collections::HashMap;

use crate::row::{RowKind, SumCell};

const ENTRY_BYTES: usize = 16;

/// Sums by id of the key.
pub(super) type PackedSums = HashMap<u32, SumCell>;

/// Decodes a value. Trailing bytes of an incomplete entry are ignored.
pub(super) fn entries(kind: RowKind, body: &[u8]) -> impl Iterator<Item = (u32, SumCell)> {
    body.as_chunks::<ENTRY_BYTES>().0.iter().map(move |entry| {
        let [k0, k1, k2, k3, x0, x1, x2, x3, bytes @ ..] = *entry;
        let extra = f64::from(f32::from_le_bytes([x0, x1, x2, x3]));
        let (error_squared, seconds) = match kind {
            RowKind::Counter => (0.0, extra),
            _ => (extra, 0.0),
        };
        let cell = SumCell { bytes: f64::from_le_bytes(bytes), error_squared, seconds };
        (u32::from_le_bytes([k0, k1, k2, k3]), cell)
    })
}

/// Encodes sums as a value.
pub(super) fn pack(kind: RowKind, sums: &PackedSums) -> Vec<u8> {
    let mut keys: Vec<_> = sums.keys().copied().collect();
    keys.sort_unstable();
    let mut body = Vec::with_capacity(keys.len() * ENTRY_BYTES);
    for key in keys {
        let cell = sums[&key];
        let extra = match kind {
            RowKind::Counter => cell.seconds,
            _ => cell.error_squared,
        };
        body.extend(key.to_le_bytes());
        body.extend((extra as f32).to_le_bytes());
        body.extend(cell.bytes.to_le_bytes());
    }
    body
}

/// Adds the sums of a value.
pub(super) fn add(kind: RowKind, sums: &mut PackedSums, body: &[u8]) {
    for (key, cell) in entries(kind, body) {
        sums.entry(key).or_default().add(cell);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn packed_sums_round_trip(given in prop::collection::hash_map(any::<u32>(), (0.0..1e18, 0.0..1e30), 0..50), counter: bool) {
            let kind = if counter { RowKind::Counter } else { RowKind::Group };
            let cell = |(bytes, extra): (f64, f64)| match counter {
                true => SumCell { bytes, error_squared: 0.0, seconds: f64::from(extra as f32) },
                false => SumCell { bytes, error_squared: f64::from(extra as f32), seconds: 0.0 },
            };
            let sums: PackedSums = given.into_iter().map(|(key, pair)| (key, cell(pair))).collect();
            let body = pack(kind, &sums);
            let mut again = PackedSums::new();
            add(kind, &mut again, &body);
            prop_assert_eq!(&again, &sums);
            add(kind, &mut again, &body);
            prop_assert!(sums.iter().all(|(key, cell)| again[key].bytes == 2.0 * cell.bytes));
        }

        #[test]
        fn arbitrary_values_never_panic(body in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(entries(RowKind::Host, &body).count(), body.len() / ENTRY_BYTES);
        }
    }
}
