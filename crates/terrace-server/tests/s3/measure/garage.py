"""Terrace beside Garage: PUT and GET of 4 KiB, 64 KiB and 10 MiB, synced PUTs, listings.

    garage.py TERRACE FILL_BUCKET GARAGE DIRECTORY RESULTS [4KiB|64KiB|10MiB|synced|list ...]

TERRACE and FILL_BUCKET are the program and the example of that name, both built for release, GARAGE the program that
`cargo install garage --locked --no-default-features --features bundled-libs,lmdb` makes. DIRECTORY is where stores and files go, on the drive to be
measured; what is made there is removed. RESULTS gets a line of JSON for each figure. Needs boto3, wrk.

MEASURE_ROUNDS    how often each is measured, in turn, each time with new stores (default: 3)
MEASURE_LISTED    keys of the bucket that is listed    (default: 1000000)
MEASURE_SECONDS   time of each run of wrk              (default: 5)
MEASURE_MACHINE   what is to be said of the machine with each figure

Both get the same requests, signed, by the same client, on the same drive. A figure is the median of all rounds. Terrace is measured as it is by
itself, when a PUT is on the drive before its answer, and "buffered", when it is not. "garage" is as that is by itself: nothing is synced; "garage
synced" with `metadata_fsync` and `data_fsync`. Its other settings: servers.py.
"""

import concurrent.futures
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time

from load import KIB, MIB, Run, wrk
from servers import Garage, Terrace

TERRACE, FILL, GARAGE, DIRECTORY, RESULTS = map(os.path.abspath, sys.argv[1:6])
PARTS = sys.argv[6:] or ["4KiB", "64KiB", "10MiB", "synced", "list"]
ROUNDS = int(os.environ.get("MEASURE_ROUNDS", 3))
LISTED = int(os.environ.get("MEASURE_LISTED", 1_000_000))
LISTED_BYTES = 100
RUN = Run(DIRECTORY, RESULTS)

SERVERS = {
    "terrace": lambda store: Terrace(TERRACE, store),
    "terrace buffered": lambda store: Terrace(TERRACE, store, durability="buffered"),
    "garage": lambda store: Garage(GARAGE, store),
    "garage synced": lambda store: Garage(GARAGE, store, synced=True),
}


def in_turn(names):
    """Each of them once a round, there and back, so that what drifts hits all alike."""
    for turn in range(ROUNDS):
        yield from reversed(names) if turn % 2 else names


def summary(figures, base):
    """Of the figures of one server in all rounds; `base` are those of Garage."""
    median = statistics.median(figures)
    return {"median": round(median, 2), "least": round(min(figures), 2), "most": round(max(figures), 2),
            "of_garage": round(median / statistics.median(base), 2)}


def transfers(names, size, put_keys, get_keys, connections):
    """PUTs of objects of one size, and GETs of some that are there, by each server in turn. The last of them is Garage."""
    found = {}
    for name in in_turn(names):
        work = RUN.place("garage")
        with SERVERS[name](os.path.join(work, "store")) as server:
            server.s3.create_bucket(Bucket="objects")
            for what, paths in requests(server, size, put_keys, get_keys):
                paths = RUN.lines("garage/paths", paths)
                for count in connections:
                    run = wrk(server.url, paths, count, *(("PUT", size) if what == "put" else ()), process=server.process)
                    assert run["requests"] and not run["errors"], (name, run)
                    found.setdefault((what, count), {name: [] for name in names})[name].append(run)
            listed = server.s3.list_objects_v2(Bucket="objects", Prefix="new-", MaxKeys=10)["Contents"]
            assert all(entry["Size"] == size for entry in listed), listed
        shutil.rmtree(work)
    for (what, count), runs in found.items():
        rates = {name: [run["per_second"] for run in runs[name]] for name in names}
        for name in names:
            RUN.note(what, server=name, object_bytes=size, connections=count, unit="per second", **summary(rates[name], rates[names[-1]]),
                     runs=runs[name])


def requests(server, size, put_keys, get_keys):
    """What is measured, and the paths of it. What is got is put before, and looked at."""
    yield "put", server.presigned("PUT", "objects", [f"new-{number}" for number in range(put_keys)])
    chance = random.Random(5)
    there = [f"there-{number}" for number in range(get_keys)]
    for key in there:
        body = chance.randbytes(size)
        server.s3.put_object(Bucket="objects", Key=key, Body=body)
        assert server.s3.get_object(Bucket="objects", Key=key)["Body"].read() == body
    if there:
        yield "get", server.presigned("GET", "objects", there)


def fill(server, bucket):
    """Puts over 64 connections what the example puts into the store of Terrace."""
    keys = [f"obj-{number:08}" for number in range(LISTED)]
    paths = zip(keys, server.presigned("PUT", bucket, keys))
    turn = threading.Lock()

    def put():
        connection = server.connect()
        while True:
            with turn:
                key, path = next(paths, (None, None))
            if key is None:
                return connection.close()
            connection.request("PUT", path, body=(key * LISTED_BYTES)[:LISTED_BYTES].encode())
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, (answer.status, said[:300])

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for ended in [pool.submit(put) for _ in range(64)]:
            ended.result()


def listings():
    """All keys of a bucket, page by page."""
    work = RUN.place("garage")
    store = os.path.join(work, "terrace")
    with SERVERS["terrace"](store) as new:
        new.s3.create_bucket(Bucket="listed")
    subprocess.run([FILL, store, "listed", str(LISTED), str(LISTED_BYTES)], check=True, capture_output=True)
    with Terrace(TERRACE, store, key=new.key) as terrace, SERVERS["garage"](os.path.join(work, "garage")) as garage:
        garage.s3.create_bucket(Bucket="listed")
        started = time.monotonic()
        fill(garage, "listed")
        RUN.note("fill", server="garage", objects=LISTED, object_bytes=LISTED_BYTES, connections=64, seconds=round(time.monotonic() - started, 1))
        found = {"terrace": [], "garage": []}
        for name in in_turn(list(found)):
            server = terrace if name == "terrace" else garage
            found[name].append(LISTED / server.list("listed", LISTED))
    for name, rates in found.items():
        RUN.note("list", server=name, keys=LISTED, page=1000, unit="keys per second", **summary(rates, found["garage"]),
                 seconds=[round(LISTED / rate, 2) for rate in rates])
    shutil.rmtree(work)


# The GETs of the first two are the same, and show how far apart such runs are.
UNSYNCED = ["terrace", "terrace buffered", "garage"]
MEASURES = {
    "4KiB": lambda: transfers(UNSYNCED, 4 * KIB, 20_000, 200, (1, 64)),
    "64KiB": lambda: transfers(UNSYNCED, 64 * KIB, 5_000, 200, (1, 64)),
    # 64 at a time would be 640 MiB on their way, and hardly any would end within a run.
    "10MiB": lambda: transfers(UNSYNCED, 10 * MIB, 64, 16, (1, 8)),
    "synced": lambda: transfers(["terrace", "garage synced"], 4 * KIB, 20_000, 0, (1, 64)),
    "list": listings,
}
for part in PARTS:
    MEASURES[part]()
