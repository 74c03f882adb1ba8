"""An agent at the source, and copies from it to that of the target: what scripts of several experiments share."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

LAB = Path(os.environ["PENSTOCK_LAB"])
ROOT = LAB / "near-root"
CLIENT = {**os.environ, "PENSTOCK_STATE": str(LAB / "shared")}
AGENT = {**os.environ, "PENSTOCK_STATE": str(LAB / "near"), "PENSTOCK_ROLES": "agent"}
SOURCE, TARGET = "penstock://[source-eth0]:8620/", "penstock://[target-eth0]:8620/"


def write_file(name, size):
    ROOT.mkdir(exist_ok=True)
    part = os.urandom(10_000_000)
    with open(ROOT / name, "wb") as out:
        for begin in range(0, size, len(part)):
            out.write(part[: size - begin])


class SourceAgent:
    """The agent at the source, with this mode of its tuner."""

    def __init__(self, penstock, mode):
        self.program = penstock
        arguments = ["serve", "--root", ROOT, "--listen", "[::]:8620", "--http", "127.0.0.1:0", "--json"]
        environment = {**AGENT, "PENSTOCK_TUNING": mode}
        self.process = subprocess.Popen([penstock, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
        begun = json.loads(self.process.stdout.readline())
        [self.http] = begun["http"]
        token = (LAB / "near" / "token").read_text().strip()
        login = [penstock, "login", "source-eth0:8620", "--token", token, "--fingerprint", begun["fingerprint"]]
        subprocess.run(login, env=CLIENT, check=True, stdout=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_failure):
        # The lab waits for it otherwise.
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def start_copy(self, name, to, *options):
        """Begins a copy between the two agents, which the source's agent tunes unless the options say otherwise."""
        fixed = ["--block", "64KiB", "--engine", "buffered", "--protect", "integrity"]
        command = [self.program, "cp", "--json", *fixed, *options, SOURCE + name, TARGET + to]
        return subprocess.Popen(command, env=CLIENT, stdout=subprocess.PIPE, text=True)

    def asked(self, *words, environment=AGENT):
        command = [self.program, *map(str, words), "--json"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def transfers(self):
        return self.asked("transfers", "--http", self.http).get("transfers", [])

    def tuning(self, number):
        return self.asked("transfers", "show", number, "--why", "--http", self.http)

    def wait_for_history(self, count):
        """Waits until the history has this many transfers."""
        while len(self.asked("tune", "history").get("transfers", [])) < count:
            time.sleep(0.2)
