"""Listings of a bucket of which six keys of ten were deleted: right after it, and a minute later.

    deleted.py TERRACE FILL_BUCKET DIRECTORY RESULTS

TERRACE and FILL_BUCKET are the program and the example of that name, both built for release. DIRECTORY is where the store goes, on the drive to be
measured; what is made there is removed. RESULTS gets a line of JSON for each figure. Needs boto3.

MEASURE_LISTED    keys of the bucket                                                (default: 1000000)
MEASURE_WAIT      seconds between the last deletion and the later listings          (default: 60)
MEASURE_DELETED   "first": the first keys, one after the other; "scattered": of each ten keys six (default: first)
MEASURE_MACHINE   what is to be said of the machine with each figure

Keys are deleted by DeleteObjects, a thousand each, over four connections. Nothing is asked of the server between the listings right after it and
those later.
"""

import concurrent.futures
import os
import shutil
import statistics
import subprocess
import sys
import time

from load import Run
from servers import Terrace

TERRACE, FILL, DIRECTORY, RESULTS = map(os.path.abspath, sys.argv[1:5])
LISTED = int(os.environ.get("MEASURE_LISTED", 1_000_000))
WAIT = float(os.environ.get("MEASURE_WAIT", 60))
WHICH = os.environ.get("MEASURE_DELETED", "first")
DELETED = LISTED * 6 // 10
EACH = 1000
PAGES = 20
RUN = Run(DIRECTORY, RESULTS)


def key(number):
    return f"obj-{number:08}"


def deleted(place):
    """The key that is deleted as the `place`th."""
    return key(place if WHICH == "first" else place // 6 * 10 + place % 6)


def delete(server):
    def some(first):
        names = [{"Key": deleted(place)} for place in range(first, min(first + EACH, DELETED))]
        said = server.s3.delete_objects(Bucket="listed", Delete={"Objects": names, "Quiet": True})
        assert not said.get("Errors"), said["Errors"][:3]

    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(some, first) for first in range(0, DELETED, EACH)]:
            ended.result()
    RUN.note("delete", keys=DELETED, which=WHICH, seconds=round(time.monotonic() - started, 1))


def pages(server, when):
    """The first page of the whole bucket, over and over; pages behind keys all over the bucket; and a page of a prefix of which all are deleted."""
    connection = server.connect()
    asked = {
        "first page": [{}] * PAGES,
        "pages in between": [{"start-after": key(LISTED * place // PAGES)} for place in range(PAGES)],
        "deleted prefix": [{"prefix": key(DELETED // 2)[:9]}] * PAGES,
    }
    for page, queries in asked.items():
        found = [server.page(connection, "listed", **query) for query in queries]
        times = [seconds * 1000 for seconds, _, _ in found]
        RUN.note("list", when=when, page=page, unit="ms", first=round(times[0], 2), median=round(statistics.median(times), 2),
                 most=round(max(times), 2), keys=statistics.median(keys for _, keys, _ in found))
    connection.close()


work = RUN.place("deleted")
store = os.path.join(work, "store")
with Terrace(TERRACE, store) as new:
    new.s3.create_bucket(Bucket="listed")
subprocess.run([FILL, store, "listed", str(LISTED), "100"], check=True, capture_output=True)
with Terrace(TERRACE, store, key=new.key) as terrace:
    pages(terrace, "before")
    delete(terrace)
    pages(terrace, "right after")
    time.sleep(WAIT)
    pages(terrace, f"{WAIT:.0f} s later")
    left = terrace.list("listed", LISTED - DELETED)
    RUN.note("list all", keys=LISTED - DELETED, seconds=round(left, 2))
shutil.rmtree(work)
