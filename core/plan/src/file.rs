//! Reads a plan in TOML and reports all its faults at once. docs/plan.md lists its keys.

use std::collections::HashMap;
use std::time::Duration;

use penstock_topology::table::{TableReader, parse};
use penstock_topology::{FaultCollector, FileFaults, shown};
use penstock_units::{BitRate, ByteCount, parse_duration};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use crate::{
    DemandPlan, ExperimentDemand, FlowTarget, PlanSite, PlannedFlow, RateFactor, TrafficModel,
};

/// Largest file that [`DemandPlan::read`] accepts, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Years after the first one.
const YEARS_MAX: u16 = 100;
const RATE_MAX: BitRate = BitRate(1_000_000_000_000_000);
const FACTOR_MAX: f64 = 1000.0;
const GROWTH_MAX: f64 = 10.0;
const SHARE_MAX: u32 = 1_000_000;

/// Growth per year as a share, from a text such as `40%`.
#[derive(Debug)]
struct Growth(f64);

impl<'de> Deserialize<'de> for Growth {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse().ok());
        let percent: f64 = number.ok_or_else(|| {
            de::Error::custom(format!("'{}' is no growth: write it like 40%", shown(&text)))
        })?;
        Ok(Self(percent / 100.0))
    }
}

#[derive(Debug)]
struct DurationText(Duration);

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}

impl DemandPlan {
    /// Reads and checks a plan in TOML.
    ///
    /// # Errors
    /// All faults of the file, or the syntax errors alone where it is not TOML.
    pub fn read(text: &str) -> Result<Self, FileFaults> {
        let (table, faults) = parse(text, FILE_BYTES_MAX, "a plan")?;
        let mut reader = PlanReader { faults, sites: HashMap::new() };
        let plan = reader.plan(table);
        let faults = reader.faults.into_faults();
        if faults.0.is_empty() { Ok(plan) } else { Err(faults) }
    }
}

struct PlanReader<'a> {
    faults: FaultCollector<'a>,
    sites: HashMap<String, usize>,
}

impl PlanReader<'_> {
    fn plan(&mut self, mut table: TableReader<'_>) -> DemandPlan {
        let faults = &mut self.faults;
        let span = table.span();
        let name = table.required::<String>("name", faults).map(Spanned::into_inner);
        let title = table.text("title", faults);
        let source = table.text("source", faults);
        let year = table.required::<u16>("year", faults);
        let until = table.optional::<u16>("until", faults);
        let growth = table.optional::<Growth>("growth", faults);
        let models = table.tables("model", "a model", faults);
        let sites = table.tables("site", "a site", faults);
        let experiments = table.tables("experiment", "an experiment", faults);
        table.finish(faults);
        if models.is_empty() {
            self.faults.note(
                span.clone(),
                "a plan needs a [[model]]: one without factors is the mean rate",
            );
        }
        if experiments.is_empty() {
            self.faults.note(span, "a plan needs an [[experiment]]");
        }
        let year = year.map_or(0, Spanned::into_inner);
        let last = until.as_ref().map_or(year, |until| *until.get_ref());
        if let Some(until) = &until
            && !(year..=year.saturating_add(YEARS_MAX)).contains(&last)
        {
            let text = format!("until is the year {year} or one of the {YEARS_MAX} after it");
            self.faults.note(until.span(), text);
        }
        let growth = self.growth(growth).unwrap_or(0);
        let mut plan = DemandPlan {
            name: name.unwrap_or_default(),
            title,
            source,
            years: year..=last,
            models: Vec::new(),
            sites: Vec::new(),
            experiments: Vec::new(),
        };
        let mut seen = HashMap::new();
        for model in models {
            plan.models.extend(self.model(model, &mut seen));
        }
        for site in sites {
            self.site(site, &mut plan.sites);
        }
        let mut seen = HashMap::new();
        for experiment in experiments {
            plan.experiments.extend(self.experiment(experiment, growth, &mut seen));
        }
        plan
    }

    fn new_name(
        &mut self,
        what: &str,
        name: Option<Spanned<String>>,
        seen: &mut HashMap<String, usize>,
    ) -> Option<String> {
        let name = name?;
        let text = name.get_ref();
        if text.is_empty() || text.chars().any(char::is_control) {
            self.faults.note(name.span(), "a name is one line and not empty");
        }
        if seen.insert(text.clone(), seen.len()).is_some() {
            self.faults.note(name.span(), format!("there is another {what} '{}'", shown(text)));
        }
        Some(name.into_inner())
    }

    fn growth(&mut self, growth: Option<Spanned<Growth>>) -> Option<u64> {
        let growth = growth?;
        let value = growth.get_ref().0;
        if !(0.0..=GROWTH_MAX).contains(&value) {
            self.faults.note(growth.span(), "growth is 0% to 1000% a year");
        }
        Some((value * 1000.0).round() as u64)
    }

    fn model(
        &mut self,
        mut table: TableReader<'_>,
        seen: &mut HashMap<String, usize>,
    ) -> Option<TrafficModel> {
        let faults = &mut self.faults;
        let name = table.required::<String>("name", faults);
        let title = table.text("title", faults);
        let tables = table.tables("factor", "a factor", faults);
        table.finish(faults);
        let mut factors = Vec::new();
        for mut table in tables {
            let faults = &mut self.faults;
            let name = table.required::<String>("name", faults);
            let times = table.required::<f64>("times", faults);
            table.finish(faults);
            let (Some(name), Some(times)) = (name, times) else { continue };
            if !(0.001..=FACTOR_MAX).contains(times.get_ref()) {
                self.faults.note(times.span(), "a factor is 0.001 to 1000 times");
            }
            let permille = (times.get_ref() * 1000.0).round() as u64;
            factors.push(RateFactor { name: name.into_inner(), permille });
        }
        let name = self.new_name("model", name, seen)?;
        Some(TrafficModel { name, title, factors })
    }

    fn site(&mut self, mut table: TableReader<'_>, sites: &mut Vec<PlanSite>) {
        let faults = &mut self.faults;
        let name = table.required::<String>("name", faults);
        let title = table.text("title", faults);
        let node = table.optional::<String>("node", faults).map(Spanned::into_inner);
        table.finish(faults);
        let mut seen = std::mem::take(&mut self.sites);
        let name = self.new_name("site", name, &mut seen);
        self.sites = seen;
        if let Some(name) = name {
            self.sites.insert(name.clone(), sites.len());
            sites.push(PlanSite { name, title, node });
        }
    }

    fn experiment(
        &mut self,
        mut table: TableReader<'_>,
        growth: u64,
        seen: &mut HashMap<String, usize>,
    ) -> Option<ExperimentDemand> {
        let faults = &mut self.faults;
        let span = table.span();
        let name = table.required::<String>("name", faults);
        let title = table.text("title", faults);
        let of_all = table.optional::<Growth>("growth", faults);
        let tables = table.tables("flow", "a flow", faults);
        table.finish(faults);
        if tables.is_empty() {
            self.faults.note(span, "an experiment needs a [[experiment.flow]]");
        }
        let growth = self.growth(of_all).unwrap_or(growth);
        let (mut flows, mut names) = (Vec::new(), HashMap::new());
        for table in tables {
            flows.extend(self.flow(table, growth, &mut names));
        }
        let name = self.new_name("experiment", name, seen)?;
        Some(ExperimentDemand { name, title, flows })
    }

    fn flow(
        &mut self,
        mut table: TableReader<'_>,
        growth: u64,
        names: &mut HashMap<String, usize>,
    ) -> Option<PlannedFlow> {
        let faults = &mut self.faults;
        let span = table.span();
        let name = table.required::<String>("name", faults);
        let rate = table.optional::<BitRate>("rate", faults);
        let data = table.optional::<ByteCount>("data", faults);
        let within = table.optional::<DurationText>("within", faults);
        let from = table.required::<String>("from", faults);
        let to = table.required::<Vec<Spanned<String>>>("to", faults);
        let shares = table.optional::<Vec<Spanned<u32>>>("shares", faults);
        let of_its_own = table.optional::<Growth>("growth", faults);
        table.finish(faults);
        let growth_permille = self.growth(of_its_own).unwrap_or(growth);
        let (rate, data) = match (rate, data, within) {
            (Some(rate), None, None) => (rate, None),
            (None, Some(data), Some(within)) => {
                let (bytes, time) = (*data.get_ref(), within.into_inner().0);
                let nanoseconds = time.as_nanos().max(1);
                let bits = u128::from(bytes.0) * 8 * 1_000_000_000 / nanoseconds;
                let rate = BitRate(u64::try_from(bits).unwrap_or(u64::MAX));
                (Spanned::new(data.span(), rate), Some((bytes, time)))
            }
            _ => {
                self.faults
                    .note(span, "a flow has a rate, or data and the time within which it moves");
                return None;
            }
        };
        if rate.get_ref().0 == 0 || *rate.get_ref() > RATE_MAX {
            self.faults.note(rate.span(), format!("a rate is above 0 and up to {RATE_MAX}"));
        }
        let name = self.new_name("flow", name, names);
        let from = from.and_then(|from| self.find_site(&from));
        let to = self.targets(to?, shares);
        let rate = rate.into_inner();
        Some(PlannedFlow { name: name?, rate, data, from: from?, to, growth_permille })
    }

    fn targets(
        &mut self,
        to: Spanned<Vec<Spanned<String>>>,
        shares: Option<Spanned<Vec<Spanned<u32>>>>,
    ) -> Vec<FlowTarget> {
        if to.get_ref().is_empty() {
            self.faults.note(to.span(), "to names at least one site");
        }
        if let Some(shares) = &shares
            && shares.get_ref().len() != to.get_ref().len()
        {
            let count = to.get_ref().len();
            self.faults
                .note(shares.span(), format!("shares has a number for each of the {count} sites"));
        }
        let shares = shares.map(Spanned::into_inner).unwrap_or_default();
        let mut targets: Vec<FlowTarget> = Vec::new();
        for (index, name) in to.into_inner().into_iter().enumerate() {
            let share = shares.get(index).map_or(1, |share| *share.get_ref());
            if let Some(written) = shares.get(index)
                && !(1..=SHARE_MAX).contains(&share)
            {
                self.faults.note(written.span(), format!("a share is 1 to {SHARE_MAX}"));
            }
            let Some(site) = self.find_site(&name) else { continue };
            if targets.iter().any(|target| target.site == site) {
                self.faults
                    .note(name.span(), format!("'{}' is listed already", shown(name.get_ref())));
            }
            targets.push(FlowTarget { site, share });
        }
        targets
    }

    fn find_site(&mut self, name: &Spanned<String>) -> Option<usize> {
        let found = self.sites.get(name.get_ref()).copied();
        if found.is_none() {
            let near = self.faults.suggest(name.get_ref(), self.sites.keys().map(String::as_str));
            let text = format!("there is no site '{}'{near}", shown(name.get_ref()));
            self.faults.note(name.span(), text);
        }
        found
    }
}
