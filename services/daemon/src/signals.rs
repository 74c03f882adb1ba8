//! Signals of a daemon: SIGTERM and SIGINT end it, SIGHUP reloads it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of the signals, which count from their creation on.
#[derive(Debug)]
pub struct DaemonSignals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

/// A signal that a daemon acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonSignal {
    /// SIGTERM or SIGINT, by its name.
    End(&'static str),
    /// SIGHUP.
    Reload,
}

impl DaemonSignals {
    /// Registers the handlers; must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn register() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reload: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to end; returns its name.
    pub async fn end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> DaemonSignal {
        tokio::select! {
            _ = self.terminate.recv() => DaemonSignal::End("SIGTERM"),
            _ = self.interrupt.recv() => DaemonSignal::End("SIGINT"),
            _ = self.reload.recv() => DaemonSignal::Reload,
        }
    }
}
