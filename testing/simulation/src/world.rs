//! The event loop of a simulation: agents, controller, clients and faults in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_control::orders::Report;
use penstock_controller::simulation::{
    ClientRequest, FileStatus, SimulatedController, SubmitReply,
};
use penstock_random::Random;

use crate::agent::{AgentProcess, AgentRequest, ControllerAnswer};
use crate::data_plane::{DataHost, DataPlane, FileContent, FileKey, join};
use crate::engine::{SharedPlane, lock};
use crate::events::SimulationQueue;
use crate::invariants::{InvariantError, Invariants, check_allotments, violated};
use crate::scenario::{
    ClientCall, Defect, InjectedFault, InjectedFaultKind, Options, SimulationScenario,
};

/// Unix milliseconds at the begin.
const BEGIN_MS: i64 = 1_795_392_000_000;

/// Time between steps of an agent with orders.
const BUSY_STEP_MS: u64 = 100;

/// Time between steps of an agent without orders.
const IDLE_STEP_MS: u64 = 500;

/// Time between rounds without a request for one.
const ROUND_MS: u64 = 1000;

/// Time from a request for a round to the round.
const REQUESTED_ROUND_MS: u64 = 50;

/// Time after the last fault in which every request ends.
pub(crate) const END_MS: u64 = 3_600_000;

/// Time after the last request in which agents have nothing left.
const REST_MS: u64 = 120_000;

/// Lines of the trace in a failure.
const TRACE_LINES: usize = 60;

/// Delay of a message without a fault, in milliseconds.
const DELAY_MS: (u64, u64) = (1, 40);

/// Counts of one simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimulationSummary {
    /// Simulated time in milliseconds.
    pub simulated_ms: u64,
    /// Number of submitted requests.
    pub requests: u64,
    /// Files, and how many of them are done.
    pub files: (u64, u64),
    /// Number of injected faults that took effect.
    pub faults: u64,
    /// Messages between agents and controller.
    pub messages: u64,
    /// Hash of the whole trace.
    pub trace_hash: u64,
}

/// A violated invariant with the events before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvariantViolation {
    /// Seed that reproduces it.
    pub seed: u64,
    /// Description of the violation.
    pub text: String,
    /// Last events before it.
    pub trace: Vec<String>,
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "seed {}: {}", self.seed, self.text)
    }
}

#[derive(Debug)]
enum SimulationEvent {
    /// A step of an agent, of one start of its process.
    Step {
        host: usize,
        start: u64,
    },
    /// A request of an agent arrives at the controller.
    Arrival {
        host: usize,
        start: u64,
        request: u64,
        content: AgentRequest,
    },
    /// An answer arrives at an agent.
    Answer {
        host: usize,
        start: u64,
        request: u64,
        answer: ControllerAnswer,
    },
    /// A round; only the one of the last number takes place.
    Round(u64),
    Call(ClientCall),
    FaultBegin(usize),
    FaultEnd(usize),
    ControllerStart,
    /// End of the time in which faults and calls begin.
    Calm,
}

#[derive(Debug)]
struct World {
    now_ms: u64,
    begin: Instant,
    random: Random,
    scenario: SimulationScenario,
    controller: SimulatedController,
    is_controller_up: bool,
    /// Crash at the next message: true after the commit.
    crash: Option<bool>,
    crash_lasts_ms: u64,
    clock_offset_ms: i64,
    agents: Vec<Option<AgentProcess>>,
    hung: Vec<bool>,
    /// Time at which each process last ran again after a hang.
    resumed_ms: Vec<u64>,
    plane: SharedPlane,
    events: SimulationQueue<SimulationEvent>,
    next_request: u64,
    next_round: u64,
    active_faults: Vec<bool>,
    /// Ids of submitted requests by their index in the scenario.
    submitted: BTreeMap<usize, i64>,
    invariants: Invariants,
    trace: VecDeque<String>,
    summary: SimulationSummary,
    is_calm: bool,
}

/// Runs the simulation of a seed.
///
/// # Errors
/// The first violation of an invariant.
pub fn run(seed: u64, options: &Options) -> Result<SimulationSummary, Box<InvariantViolation>> {
    let mut random = Random::new(seed);
    let scenario = SimulationScenario::draw(&mut random, options);
    let mut world = World::new(random, scenario)
        .map_err(|found| Box::new(InvariantViolation { seed, text: found.0, trace: Vec::new() }))?;
    match world.play() {
        Ok(()) => Ok(world.summary),
        Err(InvariantError(text)) => {
            Err(Box::new(InvariantViolation { seed, text, trace: world.trace.into() }))
        }
    }
}

impl World {
    fn new(mut random: Random, scenario: SimulationScenario) -> Result<Self, InvariantError> {
        // Databases in memory of one process need different names.
        static DATABASES: AtomicU64 = AtomicU64::new(0);
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("simulation-{number}");
        let controller = SimulatedController::open(scenario.config.clone(), &name)?;
        let mut plane = DataPlane::new(random.fork(), scenario.file_faults_permille);
        plane.defect = scenario.defect;
        plane.session_faults_permille = scenario.session_faults_permille;
        for (number, file) in scenario.sources.iter().enumerate() {
            let content = FileContent { identity: number as u64 + 1, bytes: file.bytes };
            plane.files.insert((file.site.clone(), file.path.clone()), content);
        }
        for host in &scenario.hosts {
            let state = DataHost {
                site: host.site.clone(),
                is_up: false,
                is_hung: false,
                slowness: 1,
                start: 0,
                tickets: BTreeMap::new(),
                stored_tickets: None,
            };
            plane.hosts.insert(host.name.clone(), state);
        }
        let hosts = scenario.hosts.len();
        let mut world = Self {
            now_ms: 0,
            begin: Instant::now(),
            random,
            controller,
            is_controller_up: true,
            crash: None,
            crash_lasts_ms: 0,
            clock_offset_ms: 0,
            agents: (0..hosts).map(|_| None).collect(),
            hung: vec![false; hosts],
            resumed_ms: vec![0; hosts],
            plane: Arc::new(Mutex::new(plane)),
            events: SimulationQueue::default(),
            next_request: 0,
            next_round: 0,
            active_faults: vec![false; scenario.faults.len()],
            submitted: BTreeMap::new(),
            invariants: Invariants::default(),
            trace: VecDeque::new(),
            summary: SimulationSummary {
                trace_hash: 0xcbf2_9ce4_8422_2325,
                ..SimulationSummary::default()
            },
            is_calm: false,
            scenario,
        };
        world.set_clock();
        for host in 0..hosts {
            world.start_agent(host);
        }
        for (number, fault) in world.scenario.faults.iter().enumerate() {
            world.events.add(fault.at_ms, SimulationEvent::FaultBegin(number));
        }
        for (at_ms, call) in &world.scenario.calls {
            world.events.add(*at_ms, SimulationEvent::Call(call.clone()));
        }
        world.events.add(world.scenario.calm_ms, SimulationEvent::Calm);
        world.plan_round(ROUND_MS);
        Ok(world)
    }

    fn now(&self) -> Instant {
        self.begin + Duration::from_millis(self.now_ms)
    }

    fn set_clock(&self) {
        self.controller.set_time(BEGIN_MS + self.now_ms as i64 + self.clock_offset_ms);
    }

    /// Adds a line to the trace.
    fn note(&mut self, text: impl fmt::Display) {
        let line = format!("{:>9.3} s  {text}", self.now_ms as f64 / 1000.0);
        for byte in line.bytes() {
            // FNV-1a.
            let hash = self.summary.trace_hash ^ u64::from(byte);
            self.summary.trace_hash = hash.wrapping_mul(0x0100_0000_01b3);
        }
        if self.trace.len() == TRACE_LINES {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    fn play(&mut self) -> Result<(), InvariantError> {
        let mut ended_ms = None;
        while let Some((at_ms, event)) = self.events.next() {
            self.now_ms = at_ms;
            self.set_clock();
            lock(&self.plane).advance(at_ms);
            let is_round = matches!(event, SimulationEvent::Round(_));
            self.handle(event)?;
            self.check_plane()?;
            if !is_round || !self.is_controller_up {
                continue;
            }
            let is_over = self.check_store()? && self.is_calm;
            if !is_over && at_ms > self.scenario.calm_ms + END_MS {
                return violated(self.describe_open()?);
            }
            ended_ms = if is_over { ended_ms.or(Some(at_ms)) } else { None };
            if let Some(ended_ms) = ended_ms {
                match self.busy() {
                    None => break,
                    Some(text) if at_ms > ended_ms + REST_MS => return violated(text),
                    Some(_) => {}
                }
            }
        }
        self.summary.simulated_ms = self.now_ms;
        Ok(())
    }

    fn handle(&mut self, event: SimulationEvent) -> Result<(), InvariantError> {
        match event {
            SimulationEvent::Step { host, start } => self.step_agent(host, start),
            SimulationEvent::Arrival { host, start, request, content } => {
                self.arrive(host, start, request, content)?;
            }
            SimulationEvent::Answer { host, start, request, answer } => {
                self.answer(host, start, request, answer);
            }
            SimulationEvent::Round(number) if number == self.next_round => {
                if self.is_controller_up {
                    self.controller.round()?;
                    check_allotments(&self.controller.runs()?, &self.scenario.links)?;
                }
                self.plan_round(ROUND_MS);
            }
            SimulationEvent::Round(_) => {}
            SimulationEvent::Call(call) => self.call(call)?,
            SimulationEvent::FaultBegin(number) => self.begin_fault(number),
            SimulationEvent::FaultEnd(number) => self.end_fault(number),
            SimulationEvent::ControllerStart => {
                self.controller.restart();
                self.is_controller_up = true;
                self.note("controller: starts");
            }
            SimulationEvent::Calm => self.calm()?,
        }
        if self.is_controller_up && self.controller.take_round_request() {
            self.plan_round(REQUESTED_ROUND_MS);
        }
        Ok(())
    }

    fn plan_round(&mut self, after_ms: u64) {
        self.next_round += 1;
        self.events.add(self.now_ms + after_ms, SimulationEvent::Round(self.next_round));
    }

    fn start_agent(&mut self, host: usize) {
        let spec = self.scenario.hosts[host].clone();
        lock(&self.plane).restart(&spec.name);
        let (random, now) = (self.random.fork(), self.now());
        let safe_rate_bps = self.scenario.safe_rate_bps;
        let agent = AgentProcess::start(spec, &self.plane, safe_rate_bps, random, now);
        self.agents[host] = Some(agent);
        let start = self.start_of(host);
        let offset = self.random.below(BUSY_STEP_MS);
        self.events.add(self.now_ms + offset, SimulationEvent::Step { host, start });
    }

    fn start_of(&self, host: usize) -> u64 {
        lock(&self.plane).hosts[&self.scenario.hosts[host].name].start
    }

    fn step_agent(&mut self, host: usize, start: u64) {
        let is_stopped = self.is_calm && self.scenario.defect == Some(Defect::AgentsStopped);
        if start != self.start_of(host) || self.agents[host].is_none() || is_stopped {
            return;
        }
        let now = self.now();
        let mut next = BUSY_STEP_MS;
        if !self.hung[host] {
            let Some(agent) = &mut self.agents[host] else { return };
            let request = agent.step(now, &mut self.next_request);
            next = if agent.is_busy() { BUSY_STEP_MS } else { IDLE_STEP_MS };
            if let Some((request, content)) = request {
                self.request(host, start, request, content);
            }
        }
        self.events.add(self.now_ms + next, SimulationEvent::Step { host, start });
    }

    fn faults(&self) -> impl Iterator<Item = &InjectedFaultKind> {
        let active = self.scenario.faults.iter().zip(&self.active_faults);
        active.filter(|(_, active)| **active).map(|(fault, _)| &fault.kind)
    }

    /// Delay of a message between an agent and the controller; none if it is lost.
    fn message_delay(&mut self, host: usize) -> Option<u64> {
        let mut permille = 0;
        let mut longest_ms = DELAY_MS.1;
        let mut is_cut = false;
        for fault in self.faults() {
            match fault {
                InjectedFaultKind::Partition(of) => is_cut |= *of == host,
                InjectedFaultKind::ControllerPartition => is_cut = true,
                InjectedFaultKind::Loss(share) => permille = permille.max(*share),
                InjectedFaultKind::Delay(ms) => longest_ms = longest_ms.max(*ms),
                _ => {}
            }
        }
        if is_cut || self.random.below(1000) < permille {
            return None;
        }
        Some(self.random.between(DELAY_MS.0, longest_ms))
    }

    /// Sends a request of an agent to the controller, sometimes twice.
    fn request(&mut self, host: usize, start: u64, request: u64, content: AgentRequest) {
        self.summary.messages += 1;
        let is_calm = self.is_calm || self.scenario.faults.is_empty();
        let copies = if !is_calm && self.random.one_in(50) { 2 } else { 1 };
        for _ in 0..copies {
            if let Some(delay) = self.message_delay(host) {
                let content = content.clone();
                let event = SimulationEvent::Arrival { host, start, request, content };
                self.events.add(self.now_ms + delay, event);
            }
        }
    }

    fn reply(&mut self, host: usize, start: u64, request: u64, answer: ControllerAnswer) {
        let slow_ms = self.faults().map(|fault| match fault {
            InjectedFaultKind::SlowDatabase(ms) => *ms,
            _ => 0,
        });
        let slow_ms = slow_ms.max().unwrap_or(0);
        if let Some(delay) = self.message_delay(host) {
            let event = SimulationEvent::Answer { host, start, request, answer };
            self.events.add(self.now_ms + slow_ms + delay, event);
        }
    }

    fn arrive(
        &mut self,
        host: usize,
        start: u64,
        request: u64,
        content: AgentRequest,
    ) -> Result<(), InvariantError> {
        let crash = self.crash.take();
        if crash == Some(false) {
            self.crash_controller();
        }
        if !self.is_controller_up {
            self.reply(host, start, request, ControllerAnswer::Error);
            return Ok(());
        }
        let name = self.scenario.hosts[host].name.clone();
        let answer = match content {
            AgentRequest::Report(bytes) => {
                let report: Report = serde_json::from_slice(&bytes)
                    .map_err(|error| InvariantError(error.to_string()))?;
                let instructions = self.controller.report(&name, report)?;
                self.invariants.check_instructions(&name, &instructions)?;
                ControllerAnswer::Instructions(
                    serde_json::to_vec(&instructions).expect("plain data"),
                )
            }
            AgentRequest::Fetch(order) => {
                let found = self.controller.order(&name, order)?;
                let bytes = found.map(|order| serde_json::to_vec(&order).expect("plain data"));
                self.note(format_args!("{name}: fetches order {order}"));
                ControllerAnswer::Order(bytes)
            }
        };
        if crash == Some(true) {
            self.crash_controller();
            return Ok(());
        }
        self.reply(host, start, request, answer);
        Ok(())
    }

    fn answer(&mut self, host: usize, start: u64, request: u64, answer: ControllerAnswer) {
        if start != self.start_of(host) {
            return;
        }
        if self.hung[host] {
            // It waits in the socket until the process runs again.
            let event = SimulationEvent::Answer { host, start, request, answer };
            self.events.add(self.now_ms + BUSY_STEP_MS, event);
            return;
        }
        let now = self.now();
        let Some(agent) = &mut self.agents[host] else { return };
        let next = agent.receive(request, answer, now, &mut self.next_request);
        if let Some((request, content)) = next {
            self.request(host, start, request, content);
        }
    }

    fn crash_controller(&mut self) {
        self.note("controller: crashes");
        self.is_controller_up = false;
        self.events.add(self.now_ms + self.crash_lasts_ms, SimulationEvent::ControllerStart);
    }

    fn call(&mut self, call: ClientCall) -> Result<(), InvariantError> {
        if self.is_calm
            && matches!(call, ClientCall::Pause(_, true) | ClientCall::Drain(_, Some(_)))
        {
            return Ok(());
        }
        if !self.is_controller_up {
            self.events.add(self.now_ms + 2000, SimulationEvent::Call(call));
            return Ok(());
        }
        match &call {
            ClientCall::Submit(number) => {
                let asked: ClientRequest = self.scenario.requests[*number].clone();
                let reply = self.controller.submit(asked)?;
                self.note(format_args!("client: submits request {number}: {reply:?}"));
                match (reply, self.submitted.get(number)) {
                    (SubmitReply::New(id), None) => {
                        self.submitted.insert(*number, id);
                    }
                    (SubmitReply::Same(id), Some(first)) if id == *first => {}
                    (SubmitReply::Refused, None) => {}
                    (reply, first) => {
                        return violated(format!(
                            "request {number} is {first:?} and now {reply:?}"
                        ));
                    }
                }
            }
            ClientCall::Cancel(number) => {
                if let Some(id) = self.submitted.get(number) {
                    self.controller.cancel(*id)?;
                    self.note(format_args!("client: cancels request {number}"));
                }
            }
            ClientCall::Pause(number, paused) => {
                if let Some(id) = self.submitted.get(number) {
                    self.controller.pause(*id, *paused)?;
                    self.note(format_args!("client: request {number} paused: {paused}"));
                }
            }
            ClientCall::Drain(host, kind) => {
                let name = self.scenario.hosts[*host].name.clone();
                // An operator declares a host gone that does not run, and never one that does.
                let runs = self.agents[*host].is_some() && !self.hung[*host];
                let gone = penstock_controller::simulation::DrainKind::Gone;
                if *kind == Some(gone) && (runs || self.hung[*host]) {
                    return Ok(());
                }
                self.controller.drain(&name, *kind)?;
                self.note(format_args!("client: drain of {name}: {kind:?}"));
            }
        }
        Ok(())
    }

    fn begin_fault(&mut self, number: usize) {
        let InjectedFault { lasts_ms, kind, .. } = self.scenario.faults[number].clone();
        self.summary.faults += 1;
        self.active_faults[number] = true;
        self.note(format_args!("fault {number} for {lasts_ms} ms: {kind:?}"));
        match kind {
            InjectedFaultKind::AgentCrash(host) => {
                lock(&self.plane).crash(&self.scenario.hosts[host].name);
                self.agents[host] = None;
                self.hung[host] = false;
            }
            InjectedFaultKind::AgentHang(host) if self.agents[host].is_some() => {
                self.set_hung(host, true)
            }
            InjectedFaultKind::DataPartition(one, other) => {
                let pair = (self.host_name(one), self.host_name(other));
                lock(&self.plane).cut.insert(pair);
            }
            InjectedFaultKind::SlowHost(host, slowness) => self.set_slowness(host, slowness),
            InjectedFaultKind::ControllerCrash { after_commit } if self.is_controller_up => {
                (self.crash, self.crash_lasts_ms) = (Some(after_commit), lasts_ms);
            }
            InjectedFaultKind::ClockJump(ms) => self.clock_offset_ms += ms,
            _ => {}
        }
        self.events.add(self.now_ms + lasts_ms, SimulationEvent::FaultEnd(number));
    }

    fn end_fault(&mut self, number: usize) {
        if !std::mem::take(&mut self.active_faults[number]) {
            return;
        }
        let kind = self.scenario.faults[number].kind.clone();
        self.note(format_args!("end of fault {number}: {kind:?}"));
        match kind {
            InjectedFaultKind::AgentCrash(host) if self.agents[host].is_none() => {
                self.start_agent(host)
            }
            InjectedFaultKind::AgentHang(host) => self.set_hung(host, false),
            InjectedFaultKind::DataPartition(one, other) => {
                let pair = (self.host_name(one), self.host_name(other));
                lock(&self.plane).cut.remove(&pair);
            }
            InjectedFaultKind::SlowHost(host, _) => self.set_slowness(host, 1),
            InjectedFaultKind::ControllerCrash { .. } => self.crash = None,
            InjectedFaultKind::ClockJump(ms) => self.clock_offset_ms -= ms,
            _ => {}
        }
    }

    fn host_name(&self, host: usize) -> String {
        self.scenario.hosts[host].name.clone()
    }

    fn set_hung(&mut self, host: usize, hung: bool) {
        self.hung[host] = hung;
        self.resumed_ms[host] = self.now_ms;
        let mut plane = lock(&self.plane);
        let state = plane.hosts.get_mut(&self.scenario.hosts[host].name);
        state.expect("a host of the scenario").is_hung = hung;
    }

    fn set_slowness(&mut self, host: usize, slowness: u64) {
        let mut plane = lock(&self.plane);
        let state = plane.hosts.get_mut(&self.scenario.hosts[host].name);
        state.expect("a host of the scenario").slowness = slowness;
    }

    /// Ends all faults, drains and pauses.
    fn calm(&mut self) -> Result<(), InvariantError> {
        if !self.is_controller_up {
            self.events.add(self.now_ms + 1000, SimulationEvent::Calm);
            return Ok(());
        }
        self.is_calm = true;
        for number in 0..self.scenario.faults.len() {
            self.end_fault(number);
        }
        self.note("all faults end");
        lock(&self.plane).file_faults_permille = 0;
        lock(&self.plane).session_faults_permille = 0;
        for host in 0..self.scenario.hosts.len() {
            if self.agents[host].is_none() {
                self.start_agent(host);
            }
            let name = self.host_name(host);
            self.controller.drain(&name, None)?;
        }
        for id in self.submitted.values() {
            self.controller.pause(*id, false)?;
        }
        Ok(())
    }

    /// Checks what concerns agents and files.
    fn check_plane(&mut self) -> Result<(), InvariantError> {
        let (notes, violation) = {
            let mut plane = lock(&self.plane);
            (std::mem::take(&mut plane.notes), plane.violation.take())
        };
        for note in notes {
            self.note(note);
        }
        if let Some(text) = violation {
            return violated(text);
        }
        let now = self.now();
        // A step later than the expiry of its lease an agent sends at the safe rate at most.
        let margin_ms = 2 * BUSY_STEP_MS;
        let margin = Duration::from_millis(margin_ms);
        for (host, agent) in self.agents.iter().enumerate() {
            let Some(agent) = agent.as_ref().filter(|_| !self.hung[host]) else { continue };
            if self.now_ms < self.resumed_ms[host] + margin_ms {
                continue;
            }
            if agent.lease_ends.is_none_or(|ends| now <= ends + margin) {
                continue;
            }
            let plane = lock(&self.plane);
            let name = &agent.spec.name;
            let mut sent = plane.live().filter(|one| one.from == *name && one.cancelled.is_none());
            let safe = self.scenario.safe_rate_bps;
            if let Some(rate) = sent.find_map(|one| match one.rate_bps {
                Some(rate) if rate > 0 && rate <= safe => None,
                other => Some(other),
            }) {
                return violated(format!(
                    "{name}: its lease has expired, and it sends at {rate:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks what the controller has stored. Returns true if all requests have ended.
    fn check_store(&mut self) -> Result<bool, InvariantError> {
        let requests = self.controller.requests()?;
        if requests.is_empty() {
            return Ok(true);
        }
        let files = self.controller.files()?;
        let plane = lock(&self.plane);
        let by_id: BTreeMap<i64, &ClientRequest> = self
            .submitted
            .iter()
            .map(|(number, id)| (*id, &self.scenario.requests[*number]))
            .collect();
        let wanted = |file: &FileStatus| -> Option<(FileKey, FileContent)> {
            let request = by_id.get(&file.request)?;
            let source = (request.source.clone(), join(&request.from, &file.path));
            let target = (request.destination.clone(), join(&request.to, &file.path));
            Some((target, *plane.files.get(&source)?))
        };
        self.invariants.check_states(&requests, &files, &plane, wanted)?;
        self.summary.requests = requests.len() as u64;
        let done = files.iter().filter(|file| file.state.as_str() == "done").count();
        self.summary.files = (files.len() as u64, done as u64);
        Ok(requests.iter().all(|request| request.state.is_final()))
    }

    /// Describes the requests that have not ended.
    fn describe_open(&self) -> Result<String, InvariantError> {
        let open = self.controller.requests()?.into_iter().filter(|one| !one.state.is_final());
        let open: Vec<String> = open.map(|one| format!("{one:?}")).collect();
        let minutes = END_MS / 60_000;
        let runs = self.controller.runs()?;
        Ok(format!("open {minutes} minutes after the last fault: {}; {runs:?}", open.join("; ")))
    }

    /// Describes what agents still have to do.
    fn busy(&self) -> Option<String> {
        let plane = lock(&self.plane);
        if let Some(transfer) = plane.live().next() {
            let (from, to) = (&transfer.from, &transfer.to);
            let state = if transfer.is_connected() { "connected" } else { "connecting" };
            return Some(format!("a transfer from {from} to {to} is left, {state}"));
        }
        for (name, host) in &plane.hosts {
            if let Some((order, _)) = host.tickets.values().next() {
                return Some(format!("{name}: the ticket of order {order} is left"));
            }
        }
        drop(plane);
        self.agents.iter().flatten().find_map(|agent| {
            let counts = agent.executor.counts();
            let is_busy = counts.waiting + counts.running + counts.ended > 0;
            is_busy.then(|| format!("{}: {counts:?} are left", agent.spec.name))
        })
    }
}
