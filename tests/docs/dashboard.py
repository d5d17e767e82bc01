#!/usr/bin/env python3
"""dashboard.py BINARY DASHBOARD: every metric that the Grafana dashboard names is one that the binary serves."""
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
    """Every query: of panels and of variables."""
    if isinstance(value, dict):
        expressions.extend(text for key, text in value.items() if key in ("expr", "query") and isinstance(text, str))
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            collect(item)


collect(panels)
named = [(name, text) for text in expressions for name in re.findall(r"\bisthmus_\w+", text)]
assert len(named) > 10, f"{dashboard} names hardly any metric: {expressions}"
wrong = [f"{name} in: {text}" for name, text in named if name not in served]
# A counter as it stands only grows: what is looked at is its rate.
wrong += [f"{name} is a counter, without rate() or increase(), in: {text}" for name, text in named
          if served.get(name) == "counter" and not re.search(r"(rate|increase)\(" + name, text)]
if wrong:
    sys.exit(f"{dashboard} asks for what no process serves (docs/metrics.md has what there is):\n" + "\n".join(wrong))
print(f"{len(named)} uses of {len(set(name for name, _ in named))} metrics")
