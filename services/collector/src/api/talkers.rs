//! The largest flows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use penstock_flows::aggregate::ScitagLabel;
use penstock_flows::estimate::Sum;
use penstock_flows::packet::FlowKey;
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use utoipa::ToSchema;

use super::flow_filter::FlowFilter;
use super::series::RangeRequest;
use super::{RawQuery, TelemetryParams};
use crate::shared::Shared;

/// Default count of flows in an answer.
const TALKERS_DEFAULT: usize = 20;

/// Seconds of the default range.
const TALKERS_S: usize = 10;

/// A flow with its rate.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryTalker)]
pub(crate) struct TalkerFacts {
    /// Address of the sender.
    #[schema(value_type = String)]
    source: IpAddr,
    /// Address of the receiver.
    #[schema(value_type = String)]
    destination: IpAddr,
    /// Name of the source; null if unknown.
    source_name: Option<String>,
    /// Name of the destination; null if unknown.
    destination_name: Option<String>,
    /// Port of the source; 0 if none.
    source_port: u16,
    /// Port of the destination; 0 if none.
    destination_port: u16,
    /// IP protocol number: 6 TCP, 17 UDP.
    protocol: u8,
    /// labelled, untrusted or unlabelled.
    label: &'static str,
    /// Scitag number, if labelled; the claimed one, if untrusted.
    scitag: Option<u16>,
    /// Owner and activity by name.
    activity: Option<String>,
    /// Bits per second, estimated from samples.
    bps: f64,
    /// Half-width of the 95 % interval of the sampling, whose lower end is at least 0.
    error_bps: f64,
    /// Lower bound of the rate: minus the error of the sampling.
    least_bps: f64,
    /// Upper bound of the rate: plus the error of the sampling and of the bounded list.
    most_bps: f64,
}

/// The largest flows of a time range.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryTalkers)]
pub(crate) struct TalkerList {
    /// Start of the range, in seconds since 1970.
    from_s: i64,
    /// Measured seconds of the range.
    length_s: f64,
    /// Upper bound of the rate missing from a flow because the list is bounded; unlisted flows have
    /// at most this rate.
    error_bps: f64,
    /// Flows in descending order.
    talkers: Vec<TalkerFacts>,
}

/// Lists the largest flows of the last ten seconds, or of a range within the last ten minutes.
#[utoipa::path(get, path = "/api/v1/telemetry/talkers", operation_id = "top_talkers", security((), ("token" = [])),
    params(
        ("top" = Option<usize>, Query, description = "How many; 20 if not given, 100 at most"),
        ("n" = Option<usize>, Query, deprecated, description = "Former name of top"),
        ("from" = Option<i64>, Query, description = "As of series; the last ten seconds if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
        ("direction" = Option<String>, Query, description = "in or out: what a filter by host, prefix or site receives or sends; both if not given"),
        ("owner" = Option<String>, Query, description = "A filter; owner, activity, scitag, site, site_pair, host, prefix and ip_version are some"),
    ),
    responses((status = 200, body = TalkerList, description = "The greatest flows with their errors"), Refused))]
pub(super) async fn talkers(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<TalkerList>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    let (top, former) = (params.number("top")?, params.number("n")?);
    let most = top.or(former).unwrap_or(TALKERS_DEFAULT).clamp(1, crate::second::TALKERS_MAX);
    let asked = params.has("from").then(|| RangeRequest::new(&mut params)).transpose()?;
    let filter = FlowFilter::new(params, &shared)?;
    let seconds: Vec<_> = match asked {
        None => shared.live().seconds().rev().take(TALKERS_S).cloned().collect(),
        Some(RangeRequest { from_s, to_s, .. }) => {
            let live = shared.live();
            let asked = live.seconds().rev().filter(|s| s.at_s >= from_s && s.at_s < to_s);
            asked.cloned().collect()
        }
    };
    let length_s: f64 = seconds.iter().map(|second| second.length_s).sum();
    let mut flows = HashMap::<FlowKey, (Sum, ScitagLabel)>::new();
    // The newest comes first: a later firefly may have labelled the flow.
    for second in &seconds {
        for talker in &second.talkers {
            let (key, label) = talker.key;
            let flow = flows.entry(key).or_insert((Sum::default(), label));
            flow.0.add(Sum::sampled(talker.least as f64, talker.variance));
        }
    }
    flows.retain(|key, (_, label)| filter.passes(key, *label));
    let directory = shared.directory();
    let name = |address: IpAddr| directory.host_name(address).map(str::to_owned);
    let rate = |bytes: f64| if length_s > 0.0 { (bytes * 8.0 / length_s).round() } else { 0.0 };
    let lost: u64 = seconds.iter().map(|second| second.talkers_error).sum();
    let unit = shared.live().unit();
    let facts = |(key, (sum, label)): (FlowKey, (Sum, ScitagLabel))| {
        let half_width = sum.half_width(unit);
        let (word, tag) = match label {
            ScitagLabel::Unlabelled => ("unlabelled", None),
            ScitagLabel::Untrusted(tag) => ("untrusted", Some(tag)),
            ScitagLabel::Trusted(tag) => ("labelled", Some(tag)),
        };
        TalkerFacts {
            source: key.source.ip(),
            destination: key.destination.ip(),
            source_name: name(key.source.ip()),
            destination_name: name(key.destination.ip()),
            source_port: key.source_port,
            destination_port: key.destination_port,
            protocol: key.protocol,
            label: word,
            scitag: tag.and_then(|tag| tag.number().try_into().ok()),
            activity: tag.map(|tag| shared.registry.name(tag)),
            bps: rate(sum.bytes),
            error_bps: rate(half_width),
            least_bps: rate((sum.bytes - half_width).max(0.0)),
            most_bps: rate(sum.bytes + half_width + lost as f64),
        }
    };
    let mut talkers: Vec<TalkerFacts> = flows.into_iter().map(facts).collect();
    talkers.sort_by(|a, b| b.bps.total_cmp(&a.bps));
    talkers.truncate(most);
    let from_s = seconds.last().map_or(0, |second| second.at_s);
    let error_bps = rate(lost as f64);
    Ok(Json(TalkerList { from_s, length_s, error_bps, talkers }))
}
