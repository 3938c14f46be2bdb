"""How much memory abuse takes: the server's peak of resident memory under each of these abuses.

    abuse.py TERRACE [MIB [NAME...]]

TERRACE   the program, built with --release
MIB       how long the longest bodies are   (default: 700)
NAME      of an abuse, as the functions here are called   (default: all)

Serves from a directory of its own on free ports, with the settings that are the default but for an abuse
that has its own, and removes the directory. Prints a row for each abuse: what it was answered, the peak
while it went on, the seconds it took. Ends with 1 if a peak is over 300 MB.
"""

import base64
import hashlib
import hmac
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from urllib.parse import quote

MOST_BYTES = 300 * 1000 * 1000
MIB = 1 << 20


class Server:
    def __init__(self, program, directory, settings=()):
        self.messages = open(os.path.join(directory, "messages"), "w+")
        self.process = subprocess.Popen(
            [program, "serve", "--store", os.path.join(directory, "store"), "--listen", "127.0.0.1:0",
             "--s3-listen", "127.0.0.1:0", *settings],
            stdout=subprocess.PIPE, stderr=self.messages, text=True)
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(open(self.messages.name).read())
            found = re.match(r"http://([^/]*)/ \(S3\)", line)
            if found:
                break
        self.host, port = found.group(1).rsplit(":", 1)
        self.port = int(port)
        text = ""
        while "secret access key" not in text:
            time.sleep(0.05)
            text = open(self.messages.name).read()
        self.key = re.search(r"^access key ID: *(\S+)", text, re.M).group(1)
        self.secret = re.search(r"^secret access key: *(\S+)", text, re.M).group(1)

    def status(self, name):
        text = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(rf"^{name}:\s*(\d+) kB", text, re.M).group(1)) * 1024

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def headers(self, method, path, headers=None, payload="UNSIGNED-PAYLOAD"):
        """The headers of a signed request (AWS Signature Version 4)."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signed = {"host": f"{self.host}:{self.port}", "x-amz-content-sha256": payload, "x-amz-date": now, **(headers or {})}
        names = ";".join(sorted(signed))
        resource, _, query = path.partition("?")
        query = "&".join(sorted(part if "=" in part else part + "=" for part in query.split("&"))) if query else ""
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        request = "\n".join((method, resource, query, lines, names, payload))
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        key = b"AWS4" + self.secret.encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()))
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        signed["authorization"] = (f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, "
                                   f"Signature={signature}")
        return signed

    def connect(self, seconds=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds)

    def ask(self, method, path, body=b"", headers=None, payload="UNSIGNED-PAYLOAD", signed=True):
        """The status of one exchange, or the name of what the connection ended with."""
        connection = self.connect()
        try:
            sent = self.headers(method, path, headers, payload) if signed else dict(headers or {})
            return finish(connection, lambda: connection.request(method, path, body=body, headers=sent))
        finally:
            connection.close()


def finish(connection, send):
    """Sends a request and reads the answer, which may come before all of the body was sent."""
    try:
        try:
            send()
            answer = connection.getresponse()
        except (BrokenPipeError, ConnectionResetError):
            answer = http.client.HTTPResponse(connection.sock)
            answer.begin()
        while answer.read(1 << 16):
            pass
        return answer.status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


def at_once(count, attempt):
    """Counts what `count` threads were answered."""
    answers = Counter()
    lock = threading.Lock()

    def run(n):
        answer = attempt(n)
        with lock:
            answers[answer] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ", ".join(f"{count} x {answer}" for answer, count in sorted(answers.items(), key=str))


def one_chunk(server, length, mark, payload, end, headers):
    """One chunk of an aws-chunked body that is as long as the whole body."""
    first = f"{length:x}{mark}\r\n".encode()

    def body():
        yield first
        piece = bytes(MIB)
        for _ in range(length // MIB):
            yield piece
        yield end

    headers = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(length),
               "content-length": str(len(first) + length + len(end)), **headers}
    return str(server.ask("PUT", "/abuse/chunk", body(), headers, payload))


def long_chunk_unsigned(server, length):
    crc = 0
    for _ in range(length // MIB):
        crc = zlib.crc32(bytes(MIB), crc)
    trailer = base64.b64encode(crc.to_bytes(4, "big")).decode()
    end = f"\r\n0\r\nx-amz-checksum-crc32:{trailer}\r\n\r\n".encode()
    return one_chunk(server, length, "", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", end, {"x-amz-trailer": "x-amz-checksum-crc32"})


def long_chunk_signed(server, length):
    mark = ";chunk-signature=" + "0" * 64
    return one_chunk(server, length, mark, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", f"\r\n0{mark}\r\n\r\n".encode(), {})


def long_body_as_form(server, length):
    boundary = "x" * 20

    def body():
        yield f"--{boundary}\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n".encode()
        for _ in range(length // MIB):
            yield b"k" * MIB
        yield f"\r\n--{boundary}--\r\n".encode()

    connection = server.connect()
    try:
        return str(finish(connection, lambda: connection.request("POST", "/abuse", body=body(), encode_chunked=True, headers={
            "content-type": f"multipart/form-data; boundary={boundary}", "transfer-encoding": "chunked"})))
    finally:
        connection.close()


def listings_of_long_metadata(server, _):
    value = "v" * 1900
    made = at_once(32, lambda n: [
        server.ask("PUT", f"/abuse/long/{n:02}/{quote('k' * 900)}/{i}", b"x", {"x-amz-meta-a": value}) for i in range(32)
    ][-1])
    listed = at_once(48, lambda _: server.ask("GET", "/abuse?list-type=2&prefix=long%2F"))
    return f"PUT {made}; LIST {listed}"


def long_headers(server, _):
    return at_once(48, lambda _: server.ask("PUT", "/abuse/header", b"x", {"cache-control": "c" * 60_000}))


def long_xml(server, _):
    keys = b"".join(b"<Object><Key>%0900d</Key></Object>" % n for n in range(8_600))
    body = b"<Delete>" + keys + b"</Delete>"
    return at_once(16, lambda _: server.ask("POST", "/abuse?delete", body))


def idle_connections(server, _):
    sockets, refused = [], 0
    for _ in range(1_500):
        try:
            sockets.append(socket.create_connection((server.host, server.port), 5))
        except OSError:
            refused += 1
    answer = server.ask("PUT", "/abuse/beside", b"x")
    for one in sockets:
        one.close()
    return f"{len(sockets)} open, {refused} refused, beside them {answer}"


def stalled_readers(server, objects, length, count):
    """So many readers that take nothing; whether others can read meanwhile."""
    for n in range(objects):
        assert server.ask("PUT", f"/abuse/read/{n}", bytes([n % 256]) * length) == 200
    server.forget_peak()
    connections = []
    for n in range(count):
        one = socket.create_connection((server.host, server.port), 5)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/abuse/read/{n % objects}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in server.headers("GET", path).items())
        one.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        connections.append(one)
    time.sleep(5)
    started = time.monotonic()
    answers = Counter(server.ask("GET", f"/abuse/read/{n % objects}") for n in range(4))
    took = (time.monotonic() - started) / 4
    for one in connections:
        one.close()
    answered = ", ".join(f"{count} x {answer}" for answer, count in answers.items())
    return f"GETs beside them {answered}, {took:.1f} s each"


def slow_readers_of_one_object(server, _):
    return stalled_readers(server, 1, 16 * MIB, 700)


def slow_readers_of_many_objects(server, _):
    return stalled_readers(server, 350, 8 * MIB, 700)


# By default the cache has a quarter of the machine's memory, which whoever reads fills.
slow_readers_of_many_objects.settings = ["--cache", "64MiB"]


def begin_uploads(server, count, length, sent):
    """Connections that announce a body each, of which they have sent so much."""
    connections = []

    def begin(n):
        one = socket.create_connection((server.host, server.port), 60)
        headers = server.headers("PUT", f"/abuse/slow/{n}", {"content-length": str(length)})
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connections.append(one)
        one.sendall(f"PUT /abuse/slow/{n} HTTP/1.1\r\n{lines}\r\n".encode() + bytes(sent))
        return "begun"

    begun = at_once(count, begin)
    return connections, begun


def beside_uploads(server, connections, begun):
    """Whether others can put something meanwhile; ends the uploads."""
    started = time.monotonic()
    answers = Counter(server.ask("PUT", f"/abuse/beside/{n}", bytes(4 * MIB)) for n in range(4))
    took = (time.monotonic() - started) / 4
    for one in connections:
        one.close()
    answered = ", ".join(f"{count} x {answer}" for answer, count in answers.items())
    return f"{begun}; 4 MiB beside them {answered}, {took:.1f} s each"


def uploads_that_stop(server, _, length=16 * MIB, sent=400 << 10):
    connections, begun = begin_uploads(server, 700, length, sent)
    time.sleep(3)
    return beside_uploads(server, connections, begun)


def short_uploads_that_stop(server, _):
    return uploads_that_stop(server, _, 250 << 10, 240 << 10)


def uploads_that_go_on_slowly(server, _):
    connections, begun = begin_uploads(server, 700, 16 * MIB, 400 << 10)
    is_over = threading.Event()

    def go_on():
        for one in connections:
            one.setblocking(False)
        while not is_over.wait(0.05):
            for one in connections:
                try:
                    one.send(bytes(16 << 10))
                except BlockingIOError:
                    pass

    going_on = threading.Thread(target=go_on)
    going_on.start()
    time.sleep(10)
    try:
        return beside_uploads(server, [], begun)
    finally:
        is_over.set()
        going_on.join()
        for one in connections:
            one.close()


def slow_versions(server, _):
    server.ask("PUT", "/abuse?versioning", b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    return at_once(64, lambda n: server.ask("PUT", "/abuse/versions", bytes(8 * MIB)))


ABUSES = [long_chunk_unsigned, long_chunk_signed, long_body_as_form, listings_of_long_metadata, long_headers,
          long_xml, idle_connections, slow_readers_of_one_object, slow_readers_of_many_objects, uploads_that_stop,
          short_uploads_that_stop, uploads_that_go_on_slowly, slow_versions]


def main():
    program = sys.argv[1]
    length = int(sys.argv[2]) * MIB if len(sys.argv) > 2 else 700 * MIB
    directory = tempfile.mkdtemp()
    worst = 0
    try:
        print("| abuse | answered | peak RSS, MB | seconds |\n|---|---|---|---|")
        for abuse in [abuse for abuse in ABUSES if not sys.argv[3:] or abuse.__name__ in sys.argv[3:]]:
            # A server each: what one leaves in caches is not the next one's.
            place = os.path.join(directory, abuse.__name__)
            os.mkdir(place)
            server = Server(program, place, getattr(abuse, "settings", ()))
            try:
                assert server.ask("PUT", "/abuse") == 200
                server.forget_peak()
                started = time.monotonic()
                answered = abuse(server, length)
                took = time.monotonic() - started
                peak = server.status("VmHWM")
                worst = max(worst, peak)
                print(f"| {abuse.__name__.replace('_', ' ')} | {answered} | {peak / 1e6:.0f} | {took:.1f} |", flush=True)
            finally:
                server.stop()
                shutil.rmtree(place)
    finally:
        shutil.rmtree(directory)
    if worst > MOST_BYTES:
        raise SystemExit(f"the peak of {worst / 1e6:.0f} MB is over {MOST_BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
