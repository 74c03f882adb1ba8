//! `penstock tune`.

use penstock_agent::history::HistoryRow;
use penstock_forecast::ForecastQuantiles;
use serde::Serialize;
use utoipa::ToSchema;

/// Transfers of the history.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct HistoryJson {
    /// Transfers in the order in which they ended.
    pub(crate) transfers: Vec<HistoryRow>,
}

/// Forecast of a transfer, or the reasons why there is none.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PredictionJson {
    /// Names and addresses of the host that sends.
    pub(crate) source: Vec<String>,
    /// Names and addresses of the host that receives.
    pub(crate) destination: Vec<String>,
    /// Bytes that are to be sent.
    pub(crate) bytes: u64,
    /// Transfers of the history that count: those that ended well and that no rate limit bound [count].
    pub(crate) usable_transfers: usize,
    /// The forecast; null where it is refused.
    pub(crate) forecast: Option<ForecastJson>,
    /// Reasons why there is no forecast; null where there is one.
    pub(crate) refusal: Option<String>,
    /// Model file that was used; null where there is none, or it gave no forecast.
    pub(crate) model: Option<ForecastModelJson>,
    /// Reason why the model file gave no forecast; null where it did, or there is none.
    pub(crate) model_refusal: Option<String>,
}

/// Forecast of a transfer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ForecastJson {
    /// Way in which it was computed: `online` from the latest transfers alone, `model` with a model file.
    pub(crate) method: &'static str,
    /// Transfers it was computed from: `pair` for those between the two hosts, `source` for those of the source host, `all`;
    /// with a model those that corrected it.
    pub(crate) scope: &'static str,
    /// Number of these transfers [count].
    pub(crate) transfers: usize,
    /// Duration of the transfer.
    pub(crate) seconds: ForecastQuantilesJson,
    /// Mean rate of the transfer.
    pub(crate) bits_per_second: ForecastQuantilesJson,
    /// Fitted time that does not depend on the size; null with a model.
    pub(crate) latency_seconds: Option<f64>,
}

/// Quantiles of a forecast.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct ForecastQuantilesJson {
    /// Value that 10 % of such transfers stay below.
    pub(crate) p10: f64,
    /// Value that half of such transfers stay below.
    pub(crate) p50: f64,
    /// Value that 90 % of such transfers stay below.
    pub(crate) p90: f64,
}

impl From<ForecastQuantiles> for ForecastQuantilesJson {
    fn from(ForecastQuantiles { p10, p50, p90 }: ForecastQuantiles) -> Self {
        Self { p10, p50, p90 }
    }
}

/// Model file of a forecast.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ForecastModelJson {
    /// Path of the file.
    pub(crate) file: String,
    /// Transfers that it was trained with [count].
    pub(crate) training_rows: u64,
    /// Synthetic ones among these: with any, its figures say nothing about real transfers [count].
    pub(crate) synthetic_rows: u64,
    /// SHA-256 of its training data, in hexadecimal digits.
    pub(crate) training_sha256: String,
    /// Factor by which the latest transfers of the pair were faster than it says, which corrects it [ratio].
    pub(crate) correction: f64,
}
