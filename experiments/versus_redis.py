#!/usr/bin/env python3
"""Kayvee beside redis-server, in one run.

    experiments/versus_redis.py [--workloads get-set|many-keys|default-set|large-keys|latency] [--target linux|kvm|qemu|tcg|xdp|vmm]
                                [--repetitions 5] [--requests 1000000] [--client-threads 1] [--keyspace 1]

Starts both, then alternates: each repetition runs redis-benchmark against one of them while the other is stopped
(SIGSTOP), and then the other way round. Prints the medians of throughput, their ratio, and the processor time that the
server and the client used per request. A guest is reached at its own address, over its tap; with `kvm` it runs in our own
monitor, with `qemu` in QEMU under KVM.

With `xdp` (a process over an AF_XDP socket) and `vmm` (a guest of our own monitor over such a socket) both sides are
reached over a veth pair: redis-server in a network namespace of its own, Kayvee at the end of the pair that it makes, and
the client in a third namespace that both lead to. They are made for the run and removed after it.

One thread of redis-benchmark is slower than what it measures: with `--client-threads 2` it takes what the server leaves of
two cores.

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

# Elements of a large key.
LARGE = 1_000_000

# What else is asked of a million keys, or of one key of a million elements.
MANY_KEYS = [
    ("MGET of 10", "MGET" + 10 * " key:__rand_int__"),
    ("SET with EX", "SET key:__rand_int__ xxx EX 1000"),
    ("INCR", "INCR counter:__rand_int__"),
    ("HSET", "HSET hash:__rand_int__ field xxx"),
    ("HGET", "HGET hash:__rand_int__ field"),
    ("LPUSH", "LPUSH list:__rand_int__ xxx"),
    ("SADD, one set", "SADD set member:__rand_int__"),
    ("SISMEMBER, one set", "SISMEMBER set member:__rand_int__"),
    ("ZADD, one set", "ZADD zset __rand_int__ member:__rand_int__"),
    ("DEL", "DEL key:__rand_int__"),
]

# redis-benchmark's default set but for LRANGE.
SHORT_REPLIES = "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,mset"

# By name: what fills the store before each run, and the runs: (name, redis-benchmark arguments, share of --requests).
WORKLOADS = {
    "get-set": ([], [
        ("GET, 50 clients", ["-t", "get", "-c", "50"], 0.3),
        ("SET, 50 clients", ["-t", "set", "-c", "50"], 0.3),
        ("GET, 50 clients, pipeline 16", ["-t", "get", "-c", "50", "-P", "16"], 3),
        ("SET, 50 clients, pipeline 16", ["-t", "set", "-c", "50", "-P", "16"], 3),
    ]),
    # A million small keys, more than caches hold, asked for at random.
    "many-keys": ([["-n", str(3 * LARGE), "-r", str(LARGE), "-P", "64", "-t", "set"]], [
        ("GET, 50 clients", ["-r", str(LARGE), "-t", "get", "-c", "50"], 0.3),
        ("SET, 50 clients", ["-r", str(LARGE), "-t", "set", "-c", "50"], 0.3),
        ("GET, 50 clients, pipeline 16", ["-r", str(LARGE), "-t", "get", "-c", "50", "-P", "16"], 3),
        ("SET, 50 clients, pipeline 16", ["-r", str(LARGE), "-t", "set", "-c", "50", "-P", "16"], 3),
        *((f"{name}, pipeline 16", ["-r", str(LARGE), "-c", "50", "-P", "16", *words.split()], 1) for name, words in MANY_KEYS),
    ]),
    # One client that waits for each reply: the rate is that of round trips.
    "latency": ([], [
        ("GET, 1 client", ["-t", "get", "-c", "1"], 0.05),
        ("SET, 1 client", ["-t", "set", "-c", "1"], 0.05),
    ]),
    # All that redis-benchmark runs by itself; each of its lines is a line here. Long replies take ten times as long.
    "default-set": ([], [
        ("short replies, pipeline 16", ["-P", "16", "-t", SHORT_REPLIES], 0.5),
        ("long replies, pipeline 16", ["-P", "16", "-t", "lrange"], 0.05),
    ]),
    # Keys of a million elements. HGETALL of all of them is few requests, so it is counted in elements.
    "large-keys": ([
        ["-n", str(LARGE), "-P", "64", "ZADD", "zset", "__rand_int__", "element:__rand_int__"],
        ["-n", str(LARGE), "-P", "64", "HSET", "hash", "field:__rand_int__", "value:__rand_int__"],
        ["-n", str(LARGE), "-P", "64", "RPUSH", "list", "element:__rand_int__"],
    ], [
        ("ZADD, 1 million members", ["-P", "16", "ZADD", "zset", "__rand_int__", "element:__rand_int__"], 0.5),
        ("ZRANGE of 100, 1 million members", ["-P", "16", "ZRANGE", "zset", "500000", "500099"], 0.1),
        ("HSET, 1 million fields", ["-P", "16", "HSET", "hash", "field:__rand_int__", "other:__rand_int__"], 0.5),
        ("HGETALL, 1 million fields", ["-c", "1", "HGETALL", "hash"], 0.00002),
        ("LPUSH, 1 million elements", ["-P", "16", "LPUSH", "list", "element:__rand_int__"], 0.5),
        ("LRANGE of 100 at the start", ["-P", "16", "LRANGE", "list", "0", "99"], 0.1),
    ]),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Namespaces:
    """One for the client and Kayvee, one for redis-server, and a veth pair between them."""

    REDIS, CLIENT = "198.18.0.2", "198.18.0.1"

    def __init__(self):
        self.client, self.redis = f"kvclient-{os.getpid()}", f"kvredis-{os.getpid()}"
        try:
            for name in (self.client, self.redis):
                self.ip("netns", "add", name)
                self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", self.client, "link", "add", "redis0", "type", "veth", "peer", "name", "redis0", "netns", self.redis)
            for name, address in ((self.client, self.CLIENT), (self.redis, self.REDIS)):
                self.ip("-n", name, "addr", "add", f"{address}/30", "dev", "redis0")
                self.ip("-n", name, "link", "set", "redis0", "up")
        except subprocess.CalledProcessError as error:
            self.remove()
            sys.exit(f"no network namespaces can be made: {error}")

    @staticmethod
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True)

    def remove(self):
        for name in (self.client, self.redis):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


# Set for the targets that need them.
namespaces = None


def inside(which):
    """The words that start a command where it belongs."""
    return ["ip", "netns", "exec", getattr(namespaces, which)] if namespaces else []


class Server:
    """A process under test: where it listens, and what it costs."""

    def __init__(self, name, process, pid, host, port):
        self.name, self.process, self.pid, self.host, self.port = name, process, pid, host, port

    def processor_seconds(self):
        with open(f"/proc/{self.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def guest_seconds(self):
        """Of these, what a guest's processor has used itself, its exits to the monitor included: its thread's."""
        ticks = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/stat") as stat:
                name, _, rest = stat.read().partition("(")[2].rpartition(")")
            # Kayvee's monitor and QEMU name it so.
            if name == "cpu" or name.startswith("CPU "):
                fields = rest.split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_SECOND

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
    host = Namespaces.REDIS if namespaces else "127.0.0.1"
    process = subprocess.Popen(
        [*inside("redis"), "redis-server", "--port", str(port), "--bind", host, "--protected-mode", "no",
         "--save", "", "--appendonly", "no"],
        stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "Ready to accept connections" in line:
            return Server("redis-server", process, process.pid, host, port)
    sys.exit("redis-server did not start")


def child_of(pid):
    """The process that the CLI runs the store in."""
    while True:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            pids = children.read().split()
        if not pids:
            return pid
        pid = int(pids[0])


def start_kayvee(target, memory_mib, arguments=()):
    port = free_port()
    command = [*inside("client"), os.path.join(ROOT, "kayvee"), "run", "--port", str(port)]
    command += {
        "linux": ["--target", "linux"],
        "xdp": ["--target", "linux", "--net", "xdp"],
        "qemu": ["--target", "kvm", "--vmm", "qemu", "--net", "tap", "--memory", str(memory_mib)],
        "vmm": ["--target", "kvm", "--net", "xdp", "--memory", str(memory_mib)],
    }.get(target, ["--target", target, "--memory", str(memory_mib), "--net", "tap"])
    command += arguments
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
    command = [*inside("client"), "redis-benchmark", "-h", server.host, "-p", str(server.port), "-n", str(requests), "--csv", *arguments]
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
    rates, medians = {}, {}
    for name, rate, median_ms in re.findall(r'^"([^"]*)","([\d.]+)","[\d.]+","[\d.]+","([\d.]+)"', text, re.M):
        rates[name], medians[name] = float(rate), float(median_ms) * 1000
    return rates, server_us, client_us, statistics.median(medians.values())


def fill(server, commands):
    """Empties a store and puts into it what a workload needs."""
    base = [*inside("client"), "redis-benchmark", "-h", server.host, "-p", str(server.port), "-q", "-r", str(10 * LARGE)]
    for command in [["-n", "1", "-c", "1", "FLUSHALL"], *commands]:
        subprocess.run([*base, *command], check=True, stdout=subprocess.DEVNULL)


def report(name, results, redis, kayvee):
    """Prints the medians of a run, and of each of its lines if it has several."""
    rates, costs = {}, {}
    for server, rows in results.items():
        rates[server] = {line: statistics.median(row[0][line] for row in rows) for line in rows[0][0]}
        costs[server] = [statistics.median(row[at] for row in rows) for at in (1, 2, 3)]
    lines = list(rates[redis])
    ratios = [rates[kayvee][line] / rates[redis][line] for line in lines]
    if len(lines) > 1:
        for line, ratio in zip(lines, ratios):
            print(f"{line[:32]:32} {'':14} {rates[kayvee][line]:12,.0f} {ratio:6.2f}")
    for server in (redis, kayvee):
        rate = statistics.median(rates[server].values())
        ratio = 1 if server is redis else statistics.median(ratios)
        server_us, client_us, p50_us = costs[server]
        print(f"{name:32} {server.name:14} {rate:12,.0f} {ratio:6.2f} {server_us:10.2f} "
              f"{server_us / costs[redis][0]:6.2f} {client_us:10.2f} {p50_us:8.0f} {p50_us / costs[redis][2]:6.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="get-set", choices=sorted(WORKLOADS))
    parser.add_argument("--target", default="linux", choices=["linux", "kvm", "qemu", "tcg", "xdp", "vmm"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1_000_000, help="scale of a run; pipelined ones take 3 times that")
    parser.add_argument("--client-threads", type=int, default=1, help="of redis-benchmark")
    parser.add_argument("--keyspace", type=int, default=1, help="how many keys the default set draws its own from")
    parser.add_argument("--memory", type=int, default=128, help="of a guest, in MiB")
    options = parser.parse_args()

    global namespaces
    if options.target in ("xdp", "vmm"):
        namespaces = Namespaces()
    try:
        compare(options)
    finally:
        if namespaces:
            namespaces.remove()


def compare(options):
    redis, kayvee = start_redis(), start_kayvee(options.target, options.memory)
    try:
        redis.pause(), kayvee.pause()
        print(f"{'workload':32} {'':14} {'requests/s':>12} {'ratio':>6} {'server us':>10} {'ratio':>6} {'client us':>10} "
              f"{'p50 us':>8} {'ratio':>6}")
        content, runs = WORKLOADS[options.workloads]
        common = ["--threads", str(options.client_threads)] if options.client_threads > 1 else []
        common += ["-r", str(10 * LARGE)] if content else ["-r", str(options.keyspace)] if options.keyspace > 1 else []
        for server in (redis, kayvee):
            server.resume()
            fill(server, content)
            server.pause()
        for name, arguments, share in runs:
            results = {redis: [], kayvee: []}
            for repetition in range(options.repetitions):
                for server in (redis, kayvee) if repetition % 2 == 0 else (kayvee, redis):
                    server.resume()
                    time.sleep(0.2)  # Let the guest's clock and the scheduler settle after the stop.
                    requests = max(int(options.requests * share), 10)
                    results[server].append(run(server, [*common, *arguments], requests))
                    server.pause()
            report(name, results, redis, kayvee)
    finally:
        redis.stop(), kayvee.stop()


if __name__ == "__main__":
    main()
