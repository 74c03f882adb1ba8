#!/bin/sh
# A receiver: serve.sh iperf3|nettest PORT PENSTOCK
case $1 in
    iperf3) exec iperf3 -s -p "$2" --forceflush ;;
    nettest) exec "$3" nettest --listen "[::]:$2" ;;
esac
