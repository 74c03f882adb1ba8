//! Forecasts without a model file, from the latest transfers of a path.
//!
//! A path is the pair of hosts; where the pair has too few transfers or none of such a size, the source host with all of its
//! destinations, and then all hosts. The latest [`WINDOW_TRANSFERS`] transfers count, newer ones more. Duration is latency plus size by
//! rate ([`LatencyFit`]); the quantiles are those of measured by fitted duration, each transfer by a fit without it (jackknife+ of
//! Barber et al., Annals of Statistics 49, 2021): a fit of few transfers passes through some of them.

use std::fmt;

use crate::latency_fit::{FitPoint, LatencyFit};
use crate::past::PastTransfer;
use crate::quantiles::{ForecastQuantiles, WeightedValues};

/// Most transfers that a forecast uses; the latest.
pub const WINDOW_TRANSFERS: usize = 32;

/// Fewest transfers from which a forecast is made.
pub const TRANSFERS_MIN: usize = 5;

/// Factor by which a request may lie beyond the smallest and the largest size that was seen.
pub const SIZE_MARGIN: f64 = 4.0;

/// Weight of a transfer relative to the next newer one.
const RANK_DECAY: f64 = 0.95;

/// A transfer to forecast. A host may have several names.
#[derive(Debug, Clone, PartialEq)]
pub struct ForecastRequest {
    /// Names and addresses of the host that sends.
    pub source: Vec<String>,
    /// Names and addresses of the host that receives.
    pub destination: Vec<String>,
    /// Size of the transfer in bytes.
    pub bytes: u64,
}

/// Transfers that a forecast is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForecastScope {
    /// Those of the pair of hosts.
    Pair,
    /// Those of the source host.
    Source,
    /// All.
    All,
}

impl ForecastScope {
    /// From the narrowest to the widest.
    pub const ALL: [Self; 3] = [Self::Pair, Self::Source, Self::All];

    /// Name in `--json`: `pair`, `source` or `all`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Source => "source",
            Self::All => "all",
        }
    }

    fn has(self, transfer: &PastTransfer, request: &ForecastRequest) -> bool {
        match self {
            Self::Pair => request.is_of_pair(transfer),
            Self::Source => request.source.contains(&transfer.source),
            Self::All => true,
        }
    }
}

impl ForecastRequest {
    /// True if the transfer was between the hosts of the request, in this direction.
    #[must_use]
    pub fn is_of_pair(&self, transfer: &PastTransfer) -> bool {
        self.source.contains(&transfer.source) && self.destination.contains(&transfer.destination)
    }
}

/// Duration and rate of a transfer, with what they were computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct OnlineForecast {
    /// Quantiles of the duration.
    pub seconds: ForecastQuantiles,
    /// Quantiles of the mean rate.
    pub bits_per_second: ForecastQuantiles,
    /// Transfers that were used.
    pub scope: ForecastScope,
    /// Number of the transfers that were used.
    pub transfers: usize,
    /// Latency and rate that fit them.
    pub fit: LatencyFit,
}

/// Reason why the transfers of a scope give no forecast.
#[derive(Debug, Clone, PartialEq)]
pub enum ScopeRefusal {
    /// There are too few.
    TooFew {
        /// Number of transfers.
        transfers: usize,
    },
    /// The size lies outside of what was seen.
    Size {
        /// Number of transfers.
        transfers: usize,
        /// Smallest and largest size for which a forecast is made, in bytes.
        range: (f64, f64),
    },
}

/// Reasons why there is no forecast, by scope.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct ForecastRefusal(pub Vec<(ForecastScope, ScopeRefusal)>);

impl fmt::Display for ForecastRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no forecast:")?;
        for (number, (scope, refusal)) in self.0.iter().enumerate() {
            let whose = match scope {
                ForecastScope::Pair => "between these hosts",
                ForecastScope::Source => "from this source host",
                ForecastScope::All => "of all hosts",
            };
            f.write_str(if number > 0 { "; " } else { " " })?;
            match refusal {
                ScopeRefusal::TooFew { transfers } => {
                    write!(f, "{transfers} transfers {whose}, {TRANSFERS_MIN} are needed")?;
                }
                ScopeRefusal::Size { transfers, range: (least, most) } => write!(
                    f,
                    "{transfers} transfers {whose} allow sizes from {least:.0} to {most:.0} bytes"
                )?,
            }
        }
        Ok(())
    }
}

/// Forecasts a transfer from `history`, oldest first.
///
/// # Errors
/// When every scope has too few transfers, or none of about this size.
pub fn forecast(
    history: &[PastTransfer],
    request: &ForecastRequest,
) -> Result<OnlineForecast, ForecastRefusal> {
    let mut refusals = Vec::new();
    for scope in ForecastScope::ALL {
        let usable = history.iter().rev().filter(|one| one.is_usable() && scope.has(one, request));
        match forecast_from(usable.take(WINDOW_TRANSFERS), request.bytes) {
            Ok((fit, seconds, transfers)) => {
                let bits = request.bytes as f64 * 8.0;
                let bits_per_second = seconds.reciprocal(bits);
                return Ok(OnlineForecast { seconds, bits_per_second, scope, transfers, fit });
            }
            Err(refusal) => refusals.push((scope, refusal)),
        }
    }
    Err(ForecastRefusal(refusals))
}

/// Weight of the transfer with this rank, 0 for the newest.
pub(crate) fn weight_of_rank(rank: usize) -> f64 {
    RANK_DECAY.powi(i32::try_from(rank).unwrap_or(i32::MAX))
}

/// Fit and quantiles of the duration, from transfers, newest first.
fn forecast_from<'a>(
    newest_first: impl Iterator<Item = &'a PastTransfer>,
    bytes: u64,
) -> Result<(LatencyFit, ForecastQuantiles, usize), ScopeRefusal> {
    let point = |(rank, one): (usize, &PastTransfer)| FitPoint {
        bytes: one.bytes,
        seconds: one.seconds,
        weight: weight_of_rank(rank),
    };
    let points: Vec<_> = newest_first.enumerate().map(point).collect();
    let transfers = points.len();
    if transfers < TRANSFERS_MIN {
        return Err(ScopeRefusal::TooFew { transfers });
    }
    let sizes = || points.iter().map(|point| point.bytes);
    let least = sizes().fold(f64::INFINITY, f64::min) / SIZE_MARGIN;
    let most = sizes().fold(0.0, f64::max) * SIZE_MARGIN;
    let bytes = bytes as f64;
    // A request of nothing has no rate.
    if !(least.max(1.0)..=most).contains(&bytes) {
        return Err(ScopeRefusal::Size { transfers, range: (least, most) });
    }
    let too_few = ScopeRefusal::TooFew { transfers };
    let fit = LatencyFit::of(&points).ok_or(too_few.clone())?;
    let ratio = |number: usize| {
        let mut others = points.clone();
        let one = others.remove(number);
        let fitted = LatencyFit::of(&others)?.seconds(one.bytes);
        Some((one.seconds / fitted, one.weight))
    };
    let ratios = (0..transfers).filter_map(ratio);
    let quantiles = WeightedValues::new(ratios).quantiles().ok_or(too_few)?;
    Ok((fit, quantiles.scaled(fit.seconds(bytes)), transfers))
}
