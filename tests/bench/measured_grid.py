#!/usr/bin/env python3
"""Measures the share of time spent computing for the settings of a published measurement, over real TCP and TLS.

tests/bench/measured_grid.py [--blocking] [--h H ...] [--rate MBPS ...] [--out FILE]: prints a row in Markdown for each
H and rate, beside the published figure. Needs root and the release build (tests/wan_lab). --blocking measures our own
blocking DiLoCo in fp32 instead, which checks that this lab and that cluster give similar figures.

Published: https://github.com/Adnan082/diloco-measured, median of three runs of DiLoCo with torchft on four machines with
one L40S each: 30,846,720 parameters, fp32, all steps wait for the exchange, each machine's line shaped to the rate.
Steps take 26.4 ms there (experiments/01_cu_grid/raw_step_telemetry_shaped). Here steps sleep as long, and as links of a
lab are per pair, each of a site's three links has a third of the rate.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

PUBLISHED = {  # percent, by H and Mbit/s
    128: {50: 11.55, 200: 36.09, 1000: 71.52, 5000: 87.00},
    32: {50: 2.41, 200: 10.01, 1000: 36.01, 5000: 68.10},
}
REPLICAS, PARAMETERS, STEP, RTT = 4, 30_846_720, "26.4ms", "1ms"
HERE = pathlib.Path(__file__).parent


def settings_of(h, rate, blocking):
    if blocking:
        return {"outer.method": "diloco", "outer.codec": "fp32", "outer.sync_every": h}
    # 2bit needs 1.5 * 2.125 bits per parameter and interval: 116 Mbit/s at H = 32.
    codec = "2bit" if h == 128 or rate >= 200 else "topk"
    return {"outer.codec": codec, "outer.sync_every": h, "outer.num_fragments": 8, "outer.sync_delay": h // 8 - 1}


def measure(h, rate, blocking, folder):
    report = pathlib.Path(folder) / "report.json"
    words = ["--params", PARAMETERS, "--step-time", STEP, "--steps", 3 * h if blocking else max(6 * h, 480)]
    for key, value in settings_of(h, rate, blocking).items():
        words += ["--set", f"{key}={value}"]
    command = [HERE / "outer_in_lab.sh", REPLICAS, f"{rate / (REPLICAS - 1):.2f}Mbps", RTT, *words, "--out", report]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocking", action="store_true", help="measure blocking DiLoCo in fp32")
    parser.add_argument("--h", type=int, nargs="+", default=list(PUBLISHED), choices=PUBLISHED)
    parser.add_argument("--rate", type=int, nargs="+", default=[50, 200, 1000, 5000], choices=[50, 200, 1000, 5000])
    parser.add_argument("--out", type=pathlib.Path, help="a line of JSON for each row")
    arguments = parser.parse_args()
    print("| H | Mbit/s | published | measured | codec | waiting | encoding, applying | woken late | late rounds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for h in arguments.h:
        for rate in arguments.rate:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(h, rate, arguments.blocking, folder)
            if arguments.out:
                with open(arguments.out, "a") as out:
                    print(json.dumps({"h": h, "mbps": rate, **found}), file=out)
            lost = {name: 100 * value for name, value in found["lost"].items()}
            print(f"| {h} | {rate} | {PUBLISHED[h][rate]} % | {100 * found['compute_utilization']:.2f} % | "
                  f"{found['codec']} | {lost['waiting']:.2f} % | {lost['encoding'] + lost['applying']:.2f} % | "
                  f"{lost['late_wake']:.2f} % | {found['late_rounds']} of {found['measured_rounds']} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
