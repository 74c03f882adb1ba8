"""Sends one HTTP request to the controller with the operator's token."""

import json
import os
import ssl
import urllib.error
import urllib.request

ROOM = os.path.join(os.environ["PENSTOCK_LAB"], "ops")
# Not verified: this program runs on the controller's host. The nodes check its certificate.
TLS = ssl._create_unverified_context()


def ask(method, path, body=None):
    token = open(os.path.join(ROOM, "operator.token")).read().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://[::1]:8621{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from None
