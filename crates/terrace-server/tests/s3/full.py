"""Fills a file system of its own over S3 until 507, deletes, and fills it again; several cycles.

    full.py TERRACE IMAGES CYCLES [CASE...]

For root: each case has loop devices with ext4 of their own, as files in the directory IMAGES, which are taken away at the
end. In each cycle values of 1 MB are put until one is refused, then of 20 kB; a part of everything is deleted, its room is
filled with values of 20 kB, some are overwritten and uploaded in parts, then the rest goes. In each second cycle the part is
nine tenths, so that the log has most of the device, and the rest is deleted while clients go on; in the others it is a
random part, and nothing goes on beside. Meanwhile another program may take space and give it back, and the server may be
killed. Looked at are: what was acknowledged is there, byte for byte; what was deleted is gone; 99 of 100 refusals take less
than 10 ms, four clients at once; on the full device reads, lists, deletes, uploads that are given up and overwrites that
shrink have half their ordinary rate at least; `/readyz` says that the store is full, and why; the space is back after 10
seconds, and while clients go on after 60; and each filling takes at least nine tenths of what the first one took. Ends with
1 if not.
"""

import concurrent.futures
import datetime
import hashlib
import hmac
import http.client
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.parse

TERRACE, IMAGES, CYCLES = sys.argv[1], os.path.abspath(sys.argv[2]), int(sys.argv[3])
WANTED = sys.argv[4:]
WRITERS = 4
LARGE, SMALL, PART = 1_000_000, 20_000, 5 << 20
REFUSAL_MAX = 0.010
SPACE_BACK_MAX = 10
# And while clients put, read and delete all the time; of what they have there may be so many objects, of SMALL bytes.
SPACE_BACK_BUSY_MAX, BUSY_OBJECTS = 60, 200
# What is deleted first in a cycle in which clients go on: its room is filled with values that live in the log. Of a random part,
# as it was, the log seldom had enough for dead segments to be missed.
BUSY_SHARE = 0.9
# How long `/readyz` may say that a store is ready which has just refused new data: log GC may give some room meanwhile.
FULL_TOLD_MAX = 5
# Of what lives, in dead bytes between it, that cleaning without room leaves (blocks/gc/policy.rs, PERCENT_WITHOUT_ROOM): one
# more byte would cost ten written.
LEFT_DEAD = 0.1
# How many of each kind of request make a rate, and how short objects are after overwrites that shrink.
RATED, LISTS, UPLOADS, SHRINKS_TO = 2_000, 500, 300, 5_000
# How many refusals each client has.
REFUSALS = 250
# Files that are there for ever, and what a store needs for itself, on a device of 300 MB and more.
SMALLEST_LEFT = 0.75

# Name: sizes of the devices in MB (one for both tiers, or one each), settings, whether others take space, whether it is killed.
CASES = {
    "300": ([300], {}, False, False),
    "868": ([868], {}, False, False),
    "900": ([900], {}, False, False),
    "900-others": ([900], {}, True, False),
    "900-kills": ([900], {}, True, True),
    "300-300": ([300, 300], {}, False, False),
    "300-900-kills": ([300, 900], {}, True, True),
    "capacities": ([1700], {"TERRACE_FLASH_CAPACITY": "600MiB", "TERRACE_LARGE_CAPACITY": "600MiB"}, False, False),
    "small capacities": ([900], {"TERRACE_FLASH_CAPACITY": "100MiB", "TERRACE_LARGE_CAPACITY": "100MiB"}, False, True),
}


class Failed(Exception):
    pass


failures = []


def complain(text):
    print(f"    WRONG: {text}", flush=True)
    failures.append(text)


def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.strip()


class Device:
    """A file system of its own."""

    def __init__(self, name, megabytes):
        self.image, self.place = os.path.join(IMAGES, f"{name}.img"), os.path.join(IMAGES, name)
        with open(self.image, "wb") as image:
            image.truncate(megabytes * 1_000_000)
        run("mkfs.ext4", "-q", "-F", self.image)
        os.makedirs(self.place, exist_ok=True)
        run("mount", "-o", "loop", self.image, self.place)

    def free(self):
        stat = os.statvfs(self.place)
        return stat.f_bavail * stat.f_frsize

    def used(self):
        stat = os.statvfs(self.place)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    def end(self):
        subprocess.run(["umount", self.place], check=False)
        os.remove(self.image)
        os.rmdir(self.place)


class Server:
    def __init__(self, directories, settings, key=None):
        self.directories, self.settings, self.key = directories, settings, key
        self.lines = []
        self.start()

    def start(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TERRACE_")}
        environment |= self.settings | {"TERRACE_LOG": os.environ.get("FULL_LOG", "warn")}
        places = ["--store", self.directories[0]]
        if len(self.directories) == 2:
            places = ["--flash", self.directories[0], "--large", self.directories[1]]
        self.process = subprocess.Popen(
            [TERRACE, "serve", *places, "--listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        errors = []
        threading.Thread(target=self.listen, args=(errors,), daemon=True).start()
        address = re.compile(r"http://([^/]+)/")
        page, s3 = (address.match(self.process.stdout.readline()) for _ in range(2))
        if page is None or s3 is None:
            raise Failed(f"the server does not begin: {errors}")
        self.page, self.address = page[1], s3[1]
        if self.key is None:
            text = "".join(errors)
            until = time.monotonic() + 5
            while "secret access key:" not in text and time.monotonic() < until:
                time.sleep(0.05)
                text = "".join(errors)
            self.key = tuple(re.search(rf"{what}: +(\S+)", text)[1] for what in ("access key ID", "secret access key"))

    def listen(self, errors):
        with open(os.path.join(IMAGES, "server.log"), "a", encoding="utf-8") as log:
            for line in self.process.stderr:
                errors.append(line)
                log.write(line)
                log.flush()

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)

    def ready(self):
        connection = http.client.HTTPConnection(self.page, timeout=30)
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()


class Client:
    """Signs, and sends over one connection."""

    def __init__(self, server):
        self.server = server
        self.connection = None

    def send(self, method, path, body=b"", query=""):
        address, (name, secret) = self.server.address, self.server.key
        now = datetime.datetime.now(datetime.timezone.utc)
        moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        headers = {"host": address, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": moment}
        names = ";".join(sorted(headers))
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
        canonical_query = "&".join(sorted(
            f"{urllib.parse.quote(key, '')}={urllib.parse.quote(value, '')}" for key, value in pairs))
        canonical = "\n".join([method, urllib.parse.quote(path), canonical_query,
                               *(f"{key}:{headers[key]}" for key in sorted(headers)), "", names, "UNSIGNED-PAYLOAD"])
        scope = f"{day}/us-east-1/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        signer = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            signer = hmac.digest(signer, part.encode(), "sha256")
        signature = hmac.digest(signer, text.encode(), "sha256").hex()
        headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={name}/{scope}, SignedHeaders={names}, "
                                    f"Signature={signature}")
        if self.connection is None:
            self.connection = http.client.HTTPConnection(address, timeout=60)
        target = urllib.parse.quote(path) + (f"?{canonical_query}" if canonical_query else "")
        try:
            try:
                self.connection.request(method, target, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                # The answer came before all of the body was sent.
                pass
            answer = self.connection.getresponse()
            read = answer.read()
            if answer.will_close:
                self.connection.close()
                self.connection = None
            return answer.status, read, answer.headers
        except (OSError, http.client.HTTPException):
            self.connection.close()
            self.connection = None
            raise


def content(key, generation, length):
    """Bytes that follow from what they belong to: none need to be kept."""
    return random.Random(f"{key}#{generation}").randbytes(length)


def refused(server, names, length):
    """Puts values until so many are refused or taken: how long refusals took, what was taken, an answer, and what was wrong."""
    client, names = Client(server), iter(names)
    times, went_in, text = [], [], ""
    key, generation = next(names)
    # The same value again and again: making one would take this client's time.
    body = content(key, generation, length)
    for _ in range(REFUSALS):
        began = time.monotonic()
        status, answer, _ = client.send("PUT", f"/bucket/{key}", body)
        took = time.monotonic() - began
        if status == 507:
            times.append(took)
            text = answer.decode()
        elif status == 200:
            went_in.append((key, generation))
            key, generation = next(names, (key, generation))
            body = content(key, generation, length)
        else:
            return times, went_in, text, f"{status}: {answer[:300]}"
    return times, went_in, text, None


class Case:
    def __init__(self, name):
        sizes, settings, self.others, self.kills = CASES[name]
        self.chance = random.Random(name)
        self.devices = []
        try:
            for number, size in enumerate(sizes):
                self.devices.append(Device(f"device{number}", size))
            self.server = Server([os.path.join(device.place, "store") for device in self.devices], settings)
        except Exception:
            self.unmount()
            raise
        # What is acknowledged: generation and length by key. And what may be, since its answer did not come.
        self.held, self.doubt = {}, {}
        self.lock = threading.Lock()
        self.generation = 0
        self.first = None
        # By kind of request: requests and seconds, ordinary and on the full device in all cycles.
        self.ordinary, self.full = {}, {}
        self.uploads = []

    def unmount(self):
        for device in self.devices:
            device.end()

    def end(self):
        if self.server.process.poll() is None:
            self.server.end(signal.SIGKILL)
        self.unmount()

    def each(self, work, items):
        """Does the work on all of the items, by several clients."""
        items = list(items)
        position = iter(range(len(items)))

        def turn():
            client = Client(self.server)
            while True:
                with self.lock:
                    at = next(position, None)
                if at is None:
                    return
                work(client, items[at])

        threads = [threading.Thread(target=turn) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def put(self, client, key, length):
        with self.lock:
            self.generation += 1
            generation = self.generation
            self.doubt.setdefault(key, []).append((generation, length))
        body = content(key, generation, length)
        began = time.monotonic()
        status, answer, _ = client.send("PUT", f"/bucket/{key}", body)
        took = time.monotonic() - began
        with self.lock:
            if status == 200:
                self.held[key] = (generation, length)
                self.doubt.pop(key)
            elif status == 507:
                self.doubt[key].pop()
                if not self.doubt[key]:
                    self.doubt.pop(key)
        return status, took, answer

    def delete(self, client, key):
        with self.lock:
            self.doubt.setdefault(key, []).append(None)
        began = time.monotonic()
        status, answer, _ = client.send("DELETE", f"/bucket/{key}")
        took = time.monotonic() - began
        if status != 204:
            complain(f"DELETE of {key} answers {status} after {took:.3f} s: {answer[:300]}")
            return took
        with self.lock:
            self.held.pop(key, None)
            self.doubt.pop(key)
        return took

    def fill(self, prefix, length):
        """Puts until one is refused; says how many went in."""
        stop = threading.Event()
        counted, numbers = [0] * WRITERS, iter(range(10_000_000))
        said = []

        def turn(writer):
            client = Client(self.server)
            while not stop.is_set():
                with self.lock:
                    number = next(numbers)
                try:
                    status, took, answer = self.put(client, f"{prefix}/{number:07}", length)
                except (OSError, http.client.HTTPException):
                    return
                if status == 507:
                    said.append((took, answer))
                    stop.set()
                elif status != 200:
                    complain(f"PUT answers {status}: {answer[:300]}")
                    stop.set()
                else:
                    counted[writer] += 1

        threads = [threading.Thread(target=turn, args=(writer,)) for writer in range(WRITERS)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        first_refusal = max((took for took, _ in said), default=0)
        print(f"    {prefix}: {sum(counted)} in {took:.1f} s, {sum(counted) / took:.0f}/s, first refusal after "
              f"{first_refusal:.3f} s", flush=True)
        return sum(counted)

    def refusals(self, length):
        """On a full device: how long a refusal takes, to each of the clients at once. Says how many went in all the same."""
        server = types.SimpleNamespace(address=self.server.address, key=self.server.key)
        names = []
        for writer in range(WRITERS):
            keys = [f"refused/{writer}/{number:03}" for number in range(REFUSALS)]
            names.append([(key, self.generation + number) for number, key in enumerate(keys, 1)])
            self.generation += REFUSALS
        # Each in a process of its own: threads would wait for each other, and not for the server.
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(WRITERS, mp_context=context) as pool:
            asked = list(pool.map(refused, [server] * WRITERS, names, [length] * WRITERS))
        times, went_in = [], []
        for took, kept, text, wrong in asked:
            times += took
            went_in += kept
            texts = text
            if wrong:
                complain(f"a PUT on a full device answers {wrong}")
        self.held.update({key: (generation, length) for key, generation in went_in})
        if not times:
            print(f"    none of {len(went_in)} values of {length} is refused any more", flush=True)
            return len(went_in)
        times.sort()
        late = times[len(times) * 99 // 100]
        print(f"    refusals of {length}: {len(times)}, {len(went_in)} went in; median {times[len(times) // 2] * 1000:.1f} ms, "
              f"99 % {late * 1000:.1f} ms, longest {times[-1] * 1000:.1f} ms: {re.sub('<[^>]*>', ' ', texts)[40:400]}", flush=True)
        if late > REFUSAL_MAX:
            complain(f"of refusals of {length} bytes one in a hundred takes {late * 1000:.1f} ms, the longest {times[-1]:.3f} s")
        return len(went_in)

    def deletes(self, keys, what):
        keys = list(keys)
        if not keys:
            return 0
        times = []
        began = time.monotonic()
        self.each(lambda client, key: times.append(self.delete(client, key)), keys)
        rate = len(keys) / (time.monotonic() - began)
        print(f"    {what}: {len(keys)} deleted, {rate:.0f}/s, longest {max(times) * 1000:.0f} ms", flush=True)
        return rate

    def check(self):
        """What is listed is what is held, and some of it is read."""
        client = Client(self.server)
        listed, token = {}, ""
        while True:
            query = "list-type=2&max-keys=1000" + (f"&continuation-token={urllib.parse.quote(token, '')}" if token else "")
            status, answer, _ = client.send("GET", "/bucket", query=query)
            if status != 200:
                complain(f"LIST answers {status}: {answer[:300]}")
                return
            text = answer.decode()
            for key, size in re.findall(r"<Key>([^<]*)</Key>.*?<Size>(\d+)</Size>", text, re.S):
                listed[key] = int(size)
            more = re.search(r"<NextContinuationToken>([^<]*)</NextContinuationToken>", text)
            if not more:
                break
            token = more[1].replace("&amp;", "&")
        for key, (_, length) in self.held.items():
            if key not in self.doubt and listed.get(key) != length:
                complain(f"{key} was acknowledged, of {length} bytes; listed is {listed.get(key)}")
        for key in listed:
            if key not in self.held and key not in self.doubt:
                complain(f"{key} is listed, and was deleted or refused")
        some = self.chance.sample(sorted(listed), min(60, len(listed)))

        def read(client, key):
            status, body, _ = client.send("GET", f"/bucket/{key}")
            allowed = [entry for entry in [self.held.get(key), *self.doubt.get(key, [])] if entry]
            if status != 200 or not any(body == content(key, *entry) for entry in allowed):
                complain(f"GET of {key} answers {status}, and {len(body)} bytes that nobody put")

        self.each(read, some)
        # What was in doubt is known now.
        for key in list(self.doubt):
            if key in listed:
                _, body, _ = Client(self.server).send("GET", f"/bucket/{key}")
                entry = next((entry for entry in [self.held.get(key), *self.doubt[key]]
                              if entry and body == content(key, *entry)), None)
                if entry is None:
                    complain(f"{key} is something that nobody put")
                self.held[key] = entry
            else:
                self.held.pop(key, None)
            del self.doubt[key]

    def begin_uploads(self):
        """Uploads that are given up later."""
        def begin(client, number):
            status, answer, _ = client.send("POST", f"/bucket/given up/{number}", query="uploads=")
            if status == 200:
                with self.lock:
                    self.uploads.append((number, re.search(r"<UploadId>([^<]*)</UploadId>", answer.decode())[1]))

        self.each(begin, range(UPLOADS))

    def rates(self, into):
        """What goes on when the device is full, each kind by itself. Overwrites let go of more than they bring."""
        def send(wanted, method, path, query=""):
            def work(client, item):
                status, answer, _ = client.send(method, path(item), query=query and query(item))
                if status != wanted:
                    complain(f"{method} {path(item)} answers {status}: {answer[:300]}")
            return work

        refused = [0]

        def overwrite(client, key):
            status, _, answer = self.put(client, key, SHRINKS_TO)
            refused[0] += status == 507
            if status not in (200, 507):
                complain(f"an overwrite answers {status}: {answer[:300]}")

        keys = [key for key, (_, length) in sorted(self.held.items()) if length == SMALL]
        keys = self.chance.sample(keys, min(RATED, len(keys)))
        quote = urllib.parse.quote
        uploads, self.uploads = self.uploads, []
        kinds = {
            "reads": (send(200, "GET", lambda key: f"/bucket/{key}"), keys),
            "lists": (send(200, "GET", lambda key: "/bucket",
                           lambda key: f"list-type=2&max-keys=100&start-after={quote(key, '')}"), keys[:LISTS]),
            "uploads given up": (send(204, "DELETE", lambda upload: f"/bucket/given up/{upload[0]}",
                                      lambda upload: f"uploadId={quote(upload[1], '')}"), uploads),
            "overwrites that shrink": (overwrite, keys),
            "deletes": (self.delete, keys),
        }
        for kind, (work, items) in kinds.items():
            began = time.monotonic()
            self.each(work, items)
            took = time.monotonic() - began
            count, seconds = into.get(kind, (0, 0))
            into[kind] = count + len(items), seconds + took
            print(f"    {kind}: {len(items)}, {len(items) / took:.0f}/s", flush=True)
        if refused[0]:
            complain(f"{refused[0]} of {len(keys)} overwrites that shrink are refused")

    def compare_rates(self):
        for kind, (count, seconds) in self.full.items():
            ordinary = self.ordinary[kind][0] / self.ordinary[kind][1]
            share = count / seconds / ordinary
            print(f"    {kind}: {count} on the full device, {count / seconds:.0f}/s, {share:.2f} of {ordinary:.0f}/s", flush=True)
            if count and share < 0.5:
                complain(f"{kind} on the full device: {count / seconds:.0f}/s of {ordinary:.0f}/s")

    def parts(self):
        """Uploads in parts, one that is completed and one that is given up, as far as there is room."""
        client = Client(self.server)
        for number in range(2):
            key = f"parts/{number}"
            status, answer, _ = client.send("POST", f"/bucket/{key}", query="uploads=")
            if status != 200:
                return
            upload = re.search(r"<UploadId>([^<]*)</UploadId>", answer.decode())[1]
            body = content(key, self.generation + number, 2 * PART)
            tags = []
            for part in (1, 2):
                status, _, headers = client.send("PUT", f"/bucket/{key}", body[(part - 1) * PART:part * PART],
                                                 query=f"partNumber={part}&uploadId={upload}")
                if status == 200:
                    tags.append(headers["etag"])
            if number == 1 or len(tags) < 2:
                status, answer, _ = client.send("DELETE", f"/bucket/{key}", query=f"uploadId={upload}")
                if status != 204:
                    complain(f"giving an upload up answers {status}: {answer[:300]}")
                continue
            parts = "".join(f"<Part><PartNumber>{at + 1}</PartNumber><ETag>{tag}</ETag></Part>" for at, tag in enumerate(tags))
            document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
            status, answer, _ = client.send("POST", f"/bucket/{key}", document.encode(), query=f"uploadId={upload}")
            if status == 200 and b"<Error>" not in answer:
                self.held[key] = (self.generation + number, 2 * PART)
            elif b"507" not in answer and status != 507 and b"InsufficientStorage" not in answer:
                complain(f"completing an upload answers {status}: {answer[:300]}")

    def again(self, deleted):
        """What was deleted here and there is room for other values, after a moment."""
        if deleted < 0.1 * sum(device.used() + device.free() for device in self.devices):
            return
        time.sleep(SPACE_BACK_MAX)
        # What was large is given back as small: what lies between has to be moved.
        took_in = self.fill("again", SMALL) * SMALL
        print(f"    {took_in / 1e6:.0f} MB went in after {deleted / 1e6:.0f} MB were deleted", flush=True)
        living = sum(length for _, length in self.held.values()) - took_in
        if took_in < 0.8 * deleted - LEFT_DEAD * living:
            complain(f"{deleted / 1e6:.0f} MB were deleted here and there, and {took_in / 1e6:.0f} MB go in")

    def taken(self):
        return sum(device.used() for device in self.devices)

    def is_told(self):
        """A store that refuses new data is not ready, and says why."""
        began = time.monotonic()
        while True:
            status, reason = self.server.ready()
            if status == 503 or time.monotonic() - began > FULL_TOLD_MAX:
                break
            # It had room again: until it has none.
            self.fill(f"told/{time.monotonic() - began:06.3f}", SMALL)
        print(f"    readyz: {status} {reason[:200]}", flush=True)
        answer = json.loads(reason)
        if status != 503 or not answer["reason"] or answer["reads"] != "ok":
            complain(f"/readyz of a store that refuses new data: {status} {reason}")

    def busy(self, over):
        """Puts, reads and deletes until it is over, as a store that goes on does."""
        def turn(writer):
            client = Client(self.server)
            for number in range(10_000_000):
                if over.is_set():
                    return
                key = f"busy/{writer}/{number % (BUSY_OBJECTS // WRITERS):03}"
                self.put(client, key, SMALL)
                client.send("GET", f"/bucket/{key}")
                if number % 4 == 3:
                    self.delete(client, key)

        threads = [threading.Thread(target=turn, args=(writer,)) for writer in range(WRITERS)]
        for thread in threads:
            thread.start()
        return threads

    def delete_while_busy(self, keys):
        """Deletes these and has their space back while clients go on; and then what those have."""
        over = threading.Event()
        threads = self.busy(over)
        self.deletes(keys, "the rest, while clients go on")
        size = sum(device.used() + device.free() for device in self.devices)
        # What they have and have replaced is in the log as well, a tenth more.
        self.wait_for_space(self.begun_with + size // 5, SPACE_BACK_BUSY_MAX)
        over.set()
        for thread in threads:
            thread.join()
        self.deletes(sorted(self.held), "what they had")

    def wait_for_space(self, at_most, within=SPACE_BACK_MAX):
        """How long it takes until the devices are as empty as they were; complains after a while."""
        began = time.monotonic()
        while True:
            took, now = time.monotonic() - began, self.taken()
            if now <= at_most:
                print(f"    space is back after {took:.1f} s: {now / 1e6:.0f} MB are taken", flush=True)
                break
            if took > 90:
                break
            time.sleep(0.1)
        if took > within:
            complain(f"{took:.0f} s after everything was deleted {now / 1e6:.0f} MB are taken, at most {at_most / 1e6:.0f} wanted")

    def kill(self):
        self.server.end(signal.SIGKILL)
        began = time.monotonic()
        self.server.start()
        print(f"    killed; opened again after {time.monotonic() - began:.2f} s", flush=True)

    def fill_and_be_killed(self):
        timer = threading.Timer(self.chance.uniform(0.5, 4), lambda: self.server.process.send_signal(signal.SIGKILL))
        timer.start()
        self.fill("killed", SMALL)
        timer.cancel()
        timer.join()
        self.kill()
        self.check()
        return len(self.held)

    def ballast(self, size):
        """What another program takes of the first device."""
        path = os.path.join(self.devices[0].place, "ballast")
        if size == 0:
            if os.path.exists(path):
                os.remove(path)
            return
        with open(path, "wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                pass

    def cycle(self, number):
        self.begin_uploads()
        # What went in before the server was killed is on the device as well.
        killed = self.fill_and_be_killed() if self.kills and number % 2 == 1 else 0
        if self.others and number % 2 == 1:
            self.ballast(self.devices[0].free() // 3)
        large = self.fill("large", LARGE)
        went_in = self.refusals(LARGE)
        small = self.fill("small", SMALL)
        self.refusals(SMALL)
        self.is_told()
        if self.kills:
            self.kill()
        self.check()
        more = 0
        if self.others and number % 2 == 1:
            self.ballast(0)
            time.sleep(2)
            more = self.fill("more", SMALL)
            if more == 0:
                complain("nothing goes in after another program gave its space back")
        keys = sorted(self.held)
        self.chance.shuffle(keys)
        is_busy = number % 2 == 1
        share = BUSY_SHARE if is_busy else self.chance.random()
        # Deletes on a full device.
        some = keys[:int(len(keys) * share)]
        self.before = dict(self.held)
        full_rate = self.deletes(some, f"{share:.0%}")
        self.check()
        self.again(sum(self.before[key][1] for key in some))
        self.rates(self.full)
        rest = sorted(self.held)
        refused = [0]

        def overwrite(client, key):
            status, _, answer = self.put(client, key, self.held[key][1])
            refused[0] += status == 507
            if status not in (200, 507):
                complain(f"an overwrite answers {status}: {answer[:300]}")

        self.each(overwrite, rest[:200])
        if refused[0]:
            print(f"    {refused[0]} of {len(rest[:200])} overwrites were refused", flush=True)
        self.parts()
        self.check()
        if is_busy:
            self.delete_while_busy(sorted(self.held))
        else:
            self.deletes(sorted(self.held), "the rest")
        self.check()
        bytes_in = (large + went_in) * LARGE + (killed + small + more) * SMALL
        size = sum(device.used() + device.free() for device in self.devices)
        print(f"    {large} + {small}: {bytes_in / 1e6:.0f} MB of {size / 1e6:.0f} MB", flush=True)
        if self.held:
            complain(f"{len(self.held)} objects cannot be deleted")
        if self.kills and number % 3 == 2:
            self.kill()
        return bytes_in, full_rate

    def run(self):
        client = Client(self.server)
        status, answer, _ = client.send("PUT", "/bucket")
        if status != 200:
            raise Failed(f"the bucket is not made: {status} {answer}")
        self.each(lambda client, number: self.put(client, f"first/{number:04}", SMALL), range(RATED))
        self.begin_uploads()
        self.rates(self.ordinary)
        ordinary = self.ordinary["deletes"][0] / self.ordinary["deletes"][1]
        time.sleep(SPACE_BACK_MAX)
        self.begun_with = self.taken()
        size = sum(device.used() + device.free() for device in self.devices)
        for number in range(CYCLES):
            print(f"  cycle {number}", flush=True)
            took, rate = self.cycle(number)
            if rate and rate < ordinary / 2:
                complain(f"deletes on the full device: {rate:.0f}/s of {ordinary:.0f}/s")
            self.wait_for_space(self.begun_with + size // 10)
            if number == 0:
                self.first = took
            elif took < self.first * 0.9:
                complain(f"cycle {number} took in {took / 1e6:.0f} MB, the first {self.first / 1e6:.0f} MB")
        self.compare_rates()
        self.server.end()
        if self.server.process.returncode != 0:
            complain(f"the server ended with {self.server.process.returncode}")


def main():
    # Devices are taken away at any end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(IMAGES, exist_ok=True)
    for name in WANTED or CASES:
        print(f"case {name}", flush=True)
        before = len(failures)
        case = Case(name)
        try:
            case.run()
        except Failed as error:
            complain(str(error))
        finally:
            case.end()
        print(f"case {name}: {'wrong' if len(failures) > before else 'right'}", flush=True)
    print(json.dumps({"wrong": failures[:50]}, indent=1))
    sys.exit(1 if failures else 0)


main()
