//! Property test of the credits over simulated queue pairs: late writes, late and grouped completions, errors of either
//! queue pair at any point.
//!
//! Two ends share a pool of memory at the receiver. Each connection has some of it; when a queue pair fails, its slots go
//! back to the pool as the credits permit, and a new connection takes its place. Requirements: no write reaches memory
//! that belongs to another connection or that the application holds, and every message arrives at least once.

use std::collections::{BTreeSet, VecDeque};

use penstock_testkit::{Random, seeded};

use super::{ReceiverCredits, SenderCredits};

const MESSAGE_COUNT: u64 = 120;
const SLOTS_OF_CONNECTION: u32 = 4;
const CONNECTIONS_MAX: usize = 3;
/// Memory of more slots than the connections have: some may wait for the destruction of their queue pair.
const MEMORY_SLOTS: usize = 16;
const ERRORS_MAX: u64 = 12;
const STEPS_MAX: u64 = 200_000;

/// Rule of the receiver for memory of a failed queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReuseRule {
    /// By [`ReceiverCredits::is_reusable`].
    Credits,
    /// At once after an error, which is wrong: the test must find it.
    AtError,
}

/// Memory of a slot at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MemorySlot {
    /// Connection that may write into it.
    owner: Option<u64>,
    message: Option<u64>,
    is_held: bool,
}

/// Write of the sender, on its way.
#[derive(Debug, Clone, Copy)]
struct WireWrite {
    sequence: u64,
    slot: u32,
    message: u64,
    is_executed: bool,
}

/// State of one end's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PairState {
    Working,
    /// In the error state.
    Failed,
    Destroyed,
}

/// A connection with both its ends and the wire between.
#[derive(Debug)]
struct CreditConnection {
    number: u64,
    /// Memory of the slots.
    memory: Vec<usize>,
    sender: SenderCredits,
    receiver: ReceiverCredits,
    sender_pair: PairState,
    receiver_pair: PairState,
    /// Writes without an acknowledgement, in order.
    wire: VecDeque<WireWrite>,
    /// Messages by sequence number.
    messages: Vec<u64>,
    signalled: BTreeSet<u64>,
    /// Completion queue of the sender.
    sender_completions: VecDeque<u64>,
    /// Completion queue of the receiver: slots, or `None` for flushed receives.
    receiver_completions: VecDeque<Option<u32>>,
    receives_posted: u32,
    /// Grants on their way, with their sequence numbers.
    grants: VecDeque<(u64, u32)>,
    grant_completions: VecDeque<u64>,
    /// Slots whose messages the application reads.
    held: Vec<(u32, u64)>,
}

/// The whole simulation.
struct CreditWorld {
    random: Random,
    rule: ReuseRule,
    memory: Vec<MemorySlot>,
    connections: Vec<CreditConnection>,
    /// Messages that wait for a connection.
    waiting: VecDeque<u64>,
    arrived: BTreeSet<u64>,
    errors_left: u64,
    next_number: u64,
}

/// Violation of a requirement, or the end.
type StepResult = Result<(), &'static str>;

impl CreditWorld {
    fn new(random: Random, rule: ReuseRule) -> Self {
        Self {
            random,
            rule,
            memory: vec![MemorySlot::default(); MEMORY_SLOTS],
            connections: Vec::new(),
            waiting: (0..MESSAGE_COUNT).collect(),
            arrived: BTreeSet::new(),
            errors_left: ERRORS_MAX,
            next_number: 0,
        }
    }

    fn run(&mut self) -> StepResult {
        for _ in 0..STEPS_MAX {
            if self.arrived.len() as u64 == MESSAGE_COUNT {
                return Ok(());
            }
            self.connect();
            if self.connections.is_empty() {
                return Err("no memory for a connection");
            }
            let index = self.random.below(self.connections.len() as u64) as usize;
            match self.random.below(10) {
                0 | 1 => self.post(index),
                2 | 3 => self.deliver(index)?,
                4 => self.acknowledge(index),
                5 => self.poll_sender(index),
                6 => self.poll_receiver(index)?,
                7 => self.release(index)?,
                8 => self.carry_grant(index),
                _ => self.fail_or_recover(index),
            }
            self.connections.retain(|one| {
                one.sender_pair != PairState::Destroyed
                    || one.receiver_pair != PairState::Destroyed
                    || !one.held.is_empty()
                    || one.wire.iter().any(|write| !write.is_executed)
            });
        }
        Err("messages are missing after the last step")
    }

    /// Connects while there is memory for it.
    fn connect(&mut self) {
        let working =
            self.connections.iter().filter(|one| one.receiver_pair == PairState::Working).count();
        let free: Vec<usize> = (0..MEMORY_SLOTS)
            .filter(|slot| self.memory[*slot].owner.is_none())
            .take(SLOTS_OF_CONNECTION as usize)
            .collect();
        if working >= CONNECTIONS_MAX || free.len() < SLOTS_OF_CONNECTION as usize {
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        for slot in &free {
            self.memory[*slot] = MemorySlot { owner: Some(number), ..MemorySlot::default() };
        }
        let slots = SLOTS_OF_CONNECTION;
        let entries = 1 + self.random.below(u64::from(slots) + 2) as u32;
        let interval = 1 + self.random.below(4) as u32;
        self.connections.push(CreditConnection {
            number,
            memory: free,
            sender: SenderCredits::new(slots, entries, interval),
            receiver: ReceiverCredits::new(slots, slots, interval),
            sender_pair: PairState::Working,
            receiver_pair: PairState::Working,
            wire: VecDeque::new(),
            messages: Vec::new(),
            signalled: BTreeSet::new(),
            sender_completions: VecDeque::new(),
            receiver_completions: VecDeque::new(),
            receives_posted: slots,
            grants: VecDeque::new(),
            grant_completions: VecDeque::new(),
            held: Vec::new(),
        });
    }

    fn post(&mut self, index: usize) {
        let one = &mut self.connections[index];
        if one.sender_pair != PairState::Working || !one.sender.may_post() {
            return;
        }
        let Some(message) = self.waiting.pop_front() else { return };
        let request = one.sender.post(!self.waiting.is_empty()).expect("it may post");
        assert_eq!(request.sequence as usize, one.messages.len());
        one.messages.push(message);
        if request.signalled {
            one.signalled.insert(request.sequence);
        }
        let (sequence, slot) = (request.sequence, request.slot);
        one.wire.push_back(WireWrite { sequence, slot, message, is_executed: false });
    }

    /// Executes the next write at the receiver, also after the sender's queue pair failed.
    fn deliver(&mut self, index: usize) -> StepResult {
        let one = &mut self.connections[index];
        let Some(write) = one.wire.iter_mut().find(|write| !write.is_executed) else {
            return Ok(());
        };
        write.is_executed = true;
        let write = *write;
        if one.receiver_pair != PairState::Working {
            // The receiver's device answers with an error.
            one.sender_pair = if one.sender_pair == PairState::Working {
                PairState::Failed
            } else {
                one.sender_pair
            };
            return Ok(());
        }
        let memory = &mut self.memory[one.memory[write.slot as usize]];
        if memory.owner != Some(one.number) {
            return Err("a write reached memory of another connection");
        }
        if memory.is_held {
            return Err("a write reached memory that the application holds");
        }
        if one.receives_posted == 0 {
            return Err("the receiver was not ready");
        }
        memory.message = Some(write.message);
        one.receives_posted -= 1;
        one.receiver_completions.push_back(Some(write.slot));
        Ok(())
    }

    /// Brings the acknowledgement of executed writes to the sender, some at a time.
    fn acknowledge(&mut self, index: usize) {
        let one = &mut self.connections[index];
        if one.sender_pair != PairState::Working || one.receiver_pair != PairState::Working {
            return;
        }
        let count = self.random.below(4);
        for _ in 0..count {
            let Some(write) = one.wire.front().filter(|write| write.is_executed) else { return };
            if one.signalled.contains(&write.sequence) {
                one.sender_completions.push_back(write.sequence);
            }
            one.wire.pop_front();
        }
    }

    fn poll_sender(&mut self, index: usize) {
        let one = &mut self.connections[index];
        let count = self.random.below(4);
        for _ in 0..count {
            let Some(sequence) = one.sender_completions.pop_front() else { break };
            one.sender.on_completion(sequence).expect("it is outstanding");
        }
        let count = self.random.below(4);
        for _ in 0..count {
            let Some(sequence) = one.grant_completions.pop_front() else { break };
            one.receiver.on_completion(sequence).expect("it is outstanding");
        }
    }

    fn poll_receiver(&mut self, index: usize) -> StepResult {
        let one = &mut self.connections[index];
        let count = self.random.below(4);
        for _ in 0..count {
            match one.receiver_completions.pop_front() {
                Some(Some(slot)) => {
                    one.receiver.on_message(slot).map_err(|_| "a message without a grant")?;
                    let memory = &mut self.memory[one.memory[slot as usize]];
                    memory.is_held = true;
                    let message = memory.message.ok_or("a message without content")?;
                    one.held.push((slot, message));
                }
                Some(None) => one.receiver.on_flushed_receive(),
                None => break,
            }
        }
        Ok(())
    }

    /// The application has read a message, which must not have changed meanwhile.
    fn release(&mut self, index: usize) -> StepResult {
        let one = &mut self.connections[index];
        if one.held.is_empty() {
            return Ok(());
        }
        let (slot, message) =
            one.held.swap_remove(self.random.below(one.held.len() as u64) as usize);
        let memory = &mut self.memory[one.memory[slot as usize]];
        if memory.message != Some(message) {
            return Err("a held message changed");
        }
        memory.is_held = false;
        memory.message = None;
        self.arrived.insert(message);
        one.receiver.release(slot).map_err(|_| "a held slot is not held")?;
        self.reuse(index);
        Ok(())
    }

    /// Posts grants, or brings one to the sender.
    fn carry_grant(&mut self, index: usize) {
        let one = &mut self.connections[index];
        if one.receiver_pair == PairState::Working {
            while let Some(grant) = one.receiver.grant() {
                one.receives_posted += 1;
                one.grants.push_back((grant.sequence, grant.slot));
                if grant.signalled {
                    one.signalled.insert(u64::MAX - grant.sequence);
                }
            }
        }
        if one.sender_pair != PairState::Working || self.random.chance(0.5) {
            return;
        }
        if let Some((sequence, slot)) = one.grants.pop_front() {
            one.sender.on_grant(slot).expect("each grant is for a slot without one");
            if one.signalled.contains(&(u64::MAX - sequence)) {
                one.grant_completions.push_back(sequence);
            }
        }
    }

    /// Fails a queue pair, or brings a failed connection one step further to its end.
    fn fail_or_recover(&mut self, index: usize) {
        let may_fail = self.errors_left > 0 && self.random.chance(0.2);
        let one = &mut self.connections[index];
        match (one.sender_pair, one.receiver_pair) {
            (PairState::Working, PairState::Working) if may_fail => {
                self.errors_left -= 1;
                if self.random.chance(0.5) {
                    one.sender_pair = PairState::Failed;
                } else {
                    self.fail_receiver(index);
                }
            }
            (PairState::Failed, _) => {
                // Completions that came before the error are still in the queue.
                while let Some(sequence) = one.sender_completions.pop_front() {
                    one.sender.on_completion(sequence).expect("it is outstanding");
                }
                for sequence in one.sender.fail() {
                    self.waiting.push_back(one.messages[sequence as usize]);
                }
                one.sender_pair = PairState::Destroyed;
            }
            // The sender closed the TCP connection, or the retries of its device are exceeded.
            (PairState::Destroyed, PairState::Working) => self.fail_receiver(index),
            (PairState::Working, PairState::Failed | PairState::Destroyed) => {
                one.sender_pair = PairState::Failed;
            }
            (_, PairState::Failed) if one.receiver.is_drained() => {
                one.receiver_pair = PairState::Destroyed;
                one.receiver.on_destroyed();
                self.reuse(index);
            }
            _ => {}
        }
    }

    fn fail_receiver(&mut self, index: usize) {
        let one = &mut self.connections[index];
        if self.rule == ReuseRule::AtError {
            // The device still executes writes, but the memory is given away.
            for slot in &one.memory {
                self.memory[*slot].owner =
                    self.memory[*slot].owner.filter(|_| self.memory[*slot].is_held);
            }
            return;
        }
        one.receiver_pair = PairState::Failed;
        one.receiver.fail();
        for _ in 0..std::mem::take(&mut one.receives_posted) {
            one.receiver_completions.push_back(None);
        }
        self.reuse(index);
    }

    /// Returns memory to the pool.
    fn reuse(&mut self, index: usize) {
        let one = &self.connections[index];
        for (slot, memory) in (0..).zip(&one.memory) {
            let memory = &mut self.memory[*memory];
            if memory.owner == Some(one.number) && one.receiver.is_reusable(slot) {
                *memory = MemorySlot::default();
            }
        }
    }
}

fn runs() -> u64 {
    400
}

#[test]
fn errors_lose_and_overwrite_nothing() {
    let mut seeds = seeded(21);
    for _ in 0..runs() {
        let seed = seeds.next_bits();
        let mut world = CreditWorld::new(Random::new(seed), ReuseRule::Credits);
        if let Err(reason) = world.run() {
            panic!("{reason}, seed {seed}, {} of {MESSAGE_COUNT} arrived", world.arrived.len());
        }
    }
}

#[test]
fn early_reuse_is_found() {
    let mut seeds = seeded(21);
    let found = (0..runs()).any(|_| {
        let mut world = CreditWorld::new(seeds.fork(), ReuseRule::AtError);
        world.run() == Err("a write reached memory of another connection")
    });
    assert!(found, "the simulation does not see memory that is reused early");
}
