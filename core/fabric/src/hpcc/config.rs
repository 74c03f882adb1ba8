//! Reader of `config.txt`: keys of the HPCC simulator (its `scratch/third.cc` and `rdma-hw.cc`), in any order.
//!
//! A missing key takes that simulator's default. A key that has no effect here, or a different one, is reported as a
//! note.

use std::collections::BTreeMap;

use penstock_units::{BitRate, ByteCount};

use super::fault::{HpccFault, HpccFileError, fault};
use super::read::rate;
use crate::parameters::{CongestionControl, Parameters, Picoseconds, RoundTrip, Window, WireModel};
use crate::time::{PS_PER_MICROSECOND, PS_PER_SECOND};

/// Origin of the time of LINK_DOWN, the usual start of flows.
const LINK_DOWN_FROM_PS: u64 = 2 * PS_PER_SECOND;
/// Latest time of LINK_DOWN after its origin, in microseconds.
const LINK_DOWN_US_MAX: u64 = 1_000_000_000;
/// Link rates that the telemetry can encode; all others are encoded as the first.
const TELEMETRY_RATES: [u64; 5] =
    [25_000_000_000, 50_000_000_000, 100_000_000_000, 200_000_000_000, 400_000_000_000];
/// Hops that the telemetry can hold.
const TELEMETRY_HOPS: usize = 5;

/// Contents of a `config.txt`.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Parameters of this simulator that the keys translate to.
    pub parameters: Parameters,
    /// Name of the topology file, relative to the configuration.
    pub topology_file: String,
    /// Name of the flow file, relative to the configuration.
    pub flow_file: String,
    /// End of the run in picoseconds.
    pub until_ps: u64,
    /// ECN marking by line rate: rate in bits per second, Kmin and Kmax in bytes, Pmax.
    pub marking: Vec<(u64, u64, u64, f64)>,
    /// Frame loss ratio of links without one of their own.
    pub loss: f64,
    /// Start and end of queue monitoring in nanoseconds.
    pub queue_times_ns: Option<(u64, u64)>,
    /// Failing link: time of the failure in picoseconds, and the nodes at its ends.
    pub link_down: Option<(u64, [usize; 2])>,
    /// True if base RTT and window are the maximum over all pairs of hosts (GLOBAL_T), not those of each pair.
    pub has_global_round_trip: bool,
    /// Keys with a different effect or none, with their lines.
    pub notes: Vec<String>,
}

impl Config {
    /// Lists the differences between the telemetry of both simulators that affect results, for a network with these
    /// link rates and `switches` switches on its longest path.
    #[must_use]
    pub fn telemetry_notes(&self, rates: &[u64], switches: usize) -> Vec<String> {
        let mut notes = Vec::new();
        if self.parameters.cc != CongestionControl::Hpcc {
            return notes;
        }
        if let Some(other) = rates.iter().find(|rate| !TELEMETRY_RATES.contains(rate)) {
            notes.push(format!(
                "telemetry has the true rate of every link; that simulator reports {} as 25 Gb/s",
                BitRate(*other)
            ));
        }
        if switches > TELEMETRY_HOPS {
            notes.push(format!(
                "telemetry has up to 8 switches; that simulator has room for {TELEMETRY_HOPS} of the {switches} on the longest path"
            ));
        }
        notes
    }
}

/// Keys with one value each.
const KEYS: [&str; 49] = [
    "ENABLE_QCN",
    "USE_DYNAMIC_PFC_THRESHOLD",
    "CLAMP_TARGET_RATE",
    "PAUSE_TIME",
    "DATA_RATE",
    "LINK_DELAY",
    "PACKET_PAYLOAD_SIZE",
    "L2_CHUNK_SIZE",
    "L2_ACK_INTERVAL",
    "L2_BACK_TO_ZERO",
    "TOPOLOGY_FILE",
    "FLOW_FILE",
    "TRACE_FILE",
    "TRACE_OUTPUT_FILE",
    "SIMULATOR_STOP_TIME",
    "ALPHA_RESUME_INTERVAL",
    "RP_TIMER",
    "EWMA_GAIN",
    "FAST_RECOVERY_TIMES",
    "RATE_AI",
    "RATE_HAI",
    "ERROR_RATE_PER_LINK",
    "CC_MODE",
    "RATE_DECREASE_INTERVAL",
    "MIN_RATE",
    "FCT_OUTPUT_FILE",
    "HAS_WIN",
    "GLOBAL_T",
    "MI_THRESH",
    "VAR_WIN",
    "FAST_REACT",
    "U_TARGET",
    "INT_MULTI",
    "RATE_BOUND",
    "ACK_HIGH_PRIO",
    "DCTCP_RATE_AI",
    "PFC_OUTPUT_FILE",
    "ENABLE_TRACE",
    "BUFFER_SIZE",
    "QLEN_MON_FILE",
    "QLEN_MON_START",
    "QLEN_MON_END",
    "MULTI_RATE",
    "SAMPLE_FEEDBACK",
    "PINT_LOG_BASE",
    "PINT_PROB",
    // Keys of derived simulators.
    "ENABLE_PFC",
    "L2_WAIT_FOR_ACK",
    "NIC_TOTAL_PAUSE_TIME",
];
const LINK_DOWN: &str = "LINK_DOWN";
const MAPS: [&str; 3] = ["KMIN_MAP", "KMAX_MAP", "PMAX_MAP"];

/// Values of the keys with their lines; the last occurrence of a key counts.
#[derive(Debug, Default)]
struct Keys<'a> {
    values: BTreeMap<&'a str, (usize, &'a str)>,
    link_down: Option<(usize, [&'a str; 3])>,
    /// Values by line rate, in the order of [`MAPS`].
    maps: [BTreeMap<u64, f64>; 3],
    notes: Vec<String>,
    lines: usize,
}

impl<'a> Keys<'a> {
    fn read(text: &'a str) -> Result<Self, HpccFileError> {
        let mut keys = Self { lines: text.lines().count().max(1), ..Self::default() };
        for (number, text) in text.lines().enumerate() {
            let words: Vec<&str> = text.split_whitespace().collect();
            let mut rest = &words[..];
            if rest.first().is_some_and(|word| word.starts_with('#')) {
                continue;
            }
            if let Some(word) = rest.first().filter(|word| !is_key(word)) {
                let word = word.escape_debug();
                keys.notes.push(format!("{}: {word} has no meaning here", number + 1));
                continue;
            }
            // Words after the values of a key that are not keys are comments.
            while let Some((key, more)) = rest.split_first().filter(|(key, _)| is_key(key)) {
                let taken = keys.take(number + 1, key, more)?;
                rest = &more[taken..];
            }
        }
        Ok(keys)
    }

    /// Stores the values of a key and returns their number.
    fn take(
        &mut self,
        line: usize,
        key: &'a str,
        words: &[&'a str],
    ) -> Result<usize, HpccFileError> {
        if let Some(map) = MAPS.iter().position(|name| *name == key) {
            let (pairs, taken) = rate_map(line, words)?;
            self.maps[map].extend(pairs);
            return Ok(taken);
        }
        if key == LINK_DOWN {
            let Some(values) = words.first_chunk() else {
                return fault(line, HpccFault::LinkDown);
            };
            self.link_down = Some((line, *values));
            return Ok(values.len());
        }
        let Some(word) = words.first() else {
            return fault(line, HpccFault::NoValue(key.to_owned()));
        };
        self.values.insert(key, (line, word));
        Ok(1)
    }

    fn line(&self, key: &str) -> usize {
        self.values.get(key).map_or(self.lines, |(line, _)| *line)
    }

    fn word(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).map(|(_, word)| *word)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, HpccFileError> {
        let Some((line, word)) = self.values.get(key) else { return Ok(None) };
        match word.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => {
                let (key, word) = (key.to_owned(), (*word).to_owned());
                fault(*line, HpccFault::NoNumber { key, word })
            }
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, HpccFileError> {
        Ok(self.number(key)?.map_or(default, |number| number != 0.0))
    }

    fn rate(&self, key: &str) -> Result<Option<BitRate>, HpccFileError> {
        self.values.get(key).map(|(line, word)| rate(*line, word)).transpose()
    }

    fn time(&self, key: &str) -> Result<Option<Picoseconds>, HpccFileError> {
        let time = |us: f64| Picoseconds((us * PS_PER_MICROSECOND as f64) as u64);
        Ok(self.number(key)?.map(time))
    }

    fn note(&mut self, key: &str, words: impl AsRef<str>) {
        self.notes.push(format!("{}: {key}: {}", self.line(key), words.as_ref()));
    }
}

fn is_key(word: &str) -> bool {
    word == LINK_DOWN || MAPS.contains(&word) || KEYS.contains(&word)
}

/// Parses pairs of rate and value; returns them with the number of words consumed.
fn rate_map(line: usize, words: &[&str]) -> Result<(Vec<(u64, f64)>, usize), HpccFileError> {
    let wrong = || fault(line, HpccFault::Map);
    let Some(count) = words.first().and_then(|word| word.parse::<usize>().ok()) else {
        return wrong();
    };
    let pairs = words.get(1..).unwrap_or_default().chunks_exact(2).take(count);
    let pair = |pair: &[&str]| {
        let value = pair[1].parse::<f64>().ok()?;
        Some((pair[0].parse().ok()?, value)).filter(|_| value >= 0.0 && value.is_finite())
    };
    match pairs.map(pair).collect::<Option<Vec<_>>>() {
        Some(pairs) if pairs.len() == count => Ok((pairs, 1 + 2 * count)),
        _ => wrong(),
    }
}

/// Parses the text of a `config.txt`.
///
/// # Errors
/// Reports the first malformed or unsupported key.
pub fn config(text: &str) -> Result<Config, HpccFileError> {
    let mut keys = Keys::read(text)?;
    let parameters = parameters(&mut keys)?;
    let seconds = |seconds: f64| (seconds * PS_PER_SECOND as f64) as u64;
    let file = |key: &str| match keys.word(key) {
        Some(file) => Ok(file.to_owned()),
        None => fault(keys.lines, HpccFault::NoFile(key.to_owned())),
    };
    let queue_times_ns = match (keys.number("QLEN_MON_START")?, keys.number("QLEN_MON_END")?) {
        (None, None) => None,
        (start, end) => Some((start.unwrap_or(0.0) as u64, end.map_or(u64::MAX, |end| end as u64))),
    };
    Ok(Config {
        topology_file: file("TOPOLOGY_FILE")?,
        flow_file: file("FLOW_FILE")?,
        until_ps: seconds(keys.number("SIMULATOR_STOP_TIME")?.unwrap_or(3.01)),
        marking: marking(&keys)?,
        loss: keys.number("ERROR_RATE_PER_LINK")?.unwrap_or(0.0).min(0.999),
        queue_times_ns,
        link_down: link_down(&keys)?,
        has_global_round_trip: parameters.base_rtt_of == RoundTrip::Longest,
        parameters,
        notes: keys.notes,
    })
}

fn marking(keys: &Keys<'_>) -> Result<Vec<(u64, u64, u64, f64)>, HpccFileError> {
    let [kmin, kmax, pmax] = &keys.maps;
    let bytes = |thousands: f64| (thousands * 1000.0) as u64;
    let all = kmin.iter().map(|(rate, kmin)| match (kmax.get(rate), pmax.get(rate)) {
        (Some(kmax), Some(pmax)) => Ok((*rate, bytes(*kmin), bytes(*kmax), *pmax)),
        _ => fault(1, HpccFault::Marking(*rate)),
    });
    all.collect()
}

fn link_down(keys: &Keys<'_>) -> Result<Option<(u64, [usize; 2])>, HpccFileError> {
    let Some((line, words)) = keys.link_down else { return Ok(None) };
    let numbers = words.map(|word| word.parse::<u64>().ok());
    match numbers {
        [Some(0), Some(_), Some(_)] => Ok(None),
        [Some(us), Some(a), Some(b)] if us < LINK_DOWN_US_MAX => {
            let at_ps = LINK_DOWN_FROM_PS + us * PS_PER_MICROSECOND;
            Ok(Some((at_ps, [a as usize, b as usize])))
        }
        _ => fault(line, HpccFault::LinkDown),
    }
}

fn congestion_control(keys: &Keys<'_>) -> Result<CongestionControl, HpccFileError> {
    match keys.number("CC_MODE")?.unwrap_or(1.0) as u32 {
        1 => Ok(CongestionControl::Dcqcn),
        3 => Ok(CongestionControl::Hpcc),
        7 => Ok(CongestionControl::Timely),
        8 => Ok(CongestionControl::Dctcp),
        other => fault(keys.line("CC_MODE"), HpccFault::CongestionControl(other)),
    }
}

/// Translates keys to parameters, including fixed properties of that simulator: no time-outs and immediate rerouting.
fn parameters(keys: &mut Keys<'_>) -> Result<Parameters, HpccFileError> {
    let usual = Parameters::default();
    let whole = |number: f64| number as u32;
    let gain = keys.number("EWMA_GAIN")?;
    let rate_ai = keys.rate("RATE_AI")?;
    let rate_hai = keys.rate("RATE_HAI")?;
    let mib = keys.number("BUFFER_SIZE")?.unwrap_or(16.0);
    let (has_window, is_scaled) = (keys.flag("HAS_WIN", true)?, keys.flag("VAR_WIN", false)?);
    let parameters = Parameters {
        wire: WireModel::Ns3Hpcc,
        timeout_exponent: 0,
        reroute: Picoseconds(0),
        cc: congestion_control(keys)?,
        mtu: keys.number("PACKET_PAYLOAD_SIZE")?.map_or(1000, whole),
        ack_every: 1,
        ack_unpaused: keys.flag("ACK_HIGH_PRIO", false)?,
        buffer: Some(ByteCount((mib * f64::from(1 << 20)) as u64)).filter(|bytes| bytes.0 > 0),
        pfc: keys.flag("ENABLE_PFC", true)?,
        ecn: keys.flag("ENABLE_QCN", true)?,
        base_rtt_of: if keys.flag("GLOBAL_T", true)? { RoundTrip::Longest } else { RoundTrip::Own },
        window: match (has_window, is_scaled) {
            (false, _) => Window::None,
            (true, false) => Window::Fixed,
            (true, true) => Window::Scaled,
        },
        paced: keys.flag("RATE_BOUND", true)?,
        rate_min: keys.rate("MIN_RATE")?.or(Some(BitRate(100_000_000))),
        dcqcn_gain: gain.unwrap_or(usual.dcqcn_gain),
        dcqcn_alpha_interval: keys
            .time("ALPHA_RESUME_INTERVAL")?
            .unwrap_or(Picoseconds(55 * PS_PER_MICROSECOND)),
        dcqcn_decrease_interval: keys
            .time("RATE_DECREASE_INTERVAL")?
            .unwrap_or(usual.dcqcn_decrease_interval),
        dcqcn_increase_interval: keys.time("RP_TIMER")?.unwrap_or(usual.dcqcn_increase_interval),
        dcqcn_recovery_stages: keys.number("FAST_RECOVERY_TIMES")?.map_or(5, whole),
        dcqcn_additive: rate_ai,
        dcqcn_hyper: rate_hai,
        dcqcn_clamp: keys.flag("CLAMP_TARGET_RATE", false)?,
        hpcc_target: keys.number("U_TARGET")?.unwrap_or(usual.hpcc_target),
        hpcc_stages: keys.number("MI_THRESH")?.map_or(5, whole),
        hpcc_additive: rate_ai,
        hpcc_fast_react: keys.flag("FAST_REACT", true)?,
        hpcc_per_hop: keys.flag("MULTI_RATE", true)?,
        hpcc_skip_idle: keys.flag("SAMPLE_FEEDBACK", false)?,
        hpcc_unit: keys.number("INT_MULTI")?.map_or(1, whole).max(1),
        dctcp_gain: gain.unwrap_or(usual.dctcp_gain),
        dctcp_additive: keys.rate("DCTCP_RATE_AI")?.or(Some(BitRate(1_000_000_000))),
        timely_additive: rate_ai,
        timely_hyper: rate_hai,
        ..usual
    };
    reject_unsupported(keys)?;
    note_differences(keys, &parameters)?;
    Ok(parameters)
}

/// Rejects keys that would change a run fundamentally.
fn reject_unsupported(keys: &Keys<'_>) -> Result<(), HpccFileError> {
    if keys.flag("L2_BACK_TO_ZERO", false)? {
        return fault(keys.line("L2_BACK_TO_ZERO"), HpccFault::BackToZero);
    }
    if keys.number("L2_ACK_INTERVAL")? == Some(0.0) {
        return fault(keys.line("L2_ACK_INTERVAL"), HpccFault::NoAcknowledgements);
    }
    Ok(())
}

/// Notes keys whose effect differs from their name, or that are not modelled.
fn note_differences(keys: &mut Keys<'_>, parameters: &Parameters) -> Result<(), HpccFileError> {
    let interval = keys.number("L2_ACK_INTERVAL")?.unwrap_or(1.0);
    if interval > f64::from(parameters.mtu) {
        keys.note(
            "L2_ACK_INTERVAL",
            "that simulator acknowledges no packet before so many bytes and then every one; here every packet is",
        );
    } else if interval > 1.0 {
        keys.note(
            "L2_ACK_INTERVAL",
            "every packet is acknowledged, as there: its counter begins anew with each packet",
        );
    }
    if !keys.flag("USE_DYNAMIC_PFC_THRESHOLD", true)? {
        keys.note(
            "USE_DYNAMIC_PFC_THRESHOLD",
            "thresholds are dynamic, as there: nothing reads the key; --set pfc_threshold=static has fixed ones",
        );
    }
    if keys.number("PAUSE_TIME")? == Some(0.0) {
        keys.note(
            "PAUSE_TIME",
            "a pause of 0 is none there; here hosts and switches pause: --set pfc=false",
        );
    }
    if parameters.cc == CongestionControl::Hpcc && parameters.window == Window::None {
        keys.note(
            "HAS_WIN",
            "HPCC divides by the window there; here it takes line rate times round trip, and sends without a window",
        );
    }
    for key in ["L2_WAIT_FOR_ACK", "NIC_TOTAL_PAUSE_TIME"] {
        if keys.number(key)?.is_some_and(|number| number != 0.0) {
            keys.note(key, "it is not modelled");
        }
    }
    let needed: &[&str] = match parameters.cc {
        CongestionControl::Dcqcn => &["RP_TIMER", "EWMA_GAIN", "RATE_AI", "RATE_HAI"],
        CongestionControl::Hpcc => &["RATE_AI"],
        CongestionControl::Timely => &["RATE_AI", "RATE_HAI"],
        CongestionControl::Dctcp => &["EWMA_GAIN"],
        _ => &[],
    };
    for key in needed.iter().filter(|key| keys.word(key).is_none()).copied().collect::<Vec<_>>() {
        keys.note(
            key,
            "it is missing, and that simulator has no use of its default: ours is taken",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &str = "TOPOLOGY_FILE t.txt\nFLOW_FILE f.txt\nRATE_AI 50Mb/s\nRATE_HAI 100Mb/s\nRP_TIMER 900\n\
                         EWMA_GAIN 0.00390625\n";

    fn read(text: &str) -> Config {
        config(&format!("{text}{FILES}")).unwrap()
    }

    #[test]
    fn key_order_has_no_effect() {
        let mut lines = [
            "CC_MODE 3",
            "ENABLE_QCN 0",
            "HAS_WIN 1",
            "VAR_WIN 1",
            "L2_ACK_INTERVAL 1",
            "PACKET_PAYLOAD_SIZE 1000",
        ];
        let one = read(&(lines.join("\n") + "\n"));
        lines.reverse();
        let other = read(&(lines.join("\n") + "\n"));
        assert_eq!(one.parameters, other.parameters);
        assert_eq!(one.notes, Vec::<String>::new());
        assert_eq!((one.parameters.cc, one.parameters.ecn), (CongestionControl::Hpcc, false));
        assert_eq!(one.parameters.window, Window::Scaled);
    }

    /// Defaults from the sources of that simulator.
    #[test]
    fn missing_keys_take_ns3_defaults() {
        let config = read("");
        let p = &config.parameters;
        assert_eq!((p.cc, p.ecn, p.window), (CongestionControl::Dcqcn, true, Window::Fixed));
        assert_eq!((p.hpcc_stages, p.hpcc_per_hop, p.hpcc_fast_react), (5, true, true));
        assert_eq!((p.reroute.0, p.timeout_exponent, p.ack_every), (0, 0, 1));
        assert_eq!(p.buffer, Some(ByteCount(16 << 20)));
        assert_eq!(p.dcqcn_alpha_interval.0, 55 * PS_PER_MICROSECOND);
        assert_eq!((config.until_ps, config.link_down), (3_010_000_000_000, None));
        assert!(config.has_global_round_trip && config.notes.is_empty());
    }

    #[test]
    fn every_key_reaches_its_parameter() {
        type Pick = fn(&Parameters) -> String;
        let cases: [(&str, Pick, &str); 12] = [
            ("HAS_WIN 0", |p| format!("{:?}", p.window), "None"),
            ("HAS_WIN 1\nVAR_WIN 1\nCC_MODE 7", |p| format!("{:?}", p.window), "Scaled"),
            ("CC_MODE 8\nVAR_WIN 0", |p| format!("{:?}", p.window), "Fixed"),
            ("MULTI_RATE 0", |p| p.hpcc_per_hop.to_string(), "false"),
            ("SAMPLE_FEEDBACK 1", |p| p.hpcc_skip_idle.to_string(), "true"),
            ("RATE_BOUND 0", |p| p.paced.to_string(), "false"),
            ("FAST_REACT 0", |p| p.hpcc_fast_react.to_string(), "false"),
            ("INT_MULTI 4", |p| p.hpcc_unit.to_string(), "4"),
            ("GLOBAL_T 0", |p| format!("{:?}", p.base_rtt_of), "Own"),
            ("ACK_HIGH_PRIO 1", |p| p.ack_unpaused.to_string(), "true"),
            ("MI_THRESH 0 CC_MODE 3", |p| format!("{:?} {}", p.cc, p.hpcc_stages), "Hpcc 0"),
            ("USE_DYNAMIC_PFC_THRESHOLD 0", |p| format!("{:?}", p.pfc_threshold), "Dynamic"),
        ];
        for (text, pick, expected) in cases {
            assert_eq!(pick(&read(&format!("{text}\n")).parameters), expected, "{text}");
        }
    }

    #[test]
    fn unsupported_keys_are_noted() {
        for (text, words) in [
            ("L2_ACK_INTERVAL 16", "1: L2_ACK_INTERVAL: every packet"),
            ("L2_ACK_INTERVAL 4000", "before so many bytes"),
            ("USE_DYNAMIC_PFC_THRESHOLD 0", "thresholds are dynamic"),
            ("PAUSE_TIME 0", "pfc=false"),
            ("CC_MODE 3\nHAS_WIN 0", "2: HAS_WIN: HPCC divides"),
            ("LB_MODE 3", "1: LB_MODE has no meaning here"),
            ("L2_WAIT_FOR_ACK 1", "not modelled"),
        ] {
            let notes = read(&format!("{text}\n")).notes;
            assert!(notes.len() == 1 && notes[0].contains(words), "{text}: {notes:?}");
        }
        let missing = config("TOPOLOGY_FILE t\nFLOW_FILE f\nCC_MODE 7\n").unwrap().notes;
        assert_eq!(missing.len(), 2, "{missing:?}");
    }

    /// The documentation of that simulator shows a comment after each value.
    #[test]
    fn comments_after_values_are_skipped() {
        let config = read(
            "LINK_DOWN 10 3 4 {a b c: take down link}\nKMAX_MAP 1 25000000000 400 {a map}\nKMIN_MAP 1 25000000000 100\n\
             PMAX_MAP 1 25000000000 0.2 {x}\nKMIN_MAP 1 50000000000 200\nKMAX_MAP 1 50000000000 800\nPMAX_MAP 1 50000000000 1\n",
        );
        assert_eq!(config.link_down, Some((2_000_010_000_000, [3, 4])));
        let expected =
            [(25_000_000_000, 100_000, 400_000, 0.2), (50_000_000_000, 200_000, 800_000, 1.0)];
        assert_eq!(config.marking, expected);
        assert_eq!(read("LINK_DOWN 0 3 4\n").link_down, None);
    }

    #[test]
    fn telemetry_differences_are_noted() {
        let config = read("CC_MODE 3\n");
        assert_eq!(config.telemetry_notes(&[25_000_000_000, 400_000_000_000], 5).len(), 0);
        assert_eq!(config.telemetry_notes(&[10_000_000_000], 6).len(), 2);
        assert_eq!(read("CC_MODE 1\n").telemetry_notes(&[10_000_000_000], 6).len(), 0);
    }
}
