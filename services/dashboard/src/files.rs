//! What is built into the binary. A test compares these lists with the folders.

/// Bytes of each file of `dashboard/`.
macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../../dashboard/", $path)).as_slice())),*]
    };
}

/// Text of each report of `experiments/`.
macro_rules! reports {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../experiments/", $name, "/results.md")))),*]
    };
}

/// Path below `dashboard/`, and bytes.
pub(crate) const FILES: &[(&str, &[u8])] = files![
    "app.js",
    "icon.svg",
    "index.html",
    "lib/api.js",
    "lib/colours.js",
    "lib/html.js",
    "lib/route.js",
    "lib/text.js",
    "lib/traffic.js",
    "lib/units.js",
    "pages/alerts.js",
    "pages/classes.js",
    "pages/experiments.js",
    "pages/hosts.js",
    "pages/labels.js",
    "pages/map.js",
    "pages/overview.js",
    "pages/requests.js",
    "pages/transfers.js",
    "parts.css",
    "parts/bits.js",
    "parts/help.js",
    "parts/markdown.js",
    "parts/plot.js",
    "parts/series.js",
    "parts/table.js",
    "parts/token.js",
    "style.css",
    "vendor/LICENSES.txt",
    "vendor/coastline.js",
    "vendor/hooks.js",
    "vendor/htm.js",
    "vendor/preact.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
];

/// Name of each experiment that has a report, in order, and the report.
pub(crate) const REPORTS: &[(&str, &str)] = reports![
    "buffers",
    "consistent-ops",
    "heps-fabric",
    "heps-growth",
    "lossy-path",
    "roce-wan",
    "sc14-single-server",
    "sc23-streams",
    "sc25-scitags",
    "ten-sites"
];
