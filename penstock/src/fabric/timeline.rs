//! Rates, queues and pauses over the time of a run, sampled between events.

use penstock_fabric::Simulation;

use crate::chart::{self, Axis, PlotLine, Quantity};

/// Most samples: beyond it pairs are merged and the interval doubles.
const SAMPLES_MAX: usize = 600;
/// Most ports whose queues are kept; larger networks keep the longest queue only.
const PORTS_MAX: usize = 2_000;
/// Most queues in the plot.
const QUEUES_SHOWN: usize = 5;
/// Samples in a round-trip time at the first interval.
const SAMPLES_PER_ROUND_TRIP: u64 = 4;

/// State at one moment of a run.
#[derive(Debug, Clone)]
struct TimelineSample {
    time_ps: u64,
    delivered_bytes: u64,
    /// Paused time, summed over all ports.
    paused_ps: u64,
    longest_queue_bytes: u64,
    /// Queues of the sampled ports.
    queues_bytes: Vec<u32>,
}

/// Samples since the first flow began.
#[derive(Debug)]
pub(crate) struct RunTimeline {
    begin_ps: u64,
    interval_ps: u64,
    samples: Vec<TimelineSample>,
    /// Ports of switches.
    ports: Vec<u32>,
    keeps_queues: bool,
}

impl RunTimeline {
    /// Creates the timeline of a run that has not begun.
    pub(crate) fn new(simulation: &Simulation) -> Self {
        let network = simulation.network();
        let is_switch = |port: &u32| {
            let node = network.ports[*port as usize].node;
            !network.nodes[node as usize].is_host
        };
        let ports: Vec<u32> = (0..network.ports.len() as u32).filter(is_switch).collect();
        let begin_ps = simulation.flows().iter().map(|flow| flow.start_ps).min().unwrap_or(0);
        let keeps_queues = ports.len() <= PORTS_MAX;
        let interval_ps = (simulation.base_rtt_ps() / SAMPLES_PER_ROUND_TRIP).max(1);
        let mut timeline = Self { begin_ps, interval_ps, samples: Vec::new(), ports, keeps_queues };
        timeline.add(simulation, begin_ps);
        timeline
    }

    /// Time of the next sample.
    pub(crate) fn next_ps(&self) -> u64 {
        let last_ps = self.samples.last().map_or(self.begin_ps, |sample| sample.time_ps);
        last_ps.saturating_add(self.interval_ps)
    }

    /// Samples a run at [`Self::next_ps`], or at its end.
    pub(crate) fn look(&mut self, simulation: &Simulation) {
        let now_ps = simulation.now_ps();
        if self.samples.last().is_some_and(|last| last.time_ps >= now_ps) {
            return;
        }
        self.add(simulation, now_ps);
        if self.samples.len() > SAMPLES_MAX {
            self.merge();
        }
    }

    fn add(&mut self, simulation: &Simulation, time_ps: u64) {
        let queue = |port: &u32| simulation.queue_bytes(*port);
        let kept = if self.keeps_queues { &self.ports[..] } else { &[] };
        let ports = 0..simulation.network().ports.len() as u32;
        self.samples.push(TimelineSample {
            time_ps,
            delivered_bytes: simulation.delivered_bytes(),
            paused_ps: ports.map(|port| simulation.port_result(port).paused_ps).sum(),
            longest_queue_bytes: self.ports.iter().map(queue).max().unwrap_or(0),
            queues_bytes: kept
                .iter()
                .map(|port| queue(port).min(u64::from(u32::MAX)) as u32)
                .collect(),
        });
    }

    /// Merges pairs after the first sample: keeps the second, with the longer queues of both.
    fn merge(&mut self) {
        self.interval_ps = self.interval_ps.saturating_mul(2);
        let mut kept: Vec<TimelineSample> = self.samples.drain(..1).collect();
        let mut rest = std::mem::take(&mut self.samples).into_iter();
        while let Some(first) = rest.next() {
            let Some(mut second) = rest.next() else {
                kept.push(first);
                break;
            };
            second.longest_queue_bytes = second.longest_queue_bytes.max(first.longest_queue_bytes);
            for (longer, other) in second.queues_bytes.iter_mut().zip(&first.queues_bytes) {
                *longer = (*longer).max(*other);
            }
            kept.push(second);
        }
        self.samples = kept;
    }

    fn seconds(&self, time_ps: u64) -> f64 {
        penstock_fabric::time::seconds(time_ps.saturating_sub(self.begin_ps))
    }

    /// Growth rate of a counter as steps.
    fn growth(&self, counter: impl Fn(&TimelineSample) -> f64) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = self
            .samples
            .windows(2)
            .map(|pair| {
                let seconds = self.seconds(pair[1].time_ps) - self.seconds(pair[0].time_ps);
                let more = counter(&pair[1]) - counter(&pair[0]);
                (self.seconds(pair[0].time_ps), more / seconds.max(1e-15))
            })
            .collect();
        if let (Some(last), Some((_, rate))) = (self.samples.last(), points.last().copied()) {
            points.push((self.seconds(last.time_ps), rate));
        }
        points
    }

    /// Plots of the timeline; empty for a run of zero length.
    pub(crate) fn plots(&self, simulation: &Simulation) -> String {
        if self.samples.len() < 2 {
            return String::new();
        }
        let time = Axis::new("time since the first flow began", Quantity::Seconds);
        let stepped = |points| PlotLine { name: String::new(), points, is_stepped: true };
        let mut body = chart::lines(
            "Goodput over time",
            time,
            Axis::new("payload delivered in order, all flows", Quantity::BitsPerSecond),
            &[stepped(self.growth(|sample| sample.delivered_bytes as f64 * 8.0))],
        );
        body += &chart::lines(
            "Queues over time",
            time,
            Axis::new("queue of a switch port", Quantity::Bytes),
            &self.queues(simulation),
        );
        let paused = self.growth(|sample| penstock_fabric::time::seconds(sample.paused_ps));
        if paused.iter().any(|(_, ports)| *ports > 0.0) {
            body += &chart::lines(
                "Pauses over time",
                time,
                Axis::new("ports that are paused, mean number", Quantity::Number),
                &[stepped(paused)],
            );
        }
        let seconds = penstock_fabric::time::seconds(self.interval_ps);
        body + &format!(
            "<p class=\"note\">One sample each {}; queues between two samples are not seen.</p>\n",
            chart::with_unit(Quantity::Seconds, seconds)
        )
    }

    /// Longest queue of the network, or the ports with the longest queues.
    fn queues(&self, simulation: &Simulation) -> Vec<PlotLine> {
        let time = |sample: &TimelineSample| self.seconds(sample.time_ps);
        if !self.keeps_queues {
            let points =
                |sample: &TimelineSample| (time(sample), sample.longest_queue_bytes as f64);
            return vec![PlotLine::new("longest", self.samples.iter().map(points).collect())];
        }
        let most = |at: usize| self.samples.iter().map(|sample| sample.queues_bytes[at]).max();
        let mut ranked: Vec<usize> = (0..self.ports.len()).collect();
        ranked.sort_by_key(|at| (std::cmp::Reverse(most(*at)), *at));
        let shown = ranked.into_iter().take(QUEUES_SHOWN).enumerate();
        let shown = shown.filter(|(rank, at)| *rank == 0 || most(*at) > Some(0));
        let line = |(_, at): (usize, usize)| {
            let points = self
                .samples
                .iter()
                .map(|sample| (time(sample), f64::from(sample.queues_bytes[at])));
            PlotLine::new(simulation.network().show_port(self.ports[at]), points.collect())
        };
        shown.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use penstock_fabric::{FabricNetwork, FlowSpec, Parameters, RunProgress, generate};

    use super::*;

    /// For runs of any length samples are bounded, cover the run and have its sums.
    #[test]
    fn bounded_samples_cover_the_run() {
        let network = FabricNetwork::new(&generate::star(3, 100_000_000_000, 1000)).unwrap();
        let start_ps = 2_000_000_000_000;
        let flows = (1..3).map(|from| FlowSpec::new(from, 0, start_ps, 30_000_000)).collect();
        let mut simulation = Simulation::new(network, Parameters::default(), flows).unwrap();
        let mut timeline = RunTimeline::new(&simulation);
        while simulation.run_to_end(timeline.next_ps()) != RunProgress::Done {
            timeline.look(&simulation);
            assert!(timeline.samples.len() <= SAMPLES_MAX);
        }
        timeline.look(&simulation);
        assert!(timeline.samples.len() > SAMPLES_MAX / 3, "{}", timeline.samples.len());
        assert_eq!(timeline.samples[0].time_ps, start_ps);
        let last = timeline.samples.last().unwrap();
        assert_eq!(last.delivered_bytes, 60_000_000);
        let rates = timeline.growth(|sample| sample.delivered_bytes as f64 * 8.0);
        assert!(rates.iter().all(|(_, rate)| (0.0..101e9).contains(rate)), "{rates:?}");
        let page = timeline.plots(&simulation);
        assert!(page.contains("Goodput over time") && page.contains("(Gb/s)"), "{page}");
        assert!(page.contains("s0&gt;h0"), "the queue of the incast: {page}");
    }
}
