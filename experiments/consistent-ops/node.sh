#!/bin/sh
# A data transfer node under the controller, with files of the three classes to send.
#
#   node.sh HOST PENSTOCK
set -eu
umask 077
room="$PENSTOCK_LAB/ops"
mine="$PENSTOCK_LAB/$1"
mkdir -p "$mine/store"
cp "$room/$1.token" "$mine/controller.token"
fingerprint=$(sed 's/.*"fingerprint":"\([^"]*\)".*/\1/' "$room/facts.json")
# Hard links of one file, so that reads are served from the page cache.
head -c 4194304 /dev/urandom >"$mine/seed"
for class in production analysis urgent; do
    mkdir -p "$mine/store/$class"
    for number in $(seq 0 ${FILES:-399}); do
        ln -f "$mine/seed" "$mine/store/$class/$number"
    done
done
cat >"$mine/penstock.toml" <<TOML
roles = ["agent"]
[agent]
listen = ["[::]:8620"]
http = ["127.0.0.1:8621"]
state = "$mine/state"
[agent.controller]
url = "https://ops:8621"
token = "controller.token"
fingerprint = "$fingerprint"
host = "$1"
safe_rate = "20M"
interfaces = ["eth0", "eth1"]
[third_party]
to = "any"
[[export]]
name = "/store"
path = "store"
mode = "read-write"
who = ["controller"]
TOML
exec "$2" serve --config "$mine/penstock.toml" --json
