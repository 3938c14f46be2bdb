"""What the S3 service does: memory, throughput beside nginx, synced PUTs, a bucket of ten million objects.

    measure.py TERRACE FILL_BUCKET DIRECTORY RESULTS [memory|nginx|puts|many ...]

TERRACE and FILL_BUCKET are the program and the example of that name, both built for release. DIRECTORY is where stores and files go;
what is made there is removed. RESULTS gets a line of JSON for each figure. Needs boto3, wrk, curl, nginx.

TERRACE_MANY      objects of the large bucket     (default: 10000000)
MEASURE_UPLOADS   of 200 transfers at a time, how many are uploads (default: 100)
MEASURE_TRANSFER  MiB of each of them, of disk for each upload (default: 100)
MEASURE_SECONDS   time of each run of wrk          (default: 5)

Client and server share the machine, so figures are of both together; what compares servers is the ratio within one run.
"""

import http.client
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.parse

import boto3
from botocore.config import Config

TERRACE, FILL, DIRECTORY, RESULTS = map(os.path.abspath, sys.argv[1:5])
PARTS = sys.argv[5:] or ["memory", "nginx", "puts", "many"]
MANY = int(os.environ.get("TERRACE_MANY", 10_000_000))
LISTED = 1_000_000
SECONDS = int(os.environ.get("MEASURE_SECONDS", 5))
UPLOADS = int(os.environ.get("MEASURE_UPLOADS", 100))
TRANSFER = int(os.environ.get("MEASURE_TRANSFER", 100)) << 20
HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1 << 10, 1 << 20
POLICY = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
    "Resource": "arn:aws:s3:::%s/*"}]}"""


def note(what, **figures):
    line = json.dumps({"what": what, **figures})
    print(line, flush=True)
    with open(RESULTS, "a") as results:
        results.write(line + "\n")


class Server:
    """The program over a store."""

    def __init__(self, store, key=None, **settings):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TERRACE_")}
        environment.update({"TERRACE_" + name.upper(): str(value) for name, value in settings.items()})
        self.store = store
        if key is None:
            made = subprocess.run([TERRACE, "key", "create", "--store", store, "--allow", "*=admin", "--json"], check=True,
                                  capture_output=True, text=True, env=environment)
            key = json.loads(made.stdout)
        self.key = key
        started = time.monotonic()
        arguments = [TERRACE, "serve", "--store", store, "--listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        self.page = self.process.stdout.readline().strip()
        self.url = self.process.stdout.readline().split("/ (S3)")[0]
        self.opened_seconds = time.monotonic() - started
        config = Config(s3={"addressing_style": "path"}, signature_version="s3v4", retries={"max_attempts": 1})
        self.s3 = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=self.key["access_key_id"],
                               aws_secret_access_key=self.key["secret_access_key"], region_name="us-east-1", config=config)

    def presigned(self, operation, bucket, keys):
        """Paths with queries that are signatures."""
        for key in keys:
            url = self.s3.generate_presigned_url(operation, Params={"Bucket": bucket, "Key": key}, ExpiresIn=86_400)
            parts = urllib.parse.urlsplit(url)
            yield f"{parts.path}?{parts.query}"

    def memory(self, name):
        """A line of what the kernel knows of the process, in bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * KIB for line in status if line.startswith(name + ":"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def place(name):
    path = os.path.join(DIRECTORY, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def lines(name, texts):
    path = os.path.join(DIRECTORY, name)
    with open(path, "w") as out:
        out.writelines(text + "\n" for text in texts)
    return path


def wrk(url, paths, connections, *more):
    """A run over the paths, after a short one that fills caches."""
    for seconds in (1, SECONDS):
        command = ["wrk", f"-t{min(2, connections)}", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s",
                   os.path.join(HERE, "load.lua"), url, "--", paths, *map(str, more)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(ran.stdout.strip().splitlines()[-1])


def memory():
    """200 uploads and downloads at a time."""
    caches = 64 * MIB
    work = place("memory")
    server = Server(os.path.join(work, "store"), cache=caches, staging=caches)
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
    uploads = list(server.presigned("put_object", "memory", [f"up-{number}" for number in range(UPLOADS)]))
    downloads = list(server.presigned("get_object", "memory", [sources[number % 5] for number in range(200 - UPLOADS)]))
    config = [f'url = "{server.url}{path}"\nupload-file = "{file}"\noutput = "/dev/null"' for path in uploads]
    config += [f'url = "{server.url}{path}"\noutput = "/dev/null"' for path in downloads]
    random.Random(2).shuffle(config)
    config = lines("memory/transfers", ["\nnext\n".join(f"fail\nsilent\nshow-error\n{entry}" for entry in config)])
    started = time.monotonic()
    subprocess.run(["curl", "--no-progress-meter", "--parallel", "--parallel-immediate", "--parallel-max", "200", "--config", config], check=True)
    seconds = time.monotonic() - started
    peak = server.memory("VmHWM")
    note("memory", transfers=200, uploads=UPLOADS, transfer_bytes=TRANSFER, seconds=round(seconds, 1), before_bytes=before, peak_bytes=peak,
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
    work = place("nginx")
    port = 20_000 + os.getpid() % 10_000
    server = Server(os.path.join(work, "store"))
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
    configuration = lines("nginx/nginx.conf", [NGINX % {"work": work, "port": port, "direct_port": port + 1}])
    other = subprocess.Popen(["nginx", "-p", work, "-c", configuration, "-g", "daemon off;"])
    time.sleep(1)
    try:
        for size, count in sizes.items():
            keys = [f"{size}/{number}" for number in range(count)]
            anonymous = lines("nginx/anonymous", [f"/files/{key}" for key in keys])
            signed = lines("nginx/signed", server.presigned("get_object", "files", keys))
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
                    note("get", server=name, object_bytes=size, connections=connections, per_second=round(rate, 1),
                         of_nginx=round(rate / base, 3), runs=found)
    finally:
        other.terminate()
        other.wait()
        server.stop()
    shutil.rmtree(work)


def puts():
    """PUTs of 4 KiB, each durable before its answer."""
    work = place("puts")
    server = Server(os.path.join(work, "store"))
    server.s3.create_bucket(Bucket="puts")
    paths = lines("puts/paths", server.presigned("put_object", "puts", [f"k{number}" for number in range(20_000)]))
    for connections in (1, 64):
        note("put", object_bytes=4 * KIB, connections=connections, durability="sync",
             **wrk(server.url, paths, connections, "PUT", 4 * KIB))
    server.stop()
    shutil.rmtree(work)


def page_ms(server, bucket, after):
    """Time of a page of 1000 keys over a connection of its own, without reading XML."""
    url = server.s3.generate_presigned_url("list_objects_v2", Params={"Bucket": bucket, "MaxKeys": 1000, "StartAfter": after})
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.connect()
    started = time.monotonic()
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    body = answer.read()
    elapsed = time.monotonic() - started
    connection.close()
    assert answer.status == 200 and body.count(b"<Key>") == 1000, (answer.status, body[:300])
    return elapsed * 1000


def list_seconds(server, bucket, keys):
    """Time of listing so many keys from the first on, page by page; of the requests alone, without signing them and reading XML."""
    seconds, listed, token = 0, 0, {}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc)
    while listed < keys:
        url = server.s3.generate_presigned_url("list_objects_v2", Params={"Bucket": bucket, **token})
        parts = urllib.parse.urlsplit(url)
        started = time.monotonic()
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        body = answer.read()
        seconds += time.monotonic() - started
        assert answer.status == 200, body[:300]
        listed += body.count(b"<Key>")
        token = {"ContinuationToken": re.search(b"<NextContinuationToken>(.*)</NextContinuationToken>", body)[1].decode()}
    connection.close()
    return seconds


def many():
    """The same with few objects and with very many."""
    rates = {}
    for objects in (10_000, MANY):
        work = place("many")
        store = os.path.join(work, "store")
        server = Server(store)
        key = server.key
        server.s3.create_bucket(Bucket="many")
        server.stop()
        filled = subprocess.run([FILL, store, "many", str(objects), "100"], check=True, capture_output=True, text=True)
        server = Server(store, key=key)
        chance = random.Random(4)
        names = [f"obj-{chance.randrange(objects):08}" for _ in range(10_000)]
        pages = sorted(page_ms(server, "many", f"obj-{chance.randrange(objects - 1001):08}") for _ in range(200))
        gets = wrk(server.url, lines("many/gets", server.presigned("get_object", "many", names)), 64)
        new = [f"obj-{chance.randrange(objects):08}x" for _ in range(10_000)]
        written = wrk(server.url, lines("many/puts", server.presigned("put_object", "many", new)), 64, "PUT", 100)
        rates[objects] = (gets["per_second"], written["per_second"])
        note("many", objects=objects, fill=filled.stdout.strip(), opened_seconds=round(server.opened_seconds, 2),
             page_ms_p50=round(pages[100], 1), page_ms_p99=round(pages[198], 1), get=gets, put=written,
             rss_bytes=server.memory("VmRSS"))
        if objects > LISTED:
            note("list", keys=LISTED, of_objects=objects, seconds=round(list_seconds(server, "many", LISTED), 2))
        server.stop()
        shutil.rmtree(work)
    ratios = [after / before for before, after in zip(rates[10_000], rates[MANY])]
    note("many ratio", objects=MANY, get=round(ratios[0], 3), put=round(ratios[1], 3))


os.makedirs(DIRECTORY, exist_ok=True)
for part in PARTS:
    {"memory": memory, "nginx": nginx, "puts": puts, "many": many}[part]()
