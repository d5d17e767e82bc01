#!/usr/bin/env python3
"""Compares training over a wide-area link with torchft's DiLoCo (0.2, Gloo, fp32), and with data parallelism.

.venv/bin/python tests/bench/compare_torchft.py --out DIR [--systems data_parallel torchft diloco isthmus] [--rate 100Mbps] [--rtt 80ms]
    [--steps 600] [--sync-every 20] [--kill STEP]

Needs root, the release build with the Python binding, and torchft: `pip install torchft==0.2.0` into .venv. Two sites of
a lab (tests/wan_lab) train the GPT of examples/python/nanogpt.py on one core each, with the same batches and inner
optimizer. torchft runs DiLoCo with its usual outer optimizer (Nesterov, learning rate 0.7, momentum 0.9), since it
quantises on GPUs only; diloco is the same algorithm and outer optimizer by isthmus, in fp32; isthmus runs its defaults
with the same interval; data_parallel is DistributedDataParallel over
Gloo, which averages the gradients of each step. --kill ends site-2 with SIGKILL at that step
and starts it again at once. Prints a table in Markdown: the loss of the global parameters, the seconds until site-1 has
reached the loss that all reach, its share of time spent computing, and what a site has sent.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import peer_site
import torch

ROOT = pathlib.Path(__file__).parents[2]
LAB, PROGRAM = ROOT / "tests/wan_lab/lab", ROOT / "build/release/isthmus-coordinator"
PYTHON = ROOT / ".venv/bin/python"
SITES = ("site-1", "site-2")
SYSTEMS = ("data_parallel", "torchft", "diloco", "isthmus")
# As torchft's: every step waits for the exchange, and the outer optimizer is Nesterov from the first round to the last.
DILOCO = {"method": "diloco", "codec": "fp32",
          "optimizer": {"lr": 0.7, "momentum": 0.9, "average_first": 0, "average_last": 0}}
LIGHTHOUSE = "from torchft._torchft import lighthouse_main; lighthouse_main()"


class Lab:
    """Commands at the sites of a lab."""

    def __init__(self, name, out):
        self.name, self.out, self.running = name, out, []

    def address(self, site):
        found = self.read(site, "ip", "-j", "-4", "addr", "show", "wan0")
        return json.loads(found)[0]["addr_info"][0]["local"]

    def sent(self, site):
        """Bytes of IP packets."""
        return json.loads(self.read(site, "ip", "-j", "-s", "link", "show", "wan0"))[0]["stats64"]["tx"]["bytes"]

    def read(self, site, *words):
        return subprocess.run([LAB, "run", "--name", self.name, site, *words], check=True, capture_output=True, text=True).stdout

    def start(self, site, log, *words):
        """A process in a session of its own, which `end` kills as a whole."""
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "wan0"}
        with open(self.out / f"{log}.log", "a") as output:
            process = subprocess.Popen(
                [LAB, "run", "--name", self.name, site, *map(str, words)],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
            )
        self.running.append(process)
        return process

    def end(self):
        for process in self.running:
            kill(process)


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def lines_of(file):
    if not file.exists():
        return []
    lines = file.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def run_system(system, lab, options):
    """Runs both sites to the end. Returns the bytes that each has sent."""
    addresses = {site: lab.address(site) for site in SITES}
    before = {site: lab.sent(site) for site in SITES}
    out = lab.out
    words = ["--data", options.data, "--out", out, "--steps", options.steps, "--every", options.every]
    words += ["--sync-every", options.sync_every]
    if system == "torchft":
        coordinator = f"{addresses['site-1']}:29510"
        serve = ["--bind", "0.0.0.0:29510", "--min_replicas", "1", "--join_timeout_ms", "10000"]
        (out / "lighthouse.py").write_text(LIGHTHOUSE)
        lab.start("site-1", "lighthouse", PYTHON, out / "lighthouse.py", *serve)
    elif system == "data_parallel":
        coordinator = f"{addresses['site-1']}:29511"
    else:
        coordinator = f"{addresses['site-1']}:7000"
        config = out / "experiment.yaml"
        run = {"name": "peer", "out": str(out / "runs"), "steps": options.steps}
        outer = {"sync_every": options.sync_every, "min_replicas": 1, **(DILOCO if system == "diloco" else {})}
        config.write_text(json.dumps({"run": run, "replicas": 2, "outer": outer}))  # JSON is YAML
        certs = out / "certs"
        subprocess.run([PROGRAM, "certs", "init", "peer", "--dir", certs], check=True, stdout=subprocess.DEVNULL)
        for name in ("coordinator", *SITES):
            subprocess.run([PROGRAM, "certs", "issue", "peer", name, "--dir", certs], check=True, stdout=subprocess.DEVNULL)
        words += ["--config", config, "--certs", certs / "peer"]
        serve = ["--config", config, "--listen", coordinator, "--certs", certs / "peer"]
        lab.start("site-1", "coordinator", PROGRAM, "coordinator", *serve)
    time.sleep(2)

    def start(site):
        # torchft gives the others the name of its machine, which must lead to the site.
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', addresses[site]]
        place = ["--name", site, "--address", addresses[site], "--coordinator", coordinator]
        return lab.start(site, site, *named, PYTHON, ROOT / "tests/bench/peer_site.py", system, *place, *words)

    sites = {site: start(site) for site in SITES}
    killed = options.kill is None
    while sites["site-1"].poll() is None:
        time.sleep(0.05)
        if not killed and any(line["step"] >= options.kill for line in lines_of(out / "site-2.jsonl")):
            kill(sites["site-2"])
            sites["site-2"], killed = start("site-2"), True
    if sites["site-1"].returncode != 0:
        sys.exit(f"{system}: site-1 failed; see {out / 'site-1.log'}")
    with contextlib.suppress(subprocess.TimeoutExpired):
        sites["site-2"].wait(60)
    return {site: lab.sent(site) - before[site] for site in SITES}


def losses_of(out, options):
    """(step, loss) of the snapshots of site-1, on the same held-out windows."""
    nanogpt = peer_site.example()
    text = nanogpt.read(options.data)
    ids, targets = nanogpt.batch_of(text[-len(text) // 20 :], torch.Generator().manual_seed(1), 64, peer_site.LENGTH)
    model, found = nanogpt.GPT(), []
    for file in out.glob("site-1-*.pt"):
        model.load_state_dict(torch.load(file, weights_only=True), strict=False)
        with torch.no_grad():
            found.append((int(file.stem.split("-")[-1]), nanogpt.loss_of(model, ids, targets).item()))
    return sorted(found)


def measure(system, options):
    out = (options.out / system).resolve()
    out.mkdir(parents=True)
    command = [LAB, "with", "--sites", "2", "--rate", options.rate, "--rtt", options.rtt, "--"]
    command += [sys.executable, "-B", __file__, *sys.argv[1:], "--inside", "{lab}", "--system", system]
    subprocess.run(command, check=True)
    lines = lines_of(out / "site-1.jsonl")
    begin, end = lines[0]["time"], lines[-1]["time"]
    at = {line["step"]: line["time"] - begin for line in lines}
    curve = [(step, at[step], loss) for step, loss in losses_of(out, options) if step in at]
    sent = json.loads((out / "sent.json").read_text())
    return {
        "system": system,
        "seconds": end - begin,
        "utilization": lines[-1]["computed"] / (end - begin),
        "megabytes": max(sent.values()) / 1e6,
        "curve": curve,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a new folder")
    parser.add_argument("--data", default=str(ROOT / ".venv/corpus"), help="folder of *.h files")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["torchft", "isthmus"])
    parser.add_argument("--rate", default="100Mbps")
    parser.add_argument("--rtt", default="80ms")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations: a multiple of --sync-every")
    parser.add_argument("--kill", type=int, help="step at which site-2 is killed")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--system", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        lab = Lab(options.inside, (options.out / options.system).resolve())
        try:
            sent = run_system(options.system, lab, options)
        finally:
            lab.end()
        (lab.out / "sent.json").write_text(json.dumps(sent))
        return
    results = [measure(system, options) for system in options.systems]
    target = max(result["curve"][-1][2] for result in results)
    print(f"| system | loss | seconds | to a loss of {target:.3f} | computing | sent per site |")
    print("| --- | --- | --- | --- | --- | --- |")
    for result in results:
        reached = next(seconds for _, seconds, loss in result["curve"] if loss <= target)
        print(f"| {result['system']} | {result['curve'][-1][2]:.4f} | {result['seconds']:.1f} | {reached:.1f} | "
              f"{100 * result['utilization']:.1f} % | {result['megabytes']:.1f} MB |")
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
