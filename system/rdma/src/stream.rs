//! Stream of bytes in one direction over the slots of a connection.
//!
//! The sender fills granted slots one after another, and the receiver reads them in the order of their messages, which a
//! reliable connection keeps. A slot is granted again when its last byte is read, so that a slow reader stops the
//! sender.
//!
//! The device sends blocks from their own buffers, which the stream holds until their messages are complete. The receiver
//! copies bytes out of the slots, before it checks them: the peer, and a forger of its packets, can write into a slot
//! at any time. No memory that a peer may write outlives its queue pair.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_sys::event::Readiness;

use crate::answer_timer::AnswerTimer;
use crate::connection::{RdmaEvent, RdmaFailure};
use crate::credit::{PostedRequest, ReceiverCredits, SenderCredits};
use crate::parameters::signal_interval;

#[cfg(test)]
mod tests;

/// Longest wait for events without a look at the socket's state.
const EVENT_WAIT_MAX: Duration = Duration::from_millis(100);

/// Operations of a connection on its slots: [`crate::RdmaConnection`], and a simulated one in tests.
pub trait SlotChannel {
    /// Memory that the device sends from.
    type Block;

    /// Length of a slot in bytes.
    fn slot_bytes(&self) -> usize;

    /// Bytes at the start of a message that come from this end's own memory of the slot.
    fn head_bytes(&self) -> usize;

    /// Time in which a working queue pair completes a request, or fails.
    fn answer_timeout(&self) -> Duration;

    /// Copies bytes out of the local memory of a slot.
    fn copy_out(&self, slot: u32, offset: usize, bytes: &mut [u8]);

    /// Posts a write of a message into the other end's slot: `head`, which is copied, and a part of a block, which stays
    /// unchanged until the request is complete.
    ///
    /// # Errors
    /// Error of the provider.
    fn write(
        &self,
        request: PostedRequest,
        head: &[u8],
        part: Option<(&Self::Block, Range<usize>)>,
    ) -> Result<(), RdmaFailure>;

    /// Grants a slot of this end, after a receive for its next message is posted.
    ///
    /// # Errors
    /// Error of the provider.
    fn grant(&self, request: PostedRequest) -> Result<(), RdmaFailure>;

    /// Posts a receive in the place of one that a grant consumed.
    ///
    /// # Errors
    /// Error of the provider.
    fn post_receive(&self) -> Result<(), RdmaFailure>;

    /// Posts a request whose completion, [`RdmaEvent::Marker`], stands for all requests before it.
    ///
    /// # Errors
    /// Error of the provider.
    fn mark(&self) -> Result<(), RdmaFailure>;

    /// Waits for events, for the socket to become readable, or for `timeout`; replaces the contents of `events`. Returns
    /// the state of the socket, if it was waited for.
    ///
    /// # Errors
    /// After an error of the queue pair.
    fn wait(
        &self,
        socket: Option<BorrowedFd<'_>>,
        timeout: Duration,
        events: &mut Vec<RdmaEvent>,
    ) -> Result<Readiness, RdmaFailure>;
}

/// Part of a block to send.
#[derive(Debug)]
pub struct BlockPart<'a, B> {
    /// The block, which is held until its messages are complete.
    pub block: &'a Arc<B>,
    /// Bytes of the block.
    pub bytes: Range<usize>,
    /// Most blocks that the stream holds, this one included.
    pub blocks_held_max: usize,
}

/// Block of messages that are not complete.
#[derive(Debug)]
struct HeldBlock<B> {
    block: Arc<B>,
    /// Number of the request behind its last message; none while a part is being written.
    end: Option<u64>,
}

/// Sending end of a stream.
#[derive(Debug)]
pub struct SlotWriter<C: SlotChannel> {
    channel: C,
    /// Dropped after the channel: the device may read blocks until the queue pair is destroyed.
    held: VecDeque<HeldBlock<C::Block>>,
    credits: SenderCredits,
    answers: AnswerTimer,
    events: Vec<RdmaEvent>,
    written_bytes: u64,
}

impl<C: SlotChannel> SlotWriter<C> {
    /// Starts a stream with `depth` messages in flight at most, and as many as the other end has `slots`.
    #[must_use]
    pub fn new(channel: C, slots: u32, depth: u32) -> Self {
        let interval = signal_interval(depth);
        let credits = SenderCredits::new(slots.min(depth), depth + interval, interval);
        let answers = AnswerTimer::new(channel.answer_timeout());
        let held = VecDeque::new();
        Self { channel, held, credits, answers, events: Vec::new(), written_bytes: 0 }
    }

    /// Bytes of the stream so far.
    #[must_use]
    pub const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Writes `head` and a part of a block completely; waits where no slot is granted, and where too many blocks are
    /// held. `socket` becomes readable when the other end is gone.
    ///
    /// # Errors
    /// If the queue pair or the socket fails.
    pub fn write(
        &mut self,
        mut head: &[u8],
        part: Option<BlockPart<'_, C::Block>>,
        socket: BorrowedFd<'_>,
    ) -> Result<(), RdmaFailure> {
        let mut rest = part.as_ref().map_or(0..0, |part| part.bytes.clone());
        if let Some(part) = &part {
            self.hold(part, socket)?;
        }
        while !head.is_empty() || !rest.is_empty() {
            let request = self.next_slot(socket)?;
            let from_head = head.len().min(self.channel.head_bytes());
            let is_whole_head = from_head == head.len();
            let room = if is_whole_head { self.channel.slot_bytes() - from_head } else { 0 };
            let from_block = rest.len().min(room);
            let bytes = rest.start..rest.start + from_block;
            let block = part.as_ref().filter(|_| from_block > 0);
            let block = block.map(|part| (&**part.block, bytes));
            self.channel.write(request, &head[..from_head], block)?;
            head = &head[from_head..];
            rest.start += from_block;
            self.written_bytes += (from_head + from_block) as u64;
        }
        let written = self.held.back_mut().filter(|held| held.end.is_none());
        if let Some(held) = written {
            held.end = Some(self.credits.posted());
        }
        Ok(())
    }

    /// Holds the block of a part: the last one still, or another, once there are few enough.
    fn hold(
        &mut self,
        part: &BlockPart<'_, C::Block>,
        socket: BorrowedFd<'_>,
    ) -> Result<(), RdmaFailure> {
        if let Some(last) = self.held.back_mut().filter(|held| Arc::ptr_eq(&held.block, part.block))
        {
            last.end = None;
            return Ok(());
        }
        while self.held.len() >= part.blocks_held_max.max(1) {
            self.request_completion()?;
            let ready = self.take_events(Some(socket), EVENT_WAIT_MAX)?;
            if ready.any() {
                return Err(RdmaFailure::PeerClosed);
            }
        }
        self.held.push_back(HeldBlock { block: Arc::clone(part.block), end: None });
        Ok(())
    }

    /// Takes what happened to the queue pair, without waiting. A caller without data calls it again and again, so that
    /// messages that got lost are noticed.
    ///
    /// # Errors
    /// If the queue pair has failed, or does not answer.
    pub fn check(&mut self) -> Result<(), RdmaFailure> {
        self.request_completion()?;
        self.take_events(None, Duration::ZERO).map(|_| ())
    }

    /// Waits until all messages are in the other end's memory.
    ///
    /// # Errors
    /// If the queue pair or the socket fails, or after `timeout`.
    pub fn drain(&mut self, socket: BorrowedFd<'_>, timeout: Duration) -> Result<(), RdmaFailure> {
        let started = Instant::now();
        while self.credits.in_flight() > 0 {
            self.request_completion()?;
            if started.elapsed() > timeout {
                return Err(RdmaFailure::Unacknowledged(timeout.as_secs_f64()));
            }
            let ready = self.take_events(Some(socket), EVENT_WAIT_MAX)?;
            if ready.any() && self.credits.in_flight() > 0 {
                return Err(RdmaFailure::PeerClosed);
            }
        }
        Ok(())
    }

    /// Posts a marker behind messages whose completion is not requested.
    fn request_completion(&mut self) -> Result<(), RdmaFailure> {
        if self.credits.request_completion() { self.channel.mark() } else { Ok(()) }
    }

    fn next_slot(&mut self, socket: BorrowedFd<'_>) -> Result<PostedRequest, RdmaFailure> {
        loop {
            if let Some(request) = self.credits.post(true) {
                return Ok(request);
            }
            let ready = self.take_events(Some(socket), EVENT_WAIT_MAX)?;
            if ready.any() {
                return Err(RdmaFailure::PeerClosed);
            }
        }
    }

    fn take_events(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        timeout: Duration,
    ) -> Result<Readiness, RdmaFailure> {
        let ready = self.channel.wait(socket, timeout, &mut self.events)?;
        let mut completed = 0;
        for event in &self.events {
            match event {
                RdmaEvent::Message { immediate, .. } => {
                    self.channel.post_receive()?;
                    self.credits.on_grant(*immediate)?;
                }
                RdmaEvent::Completed(sequence) => {
                    completed += self.credits.on_completion(*sequence)?;
                }
                RdmaEvent::Marker => completed += self.credits.on_marker(),
            }
        }
        let completed_below = self.credits.completed();
        let is_complete =
            |held: &mut HeldBlock<_>| held.end.is_some_and(|end| end <= completed_below);
        while self.held.pop_front_if(is_complete).is_some() {}
        self.answers.check(completed > 0, self.credits.awaits_completion())?;
        Ok(ready)
    }
}

/// Message that arrived and is not read completely.
#[derive(Debug)]
struct ArrivedMessage {
    slot: u32,
    bytes: usize,
    /// Bytes that are read.
    read: usize,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotRead {
    /// Bytes at the start of the buffer.
    Bytes(usize),
    /// No bytes, and the socket is readable.
    SocketReady,
    /// Nothing within the time.
    Idle,
}

/// Receiving end of a stream.
#[derive(Debug)]
pub struct SlotReader<C> {
    channel: C,
    credits: ReceiverCredits,
    answers: AnswerTimer,
    arrived: VecDeque<ArrivedMessage>,
    events: Vec<RdmaEvent>,
    read_bytes: u64,
}

impl<C: SlotChannel> SlotReader<C> {
    /// Starts a stream whose sender has all `slots`.
    #[must_use]
    pub fn new(channel: C, slots: u32) -> Self {
        let answers = AnswerTimer::new(channel.answer_timeout());
        Self {
            channel,
            credits: ReceiverCredits::new(slots, slots, signal_interval(slots)),
            answers,
            arrived: VecDeque::new(),
            events: Vec::new(),
            read_bytes: 0,
        }
    }

    /// Bytes of the stream that are read.
    #[must_use]
    pub const fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Reads at least one byte, or waits a short time for a message or for the socket, if one is given.
    ///
    /// # Errors
    /// If the queue pair fails or does not answer, or the other end breaks the protocol of credits.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        socket: Option<BorrowedFd<'_>>,
    ) -> Result<SlotRead, RdmaFailure> {
        if self.arrived.is_empty() {
            let ready = self.take_events(socket)?;
            if self.arrived.is_empty() {
                return Ok(if ready.any() { SlotRead::SocketReady } else { SlotRead::Idle });
            }
        }
        let Some(message) = self.arrived.front_mut() else { return Ok(SlotRead::Idle) };
        let count = buffer.len().min(message.bytes - message.read);
        self.channel.copy_out(message.slot, message.read, &mut buffer[..count]);
        message.read += count;
        self.read_bytes += count as u64;
        if message.read == message.bytes {
            let slot = message.slot;
            self.arrived.pop_front();
            self.credits.release(slot)?;
            self.grant()?;
        }
        Ok(SlotRead::Bytes(count))
    }

    fn grant(&mut self) -> Result<(), RdmaFailure> {
        while let Some(request) = self.credits.grant() {
            self.channel.grant(request)?;
        }
        Ok(())
    }

    fn take_events(&mut self, socket: Option<BorrowedFd<'_>>) -> Result<Readiness, RdmaFailure> {
        let ready = self.channel.wait(socket, EVENT_WAIT_MAX, &mut self.events)?;
        let slot_bytes = self.channel.slot_bytes();
        let mut has_completed = false;
        for event in &self.events {
            match *event {
                RdmaEvent::Message { bytes, immediate } => {
                    if bytes == 0 || bytes as usize > slot_bytes {
                        return Err(RdmaFailure::MessageLength { bytes, slot_bytes });
                    }
                    self.credits.on_message(immediate)?;
                    let bytes = bytes as usize;
                    self.arrived.push_back(ArrivedMessage { slot: immediate, bytes, read: 0 });
                }
                RdmaEvent::Completed(sequence) => {
                    self.credits.on_completion(sequence)?;
                    has_completed = true;
                }
                RdmaEvent::Marker => {}
            }
        }
        self.answers.check(has_completed, self.credits.awaits_completion())?;
        // Grants wait where earlier ones were not completed.
        self.grant()?;
        Ok(ready)
    }
}
