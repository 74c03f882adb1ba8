//! Numbers on command lines that have bounds; what is outside of them is a mistake in one line.

use std::num::NonZeroU16;

use penstock_mover::session::{STREAMS_MAX, THREADS_PER_DEVICE_MAX};
use penstock_units::BitRate;

/// A rate at which something moves, such as `10G`.
///
/// # Errors
/// When it is none, or zero, which is no limit to some and a standstill to others.
pub(crate) fn rate(text: &str) -> Result<BitRate, String> {
    above_zero(text, "leave --rate out for no limit")
}

/// A rate that somebody wants to reach.
///
/// # Errors
/// When it is none, or zero.
pub(crate) fn rate_of_goal(text: &str) -> Result<BitRate, String> {
    above_zero(text, "write it like 100G")
}

/// A rate, or zero for `none`: no limit any more.
///
/// # Errors
/// When it is neither.
pub(crate) fn rate_or_none(text: &str) -> Result<BitRate, String> {
    match text {
        "none" => Ok(BitRate(0)),
        text => above_zero(text, "write none for no limit"),
    }
}

fn above_zero(text: &str, remedy: &str) -> Result<BitRate, String> {
    match text.parse() {
        Ok(BitRate(0)) => Err(format!("nothing would move: {remedy}")),
        other => other.map_err(|error| error.to_string()),
    }
}

/// A number of data streams.
///
/// # Errors
/// When a transfer cannot have so many.
pub(crate) fn streams(text: &str) -> Result<NonZeroU16, String> {
    let count = text.parse().ok().filter(|count: &NonZeroU16| count.get() <= STREAMS_MAX);
    count.ok_or_else(|| format!("use a number from 1 to {STREAMS_MAX}"))
}

/// A number of reader or writer threads for each device.
///
/// # Errors
/// When it is not from 1 to [`THREADS_PER_DEVICE_MAX`].
pub(crate) fn threads(text: &str) -> Result<NonZeroU16, String> {
    let count =
        text.parse().ok().filter(|count: &NonZeroU16| count.get() <= THREADS_PER_DEVICE_MAX);
    count.ok_or_else(|| format!("use a number from 1 to {THREADS_PER_DEVICE_MAX}"))
}
