//! Reconciles the network with the booked circuits: establishes them on time, verifies them, restores them when a link
//! fails, and releases them at their end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_control::backoff::CIRCUIT_RETRY_INTERVAL;
use penstock_control::circuit::CircuitState;
use penstock_units::BitRate;

use super::{CircuitError, CircuitProvider, CircuitSpec, CircuitStatus, HostAddresses};
use crate::repository::circuits::{self, BookedCircuit};
use crate::repository::reservations::ReservedRoute;
use crate::repository::{StoreError, links, now_ms, runs};
use crate::shared::ControllerState;
use crate::use_cases::reserve;

/// Time limit of a provider's call.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(20);

/// Least time between two checks.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(200);

/// Time after which runs have moved to a new path.
const PATH_SETTLE_MS: i64 = 5_000;

/// Least time between two readings of the counters of a circuit.
const READING_INTERVAL_MIN_MS: i64 = 900;

/// Rate of orders in bits per second from which on counters are compared ...
const CHECKED_RATE_MIN_BPS: i64 = 1_000_000;

/// ... and must show at least one over this of it.
const SHOWN_FRACTION_DENOMINATOR: i64 = 2;

/// Reconciles circuits after each round while this controller is the leader.
pub(crate) async fn run(shared: Arc<ControllerState>) {
    let mut logged_error = String::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        if shared.leads.load(Ordering::Relaxed) {
            match reconcile_all(&shared).await {
                Ok(()) => logged_error.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if error != logged_error {
                        tracing::error!("cannot reconcile circuits: {error}");
                        logged_error = error;
                    }
                }
            }
        }
        tokio::time::sleep(CHECK_INTERVAL_MIN).await;
        tokio::select! {
            () = shared.rounds.notified() => {}
            () = tokio::time::sleep(shared.settings().config.round.max(Duration::from_secs(1))) => {}
        }
    }
}

async fn reconcile_all(shared: &ControllerState) -> Result<(), StoreError> {
    let pool = &shared.database.pool;
    let all = circuits::live(pool).await?;
    if all.is_empty() {
        return Ok(());
    }
    let now = now_ms();
    let down = links::down(pool).await?;
    let moved = runs::settled_paths(pool, now - PATH_SETTLE_MS).await?;
    for one in all {
        let is_own = |address: &String| one.addresses.values().any(|own| own == address);
        let expected = moved
            .iter()
            .filter(|run| run.path.0.iter().any(|pair| is_own(&pair.from)))
            .map(|run| run.measured_bps)
            .sum();
        reconcile(shared, &one, now, &down, expected).await?;
    }
    Ok(())
}

/// Action that a circuit needs at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CircuitAction {
    Nothing,
    /// Establish or restore it at the provider.
    Attempt,
    /// Verify it at the provider.
    Verify,
    /// Release it at the provider.
    Release,
    /// Store it as released: there is no provider that has it.
    StoreReleased,
    /// Store it as broken: there is no provider that could establish it.
    StoreBroken,
}

/// Decides what a circuit needs now, in Unix milliseconds.
fn decide(one: &BookedCircuit, has_provider: bool, now: i64) -> CircuitAction {
    match (has_provider, one.state) {
        (_, CircuitState::Released) => CircuitAction::Nothing,
        (true, _) if now >= one.ends => CircuitAction::Release,
        (false, _) if now >= one.ends => CircuitAction::StoreReleased,
        (false, _) if one.begins <= now => CircuitAction::StoreBroken,
        (true, CircuitState::Booked) if one.begins <= now => CircuitAction::Attempt,
        (true, CircuitState::Broken) if one.retry_at <= now => CircuitAction::Attempt,
        (true, CircuitState::Up) => CircuitAction::Verify,
        (_, CircuitState::Booked | CircuitState::Broken | CircuitState::Up) => {
            CircuitAction::Nothing
        }
    }
}

/// Returns the links that are down, by the controller's knowledge and the provider's, if the route of a circuit has one.
fn broken_links(
    one: &BookedCircuit,
    seen: &CircuitStatus,
    down: &HashSet<String>,
) -> Option<HashSet<String>> {
    let cut = seen.links.iter().filter(|link| !link.up).map(|link| link.link.clone());
    let broken: HashSet<String> = cut.chain(down.iter().cloned()).collect();
    let is_cut = one.route.iter().any(|(_, link)| broken.contains(link));
    is_cut.then_some(broken)
}

async fn reconcile(
    shared: &ControllerState,
    one: &BookedCircuit,
    now: i64,
    down: &HashSet<String>,
    expected_bps: i64,
) -> Result<(), StoreError> {
    let name = name(one);
    let provider = shared.provider.as_deref();
    match (decide(one, provider.is_some(), now), provider) {
        (CircuitAction::Attempt, Some(provider)) => attempt(shared, provider, one, down).await,
        (CircuitAction::Verify, Some(provider)) => {
            match with_timeout(provider.verify(&name)).await {
                Ok(None) => attempt(shared, provider, one, down).await,
                Ok(Some(seen)) => match broken_links(one, &seen, down) {
                    Some(broken) => attempt(shared, provider, one, &broken).await,
                    None => verified(shared, one, now, &seen, expected_bps).await,
                },
                // The circuit may still work, so its orders stay.
                Err(error) => {
                    tracing::warn!("cannot verify circuit {name}: {error}");
                    Ok(())
                }
            }
        }
        (CircuitAction::Release, Some(provider)) => {
            match with_timeout(provider.release(&name)).await {
                Ok(()) => store_released(shared, one).await,
                Err(error) => {
                    tracing::warn!("cannot release circuit {name} yet: {error}");
                    Ok(())
                }
            }
        }
        (CircuitAction::StoreReleased, _) => store_released(shared, one).await,
        (CircuitAction::StoreBroken, _) => {
            let why = "no provider of circuits is configured: add [controller.circuits]";
            store_broken(shared, one, why, now).await
        }
        (
            CircuitAction::Nothing
            | CircuitAction::Attempt
            | CircuitAction::Verify
            | CircuitAction::Release,
            _,
        ) => Ok(()),
    }
}

/// Returns the name of a circuit at the provider.
fn name(one: &BookedCircuit) -> String {
    format!("reservation-{}", one.id)
}

async fn with_timeout<T>(
    work: impl Future<Output = Result<T, CircuitError>>,
) -> Result<T, CircuitError> {
    let late = || Err(CircuitError::Timeout(PROVIDER_TIMEOUT));
    tokio::time::timeout(PROVIDER_TIMEOUT, work).await.unwrap_or_else(|_| late())
}

/// Establishes or restores a circuit on the first path with capacity that is up and that the provider accepts.
async fn attempt(
    shared: &ControllerState,
    provider: &dyn CircuitProvider,
    one: &BookedCircuit,
    down: &HashSet<String>,
) -> Result<(), StoreError> {
    let settings = shared.settings();
    let asked = one.clone();
    let ways = shared.writer.apply(move |cx| {
        let one = asked.clone();
        Box::pin(async move {
            let seconds = (cx.now / 1000) as u64..(one.ends / 1000).max(cx.now / 1000 + 1) as u64;
            let rate = BitRate(one.rate_bps as u64);
            let terms = (one.source.as_str(), one.destination.as_str(), rate);
            reserve::candidate_routes(cx, (one.id, seconds), terms, &one.route).await
        })
    });
    let ways = ways.await?;
    let hosts = |site: &str| -> Vec<String> {
        let all = settings.config.topology.hosts().map(|(_, node)| node.name.clone());
        all.filter(|host| settings.planner.site_of(host) == Some(site)).collect()
    };
    let permille = u64::from(settings.config.rules.usable_permille.max(1));
    let mut why = "no path between its sites is up and has capacity for it".to_owned();
    for route in ways {
        if let Some((_, link)) = route.iter().find(|(_, link)| down.contains(link)) {
            why = format!("link {link} is down, and no other path has capacity for it");
            continue;
        }
        let circuit = CircuitSpec {
            name: name(one),
            // Reservations count file bytes; headers come on top.
            rate_bps: (one.rate_bps as u64).saturating_mul(1000) / permille,
            from: hosts(&one.source),
            to: hosts(&one.destination),
            links: route.iter().map(|(_, link)| link.clone()).collect(),
        };
        let made = match one.state {
            CircuitState::Booked => with_timeout(provider.make(&circuit)).await,
            _ => with_timeout(provider.restore(&circuit)).await,
        };
        match made {
            Ok(addresses) => return store_up(shared, one, route, addresses).await,
            Err(error) => why = error.to_string(),
        }
    }
    store_broken(shared, one, &why, now_ms()).await
}

async fn store_up(
    shared: &ControllerState,
    one: &BookedCircuit,
    route: ReservedRoute,
    addresses: HostAddresses,
) -> Result<(), StoreError> {
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let (one, route, addresses) = (one.clone(), route.clone(), addresses.clone());
        Box::pin(async move { circuits::mark_up(cx, &one, &route, &addresses).await })
    });
    stored.await?;
    Ok(())
}

async fn store_broken(
    shared: &ControllerState,
    one: &BookedCircuit,
    why: &str,
    now: i64,
) -> Result<(), StoreError> {
    let (one, why) = (one.clone(), why.to_owned());
    let stored = shared.writer.apply(move |cx| {
        let (one, why) = (one.clone(), why.clone());
        let retry_at = now + CIRCUIT_RETRY_INTERVAL.as_millis() as i64;
        Box::pin(async move { circuits::mark_broken(cx, &one, &why, retry_at).await })
    });
    stored.await?;
    Ok(())
}

async fn store_released(shared: &ControllerState, one: &BookedCircuit) -> Result<(), StoreError> {
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let one = one.clone();
        Box::pin(async move { circuits::mark_released(cx, &one).await })
    });
    stored.await?;
    Ok(())
}

/// Reading of the counters of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CircuitReading {
    /// Bytes that passed every link.
    carried: i64,
    measured_bps: i64,
    /// True if the counters show the rate of its orders; none if there is too little traffic to judge by.
    shows: Option<bool>,
}

/// Compares the counters of its links with the measured rates of its orders, `expected_bps`. Returns none if the last
/// reading is too recent.
fn compare(
    one: &BookedCircuit,
    now: i64,
    seen: &CircuitStatus,
    expected_bps: i64,
) -> Option<CircuitReading> {
    let carried = seen.links.iter().map(|link| link.bytes).min().unwrap_or(0);
    let carried = i64::try_from(carried).unwrap_or(i64::MAX);
    let elapsed = one.checked.map_or(0, |checked| now - checked);
    if one.checked.is_some() && elapsed < READING_INTERVAL_MIN_MS {
        return None;
    }
    let measured_bps = match elapsed {
        0 => 0,
        elapsed => (carried - one.carried).max(0).saturating_mul(8000) / elapsed,
    };
    let shows = match one.checked {
        Some(_) if expected_bps >= CHECKED_RATE_MIN_BPS => {
            Some(measured_bps >= expected_bps / SHOWN_FRACTION_DENOMINATOR)
        }
        // Too little traffic for a verdict.
        _ => None,
    };
    Some(CircuitReading { carried, measured_bps, shows })
}

async fn verified(
    shared: &ControllerState,
    one: &BookedCircuit,
    now: i64,
    seen: &CircuitStatus,
    expected_bps: i64,
) -> Result<(), StoreError> {
    let Some(reading) = compare(one, now, seen, expected_bps) else { return Ok(()) };
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let one = one.clone();
        let CircuitReading { carried, measured_bps, shows } = reading;
        Box::pin(
            async move { circuits::store_counters(cx, &one, (carried, measured_bps), shows).await },
        )
    });
    stored.await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::CircuitLinkStatus;
    use super::*;

    /// A circuit from 1,000 to 9,000 ms over the links `a` and `b`.
    fn circuit(state: CircuitState) -> BookedCircuit {
        BookedCircuit {
            id: 1,
            class: "default".to_owned(),
            source: "cern".to_owned(),
            destination: "caltech".to_owned(),
            rate_bps: 1_000_000_000,
            begins: 1_000,
            ends: 9_000,
            route: ["a", "b"].map(|link| (format!("link:{link}"), link.to_owned())).into(),
            state,
            addresses: BTreeMap::new(),
            retry_at: 0,
            why: String::new(),
            checked: None,
            carried: 0,
            shows: None,
        }
    }

    fn status(links: [(&str, bool, u64); 2]) -> CircuitStatus {
        let link = |(link, up, bytes): (&str, bool, u64)| CircuitLinkStatus {
            link: link.to_owned(),
            up,
            bytes,
        };
        CircuitStatus { links: links.map(link).into() }
    }

    #[test]
    fn circuit_action_follows_state_and_time() {
        use CircuitAction::{Attempt, Nothing, Release, StoreBroken, StoreReleased, Verify};
        // Before the begin, within the time, at the end.
        for (state, has_provider, actions) in [
            (CircuitState::Booked, true, [Nothing, Attempt, Release]),
            (CircuitState::Up, true, [Verify, Verify, Release]),
            (CircuitState::Broken, true, [Attempt, Attempt, Release]),
            (CircuitState::Released, true, [Nothing, Nothing, Nothing]),
            (CircuitState::Booked, false, [Nothing, StoreBroken, StoreReleased]),
            (CircuitState::Up, false, [Nothing, StoreBroken, StoreReleased]),
            (CircuitState::Broken, false, [Nothing, StoreBroken, StoreReleased]),
            (CircuitState::Released, false, [Nothing, Nothing, Nothing]),
        ] {
            let decided = [999, 1_000, 9_000].map(|now| decide(&circuit(state), has_provider, now));
            assert_eq!(decided, actions, "{state:?}, {has_provider}");
        }
    }

    #[test]
    fn broken_circuit_waits_for_retry() {
        let broken = BookedCircuit { retry_at: 5_000, ..circuit(CircuitState::Broken) };
        assert_eq!(decide(&broken, true, 4_999), CircuitAction::Nothing);
        assert_eq!(decide(&broken, true, 5_000), CircuitAction::Attempt);
    }

    #[test]
    fn circuit_breaks_with_its_links() {
        let one = circuit(CircuitState::Up);
        let up = status([("a", true, 0), ("b", true, 0)]);
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(broken_links(&one, &up, &set(&[])), None);
        assert_eq!(broken_links(&one, &up, &set(&["c"])), None, "another link");
        assert_eq!(broken_links(&one, &up, &set(&["b"])), Some(set(&["b"])));
        let cut = status([("a", false, 0), ("b", true, 0)]);
        assert_eq!(broken_links(&one, &cut, &set(&["c"])), Some(set(&["a", "c"])));
    }

    #[test]
    fn counters_are_compared_with_orders() {
        let seen = status([("a", true, 2_000_000), ("b", true, 1_500_000)]);
        let first = compare(&circuit(CircuitState::Up), 2_000, &seen, 8_000_000).unwrap();
        assert_eq!(first, CircuitReading { carried: 1_500_000, measured_bps: 0, shows: None });
        let one =
            BookedCircuit { checked: Some(1_000), carried: 500_000, ..circuit(CircuitState::Up) };
        assert_eq!(compare(&one, 1_899, &seen, 8_000_000), None, "too soon");
        // A megabyte in a second.
        let reading = |expected_bps| compare(&one, 2_000, &seen, expected_bps).unwrap();
        assert_eq!(reading(8_000_000).measured_bps, 8_000_000);
        assert_eq!(reading(16_000_000).shows, Some(true), "half of it is enough");
        assert_eq!(reading(16_000_002).shows, Some(false));
        assert_eq!(reading(CHECKED_RATE_MIN_BPS - 1).shows, None, "too little traffic");
    }

    #[test]
    fn reset_counters_show_no_rate() {
        let one =
            BookedCircuit { checked: Some(1_000), carried: 500_000, ..circuit(CircuitState::Up) };
        let seen = status([("a", true, 0), ("b", true, 0)]);
        let reading = compare(&one, 2_000, &seen, 0).unwrap();
        assert_eq!((reading.carried, reading.measured_bps), (0, 0));
    }
}
