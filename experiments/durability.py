#!/usr/bin/env python3
"""What durability costs: Kayvee's persistent log beside redis-server's append-only file, on the same file system.

    experiments/durability.py [--parts set,restart,compaction,pauses] [--target linux|kvm|vmm|qemu|xdp] [--directory DIR]
                              [--repetitions 5] [--requests 200000] [--keys 5000000] [--elements 10000000]

set         SET under `appendfsync always` (50 clients, 50 clients with a pipeline of 16, one client) and under `everysec`,
            alternating, the side that is not measured stopped
restart     time from start to the first reply about the data, with --keys small keys in a log that was compacted
compaction  the most memory that a server and its children have while it compacts --keys keys under write load
pauses      the longest that a second client waits for a reply: while --keys keys are saved to a dump file without a log, by
            SAVE and by BGSAVE, and while the log is compacted with one sorted set, hash or list of --elements elements;
            beside it the longest of as much time in which nothing else is done

Needs redis-server and redis-benchmark, a built `./kayvee`, and for guests the right to make taps.
"""

import argparse
import multiprocessing
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from versus_redis import Server, free_port, start_kayvee

DISK_GIB = 4
START_LIMIT_S = 120
# name, appendfsync, redis-benchmark arguments, share of --requests
RUNS = [
    ("always, 50 clients", "always", ["-c", "50"], 1),
    ("always, 50 clients, pipeline 16", "always", ["-c", "50", "-P", "16"], 5),
    ("always, 1 client", "always", ["-c", "1"], 0.05),
    ("everysec, 50 clients, pipeline 16", "everysec", ["-c", "50", "-P", "16"], 10),
]


class Connection:
    """One client that speaks RESP, for what is not measured by redis-benchmark."""

    def __init__(self, server):
        self.socket = socket.create_connection((server.host, server.port), timeout=600)
        self.file = self.socket.makefile("rb")

    def ask(self, *words):
        words = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        if line[:1] == b"-":
            raise RuntimeError(line[1:].decode().strip())
        if line[:1] == b"$":
            return self.file.read(int(line[1:]) + 2)[:-2].decode()
        return line[1:].decode().strip()

    def info(self, section, field):
        return re.search(rf"^{field}:(.*?)\r?$", self.ask("INFO", section), re.M)[1]


class Redis:
    name = "redis-server"

    def __init__(self, directory, preamble):
        self.directory, self.preamble = os.path.join(directory, "redis"), preamble
        os.makedirs(self.directory, exist_ok=True)

    def start(self):
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
                   "--dir", self.directory, "--aof-use-rdb-preamble", self.preamble, "--enable-debug-command", "yes",
                   "--loglevel", "warning"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        return Server(self.name, process, process.pid, "127.0.0.1", port)


class Kayvee:
    def __init__(self, directory, target, memory_mib):
        self.name = f"kayvee {target}"
        self.target, self.memory_mib = target, memory_mib
        self.disk = os.path.join(directory, f"{target}.disk")

    def start(self):
        disk = f"{self.disk}:{DISK_GIB}G"
        return start_kayvee(self.target, self.memory_mib, ["--disk", disk, "--", "--enable-debug-command", "yes"])


class KayveeWithoutDisk(Kayvee):
    def start(self):
        options = ["--dir", os.path.dirname(self.disk), "--save", "", "--enable-debug-command", "yes"]
        return start_kayvee(self.target, self.memory_mib, ["--", *options])


def wait_until_loaded(server):
    """Returns once the server answers a question about its data."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        try:
            return int(Connection(server).ask("DBSIZE"))
        except (OSError, RuntimeError):
            time.sleep(0.005)
    sys.exit(f"{server.name} did not load its data within {START_LIMIT_S} s")


def benchmark(server, arguments, requests):
    """Requests a second, median latency in microseconds, and microseconds of the server's and the client's processor time a
    request."""
    command = ["redis-benchmark", "-h", server.host, "-p", str(server.port), "-n", str(requests), "-t", "set", "--csv",
               "-r", "1000000", *arguments]
    before = [server.processor_seconds(), client_seconds()]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    costs_us = [(now - then) * 1e6 / requests for now, then in zip((server.processor_seconds(), client_seconds()), before)]
    fields = [float(field) for field in re.search(r'^"SET",(.*)$', output, re.M)[1].replace('"', "").split(",")]
    return fields[0], fields[3] * 1000, *costs_us


def client_seconds():
    """Processor time of the clients that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure_set(sides, options):
    servers = [side.start() for side in sides]
    try:
        for server in servers:
            wait_until_loaded(server)
        print(f"{'workload':34} {'':14} {'requests/s':>12} {'ratio':>6} {'p50 us':>8} {'ratio':>6} {'server us':>10} {'ratio':>6} "
              f"{'client us':>10}")
        for name, policy, arguments, share in RUNS:
            for server in servers:
                Connection(server).ask("CONFIG", "SET", "appendfsync", policy)
                server.pause()
            results = {server: [] for server in servers}
            for repetition in range(options.repetitions):
                for server in servers if repetition % 2 == 0 else reversed(servers):
                    server.resume()
                    results[server].append(benchmark(server, arguments, max(int(options.requests * share), 100)))
                    server.pause()
            medians = {server: [statistics.median(column) for column in zip(*rows)] for server, rows in results.items()}
            for server in servers:
                server.resume()
                ratios = [own / redis for own, redis in zip(medians[server], medians[servers[0]])]
                rate, p50_us, cost_us, client_us = medians[server]
                print(f"{name:34} {server.name:14} {rate:12,.0f} {ratios[0]:6.2f} {p50_us:8.0f} {ratios[1]:6.2f} "
                      f"{cost_us:10.2f} {ratios[2]:6.2f} {client_us:10.2f}", flush=True)
    finally:
        for server in servers:
            server.stop()


def fill_and_compact(server, keys):
    connection = Connection(server)
    connection.ask("FLUSHALL")
    connection.ask("DEBUG", "POPULATE", keys, "key:with16", 16)
    compact(connection)


def wait_for_compaction(connection):
    while connection.info("persistence", "aof_rewrite_in_progress") != "0":
        time.sleep(0.02)


def wait_for_requests(connection, count):
    """Returns when so many requests have come, so that the load is there and has been for a while."""
    before = int(connection.info("stats", "total_commands_processed"))
    while int(connection.info("stats", "total_commands_processed")) < before + count:
        time.sleep(0.02)


def compact(connection):
    wait_for_compaction(connection)  # One may have begun by itself.
    connection.ask("BGREWRITEAOF")
    wait_for_compaction(connection)


def measure_restart(sides, options):
    print(f"{'restart with ' + format(options.keys, ',') + ' keys':34} {'':30} {'seconds':>8}")
    for side in sides:
        server = side.start()
        wait_until_loaded(server)
        fill_and_compact(server, options.keys)
        server.stop()
        seconds = []
        for _ in range(options.repetitions):
            begin = time.monotonic()
            server = side.start()
            found = wait_until_loaded(server)
            seconds.append(time.monotonic() - begin)
            server.stop()
            if found != options.keys:
                sys.exit(f"{side.name} has {found:,} keys of {options.keys:,}")
        what = f"{side.name}, preamble {side.preamble}" if isinstance(side, Redis) else side.name
        print(f"{'':34} {what:30} {statistics.median(seconds):8.2f}", flush=True)


def memory_mib(pid):
    """Proportional set size of a process and its children."""
    total = 0
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        pids = [pid, *children.read().split()]
    for one in pids:
        try:
            with open(f"/proc/{one}/smaps_rollup") as rollup:
                total += int(re.search(r"^Pss:\s+(\d+)", rollup.read(), re.M)[1])
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended.
    return total / 1024


def measure_compaction(sides, options):
    print(f"{'compacting ' + format(options.keys, ',') + ' keys under load':34} {'':14} {'steady MiB':>12} {'peak MiB':>10} {'ratio':>6}")
    for side in sides:
        server = side.start()
        wait_until_loaded(server)
        fill_and_compact(server, options.keys)
        connection = Connection(server)
        load = subprocess.Popen(
            ["redis-benchmark", "-h", server.host, "-p", str(server.port), "-n", "100000000", "-c", "20", "-P", "4", "-q",
             "-d", "16", "-r", str(options.keys), "SET", "key:with16:__rand_int__", "0123456789abcdef"],
            stdout=subprocess.DEVNULL)
        try:
            wait_for_requests(connection, options.keys // 10)
            wait_for_compaction(connection)
            steady = memory_mib(server.pid)
            peak = steady
            connection.ask("BGREWRITEAOF")
            while connection.info("persistence", "aof_rewrite_in_progress") != "0":
                peak = max(peak, memory_mib(server.pid))
                time.sleep(0.02)
        finally:
            load.terminate()
            load.wait()
            server.stop()
        print(f"{'':34} {side.name:14} {steady:12,.0f} {peak:10,.0f} {peak / steady:6.2f}", flush=True)


def ask_until(server, requests, stopped, longest_ms):
    """Asks again and again, as a process of its own, and tells the longest that a reply took."""
    connection = Connection(server)
    while not stopped.is_set():
        for words in requests:
            begin = time.perf_counter()
            connection.ask(*words)
            longest_ms.value = max(longest_ms.value, (time.perf_counter() - begin) * 1000)


def longest_wait_ms(server, requests, work):
    """The longest wait of a client while something is done, and how long that took in seconds."""
    stopped, longest_ms = multiprocessing.Event(), multiprocessing.Value("d", 0.0)
    asker = multiprocessing.Process(target=ask_until, args=(server, requests, stopped, longest_ms))
    asker.start()
    try:
        while longest_ms.value == 0:
            time.sleep(0.01)
        longest_ms.value = 0.0
        begin = time.monotonic()
        work()
        took_s = time.monotonic() - begin
    finally:
        stopped.set()
        asker.join()
    return longest_ms.value, took_s


def save_in_background(connection):
    connection.ask("BGSAVE")
    while connection.info("persistence", "rdb_bgsave_in_progress") != "0":
        time.sleep(0.02)


# command, the words of an element
COLLECTIONS = {
    "sorted set": ("ZADD", lambda number: (number, f"member:{number}")),
    "hash": ("HSET", lambda number: (f"field:{number}", number)),
    "list": ("RPUSH", lambda number: (f"element:{number}",)),
}
FILL_AT_ONCE = 1000


def fill_collection(connection, command, element, count):
    for first in range(0, count, FILL_AT_ONCE):
        connection.ask(command, "large", *(word for number in range(first, first + FILL_AT_ONCE) for word in element(number)))


def measure_pauses(sides, options):
    print(f"{'longest wait of a second client':34} {'':14} {'took s':>8} {'ms':>8} {'idle ms':>8}")

    def measure(what, server, requests, work):
        wait_ms, took_s = longest_wait_ms(server, requests, work)
        idle_ms, _ = longest_wait_ms(server, requests, lambda: time.sleep(took_s))
        print(f"{what:34} {server.name:14} {took_s:8.2f} {wait_ms:8.1f} {idle_ms:8.1f}", flush=True)

    redis, kayvee = sides
    for side in [redis, KayveeWithoutDisk(os.path.dirname(kayvee.disk), kayvee.target, kayvee.memory_mib)]:
        server = side.start()
        wait_until_loaded(server)
        connection = Connection(server)
        if side is redis:
            connection.ask("CONFIG", "SET", "appendonly", "no")
        connection.ask("DEBUG", "POPULATE", options.keys, "key:with16", 16)
        requests = [("SET", "key:with16:7", "changed"), ("GET", "key:with16:8"), ("SET", "new", "value")]
        measure(f"SAVE of {options.keys:,} keys", server, requests, lambda: connection.ask("SAVE"))
        measure(f"BGSAVE of {options.keys:,} keys", server, requests, lambda: save_in_background(connection))
        server.stop()
    servers = [side.start() for side in sides]
    for kind, (command, element) in COLLECTIONS.items():
        for server in servers:
            wait_until_loaded(server)
            connection = Connection(server)
            fill_collection(connection, command, element, options.elements)
            requests = [(command, "large", *element(options.elements // 2)), ("SET", "new", "value"), ("GET", "new")]
            wait_for_compaction(connection)
            measure(f"compacting a {kind} of {options.elements:,}", server, requests, lambda: compact(connection))
            connection.ask("FLUSHALL")
    for server in servers:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="set,restart,compaction")
    parser.add_argument("--target", default="linux", choices=["linux", "kvm", "vmm", "qemu", "xdp"])
    parser.add_argument("--directory", help="where the files of both lie; a temporary one if not given")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--memory", type=int, default=2048, help="of a guest, in MiB")
    options = parser.parse_args()

    parts = {"set": measure_set, "restart": measure_restart, "compaction": measure_compaction, "pauses": measure_pauses}
    for part in options.parts.split(","):
        if part not in parts:
            sys.exit(f"no part is called {part}: {', '.join(parts)}")
        directory = tempfile.mkdtemp(prefix="durability-", dir=options.directory)
        try:
            kayvee = Kayvee(directory, options.target, options.memory)
            sides = [Redis(directory, "yes"), kayvee]
            if part == "restart":
                sides.insert(1, Redis(os.path.join(directory, "plain"), "no"))
            parts[part](sides, options)
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
