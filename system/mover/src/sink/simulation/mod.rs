//! Simulated file system and transfers onto it, which stop the receiving side after every single
//! operation.

mod crashes;
pub(super) mod storage;
pub(super) mod transfer;
pub(super) mod tree;
