//! Searches that the transfers of an agent to one host share: each transfer brings its samples, and gets an equal part of
//! the streams, readers and writers that the search finds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use penstock_tuner::{
    MemberSample, Parallelism, PipelineStage, SharedController, StreamsDemand, TunerDecision,
    TunerSample, TuningLimits, WarmStart, share_budget,
};

use crate::base::lock::lock;

/// Intervals without a sample after which a transfer no longer counts: it has lost its session.
const MISSED_INTERVALS_MAX: u32 = 2;

/// Searches of an agent, by the host of the other end.
#[derive(Debug, Default)]
pub(crate) struct HostSearches(Mutex<BTreeMap<String, HostSearch>>);

#[derive(Debug)]
struct HostSearch {
    controller: SharedController,
    members: BTreeMap<u64, SearchMember>,
    /// Number of the latest decision.
    round: u64,
    decision: Option<TunerDecision>,
}

#[derive(Debug)]
struct SearchMember {
    /// Sample since the latest decision.
    sample: Option<TunerSample>,
    default: Parallelism,
    max: Parallelism,
    /// Workers that the latest decision gives it.
    given: Parallelism,
    /// Streams that it has, or that the search last gave it.
    holding: u16,
    missed: u32,
    /// Latest decision that it knows.
    round: u64,
}

/// Part of a transfer in a shared search; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct SearchMembership {
    searches: Arc<HostSearches>,
    host: String,
    id: u64,
}

/// Answer of a search to a transfer, which may share it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SearchAnswer {
    /// Workers that it should have now.
    pub(crate) workers: Parallelism,
    /// Most bits per second of each stream; none where they are not paced.
    pub(crate) stream_pacing_bps: Option<u64>,
    /// Decision that it has not seen yet, with the number of transfers that it is for.
    pub(crate) decision: Option<(TunerDecision, u16)>,
}

/// Workers of a transfer that searches, and streams of all of them, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SearchLimits {
    /// Default of this transfer.
    pub(crate) start: Parallelism,
    /// Streams with which it begins instead, where it is the first.
    pub(crate) known: Option<u16>,
    /// Most workers of this transfer.
    pub(crate) max: Parallelism,
    /// Most streams of all transfers that search.
    pub(crate) budget: u16,
}

impl HostSearches {
    /// Numbers of the transfers that search.
    pub(crate) fn transfers(&self) -> BTreeSet<u64> {
        lock(&self.0).values().flat_map(|search| search.members.keys().copied()).collect()
    }

    /// True if a transfer to this host searches.
    pub(crate) fn has(&self, host: &str) -> bool {
        lock(&self.0).contains_key(host)
    }

    fn leave(&self, host: &str, id: u64) {
        let mut searches = lock(&self.0);
        if let Some(search) = searches.get_mut(host) {
            search.members.remove(&id);
            if search.members.is_empty() {
                searches.remove(host);
            }
        }
    }

    fn observe(
        &self,
        host: &str,
        id: u64,
        sample: &TunerSample,
        limits: SearchLimits,
    ) -> SearchAnswer {
        let mut searches = lock(&self.0);
        let search = searches.entry(host.to_owned()).or_insert_with(|| HostSearch::new(limits));
        search.add(id, sample, limits);
        if search.has_all_samples() {
            let budget = budget_of(&searches, host, limits.budget);
            if let Some(search) = searches.get_mut(host) {
                search.decide(budget);
            }
        }
        // No stream is opened before another transfer has given one back.
        let members = searches.values().flat_map(|search| &search.members);
        let others = members.filter(|(other, _)| **other != id);
        let held = others.fold(0_u16, |sum, (_, member)| sum.saturating_add(member.holding));
        let free = limits.budget.saturating_sub(held);
        let search = searches.get_mut(host).expect("the search of this transfer");
        let transfers = u16::try_from(search.members.len()).unwrap_or(u16::MAX);
        let (round, decision) = (search.round, search.decision);
        let member = search.members.get_mut(&id).expect("this transfer has joined");
        let streams = member.given.streams.min(free.max(sample.active.streams)).max(1);
        member.holding = sample.active.streams.max(streams);
        let stream_pacing_bps = decision.and_then(|decision| decision.stream_pacing_bps);
        let is_new = std::mem::replace(&mut member.round, round) != round;
        let decision = decision.filter(|_| is_new).map(|decision| (decision, transfers));
        let workers = member.given.with(PipelineStage::Streams, streams);
        SearchAnswer { workers, stream_pacing_bps, decision }
    }
}

/// Budget of one host's search: its fair share, with room for a doubling.
fn budget_of(searches: &BTreeMap<String, HostSearch>, host: &str, budget: u16) -> u16 {
    let demand = |search: &HostSearch| StreamsDemand {
        transfers: u16::try_from(search.members.len()).unwrap_or(u16::MAX),
        wanted: search.controller.streams().saturating_mul(2),
    };
    let demands: Vec<_> = searches.values().map(demand).collect();
    let shares = share_budget(budget, &demands);
    let own = searches.keys().position(|name| name == host);
    own.map_or(budget, |at| shares[at])
}

impl HostSearch {
    fn new(limits: SearchLimits) -> Self {
        let default = limits.start;
        let known = limits.known.map(|streams| default.with(PipelineStage::Streams, streams));
        let start = WarmStart { default, predicted: known };
        let budget = TuningLimits::streams_up_to(limits.budget, default);
        Self {
            controller: SharedController::new(start, budget),
            members: BTreeMap::new(),
            round: 0,
            decision: None,
        }
    }

    fn add(&mut self, id: u64, sample: &TunerSample, limits: SearchLimits) {
        let round = self.round;
        let member = self.members.entry(id).or_insert_with(|| SearchMember {
            sample: None,
            default: limits.start,
            max: limits.max,
            given: sample.active,
            holding: sample.active.streams,
            missed: 0,
            round,
        });
        let is_second = member.sample.replace(*sample).is_some();
        (member.default, member.max) = (limits.start, limits.max);
        member.missed = 0;
        if is_second {
            let missing = self.members.values_mut().filter(|member| member.sample.is_none());
            missing.for_each(|member| member.missed += 1);
            self.members.retain(|_, member| member.missed < MISSED_INTERVALS_MAX);
        }
    }

    fn has_all_samples(&self) -> bool {
        self.members.values().all(|member| member.sample.is_some())
    }

    fn decide(&mut self, budget: u16) {
        self.controller.set_budget(budget);
        let samples: Vec<MemberSample> = self
            .members
            .values_mut()
            .filter_map(|member| {
                let SearchMember { default, max, .. } = *member;
                member.sample.take().map(|sample| MemberSample { sample, default, max })
            })
            .collect();
        let Some(decided) = self.controller.observe(&samples) else { return };
        self.round += 1;
        self.decision = Some(decided.decision);
        for (member, workers) in self.members.values_mut().zip(decided.workers) {
            member.given = workers;
        }
    }
}

impl SearchMembership {
    /// Part of the transfer `id` in the search of the transfers to `host`; it joins with its first sample.
    pub(crate) fn new(searches: &Arc<HostSearches>, host: String, id: u64) -> Self {
        Self { searches: Arc::clone(searches), host, id }
    }

    pub(crate) fn observe(&self, sample: &TunerSample, limits: SearchLimits) -> SearchAnswer {
        self.searches.observe(&self.host, self.id, sample, limits)
    }

    /// Leaves the search until the next sample.
    pub(crate) fn leave(&self) {
        self.searches.leave(&self.host, self.id);
    }
}

impl Drop for SearchMembership {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use penstock_tuner::{QueueShares, TcpDifferences};

    use super::*;

    const LIMITS: SearchLimits = SearchLimits {
        start: Parallelism::streams(2),
        known: None,
        max: Parallelism::streams(64),
        budget: 12,
    };

    fn sample(streams: u16) -> TunerSample {
        TunerSample {
            interval_us: 500_000,
            bytes: u64::from(streams) * 500_000,
            active: Parallelism::streams(streams),
            tcp: TcpDifferences::default(),
            queues: QueueShares::default(),
            sender_cpu: 0.0,
            receiver_cpu: 0.0,
        }
    }

    /// Intervals in which each transfer brings a sample in turn, over a path whose streams are capped one by one.
    fn run(members: &[SearchMembership], streams: &mut [u16], intervals: usize) {
        for _ in 0..intervals {
            for (at, member) in members.iter().enumerate() {
                streams[at] = member.observe(&sample(streams[at]), LIMITS).workers.streams;
                // The first stream of a transfer is there in any case.
                assert!(streams.iter().sum::<u16>() <= LIMITS.budget + 1, "{streams:?}");
            }
        }
    }

    #[test]
    fn transfers_of_hosts_share_budget() {
        let searches = Arc::default();
        let join = |host: &str, id| SearchMembership::new(&searches, host.to_owned(), id);
        let mut streams = [2, 2];
        let mut members = vec![join("a", 1)];
        run(&members, &mut streams[..1], 60);
        assert_eq!(streams[0], 12);
        // One to the same host, then to another one instead: room is there once the first has given it back.
        streams[1] = 0;
        for host in ["a", "b"] {
            members.push(join(host, 2));
            run(&members, &mut streams, 120);
            assert_eq!(streams, [6, 6], "{host}");
            members.pop();
            streams[1] = 0;
            run(&members, &mut streams[..1], 120);
            assert_eq!(streams[0], 12, "{host}");
        }
        members.pop();
        assert!(lock(&searches.0).is_empty(), "the last one closes the search");
    }

    #[test]
    fn transfers_to_host_share_readers() {
        let searches = Arc::default();
        let default = Parallelism { readers: 2, ..Parallelism::streams(2) };
        let max = Parallelism { readers: 32, ..Parallelism::streams(64) };
        let limits = SearchLimits { start: default, known: None, max, budget: 64 };
        let join = |id| SearchMembership::new(&searches, "a".to_owned(), id);
        let mut members = vec![join(1)];
        let mut workers = vec![default];
        for transfers in 1..=3 {
            for _ in 0..60 {
                for (member, has) in members.iter().zip(&mut workers) {
                    // Each read has a rate of its own.
                    let slow = TunerSample {
                        bytes: u64::from(has.readers) * 500_000,
                        active: *has,
                        queues: QueueShares { source_empty: 0.8, ..QueueShares::default() },
                        ..sample(2)
                    };
                    *has = member.observe(&slow, limits).workers;
                }
            }
            let most = 32 / transfers;
            assert!(workers.iter().all(|one| *one == workers[0]), "{workers:?}");
            assert!((most * 3 / 4..=most).contains(&workers[0].readers), "{workers:?}");
            assert_eq!(workers[0].streams, 2, "{workers:?}");
            members.push(join(u64::from(transfers) + 1));
            workers.push(default);
        }
    }

    #[test]
    fn silent_transfer_no_longer_counts() {
        let searches = Arc::default();
        let join = |id| SearchMembership::new(&searches, "a".to_owned(), id);
        let (one, silent) = (join(1), join(2));
        assert!(one.observe(&sample(2), LIMITS).decision.is_some());
        silent.observe(&sample(2), LIMITS);
        for _ in 0..10 {
            one.observe(&sample(2), LIMITS);
        }
        assert_eq!(searches.transfers(), BTreeSet::from([1]));
        let (_, transfers) = one.observe(&sample(2), LIMITS).decision.unwrap();
        assert_eq!(transfers, 1);
    }
}
