//! Scenarios: a network, requests, clients' calls and faults, all drawn from one seed.

use std::time::Duration;

use penstock_control::batch::BatchLimits;
use penstock_control::class::WorkClass;
use penstock_controller::config::Config;
use penstock_controller::simulation::{ClientRequest, DrainKind};
use penstock_random::Random;
use penstock_topology::Topology;

/// Share of faults in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intensity {
    /// No faults, and clients only submit.
    None,
    /// Faults and clients' calls by chance.
    Full,
}

/// Deliberate error in a simulated part, which shows that an invariant detects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Agents keep the ordered rates after their lease has expired.
    LeaseIgnored,
    /// Receiving hosts keep the tickets and sessions of withdrawn orders.
    TicketsKept,
    /// Cancelled transfers report their end and go on writing.
    CancelledWritersKept,
    /// Hosts report files as done that they have not committed.
    CommitSkipped,
    /// The controller's topology has twice the capacity of the network.
    CapacityDoubled,
    /// Agents stop when the faults end.
    AgentsStopped,
    /// Agents begin withdrawn orders again.
    WithdrawnOrdersBegun,
}

/// Options of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Virtual time in which requests arrive and faults happen, in milliseconds; none for some minutes by chance.
    pub active_ms: Option<u64>,
    /// Frequency of injected faults.
    pub intensity: Intensity,
    /// Error in a simulated part; none but in tests of the invariants.
    pub defect: Option<Defect>,
}

impl Default for Options {
    fn default() -> Self {
        Self { active_ms: None, intensity: Intensity::Full, defect: None }
    }
}

/// A host of the network.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedHost {
    pub(crate) name: String,
    pub(crate) site: String,
    pub(crate) rate_bps: u64,
}

/// A link with its ends and capacity.
#[derive(Debug, Clone)]
pub(crate) struct LinkSpec {
    pub(crate) name: String,
    pub(crate) ends: [String; 2],
    pub(crate) rate_bps: u64,
}

/// A fault with its begin and end.
#[derive(Debug, Clone)]
pub(crate) struct InjectedFault {
    pub(crate) at_ms: u64,
    pub(crate) lasts_ms: u64,
    pub(crate) kind: InjectedFaultKind,
}

/// Kind of a fault; hosts are indices.
#[derive(Debug, Clone)]
pub(crate) enum InjectedFaultKind {
    /// Messages between this agent and the controller are lost.
    Partition(usize),
    /// Messages between all agents and the controller are lost.
    ControllerPartition,
    /// This share of all messages is lost, in thousandths.
    Loss(u64),
    /// Messages take up to this time, so that they arrive in another order.
    Delay(u64),
    /// The agent's process ends, and starts again at the end of the fault.
    AgentCrash(usize),
    /// The agent's process does not run, but keeps what it has.
    AgentHang(usize),
    /// Hosts cannot connect to each other.
    DataPartition(usize, usize),
    /// Sending and writing at this host slow down by this factor.
    SlowHost(usize, u64),
    /// The controller ends at the next message: before it is stored, or after, without an answer.
    ControllerCrash { after_commit: bool },
    /// The controller's answers take this time.
    SlowDatabase(u64),
    /// The controller's clock jumps by this time in milliseconds, and back at the end.
    ClockJump(i64),
}

/// A call of a client at a time.
#[derive(Debug, Clone)]
pub(crate) enum ClientCall {
    Submit(usize),
    Cancel(usize),
    Pause(usize, bool),
    Drain(usize, Option<DrainKind>),
}

/// A file that exists at a source.
#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    pub(crate) site: String,
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

/// Network, calls and faults of one seed.
#[derive(Debug)]
pub(crate) struct SimulationScenario {
    pub(crate) config: Config,
    pub(crate) hosts: Vec<SimulatedHost>,
    pub(crate) links: Vec<LinkSpec>,
    pub(crate) requests: Vec<ClientRequest>,
    pub(crate) sources: Vec<SourceFile>,
    pub(crate) calls: Vec<(u64, ClientCall)>,
    pub(crate) faults: Vec<InjectedFault>,
    /// Time from which no new fault begins and no client calls.
    pub(crate) calm_ms: u64,
    /// Share of files that fail once, in thousandths.
    pub(crate) file_faults_permille: u64,
    /// Share of steps of a session with a fault of its connections or of its storage, in thousandths.
    pub(crate) session_faults_permille: u64,
    pub(crate) safe_rate_bps: u64,
    pub(crate) defect: Option<Defect>,
}

const GIGABIT_BPS: u64 = 1_000_000_000;

const MEGABYTE_BYTES: u64 = 1_000_000;

impl SimulationScenario {
    /// Draws the scenario of a seed.
    pub(crate) fn draw(random: &mut Random, options: &Options) -> Self {
        let controller_factor = if options.defect == Some(Defect::CapacityDoubled) { 2 } else { 1 };
        let (hosts, links, topology) = draw_network(random, controller_factor);
        let is_calm = options.intensity == Intensity::None;
        let active_ms = options.active_ms.unwrap_or_else(|| random.between(20, 150) * 1000);
        let mut config = Config::new(topology, vec![WorkClass::new("default")]);
        config.lease_seconds = random.between(4, 31) as u32;
        config.lost_after = Duration::from_secs(random.between(8, 40));
        config.gone_after = config.lost_after + Duration::from_secs(random.between(1, 60));
        config.batch = BatchLimits {
            files: random.between(2, 12) as usize,
            bytes: random.between(200, 4000) * MEGABYTE_BYTES,
        };
        config.rules.runs_per_pair = random.between(1, 3) as usize;
        let mut scenario = Self {
            config,
            hosts,
            links,
            requests: Vec::new(),
            sources: Vec::new(),
            calls: Vec::new(),
            faults: Vec::new(),
            calm_ms: active_ms,
            file_faults_permille: if is_calm { 0 } else { random.pick(&[0, 0, 50, 200]) },
            session_faults_permille: if is_calm { 0 } else { random.pick(&[0, 2, 20, 100]) },
            safe_rate_bps: random.pick(&[50, 200, 1000]) * MEGABYTE_BYTES,
            defect: options.defect,
        };
        scenario.draw_requests(random, is_calm);
        if !is_calm {
            scenario.draw_faults(random);
        }
        scenario.calls.sort_by_key(|(at, _)| *at);
        scenario
    }

    fn sites(&self) -> Vec<String> {
        let mut sites: Vec<String> = self.hosts.iter().map(|host| host.site.clone()).collect();
        sites.dedup();
        sites
    }

    fn draw_requests(&mut self, random: &mut Random, is_calm: bool) {
        let sites = self.sites();
        let minutes = self.calm_ms / 60_000;
        let count = random.between(1, 5) + minutes / 2;
        for _ in 0..count {
            let number = self.requests.len();
            let at = random.below(self.calm_ms * 2 / 3 + 1);
            let source = random.below(sites.len() as u64) as usize;
            let other = (source + 1 + random.below(sites.len() as u64 - 1) as usize) % sites.len();
            // Few destination directories, so that requests follow each other to the same files.
            let to = format!("/in/{}", random.below(2));
            let from = format!("/out/{number}");
            let files = random.between(1, 14);
            let mut list = Vec::new();
            for file in 0..files {
                let bytes =
                    random.pick(&[1, 20, 100, 400, 1500]) * MEGABYTE_BYTES + random.below(1000);
                let path = format!("f{file:02}");
                let full = format!("{from}/{path}");
                // Some files do not exist.
                if is_calm || !random.one_in(60) {
                    self.sources.push(SourceFile {
                        site: sites[source].clone(),
                        path: full,
                        bytes,
                    });
                }
                list.push((path, random.one_in(2).then_some(bytes)));
            }
            self.requests.push(ClientRequest {
                key: format!("key-{number}"),
                class: "default".to_owned(),
                source: sites[source].clone(),
                destination: sites[other].clone(),
                from,
                to,
                files: (!random.one_in(4)).then_some(list),
                attempts: random.between(2, 6) as u32,
            });
            self.calls.push((at, ClientCall::Submit(number)));
            if is_calm {
                continue;
            }
            if random.one_in(4) {
                self.calls.push((at + random.below(60_000), ClientCall::Submit(number)));
            }
            if random.one_in(4) {
                let cancel = at + random.below(60_000);
                self.calls.push((cancel, ClientCall::Cancel(number)));
                if random.one_in(2) {
                    self.draw_resubmission(random, number, cancel);
                }
            }
            if random.one_in(5) {
                let pause = at + random.below(40_000);
                self.calls.push((pause, ClientCall::Pause(number, true)));
                self.calls.push((pause + random.below(30_000), ClientCall::Pause(number, false)));
            }
        }
        if !is_calm && random.one_in(3) {
            let host = random.below(self.hosts.len() as u64) as usize;
            let kind = random.pick(&[DrainKind::Idle, DrainKind::Now, DrainKind::Gone]);
            let at = random.below(self.calm_ms);
            self.calls.push((at, ClientCall::Drain(host, Some(kind))));
            self.calls.push((at + random.below(40_000), ClientCall::Drain(host, None)));
        }
    }

    /// A cancelled request's files are requested again under another key; a refused client repeats its call.
    fn draw_resubmission(&mut self, random: &mut Random, cancelled: usize, cancel_ms: u64) {
        let number = self.requests.len();
        let mut again = self.requests[cancelled].clone();
        again.key = format!("key-{number}");
        self.requests.push(again);
        let mut at_ms = cancel_ms;
        for _ in 0..4 {
            at_ms += random.pick(&[100, 3_000, 20_000]);
            self.calls.push((at_ms, ClientCall::Submit(number)));
        }
    }

    fn draw_faults(&mut self, random: &mut Random) {
        let count = random.below(7) + self.calm_ms / 60_000;
        for _ in 0..count {
            let hosts = self.hosts.len() as u64;
            let host = random.below(hosts) as usize;
            let other = (host + 1 + random.below(hosts - 1) as usize) % self.hosts.len();
            let kind = match random.below(14) {
                0 | 1 => InjectedFaultKind::Partition(host),
                2 => InjectedFaultKind::Loss(random.pick(&[20, 200, 600])),
                3 => InjectedFaultKind::Delay(random.pick(&[500, 5_000, 20_000])),
                4 | 5 => InjectedFaultKind::AgentCrash(host),
                6 => InjectedFaultKind::AgentHang(host),
                7 => InjectedFaultKind::DataPartition(host, other),
                8 => InjectedFaultKind::SlowHost(host, random.pick(&[3, 20, 1000])),
                9 => InjectedFaultKind::ControllerCrash { after_commit: false },
                10 => InjectedFaultKind::ControllerCrash { after_commit: true },
                11 => InjectedFaultKind::SlowDatabase(random.pick(&[300, 3_000, 9_000])),
                12 => InjectedFaultKind::ControllerPartition,
                _ => {
                    let size = random.pick(&[500, 5_000, 60_000, 600_000]);
                    InjectedFaultKind::ClockJump(if random.one_in(2) { size } else { -size })
                }
            };
            // Short and long against lost_after and gone_after.
            let lasts_ms = random.pick(&[500, 4_000, 15_000, 45_000, 100_000]);
            let at_ms = random.below(self.calm_ms);
            self.faults.push(InjectedFault {
                at_ms,
                lasts_ms: random.between(lasts_ms / 4, lasts_ms),
                kind,
            });
        }
    }
}

/// Draws a network, and a topology in which each link has `factor` times its rate.
fn draw_network(random: &mut Random, factor: u64) -> (Vec<SimulatedHost>, Vec<LinkSpec>, Topology) {
    let sites = random.between(2, 4) as usize;
    let extra = random.below(3) as usize;
    let mut hosts = Vec::new();
    let mut links = Vec::new();
    for number in 0..sites {
        let count = 1 + usize::from(number < extra);
        for index in 0..count {
            let rate_bps = random.pick(&[1, 2, 10]) * GIGABIT_BPS;
            let name = format!("h{number}{index}");
            let site = format!("s{number}");
            let ends = [format!("{name}:eth0"), format!("w{number}")];
            links.push(LinkSpec { name: format!("l-{name}"), ends, rate_bps });
            hosts.push(SimulatedHost { name, site, rate_bps });
        }
    }
    for one in 0..sites {
        for other in one + 1..sites {
            let rate_bps = random.pick(&[1, 3, 10]) * GIGABIT_BPS;
            let ends = [format!("w{one}"), format!("w{other}")];
            links.push(LinkSpec { name: format!("wan-{one}{other}"), ends, rate_bps });
        }
    }
    let mut text = "name = \"simulated\"\n".to_owned();
    for number in 0..sites {
        text += &format!("[[site]]\nname = \"s{number}\"\n[[switch]]\nname = \"w{number}\"\n");
    }
    for host in &hosts {
        let SimulatedHost { name, site, rate_bps } = host;
        let rate = rate_bps / GIGABIT_BPS * factor;
        text += &format!(
            "[[host]]\nname = \"{name}\"\nsite = \"{site}\"\ninterface = [{{ name = \"eth0\", rate = \"{rate}G\" }}]\n"
        );
    }
    for LinkSpec { name, ends: [one, other], rate_bps } in &links {
        let rate = rate_bps / GIGABIT_BPS * factor;
        text += &format!(
            "[[link]]\nname = \"{name}\"\nends = [\"{one}\", \"{other}\"]\nrate = \"{rate}G\"\n"
        );
    }
    let topology = Topology::read(&text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    (hosts, links, topology)
}
