#!/usr/bin/env python3
"""Kayvee beside redis-server, in one run.

    experiments/versus_redis.py [--target linux|kvm|tcg] [--repetitions 5] [--requests 1000000]

Starts both, then alternates: each repetition runs redis-benchmark against one of them while the other is stopped
(SIGSTOP), and then the other way round. Prints the medians of throughput, their ratio, and the processor time that the
server and the client used per request. A guest is reached at its own address, over its tap.

Needs redis-server and redis-benchmark, a built `./kayvee`, and for guests the right to make taps.
"""

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

WORKLOADS = [
    # (name, redis-benchmark arguments, share of --requests)
    ("GET, 50 clients", ["-t", "get", "-c", "50"], 0.3),
    ("SET, 50 clients", ["-t", "set", "-c", "50"], 0.3),
    ("GET, 50 clients, pipeline 16", ["-t", "get", "-c", "50", "-P", "16"], 3),
    ("SET, 50 clients, pipeline 16", ["-t", "set", "-c", "50", "-P", "16"], 3),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process under test: where it listens, and what it costs."""

    def __init__(self, name, process, pid, host, port):
        self.name, self.process, self.pid, self.host, self.port = name, process, pid, host, port

    def processor_seconds(self):
        with open(f"/proc/{self.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def pause(self):
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def stop(self):
        self.resume()
        self.process.terminate()
        self.process.wait(timeout=20)


def start_redis():
    port = free_port()
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "Ready to accept connections" in line:
            return Server("redis-server", process, process.pid, "127.0.0.1", port)
    sys.exit("redis-server did not start")


def child_of(pid):
    """The process that the CLI runs the store in."""
    while True:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            pids = children.read().split()
        if not pids:
            return pid
        pid = int(pids[0])


def start_kayvee(target, memory_mib):
    port = free_port()
    command = [os.path.join(ROOT, "kayvee"), "run", "--target", target, "--port", str(port)]
    if target != "linux":
        command += ["--memory", str(memory_mib), "--net", "tap"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "ready:" in line:
            addresses = re.findall(r"(\d+\.\d+\.\d+\.\d+):(\d+)", line)
            # The guest's own address where it has one, so that no proxy stands in between.
            own = [address for address in addresses if not address[0].startswith("127.")] or addresses
            return Server(f"kayvee {target}", process, child_of(process.pid), own[0][0], int(own[0][1]))
    sys.exit("kayvee did not start:\n" + "".join(seen))


def run(server, arguments, requests):
    """One run of redis-benchmark: requests per second, server and client microseconds of processor time a request."""
    command = ["redis-benchmark", "-h", server.host, "-p", str(server.port), "-n", str(requests), "--csv", *arguments]
    before = server.processor_seconds()
    with tempfile.TemporaryFile("w+") as output:
        client = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if client.returncode != 0:
        sys.exit(f"redis-benchmark failed against {server.name}: {text}")
    server_us = (server.processor_seconds() - before) * 1e6 / requests
    client_us = (usage.ru_utime + usage.ru_stime) * 1e6 / requests
    rate = float(re.findall(r'^"(?:GET|SET)[^"]*","([\d.]+)"', text, re.M)[0])
    return rate, server_us, client_us


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="linux", choices=["linux", "kvm", "tcg"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1_000_000, help="scale of a run; pipelined ones take 3 times that")
    parser.add_argument("--memory", type=int, default=128, help="of a guest, in MiB")
    options = parser.parse_args()

    redis, kayvee = start_redis(), start_kayvee(options.target, options.memory)
    try:
        redis.pause(), kayvee.pause()
        print(f"{'workload':32} {'':14} {'requests/s':>12} {'ratio':>6} {'server us':>10} {'ratio':>6} {'client us':>10}")
        for name, arguments, share in WORKLOADS:
            results = {redis: [], kayvee: []}
            for repetition in range(options.repetitions):
                for server in (redis, kayvee) if repetition % 2 == 0 else (kayvee, redis):
                    server.resume()
                    time.sleep(0.2)  # Let the guest's clock and the scheduler settle after the stop.
                    results[server].append(run(server, arguments, int(options.requests * share)))
                    server.pause()
            medians = {server: [statistics.median(column) for column in zip(*rows)] for server, rows in results.items()}
            base = medians[redis]
            for server in (redis, kayvee):
                rate, server_us, client_us = medians[server]
                print(f"{name:32} {server.name:14} {rate:12,.0f} {rate / base[0]:6.2f} {server_us:10.2f} "
                      f"{server_us / base[1]:6.2f} {client_us:10.2f}", flush=True)
    finally:
        redis.stop(), kayvee.stop()


if __name__ == "__main__":
    main()
