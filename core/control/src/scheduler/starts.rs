//! Starts of queued work on hosts with free slots, balanced among classes.

use std::collections::{BTreeMap, HashMap};

use super::{HostView, PlannedStart, Planner, QueueView, RoundDecision, Snapshot};
use crate::class::WorkClass;

impl Planner {
    /// Takes work from queues while hosts have free slots, by weight among classes.
    pub(super) fn start(&self, snapshot: &Snapshot, decision: &mut RoundDecision) {
        let mut busy: HashMap<&str, usize> = HashMap::new();
        let mut pairs: HashMap<(i64, &str, &str), usize> = HashMap::new();
        let mut of_class: HashMap<&str, usize> = HashMap::new();
        for run in &snapshot.runs {
            for host in [&run.from, &run.to] {
                *busy.entry(host).or_default() += 1;
            }
            *pairs.entry((run.queue, run.from.as_str(), run.to.as_str())).or_default() += 1;
            *of_class.entry(&run.class).or_default() += 1;
        }
        let mut at_site: BTreeMap<&str, Vec<&HostView>> = BTreeMap::new();
        for host in snapshot.hosts.iter().filter(|host| host.alive && !host.draining) {
            let Some(site) = self.site_of(&host.name) else { continue };
            if !snapshot.draining_sites.contains(site) {
                at_site.entry(site).or_default().push(host);
            }
        }
        let now_s = snapshot.now_ms / 1000;
        let mut waiting: Vec<(&QueueView, &WorkClass, u64)> = snapshot
            .queues
            .iter()
            .filter(|queue| queue.batches > 0)
            .filter_map(|queue| {
                let class = self.classes.iter().find(|class| class.name == queue.class)?;
                class.is_open(now_s).then_some((queue, class, queue.batches))
            })
            .collect();
        while !waiting.is_empty() {
            // The class with the fewest runs per weight comes next. Listings come first, as they take little.
            waiting.sort_by_key(|(queue, class, _)| {
                let running = of_class.get(queue.class.as_str()).copied().unwrap_or(0) as u64;
                (
                    !queue.destination.is_empty(),
                    class.tier,
                    (running + 1) * 1_000_000 / u64::from(class.weight.max(1)),
                    queue.id,
                )
            });
            let (queue, _, left) = &mut waiting[0];
            let queue = *queue;
            let none = Vec::new();
            let sources = at_site.get(queue.source.as_str()).unwrap_or(&none);
            let list = queue.destination.is_empty();
            let destinations = match list {
                true => &none,
                false => at_site.get(queue.destination.as_str()).unwrap_or(&none),
            };
            let room = |host: &HostView| {
                let used = busy.get(host.name.as_str()).copied().unwrap_or(0);
                (host.capacity.transfers as usize).saturating_sub(used)
            };
            let load = |host: &HostView| busy.get(host.name.as_str()).copied().unwrap_or(0);
            let best = if list {
                let free = sources.iter().filter(|host| room(host) > 0);
                free.min_by_key(|host| (load(host), &host.name)).map(|host| (*host, None))
            } else {
                let pairs = &pairs;
                let all = sources
                    .iter()
                    .flat_map(|from| destinations.iter().map(move |to| (*from, Some(*to))));
                all.filter(|(from, to)| {
                    let to = to.expect("a pair");
                    let running = pairs.get(&(queue.id, from.name.as_str(), to.name.as_str()));
                    room(from) > 0
                        && room(to) > 0
                        && running.copied().unwrap_or(0) < self.rules.runs_per_pair
                })
                .min_by_key(|(from, to)| {
                    let to = to.expect("a pair");
                    (load(from).max(load(to)), load(from) + load(to), &from.name, &to.name)
                })
            };
            let Some((from, to)) = best else {
                waiting.remove(0);
                continue;
            };
            let to_name = to.map_or("", |to| to.name.as_str());
            *busy.entry(&from.name).or_default() += 1;
            if let Some(to) = to {
                *busy.entry(&to.name).or_default() += 1;
            }
            *pairs.entry((queue.id, &from.name, to_name)).or_default() += 1;
            *of_class.entry(&queue.class).or_default() += 1;
            decision.starts.push(PlannedStart {
                queue: queue.id,
                from: from.name.clone(),
                to: to_name.to_owned(),
            });
            *left -= 1;
            if *left == 0 {
                waiting.remove(0);
            }
        }
    }
}
