//! placeholder
/// Options.
#[derive(Debug, clap::Args)]
pub struct Options {}
/// Run.
pub fn run(_o: &Options) -> anyhow::Result<()> {
    Ok(())
}
