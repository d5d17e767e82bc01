#!/usr/bin/env python3
"""dashboard.py BINARY DASHBOARD: checks that the binary serves every metric in the Grafana dashboard."""
import json
import pathlib
import re
import subprocess
import sys

binary, dashboard = sys.argv[1:]
table = subprocess.run([binary, "help", "--metrics"], check=True, capture_output=True, text=True).stdout
served = {}
for name, kind in re.findall(r"^\| `(isthmus_\w+)` \| (\w+) \|", table, re.M):
    for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
        served[name + suffix] = kind
assert served, "`isthmus help --metrics` prints no table"

panels = json.loads(pathlib.Path(dashboard).read_text(encoding="utf-8"))
expressions = []


def collect(value):
    """Collects all queries of panels and variables."""
    if isinstance(value, dict):
        expressions.extend(text for key, text in value.items() if key in ("expr", "query") and isinstance(text, str))
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            collect(item)


collect(panels)
named = [(name, text) for text in expressions for name in re.findall(r"\bisthmus_\w+", text)]
assert len(named) > 10, f"{dashboard} contains hardly any metric:  {expressions}"
wrong = [f"{name} in: {text}" for name, text in named if name not in served]
# The value of a counter only grows, so queries must use its rate.
wrong += [f"{name} is a counter, without rate() or increase(), in: {text}" for name, text in named
          if served.get(name) == "counter" and not re.search(r"(rate|increase)\(" + name, text)]
if wrong:
    sys.exit(f"{dashboard} has unknown metrics or wrong uses (docs/metrics.md lists all):\n" + "\n".join(wrong))
print(f"{len(named)} uses of {len(set(name for name, _ in named))} metrics")
