//! `penstock tag encode`: a pair in every form.

use std::io::{self, Write};

use anyhow::Context;
use penstock_scitags::label::{ENTROPY_MAX, FlowLabel, PAYLOAD_MASK};
use penstock_scitags::{Scitag, carry, option};
use serde::Serialize;
use utoipa::ToSchema;

use super::show::{Pair, TextRows, hex};
use crate::exit::{Code, CommandFailure, OrExit};

/// Print the numbers and texts that carry an owner and an activity
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An owner above 511 does not fit on packets: it has no flow label and no option, fireflies only.

Examples:
  penstock tag encode cms/analysis-input
  penstock tag encode 'CMS/Analysis Input' --entropy 5
  penstock tag encode 206 --json")]
pub(super) struct TagEncodeArgs {
    /// The pair, as OWNER/ACTIVITY by names or numbers, or as a scitag number
    #[arg(value_name = "OWNER/ACTIVITY")]
    pair: String,
    /// Entropy of the flow label; parallel streams take different ones
    #[arg(long, value_name = "0-31", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=i64::from(ENTROPY_MAX)))]
    entropy: u8,
}

/// A pair in all its forms.
#[derive(Serialize, ToSchema)]
pub(crate) struct Encoded {
    /// The pair.
    #[serde(flatten)]
    pair: Pair,
    /// True where the owner's number is too large for packets: only fireflies carry it.
    fireflies_only: bool,
    /// IPv6 flow label; null where only fireflies carry the pair.
    flow_label: Option<Label>,
    /// Bytes of the IPv6 option in hexadecimal; null where only fireflies carry the pair.
    option_bytes: Option<String>,
    /// Parameter of a URL's query.
    url_parameter: String,
    /// Header of an HTTP request.
    header: String,
}

/// IPv6 flow label and its parts.
#[derive(Serialize, ToSchema)]
pub(crate) struct Label {
    /// Flow label.
    value: u32,
    /// Flow label in hexadecimal.
    hex: String,
    /// Five bits that distinguish flows of a pair.
    entropy: u8,
    /// Flow label with the five bits of `entropy` zero.
    without_entropy: u32,
    /// `without_entropy` in hexadecimal.
    without_entropy_hex: String,
    /// Mask of the bits that carry the pair.
    mask: u32,
    /// `mask` in hexadecimal.
    mask_hex: String,
}

pub(super) fn run(args: &TagEncodeArgs, json: bool) -> Result<Code, CommandFailure> {
    let current = super::current();
    let registry = &current.registry;
    let tag = super::find(registry, &args.pair).or_exit(Code::Usage)?;
    let encoded = encoded(tag, args.entropy, Pair::new(tag, registry));
    let text = if json {
        format!("{}\n", serde_json::to_string(&encoded).context("plain data")?)
    } else {
        rows(tag, &encoded)
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(Code::Done)
}

fn encoded(tag: Scitag, entropy: u8, pair: Pair) -> Encoded {
    let label = FlowLabel::new(tag, entropy).ok().map(|label| Label {
        value: label.value(),
        hex: label.to_string(),
        entropy,
        without_entropy: label.without_entropy().value(),
        without_entropy_hex: label.without_entropy().to_string(),
        mask: PAYLOAD_MASK,
        mask_hex: format!("0x{PAYLOAD_MASK:05X}"),
    });
    Encoded {
        pair,
        fireflies_only: tag.fits_on_packets().is_err(),
        flow_label: label,
        option_bytes: option::encode(tag).ok().map(|bytes| hex(&bytes)),
        url_parameter: carry::url_parameter(tag),
        header: carry::header_line(tag),
    }
}

fn rows(tag: Scitag, encoded: &Encoded) -> String {
    let mut rows = TextRows::under(&encoded.pair.heading());
    rows.row("scitag", tag.number());
    if let Some(label) = &encoded.flow_label {
        rows.row(
            "flow label",
            format!("{}  {:<7} entropy {}", label.hex, label.value, label.entropy),
        );
        rows.row(
            "without entropy",
            format!(
                "{}  {:<7} under the mask {}",
                label.without_entropy_hex, label.without_entropy, label.mask_hex
            ),
        );
    }
    if let Some(bytes) = &encoded.option_bytes {
        rows.row("option", format!("{bytes}  in a Hop-by-Hop or Destination Options header"));
    }
    if let Err(why) = tag.fits_on_packets() {
        rows.row("on packets", why);
    }
    rows.row("in a URL", &encoded.url_parameter);
    rows.row("HTTP header", &encoded.header);
    rows.text()
}
