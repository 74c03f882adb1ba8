//! RDMA verbs: devices, memory regions, queue pairs and completion queues of `libibverbs.so.1`, opened with `dlopen`.
//!
//! For: reliable connections over RoCE. The program starts without the library; [`VerbsLibrary::open`] reports that.
//!
//! Not for: connection management (the caller exchanges [`ConnectionPath`]), protocols of slots and credits, or other
//! services than RC.
//!
//! Memory that a peer may write is never shown as a slice: [`MemoryRegion`] copies from and to it. A memory region
//! belongs to the queue pair that may use it until the queue pair is destroyed. Buffers of a pool are registered for
//! devices that read them only ([`LocalMemory::of_buffer`]).
//!
//! Fails with [`io::Error`](std::io::Error) of the provider; the caller adds the device and the step.

#[allow(dead_code, reason = "fields that nothing reads place those that are read")]
mod abi;
mod completion;
mod device;
mod library;
mod memory;
mod queue_pair;

pub use completion::{CompletionKind, CompletionQueue, CompletionStatus, WorkCompletion};
pub use device::{GidEntry, GidKind, RdmaContext, RdmaLimits, RdmaPortState};
pub use library::VerbsLibrary;
pub(crate) use memory::SourceRegistrations;
pub use memory::{LocalMemory, MemoryAccess, MemoryRegion, ProtectionDomain};
pub use queue_pair::{
    ConnectionPath, Initialised, QueuePair, QueuePairCapacity, ReadyToReceive, ReadyToSend,
    SendVerb, SendWorkRequest,
};
