//! TCP as the kernel offers it beyond the standard library: what it knows of a connection
//! ([`TcpInfo`]), the options a bulk mover sets ([`options`]), how a connection is made
//! ([`connect`]), and ways to send memory without copying it ([`SplicePipe`], [`MemoryFile`]).
//!
//! Policy does not live here: nothing in this module decides which option to set or which path
//! to take. Every function reports the kernel's refusal as an error that says what was asked.

mod checksums;
mod configure;
pub mod connect;
mod conversation;
mod datagrams;
pub mod destination_option;
pub mod device;
mod divert;
pub mod ethtool;
pub mod flow_label;
mod interface;
mod link;
mod memory_file;
mod netlink;
pub mod options;
mod packet_queue;
mod pattern;
mod route;
mod speed;
mod splice_pipe;
mod statistics;
mod tap;
mod tcp_info;

pub use checksums::Checksums;
pub use configure::{Configurator, DeviceCounters, Netem, NewDevice, Route};

pub use datagrams::{BATCH, DatagramReceiver, DatagramSender};
pub use divert::{CONGESTED, Diversion, Means, divert};
pub use interface::{
    interface_towards, interface_with, is_own_address, own_addresses, preferred_addresses,
};
pub use link::Link;
pub use memory_file::MemoryFile;
pub use packet_queue::{PacketQueue, Waiting};
pub use pattern::PatternMemory;
pub use route::way_out;
pub use speed::speed_bps;
pub use splice_pipe::SplicePipe;
pub use statistics::{CountedDevice, DeviceStatistics};
pub use tap::{TAP_FRAME_BYTES_MAX, TAP_HEADER_BYTES, Tap};
pub use tcp_info::TcpInfo;
