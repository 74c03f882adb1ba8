//! Parsers of bounded numbers on the command line.

use std::num::NonZeroU16;

use anyhow::{Context, bail};
use penstock_mover::{STREAMS_MAX, THREADS_PER_DEVICE_MAX};
use penstock_units::BitRate;

/// Parses a rate limit, such as `10G`.
///
/// # Errors
/// When it is invalid, or zero, which could mean no limit or no traffic.
pub(crate) fn rate(text: &str) -> anyhow::Result<BitRate> {
    above_zero(text, "leave --rate out for no limit")
}

/// Highest rate to plan for in bit/s, far above any host.
const GOAL_BPS_MAX: u64 = 100_000_000_000_000;

/// Least rate to plan for in bit/s: below, the unit is missing.
const GOAL_BPS_MIN: u64 = 1_000_000;

/// Parses a rate to reach.
///
/// # Errors
/// When it is invalid, zero, below [`GOAL_BPS_MIN`] or above [`GOAL_BPS_MAX`].
pub(crate) fn rate_of_goal(text: &str) -> anyhow::Result<BitRate> {
    let rate = above_zero(text, "write it like 100G")?;
    if rate.0 < GOAL_BPS_MIN {
        bail!("{rate} is no rate to plan for: write the unit, as in 100G");
    }
    if rate.0 > GOAL_BPS_MAX {
        bail!("write a rate up to {}", BitRate(GOAL_BPS_MAX));
    }
    Ok(rate)
}

/// Parses a rate, or `none` (zero) for no limit.
///
/// # Errors
/// When it is neither.
pub(crate) fn rate_or_none(text: &str) -> anyhow::Result<BitRate> {
    match text {
        "none" => Ok(BitRate(0)),
        text => above_zero(text, "write none for no limit"),
    }
}

/// Parses a rate, of which zero and `none` are no limit.
///
/// # Errors
/// When it is neither.
pub(crate) fn rate_or_unlimited(text: &str) -> anyhow::Result<BitRate> {
    if text == "none" { Ok(BitRate(0)) } else { Ok(text.parse()?) }
}

fn above_zero(text: &str, remedy: &str) -> anyhow::Result<BitRate> {
    match text.parse() {
        Ok(BitRate(0)) => bail!("nothing would move: {remedy}"),
        other => Ok(other?),
    }
}

/// Parses a number of data streams.
///
/// # Errors
/// When it exceeds the limit of a transfer.
pub(crate) fn streams(text: &str) -> anyhow::Result<NonZeroU16> {
    let count = text.parse().ok().filter(|count: &NonZeroU16| count.get() <= STREAMS_MAX);
    count.with_context(|| format!("use a number from 1 to {STREAMS_MAX}"))
}

/// Parses a number of reader or writer threads for each device.
///
/// # Errors
/// When it is not from 1 to [`THREADS_PER_DEVICE_MAX`].
pub(crate) fn threads(text: &str) -> anyhow::Result<NonZeroU16> {
    let count =
        text.parse().ok().filter(|count: &NonZeroU16| count.get() <= THREADS_PER_DEVICE_MAX);
    count.with_context(|| format!("use a number from 1 to {THREADS_PER_DEVICE_MAX}"))
}
