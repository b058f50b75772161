#!/usr/bin/env python3
"""What a request costs a guest, how many clients it takes, large values, and the latency of one client.

    experiments/data_plane.py [--parts cycles,clients,bulk,latency] [--target vmm|qemu|kvm|xdp|linux]
                              [--repetitions 3] [--requests 100000]

cycles   of guests: busy cycles a request, from the guest's own INFO: the time of turns in which frames arrived, less what
         it took to tell the card of frames, in cycles of the time stamp counter. With 50 connections and with 5,000 of which
         50 are busy, without pipelining and at pipeline 16.
clients  throughput and the longest reply with 10 to 1,000 busy clients.
bulk     GET and SET of 1 MiB values on one connection.
latency  of one client that waits for each reply, by a client of our own that counts nanoseconds.

redis-server runs beside it, but for `cycles`; runs alternate, and who is not measured is stopped. Both are reached over veth
pairs or a tap, from a network namespace made for the run (with `linux` over loopback). See versus_redis.py.
"""

import argparse
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import time

import versus_redis
from versus_redis import Namespaces, inside, start_kayvee, start_redis

BUSY = 50
IDLE = 4950
VALUE_BYTES = 1 << 20
CLIENTS = [10, 50, 100, 200, 500, 1000]


def info(server):
    """The numbers of INFO."""
    command = [*inside("client"), "redis-cli", "-h", server.host, "-p", str(server.port), "INFO", "everything"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)\s*$", text, re.M)}


def benchmark(server, requests, *arguments):
    """One run of redis-benchmark: requests a second, and the longest reply in milliseconds."""
    command = [*inside("client"), "redis-benchmark", "-h", server.host, "-p", str(server.port), "--csv", "-n", str(requests)]
    text = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
    row = re.search(r'^"(?:GET|SET)",(.*)$', text, re.M)
    if not row:
        sys.exit(f"redis-benchmark against {server.name}: {text}")
    numbers = [float(number) for number in re.findall(r'"([\d.]+)"', row[1])]
    return numbers[0], numbers[-1]


def hold(host, port, count):
    """Keeps connections open until standard input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    connections = [socket.create_connection((host, port)) for _ in range(count)]
    connections[-1].sendall(b"PING\r\n")
    connections[-1].recv(100)
    print("ready", flush=True)
    sys.stdin.read()


def ping(host, port, count):
    """Prints how long each GET took, in nanoseconds."""
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request, times = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", []
    for _ in range(count):
        start = time.perf_counter_ns()
        connection.sendall(request)
        connection.recv(100)
        times.append(time.perf_counter_ns() - start)
    print(" ".join(map(str, times)))


def helper(server, what, count, **options):
    """Starts this program as a client of a server."""
    command = [*inside("client"), sys.executable, os.path.abspath(__file__), "--client", what, server.host, str(server.port),
               str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def alternate(options, servers, measure):
    """What `measure` gives for each server, that many times, while the others are stopped."""
    results = {server: [] for server in servers}
    for repetition in range(options.repetitions):
        for server in servers if repetition % 2 == 0 else servers[::-1]:
            server.resume()
            time.sleep(0.2)  # Let the guest's clock and the scheduler settle after the stop.
            results[server].append(measure(server))
            server.pause()
    return results


def medians(rows):
    return [statistics.median(row[at] for row in rows) for at in range(len(rows[0]))]


def cycles(options, servers):
    guest = servers[-1]
    if options.target in ("linux", "xdp"):
        return print("cycles: only a guest counts them")
    guest.resume()
    print(f"{'busy cycles a request':32} {'pipeline':>8} {'cycles':>10} {'with the kicks':>15} {'requests/s':>12}")
    for idle in (0, IDLE):
        holder = helper(guest, "hold", idle) if idle else None
        if holder and holder.stdout.readline() != "ready\n":
            sys.exit("the idle connections were not made")
        for pipeline in (1, 16):
            rows = []
            for _ in range(options.repetitions):
                before = info(guest)
                requests = options.requests * pipeline // (1 if pipeline == 1 else 4)
                rate, _ = benchmark(guest, requests, "-t", "get", "-c", str(BUSY), "-P", str(pipeline))
                after = info(guest)
                spent = {name: after[name] - before[name] for name in
                         ("kayvee_net_turns_ns", "kayvee_net_notifying_ns", "total_commands_processed")}
                scale = after["kayvee_net_cycles_hz"] / 1e9 / spent["total_commands_processed"]
                with_kicks = spent["kayvee_net_turns_ns"] * scale
                rows.append((with_kicks - spent["kayvee_net_notifying_ns"] * scale, with_kicks, rate))
            own, with_kicks, rate = medians(rows)
            print(f"{f'{BUSY + idle} connections, {BUSY} busy':32} {pipeline:8} {own:10,.0f} {with_kicks:15,.0f} {rate:12,.0f}", flush=True)
        if holder:
            holder.communicate()


def clients(options, servers):
    print(f"{'busy clients':32} {'':14} {'requests/s':>12} {'kept':>6} {'longest ms':>11}")
    first = {}
    for count in CLIENTS:
        run = lambda server: benchmark(server, options.requests, "-t", "get", "-c", str(count))
        for server, rows in alternate(options, servers, run).items():
            rate = medians(rows)[0]
            first.setdefault(server, rate)
            longest = max(row[1] for row in rows)
            print(f"{count:<32} {server.name:14} {rate:12,.0f} {rate / first[server]:6.2f} {longest:11.1f}", flush=True)


def bulk(options, servers):
    print(f"{'1 MiB, one connection':32} {'':14} {'values/s':>12} {'MB/s':>8} {'Gbit/s':>8} {'ratio':>6} {'server us':>10}")
    for name in ("set", "get"):
        def run(server):
            before = server.processor_seconds()
            rate, _ = benchmark(server, options.values, "-t", name, "-c", "1", "-d", str(VALUE_BYTES))
            return rate, (server.processor_seconds() - before) * 1e6 / options.values
        results = {server: medians(rows) for server, rows in alternate(options, servers, run).items()}
        for server, (rate, cost) in results.items():
            bytes_s = rate * VALUE_BYTES
            print(f"{name.upper():32} {server.name:14} {rate:12,.0f} {bytes_s / 1e6:8,.0f} {bytes_s * 8 / 1e9:8.1f} "
                  f"{rate / results[servers[0]][0]:6.2f} {cost:10.0f}", flush=True)


def latency(options, servers):
    print(f"{'GET, 1 client':32} {'':14} {'p50 us':>8} {'ratio':>6} {'p99 us':>8} {'ratio':>6}")

    def run(server):
        process = helper(server, "ping", options.requests // 5)
        times = sorted(int(word) for word in process.communicate()[0].split())
        return [times[len(times) * percent // 100] / 1000 for percent in (50, 99)]
    results = {server: medians(rows) for server, rows in alternate(options, servers, run).items()}
    for server, (p50, p99) in results.items():
        of = results[servers[0]]
        print(f"{'':32} {server.name:14} {p50:8.1f} {p50 / of[0]:6.2f} {p99:8.1f} {p99 / of[1]:6.2f}", flush=True)


PARTS = {"cycles": cycles, "clients": clients, "bulk": bulk, "latency": latency}


def main():
    if sys.argv[1:2] == ["--client"]:
        what, host, port, count = sys.argv[2:]
        return {"hold": hold, "ping": ping}[what](host, int(port), int(count))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--target", default="vmm", choices=["vmm", "qemu", "kvm", "xdp", "linux"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--values", type=int, default=1000, help="of 1 MiB, in a run of `bulk`")
    parser.add_argument("--memory", type=int, default=128, help="of a guest, in MiB")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(unknown)}: take from {', '.join(PARTS)}")

    if options.target != "linux":
        versus_redis.namespaces = Namespaces()
    servers = []
    try:
        servers.append(start_redis())
        servers.append(start_kayvee(options.target, options.memory))
        for server in servers:
            server.pause()
        for part in parts:
            PARTS[part](options, servers)
            for server in servers:
                server.pause()
    finally:
        for server in servers:
            server.stop()
        if versus_redis.namespaces:
            versus_redis.namespaces.remove()


if __name__ == "__main__":
    main()
