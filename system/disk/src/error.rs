//! Reasons for which a remote disk cannot be reached or read.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use penstock_nvme::auth::AuthenticationError;
use penstock_nvme::identify::NamespaceError;
use penstock_nvme::pdu::PduError;
use penstock_nvme::queue::QueueFault;
use penstock_nvme::status::NvmeStatus;
use penstock_units::display_duration;

/// Failure of a remote disk, with a remedy where the user has one.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The text names no disk.
    #[error(
        "'{0}' names no disk: write HOST/NAME or HOST:PORT/NAME, and an IPv6 address in brackets"
    )]
    Location(String),
    /// The name of the disk or host is not valid.
    #[error(transparent)]
    Name(#[from] penstock_nvme::nqn::NqnError),
    /// The host name has no address.
    #[error("{host}: {error}")]
    Resolve {
        /// Host name as given.
        host: String,
        /// Error of the resolver.
        error: io::Error,
    },
    /// No connection to the port.
    #[error("{peer}: cannot connect: {error}: {}", connect_remedy(.error))]
    Connect {
        /// Address of the target.
        peer: SocketAddr,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The other end does not answer in time.
    #[error("{peer}: no answer for {}: {remedy}", display_duration(*.after))]
    Silent {
        /// Address of the target.
        peer: SocketAddr,
        /// Time waited.
        after: Duration,
        /// Remedy.
        remedy: &'static str,
    },
    /// The connection ended.
    #[error("{peer}: the target closed the connection: {remedy}")]
    Closed {
        /// Address of the target.
        peer: SocketAddr,
        /// Remedy.
        remedy: &'static str,
    },
    /// The connection failed.
    #[error("{peer}: the connection failed: {error}")]
    Connection {
        /// Address of the target.
        peer: SocketAddr,
        /// Error of the kernel.
        error: io::Error,
    },
    /// A PDU is malformed.
    #[error("{peer}: {fault}")]
    Pdu {
        /// Address of the target.
        peer: SocketAddr,
        /// Fault of the PDU.
        fault: PduError,
    },
    /// The target breaks the protocol.
    #[error("{peer}: {fault}")]
    Protocol {
        /// Address of the target.
        peer: SocketAddr,
        /// Fault of the target.
        fault: QueueFault,
    },
    /// The target has no disk of this name.
    #[error("{peer}: no disk {nqn} there: {}", known_disks(.known))]
    UnknownDisk {
        /// Address of the target.
        peer: SocketAddr,
        /// Qualified name of the disk.
        nqn: String,
        /// Disks that the target shows this host.
        known: Vec<String>,
    },
    /// The disk does not allow this host.
    #[error(
        "{peer}: {nqn} does not allow this host: export it there with --to {host}, or connect as a host that it allows (--host-nqn)"
    )]
    HostNotAllowed {
        /// Address of the target.
        peer: SocketAddr,
        /// Qualified name of the disk.
        nqn: String,
        /// Qualified name of this host.
        host: String,
    },
    /// The target demands a secret.
    #[error(
        "{peer}: the target demands a secret of this host: give the one of its export with --secret-file"
    )]
    SecretMissing {
        /// Address of the target.
        peer: SocketAddr,
    },
    /// The authentication fails.
    #[error("{peer}: {fault}{}", secret_remedy(.fault))]
    Authentication {
        /// Address of the target.
        peer: SocketAddr,
        /// Fault of the authentication.
        fault: AuthenticationError,
    },
    /// The target refuses a queue.
    #[error(
        "{peer}: the target refuses queue {queue} with depth {depth}: use a smaller --depth or fewer --queues"
    )]
    QueueLimits {
        /// Address of the target.
        peer: SocketAddr,
        /// Number of the queue.
        queue: u16,
        /// Commands of the queue.
        depth: u16,
    },
    /// A command failed.
    #[error("{peer}: {command}: {status}")]
    Command {
        /// Address of the target.
        peer: SocketAddr,
        /// Command in words.
        command: String,
        /// Status that the target returned.
        status: NvmeStatus,
    },
    /// The namespace cannot be read.
    #[error("{peer}: {fault}")]
    Namespace {
        /// Address of the target.
        peer: SocketAddr,
        /// Fault of the namespace.
        fault: NamespaceError,
    },
    /// The disk has no namespace.
    #[error("{peer}: {nqn} has no active namespace: enable one at the target")]
    NoNamespace {
        /// Address of the target.
        peer: SocketAddr,
        /// Qualified name of the disk.
        nqn: String,
    },
    /// The range is not within the namespace.
    #[error(
        "bytes {offset} to {end} are not within the disk of {bytes} B, whose blocks have {block_bytes} B"
    )]
    Range {
        /// First byte.
        offset: u64,
        /// Byte after the last.
        end: u64,
        /// Bytes of the namespace.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The size of reads is not usable.
    #[error("reads of {size_bytes} B: use a power of two from {least} B to {most} B here")]
    ReadSize {
        /// Size as given.
        size_bytes: u32,
        /// Smallest size.
        least: u32,
        /// Largest size.
        most: u32,
    },
    /// The buffers need too much memory.
    #[error(
        "{queues} queues of {depth} reads of {size_bytes} B need {needed} B of memory, and {available} B are available: use a smaller --depth or --queues"
    )]
    Memory {
        /// Number of queues.
        queues: u16,
        /// Reads in flight of each queue.
        depth: u16,
        /// Bytes of a read.
        size_bytes: u32,
        /// Bytes of all buffers.
        needed: u64,
        /// Available memory in bytes.
        available: u64,
    },
    /// The output cannot be written.
    #[error("{path}: {error}")]
    Output {
        /// Path of the output.
        path: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// A local file or device cannot be used.
    #[error("{path}: {reason}")]
    Local {
        /// Path of the object.
        path: String,
        /// Reason and remedy.
        reason: String,
    },
    /// The user stopped the stream.
    #[error("stopped")]
    Stopped,
}

impl DiskError {
    /// True where the target refuses this host or its secret.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::HostNotAllowed { .. } | Self::SecretMissing { .. } | Self::Authentication { .. }
        )
    }

    /// Cause in one word, for `penstock disk check`.
    #[must_use]
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::Location(_) | Self::Name(_) | Self::UnknownDisk { .. } => "name",
            Self::Resolve { .. } | Self::Connect { .. } => "port",
            Self::Silent { .. } | Self::Closed { .. } | Self::Connection { .. } => "connection",
            Self::Pdu { .. } | Self::Protocol { .. } | Self::Command { .. } => "protocol",
            Self::HostNotAllowed { .. } => "host",
            Self::SecretMissing { .. } | Self::Authentication { .. } => "secret",
            Self::QueueLimits { .. } | Self::Memory { .. } | Self::ReadSize { .. } => "depth",
            Self::Namespace { .. } | Self::NoNamespace { .. } | Self::Range { .. } => "namespace",
            Self::Output { .. } | Self::Local { .. } => "local",
            Self::Stopped => "stopped",
        }
    }
}

fn connect_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "is the disk exported there (penstock disk export), and on this port?"
        }
        io::ErrorKind::TimedOut => "does a firewall drop connections to this port?",
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "check the route and the address"
        }
        _ => "check the address and the port",
    }
}

fn known_disks(known: &[String]) -> String {
    if known.is_empty() {
        return "it shows this host no disk; check the name, and --to at the export".to_owned();
    }
    format!("it shows this host {}", known.join(", "))
}

fn secret_remedy(fault: &AuthenticationError) -> &'static str {
    match fault {
        AuthenticationError::WrongSecret | AuthenticationError::ClosedAtResponse => {
            ": use the secret that the export has for this host"
        }
        _ => "",
    }
}
