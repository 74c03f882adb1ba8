"""One sender: the same streams unlabelled, with flow labels, with destination options.

    sender.py MOVER HOST PATH PEER PORT SCITAG SECONDS PENSTOCK

MOVER is iperf3, whose packets `penstock tag run` labels, or nettest, which labels its own. What each phase gave is a
line of JSON in the lab's folder.
"""

import json
import os
import subprocess
import sys
import time

mover, host, path, peer, port, scitag, seconds, penstock = sys.argv[1:9]
seconds = int(seconds)
folder = os.environ["PENSTOCK_LAB"]
# A bpf file system in a mount namespace of this process and its children.
maps = os.path.join(folder, f"{host}-maps")
os.makedirs(maps)
subprocess.run(["mount", "-t", "bpf", "bpf", maps], check=True)
pin = os.path.join(maps, "marker")
STREAMS = "4"
# Seconds at the start of each phase that are not counted, while congestion windows grow.
GROWTH = 4
# Pause between phases, which separates them in the series.
BREAK = 2


class Marker:
    """Context in which the kernel labels packets to the port."""

    def __init__(self, label):
        rules = os.path.join(folder, f"{host}-{label}.toml")
        with open(rules, "w") as file:
            file.write(f'[[rule]]\nscitag = "{scitag}"\nlabel = "{label}"\nprotocol = "tcp"\ndestination_port = {port}\n')
        command = [penstock, "tag", "run", "--config", rules, "--interface", "eth0", "--pin", pin, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline():
            sys.exit("the marker did not start")

    def end(self):
        """Returns the sent packets with the label, and the sent IPv6 packets without."""
        said = subprocess.run([penstock, "tag", "status", "--pin", pin, "--json"], capture_output=True, text=True, check=True)
        status = json.loads(said.stdout)
        self.process.terminate()
        self.process.wait()
        subprocess.run([penstock, "tag", "stop", "--pin", pin], capture_output=True, check=True)
        labelled = sum(one["packets"] for one in status["labelled"])
        passed = status["not_labelled"]
        return labelled, sum(passed[reason]["packets"] for reason in ("no_room", "too_big", "unsupported", "refused"))


def iperf3():
    command = ["iperf3", "-6", "-c", peer, "-p", port, "-C", "cubic", "-P", STREAMS, "-O", str(GROWTH), "-t", str(seconds), "-J"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return [one["sum"]["bits_per_second"] for one in report["intervals"] if not one["sum"]["omitted"]]


def nettest(label):
    command = [penstock, "nettest", f"[{peer}]:{port}", "--congestion", "cubic", "--streams", STREAMS, "--omit", str(GROWTH),
               "--time", str(seconds), "--json"]
    if label != "none":
        command += ["--scitag", scitag, "--label", label]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return [one["bytes_sent"] * 8 / (one["end_seconds"] - one["start_seconds"]) for one in report["intervals"] if not one["omitted"]]


with open(os.path.join(folder, f"{host}.phases"), "w") as out:
    for label in ("none", "flow", "destination"):
        marker = Marker(label) if mover == "iperf3" and label != "none" else None
        begin = time.time()
        rates = iperf3() if mover == "iperf3" else nettest(label)
        end = time.time()
        counted = marker.end() if marker else None
        line = {"host": host, "path": path, "scitag": scitag, "label": label, "begin_s": begin, "end_s": end,
                "bits_per_second": rates, "packets": counted}
        out.write(json.dumps(line) + "\n")
        out.flush()
        time.sleep(BREAK)
