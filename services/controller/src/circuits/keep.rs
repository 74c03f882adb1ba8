//! What is booked is brought about: circuits are made when their time comes, verified while they stand, restored when a
//! link of theirs fails, released when their time is over.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_units::BitRate;

use super::{Addresses, Circuit, CircuitError, CircuitProvider, Seen};
use crate::shared::Shared;
use crate::store::circuit::{self, Booked, CircuitState};
use crate::store::{now_ms, reserve};

/// Longest that a provider may take.
const WITHIN: Duration = Duration::from_secs(20);

/// Between two attempts at a circuit that does not stand.
const AGAIN_MS: i64 = 2_000;

/// Two looks are at least so far apart, however many rounds there are.
const PAUSE: Duration = Duration::from_millis(200);

/// Orders that were told their path so long ago are there.
const THERE_MS: i64 = 5_000;

/// What orders move is to be this much, in bits per second, before counters are asked to show it ...
const TELLING_BPS: i64 = 1_000_000;

/// ... and one part in so many of it is to show.
const SHOWS_PART: i64 = 2;

/// Looks after circuits until the controller stops: after each round, by the controller that makes them.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut told = String::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        if shared.leads.load(Ordering::Relaxed) {
            match turn(&shared).await {
                Ok(()) => told.clear(),
                Err(error) if error == told => {}
                Err(error) => {
                    tracing::error!("circuits cannot be looked after: {error}");
                    told = error;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            () = shared.rounds.notified() => {}
            () = tokio::time::sleep(shared.settings().config.round.max(Duration::from_secs(1))) => {}
        }
    }
}

async fn turn(shared: &Shared) -> Result<(), String> {
    let failed = |error: sqlx::Error| error.to_string();
    let pool = &shared.database.pool;
    let all = circuit::live(pool).await.map_err(failed)?;
    if all.is_empty() {
        return Ok(());
    }
    let now = now_ms();
    let down = crate::store::read::down(pool).await.map_err(failed)?;
    let moved = circuit::moved(pool, now - THERE_MS).await.map_err(failed)?;
    for one in all {
        let expected = moved
            .iter()
            .filter(|(from, _)| one.addresses.values().any(|address| from.contains(address)))
            .map(|(_, bps)| bps)
            .sum();
        step(shared, &one, now, &down, expected).await?;
    }
    Ok(())
}

async fn step(
    shared: &Shared,
    one: &Booked,
    now: i64,
    down: &HashSet<String>,
    expected_bps: i64,
) -> Result<(), String> {
    let name = name(one);
    let Some(provider) = shared.provider.as_deref() else {
        if now >= one.ends {
            return end(shared, one).await;
        }
        let why = "no provider of circuits is configured: add [controller.circuits]";
        return match one.begins <= now {
            true => fail(shared, one, why, now).await,
            false => Ok(()),
        };
    };
    if now >= one.ends {
        return match within(provider.release(&name)).await {
            Ok(()) => end(shared, one).await,
            Err(error) => {
                tracing::warn!("circuit {name} is not released yet: {error}");
                Ok(())
            }
        };
    }
    match one.state {
        CircuitState::Booked if one.begins <= now => attempt(shared, provider, one, down).await,
        CircuitState::Broken if one.again <= now => attempt(shared, provider, one, down).await,
        CircuitState::Up => match within(provider.verify(&name)).await {
            Ok(None) => attempt(shared, provider, one, down).await,
            Ok(Some(seen)) => {
                let cut = seen.links.iter().filter(|link| !link.up).map(|link| link.link.clone());
                let broken: HashSet<String> = cut.chain(down.iter().cloned()).collect();
                if one.route.iter().any(|(_, link)| broken.contains(link)) {
                    return attempt(shared, provider, one, &broken).await;
                }
                verified(shared, one, now, &seen, expected_bps).await
            }
            // The path may stand all the same, so nothing is taken off it.
            Err(error) => {
                tracing::warn!("circuit {name} cannot be verified: {error}");
                Ok(())
            }
        },
        _ => Ok(()),
    }
}

/// As the provider knows it.
fn name(one: &Booked) -> String {
    format!("reservation-{}", one.id)
}

async fn within<T>(work: impl Future<Output = Result<T, CircuitError>>) -> Result<T, CircuitError> {
    let late = || Err(CircuitError(format!("no answer within {} s", WITHIN.as_secs())));
    tokio::time::timeout(WITHIN, work).await.unwrap_or_else(|_| late())
}

/// Makes or restores it on the first way that has room, is up, and that the provider takes.
async fn attempt(
    shared: &Shared,
    provider: &dyn CircuitProvider,
    one: &Booked,
    down: &HashSet<String>,
) -> Result<(), String> {
    let settings = shared.settings();
    let asked = one.clone();
    let ways = shared.writer.apply(move |cx| {
        let one = asked.clone();
        Box::pin(async move {
            let seconds = (cx.now / 1000) as u64..(one.ends / 1000).max(cx.now / 1000 + 1) as u64;
            let rate = BitRate(one.rate_bps as u64);
            let terms = (one.source.as_str(), one.destination.as_str(), rate);
            reserve::ways(cx, (one.id, seconds), terms, &one.route).await
        })
    });
    let ways = ways.await.map_err(|error| error.to_string())?;
    let hosts = |site: &str| -> Vec<String> {
        let all = settings.config.topology.hosts().map(|(_, node)| node.name.clone());
        all.filter(|host| settings.planner.site_of(host) == Some(site)).collect()
    };
    let permille = u64::from(settings.config.rules.usable_permille.max(1));
    let mut why = "no way between its sites has room for it and is up".to_owned();
    for route in ways {
        if let Some((_, link)) = route.iter().find(|(_, link)| down.contains(link)) {
            why = format!("link {link} is down, and no other way has room for it");
            continue;
        }
        let circuit = Circuit {
            name: name(one),
            // What is promised is of file bytes; headers come on top.
            rate_bps: (one.rate_bps as u64).saturating_mul(1000) / permille,
            from: hosts(&one.source),
            to: hosts(&one.destination),
            links: route.iter().map(|(_, link)| link.clone()).collect(),
        };
        let made = match one.state {
            CircuitState::Booked => within(provider.make(&circuit)).await,
            _ => within(provider.restore(&circuit)).await,
        };
        match made {
            Ok(addresses) => return stand(shared, one, route, addresses).await,
            Err(error) => why = error.to_string(),
        }
    }
    fail(shared, one, &why, now_ms()).await
}

async fn stand(
    shared: &Shared,
    one: &Booked,
    route: reserve::Route,
    addresses: Addresses,
) -> Result<(), String> {
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let (one, route, addresses) = (one.clone(), route.clone(), addresses.clone());
        Box::pin(async move { circuit::stands(cx, &one, &route, &addresses).await })
    });
    stored.await.map_err(|error| error.to_string())
}

async fn fail(shared: &Shared, one: &Booked, why: &str, now: i64) -> Result<(), String> {
    let (one, why) = (one.clone(), why.to_owned());
    let stored = shared.writer.apply(move |cx| {
        let (one, why) = (one.clone(), why.clone());
        Box::pin(async move { circuit::fails(cx, &one, &why, now + AGAIN_MS).await })
    });
    stored.await.map_err(|error| error.to_string())
}

async fn end(shared: &Shared, one: &Booked) -> Result<(), String> {
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let one = one.clone();
        Box::pin(async move { circuit::ends(cx, &one).await })
    });
    stored.await.map_err(|error| error.to_string())
}

/// Compares what its links counted with what orders say that they move over it.
async fn verified(
    shared: &Shared,
    one: &Booked,
    now: i64,
    seen: &Seen,
    expected_bps: i64,
) -> Result<(), String> {
    // Whatever went all the way.
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
        Some(_) if expected_bps >= TELLING_BPS => Some(measured >= expected_bps / SHOWS_PART),
        // Little or nothing moves: its counters say neither.
        _ => None,
    };
    let one = one.clone();
    let stored = shared.writer.apply(move |cx| {
        let one = one.clone();
        Box::pin(async move { circuit::note(cx, &one, (carried, measured), shows).await })
    });
    stored.await.map_err(|error| error.to_string())
}
