//! Rates over time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use penstock_flows::estimate::{CounterEstimate, Stratum, Sum};
use penstock_http::{ApiError, ErrorBody};
use serde::Serialize;
use utoipa::ToSchema;

use super::unknown::{self, UnknownPair};
use super::{Given, Params};
use crate::answer::{Answer, From, Past, Span};
use crate::query::{By, Names, Query, Series as Sums};
use crate::row::Kind;
use crate::shared::{Shared, unix_now};
use crate::store::{Store, Tier};

/// Seconds that are kept in memory.
const LIVE_S: i64 = crate::live::SECONDS as i64;

/// Minutes are kept for so long.
const MINUTES_S: i64 = 7 * 86_400;

/// Longer times are told in hours, where nothing else is asked for.
const HOURS_FROM_S: i64 = 2 * 86_400;

/// Most points of a series.
const POINTS_MAX: i64 = 1_500;

/// Points aimed at where no step is given.
const POINTS: i64 = 600;

/// Most series told one by one.
const TOP_MAX: usize = 1_000;

/// Series told one by one where nothing else is said.
pub(super) const TOP: usize = 24;

/// Rates over time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetrySeries)]
pub(crate) struct SeriesAnswer {
    /// Begin of the first point, in seconds since 1970.
    start_s: i64,
    /// From point to point.
    step_s: i64,
    /// bit/s.
    unit: &'static str,
    /// live, minute or hour: how fine what answered is.
    resolution: &'static str,
    /// memory, sqlite or clickhouse: who answered.
    store: &'static str,
    /// Seconds of each point that were measured; where it is 0 nothing is known and rates are null.
    measured_s: Vec<f64>,
    /// End of the newest second that was measured, in seconds since 1970; null before the first.
    data_until_s: Option<i64>,
    /// When this was answered, in seconds since 1970; less `data_until_s` it is the age of the data.
    now_s: f64,
    /// All that the filters let through.
    total: Total,
    /// Greatest first; what is not among the first is summed as other.
    series: Vec<Line>,
    /// The filters, with the names of their keys.
    filters: Vec<Filter>,
}

/// A filter of a request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryFilter)]
pub(crate) struct Filter {
    /// What it filters by.
    by: &'static str,
    /// As it was given.
    key: String,
    /// For people.
    name: String,
}

/// A total.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryTotal)]
pub(crate) struct Total {
    /// Bits per second at each point; null where nothing was measured.
    bps: Vec<Option<f64>>,
    /// Half-width of the 95 % interval, which does not go below 0; 0 for what is counted. A point within an interval of a
    /// counter has the error of the samples that divide it.
    error_bps: Vec<Option<f64>>,
    /// How much of each point was counted, 0 to 1; the rest is estimated from samples.
    counted_share: Vec<Option<f64>>,
    /// counters, samples, or both: some points, or parts of them, are counted and some are sampled.
    from: &'static str,
}

/// A series.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLine)]
pub(crate) struct Line {
    /// As filters take it.
    key: String,
    /// For people.
    name: String,
    /// Bits per second at each point; null where nothing was measured.
    bps: Vec<Option<f64>>,
    /// Half-width of the 95 % interval, which does not go below 0; where nothing was sampled that of the Poisson bound.
    error_bps: Vec<Option<f64>>,
}

/// Rates over time by whatever is asked for.
#[utoipa::path(get, path = "/api/v1/telemetry/series", security((), ("token" = [])),
    params(
        ("by" = String, Query, description = "owner, activity, scitag, vlan, site, site_pair, host, interface, ip_version, as, prefix, exporter or total"),
        ("from" = Option<i64>, Query, description = "Seconds since 1970, or before now where it is not above 0; -600 if not given"),
        ("to" = Option<i64>, Query, description = "Likewise; now if not given"),
        ("step" = Option<i64>, Query, description = "Seconds from point to point; about 600 points if not given"),
        ("direction" = Option<String>, Query, description = "in or out: of sites, hosts, prefixes and AS what they receive or send (usually out), of interfaces what came in or went out (usually in), of all else where it was sampled"),
        ("combine" = Option<String>, Query, description = "auto, max or sum: how what several exporters saw becomes one figure"),
        ("top" = Option<usize>, Query, description = "Series told one by one; 24 if not given"),
        ("owner" = Option<String>, Query, description = "A filter; each of the words of by is one"),
    ),
    responses((status = 200, body = SeriesAnswer), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn series(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<SeriesAnswer>, ApiError> {
    let mut params = Params::new(given)?;
    let by = params.take("by").unwrap_or_else(|| "owner".to_owned());
    let by: By = by.parse().map_err(ApiError::bad_request)?;
    let span = Asked::new(&mut params)?;
    let top = params.number("top")?.unwrap_or(TOP).clamp(1, TOP_MAX);
    let query = params.question(by, &shared)?;
    let filtered = query.filters.clone();
    let Answered { answer, span, resolution, store } = answer(&shared, query, span).await?;
    let directory = shared.directory();
    let names = Names { registry: &shared.registry, directory: &directory };
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
        .map(|(key, cells)| Line {
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
            .map(|(by, key)| Filter { by: by.as_str(), name: names.shown(by, &key), key })
            .collect(),
    }))
}

fn word(from: From) -> &'static str {
    match from {
        From::Counters => "counters",
        From::Samples => "samples",
        From::Both => "both",
    }
}

/// The greatest, and the others as one.
pub(crate) fn first(answer: &Answer, top: usize) -> Vec<Sums> {
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

pub(super) fn rates(answer: &Answer, sums: &[Sum]) -> Vec<Option<f64>> {
    each(answer, sums.iter().map(|sum| sum.bytes))
}

pub(super) fn errors(answer: &Answer, sums: &[Sum]) -> Vec<Option<f64>> {
    each(answer, answer.half_widths(sums).into_iter())
}

/// Bits per second of bytes in each bucket; `None` where it was not measured.
fn each(answer: &Answer, bytes: impl Iterator<Item = f64>) -> Vec<Option<f64>> {
    let rate =
        |(bytes, covered): (f64, &f64)| (*covered > 0.0).then(|| (bytes * 8.0 / covered).round());
    bytes.zip(&answer.covered_s).map(rate).collect()
}

/// The time that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) from_s: i64,
    pub(super) to_s: i64,
    pub(super) step_s: Option<i64>,
}

impl Asked {
    pub(super) fn new(params: &mut Params) -> Result<Self, ApiError> {
        let now = unix_now() as i64;
        let absolute = |time: i64| if time <= 0 { now.saturating_add(time) } else { time };
        let from_s = absolute(params.number("from")?.unwrap_or(-600));
        let to_s = absolute(params.number("to")?.unwrap_or(0)).min(now);
        let step_s = params.number("step")?;
        if step_s.is_some_and(|step| step < 1) {
            return Err(ApiError::bad_request("step: at least 1 second"));
        }
        if from_s >= to_s {
            return Err(ApiError::bad_request("from is not before to: give an earlier from"));
        }
        if from_s < now - 10 * 366 * 86_400 {
            return Err(ApiError::bad_request("from is more than ten years ago"));
        }
        Ok(Self { from_s, to_s, step_s })
    }

    /// With steps of at least `least` seconds, and of whole such.
    fn span(self, least: i64) -> Result<Span, ApiError> {
        let length = self.to_s - self.from_s;
        let up = |value: i64, to: i64| (value + to - 1) / to;
        let wanted = self.step_s.unwrap_or(up(length, POINTS)).min(length.max(1));
        let step_s = up(wanted.max(least), least) * least;
        let start_s = self.from_s.div_euclid(step_s) * step_s;
        // The last may not be over: its rate is that of the seconds that were measured.
        let buckets = up(self.to_s - start_s, step_s).max(1);
        if buckets > POINTS_MAX {
            let text = format!(
                "{buckets} points are more than {POINTS_MAX}: give a longer step or a shorter time"
            );
            return Err(ApiError::bad_request(text));
        }
        Ok(Span { start_s, step_s, buckets: buckets as usize })
    }
}

/// An answer, and where it is from.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) span: Span,
    pub(super) resolution: &'static str,
    store: &'static str,
}

/// The finest store that has all of it answers; what is not stored yet is added from memory. Where ClickHouse does not
/// answer, this collector's own store does.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    query: Query,
    asked: Asked,
) -> Result<Answered, ApiError> {
    let now = unix_now() as i64;
    let fine = asked.step_s.is_none_or(|step| step < 60) && asked.from_s >= now - 2 * LIVE_S;
    let stored = shared.store.is_some() || shared.clickhouse.is_some();
    if fine && asked.from_s >= now - LIVE_S - 1 || !stored {
        let span = asked.span(1)?;
        // Up to some millions of sums are gone through.
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
            Err(error) => trouble = error,
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
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    let (seconds, counters) = {
        let live = shared.live();
        let recent = live.seconds().filter(|second| second.at_s >= until_s);
        (recent.cloned().collect::<Vec<_>>(), live.counted_from(span, until_s))
    };
    let answer = tokio::task::block_in_place(|| {
        let seconds = seconds.iter().map(|second| &**second);
        crate::answer::answer(shared, &query, span, &past, seconds, &counters)
    });
    Ok(Answered { answer, span, resolution, store })
}

/// What is stored of it. Of hours that are not summed up yet the minutes are taken.
pub(crate) async fn past(
    store: &Store,
    query: &Query,
    span: Span,
    tier: Tier,
) -> Result<Past, sqlx::Error> {
    let (from_s, to_s) = (span.start_s, span.end_s());
    let buckets = (span.start_s, span.step_s);
    let mut parts = vec![(tier, (from_s, to_s))];
    if tier == Tier::Hour {
        let until = store.summed_until().await?.clamp(from_s, to_s);
        parts = vec![(Tier::Hour, (from_s, until)), (Tier::Minute, (until, to_s))];
    }
    let mut past = Past::default();
    for (tier, range) in parts {
        past.covered.extend(store.covered(tier, range, buckets).await?);
        past.rows.extend(store.read(tier, query.kind(), range, buckets).await?);
        if query.kind() == Kind::Group {
            past.counters.extend(store.read(tier, Kind::Counter, range, buckets).await?);
        }
    }
    Ok(past)
}

/// From the last ten minutes.
pub(crate) fn live(shared: &Shared, query: &Query, span: Span) -> Answer {
    let (seconds, counters) = {
        let live = shared.live();
        let inside = |at_s: i64| span.bucket(at_s).is_some();
        let seconds: Vec<_> = live.seconds().filter(|s| inside(s.at_s)).cloned().collect();
        (seconds, live.counted(span))
    };
    let seconds = seconds.iter().map(|second| &**second);
    crate::answer::answer(shared, query, span, &Past::default(), seconds, &counters)
}

/// How much of the traffic is labelled.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLabels)]
pub(crate) struct Labels {
    /// Begin of the time it is about, in seconds since 1970.
    from_s: i64,
    /// Its end.
    to_s: i64,
    /// Whose label is believed.
    labelled: Part,
    /// Without a label.
    unlabelled: Part,
    /// With one that is not believed.
    untrusted: Part,
    /// Keys of owners in it.
    owners: usize,
    /// Keys of activities in it.
    activities: usize,
    /// Pairs that options of packets name and the registry does not have, greatest first; null where the time is
    /// older than what is kept in memory.
    unknown: Option<Vec<UnknownPair>>,
}

/// A part of the traffic.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = TelemetryPart)]
pub(crate) struct Part {
    /// Of all bytes, 0 to 1; null where there were none.
    share: Option<f64>,
    /// Half-width of the 95 % interval of the share.
    error_share: Option<f64>,
    /// Bits per second.
    bps: Option<f64>,
    /// Half-width of the 95 % interval.
    error_bps: Option<f64>,
}

/// How much of the traffic is labelled, unlabelled and untrusted.
#[utoipa::path(get, path = "/api/v1/telemetry/labels", security((), ("token" = [])),
    params(
        ("from" = Option<i64>, Query, description = "As of series; -60 if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
        ("site" = Option<String>, Query, description = "Filters as of series"),
    ),
    responses((status = 200, body = Labels), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn labels(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<Labels>, ApiError> {
    let mut params = Params::new(given)?;
    if !params.0.contains_key("from") {
        params.0.insert("from".to_owned(), "-60".to_owned());
    }
    let mut asked = Asked::new(&mut params)?;
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
            return Part::default();
        }
        let half_width = part.half_width(answer.unit);
        // Of a counted total parts are shares already; else the sum of samples is as uncertain as its parts.
        let (share, error) = match is_counted {
            true => (part.bytes / all.bytes, half_width / all.bytes),
            false => {
                let counted = CounterEstimate { bytes: 1.0, variance: 0.0, covered: 1.0 };
                let share = Stratum { sampled: all, counted }.class(part);
                (share.bytes, share.half_width(answer.unit / all.bytes))
            }
        };
        let known = all.bytes > 0.0;
        Part {
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
    Ok(Json(Labels {
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
