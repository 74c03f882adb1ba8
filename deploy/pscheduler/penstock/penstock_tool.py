"""Parts that the programs of the pScheduler tool `penstock` share. Python 3.9, standard library only."""

import configparser
import datetime
import json
import re
import sys

CONFIGURATION = "/etc/pscheduler/tool/penstock.conf"
# Not 8620, where an agent of the same host may answer.
SERVER_PORT_DEFAULT = 8630
# Port of a `penstock nettest --listen` that is always there (single-ended tests).
SINGLE_ENDED_PORT_DEFAULT = 8620
SPEC_SCHEMA_MAX = 7
STREAMS_MAX = 256
TEST_SECONDS_DEFAULT = 10
TEST_SECONDS_MAX = 86400
# Time for processes to start, for the server to listen, and for both to end.
SETUP_SECONDS = 5
SERVER_WAIT_SECONDS = 8
SHUTDOWN_SECONDS = 4

# Keys of a spec that this tool honours. `bandwidth-strict` and `zero-copy` hold always, `link-rtt` is a hint.
SPEC_KEYS = {
    "schema", "source", "source-node", "dest", "dest-node", "duration", "interval", "link-rtt",
    "parallel", "udp", "bandwidth", "bandwidth-strict", "window-size", "buffer-length",
    "ip-version", "local-address", "omit", "congestion", "zero-copy", "single-ended",
    "single-ended-port", "reverse", "loopback",
}

_DURATION = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtpe]?)(i?)b?", re.IGNORECASE)


class SpecError(Exception):
    """A spec or an input that this tool cannot run; the text names the key."""


def read_input():
    """Reads the JSON object on standard input."""
    try:
        value = json.load(sys.stdin)
    except ValueError as error:
        sys.exit(f"penstock: standard input is no JSON: {error}")
    if not isinstance(value, dict):
        sys.exit("penstock: standard input is no JSON object")
    return value


def write_output(value):
    """Writes a JSON object to standard output."""
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")


def duration_seconds(text, key):
    """Seconds of an ISO 8601 duration."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or not any(match.groups()):
        raise SpecError(f"{key}: {text!r} is no ISO 8601 duration such as PT10S")
    weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds


def si_number(value, key):
    """Whole number of an integer or a text with a suffix: 10G, 64Ki."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise SpecError(f"{key}: {value!r} is no number such as 1000000 or 10G")
    base = 1024 if match.group(3) else 1000
    return int(float(match.group(1)) * base ** " kmgtpe".index(match.group(2).lower() or " "))


def _integer(spec, key, default, least, most):
    value = spec.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(f"{key}: {value!r} is not in {least} to {most}")
    return value


def test_seconds(spec):
    """Seconds of the test and of its omitted start."""
    seconds = duration_seconds(spec.get("duration", f"PT{TEST_SECONDS_DEFAULT}S"), "duration")
    # Before schema 2 a number of seconds.
    omit = spec.get("omit", "PT0S")
    omit = float(omit) if isinstance(omit, int) else duration_seconds(omit, "omit")
    if not 0 < seconds <= TEST_SECONDS_MAX:
        raise SpecError(f"duration: {seconds} s is not in 0 to {TEST_SECONDS_MAX} s")
    return seconds, omit


def client_arguments(spec):
    """Arguments of `penstock nettest` after the host and the port."""
    seconds, omit = test_seconds(spec)
    streams = _integer(spec, "parallel", 1, 1, STREAMS_MAX)
    arguments = ["--json", "--time", f"{seconds}s", "--streams", str(streams)]
    if omit > 0:
        arguments += ["--omit", f"{omit}s"]
    if "interval" in spec:
        arguments += ["--interval", f"{duration_seconds(spec['interval'], 'interval')}s"]
    if spec.get("udp"):
        arguments.append("--udp")
    if "bandwidth" in spec:
        # Of each stream, as for iperf3; nettest limits all of them together.
        rate = si_number(spec["bandwidth"], "bandwidth") * streams
        arguments += ["--rate", str(rate) if rate > 0 else "none"]
    if "window-size" in spec:
        arguments += ["--window", str(si_number(spec["window-size"], "window-size"))]
    if "buffer-length" in spec:
        length = str(si_number(spec["buffer-length"], "buffer-length"))
        arguments += ["--datagram-size" if spec.get("udp") else "--block", length]
    if "congestion" in spec:
        if spec.get("udp"):
            raise SpecError("congestion: datagrams have no congestion control")
        arguments += ["--congestion", str(spec["congestion"])]
    if "ip-version" in spec:
        if spec["ip-version"] not in (4, 6):
            raise SpecError(f"ip-version: {spec['ip-version']!r} is not 4 or 6")
        arguments.append(f"-{spec['ip-version']}")
    if "local-address" in spec:
        arguments += ["--bind", str(spec["local-address"])]
    if spec.get("reverse"):
        arguments.append("--reverse")
    return arguments


def refusals(test):
    """Reasons why this tool cannot run a test; empty if it can."""
    if test.get("type") != "throughput":
        return [f"the test {test.get('type')!r} is not throughput"]
    spec = test.get("spec")
    if not isinstance(spec, dict):
        return ["the test has no spec"]
    reasons = [f"{key}: not supported" for key in sorted(set(spec) - SPEC_KEYS)]
    schema = spec.get("schema", 1)
    if not isinstance(schema, int) or not 1 <= schema <= SPEC_SCHEMA_MAX:
        reasons.append(f"schema: {schema!r} is not in 1 to {SPEC_SCHEMA_MAX}")
    if not spec.get("dest") and not spec.get("loopback"):
        reasons.append("dest: missing")
    try:
        client_arguments(spec)
    except SpecError as error:
        reasons.append(str(error))
    return reasons


def configuration():
    """Settings of this host: `server_port` and `command`."""
    settings = {"server_port": SERVER_PORT_DEFAULT, "command": "penstock"}
    parser = configparser.ConfigParser()
    try:
        parser.read(CONFIGURATION)
        section = parser["penstock"] if parser.has_section("penstock") else {}
        settings["server_port"] = int(section.get("server_port", settings["server_port"]))
        settings["command"] = section.get("command", settings["command"])
    except (configparser.Error, ValueError) as error:
        sys.exit(f"penstock: {CONFIGURATION}: {error}")
    return settings


def start_time(schedule):
    """Start of a run, in seconds since 1970."""
    text = str(schedule.get("start", ""))
    try:
        # Python 3.9 reads no Z.
        start = datetime.datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
    except ValueError as error:
        raise SpecError(f"schedule: start: {error}") from error
    return (start if start.tzinfo else start.replace(tzinfo=datetime.timezone.utc)).timestamp()


def _figures(source, start, end):
    """Figures of pScheduler for an object of nettest with bytes, a rate or datagrams."""
    figures = {
        "start": start,
        "end": end,
        "throughput-bytes": source["bytes"],
        "throughput-bits": source["bits_per_second"],
    }
    datagrams = source.get("udp")
    if datagrams:
        figures["sent"] = datagrams["packets"]
        figures["lost"] = datagrams["lost"]
        figures["jitter"] = datagrams["jitter_us"] / 1000
    else:
        figures["retransmits"] = source.get("retransmits", 0)
    return figures


def _total(streams, seconds):
    """Figures of all streams together, whose rates add up."""
    total = {"start": 0, "end": seconds}
    for key in ("throughput-bytes", "throughput-bits", "receiver-throughput-bits",
                "retransmits", "sent", "lost"):
        values = [stream[key] for stream in streams if key in stream]
        if values:
            total[key] = sum(values)
    jitters = [stream["jitter"] for stream in streams if "jitter" in stream]
    if jitters:
        total["jitter"] = sum(jitters) / len(jitters)
    return total


def result_of(report, diagnostics):
    """Result of pScheduler for the JSON object of a test."""
    streams = []
    for stream in report["streams"]:
        figures = _figures(stream, 0, stream["seconds"])
        figures["stream-id"] = stream["index"]
        # nettest counts at the receiver.
        figures["receiver-throughput-bits"] = stream["bits_per_second"]
        if not report.get("udp") and stream["rtt_us"] is not None:
            figures["rtt"] = stream["rtt_us"]
        streams.append(figures)
    intervals = []
    for interval in report["intervals"]:
        start, end = interval["start_seconds"], interval["end_seconds"]
        moved = interval["bytes_sent"] + interval["bytes_received"]
        rate = moved * 8 / (end - start) if end > start else 0
        figures = _figures({**interval, "bytes": moved, "bits_per_second": rate}, start, end)
        figures["omitted"] = interval["omitted"]
        intervals.append({"streams": [], "summary": figures})
    result = {
        "succeeded": True,
        "diags": diagnostics,
        "intervals": intervals,
        "summary": {"streams": streams, "summary": _total(streams, report["seconds"])},
    }
    if report.get("mss"):
        result["mss"] = report["mss"]
    return result


def failure(error, diagnostics=""):
    """Result of a run that failed."""
    return {"succeeded": False, "error": error, "diags": diagnostics}
