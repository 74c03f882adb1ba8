#!/bin/sh
# Steps of a transfer: dataset, limit of the disk, receiving agent, copy, clean-up.
#
#   transfer.sh dataset|disk|serve|copy|clean FROM TO BYTES [PENSTOCK]
set -eu
what=$1 from=$2 to=$3 size=$4
PENSTOCK_STATE=$PENSTOCK_LAB/shared
export PENSTOCK_STATE

# place memory|disk: prints a directory on that medium.
place() {
    case $1 in
        memory) echo "/dev/shm/penstock-sc14" ;;
        disk) echo "$PENSTOCK_LAB/disk" ;;
    esac
}

# rate read|write FILE: prints the rate of the disk by fio.
rate() {
    bytes_per_second=$(fio --name=alone --filename="$2" --rw="$1" --bs=4M --direct=1 --ioengine=libaio --iodepth=16 \
        --size="$size" --end_fsync=1 --output-format=json | grep '"bw_bytes"' | grep -o '[0-9]*' | sort -n | tail -1)
    echo "{\"bits_per_second\": $((bytes_per_second * 8))}"
}

addresses() {
    for name in "$1-eth0" "$1-eth1" "$1-eth2"; do
        getent ahostsv6 "$name" | awk 'NR == 1 { print $1 }'
    done | paste -s -d ,
}

in=$(place "$from")/in out=$(place "$to")/out
case $what in
    dataset)
        mkdir -p "$in" "$out"
        head -c "$size" /dev/urandom >"$in/file"
        sync
        ;;
    disk)
        case $from-$to in
            disk-*) rate read "$in/file" ;;
            *-disk) rate write "$out/file" ;;
            *) echo "{}" ;;
        esac
        rm -f "$out/file"
        ;;
    serve)
        penstock=$5
        "$penstock" serve --root "$out" --listen '[::]:8620' --http 127.0.0.1:0 --json >"$PENSTOCK_LAB/serve.json" &
        until grep -q fingerprint "$PENSTOCK_LAB/serve.json"; do sleep 0.1; done
        fingerprint=$(sed 's/.*"fingerprint":"\([^"]*\)".*/\1/' "$PENSTOCK_LAB/serve.json")
        # Both hosts share one state directory, and so the login.
        "$penstock" login umich-eth0:8620 --token "$(cat "$PENSTOCK_STATE/token")" --fingerprint "$fingerprint"
        until ss -tln | grep -q ':8620 '; do sleep 0.1; done
        echo "it is ready"
        wait
        ;;
    copy)
        "$5" cp "$in/file" 'penstock://[umich-eth0]:8620/' --protect integrity --streams 6 --congestion cubic \
            --from "$(addresses r920)" --to "$(addresses umich)" --json
        cmp "$in/file" "$out/file" >&2
        ;;
    clean) rm -rf /dev/shm/penstock-sc14 "$PENSTOCK_LAB/disk" ;;
esac
