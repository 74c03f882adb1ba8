//! Files built into the binary. A test compares these lists with the folders.

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

/// Bytes of each picture of `experiments/`.
macro_rules! pictures {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../../experiments/", $path)).as_slice())),*]
    };
}

/// Path below `dashboard/`, and bytes.
pub(crate) const FILES: &[(&str, &[u8])] = files![
    "app.js",
    "icon.svg",
    "index.html",
    "lib/api.js",
    "lib/colours.js",
    "lib/events.js",
    "lib/export.js",
    "lib/freshness.js",
    "lib/geo.js",
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
    "parts/netmap.js",
    "parts/plot.js",
    "parts/series.js",
    "parts/table.js",
    "parts/time.js",
    "parts/token.js",
    "parts/tuning.js",
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
    "aidtn",
    "buffers",
    "consistent-ops",
    "heps-fabric",
    "heps-growth",
    "lossy-path",
    "nvmeof-lab",
    "nvmeof-streaming",
    "roce-wan",
    "sc14-single-server",
    "sc23-streams",
    "sc25-scitags",
    "ten-sites",
    "tuner-lab",
    "tuner-lab-held-out",
    "tuner-lab-sharing"
];

/// Path of each picture below `experiments/`, in order, and bytes.
pub(crate) const PICTURES: &[(&str, &[u8])] = pictures![
    "consistent-ops/allotted.svg",
    "consistent-ops/measured.svg",
    "sc25-scitags/scitags-iperf3.svg",
    "sc25-scitags/scitags-nettest.svg",
    "sc25-scitags/senders-iperf3.svg",
    "sc25-scitags/senders-nettest.svg",
];
