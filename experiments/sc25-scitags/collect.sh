#!/bin/sh
# Runs the collector: receives the senders' sFlow, and trusts the labels of this network's hosts.
#
#   collect.sh PENSTOCK
set -eu
cat >"$PENSTOCK_LAB/collector.toml" <<TOML
roles = ["collector"]
[agent]
http = ["127.0.0.1:8621"]
state = "$PENSTOCK_LAB/collector"
[collector]
sflow = ["[::]:6343"]
ipfix = []
fireflies = []
marking = ["fd70:6e73::/32"]
TOML
exec "$1" serve --config "$PENSTOCK_LAB/collector.toml" --json
