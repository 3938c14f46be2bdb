"""Serves within control groups of little memory, under load: no process may be ended for want of memory.

    small_memory.py TERRACE DIRECTORY SECONDS [MIB...]

For root. Each group (of version 1 or 2, whichever is there) has so many MiB, by default 256, 512 and 2048, and the server
is alone in it; `terrace bench s3` loads it from outside for SECONDS: writes, reads, ranges, listings, uploads in parts and
mixed loads of 4 KiB, 1 MiB and 16 MiB, by 16 and by 256 connections. Looked at are: the server lives, the kernel ended
nothing, no request failed but those that it refused since it had too many, and its memory stayed within the group. Ends with 1 if not.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request

TERRACE, DIRECTORY, SECONDS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), float(sys.argv[3])
LIMITS = [int(text) for text in sys.argv[4:]] or [256, 512, 2048]
# Sizes of objects and how much of each, in MiB.
LOADS = [("4KiB", 64), ("1MiB", 512), ("16MiB", 512)]
CONNECTIONS = ("16", "256")
MIB = 1 << 20
# The programs warn of variables that they do not know, and .ci/long has some; a warning of anything else is looked at.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TERRACE_")}


def left_out(why):
    """Ends without having tested anything, which .ci/long counts."""
    print(f"left out: {why}")
    if "CI_LEFT_OUT" in os.environ:
        with open(os.environ["CI_LEFT_OUT"], "a", encoding="utf-8") as file:
            file.write(f"small_memory.py: {why}\n")
    sys.exit(0)


class Group:
    """A control group that bounds memory."""

    def __init__(self, mib):
        for root, self.limit, self.peak, self.kills in (
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
                ("/sys/fs/cgroup", "memory.max", "memory.peak", "memory.events")):
            self.place = os.path.join(root, f"terrace-small-{os.getpid()}")
            if os.path.exists(os.path.join(root, "cgroup.procs")):
                os.mkdir(self.place)
                if os.path.exists(os.path.join(self.place, self.limit)):
                    break
                os.rmdir(self.place)
        else:
            left_out("no control group of memory can be made here")
        self.write(self.limit, mib * MIB)
        if os.path.exists(os.path.join(self.place, "memory.swap.max")):
            self.write("memory.swap.max", 0)

    def write(self, name, value):
        with open(os.path.join(self.place, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def read(self, name):
        with open(os.path.join(self.place, name), encoding="ascii") as file:
            return file.read()

    def killed(self):
        found = re.search(r"^oom_kill (\d+)", self.read(self.kills), re.M)
        return int(found[1]) if found else 0

    def end(self):
        for _ in range(100):
            try:
                os.rmdir(self.place)
                return
            except OSError:
                time.sleep(0.1)


def figure(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))


class Watch(threading.Thread):
    """Looks at the cache's size and the server's memory every quarter of a second."""

    def __init__(self, page, pid):
        super().__init__(daemon=True)
        self.page, self.pid, self.over = page, pid, False
        self.caches, self.resident = [], []

    def run(self):
        while not self.over:
            try:
                with urllib.request.urlopen(f"http://{self.page}/api/stats", timeout=20) as answer:
                    self.caches.append(json.load(answer)["cache"]["capacity_bytes"])
                self.resident.append(figure(self.pid, "RssAnon"))
            except (OSError, StopIteration):
                pass
            time.sleep(0.25)


def ending(code):
    """How a process ended, by what its parent was told."""
    if code >= 0:
        return f"ended with {code}"
    return f"was ended by signal {-code} ({signal.strsignal(-code)})"


def load(endpoint, key, until, later):
    """Loads the server until it is time; says how many requests were answered, and what was wrong."""
    answered, wrong = 0, []
    environment = ENVIRONMENT | {"AWS_ACCESS_KEY_ID": key["access_key_id"], "AWS_SECRET_ACCESS_KEY": key["secret_access_key"]}
    while not answered or time.monotonic() < until:
        for size, mib in LOADS:
            each = max(0.5, min(5, (until - time.monotonic()) / 12))
            run = subprocess.run(
                [TERRACE, "bench", "s3", "--endpoint", endpoint, "--json", "--sizes", size, "--bytes", f"{mib}MiB",
                 "--connections", ",".join(CONNECTIONS), "--seconds", str(each), "--operations", "put,get,range,list,mixed,multipart"],
                capture_output=True, text=True, env=environment, check=False)
            # Refused in order (code 8) is who is asked to come later, since too much is being collected, and who has
            # more connections than a server of this size gives to one sender. That it lives is looked at below.
            refused = re.findall(r"warning: (\w+): (\d+) requests failed, the first with: "
                                 r"(?:503|the connection ended before the answer)", run.stderr)
            if run.returncode not in (0, 8) or run.stderr.count("warning:") != len(refused):
                return answered, [f"{size}: terrace bench s3 {ending(run.returncode)}; it said: {run.stderr.strip()[-2000:]!r}"]
            for what, count in refused:
                later[what] = later.get(what, 0) + int(count)
            answered += sum(row["count"] for row in json.loads(run.stdout))
            if time.monotonic() > until + 60:
                break
    return answered, wrong


def serve(mib):
    """Serves and loads in a group of so many MiB; returns what was wrong."""
    store = os.path.join(DIRECTORY, "small-memory")
    shutil.rmtree(store, ignore_errors=True)
    made = subprocess.run([TERRACE, "--store", store, "key", "create", "--allow", "*=admin", "--json"],
                          capture_output=True, text=True, env=ENVIRONMENT, check=True)
    key = json.loads(made.stdout)
    group = Group(mib)
    enter = f'echo $$ > "{group.place}/cgroup.procs" && exec "$@"'
    server = subprocess.Popen(
        ["sh", "-c", enter, "sh", TERRACE, "--store", store, "serve", "--listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        page, s3 = (re.match(r"http://([^/]+)/", server.stdout.readline())[1] for _ in range(2))
        watch = Watch(page, server.pid)
        watch.start()
        began = time.monotonic()
        later = {}
        answered, wrong = load(f"http://{s3}", key, began + SECONDS, later)
        watch.over = True
        watch.join()
        took = time.monotonic() - began
        if server.poll() is not None:
            wrong.append(f"the server ended with {server.returncode}")
        if group.killed():
            wrong.append(f"the kernel ended {group.killed()} processes")
        if max(watch.resident, default=0) > mib * MIB:
            wrong.append("its memory passed the limit")
        in_mib = [round(part / MIB) for part in (watch.caches[0], min(watch.caches), watch.caches[-1],
                                                  max(watch.resident), int(group.read(group.peak)))]
        print(f"| {mib} | {took:.0f} | {answered} | {sum(later.values())} | {in_mib[0]} / {in_mib[1]} / {in_mib[2]} | {in_mib[3]} | {in_mib[4]} | "
              f"{group.killed()} |", flush=True)
        server.terminate()
        if server.wait(120) != 0:
            wrong.append(f"it did not end well: {server.returncode}")
        return wrong
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        group.end()
        shutil.rmtree(store, ignore_errors=True)


if os.geteuid() != 0:
    left_out("control groups need root")
print("| MiB | seconds | requests | refused | cache at first / least / at last | most of its own memory | most with cached files | ended |\n"
      "|---|---|---|---|---|---|---|---|", flush=True)
failures = [f"{mib} MiB: {wrong}" for mib in LIMITS for wrong in serve(mib)]
for failure in failures:
    print(f"WRONG: {failure}")
sys.exit(1 if failures else 0)
