//! Pairs of owner and activity that packets carry and the registry lacks.

use penstock_flows::aggregate::{FlowGroup, ScitagLabel};
use penstock_scitags::Scitag;
use serde::Serialize;
use utoipa::ToSchema;

use crate::live::Namer;
use crate::query::{By, Fold, KeyNames, Query};
use crate::query_executor::TimeBuckets;
use crate::row::{RowLabel as Named, SumRow};
use crate::shared::Shared;

/// Most pairs in an answer.
const PAIRS_MAX: usize = 100;

/// An unregistered pair. Only packet options count: in a flow label it would be chance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryUnknownPair)]
pub(super) struct UnknownPair {
    /// Number of the owner.
    owner: u16,
    /// Number of the activity.
    activity: u8,
    /// Scitag number of the pair.
    scitag: u16,
    /// Mean bits per second.
    bps: f64,
    /// Half-width of the 95 % interval.
    error_bps: f64,
}

/// Unregistered pairs in the seconds of a span, in descending order.
pub(super) fn pairs(shared: &Shared, like: &Query, span: TimeBuckets) -> Vec<UnknownPair> {
    let inside = |at_s: i64| span.bucket(at_s).is_some();
    let seconds: Vec<_> = {
        let live = shared.live();
        live.seconds().filter(|second| inside(second.at_s)).cloned().collect()
    };
    let registered: std::collections::HashSet<Scitag> = shared.registry.tags().collect();
    let directory = shared.directory();
    let namer = Namer::new(&directory, &shared.sites);
    let names = KeyNames { registry: &shared.registry, directory: &directory };
    let query = Query { by: By::Scitag, ..like.clone() };
    let mut fold = Fold::new(&query, names, 1);
    let unit = shared.live().unit();
    let length_s: f64 = seconds.iter().map(|second| second.length_s).sum();
    for second in &seconds {
        for (packed, cell) in &second.groups.rows {
            let ScitagLabel::Untrusted(tag) = FlowGroup::from(packed).label else { continue };
            let Ok(number) = u16::try_from(tag.number()) else { continue };
            if registered.contains(&tag) {
                continue;
            }
            // Summed as if trusted, so that it is counted once like other traffic.
            let mut row = namer.group(packed);
            if let SumRow::Group { label, .. } = &mut row {
                *label = Named::Trusted(number);
            }
            if let Some(place) = fold.place(&row) {
                fold.add(0, place, crate::row::SumCell::from(*cell).sum());
            }
        }
    }
    let unregistered = fold.series().into_iter().filter_map(|(key, cells)| {
        let tag = Scitag::from_number(key.parse().ok()?).ok()?;
        Some(UnknownPair {
            owner: tag.owner(),
            activity: tag.activity(),
            scitag: tag.number().try_into().ok()?,
            bps: (cells[0].bytes * 8.0 / length_s).round(),
            error_bps: (cells[0].half_width(unit) * 8.0 / length_s).round(),
        })
    });
    let mut pairs: Vec<_> = unregistered.collect();
    pairs.sort_by(|a, b| b.bps.total_cmp(&a.bps).then(a.scitag.cmp(&b.scitag)));
    pairs.truncate(PAIRS_MAX);
    pairs
}
