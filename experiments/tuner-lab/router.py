"""Shapes towards the target: an HTB class for each source port under one for all, each with a queue of its own.

    python3 router.py CAP_MBPS RATE_MBPS QUEUE_BYTES STEPS
"""

import subprocess
import sys
import time

PORTS = range(40000, 40128)
DEVICE = "target"


def tc(*words):
    subprocess.run(["tc", *map(str, words)], check=True)


def shared(verb, mbps):
    rate = f"{mbps}mbit"
    tc("class", verb, "dev", DEVICE, "parent", "1:", "classid", "1:1", "htb", "rate", rate, "ceil", rate)


def shape(cap_mbps, rate_mbps, queue_bytes):
    tc("qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb", "default", 2)
    shared("add", rate_mbps)
    # A class is promised little, since HTB keeps promises beyond the rate of all, and borrows up to its cap.
    least, most = f"{rate_mbps * 1000 / len(PORTS) / 2:.0f}kbit", f"{cap_mbps or rate_mbps}mbit"
    for number, port in enumerate([None, *PORTS], start=2):
        leaf = ["dev", DEVICE, "parent", "1:1", "classid", f"1:{number:x}"]
        tc("class", "add", *leaf, "htb", "rate", least, "ceil", most, "quantum", 3000)
        tc("qdisc", "add", "dev", DEVICE, "parent", f"1:{number:x}", "bfifo", "limit", queue_bytes)
        for family, protocol, priority in ("ip", "ip", 1), ("ip6", "ipv6", 2):
            if port:
                rule = ["protocol", protocol, "prio", priority, "u32", "match", family, "sport", port, "0xffff"]
                tc("filter", "add", "dev", DEVICE, "parent", "1:", *rule, "flowid", f"1:{number:x}")


def main():
    cap, rate, queue, steps = sys.argv[1:]
    shape(float(cap), float(rate), int(queue))
    print("the router is shaping", flush=True)
    begun = time.monotonic()
    for step in steps.split(",") if steps != "-" else []:
        at, mbps = step.split(":")
        time.sleep(max(0.0, begun + float(at) - time.monotonic()))
        shared("change", mbps)
    while True:
        time.sleep(60)


main()
