//! The mover's protocol: what two ends of a transfer say to each other, and what each of them does next.
//!
//! Nothing here opens a socket or a file, starts a thread or reads a clock. The two state machines,
//! [`sender::Sender`] and [`receiver::Receiver`], take messages and facts and give back messages and
//! work; `penstock-mover` carries the work out with threads, and the tests of this crate carry it out
//! over an in-memory network that loses connections at seeded moments.
//!
//! A transfer has one control connection and any number of data connections, all to one TCP port:
//!
//! | layer | module |
//! |---|---|
//! | first bytes of every connection | [`preamble`] |
//! | who may open or join a session | [`open`], [`proof`] |
//! | control messages, kept in order and whole across lost connections | [`link`], [`control`] |
//! | self-describing blocks on any stream | [`block`] |
//! | a copy between two agents that somebody else asks for | [`third_party`] |
//! | what a file is called, is made of, and adds up to | [`manifest`], [`list`], [`extents`], [`digest`] |
//! | what survives a crash of the receiver | [`journal`] |
//!
//! The bytes are described for other implementers in `docs/protocol.md`.

#![forbid(unsafe_code)]

pub mod block;
pub mod control;
pub mod digest;
pub mod extents;
pub mod journal;
pub mod link;
pub mod list;
pub mod manifest;
pub mod open;
pub mod pace;
pub mod preamble;
pub mod proof;
pub mod receiver;
pub mod sender;
pub mod third_party;
pub mod wire;

/// Version of everything in this crate that crosses the network.
pub const PROTOCOL_VERSION: u16 = 2;
