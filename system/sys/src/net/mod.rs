//! Linux networking beyond the standard library: TCP statistics ([`TcpInfo`]), socket options ([`options`]), connection
//! setup ([`connect`]), zero-copy sending ([`PageSender`], [`SplicePipe`], [`MemoryFile`]), devices and routes by netlink
//! ([`Configurator`], [`device`], [`ethtool`], [`dcb_priorities`]), packet queues ([`PacketQueue`]),
//! UDP in batches ([`DatagramReceiver`], [`CoalescedReceiver`]).
//!
//! No policy: nothing here decides which option to set or which path to take. Errors name the request that the kernel
//! refused.

mod checksums;
mod coalesced;
mod configure;
pub mod connect;
mod datagrams;
mod dcb;
pub mod destination_option;
pub mod device;
mod divert;
mod egress;
pub mod ethtool;
pub mod flow_label;
mod interface;
mod link;
mod memory_file;
mod netlink;
mod netlink_socket;
pub mod options;
mod packet_queue;
mod page_sender;
mod pattern;
mod pending_set;
mod receive_batch;
mod speed;
mod splice_pipe;
mod statistics;
mod tap;
mod tcp_info;

pub use checksums::Checksums;
pub use coalesced::{
    CoalescedReceiver, UDP_SEGMENTS_MAX, UDP_WRITE_BYTES_MAX, accept_datagrams, bind_datagrams,
    connect_datagrams, set_write_segment,
};
pub use configure::{Configurator, DeviceCounters, Netem, NewDevice, UnicastRoute};
pub use datagrams::{
    DATAGRAMS_PER_CALL_MAX, DatagramReceiver, DatagramSender, FilterInstruction, ReceivedDatagram,
};
pub use dcb::{DcbPriorities, dcb_priorities};
pub use divert::{CE_MARK, Diversion, DiversionMethod, divert};
pub use egress::egress_link;
pub use interface::{
    interface_towards, interface_with, is_own_address, own_addresses, preferred_addresses,
};
pub use link::LinkAttributes;
pub use memory_file::MemoryFile;
pub use packet_queue::{PacketQueue, QueuedPacket};
pub use page_sender::PageSender;
pub use pattern::PatternMemory;
pub use pending_set::{PendingEntry, PendingSet};
pub use speed::speed_bps;
pub use splice_pipe::SplicePipe;
pub use statistics::{CountedDevice, DeviceStatistics};
pub use tap::{TAP_FRAME_BYTES_MAX, TAP_HEADER_BYTES, Tap};
pub use tcp_info::TcpInfo;
