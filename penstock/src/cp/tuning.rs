//! Tuning of the streams of a copy: who does it, or why they stay as they are.

use penstock_mover::{AutoTuner, ClientTransfer, TuningMode};

use super::plan::{RunningCopy, auto_streams};
use super::{CpArgs, Streams, Tune};
use crate::json::copy::TuningJson;

/// Tuning of the streams of one copy.
pub(crate) enum StreamTuning {
    /// A tuner takes samples of the sending end, and changes the streams or suggests it.
    Tuned(Box<AutoTuner>),
    /// The streams stay, for this reason.
    Kept(&'static str),
}

impl StreamTuning {
    /// Tuning of a copy that this end sends.
    pub(super) fn of_sender(args: &CpArgs) -> Self {
        let Streams(streams) = args.streams;
        let mode = match args.tune {
            Tune::Off => return Self::Kept("--tune off"),
            Tune::Auto if streams.is_some() => return Self::Kept("--streams names a number"),
            _ if !args.checksum.combines() => {
                return Self::Kept("the digest needs the order of the file, and so one stream");
            }
            _ if args.via_ssh => {
                return Self::Kept("each stream through ssh is a process of its own");
            }
            Tune::Auto => TuningMode::Apply,
            Tune::Observe => TuningMode::Observe,
        };
        let start = streams.unwrap_or_else(|| auto_streams(args));
        let blocks = args.memory.0 / args.block.0.max(1);
        Self::Tuned(Box::new(AutoTuner::new(mode, start, blocks)))
    }

    /// Tuning of a copy that this end receives.
    pub(super) fn of_receiver(args: &CpArgs) -> Self {
        Self::Kept(match args.tune {
            Tune::Off => "--tune off",
            _ => "the agent sends: only the sending end measures what its streams gain",
        })
    }

    fn tick(&mut self, transfer: &ClientTransfer) {
        if let Self::Tuned(tuner) = self {
            tuner.tick(transfer);
        }
    }
}

impl RunningCopy {
    /// Lets the tuner, if there is one, take a sample and change the streams.
    pub(super) fn tune(&mut self) {
        if let Self::Remote { transfer, tuning, .. } = self {
            tuning.tick(transfer);
        }
    }

    /// Decisions about the streams, or the reason why there are none.
    pub(crate) fn tuning(&self) -> TuningJson {
        match self {
            Self::Remote { tuning: StreamTuning::Tuned(tuner), .. } => TuningJson::of(tuner),
            Self::Remote { tuning: StreamTuning::Kept(reason), .. } => TuningJson::kept(reason),
            Self::ThirdParty { .. } => {
                TuningJson::kept("two agents exchange the data: this process sends none")
            }
            Self::Local(_) => TuningJson::kept("the copy stays within this machine"),
        }
    }
}
