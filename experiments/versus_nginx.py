#!/usr/bin/env python3
"""Kayvee's web server beside nginx, in one run.

    experiments/versus_nginx.py [--target linux|vmm|qemu|tcg] [--repetitions 5] [--seconds 5]

Targets: the Linux process; a guest in Kayvee's own monitor, which works the rings of an AF_XDP socket itself; a guest in
QEMU under KVM, or under emulation, behind a tap.

Serves the same directory with both (nginx with one worker, sendfile and open_file_cache), then alternates: each
repetition runs `wrk -t1 -c30` against one of them while the other is stopped (SIGSTOP), and then the other way round.
Prints the medians of requests and bytes a second, their ratio, and the processor time that the server used per request,
for a guest that of the whole monitor, its network included, and of that the part of the guest's processor. At the end: the least memory that a guest serves the site
with, and what the processes have resident.

Needs nginx and wrk, a built `./kayvee`, and for guests the right to make taps.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from versus_redis import Server, child_of, free_port, start_kayvee

PAGES = [("612-byte page", "/index.html", 612), ("100 KiB file", "/large.bin", 100 << 10)]

NGINX = """
daemon off; master_process on; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 100000000; types {{ text/html html; }}
    open_file_cache max=1000 inactive=60s; open_file_cache_valid 60s; open_file_cache_min_uses 1;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen {port} backlog=1024; root {site}; }}
}}
"""


def start_nginx(folder, site):
    port = free_port()
    path = os.path.join(folder, "nginx.conf")
    with open(path, "w") as config:
        config.write(NGINX.format(folder=folder, site=site, port=port))
    process = subprocess.Popen(["nginx", "-e", os.path.join(folder, "error.log"), "-c", path])
    while not answers("127.0.0.1", port):
        if process.poll() is not None:
            sys.exit("nginx did not start")
        time.sleep(0.01)
    return Server("nginx", process, child_of(process.pid), "127.0.0.1", port)


def answers(host, port, path="/index.html"):
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as response:
            return response.read()
    except OSError:
        return None


def start_web(options, site):
    web_port = free_port()
    arguments = ["--site", site, "--http-port", str(web_port)]
    kayvee = start_kayvee(options.target, options.memory, arguments)
    kayvee.port = web_port
    return kayvee


def run(server, path, seconds):
    """One run of wrk: requests and bytes a second, microseconds of processor time a request of the server and the guest."""
    before, guest_before = server.processor_seconds(), server.guest_seconds()
    command = ["wrk", "-t1", "-c30", f"-d{seconds}s", f"http://{server.host}:{server.port}{path}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        sys.exit(f"{server.name}: {text}")
    number, unit = re.search(r"Transfer/sec:\s+([\d.]+)([KMG]?)B", text).groups()
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
    requests = int(re.search(r"(\d+) requests in", text)[1])
    scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
    costs = [server.processor_seconds() - before, server.guest_seconds() - guest_before]
    return rate, float(number) * scale, *(cost * 1e6 / requests for cost in costs)


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024


def least_memory(options, site):
    """The least memory in MiB that a guest serves the site with."""
    for memory in range(4, 65, 2):
        options.memory = memory
        try:
            server = start_web(options, site)
        except SystemExit:
            continue
        body = answers(server.host, server.port)
        used = urllib.request.urlopen(f"http://{server.host}:{server.port}/metrics").read().decode()
        used = int(re.search(r"^kayvee_memory_used_bytes (\d+)", used, re.M)[1])
        server.stop()
        if body:
            return memory, used
    return None, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="linux", choices=["linux", "vmm", "qemu", "tcg"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=128, help="of a guest, in MiB")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        site = os.path.join(folder, "site")
        os.mkdir(site)
        os.chmod(folder, 0o755)
        for _, path, size in PAGES:
            with open(site + path, "wb") as page:
                page.write((b"<p>Hello</p>\n" * (size // 12 + 1))[:size] if size < 1000 else os.urandom(size))
        nginx, kayvee = start_nginx(folder, site), start_web(options, site)
        try:
            for _, path, size in PAGES:
                for server in (nginx, kayvee):
                    if len(answers(server.host, server.port, path) or b"") != size:
                        sys.exit(f"{server.name} does not serve {path}")
            nginx.pause(), kayvee.pause()
            print(f"{'page':16} {'':14} {'requests/s':>12} {'MB/s':>8} {'ratio':>6} {'server us':>10} {'ratio':>6} {'guest us':>9}")
            for name, path, _ in PAGES:
                results = {nginx: [], kayvee: []}
                for repetition in range(options.repetitions):
                    for server in (nginx, kayvee) if repetition % 2 == 0 else (kayvee, nginx):
                        server.resume()
                        time.sleep(0.2)  # Let the guest's clock and the scheduler settle after the stop.
                        results[server].append(run(server, path, options.seconds))
                        server.pause()
                medians = {server: [statistics.median(row[at] for row in rows) for at in range(4)]
                           for server, rows in results.items()}
                for server, (rate, transfer, cost, guest_cost) in medians.items():
                    print(f"{name:16} {server.name:14} {rate:12,.0f} {transfer / 1e6:8,.0f} "
                          f"{rate / medians[nginx][0]:6.2f} {cost:10.2f} {cost / medians[nginx][2]:6.2f} "
                          f"{format(guest_cost, '9.2f') if guest_cost else '':>9}", flush=True)
            print("resident: " + ", ".join(f"{server.name} {resident_mib(server.pid):.1f} MiB" for server in (nginx, kayvee)))
        finally:
            nginx.stop(), kayvee.stop()
        if options.target != "linux":
            memory, used = least_memory(options, site)
            print(f"least memory of a guest that serves it: {memory} MiB, of which {used} bytes are in use")


if __name__ == "__main__":
    main()
