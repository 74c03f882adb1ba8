//! Links emulated by forwarding frames between TAP devices.
//!
//! Super-packets stay whole unless segments of them are lost: then the runs between lost segments continue as
//! super-packets. One thread per direction; each byte is copied twice.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use penstock_sys::event::{Interest, poll};
use penstock_sys::machine;
use penstock_sys::net::{TAP_FRAME_BYTES_MAX, Tap};

use super::tag::Tags;
use super::{EmulatedEnd, EmulatedLink, nfqueue};
use crate::direction::{DirectionCounters, DirectionState};
use crate::line::{ETHERNET_BYTES, EmulatedPacket, Impairment, Line, PacketOutcome};
use crate::node::RunningNode;
use crate::timing_error::TimingErrorCounts;

mod frame;

use frame::TapFrame;

/// Frames read before due frames are sent.
const FRAMES_PER_TURN_MAX: usize = 32;

/// Two TAP devices and two forwarding threads.
#[derive(Debug)]
pub(super) struct TapLink {
    ways: [TapDirection; 2],
    _tags: Tags,
}

#[derive(Debug)]
struct TapDirection {
    direction: Arc<DirectionState>,
    thread: Option<JoinHandle<()>>,
}

impl TapLink {
    pub(super) fn join(name: &str, seed: u64, ends: [EmulatedEnd<'_>; 2]) -> io::Result<Self> {
        let open = |place: EmulatedEnd<'_>| -> io::Result<Arc<Tap>> {
            let tap = place.node.namespace.inside(|| Tap::open(&place.port.device))??;
            let device = place.node.device(place.port)?;
            place.node.network.set_identity(device, &RunningNode::new_device(place.port))?;
            Ok(Arc::new(tap))
        };
        let taps = [open(ends[0])?, open(ends[1])?];
        let tags = Tags::attach(ends[0].port.vlan, ends);
        nfqueue::configure_ends(ends)?;
        let way = |from: usize, sign: char| -> io::Result<TapDirection> {
            let direction =
                Arc::new(DirectionState::new(format!("{name}{sign}"), Impairment::default())?);
            let forwarder = FrameForwarder {
                line: Line::new(Impairment::default(), seed, &direction.name),
                direction: Arc::clone(&direction),
                from: Arc::clone(&taps[from]),
                to: Arc::clone(&taps[1 - from]),
                held: VecDeque::new(),
                spare: Vec::new(),
                since: Instant::now(),
            };
            let thread = thread::Builder::new()
                .name(direction.name.clone())
                .spawn(move || forwarder.run())?;
            Ok(TapDirection { direction, thread: Some(thread) })
        };
        Ok(Self { ways: [way(0, '>')?, way(1, '<')?], _tags: tags })
    }
}

impl EmulatedLink for TapLink {
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()> {
        self.ways.iter().zip(wanted).for_each(|(way, wanted)| way.direction.set(wanted));
        Ok(())
    }

    fn counters(&self) -> io::Result<[DirectionCounters; 2]> {
        Ok(self.ways.each_ref().map(|way| way.direction.counters()))
    }

    fn timing_error(&self) -> [Option<TimingErrorCounts>; 2] {
        self.ways.each_ref().map(|way| Some(way.direction.timing_error.counted()))
    }
}

impl Drop for TapDirection {
    fn drop(&mut self) {
        self.direction.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame that waits for its arrival time.
struct HeldFrame {
    at: Duration,
    frame: Vec<u8>,
}

/// Thread of a direction.
struct FrameForwarder {
    line: Line,
    direction: Arc<DirectionState>,
    from: Arc<Tap>,
    to: Arc<Tap>,
    held: VecDeque<HeldFrame>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    since: Instant,
}

impl FrameForwarder {
    fn run(mut self) {
        if let Err(error) = machine::become_realtime() {
            tracing::debug!("{}: no real-time priority: {error}", self.direction.name);
        }
        self.line.set(self.direction.wanted());
        while !self.direction.is_stopped() {
            if let Err(error) = self.turn() {
                tracing::error!(
                    "link {}: {error}; it carries nothing any more",
                    self.direction.name
                );
                return;
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        let next = self.release();
        let sources =
            [(self.from.as_fd(), Interest::READ), (self.direction.changed.as_fd(), Interest::READ)];
        let ready = poll(&sources, next)?;
        if ready.get(1).is_some_and(|changed| changed.any()) {
            self.direction.changed.drain()?;
            self.line.set(self.direction.wanted());
        }
        while self.take()? == FRAMES_PER_TURN_MAX {
            self.release();
        }
        Ok(())
    }

    /// Sends due frames; returns the time until the next one.
    fn release(&mut self) -> Option<Duration> {
        loop {
            let now = self.since.elapsed();
            let first = self.held.front()?;
            if first.at > now {
                return Some(first.at - now);
            }
            let held = self.held.pop_front()?;
            // The device is down, and so is the link.
            if let Err(error) = self.to.write_frame(&held.frame) {
                tracing::debug!(
                    "{}: a frame of {} bytes: {error}",
                    self.direction.name,
                    held.frame.len()
                );
            }
            self.direction.timing_error.count(now - held.at, 1);
            self.spare.push(held.frame);
        }
    }

    fn take(&mut self) -> io::Result<usize> {
        for count in 0..FRAMES_PER_TURN_MAX {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.resize(TAP_FRAME_BYTES_MAX, 0);
            let Some(length) = self.from.read_frame(&mut buffer)? else {
                self.spare.push(buffer);
                return Ok(count);
            };
            buffer.truncate(length);
            self.offer(buffer);
        }
        Ok(FRAMES_PER_TURN_MAX)
    }

    fn offer(&mut self, bytes: Vec<u8>) {
        let now = self.since.elapsed();
        let frame = TapFrame::of(&bytes);
        if !frame.is_traffic() {
            return self.held.push_back(HeldFrame { at: now, frame: bytes });
        }
        let segments = frame.segments();
        if self.line.impairment().cut {
            return self
                .direction
                .count(PacketOutcome::Cut, EmulatedPacket { wire_bytes: 0, markable: false });
        }
        let lost: Vec<bool> = (0..segments).map(|_| self.line.is_lost()).collect();
        if lost.contains(&true) {
            let gone = lost.iter().filter(|lost| **lost).count();
            let nothing = EmulatedPacket { wire_bytes: 0, markable: false };
            (0..gone).for_each(|_| self.direction.count(PacketOutcome::Lost, nothing));
            for part in survivors(&lost) {
                let bytes = frame.part(part);
                self.carry(now, bytes);
            }
            return self.spare.push(bytes);
        }
        self.carry(now, bytes);
    }

    fn carry(&mut self, now: Duration, mut bytes: Vec<u8>) {
        let frame = TapFrame::of(&bytes);
        let packet = EmulatedPacket {
            wire_bytes: frame.ip_bytes()
                + frame.segments() as u64 * (ETHERNET_BYTES + frame.tag_bytes()),
            markable: frame.is_markable(),
        };
        let fate = self.line.carry(now, packet);
        self.direction.count(fate, packet);
        match fate {
            PacketOutcome::Arrives { at, marked } => {
                if marked {
                    frame::mark(&mut bytes);
                }
                self.held.push_back(HeldFrame { at, frame: bytes });
            }
            _ => self.spare.push(bytes),
        }
    }
}

/// Runs of consecutive segments that were not lost.
fn survivors(lost: &[bool]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (number, lost) in lost.iter().enumerate() {
        if *lost {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surviving_segments_form_runs() {
        let lost = [false, false, true, false, true, true, false];
        assert_eq!(survivors(&lost), [0..2, 3..4, 6..7]);
        assert!(survivors(&[true]).is_empty());
    }
}
