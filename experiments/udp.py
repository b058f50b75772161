#!/usr/bin/env python3
"""Datagrams: an echo, and get and set of memcached's protocol, as in EuroSys '21 table 4 and Arrakis' UDP echo.

    experiments/udp.py [--targets linux,xdp,vmm] [--repetitions 3] [--seconds 2] [--window 64]

For each target a run of `udp_load` (targets/linux/examples) with that many datagrams on their way, and one with a single one,
for the round trip: Kayvee on the kernel's sockets (`linux`), over AF_XDP (`xdp`), as a guest over AF_XDP (`vmm`) or over a
tap (`qemu`), and memcached, where it is installed. All are reached over veth pairs or a tap from a network namespace made for
the run, and those that are not measured are stopped. Processor time is that of the server, for a guest of the monitor.

Needs a built `./kayvee`, and builds the load generator.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

import versus_redis
from versus_redis import Namespaces, ROOT, Server, free_port, inside, start_kayvee

ECHO_PORT, MEMCACHED_PORT = 2007, 11211


def build_load():
    subprocess.run(["cargo", "build", "--release", "--locked", "-q", "-p", "kayvee-linux", "--example", "udp_load"], cwd=ROOT, check=True)
    folder = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(folder, "release", "examples", "udp_load")


def start_memcached(program):
    process = subprocess.Popen([*inside("redis"), "memcached", "-u", "nobody", "-t", "1", "-l", Namespaces.REDIS,
                                "-p", "0", "-U", str(MEMCACHED_PORT)])
    server = Server("memcached", process, process.pid, Namespaces.REDIS, MEMCACHED_PORT)
    # It says nothing when it is ready.
    while load(program, server, "set", 1, 1)[0] == 0:
        if process.poll() is not None:
            sys.exit("memcached did not start")
    return server


def start_linux():
    """In the other namespace, so that its sockets are reached over the same pair as memcached's."""
    binary = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "kayvee-linux")
    port = free_port()
    process = subprocess.Popen(
        [*inside("redis"), binary, "--port", str(port), "--bind", Namespaces.REDIS, "--protected-mode", "no",
         "--udp-echo-port", str(ECHO_PORT), "--udp-memcached-port", str(MEMCACHED_PORT + 1)],
        stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "Ready to accept connections" in line:
            return Server("kayvee linux", process, process.pid, Namespaces.REDIS, MEMCACHED_PORT + 1)
    sys.exit("kayvee did not start")


def start(target):
    if target == "linux":
        return start_linux()
    server = start_kayvee(target, 64, ["--udp-echo-port", str(ECHO_PORT), "--udp-memcached-port", str(MEMCACHED_PORT)])
    server.port = MEMCACHED_PORT
    return server


def load(program, server, kind, seconds, window):
    """Answers a second, the share that was lost, server microseconds an answer, p50 and p99 in microseconds."""
    port = ECHO_PORT if kind == "echo" else server.port
    before = server.processor_seconds()
    command = [*inside("client"), program, f"{server.host}:{port}", kind, str(seconds), str(window)]
    words = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 20).stdout.split()
    rate, lost, p50, p99 = map(float, words)
    answers = max(rate * seconds, 1)
    return rate, lost / (answers + lost), (server.processor_seconds() - before) * 1e6 / answers, p50 / 1000, p99 / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="linux,xdp,vmm", help="of linux, xdp, vmm, qemu")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--window", type=int, default=64)
    options = parser.parse_args()

    program = build_load()
    versus_redis.namespaces = Namespaces()
    servers = []
    try:
        if shutil.which("memcached"):
            servers.append(start_memcached(program))
        else:
            print("memcached is not installed: without it")
        servers += [start(target) for target in options.targets.split(",")]
        for server in servers:
            server.pause()
        print(f"{'service':8} {'server':16} {'answers/s':>12} {'lost':>6} {'server us':>10} {'p50 us':>8} {'p99 us':>8}")
        for kind in ("echo", "set", "get"):
            for server in servers:
                if kind == "echo" and server.name == "memcached":
                    continue
                server.resume()
                time.sleep(0.2)  # Let the guest's clock and the scheduler settle after the stop.
                many = [load(program, server, kind, options.seconds, options.window) for _ in range(options.repetitions)]
                one = [load(program, server, kind, options.seconds, 1) for _ in range(options.repetitions)]
                server.pause()
                rate, lost, cost = (statistics.median(row[at] for row in many) for at in (0, 1, 2))
                p50, p99 = (statistics.median(row[at] for row in one) for at in (3, 4))
                print(f"{kind:8} {server.name:16} {rate:12,.0f} {lost:6.3f} {cost:10.2f} {p50:8.1f} {p99:8.1f}", flush=True)
    finally:
        for server in servers:
            server.stop()
        versus_redis.namespaces.remove()


if __name__ == "__main__":
    main()
