"""Monitoring tells the controller that a link is down, or up again.

    monitor.py LINK down|up
"""

import sys

from ask import ask

link, state = sys.argv[1:]
ask("PUT", f"/api/v1/links/{link}", {"down": state == "down", "reason": "no light"})
print("{}")
