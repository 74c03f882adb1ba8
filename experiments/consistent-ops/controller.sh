#!/bin/sh
# The controller of the four sites: its classes, and tokens for the nodes and the operators.
#
#   controller.sh PENSTOCK
set -eu
umask 077
room="$PENSTOCK_LAB/ops"
mkdir -p "$room"
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
for name in operator dtn-cern dtn-fnal dtn-caltech dtn-sprace; do
    [ -s "$room/$name.token" ] || secret >"$room/$name.token"
done
cp topology.toml "$room/topology.toml"
cat >"$room/penstock.toml" <<TOML
roles = ["controller"]
[agent]
http = ["[::]:8621"]
state = "$room/state"
[controller]
topology = "topology.toml"
lease = "10s"
round = "1s"
batch_files = 50
transfers_per_pair = 4
streams = 2
usable = 0.94
[[controller.class]]
name = "production"
weight = 4
mark = "120M"
[[controller.class]]
name = "analysis"
weight = 2
mark = "120M"
[[controller.class]]
name = "urgent"
weight = 8
mark = "150M"
[[controller.token]]
name = "operator"
file = "operator.token"
scopes = ["read", "submit:*", "operate"]
TOML
for host in dtn-cern dtn-fnal dtn-caltech dtn-sprace; do
    cat >>"$room/penstock.toml" <<TOML
[[controller.token]]
name = "$host"
file = "$host.token"
scopes = ["agent:$host"]
TOML
done
"$1" serve --config "$room/penstock.toml" --json >"$room/facts.json" 2>"$room/log" &
server=$!
trap 'kill "$server"; wait "$server"' TERM INT
until [ -s "$room/facts.json" ]; do sleep 0.1; kill -0 "$server"; done
cat "$room/facts.json"
wait "$server"
