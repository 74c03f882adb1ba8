"""Serves files, and notes what arrives: lines of time and received bytes.

    python3 server.py PENSTOCK
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

LAB = Path(os.environ["PENSTOCK_LAB"])
STATE = LAB / "shared"


def received_bytes():
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("eth0:"))


def main():
    penstock = sys.argv[1]
    environment = {**os.environ, "PENSTOCK_STATE": str(STATE), "PENSTOCK_ROLES": "agent"}
    (LAB / "out").mkdir(exist_ok=True)
    arguments = ["serve", "--root", LAB / "out", "--listen", "[::]:8620", "--http", "127.0.0.1:0", "--json"]
    agent = subprocess.Popen([penstock, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    fingerprint = json.loads(agent.stdout.readline())["fingerprint"]
    token = (STATE / "token").read_text().strip()
    login = [penstock, "login", "target-eth0:8620", "--token", token, "--fingerprint", fingerprint]
    subprocess.run(login, env=environment, check=True, stdout=subprocess.DEVNULL)
    print("the server is ready", flush=True)
    with open(LAB / "received", "w") as out:
        while agent.poll() is None:
            print(time.time(), received_bytes(), file=out, flush=True)
            time.sleep(0.25)


main()
