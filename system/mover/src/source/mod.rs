//! Sending side of storage: from directories and files to blocks ready to be sent.

pub(crate) mod open_sources;
pub(crate) mod packer;
pub(crate) mod reader;
pub(crate) mod ready_queue;
pub(crate) mod scan;
pub(crate) mod scanner;
pub(crate) mod sent_buffers;
pub(crate) mod work;
