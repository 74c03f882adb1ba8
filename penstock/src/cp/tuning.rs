//! Tuning of the streams of a copy: who does it, or why they stay as they are.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_agent::http::tuning::TuningFacts;
use penstock_agent::running_forecast::RateForecaster;
use penstock_mover::{
    STREAMS_MAX, StreamTuning, TunerSample, TuningBounds, TuningMode, TuningReport, default_streams,
};

use super::plan::RunningCopy;
use super::{CpArgs, Streams, Tune};

/// Tuning of a copy that this end sends.
pub(super) fn of_sender(args: &CpArgs) -> StreamTuning {
    let Streams(streams) = args.streams;
    let mode = match args.tune {
        Tune::Auto if streams.is_some() => {
            return StreamTuning::Kept("--streams names a number");
        }
        _ if !args.checksum.combines() => {
            return StreamTuning::Kept("the digest needs the order of the file, and so one stream");
        }
        _ if args.via_ssh => {
            return StreamTuning::Kept("each stream through ssh is a process of its own");
        }
        // A request may switch it on while the copy runs.
        Tune::Auto | Tune::Off => TuningMode::Auto,
        Tune::Observe => TuningMode::Observe,
    };
    let start = streams.unwrap_or_else(|| default_streams(args.checksum));
    let tuning =
        StreamTuning::within(start, TuningBounds { mode, streams_max: STREAMS_MAX, sharing: None });
    if args.tune == Tune::Off { tuning.switched_off("--tune off") } else { tuning }
}

/// Streams of the request for a copy between two agents: none where the source's agent is to choose and tune them.
pub(super) fn third_party_streams(args: &CpArgs, streams: Option<u16>) -> Option<u16> {
    let Streams(named) = args.streams;
    streams.filter(|_| named.is_some() || args.tune != Tune::Auto)
}

/// Tuning of a copy that this end receives.
pub(super) fn of_receiver(args: &CpArgs) -> StreamTuning {
    StreamTuning::Kept(match args.tune {
        Tune::Off => "--tune off",
        _ => "the agent sends: only the sending end measures what its streams gain",
    })
}

impl RunningCopy {
    /// Decisions about the streams, or the reason why there are none.
    pub(crate) fn tuning(&self) -> TuningFacts {
        self.tuning_report().into()
    }

    /// As [`Self::tuning`], with forecasts of the next seconds where there is a model.
    pub(crate) fn tuning_now(&self, forecaster: &RateForecaster) -> TuningFacts {
        TuningFacts::of_running(self.tuning_report(), forecaster)
    }

    /// Latest samples of its tuner; none where it has none.
    pub(crate) fn samples(&self) -> Arc<VecDeque<TunerSample>> {
        self.tuning_report().samples
    }

    pub(super) fn tuning_report(&self) -> TuningReport {
        match self {
            Self::Remote { transfer, .. } => transfer.tuning(),
            Self::ThirdParty { .. } => TuningReport::kept(
                "the source's agent sends, and has the decisions: transfers show --why there",
            ),
            Self::Local(_) => TuningReport::kept("the copy stays within this machine"),
        }
    }
}
