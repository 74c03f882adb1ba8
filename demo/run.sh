#!/bin/sh
# Copies a dataset between two agents on this machine and shows the rate against the machine's own limit.
#
#   demo/run.sh target/release/penstock
#
# All files are in target/demo, about 6 GiB, and each run creates them anew. Two agents run on free loopback
# ports, each with its own state directory, and end with the script.
set -eu

penstock=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."
large_mib=1024
small_files=2000
small_kib=64
seconds=8

work=$PWD/target/demo
rm -rf "$work"
mkdir -p "$work/source-site" "$work/target-site" "$work/back"

pids=""
cleanup() {
    for pid in $pids; do
        kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 1' INT TERM

say() { printf '\n== %s\n' "$*"; }
# shown COMMAND...: prints the command as a user would type it, then runs it.
shown() {
    printf '$ %s\n' "$*" | sed "s#$penstock#penstock#g; s#$work/##g" >&2
    "$@"
}

# start NAME DIRECTORY: starts an agent, prints its address.
start() {
    state=$work/state-$1
    mkdir -m 700 "$state"
    "$penstock" serve --root "$2" --state "$state" --listen 127.0.0.1:0 --http 127.0.0.1:0 --json \
        >"$work/$1.json" 2>"$work/$1.log" &
    pids="$pids $!"
    tries=0
    until grep -q fingerprint "$work/$1.json" 2>/dev/null; do
        tries=$((tries + 1))
        if [ "$tries" -gt 100 ]; then
            echo "demo: the agent $1 did not start:" >&2
            cat "$work/$1.log" >&2
            exit 1
        fi
        sleep 0.1
    done
}
field() { sed -n "s/.*\"$2\":\[\{0,1\}\"\([^\"]*\)\".*/\1/p" "$work/$1.json"; }

say "a dataset: one file of $large_mib MiB and $small_files of $small_kib KiB"
data=$work/source-site/run7
mkdir -p "$data/small"
head -c "$((large_mib * 1048576))" /dev/urandom >"$data/large.dat"
head -c "$((small_files * small_kib * 1024))" /dev/urandom |
    split -a 4 -d -b "${small_kib}k" - "$data/small/event-"
sync
# Drop the page cache, so that all of it is read from the device.
find "$data" -type f -exec dd if={} iflag=nocache count=0 status=none \;
du -sh "$data" | sed "s#$work/##"

limit=""
if command -v fio >/dev/null 2>&1; then
    say "this machine's own limit: direct reads and writes at once for $seconds s (fio)"
    # The same measurement as cargo xtask bench mover: reads and writes in step; the lower rate is the limit.
    limit=$(fio --output-format=terse --terse-version=3 --direct=1 --bs=4M --time_based \
        --ioengine=libaio --iodepth=8 --runtime="$seconds" --size="${large_mib}M" \
        --flow_id=1 --flow_sleep=200 \
        --name=source --rw=read --flow=1 --filename="$data/large.dat" \
        --name=destination --rw=write --flow=1 --filename="$work/target-site/fio.bin" 2>/dev/null |
        awk -F';' '$3 == "source" { r = $7 } $3 == "destination" { w = $48 }
            END { if (r && w) printf "%.3f", (r < w ? r : w) * 1024 * 8 / 1e9 }') || limit=""
    rm -f "$work/target-site/fio.bin"
    if [ -n "$limit" ]; then
        echo "$limit Gb/s copied from disk to disk"
    else
        echo "fio cannot measure direct I/O here (no O_DIRECT on this file system?)"
    fi
else
    echo "fio is not installed: no limit is measured (tools/setup.sh demo installs it)"
fi

say "two agents, as on two hosts: the source of the dataset and its target"
start source "$work/source-site"
start target "$work/target-site"
source=$(field source listen)
target=$(field target listen)
api=$(field target http)
echo "source  penstock://$source/"
echo "target  penstock://$target/  (its API: http://$api/api/v1/transfers)"

# State directory of the client: it stores the logins at both agents.
PENSTOCK_STATE=$work/state-user
export PENSTOCK_STATE
mkdir -m 700 "$PENSTOCK_STATE"
for agent in source target; do
    "$penstock" login "$(field $agent listen)" --token-file "$work/state-$agent/token" \
        --fingerprint "$(field $agent fingerprint)" >/dev/null
done

cd "$work/source-site"
say "on the source's host: push the dataset to the target agent"
shown "$penstock" cp -r run7 "penstock://$target/" --protect integrity \
    --scitag cms/analysis-input --json >"$work/push.json"
# number NAME: a number of the JSON object that cp printed.
number() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$work/push.json"; }
text() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$work/push.json"; }
awk -v bytes="$(number bytes)" -v files="$(number files)" -v seconds="$(number seconds)" \
    -v rate="$(number bits_per_second)" -v bound="$(text bound_by)" -v engine="$(text engine)" \
    -v limit="$limit" 'BEGIN {
        printf "%.2f GB in %d files in %.1f s: %.2f Gb/s, bound by %s, engine %s\n",
            bytes / 1e9, files, seconds, rate / 1e9, bound, engine
        if (limit) printf "that is %.0f %% of the %.2f Gb/s limit of this machine\n",
            100 * rate / 1e9 / limit, limit
    }'

say "the same command again sends nothing"
shown "$penstock" cp -r run7 "penstock://$target/"

say "from any host: the source's agent sends it to the target's, no data passes this command"
shown "$penstock" cp -r "penstock://$source/run7" "penstock://$target/again/" --scitag cms/analysis-input

cd "$work"
say "from any host: pull it from the source agent, encrypted"
shown "$penstock" cp -r "penstock://$source/run7" back/

say "all copies equal the dataset"
diff -r source-site/run7 target-site/run7
diff -r source-site/run7 target-site/again/run7
diff -r source-site/run7 back/run7
echo "diff -r finds no difference"

say "where to look next"
cat <<NEXT
README.md              quick start, also between hosts and by ssh
docs/operations.md     running an agent for many users; meaning of the metrics
docs/scitags.md        scitags: labels on packets, fireflies, the marker
docs/help/cp.txt       every flag of penstock cp
curl http://127.0.0.1:8621/api/v1/transfers   of an agent that you start yourself
                       (penstock serve --root DIR), with its token; or: penstock transfers --watch
NEXT
