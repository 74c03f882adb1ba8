"""Serves files.

    python3 server.py PENSTOCK
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LAB = Path(os.environ["PENSTOCK_LAB"])
STATE = LAB / "shared"


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
    agent.wait()


main()
