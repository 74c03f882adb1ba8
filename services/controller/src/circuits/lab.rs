//! Circuits in a lab on this machine: a share of each link, with addresses of their own (`penstock-lab`).

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use penstock_lab::control::{CircuitReport, ControlError, LabRequest, ask};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    CircuitError, CircuitLinkStatus, CircuitProvider, CircuitSpec, CircuitStatus, HostAddresses,
};

/// The lab in a directory.
#[derive(Debug, Clone)]
pub struct LabCircuits {
    directory: PathBuf,
}

impl LabCircuits {
    /// Creates a provider for the lab in a directory, `STATE/labs/NAME`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Sends a request from a thread that may block.
    async fn ask<T>(&self, request: LabRequest) -> Result<T, ControlError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let directory = self.directory.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&directory, &request));
        asked.await.unwrap_or_else(|_| Err(ControlError::Ending))
    }
}

impl CircuitProvider for LabCircuits {
    fn name(&self) -> &'static str {
        "lab"
    }

    fn make<'a>(
        &'a self,
        circuit: &'a CircuitSpec,
    ) -> BoxFuture<'a, Result<HostAddresses, CircuitError>> {
        let CircuitSpec { name, rate_bps, from, to, links } = circuit.clone();
        Box::pin(async move {
            let request = LabRequest::Circuit { name, rate_bps, from, to, links };
            let report: CircuitReport = self.ask(request).await?;
            Ok(report.addresses.into_iter().map(|(host, ip)| (host, ip.to_string())).collect())
        })
    }

    fn verify<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CircuitStatus>, CircuitError>> {
        Box::pin(async move {
            let all: Vec<CircuitReport> = match self.ask(LabRequest::Circuits).await {
                Ok(all) => all,
                // A stopped lab has no circuits.
                Err(ControlError::Down(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let one = all.into_iter().find(|one| one.name == name);
            Ok(one.map(|one| {
                let links = one.links.into_iter().map(|link| CircuitLinkStatus {
                    link: link.link,
                    up: !link.is_cut,
                    bytes: link.forward.wire_bytes,
                });
                CircuitStatus { links: links.collect() }
            }))
        })
    }

    fn release<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), CircuitError>> {
        let name = name.to_owned();
        Box::pin(async move {
            match self.ask::<Value>(LabRequest::Release { name }).await {
                Ok(_) | Err(ControlError::Down(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }
}
