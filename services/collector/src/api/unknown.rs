//! Pairs of owner and activity that packets name and the registry does not have.

use penstock_flows::aggregate::{FlowGroup, ScitagLabel};
use penstock_scitags::Scitag;
use serde::Serialize;
use utoipa::ToSchema;

use crate::answer::Span;
use crate::live::Namer;
use crate::query::{By, Fold, Names, Query};
use crate::row::{Label as Named, Row};
use crate::shared::Shared;

/// Most pairs told.
const PAIRS_MAX: usize = 100;

/// A pair that the registry does not have. Only options of packets name such: in a flow label it would be chance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryUnknownPair)]
pub(super) struct UnknownPair {
    /// Number of the owner.
    owner: u16,
    /// Number of the activity.
    activity: u8,
    /// Both as one number.
    scitag: u16,
    /// Bits per second.
    bps: f64,
    /// Half-width of the 95 % interval.
    error_bps: f64,
}

/// Pairs of the seconds in memory that a span has, greatest first.
pub(super) fn pairs(shared: &Shared, like: &Query, span: Span) -> Vec<UnknownPair> {
    let inside = |at_s: i64| span.bucket(at_s).is_some();
    let seconds: Vec<_> = {
        let live = shared.live();
        live.seconds().filter(|second| inside(second.at_s)).cloned().collect()
    };
    let registered: std::collections::HashSet<Scitag> = shared.registry.tags().collect();
    let directory = shared.directory();
    let namer = Namer::new(&directory, &shared.sites);
    let names = Names { registry: &shared.registry, directory: &directory };
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
            // Summed as if it were believed, so that it is counted once like everything else.
            let mut row = namer.group(packed);
            if let Row::Group { label, .. } = &mut row {
                *label = Named::Trusted(number);
            }
            if let Some(place) = fold.place(&row) {
                fold.add(0, place, crate::row::Cell::from(*cell).sum());
            }
        }
    }
    let told = fold.series().into_iter().filter_map(|(key, cells)| {
        let tag = Scitag::from_number(key.parse().ok()?).ok()?;
        Some(UnknownPair {
            owner: tag.owner(),
            activity: tag.activity(),
            scitag: tag.number().try_into().ok()?,
            bps: (cells[0].bytes * 8.0 / length_s).round(),
            error_bps: (cells[0].half_width(unit) * 8.0 / length_s).round(),
        })
    });
    let mut pairs: Vec<_> = told.collect();
    pairs.sort_by(|a, b| b.bps.total_cmp(&a.bps).then(a.scitag.cmp(&b.scitag)));
    pairs.truncate(PAIRS_MAX);
    pairs
}
