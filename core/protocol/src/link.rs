//! Control messages that arrive once, whole and in order, however often their connection is lost.
//!
//! Each message has a number. Both ends keep what the other has not confirmed; when a connection comes
//! back, each says the last number it received and the other goes on from there. The link also tells a
//! dead connection from a quiet one: a side with nothing to say sends a beat.
//!
//! ```text
//! frame = length u32 | kind u8 | number u64 | body     length counts kind, number and body
//! kind 0 message, number its own; 1 confirmation of all up to number; 2 beat, confirming likewise
//! ```

use std::collections::VecDeque;
use std::time::Duration;

/// Longest body of a message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A side that has heard nothing for this long gives the connection up.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A side that has said nothing for this long sends a beat.
pub const BEAT_EVERY: Duration = Duration::from_secs(2);

/// Unconfirmed bytes above which a side should make no more messages.
const BACKLOG_BYTES: usize = 8 << 20;

/// Received messages after which a confirmation is due at once.
const CONFIRM_EVERY: u64 = 64;

const FRAME_OVERHEAD: usize = 4 + 1 + 8;

/// Why a connection must be dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A frame that is not a frame.
    #[error("control connection carries a damaged frame ({0})")]
    Frame(&'static str),
    /// A number that cannot be.
    #[error("control connection skips from message {expected} to {found}")]
    Order {
        /// The number that was due.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// The peer confirms what was never sent, or asks for what is gone.
    #[error("peer confirms message {confirmed} of {sent}")]
    Confirmation {
        /// What it confirms.
        confirmed: u64,
        /// How many were sent.
        sent: u64,
    },
    /// Nothing came for too long.
    #[error("control connection was silent for {} s", SILENCE_MAX.as_secs())]
    Silence,
}

/// One end of a control link.
#[derive(Debug)]
pub struct Link {
    connected: bool,
    /// Messages not confirmed, oldest first; the first has number `confirmed + 1`.
    unconfirmed: VecDeque<Vec<u8>>,
    unconfirmed_bytes: usize,
    confirmed: u64,
    /// How many of `unconfirmed` went out on this connection.
    written: usize,
    received: u64,
    confirmation_sent: u64,
    partial: Vec<u8>,
    heard: Duration,
    said: Duration,
}

impl Link {
    /// A link without a connection.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            connected: false,
            unconfirmed: VecDeque::new(),
            unconfirmed_bytes: 0,
            confirmed: 0,
            written: 0,
            received: 0,
            confirmation_sent: 0,
            partial: Vec::new(),
            heard: now,
            said: now,
        }
    }

    /// How many messages of the peer have been received, to be told to it on the next connection.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether more messages should be made now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.unconfirmed_bytes < BACKLOG_BYTES
    }

    /// Whether the peer has confirmed everything.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Queues a message.
    ///
    /// # Panics
    /// When it is longer than [`MESSAGE_BYTES_MAX`], which its maker must prevent.
    pub fn send(&mut self, body: Vec<u8>) {
        assert!(body.len() <= MESSAGE_BYTES_MAX, "control message of {} bytes", body.len());
        self.unconfirmed_bytes += body.len();
        self.unconfirmed.push_back(body);
    }

    /// A connection is there, and the peer says how many messages it has received.
    ///
    /// # Errors
    /// When that cannot be; the session is then lost.
    pub fn connected(&mut self, peer_received: u64, now: Duration) -> Result<(), LinkError> {
        self.confirm(peer_received)?;
        self.connected = true;
        self.written = 0;
        self.confirmation_sent = self.received;
        self.partial.clear();
        self.heard = now;
        self.said = now;
        Ok(())
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.partial.clear();
    }

    /// Takes bytes from the connection and gives the messages they complete.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<Vec<Vec<u8>>, LinkError> {
        self.heard = now;
        self.partial.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some(frame) = self.partial.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
            let length = u32::from_be_bytes(*frame) as usize;
            if !(9..=MESSAGE_BYTES_MAX + 9).contains(&length) {
                return Err(LinkError::Frame("length"));
            }
            let Some(frame) = self.partial.get(at + 4..at + 4 + length) else { break };
            let number = u64::from_be_bytes(frame[1..9].try_into().expect("eight bytes"));
            let kind = frame[0];
            match kind {
                0 if number == self.received + 1 => {
                    self.received = number;
                    messages.push(frame[9..].to_vec());
                }
                0 => return Err(LinkError::Order { expected: self.received + 1, found: number }),
                1 | 2 => self.confirm(number)?,
                _ => return Err(LinkError::Frame("kind")),
            }
            at += 4 + length;
        }
        self.partial.drain(..at);
        Ok(messages)
    }

    /// Appends what is to be written now, up to about `limit` bytes.
    ///
    /// # Errors
    /// When the peer has been silent for too long.
    pub fn transmit(
        &mut self,
        now: Duration,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        if !self.connected {
            return Ok(());
        }
        if now.saturating_sub(self.heard) > SILENCE_MAX {
            return Err(LinkError::Silence);
        }
        let start = out.len();
        while out.len() - start < limit {
            let Some(body) = self.unconfirmed.get(self.written) else { break };
            frame(out, 0, self.confirmed + 1 + self.written as u64, body);
            self.written += 1;
        }
        let quiet = out.len() == start;
        let unsaid = self.received - self.confirmation_sent;
        if unsaid >= CONFIRM_EVERY || (quiet && unsaid > 0) {
            frame(out, 1, self.received, &[]);
            self.confirmation_sent = self.received;
        } else if quiet && now.saturating_sub(self.said) >= BEAT_EVERY {
            frame(out, 2, self.received, &[]);
        }
        if out.len() > start {
            self.said = now;
        }
        Ok(())
    }

    fn confirm(&mut self, number: u64) -> Result<(), LinkError> {
        let sent = self.confirmed + self.unconfirmed.len() as u64;
        if number > sent {
            return Err(LinkError::Confirmation { confirmed: number, sent });
        }
        // A confirmation may be old when a connection has come back since; it then says nothing new.
        while self.confirmed < number {
            let body = self.unconfirmed.pop_front().expect("number is at most what was sent");
            self.unconfirmed_bytes -= body.len();
            self.confirmed += 1;
            self.written = self.written.saturating_sub(1);
        }
        Ok(())
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, number: u64, body: &[u8]) {
    let length = u32::try_from(FRAME_OVERHEAD - 4 + body.len()).expect("a body is bounded");
    out.extend_from_slice(&length.to_be_bytes());
    out.push(kind);
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn connect(a: &mut Link, b: &mut Link) {
        let (from_a, from_b) = (a.received(), b.received());
        a.connected(from_b, NOW).expect("b received what a sent");
        b.connected(from_a, NOW).expect("a received what b sent");
    }

    proptest! {
        /// Whatever is cut off, and whenever, each message arrives once and in order, both ways.
        #[test]
        fn messages_survive_lost_connections(
            cuts in proptest::collection::vec((0_usize..120, 0_usize..120, 1_usize..7), 1..30),
        ) {
            let (mut a, mut b) = (Link::new(NOW), Link::new(NOW));
            let (mut sent, mut at_a, mut at_b) = (0_u32, Vec::new(), Vec::new());
            let sink = |link: &mut Link, bytes: &[u8], to: &mut Vec<Vec<u8>>| {
                for piece in bytes.chunks(5) {
                    to.extend(link.receive(piece, NOW).expect("frames are whole"));
                }
            };
            for (cut_a, cut_b, count) in cuts {
                connect(&mut a, &mut b);
                for _ in 0..count {
                    a.send(sent.to_be_bytes().to_vec());
                    b.send((!sent).to_be_bytes().to_vec());
                    sent += 1;
                }
                let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
                a.transmit(NOW, 1000, &mut from_a).expect("not silent");
                b.transmit(NOW, 1000, &mut from_b).expect("not silent");
                sink(&mut b, &from_a[..cut_a.min(from_a.len())], &mut at_b);
                sink(&mut a, &from_b[..cut_b.min(from_b.len())], &mut at_a);
                a.disconnected();
                b.disconnected();
            }
            connect(&mut a, &mut b);
            for _ in 0..4 {
                let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
                a.transmit(NOW, 1 << 20, &mut from_a).expect("not silent");
                b.transmit(NOW, 1 << 20, &mut from_b).expect("not silent");
                sink(&mut b, &from_a, &mut at_b);
                sink(&mut a, &from_b, &mut at_a);
            }
            let expected: Vec<_> = (0..sent).map(|n| n.to_be_bytes().to_vec()).collect();
            prop_assert_eq!(at_b, expected);
            let expected: Vec<_> = (0..sent).map(|n| (!n).to_be_bytes().to_vec()).collect();
            prop_assert_eq!(at_a, expected);
            prop_assert!(a.is_settled() && b.is_settled());
        }

        #[test]
        fn any_bytes_are_messages_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Link::new(NOW).receive(&bytes, NOW);
        }
    }

    #[test]
    fn a_quiet_link_beats_and_a_silent_one_dies() {
        let (mut a, mut b) = (Link::new(NOW), Link::new(NOW));
        connect(&mut a, &mut b);
        let mut out = Vec::new();
        a.transmit(NOW + BEAT_EVERY, 1000, &mut out).expect("not silent yet");
        assert_eq!(out.len(), FRAME_OVERHEAD);
        assert_eq!(b.receive(&out, NOW), Ok(vec![]));
        let late = NOW + SILENCE_MAX + Duration::from_millis(1);
        assert_eq!(a.transmit(late, 1000, &mut out), Err(LinkError::Silence));
    }
}
