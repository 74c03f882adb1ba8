//! `penstock tune predict`: a forecast from the history of this host's agent, with a model file where there is one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use penstock_agent::history::{self, HistoryRow};
use penstock_forecast::online::{self, ForecastRequest};
use penstock_forecast::{
    MODEL_BYTES_MAX, ModelBundle, ModelForecast, ModelRefusal, PastTransfer, TransferFeatures,
    UntrainedValue, pair_rates_before,
};
use penstock_host::load::HostLoad;
use penstock_sys::machine::host_name;
use penstock_sys::net::is_own_address;
use penstock_units::{BitRate, ByteCount, display_duration};

use super::{now_unix_seconds, read_history};
use crate::cp::location::{self, Location};
use crate::credentials;
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json;
use crate::json::tune::{ForecastJson, ForecastModelJson, PredictionJson};

/// Model file in the state directory, used where no other is named.
pub(super) const MODEL_FILE: &str = "forecast-model.json";

/// Most names of the history that are resolved for a request by another name or an address.
const RESOLVED_NAMES_MAX: usize = 64;

pub(super) const AFTER_HELP: &str = "\
SRC and DST are written as for penstock cp; their hosts count, in this direction. The forecast is made from the latest \
transfers between the two hosts, else from those of the source host, else from all, and refused where there are too few or \
none of such a size. With a model file (penstock tune train) it is the model's, corrected by the latest transfers; where the \
model knows no such transfers, the forecast is made without it.

Examples:
  penstock tune predict /store/run7 penstock://dtn2/store/ --bytes 2T
  penstock tune predict penstock://dtn2/run7 /store/ --bytes 40G --files 12000";

#[derive(Debug, clap::Args)]
pub(super) struct PredictArgs {
    /// Source, as for cp
    source: OsString,
    /// Destination, as for cp
    destination: OsString,
    /// Bytes to send, such as 2T
    #[arg(long)]
    bytes: ByteCount,
    /// Number of files, for a model
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Data streams, for a model [default: as in the latest transfer of the pair]
    #[arg(long, value_name = "N", value_parser = crate::numbers::streams)]
    streams: Option<NonZeroU16>,
    /// Model file [default: forecast-model.json of the state directory, if it is there]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Print JSON; docs/json.md has its fields
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PredictArgs) -> Result<Code, CommandFailure> {
    let source = location::parse(&args.source).or_exit(Code::Usage)?;
    let destination = location::parse(&args.destination).or_exit(Code::Usage)?;
    let rows = read_history(u32::MAX)?;
    let local = local_names(&rows);
    let request = ForecastRequest {
        source: names_of(&source, &local, &rows),
        destination: names_of(&destination, &local, &rows),
        bytes: args.bytes.0,
    };
    let model = match &args.model {
        Some(path) => Some((path.clone(), read_model(path)?)),
        None => default_model()?,
    };
    let usable = usable_transfers(&rows);
    let prediction = predict(&usable, &request, model.as_ref(), args);
    if args.json {
        json::print(&prediction)?;
    } else if let Some(forecast) = &prediction.forecast {
        show(forecast, &prediction)?;
    }
    let path = credentials::state()?.path().join(history::FILE);
    match refusal_text(&prediction, model.as_ref().map(|(path, _)| path.as_path()), &path) {
        None => Ok(Code::Done),
        Some(why) if args.json => {
            say(&why);
            Ok(Code::Failed)
        }
        Some(why) => Err(anyhow::anyhow!("{why}").into()),
    }
}

/// Reasons why there is no forecast: that of the history, and that of the model where there is one.
fn refusal_text(
    prediction: &PredictionJson,
    model: Option<&Path>,
    history: &Path,
) -> Option<String> {
    let mut why = prediction.refusal.clone()?;
    if prediction.usable_transfers == 0 {
        let text = "has no transfer that counts: the agent on this host with that state directory keeps it";
        why = format!("{why}; {} {text}", history.display());
    }
    let by_model = prediction.model_refusal.as_ref().zip(model);
    Some(match by_model {
        Some((reason, path)) => format!("{why}; the model {}: {reason}", path.display()),
        None => why,
    })
}

/// Names of this host in the history, with its addresses there.
fn local_names(rows: &[HistoryRow]) -> BTreeSet<String> {
    let own = |row: &'_ HistoryRow| match row.direction.as_str() {
        "send" => row.source.clone(),
        _ => row.destination.clone(),
    };
    let mut names: BTreeSet<String> = rows.iter().map(own).collect();
    names.insert(host_name());
    let is_own = |host: &&&str| host.parse().is_ok_and(is_own_address);
    names.extend(hosts_of(rows).iter().filter(is_own).map(|host| (*host).to_owned()));
    names
}

/// Hosts of the history, each once: a look-up of an address takes a system call.
fn hosts_of(rows: &[HistoryRow]) -> BTreeSet<&str> {
    rows.iter().flat_map(|row| [row.source.as_str(), row.destination.as_str()]).collect()
}

/// Names and addresses of the host of a location. The history has a name where the agent connected to one.
fn names_of(location: &Location, local: &BTreeSet<String>, rows: &[HistoryRow]) -> Vec<String> {
    let host = match location {
        Location::Local(_) => return local.iter().cloned().collect(),
        Location::Agent { host, .. } | Location::Ssh { host, .. } => host,
    };
    let mut names = BTreeSet::from([host.clone(), host.to_ascii_lowercase()]);
    let addresses = addresses_of(host);
    names.extend(addresses.iter().map(IpAddr::to_string));
    let hosts = hosts_of(rows);
    let is_named = |name: &String| name.parse::<IpAddr>().is_err() && hosts.contains(name.as_str());
    // The history may have another name of the host, such as the one with its domain.
    if !addresses.is_empty() && !names.iter().any(is_named) {
        let named = hosts.iter().copied().filter(|host| host.parse::<IpAddr>().is_err());
        let is_it = |name: &&str| addresses_of(name).iter().any(|ip| addresses.contains(ip));
        names.extend(named.take(RESOLVED_NAMES_MAX).filter(is_it).map(str::to_owned));
    }
    if addresses.iter().any(|ip| is_own_address(*ip)) {
        names.extend(local.iter().cloned());
    }
    names.into_iter().collect()
}

/// Addresses of a host; none where its name has none.
fn addresses_of(host: &str) -> Vec<IpAddr> {
    let addresses = (host, 0).to_socket_addrs().into_iter().flatten();
    addresses.map(|address| address.ip().to_canonical()).collect()
}

/// Transfers that ended well and that no rate limit bound, by the time of their start.
fn usable_transfers(rows: &[HistoryRow]) -> Vec<PastTransfer> {
    let mut history: Vec<_> = rows.iter().filter_map(HistoryRow::past_transfer).collect();
    history.sort_by(|a, b| a.started_s.total_cmp(&b.started_s));
    history
}

fn read_model(path: &Path) -> anyhow::Result<ModelBundle> {
    let named = || path.display().to_string();
    let mut bytes = Vec::new();
    // One byte more than is allowed, so that excess is noticed.
    let limit = MODEL_BYTES_MAX as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .with_context(named)?;
    ModelBundle::parse(&bytes).with_context(named)
}

fn default_model() -> anyhow::Result<Option<(PathBuf, ModelBundle)>> {
    let path = credentials::state()?.path().join(MODEL_FILE);
    match path.exists() {
        true => Ok(Some((path.clone(), read_model(&path)?))),
        false => Ok(None),
    }
}

/// Checks that a file is a model that forecasts can use.
pub(super) fn check_model(path: &Path) -> anyhow::Result<()> {
    let model = read_model(path)?;
    if model.synthetic_rows > 0 {
        bail!("{}: {} of its transfers are synthetic", path.display(), model.synthetic_rows);
    }
    Ok(())
}

fn predict(
    history: &[PastTransfer],
    request: &ForecastRequest,
    model: Option<&(PathBuf, ModelBundle)>,
    args: &PredictArgs,
) -> PredictionJson {
    let online = online::forecast(history, request);
    let (mut refusal, mut forecast) = (None, None);
    match online {
        Ok(found) => {
            forecast = Some(ForecastJson {
                method: "online",
                scope: found.scope.as_str(),
                transfers: found.transfers,
                seconds: found.seconds.into(),
                bits_per_second: found.bits_per_second.into(),
                latency_seconds: Some(found.fit.latency_s),
            });
        }
        Err(why) => refusal = Some(why.to_string()),
    }
    let (mut used, mut model_refusal) = (None, None);
    if let Some((path, model)) = model {
        match predict_by_model(history, request, model, args) {
            Ok(found) => {
                refusal = None;
                forecast = Some(ForecastJson {
                    method: "model",
                    scope: "pair",
                    transfers: found.corrected_by,
                    seconds: found.seconds.into(),
                    bits_per_second: found.bits_per_second.into(),
                    latency_seconds: None,
                });
                used = Some(ForecastModelJson {
                    file: path.display().to_string(),
                    training_rows: model.training_rows,
                    synthetic_rows: model.synthetic_rows,
                    training_sha256: model.training_sha256.clone(),
                    correction: found.correction,
                });
            }
            Err(why) => model_refusal = Some(model_refusal_text(&why)),
        }
    }
    PredictionJson {
        source: request.source.clone(),
        destination: request.destination.clone(),
        bytes: request.bytes,
        usable_transfers: history.len(),
        forecast,
        refusal,
        model: used,
        model_refusal,
    }
}

fn predict_by_model(
    history: &[PastTransfer],
    request: &ForecastRequest,
    model: &ModelBundle,
    args: &PredictArgs,
) -> Result<ModelForecast, ModelRefusal> {
    let pair: Vec<&PastTransfer> = history.iter().filter(|one| request.is_of_pair(one)).collect();
    let with_rates = |features: TransferFeatures, time_s: f64| {
        let rates = pair_rates_before(pair.iter().copied(), time_s);
        let (last, median) = rates.unzip();
        TransferFeatures { pair_last_bps: last, pair_median_bps: median, ..features }
    };
    let recent: Vec<_> = pair
        .iter()
        .rev()
        .take(online::WINDOW_TRANSFERS)
        .map(|one| (with_rates(one.features, one.started_s), one.bits_per_second()))
        .collect();
    // Settings as in the latest transfer of the pair, and the load of now.
    let before = pair.last().map(|one| one.features).unwrap_or_default();
    let load = HostLoad::read();
    let others = crate::transfers::running_at_agent();
    let now_s = now_unix_seconds();
    let features = TransferFeatures {
        bytes: Some(request.bytes as f64),
        files: args.files.map(|files| files as f64),
        streams: args.streams.map(|streams| f64::from(streams.get())).or(before.streams),
        other_transfers: others.map(|(transfers, _)| transfers as f64),
        other_streams: others.map(|(_, streams)| streams as f64),
        started_s: Some(now_s),
        load_per_processor: load.load_1min.map(|one| one / f64::from(load.processors.max(1))),
        cpu_pressure_percent: load.cpu_pressure_percent,
        io_pressure_percent: load.io_pressure_percent,
        dirty_bytes: load.dirty_bytes.map(|bytes| bytes as f64),
        ..before
    };
    model.forecast(&with_rates(features, now_s), &recent)
}

/// Reason of a model, with the option that helps.
fn model_refusal_text(why: &ModelRefusal) -> String {
    match why {
        ModelRefusal::Value(UntrainedValue::Missing(name @ ("files" | "streams"))) => {
            format!("{why}: give --{name} N")
        }
        _ => why.to_string(),
    }
}

fn show(forecast: &ForecastJson, prediction: &PredictionJson) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let time = |seconds: f64| {
        display_duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    };
    let rate = |bits: f64| BitRate(bits as u64).to_string();
    let (seconds, bits) = (&forecast.seconds, &forecast.bits_per_second);
    let (middle, low, high) = (time(seconds.p50), time(seconds.p10), time(seconds.p90));
    writeln!(output, "time  {middle}   80 % of such transfers take {low} to {high}")?;
    let (middle, low, high) = (rate(bits.p50), rate(bits.p10), rate(bits.p90));
    writeln!(output, "rate  {middle}   80 % between {low} and {high}")?;
    let whose = match forecast.scope {
        "pair" => "between these hosts",
        "source" => "from this source host, to any host",
        _ => "of all hosts",
    };
    match (&prediction.model, forecast.latency_seconds) {
        (Some(model), _) => writeln!(
            output,
            "from  the model {} of {} transfers, times {:.2} by {} transfers between these hosts",
            model.file, model.training_rows, model.correction, forecast.transfers
        )?,
        (None, latency) => writeln!(
            output,
            "from  the latest {} transfers {whose}; {:.2} s do not depend on the size",
            forecast.transfers,
            latency.unwrap_or(0.0)
        )?,
    }
    if let Some(model) = prediction.model.as_ref().filter(|model| model.synthetic_rows > 0) {
        writeln!(
            output,
            "note  {} transfers of the model are synthetic: it shows nothing about real ones",
            model.synthetic_rows
        )?;
    }
    if let Some(why) = &prediction.model_refusal {
        writeln!(output, "note  without the model: {why}")?;
    }
    Ok(())
}
