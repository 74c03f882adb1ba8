//! TCP as the kernel offers it beyond the standard library: what it knows of a connection
//! ([`TcpInfo`]), the options a bulk mover sets ([`options`]), how a connection is made
//! ([`connect`]), and ways to send memory without copying it ([`SplicePipe`], [`MemoryFile`]).
//!
//! Policy does not live here: nothing in this module decides which option to set or which path
//! to take. Every function reports the kernel's refusal as an error that says what was asked.

mod checksums;
pub mod connect;
pub mod destination_option;
pub mod flow_label;
mod interface;
mod link;
mod memory_file;
mod netlink;
pub mod options;
mod pattern;
mod route;
mod splice_pipe;
mod tcp_info;

pub use checksums::Checksums;
pub use interface::{interface_towards, is_own_address};
pub use link::Link;
pub use memory_file::MemoryFile;
pub use pattern::PatternMemory;
pub use route::way_out;
pub use splice_pipe::SplicePipe;
pub use tcp_info::TcpInfo;
