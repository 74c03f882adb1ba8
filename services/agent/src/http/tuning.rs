//! Decisions about the streams of a transfer.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_forecast::SequenceForecast;
use penstock_http::{ProblemDetails, Refused};
use penstock_mover::{RatePoint, TuningRecord, TuningReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::AgentApi;
use super::api::{TransferFacts, find, number};
use super::client::TransferClient;
use crate::running_forecast::RateForecaster;
use crate::submitted::TransferStatus;

/// Decisions of a tuner about the streams, readers and writers of a transfer, and its rate over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Tuning)]
pub struct TuningFacts {
    /// `auto` (decisions are applied), `history` (it keeps the streams of earlier transfers), `observe` (decisions are listed
    /// alone) or `off` (none are made).
    pub mode: String,
    /// Reason why no more decisions follow, such as streams that were changed by hand; null while they may.
    pub ended: Option<String>,
    /// Reason of the latest decision, which may keep the streams; null before the first.
    #[serde(default)]
    pub latest: Option<String>,
    /// Changes and events that began a search, in order; the latest 400.
    pub decisions: Vec<TuningDecisionFacts>,
    /// Number of earlier decisions that `decisions` leaves out.
    pub decisions_left_out: u64,
    /// Rate and streams over the whole transfer at equal distances, in less than 512 points; empty where nothing is measured.
    #[serde(default)]
    pub series: Vec<RatePointFacts>,
    /// Forecasts of the rate of a running transfer from now on; empty without a model of sequences.
    #[serde(default)]
    pub forecasts: Vec<RateForecastFacts>,
    /// Reason why the model gives no forecast now; null where it gives one, and without a model.
    #[serde(default)]
    pub forecast_refusal: Option<String>,
    /// True if a simulator made training data of the model: its forecasts then say nothing about real transfers.
    #[serde(default)]
    pub forecast_synthetic: bool,
}

/// Decision of a tuner, with what it measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TuningDecision)]
pub struct TuningDecisionFacts {
    /// Time since the transfer began.
    pub seconds: f64,
    /// Payload rate in the interval before the decision.
    pub bits_per_second: u64,
    /// Streams connected before the decision.
    pub streams: u16,
    /// Streams that the decision asks for; the same where it only begins a search.
    pub target_streams: u16,
    /// Readers for each device of the source before the decision.
    #[serde(default)]
    pub readers: u16,
    /// Readers that the decision asks for; the same where it changes none.
    #[serde(default)]
    pub target_readers: u16,
    /// Writers for each device of the destination before the decision.
    #[serde(default)]
    pub writers: u16,
    /// Writers that the decision asks for; the same where it changes none.
    #[serde(default)]
    pub target_writers: u16,
    /// Most that each stream sent before the decision; null where streams were not paced.
    #[serde(default)]
    pub stream_pacing_bps: Option<u64>,
    /// Most that each stream sends from then on; null where streams are not paced.
    #[serde(default)]
    pub target_stream_pacing_bps: Option<u64>,
    /// Limit that bound the transfer in that interval, such as `the path` or `the sender's processors`.
    pub bound_by: String,
    /// Reason in one sentence, with the figures behind it.
    pub reason: String,
}

/// Mean rate of an interval, and the streams at its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = RatePoint)]
pub struct RatePointFacts {
    /// End of the interval, as time since the transfer began.
    pub seconds: f64,
    /// Payload rate, the mean over the interval.
    pub bits_per_second: u64,
    /// Streams that were connected at its end.
    pub streams: u16,
}

/// Forecast of the mean payload rate from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = RateForecast)]
pub struct RateForecastFacts {
    /// Time from now on over which it is the mean.
    pub seconds: u32,
    /// Rate that one of ten such transfers stays below.
    pub p10_bps: u64,
    /// Rate that half of them stay below.
    pub p50_bps: u64,
    /// Rate that nine of ten stay below.
    pub p90_bps: u64,
}

impl From<SequenceForecast> for RateForecastFacts {
    fn from(forecast: SequenceForecast) -> Self {
        let SequenceForecast { horizon_s, bits_per_second: rate } = forecast;
        let [p10_bps, p50_bps, p90_bps] = [rate.p10, rate.p50, rate.p90].map(|rate| rate as u64);
        Self { seconds: horizon_s, p10_bps, p50_bps, p90_bps }
    }
}

impl TuningFacts {
    /// Facts of a running transfer, with forecasts where there is a model.
    #[must_use]
    pub fn of_running(report: TuningReport, forecaster: &RateForecaster) -> Self {
        let forecasts = match report.samples.is_empty() {
            true => None,
            false => forecaster.forecast(&*report.samples),
        };
        let mut facts = Self::from(report);
        match forecasts {
            Some(Ok(found)) => {
                facts.forecasts = found.horizons.into_iter().map(Into::into).collect();
                facts.forecast_synthetic = found.is_synthetic;
            }
            Some(Err(why)) => facts.forecast_refusal = Some(why),
            None => {}
        }
        facts
    }
}

impl From<TuningReport> for TuningFacts {
    fn from(report: TuningReport) -> Self {
        let decision = |record: &TuningRecord| {
            let (now, target) = (record.workers, record.decision.target);
            TuningDecisionFacts {
                seconds: record.at.as_secs_f64(),
                bits_per_second: record.rate_bps,
                streams: now.streams,
                target_streams: target.streams,
                readers: now.readers,
                target_readers: target.readers,
                writers: now.writers,
                target_writers: target.writers,
                stream_pacing_bps: record.stream_pacing_bps,
                target_stream_pacing_bps: record.decision.stream_pacing_bps,
                bound_by: record.limit.to_string(),
                reason: record.reason(),
            }
        };
        let point = |point: &RatePoint| RatePointFacts {
            seconds: point.at.as_secs_f64(),
            bits_per_second: point.rate_bps,
            streams: point.streams,
        };
        Self {
            mode: report.mode.name().to_owned(),
            ended: report.ended.map(str::to_owned),
            latest: report.latest,
            decisions: report.records.iter().map(decision).collect(),
            decisions_left_out: report.left_out,
            series: report.series.iter().map(point).collect(),
            forecasts: Vec::new(),
            forecast_refusal: None,
            forecast_synthetic: false,
        }
    }
}

/// Returns the decisions about the streams of a transfer, or the reason why there are none.
#[utoipa::path(get, path = "/api/v1/transfers/{id}/tuning", operation_id = "transfer_tuning", security((), ("token" = [])),
    params(("id" = u64, Path, description = "Number of the transfer")), responses(
    (status = 200, body = TuningFacts, description = "Decisions about its streams, and its rate over time"),
    Refused,
))]
pub(super) async fn tuning(
    State(api): State<Arc<AgentApi>>,
    client: TransferClient,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<TuningFacts>, ProblemDetails> {
    let id = number(id)?;
    let transfer = find(&api, &client, id)?;
    let report = api.mover.tuning(id);
    let report = report.unwrap_or_else(|| TuningReport::kept(reason_of_none(&transfer)));
    if transfer.state != TransferStatus::Running {
        return Ok(Json(report.into()));
    }
    let forecaster = Arc::clone(&api.forecaster);
    // The model may have to be read.
    let facts = tokio::task::spawn_blocking(move || TuningFacts::of_running(report, &forecaster));
    facts.await.map(Json).map_err(|_| {
        ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the decisions could not be read")
    })
}

/// Reason why the mover has no decisions about a transfer.
fn reason_of_none(transfer: &TransferFacts) -> &'static str {
    match transfer.state {
        TransferStatus::Waiting | TransferStatus::Running => "it has not begun to move data",
        _ => "the agent keeps the decisions of its latest 200 transfers, and none over a restart",
    }
}
