#!/bin/sh
# Runs one mover (cp is penstock): its server, or a copy whose rate it prints as JSON.
#
#   movers.sh cp|rsync|gridftp serve|copy PENSTOCK [CONGESTION FROM TO]
set -eu
mover=$1 what=$2 penstock=$3
in=$PENSTOCK_LAB/in/file out=$PENSTOCK_LAB/out
PENSTOCK_STATE=$PENSTOCK_LAB/shared
export PENSTOCK_STATE

# addresses NAME,...: prints their addresses, separated by commas.
addresses() {
    for name in $(echo "$1" | tr , ' '); do
        getent ahostsv6 "$name" | awk 'NR == 1 { print $1 }'
    done | paste -s -d ,
}

serve() {
    case $mover in
        cp)
            "$penstock" serve --root "$out" --listen '[::]:8620' --http 127.0.0.1:0 --json >"$out.json" &
            until grep -q fingerprint "$out.json"; do sleep 0.1; done
            fingerprint=$(sed 's/.*"fingerprint":"\([^"]*\)".*/\1/' "$out.json")
            # Both hosts share one state directory, and so the login.
            "$penstock" login target-eth0:8620 --token "$(cat "$PENSTOCK_STATE/token")" --fingerprint "$fingerprint"
            ;;
        rsync)
            printf 'use chroot = no\nuid = 0\ngid = 0\n[out]\npath = %s\nread only = no\n' "$out" >"$out.conf"
            rsync --daemon --no-detach --config "$out.conf" --port 8873 --address target-eth0 &
            ;;
        gridftp)
            GLOBUS_HOSTNAME=target-eth0 globus-gridftp-server -aa -allow-root -anonymous-user root -anonymous-group root -p 2811 -control-interface "$(getent ahostsv4 target-eth0 | awk 'NR == 1 { print $1 }')" &
            ;;
    esac
    until ss -tln | grep -Eq ':(8620|8873|2811) '; do sleep 0.1; done
    echo "$mover is ready"
    wait
}

copy() {
    case $mover in
        cp)
            "$penstock" cp "$in" 'penstock://[target-eth0]:8620/' --protect integrity --streams 4 \
                --congestion "$4" --from "$(addresses "$5")" --to "$(addresses "$6")" --quiet
            ;;
        rsync) rsync --inplace --whole-file "$in" rsync://target-eth0:8873/out/ ;;
        gridftp) globus-url-copy -p 4 "file://$in" "ftp://$(getent ahostsv4 target-eth0 | awk 'NR == 1 { print $1 }'):2811$out/file" ;;
    esac
}

if [ "$what" = serve ]; then
    serve
fi
begin=$(date +%s%N)
copy "$@"
took=$(($(date +%s%N) - begin))
cmp "$in" "$out/file"
bytes=$(stat -c %s "$in")
echo "{\"bytes\": $bytes, \"seconds\": $((took / 1000000))e-3, \"bits_per_second\": $((bytes * 8 * 1000 / (took / 1000000)))}"
