//! Filters of single flows, by the properties of a flow itself.

use std::net::IpAddr;

use penstock_flows::aggregate::ScitagLabel;
use penstock_flows::packet::{FlowKey, MappedAddress};
use penstock_flows::prefixes::Prefixes;
use penstock_http::ProblemDetails;

use super::TelemetryParams;
use crate::config::{NetworkPrefix, SiteNetworks, prefixes, site_prefixes};
use crate::query::{By, ELSEWHERE, PAIR};
use crate::row::RowDirection;
use crate::shared::Shared;

/// Filters of a flow query.
pub(super) struct FlowFilter<'a> {
    shared: &'a Shared,
    sites: Prefixes<u16>,
    direction: Option<RowDirection>,
    wanted: Vec<(By, String)>,
}

/// Site of an address, by the longest matching network.
fn site_of<'s>(
    sites: &'s [SiteNetworks],
    table: &Prefixes<u16>,
    address: MappedAddress,
) -> &'s str {
    let number = table.find(address).map(usize::from);
    number.and_then(|number| sites.get(number)).map_or(ELSEWHERE, |site| site.name.as_str())
}

impl<'a> FlowFilter<'a> {
    /// Consumes the remaining parameters.
    pub(super) fn new(
        mut params: TelemetryParams,
        shared: &'a Shared,
    ) -> Result<Self, ProblemDetails> {
        let direction = params.direction()?;
        params.take("combine");
        let mut wanted = Vec::new();
        for (name, value) in std::mem::take(&mut params.0) {
            let by: By = name.parse().map_err(|_| {
                let text = format!("'{name}' is no parameter here: see docs/telemetry.md");
                ProblemDetails::bad_request(text)
            })?;
            if matches!(by, By::Vlan | By::Interface | By::As | By::Exporter | By::Total) {
                let text = format!("flows are not kept by {name}: remove this filter");
                return Err(ProblemDetails::bad_request(text));
            }
            by.check_key(&value).map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
            wanted.push((by, value));
        }
        let sites = site_prefixes(&shared.config.sites)
            .map_err(|error| ProblemDetails::bad_request(error.to_string()))?;
        Ok(Self { shared, sites, direction, wanted })
    }

    /// Returns true if a flow passes all filters.
    pub(super) fn passes(&self, key: &FlowKey, label: ScitagLabel) -> bool {
        self.wanted.iter().all(|(by, wanted)| self.matches(*by, wanted, key, label))
    }

    /// Returns true if `of` holds for the end of the flow by direction: the receiver for in, the
    /// sender for out, either without one.
    fn end(&self, key: &FlowKey, of: impl Fn(MappedAddress) -> bool) -> bool {
        match self.direction {
            Some(RowDirection::In) => of(key.destination),
            Some(RowDirection::Out) => of(key.source),
            _ => of(key.source) || of(key.destination),
        }
    }

    fn site_of(&self, address: MappedAddress) -> &str {
        site_of(&self.shared.config.sites, &self.sites, address)
    }

    fn matches(&self, by: By, wanted: &str, key: &FlowKey, label: ScitagLabel) -> bool {
        let registry = &self.shared.registry;
        let same = |found: &str| found.eq_ignore_ascii_case(wanted);
        match by {
            By::Owner | By::Activity | By::Scitag => match label {
                ScitagLabel::Unlabelled => same("unlabelled"),
                ScitagLabel::Untrusted(_) => same("untrusted"),
                ScitagLabel::Trusted(tag) if by == By::Scitag => same(&tag.number().to_string()),
                ScitagLabel::Trusted(tag) => {
                    let name = registry.name(tag);
                    let owner = name.split('/').next().unwrap_or_default();
                    same(if by == By::Owner { owner } else { &name })
                }
            },
            By::IpVersion => same(if key.source.ip().is_ipv4() { "4" } else { "6" }),
            By::Host => {
                let address = wanted.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
                self.end(key, |end| Some(end.ip().to_canonical()) == address)
            }
            By::Prefix => {
                let table =
                    wanted.parse::<NetworkPrefix>().ok().and_then(|one| prefixes(&[one]).ok());
                table.is_some_and(|table| self.end(key, |end| table.find(end).is_some()))
            }
            By::Site => self.end(key, |end| same(self.site_of(end))),
            By::SitePair => {
                let [source, destination] =
                    [key.source, key.destination].map(|address| self.site_of(address));
                same(&format!("{source}{PAIR}{destination}"))
            }
            By::Vlan | By::Interface | By::As | By::Exporter | By::Total => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses() {
        let holds = |network: &str, ip: &str| {
            let table = prefixes(&[network.parse().unwrap()]).unwrap();
            table.find(MappedAddress::from(ip.parse::<IpAddr>().unwrap())).is_some()
        };
        assert!(holds("192.0.2.0/24", "192.0.2.9") && !holds("192.0.2.0/24", "192.0.3.9"));
        assert!(holds("0.0.0.0/0", "203.0.113.1") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(
            holds("2001:db8:1::/48", "2001:db8:1::5") && !holds("2001:db8:1::/48", "2001:db8:2::5")
        );
        assert!(holds("2001:db8::1", "2001:db8::1") && !holds("2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn longest_network_names_the_site() {
        let site = |name: &str, network: &str| SiteNetworks {
            name: name.to_owned(),
            networks: vec![network.parse().unwrap()],
        };
        let sites = [site("campus", "192.0.2.0/24"), site("dmz", "192.0.2.128/25")];
        let table = site_prefixes(&sites).unwrap();
        let of = |ip: &str| {
            site_of(&sites, &table, MappedAddress::from(ip.parse::<IpAddr>().unwrap())).to_owned()
        };
        assert_eq!(
            [of("192.0.2.1"), of("192.0.2.200"), of("198.51.100.1")],
            ["campus", "dmz", ELSEWHERE]
        );
    }
}
