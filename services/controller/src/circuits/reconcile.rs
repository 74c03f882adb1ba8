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

async fn reconcile(
    shared: &ControllerState,
    one: &BookedCircuit,
    now: i64,
    down: &HashSet<String>,
    expected_bps: i64,
) -> Result<(), StoreError> {
    let name = name(one);
    let Some(provider) = shared.provider.as_deref() else {
        if now >= one.ends {
            return store_released(shared, one).await;
        }
        let why = "no provider of circuits is configured: add [controller.circuits]";
        return match one.begins <= now {
            true => store_broken(shared, one, why, now).await,
            false => Ok(()),
        };
    };
    if now >= one.ends {
        return match with_timeout(provider.release(&name)).await {
            Ok(()) => store_released(shared, one).await,
            Err(error) => {
                tracing::warn!("cannot release circuit {name} yet: {error}");
                Ok(())
            }
        };
    }
    match one.state {
        CircuitState::Booked if one.begins <= now => attempt(shared, provider, one, down).await,
        CircuitState::Broken if one.retry_at <= now => attempt(shared, provider, one, down).await,
        CircuitState::Up => match with_timeout(provider.verify(&name)).await {
            Ok(None) => attempt(shared, provider, one, down).await,
            Ok(Some(seen)) => {
                let cut = seen.links.iter().filter(|link| !link.up).map(|link| link.link.clone());
                let broken: HashSet<String> = cut.chain(down.iter().cloned()).collect();
                if one.route.iter().any(|(_, link)| broken.contains(link)) {
                    return attempt(shared, provider, one, &broken).await;
                }
                verified(shared, one, now, &seen, expected_bps).await
            }
            // The circuit may still work, so its orders stay.
            Err(error) => {
                tracing::warn!("cannot verify circuit {name}: {error}");
                Ok(())
            }
        },
        _ => Ok(()),
    }
}

/// Returns the name of a circuit at the provider.
fn name(one: &BookedCircuit) -> String {
    format!("reservation-{}", one.id)
}

async fn with_timeout<T>(
    work: impl Future<Output = Result<T, CircuitError>>,
) -> Result<T, CircuitError> {
    let late = || Err(CircuitError(format!("no answer within {} s", PROVIDER_TIMEOUT.as_secs())));
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

/// Compares the counters of its links with the measured rates of its orders.
async fn verified(
    shared: &ControllerState,
    one: &BookedCircuit,
    now: i64,
    seen: &CircuitStatus,
    expected_bps: i64,
) -> Result<(), StoreError> {
    // Bytes that passed every link.
    let carried = seen.links.iter().map(|link| link.bytes).min().unwrap_or(0);
    let carried = i64::try_from(carried).unwrap_or(i64::MAX);
    let elapsed = one.checked.map_or(0, |checked| now - checked);
    if one.checked.is_some() && elapsed < 900 {
        return Ok(());
    }
    let measured = match elapsed {
        0 => 0,
        elapsed => (carried - one.carried).max(0).saturating_mul(8000) / elapsed,
    };
    let shows = match one.checked {
        Some(_) if expected_bps >= CHECKED_RATE_MIN_BPS => {
            Some(measured >= expected_bps / SHOWN_FRACTION_DENOMINATOR)
        }
        // Too little traffic for a verdict.
        _ => None,
    };
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let one = one.clone();
        Box::pin(
            async move { circuits::store_counters(cx, &one, (carried, measured), shows).await },
        )
    });
    stored.await?;
    Ok(())
}
