"""Starts real daemons of Penstock (`penstock serve`) on free ports, in temporary directories."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Longest wait for a daemon to start or end, in seconds.
START_WAIT_S = 60.0


def binary() -> Path:
    """Returns the program under test: `PENSTOCK_BINARY`, else a build in `target`."""
    named = os.environ.get("PENSTOCK_BINARY")
    candidates = [Path(named)] if named else [ROOT / "target" / kind / "penstock" for kind in ("debug", "release")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise RuntimeError(f"no penstock at {candidates}: build it (cargo build -p penstock) or set PENSTOCK_BINARY")


def environment(state: Path) -> dict[str, str]:
    """Returns the environment without the settings of the caller."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "BEARER_"))}
    return {**kept, "PENSTOCK_STATE": str(state), "XDG_RUNTIME_DIR": str(state), "RUST_BACKTRACE": "0"}


def run(state: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command of penstock with a state directory."""
    done = subprocess.run([binary(), *words], env=environment(state), capture_output=True, text=True, timeout=120)
    if check and done.returncode != 0:
        raise AssertionError(f"penstock {words}: {done.returncode}: {done.stderr}")
    return done


@dataclass
class Daemon:
    """A running `penstock serve`."""

    directory: Path
    options: tuple[str, ...] = ()
    http_option: str = "127.0.0.1:0"
    config: str = ""
    roles: str = "agent"
    facts: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def http(self) -> str:
        return str(self.facts["http"][0])

    @property
    def listen(self) -> str:
        return str(self.facts["listen"][0])

    @property
    def fingerprint(self) -> str:
        return str(self.facts["fingerprint"])

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()

    def webdav(self, scheme: str) -> str:
        """Returns the URL of the gateway with a scheme."""
        return next(url for url in self.facts["webdav"] if url.startswith(scheme + ":")).rstrip("/")

    def start(self) -> Daemon:
        """Starts the process and waits until it serves. After the first start it keeps its addresses."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "penstock.toml").write_text(self.config)
        http = self.http if self.facts else self.http_option
        words = [binary(), "serve", "--json", "--http", http, "--config", self.directory / "penstock.toml"]
        if "controller" not in self.roles and "collector" not in self.roles:
            words += ["--listen", self.listen if self.facts else "127.0.0.1:0"]
        env = {**environment(self.state), "PENSTOCK_ROLES": self.roles}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*words, *self.options], env=env, stdout=subprocess.PIPE, stderr=log, cwd=self.directory
            )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(START_WAIT_S):
                raise AssertionError(f"penstock serve did not start: {self.log()}")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"penstock serve ended: {self.log()}")
        self.facts = json.loads(line)
        return self

    def log(self) -> str:
        """Returns what the daemon logged."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Ends the process."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(START_WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None


def agent(directory: Path, extra: str = "") -> Daemon:
    """Starts an agent with a gateway that exports `directory/data` as `/data`."""
    (directory / "data").mkdir(parents=True)
    config = f"""
{extra}
[gateway]
listen = ["127.0.0.1:0"]
plaintext = ["127.0.0.1:0"]
digests = ["adler32"]
[third_party]
to = "any"
[[export]]
name = "/data"
path = "data"
mode = "read-write"
who = ["*"]
"""
    return Daemon(directory, config=config).start()


@dataclass
class Site:
    """A controller with two sites `a` and `b`, one agent each."""

    directory: Path
    controller: Daemon
    agents: dict[str, Daemon]

    @property
    def url(self) -> str:
        return self.controller.http

    def data(self, site: str) -> Path:
        """Returns the directory that a site exports as `/data`."""
        return self.agents[site].directory / "data"

    def stop(self) -> None:
        for daemon in (*self.agents.values(), self.controller):
            daemon.stop()


TOPOLOGY = """
name = "two"
[[switch]]
name = "wan"
[[site]]
name = "a"
[[host]]
name = "dtn-a"
site = "a"
interface = [{ name = "eth0", rate = "10G" }]
[[link]]
name = "at-a"
ends = ["dtn-a:eth0", "wan"]
rate = "10G"
[[site]]
name = "b"
[[host]]
name = "dtn-b"
site = "b"
interface = [{ name = "eth0", rate = "10G" }]
[[link]]
name = "at-b"
ends = ["dtn-b:eth0", "wan"]
rate = "10G"
"""

#: Token of a client that may submit to every class.
CLIENT_TOKEN = "the-token-of-a-python-client"


def controller(directory: Path, extra: str = "") -> Daemon:
    """Starts a controller of the sites `a` and `b`."""
    directory.mkdir(parents=True)
    (directory / "topology.toml").write_text(TOPOLOGY)
    config = 'roles = ["controller"]\n[controller]\ntopology = "topology.toml"\nlost_after = "5s"\n'
    tokens = {"dtn-a": "agent:dtn-a", "dtn-b": "agent:dtn-b"}
    for name, scope in tokens.items():
        config += _token_table(name, f"the-token-of-{name}", [scope])
    config += _token_table("alice", CLIENT_TOKEN, ["submit:*", "operate"])
    return Daemon(directory, config=config + extra, roles="controller").start()


def _token_table(name: str, token: str, scopes: list[str]) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[controller.token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes)}\n'


def node(directory: Path, controller: Daemon, site: str) -> Daemon:
    """Starts the agent of a site, which takes orders of the controller."""
    (directory / "data").mkdir(parents=True)
    secret = directory / "controller.token"
    secret.write_text(f"the-token-of-dtn-{site}\n")
    secret.chmod(0o600)
    config = f"""
[agent.controller]
url = "http://{controller.http}"
token = "controller.token"
host = "dtn-{site}"
[third_party]
to = "any"
[[export]]
name = "/data"
path = "data"
mode = "read-write"
who = ["controller"]
"""
    return Daemon(directory, config=config).start()


def site(directory: Path, extra: str = "") -> Site:
    """Starts a controller and the agents of two sites."""
    main = controller(directory / "controller", extra)
    agents = {}
    try:
        for name in ("a", "b"):
            agents[name] = node(directory / f"dtn-{name}", main, name)
    except BaseException:
        for started in (*agents.values(), main):
            started.stop()
        raise
    return Site(directory, main, agents)


def takes_copies(daemon: Daemon) -> bool:
    """True for a program with `POST /api/v1/transfers`."""
    with urllib.request.urlopen(f"http://{daemon.http}/api/v1/openapi.json", timeout=START_WAIT_S) as response:
        return "post" in json.load(response)["paths"]["/api/v1/transfers"]


def eventually(condition: Any, what: str, seconds: float = 60.0) -> Any:
    """Returns the first true result of `condition`; fails after a generous time."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"{what}: not after {seconds} s"
        time.sleep(0.05)
