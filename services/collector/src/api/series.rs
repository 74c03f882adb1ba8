//! Time series of rates.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use penstock_flows::estimate::{CounterEstimate, Stratum, Sum};
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use utoipa::ToSchema;

use super::unknown::{self, UnknownPair};
use super::{RawQuery, TelemetryParams};
use crate::query::{By, KeyNames, Query, QueryWordError, SeriesSums as Sums};
use crate::query_executor::{QueryResult, StoredRows, TimeBuckets, TotalSource};
use crate::row::RowKind;
use crate::shared::{Shared, unix_now};
use crate::store::{Store, Tier};

/// Seconds in memory.
const LIVE_S: i64 = crate::live::LIVE_SECONDS as i64;

/// Retention of minutes, in seconds.
const MINUTES_S: i64 = 7 * 86_400;

/// Range from which on the default resolution is hours.
const HOURS_FROM_S: i64 = 2 * 86_400;

/// Most points in a series.
const POINTS_MAX: i64 = 1_500;

/// Count of points aimed at without a given step.
const POINTS_TARGET: i64 = 600;

/// Most series listed separately.
const TOP_MAX: usize = 1_000;

/// Default count of series listed separately.
pub(super) const TOP_SERIES: usize = 24;

/// Rates over a time range.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetrySeries)]
pub(crate) struct SeriesAnswer {
    /// Start of the first point, in seconds since 1970.
    start_s: i64,
    /// Seconds between two points.
    step_s: i64,
    /// Unit of the rates: bit/s.
    unit: &'static str,
    /// Resolution of the source: live, minute or hour.
    resolution: &'static str,
    /// Source of the answer: memory, sqlite or clickhouse.
    store: &'static str,
    /// Measured seconds of each point; if it is 0, rates are null.
    measured_s: Vec<f64>,
    /// End of the newest second that was measured, in seconds since 1970; null before the first.
    data_until_s: Option<i64>,
    /// Time of the answer, in seconds since 1970; minus `data_until_s` it is the age of the data.
    now_s: f64,
    /// Total of all traffic that passes the filters.
    total: Total,
    /// Series in descending order; the smaller ones are summed as other.
    series: Vec<SeriesLine>,
    /// Filters with the names of their keys.
    filters: Vec<FilterFacts>,
}

/// A filter of the request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryFilter)]
pub(crate) struct FilterFacts {
    /// Property of the filter.
    by: &'static str,
    /// Key as given in the request.
    key: String,
    /// Display name of the key.
    name: String,
}

/// Total of all series.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryTotal)]
pub(crate) struct Total {
    /// Bits per second at each point; null if not measured.
    bps: Vec<Option<f64>>,
    /// Half-width of the 95 % interval, whose lower end is at least 0; 0 for counted traffic. A
    /// point within a counter interval has the error of the samples that divide it.
    error_bps: Vec<Option<f64>>,
    /// Counted share of each point, 0 to 1; the rest is estimated from samples.
    counted_share: Vec<Option<f64>>,
    /// counters, samples, or both: some points, or parts of them, are counted and some are sampled.
    from: &'static str,
}

/// Rates of one key over time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLine)]
pub(crate) struct SeriesLine {
    /// Key, as in filters.
    key: String,
    /// Display name of the key.
    name: String,
    /// Bits per second at each point; null if not measured.
    bps: Vec<Option<f64>>,
    /// Half-width of the 95 % interval, whose lower end is at least 0; without samples, of the
    /// Poisson bound.
    error_bps: Vec<Option<f64>>,
}

/// Returns rates over time, grouped by a property.
#[utoipa::path(get, path = "/api/v1/telemetry/series", operation_id = "telemetry_series", security((), ("token" = [])),
    params(
        ("by" = String, Query, description = "owner, activity, scitag, vlan, site, site_pair, host, interface, ip_version, as, prefix, exporter or total"),
        ("from" = Option<i64>, Query, description = "Seconds since 1970, or before now where it is not above 0; -600 if not given"),
        ("to" = Option<i64>, Query, description = "Likewise; now if not given"),
        ("step" = Option<i64>, Query, description = "Seconds from point to point; about 600 points if not given", minimum = 1),
        ("direction" = Option<String>, Query, description = "in or out: of sites, hosts, prefixes and AS what they receive or send (usually out), of interfaces what came in or went out (usually in), of all else where it was sampled"),
        ("combine" = Option<String>, Query, description = "auto, max or sum: how what several exporters saw becomes one figure"),
        ("top" = Option<usize>, Query, description = "Count of series listed separately; 24 if not given"),
        ("owner" = Option<String>, Query, description = "A filter; each of the words of by is one"),
    ),
    responses((status = 200, body = SeriesAnswer, description = "Rates over time"), Refused))]
pub(super) async fn series(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<SeriesAnswer>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    let by = params.take("by").unwrap_or_else(|| "owner".to_owned());
    let by: By = by
        .parse()
        .map_err(|error: QueryWordError| ProblemDetails::bad_request(error.to_string()))?;
    let span = RangeRequest::new(&mut params)?;
    let top = params.number("top")?.unwrap_or(TOP_SERIES).clamp(1, TOP_MAX);
    let query = params.question(by, &shared)?;
    let filtered = query.filters.clone();
    let Answered { answer, span, resolution, store } = answer(&shared, query, span).await?;
    let directory = shared.directory();
    let names = KeyNames { registry: &shared.registry, directory: &directory };
    let data_until_s = shared.live().measured_until_s();
    let counted = answer.total.iter().map(|sum| match sum.bytes > 0.0 {
        true => (sum.counted / sum.bytes).clamp(0.0, 1.0),
        false => sum.certain,
    });
    let counted_share = counted
        .zip(&answer.covered_s)
        .map(|(share, covered)| (*covered > 0.0).then(|| (share * 1e4).round() / 1e4))
        .collect();
    let series = first(&answer, top)
        .into_iter()
        .map(|(key, cells)| SeriesLine {
            name: names.shown(by, &key),
            key,
            bps: rates(&answer, &cells),
            error_bps: errors(&answer, &cells),
        })
        .collect();
    Ok(Json(SeriesAnswer {
        start_s: span.start_s,
        step_s: span.step_s,
        unit: "bit/s",
        resolution,
        store,
        measured_s: answer.covered_s.iter().map(|s| (s * 1e3).round() / 1e3).collect(),
        data_until_s,
        now_s: unix_now(),
        total: Total {
            bps: rates(&answer, &answer.total),
            error_bps: errors(&answer, &answer.total),
            counted_share,
            from: word(answer.from),
        },
        series,
        filters: filtered
            .into_iter()
            .map(|(by, key)| FilterFacts { by: by.as_str(), name: names.shown(by, &key), key })
            .collect(),
    }))
}

fn word(from: TotalSource) -> &'static str {
    match from {
        TotalSource::Counters => "counters",
        TotalSource::Samples => "samples",
        TotalSource::Both => "both",
    }
}

/// Keeps the largest series and sums the others as one.
pub(crate) fn first(answer: &QueryResult, top: usize) -> Vec<Sums> {
    let mut series: Vec<(f64, Sums)> = answer
        .series
        .iter()
        .map(|(key, cells)| {
            (cells.iter().map(|cell| cell.bytes).sum(), (key.clone(), cells.clone()))
        })
        .collect();
    series.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.0.cmp(&b.1.0)));
    let mut kept: Vec<Sums> = series.into_iter().map(|(_, one)| one).collect();
    if kept.len() <= top && !kept[..].iter().any(|(key, _)| key == "other") {
        return kept;
    }
    let mut other: Option<Vec<Sum>> = None;
    let mut number = 0;
    kept.retain(|(key, cells)| {
        let keeps = key != "other" && number < top;
        number += usize::from(keeps);
        if !keeps {
            let sums = other.get_or_insert_with(|| vec![Sum::default(); cells.len()]);
            sums.iter_mut().zip(cells).for_each(|(sum, cell)| sum.add(*cell));
        }
        keeps
    });
    kept.extend(other.map(|cells| ("other".to_owned(), cells)));
    kept
}

pub(super) fn rates(answer: &QueryResult, sums: &[Sum]) -> Vec<Option<f64>> {
    each(answer, sums.iter().map(|sum| sum.bytes))
}

pub(super) fn errors(answer: &QueryResult, sums: &[Sum]) -> Vec<Option<f64>> {
    each(answer, answer.half_widths(sums).into_iter())
}

/// Bits per second of the bytes in each bucket; `None` if not measured.
fn each(answer: &QueryResult, bytes: impl Iterator<Item = f64>) -> Vec<Option<f64>> {
    let rate =
        |(bytes, covered): (f64, &f64)| (*covered > 0.0).then(|| (bytes * 8.0 / covered).round());
    bytes.zip(&answer.covered_s).map(rate).collect()
}

/// Time range and step of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangeRequest {
    pub(super) from_s: i64,
    pub(super) to_s: i64,
    pub(super) step_s: Option<i64>,
}

impl RangeRequest {
    pub(super) fn new(params: &mut TelemetryParams) -> Result<Self, ProblemDetails> {
        let now = unix_now() as i64;
        let absolute = |time: i64| if time <= 0 { now.saturating_add(time) } else { time };
        let from_s = absolute(params.number("from")?.unwrap_or(-600));
        let to_s = absolute(params.number("to")?.unwrap_or(0)).min(now);
        let step_s = params.number("step")?;
        if step_s.is_some_and(|step| step < 1) {
            return Err(ProblemDetails::bad_request("step: at least 1 second"));
        }
        if from_s >= to_s {
            return Err(ProblemDetails::bad_request("from is not before to: give an earlier from"));
        }
        if from_s < now - 10 * 366 * 86_400 {
            return Err(ProblemDetails::bad_request("from is more than ten years ago"));
        }
        Ok(Self { from_s, to_s, step_s })
    }

    /// Divides the range into steps of a multiple of `least` seconds.
    fn span(self, least: i64) -> Result<TimeBuckets, ProblemDetails> {
        let length = self.to_s - self.from_s;
        let up = |value: i64, to: i64| (value + to - 1) / to;
        let wanted = self.step_s.unwrap_or(up(length, POINTS_TARGET)).min(length.max(1));
        let step_s = up(wanted.max(least), least) * least;
        let start_s = self.from_s.div_euclid(step_s) * step_s;
        // The last bucket may be incomplete: its rate is that of the measured seconds.
        let buckets = up(self.to_s - start_s, step_s).max(1);
        if buckets > POINTS_MAX {
            let text = format!(
                "{buckets} points are more than {POINTS_MAX}: give a longer step or a shorter time"
            );
            return Err(ProblemDetails::bad_request(text));
        }
        Ok(TimeBuckets { start_s, step_s, buckets: buckets as usize })
    }
}

/// Result of a query with its source.
pub(super) struct Answered {
    pub(super) answer: QueryResult,
    pub(super) span: TimeBuckets,
    pub(super) resolution: &'static str,
    store: &'static str,
}

/// Executes a query on the finest store that covers the range, and adds from memory what is not
/// stored yet. If ClickHouse does not answer, this collector's own store does.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    query: Query,
    asked: RangeRequest,
) -> Result<Answered, ProblemDetails> {
    let now = unix_now() as i64;
    let fine = asked.step_s.is_none_or(|step| step < 60) && asked.from_s >= now - 2 * LIVE_S;
    let stored = shared.store.is_some() || shared.clickhouse.is_some();
    if fine && asked.from_s >= now - LIVE_S - 1 || !stored {
        let span = asked.span(1)?;
        // The query may add up some millions of sums.
        let answer = tokio::task::block_in_place(|| live(shared, &query, span));
        return Ok(Answered { answer, span, resolution: "live", store: "memory" });
    }
    let long = asked.from_s < now - MINUTES_S || asked.to_s - asked.from_s > HOURS_FROM_S;
    let coarse = asked.step_s.map_or(long, |step| step >= 3600 || asked.from_s < now - MINUTES_S);
    let (tier, resolution) = if coarse { (Tier::Hour, "hour") } else { (Tier::Minute, "minute") };
    let span = asked.span(tier.step_s())?;
    let mut trouble = String::new();
    let mut found = None;
    if let Some(database) = &shared.clickhouse {
        let until_s = database.stored_until_s();
        match database.past(&query, span, tier, until_s).await {
            Ok(past) => found = Some((past, until_s, "clickhouse")),
            Err(error) => trouble = error.to_string(),
        }
    }
    if let Some(store) = shared.store.as_ref().filter(|_| found.is_none()) {
        match past(store, &query, span, tier).await {
            Ok(past) => {
                let newest = store.health.newest_s.load(Ordering::Relaxed);
                found = Some((past, newest.saturating_add(60), "sqlite"));
            }
            Err(error) => trouble = error.to_string(),
        }
    }
    let Some((past, until_s, store)) = found else {
        let text =
            format!("storage cannot be read: {trouble}: the last 600 seconds can be asked for");
        return Err(ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    let (seconds, counters) = {
        let live = shared.live();
        let recent = live.seconds().filter(|second| second.at_s >= until_s);
        (recent.cloned().collect::<Vec<_>>(), live.counted_from(span, until_s))
    };
    let answer = tokio::task::block_in_place(|| {
        let seconds = seconds.iter().map(|second| &**second);
        crate::query_executor::execute(shared, &query, span, &past, seconds, &counters)
    });
    Ok(Answered { answer, span, resolution, store })
}

/// Loads stored rows. For hours that are not summed yet, loads their minutes.
pub(crate) async fn past(
    store: &Store,
    query: &Query,
    span: TimeBuckets,
    tier: Tier,
) -> Result<StoredRows, sqlx::Error> {
    let (from_s, to_s) = (span.start_s, span.end_s());
    let buckets = (span.start_s, span.step_s);
    let mut parts = vec![(tier, (from_s, to_s))];
    if tier == Tier::Hour {
        let until = store.summed_until().await?.clamp(from_s, to_s);
        parts = vec![(Tier::Hour, (from_s, until)), (Tier::Minute, (until, to_s))];
    }
    let mut past = StoredRows::default();
    for (tier, range) in parts {
        past.covered.extend(store.covered(tier, range, buckets).await?);
        past.rows.extend(store.read(tier, query.kind(), range, buckets).await?);
        if query.kind() == RowKind::Group {
            past.counters.extend(store.read(tier, RowKind::Counter, range, buckets).await?);
        }
    }
    Ok(past)
}

/// Executes a query on the last ten minutes in memory.
pub(crate) fn live(shared: &Shared, query: &Query, span: TimeBuckets) -> QueryResult {
    let (seconds, counters) = {
        let live = shared.live();
        let inside = |at_s: i64| span.bucket(at_s).is_some();
        let seconds: Vec<_> = live.seconds().filter(|s| inside(s.at_s)).cloned().collect();
        (seconds, live.counted(span))
    };
    let seconds = seconds.iter().map(|second| &**second);
    crate::query_executor::execute(shared, query, span, &StoredRows::default(), seconds, &counters)
}

/// Shares of labelled traffic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLabels)]
pub(crate) struct LabelShares {
    /// Start of the range, in seconds since 1970.
    from_s: i64,
    /// End of the range, in seconds since 1970.
    to_s: i64,
    /// Traffic with a trusted label.
    labelled: TrafficShare,
    /// Traffic without a label.
    unlabelled: TrafficShare,
    /// Traffic with an untrusted label.
    untrusted: TrafficShare,
    /// Count of owners with traffic.
    owners: usize,
    /// Count of activities with traffic.
    activities: usize,
    /// Unregistered pairs in packet options, in descending order; null if the range is older than
    /// the seconds in memory.
    unknown: Option<Vec<UnknownPair>>,
}

/// A share of the traffic.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = TelemetryPart)]
pub(crate) struct TrafficShare {
    /// Share of all bytes, 0 to 1; null without traffic.
    share: Option<f64>,
    /// Half-width of the 95 % interval of the share.
    error_share: Option<f64>,
    /// Mean bits per second.
    bps: Option<f64>,
    /// Half-width of the 95 % interval.
    error_bps: Option<f64>,
}

/// Returns the shares of labelled, unlabelled and untrusted traffic.
#[utoipa::path(get, path = "/api/v1/telemetry/labels", operation_id = "telemetry_labels", security((), ("token" = [])),
    params(
        ("from" = Option<i64>, Query, description = "As of series; -60 if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
        ("site" = Option<String>, Query, description = "Filters as of series"),
    ),
    responses((status = 200, body = LabelShares, description = "Shares of traffic by kind of label"), Refused))]
pub(super) async fn labels(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<LabelShares>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    if !params.0.contains_key("from") {
        params.0.insert("from".to_owned(), "-60".to_owned());
    }
    let mut asked = RangeRequest::new(&mut params)?;
    asked.step_s = Some(asked.to_s - asked.from_s);
    let query = params.question(By::Activity, &shared)?;
    let Answered { answer, span, resolution, .. } = answer(&shared, query.clone(), asked).await?;
    let unknown = (resolution == "live")
        .then(|| tokio::task::block_in_place(|| unknown::pairs(&shared, &query, span)));
    let together = |sums: &[Sum]| {
        let mut together = Sum::default();
        sums.iter().for_each(|sum| together.add(*sum));
        together
    };
    let sums: Vec<(String, Sum)> =
        answer.series.iter().map(|(key, sums)| (key.clone(), together(sums))).collect();
    let all = together(&sums.iter().map(|(_, sum)| *sum).collect::<Vec<_>>());
    let seconds: f64 = answer.covered_s.iter().sum();
    let special = |key: &str| matches!(key, "unlabelled" | "untrusted" | "other");
    let is_counted = together(&answer.total).certain >= 1.0;
    let part = |takes: &dyn Fn(&str) -> bool| {
        let taken: Vec<Sum> =
            sums.iter().filter(|(key, _)| takes(key)).map(|(_, sum)| *sum).collect();
        let part = together(&taken);
        if seconds <= 0.0 {
            return TrafficShare::default();
        }
        let half_width = part.half_width(answer.unit);
        // Parts of a counted total are shares already; without counters the total is as uncertain
        // as its parts.
        let (share, error) = match is_counted {
            true => (part.bytes / all.bytes, half_width / all.bytes),
            false => {
                let counted = CounterEstimate { bytes: 1.0, variance: 0.0, covered: 1.0 };
                let share = Stratum { sampled: all, counted }.class(part);
                (share.bytes, share.half_width(answer.unit / all.bytes))
            }
        };
        let known = all.bytes > 0.0;
        TrafficShare {
            share: known.then_some(share),
            error_share: known.then_some(error.min(1.0)),
            bps: Some((part.bytes * 8.0 / seconds).round()),
            error_bps: Some((half_width * 8.0 / seconds).round()),
        }
    };
    let activities: Vec<_> = sums.iter().filter(|(key, _)| !special(key)).collect();
    let owner = |key: &str| key.split('/').next().unwrap_or_default().to_owned();
    let owners: std::collections::HashSet<_> =
        activities.iter().map(|(key, _)| owner(key)).collect();
    Ok(Json(LabelShares {
        from_s: span.start_s,
        to_s: span.end_s(),
        labelled: part(&|key| !special(key)),
        unlabelled: part(&|key| key == "unlabelled"),
        untrusted: part(&|key| key == "untrusted"),
        owners: owners.len(),
        activities: activities.len(),
        unknown,
    }))
}
