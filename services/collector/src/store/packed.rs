//! All sums of one kind over one minute or hour as one value: 16 bytes each, so that a year of hours is read in the time
//! that as many single rows would take for a week.
//!
//! An entry is the key's number (u32), the error squared, or for counters the seconds (f32), and the bytes (f64), little
//! endian, in the order of keys. Counters have no error, and nothing else has seconds of its own.

use std::collections::HashMap;

use crate::row::{Cell, Kind};

const ENTRY_BYTES: usize = 16;

/// Sums by key.
pub(super) type Sums = HashMap<u32, Cell>;

/// What a value holds. Bytes that are no whole entry are left out.
pub(super) fn entries(kind: Kind, body: &[u8]) -> impl Iterator<Item = (u32, Cell)> {
    body.as_chunks::<ENTRY_BYTES>().0.iter().map(move |entry| {
        let [k0, k1, k2, k3, x0, x1, x2, x3, bytes @ ..] = *entry;
        let extra = f64::from(f32::from_le_bytes([x0, x1, x2, x3]));
        let (error_squared, seconds) = match kind {
            Kind::Counter => (0.0, extra),
            _ => (extra, 0.0),
        };
        let cell = Cell { bytes: f64::from_le_bytes(bytes), error_squared, seconds };
        (u32::from_le_bytes([k0, k1, k2, k3]), cell)
    })
}

/// The value of these sums.
pub(super) fn pack(kind: Kind, sums: &Sums) -> Vec<u8> {
    let mut keys: Vec<_> = sums.keys().copied().collect();
    keys.sort_unstable();
    let mut body = Vec::with_capacity(keys.len() * ENTRY_BYTES);
    for key in keys {
        let cell = sums[&key];
        let extra = match kind {
            Kind::Counter => cell.seconds,
            _ => cell.error_squared,
        };
        body.extend(key.to_le_bytes());
        body.extend((extra as f32).to_le_bytes());
        body.extend(cell.bytes.to_le_bytes());
    }
    body
}

/// Adds what a value holds.
pub(super) fn add(kind: Kind, sums: &mut Sums, body: &[u8]) {
    for (key, cell) in entries(kind, body) {
        sums.entry(key).or_default().add(cell);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_come_back_as_they_went(given in prop::collection::hash_map(any::<u32>(), (0.0..1e18, 0.0..1e30), 0..50), counter: bool) {
            let kind = if counter { Kind::Counter } else { Kind::Group };
            let cell = |(bytes, extra): (f64, f64)| match counter {
                true => Cell { bytes, error_squared: 0.0, seconds: f64::from(extra as f32) },
                false => Cell { bytes, error_squared: f64::from(extra as f32), seconds: 0.0 },
            };
            let sums: Sums = given.into_iter().map(|(key, pair)| (key, cell(pair))).collect();
            let body = pack(kind, &sums);
            let mut again = Sums::new();
            add(kind, &mut again, &body);
            prop_assert_eq!(&again, &sums);
            add(kind, &mut again, &body);
            prop_assert!(sums.iter().all(|(key, cell)| again[key].bytes == 2.0 * cell.bytes));
        }

        #[test]
        fn whatever_is_stored_is_no_panic(body in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(entries(Kind::Host, &body).count(), body.len() / ENTRY_BYTES);
        }
    }
}
