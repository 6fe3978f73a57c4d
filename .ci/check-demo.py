"""Checks the JSON of `quietline demo --json`.

Every workload has a median of quietline's side; most have the kernel's and the ratio, the others say why not. The lossy one
must have moved content and found it intact.

Usage: check-demo.py FILE
"""

import json
import sys


def complaints(workload):
    """What is wrong with one workload, in words."""
    sides = ["quietline"] if workload.get("kernel_note") else ["quietline", "kernel"]
    for side in sides:
        median = (workload.get(side) or {}).get("median")
        if not median or median <= 0:
            yield f"{side} has no median"
    if "kernel" in sides and not workload.get("ratio"):
        yield "there is no ratio"
    if workload.get("kernel_note") is None and workload.get("kernel") is None:
        yield "the kernel's side is missing without a reason"
    content = workload.get("content")
    if content is not None:
        if not content["bytes"] or content["differing"] or not workload.get("checksum_ok"):
            yield f"the content did not arrive intact: {content}"


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        workloads = json.load(file)["workloads"]
    names = {workload["name"] for workload in workloads}
    bad = [f"{w['name']}: {text}" for w in workloads for text in complaints(w)]
    if "lossy" not in names or not any(name.startswith("bulk") for name in names):
        bad.append(f"workloads are missing, there are only {sorted(names)}")
    for line in bad:
        print(f"demo: {line}")
    print(f"demo: {len(workloads)} workloads, {len(bad)} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
