//! Detects deadlines that cannot be met with the capacity beside reservations.

use std::collections::BTreeSet;

use penstock_calendar::{Calendar, END_OF_TIME};
use penstock_control::forecast;
use penstock_units::{BitRate, ByteCount, display_duration};

use crate::repository::requests::StoredRequest;
use crate::repository::{DatabaseError, ReadPool};
use crate::shared::LiveSettings;
use crate::use_cases::reserve;

/// Returns the reason why a request cannot meet its deadline; none if it can, or has none.
pub(crate) async fn problem(
    pool: &ReadPool,
    settings: &LiveSettings,
    now_ms: i64,
    request: &StoredRequest,
    forecast_seconds: Option<u64>,
) -> Result<Option<String>, DatabaseError> {
    let Some(deadline_ms) = request.deadline.filter(|_| !request.state.is_final()) else {
        return Ok(None);
    };
    let left = request.size_estimate.unwrap_or(0).max(request.bytes) - request.bytes_done;
    let left = u64::try_from(left).unwrap_or(0);
    let shown = |ms: i64| {
        display_duration(std::time::Duration::from_secs(u64::try_from(ms).unwrap_or(0) / 1000))
    };
    if deadline_ms <= now_ms {
        return Ok(Some(format!("it has passed {} ago", shown(now_ms - deadline_ms))));
    }
    let seconds = (deadline_ms - now_ms) / 1000;
    if left == 0 || seconds == 0 {
        return Ok(None);
    }
    let planner = &settings.planner;
    let calendar = reserve::calendar_now(pool, planner, now_ms).await?;
    let from = (now_ms / 1000) as u64;
    let until = (from + seconds as u64).min(END_OF_TIME);
    let sites = (request.source.as_str(), request.destination.as_str());
    let ways = planner.site_paths(sites.0, sites.1, false).into_iter();
    let fits = ways
        .map(|(links, _)| {
            free_bytes(&calendar, &reserve::path_resources(sites, links), from, until)
        })
        .max();
    if let Some(fits) = fits.filter(|fits| *fits < left) {
        let needed = forecast::needed_bps(left, seconds).unwrap_or(0);
        return Ok(Some(format!(
            "{} in {} need {}, and what may be guaranteed beside reservations carries {}: give it more time or less to move",
            ByteCount(left),
            shown(seconds * 1000),
            BitRate(needed),
            ByteCount(fits)
        )));
    }
    let late =
        forecast_seconds.and_then(|forecast| i64::try_from(forecast).ok()).map(|s| s - seconds);
    Ok(late
        .filter(|late| *late > 0)
        .map(|late| format!("at its present rate it will be done {} after it", shown(late * 1000))))
}

/// Returns the bytes that fit on a path between two Unix seconds beside reservations.
fn free_bytes(calendar: &Calendar, path: &[String], from: u64, until: u64) -> u64 {
    let steps = path.iter().filter_map(|resource| calendar.steps(resource)).flatten();
    let mut seconds: BTreeSet<u64> =
        steps.map(|(second, _)| second).filter(|second| (from..until).contains(second)).collect();
    seconds.extend([from, until]);
    let seconds: Vec<u64> = seconds.into_iter().collect();
    let parts = seconds.windows(2).map(|part| {
        let free = path.iter().filter_map(|resource| calendar.free(resource, part[0]..part[1]));
        let free = free.min().map_or(0, |rate| rate.0);
        u128::from(free) * u128::from(part[1] - part[0]) / 8
    });
    u64::try_from(parts.sum::<u128>()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_calendar::Reservation;

    use super::*;

    #[test]
    fn free_bytes_follow_reservations() {
        let mut calendar = Calendar::default();
        for name in ["a", "b"] {
            calendar.set_reservable(name, BitRate(80)).unwrap();
        }
        let path = ["a".to_owned(), "b".to_owned()];
        assert_eq!(free_bytes(&calendar, &path, 0, 10), 100);
        for (name, resource, seconds) in [("1", "a", 2..4), ("2", "b", 3..20)] {
            let (name, path) = (name.to_owned(), vec![resource.to_owned()]);
            calendar.reserve(Reservation { name, path, rate: BitRate(40), seconds }).unwrap();
        }
        // Two seconds at 80, eight at 40 b/s.
        assert_eq!(free_bytes(&calendar, &path, 0, 10), 60);
    }
}
