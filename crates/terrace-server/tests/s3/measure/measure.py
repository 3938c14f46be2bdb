"""What the S3 service does: memory, throughput beside nginx, synced PUTs, a bucket of ten million objects.

    measure.py TERRACE FILL_BUCKET DIRECTORY RESULTS [memory|nginx|puts|many ...]

TERRACE and FILL_BUCKET are the program and the example of that name, both built for release. DIRECTORY is where stores and files go;
what is made there is removed. RESULTS gets a line of JSON for each figure. Needs boto3, wrk, curl, nginx.

TERRACE_MANY      objects of the large bucket     (default: 10000000)
MEASURE_UPLOADS   of 200 transfers at a time, how many are uploads (default: 100)
MEASURE_TRANSFER  MiB of each of them, of disk for each upload (default: 100)
MEASURE_SECONDS   time of each run of wrk          (default: 5)
MEASURE_MACHINE   what is to be said of the machine with each figure

Client and server share the machine, so figures are of both together; what compares servers is the ratio within one run.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import time

from load import KIB, MIB, Run, wrk
from servers import Terrace

TERRACE, FILL, DIRECTORY, RESULTS = map(os.path.abspath, sys.argv[1:5])
PARTS = sys.argv[5:] or ["memory", "nginx", "puts", "many"]
MANY = int(os.environ.get("TERRACE_MANY", 10_000_000))
LISTED = 1_000_000
UPLOADS = int(os.environ.get("MEASURE_UPLOADS", 100))
TRANSFER = int(os.environ.get("MEASURE_TRANSFER", 100)) << 20
RUN = Run(DIRECTORY, RESULTS)
POLICY = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
    "Resource": "arn:aws:s3:::%s/*"}]}"""


def memory():
    """200 uploads and downloads at a time."""
    caches = 64 * MIB
    work = RUN.place("memory")
    server = Terrace(TERRACE, os.path.join(work, "store"), cache=caches, staging=caches)
    server.s3.create_bucket(Bucket="memory")
    file = os.path.join(work, "file")
    with open(file, "wb") as out:
        out.write(random.Random(1).randbytes(TRANSFER))
    sources = [f"source-{number}" for number in range(5)]
    for key in sources:
        server.s3.upload_file(file, "memory", key)
    before = server.memory("VmRSS")
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as peak:
        peak.write("5")
    uploads = list(server.presigned("PUT", "memory", [f"up-{number}" for number in range(UPLOADS)]))
    downloads = list(server.presigned("GET", "memory", [sources[number % 5] for number in range(200 - UPLOADS)]))
    config = [f'url = "{server.url}{path}"\nupload-file = "{file}"\noutput = "/dev/null"' for path in uploads]
    config += [f'url = "{server.url}{path}"\noutput = "/dev/null"' for path in downloads]
    random.Random(2).shuffle(config)
    config = RUN.lines("memory/transfers", ["\nnext\n".join(f"fail\nsilent\nshow-error\n{entry}" for entry in config)])
    started = time.monotonic()
    subprocess.run(["curl", "--no-progress-meter", "--parallel", "--parallel-immediate", "--parallel-max", "200", "--config", config], check=True)
    seconds = time.monotonic() - started
    peak = server.memory("VmHWM")
    RUN.note("memory", transfers=200, uploads=UPLOADS, transfer_bytes=TRANSFER, seconds=round(seconds, 1), before_bytes=before, peak_bytes=peak,
             value_caches_bytes=2 * caches, index_cache_bytes=64 * MIB)
    server.stop()
    shutil.rmtree(work)


NGINX = """
worker_processes 2;
pid %(work)s/nginx.pid;
error_log %(work)s/error.log;
events { worker_connections 512; }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000000;
    client_body_temp_path %(work)s/t1;
    proxy_temp_path %(work)s/t2;
    fastcgi_temp_path %(work)s/t3;
    uwsgi_temp_path %(work)s/t4;
    scgi_temp_path %(work)s/t5;
    server { listen 127.0.0.1:%(port)d; root %(work)s/files; }
    # From the device each time, as Terrace reads its large tier.
    server { listen 127.0.0.1:%(direct_port)d; root %(work)s/files; directio 512k; aio threads; output_buffers 2 256k; }
}
"""


def nginx():
    """GETs of the same files."""
    work = RUN.place("nginx")
    port = 20_000 + os.getpid() % 10_000
    server = Terrace(TERRACE, os.path.join(work, "store"))
    server.s3.create_bucket(Bucket="files")
    server.s3.put_bucket_policy(Bucket="files", Policy=POLICY % "files")
    chance = random.Random(3)
    sizes = {8 * KIB: 200, 128 * KIB: 200, 2 * MIB: 50}
    for size, count in sizes.items():
        os.makedirs(f"{work}/files/files/{size}")
        for number in range(count):
            body = chance.randbytes(size)
            with open(f"{work}/files/files/{size}/{number}", "wb") as out:
                out.write(body)
            server.s3.put_object(Bucket="files", Key=f"{size}/{number}", Body=body)
    configuration = RUN.lines("nginx/nginx.conf", [NGINX % {"work": work, "port": port, "direct_port": port + 1}])
    other = subprocess.Popen(["nginx", "-p", work, "-c", configuration, "-g", "daemon off;"])
    time.sleep(1)
    try:
        for size, count in sizes.items():
            keys = [f"{size}/{number}" for number in range(count)]
            anonymous = RUN.lines("nginx/anonymous", [f"/files/{key}" for key in keys])
            signed = RUN.lines("nginx/signed", server.presigned("GET", "files", keys))
            for connections in (1, 64):
                runs = [("nginx", f"http://127.0.0.1:{port}", anonymous), ("terrace", server.url, anonymous),
                        ("terrace signed", server.url, signed)]
                if size > 512 * KIB:
                    runs.append(("nginx directio", f"http://127.0.0.1:{port + 1}", anonymous))
                # There and back, so that what drifts hits all alike.
                figures = {}
                for name, url, paths in runs + runs[::-1]:
                    figures.setdefault(name, []).append(wrk(url, paths, connections))
                base = statistics.mean(run["per_second"] for run in figures["nginx"])
                for name, found in figures.items():
                    rate = statistics.mean(run["per_second"] for run in found)
                    RUN.note("get", server=name, object_bytes=size, connections=connections, per_second=round(rate, 1),
                             of_nginx=round(rate / base, 3), runs=found)
    finally:
        other.terminate()
        other.wait()
        server.stop()
    shutil.rmtree(work)


def puts():
    """PUTs of 4 KiB, each durable before its answer."""
    work = RUN.place("puts")
    server = Terrace(TERRACE, os.path.join(work, "store"))
    server.s3.create_bucket(Bucket="puts")
    paths = RUN.lines("puts/paths", server.presigned("PUT", "puts", [f"k{number}" for number in range(20_000)]))
    for connections in (1, 64):
        RUN.note("put", object_bytes=4 * KIB, connections=connections, durability="sync",
                 **wrk(server.url, paths, connections, "PUT", 4 * KIB))
    server.stop()
    shutil.rmtree(work)


def page_ms(server, bucket, after):
    """Time of a page of 1000 keys over a connection of its own."""
    connection = server.connect()
    seconds, keys, _ = server.page(connection, bucket, **{"start-after": after})
    connection.close()
    assert keys == 1000, keys
    return seconds * 1000


def many():
    """The same with few objects and with very many."""
    rates = {}
    for objects in (10_000, MANY):
        work = RUN.place("many")
        store = os.path.join(work, "store")
        server = Terrace(TERRACE, store)
        key = server.key
        server.s3.create_bucket(Bucket="many")
        server.stop()
        filled = subprocess.run([FILL, store, "many", str(objects), "100"], check=True, capture_output=True, text=True)
        server = Terrace(TERRACE, store, key=key)
        chance = random.Random(4)
        names = [f"obj-{chance.randrange(objects):08}" for _ in range(10_000)]
        pages = sorted(page_ms(server, "many", f"obj-{chance.randrange(objects - 1001):08}") for _ in range(200))
        gets = wrk(server.url, RUN.lines("many/gets", server.presigned("GET", "many", names)), 64)
        new = [f"obj-{chance.randrange(objects):08}x" for _ in range(10_000)]
        written = wrk(server.url, RUN.lines("many/puts", server.presigned("PUT", "many", new)), 64, "PUT", 100)
        rates[objects] = (gets["per_second"], written["per_second"])
        RUN.note("many", objects=objects, fill=filled.stdout.strip(), opened_seconds=round(server.opened_seconds, 2),
                 page_ms_p50=round(pages[100], 1), page_ms_p99=round(pages[198], 1), get=gets, put=written,
                 rss_bytes=server.memory("VmRSS"))
        if objects > LISTED:
            RUN.note("list", keys=LISTED, of_objects=objects, seconds=round(server.list("many", LISTED), 2))
        server.stop()
        shutil.rmtree(work)
    ratios = [after / before for before, after in zip(rates[10_000], rates[MANY])]
    RUN.note("many ratio", objects=MANY, get=round(ratios[0], 3), put=round(ratios[1], 3))


for part in PARTS:
    {"memory": memory, "nginx": nginx, "puts": puts, "many": many}[part]()
