//! The metrics registry: roles write their families, [`render`] gives the text of `/metrics`.
//!
//! Names are `penstock_<area>_<what>_<unit>`; counters end in `_total`, which the encoder adds. What varies is a
//! label, whose values are escaped. No label identifies a transfer, a request or an address: their number has no bound.

use std::collections::BTreeSet;
use std::fmt;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
pub use prometheus_client::encoding::{EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
pub use prometheus_client::registry::Unit;

/// Media type of OpenMetrics 1.0 text.
pub const OPENMETRICS_TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the unit of rates.
#[must_use]
pub fn bits_per_second() -> Unit {
    Unit::Other("bits_per_second".to_owned())
}

/// Writer of metric families for one scrape. A family is written once, with all its values.
#[derive(Debug)]
pub struct MetricWriter<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
    names: BTreeSet<String>,
}

impl MetricWriter<'_, '_> {
    /// Writes a counter without labels.
    ///
    /// # Errors
    /// When encoding fails.
    pub fn counter(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        self.register(name, unit);
        let metric = ConstCounter::new(value);
        metric.encode(self.encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
    }

    /// Writes a counter with a value for each set of labels.
    ///
    /// # Errors
    /// When encoding fails.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.register(name, unit);
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = self.encoder.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge without labels.
    ///
    /// # Errors
    /// When encoding fails.
    pub fn gauge(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.register(name, unit);
        let metric = ConstGauge::new(value);
        metric.encode(self.encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
    }

    /// Writes a gauge with a value for each set of labels.
    ///
    /// # Errors
    /// When encoding fails.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        self.register(name, unit);
        let kind = ConstGauge::new(0.0).metric_type();
        let mut family = self.encoder.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge of value 1 whose labels are the information.
    ///
    /// # Errors
    /// When encoding fails.
    pub fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        self.gauges(name, None, help, [(labels, 1_u64)])
    }

    /// Panics where a build with assertions writes a family twice or under a foreign name.
    fn register(&mut self, name: &str, unit: Option<&Unit>) {
        debug_assert!(name.starts_with("penstock_"), "{name}");
        let full = unit.map_or(name.to_owned(), |unit| format!("{name}_{}", unit.as_str()));
        let is_new = self.names.insert(full);
        debug_assert!(is_new, "the family {name} is written twice");
    }
}

/// Metrics of one scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsText(pub String);

impl IntoResponse for MetricsText {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static(OPENMETRICS_TEXT);
        ([(header::CONTENT_TYPE, kind)], self.0).into_response()
    }
}

struct Scrape<F>(F);

impl<F> fmt::Debug for Scrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl<F> Collector for Scrape<F>
where
    F: Fn(&mut MetricWriter<'_, '_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut MetricWriter { encoder: &mut encoder, names: BTreeSet::new() })
    }
}

/// Renders the families that `write` writes.
///
/// # Panics
/// When `write` returns an error, as a `String` takes everything.
pub fn render<F>(write: F) -> MetricsText
where
    F: Fn(&mut MetricWriter<'_, '_>) -> fmt::Result + Send + Sync + 'static,
{
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(write)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes everything");
    MetricsText(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_one_header_each() {
        let MetricsText(text) = render(|writer| {
            let values = [([("owner", "a\"b\\c\nd")], 1_u64), ([("owner", "e")], 2)];
            writer.counters("penstock_test_packets", None, "Packets", values)?;
            writer.gauge("penstock_test_rate", Some(&bits_per_second()), "Rate", 2.5)?;
            writer.gauge("penstock_test_leads", None, "Leads", 1_i64)?;
            writer.info("penstock_test_info", "Version", &[("version", "1")])
        });
        assert_eq!(
            text,
            "# HELP penstock_test_packets Packets
# TYPE penstock_test_packets counter
penstock_test_packets_total{owner=\"a\\\"b\\\\c\\nd\"} 1
penstock_test_packets_total{owner=\"e\"} 2
# HELP penstock_test_rate_bits_per_second Rate
# TYPE penstock_test_rate_bits_per_second gauge
# UNIT penstock_test_rate_bits_per_second bits_per_second
penstock_test_rate_bits_per_second 2.5
# HELP penstock_test_leads Leads
# TYPE penstock_test_leads gauge
penstock_test_leads 1
# HELP penstock_test_info Version
# TYPE penstock_test_info gauge
penstock_test_info{version=\"1\"} 1
# EOF
"
        );
    }

    #[test]
    #[should_panic(expected = "written twice")]
    fn repeated_family_panics() {
        render(|writer| {
            writer.gauge("penstock_test_leads", None, "Leads", 1_i64)?;
            writer.gauge("penstock_test_leads", None, "Leads", 0_i64)
        });
    }
}
