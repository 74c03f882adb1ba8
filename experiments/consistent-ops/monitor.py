"""Reports a link to the controller as down, or as up again, as monitoring does.

    monitor.py LINK down|up
"""

import sys

from ask import ask

link, state = sys.argv[1:]
ask("PUT", f"/api/v1/links/{link}", {"down": state == "down", "reason": "no light"})
print("{}")
