//! A simulated file system and transfers onto it, to stop the receiving side after every single operation.

mod crashes;
pub(super) mod storage;
pub(super) mod transfer;
pub(super) mod tree;
