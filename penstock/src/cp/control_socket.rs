//! Control socket of a running copy, by which `penstock transfers` shows and changes it.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, bail};
use penstock_agent::http::api::{TransferChange, TransferFacts, non_empty};
use penstock_agent::running_forecast::RateForecaster;
use penstock_agent::submitted::TransferStatus;
use penstock_protocol::control::Settings;
use penstock_protocol::manifest::display_path;

use super::CpArgs;
use super::plan::RunningCopy;
use crate::credentials;
use crate::exit::chain_line;
use crate::local_transfers::{self, ControlReply, ControlRequest};

/// Control socket of this copy; removed when dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    socket: Option<(UnixListener, PathBuf)>,
    /// Sources and destination as shown to users.
    path: String,
    started: SystemTime,
    forecaster: Option<RateForecaster>,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl ControlSocket {
    /// Listens; without a socket the copy continues and cannot be changed.
    pub(crate) fn start(args: &CpArgs) -> Self {
        let shown = args.paths.iter().map(|path| display_path(path.as_bytes()));
        let path = shown.collect::<Vec<_>>().join(" ");
        let socket = listen().inspect_err(|error| {
            tracing::info!("penstock transfers cannot reach this copy: {}", chain_line(error));
        });
        let state = credentials::state().ok();
        let forecaster = state.map(|state| RateForecaster::new(state.path()));
        Self { socket: socket.ok(), path, started: SystemTime::now(), forecaster }
    }

    /// Answers pending requests without blocking.
    pub(crate) fn answer(&self, running: &RunningCopy) {
        let Some((listener, _)) = &self.socket else { return };
        while let Ok((mut stream, _)) = listener.accept() {
            // Ignore clients that disconnect before the reply.
            let _ = self.answer_one(&mut stream, running);
        }
    }

    fn answer_one(&self, stream: &mut UnixStream, running: &RunningCopy) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        let refused = match local_transfers::receive_line(stream)? {
            ControlRequest::Show => None,
            ControlRequest::Why => {
                let tuning = match &self.forecaster {
                    Some(forecaster) => running.tuning_now(forecaster),
                    None => running.tuning(),
                };
                let answer = ControlReply::Tuning(tuning);
                return local_transfers::send_line(stream, &answer);
            }
            ControlRequest::Cancel => {
                running.cancel("cancelled by penstock transfers");
                None
            }
            ControlRequest::Set(change) => {
                let checked = change.check().map_err(anyhow::Error::from);
                checked.and_then(|()| running.change(&change)).err()
            }
        };
        let answer = match refused {
            Some(why) => ControlReply::Refused(why.to_string()),
            None => ControlReply::Status(Box::new(self.show(running))),
        };
        local_transfers::send_line(stream, &answer)
    }

    fn show(&self, running: &RunningCopy) -> TransferFacts {
        let now = running.snapshot();
        let elapsed = self.started.elapsed().unwrap_or(Duration::ZERO);
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        TransferFacts {
            id: u64::from(std::process::id()),
            caller: super::local::caller().name,
            peer: running.peer(),
            direction: "copy".to_owned(),
            path: self.path.clone(),
            state: match now.waiting {
                Some(_) => TransferStatus::Waiting,
                None => TransferStatus::Running,
            },
            started_unix_seconds: started.as_secs_f64(),
            seconds: elapsed.as_secs_f64(),
            bytes: now.tally.bytes,
            moved_bytes: now.tally.moved_bytes,
            resumed_bytes: now.tally.resumed_bytes,
            announced_bytes: now.tally.announced_bytes,
            files: now.tally.files,
            failed: now.tally.failed,
            streams: now.streams,
            readers: now.readers,
            writers: now.writers,
            rate_bps: now.rate_bps,
            bits_per_second: now.bits_per_second,
            bound_by: now.bound_by.to_owned(),
            engine: now.engines.0,
            retransmits: now.retransmits,
            transport: non_empty(now.transport),
            transport_reason: non_empty(now.transport_reason),
            scitag: None,
            owner: None,
            activity: None,
            submitted: None,
        }
    }
}

fn listen() -> anyhow::Result<(UnixListener, PathBuf)> {
    let directory = local_transfers::directory()?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    listen_in(&directory)
}

/// Gives the socket its name once it listens: clients remove a named socket that refuses connections.
fn listen_in(directory: &Path) -> anyhow::Result<(UnixListener, PathBuf)> {
    let path = local_transfers::socket_path(directory, std::process::id());
    let unnamed = path.with_extension("new");
    // A killed process with this id may have left its socket.
    let _ = std::fs::remove_file(&unnamed);
    let listener = UnixListener::bind(&unnamed)?;
    listener.set_nonblocking(true)?;
    std::fs::rename(&unnamed, &path)?;
    Ok((listener, path))
}

impl RunningCopy {
    fn peer(&self) -> String {
        match self {
            Self::Remote { transfer, .. } => transfer.shown(),
            Self::ThirdParty { transfer, .. } => transfer.shown(),
            Self::Local(_) => "this machine".to_owned(),
        }
    }

    /// Changes the settings at both ends.
    ///
    /// # Errors
    /// When the copy does not support the change.
    fn change(&self, change: &TransferChange) -> anyhow::Result<()> {
        let settings = Settings {
            rate_bps: change.rate_bps,
            streams: change.streams.map(Into::into),
            readers: change.readers.map(Into::into),
            writers: change.writers.map(Into::into),
        };
        if let Some(mode) = change.tune {
            let switched = match self {
                Self::Remote { transfer, .. } => transfer.set_tuning(mode),
                _ => Err(self.tuning_report().ended.unwrap_or_default()),
            };
            switched.map_err(|reason| anyhow!("the copy keeps its streams: {reason}"))?;
        }
        match self {
            Self::Remote { transfer, .. } => transfer.change(settings),
            Self::ThirdParty { transfer, .. } => transfer.change(settings),
            Self::Local(_) if settings.streams.is_some() => {
                bail!(
                    "a copy within this machine keeps the streams it began with: change rate, readers or writers"
                );
            }
            Self::Local(copy) => copy.sender().change(settings),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_spares_starting_copies() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        std::thread::scope(|scope| {
            let copies = scope.spawn(|| {
                for _ in 0..2_000 {
                    let (listener, path) = listen_in(directory).unwrap();
                    std::fs::remove_file(path).expect("the socket keeps its name");
                    drop(listener);
                }
            });
            while !copies.is_finished() {
                let _ = local_transfers::running_in(directory);
            }
        });
    }
}
