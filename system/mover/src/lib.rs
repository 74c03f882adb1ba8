//! Threads, sockets and storage engines that move bytes. No HTTP, no printing.
#![forbid(unsafe_code)]

pub mod nettest;
