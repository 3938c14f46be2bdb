"""S3 servers to be measured, each over a store of its own: Terrace and Garage."""

import html
import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
import urllib.parse

import boto3
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from load import KIB


class Server:
    """A running process that answers S3 requests at a URL. Any that it is asked for is signed."""

    region = "us-east-1"

    def __init__(self, process, url, key):
        self.process, self.url = process, url
        self.credentials = Credentials(key["access_key_id"], key["secret_access_key"])
        config = Config(s3={"addressing_style": "path"}, signature_version="s3v4", retries={"max_attempts": 1})
        self.s3 = boto3.client("s3", endpoint_url=url, aws_access_key_id=self.credentials.access_key,
                               aws_secret_access_key=self.credentials.secret_key, region_name=self.region, config=config)

    def presigned(self, method, bucket, keys=("",), **query):
        """Paths with queries that are signatures."""
        signer = S3SigV4QueryAuth(self.credentials, "s3", self.region, expires=86_400)
        for key in keys:
            request = AWSRequest(method, f"{self.url}/{bucket}/{urllib.parse.quote(key)}", params=query)
            signer.add_auth(request)
            parts = urllib.parse.urlsplit(request.url)
            yield f"{parts.path}?{parts.query}"

    def connect(self):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc)
        connection.connect()
        return connection

    def page(self, connection, bucket, **query):
        """Seconds that a page of a listing took, without signing and reading XML; how many keys it has; the token of the next one."""
        path, = self.presigned("GET", bucket, **{"list-type": "2", "max-keys": "1000", **query})
        started = time.monotonic()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        seconds = time.monotonic() - started
        assert answer.status == 200, (answer.status, body[:300])
        token = re.search(b"<NextContinuationToken>(.*)</NextContinuationToken>", body)
        return seconds, body.count(b"<Key>"), token and html.unescape(token[1].decode())

    def list(self, bucket, keys):
        """Seconds that a listing takes page by page, from the first key on until there are so many."""
        connection = self.connect()
        seconds, listed, query = 0, 0, {}
        while listed < keys:
            page_seconds, page_keys, token = self.page(connection, bucket, **query)
            seconds, listed, query = seconds + page_seconds, listed + page_keys, {"continuation-token": token}
            assert token or listed == keys, f"{listed} keys are all that is listed"
        connection.close()
        return seconds

    def memory(self, name):
        """A line of what the kernel knows of the process, in bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * KIB for line in status if line.startswith(name + ":"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Terrace(Server):
    """The program over a store, with settings as they are called in the file."""

    def __init__(self, program, store, key=None, **settings):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TERRACE_")}
        environment.update({"TERRACE_" + name.upper(): str(value) for name, value in settings.items()})
        if key is None:
            made = subprocess.run([program, "key", "create", "--store", store, "--allow", "*=admin", "--json"], check=True,
                                  capture_output=True, text=True, env=environment)
            key = json.loads(made.stdout)
        self.key = key
        started = time.monotonic()
        arguments = [program, "serve", "--store", store, "--listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        process.stdout.readline()
        url = process.stdout.readline().split("/ (S3)")[0]
        self.opened_seconds = time.monotonic() - started
        super().__init__(process, url, key)


# One node that keeps one copy, its listings and its data on one drive. Bodies that are measured cannot be compressed, so it does not try.
# Everything else is as Garage has it by itself.
GARAGE = """
metadata_dir = "%(store)s/meta"
data_dir = "%(store)s/data"
metadata_fsync = %(sync)s
data_fsync = %(sync)s
db_engine = "lmdb"
replication_factor = 1
compression_level = "none"
rpc_bind_addr = "127.0.0.1:%(rpc_port)d"
rpc_public_addr = "127.0.0.1:%(rpc_port)d"
rpc_secret = "%(secret)s"

[s3_api]
api_bind_addr = "127.0.0.1:%(port)d"
s3_region = "us-east-1"
"""


class Garage(Server):
    """Garage over a new store. Synced, it answers writes when listings and data are on the drive."""

    def __init__(self, program, store, synced=False):
        port, rpc_port = free_ports(2)
        os.makedirs(store)
        self.command = [program, "-c", f"{store}/garage.toml"]
        with open(self.command[2], "w") as settings:
            settings.write(GARAGE % {"store": store, "sync": str(synced).lower(), "secret": secrets.token_hex(32),
                                     "port": port, "rpc_port": rpc_port})
        os.chmod(self.command[2], 0o600)
        self.log = open(f"{store}/garage.log", "w")
        # Its log has a line for each request, which would be measured too.
        environment = {**os.environ, "RUST_LOG": "garage=warn,netapp=warn"}
        process = subprocess.Popen([*self.command, "server", "--single-node"], env=environment, stdout=self.log, stderr=self.log)
        wait_for(port, process)
        made = json.loads(self.ask("json-api", "CreateKey", '{"name": "measure", "allow": {"createBucket": true}}'))
        super().__init__(process, f"http://127.0.0.1:{port}",
                         {"access_key_id": made["accessKeyId"], "secret_access_key": made["secretAccessKey"]})

    def ask(self, *arguments):
        return subprocess.run([*self.command, *arguments], check=True, capture_output=True, text=True).stdout

    def stop(self):
        super().stop()
        self.log.close()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [open_socket.getsockname()[1] for open_socket in sockets]
    for open_socket in sockets:
        open_socket.close()
    return ports


def wait_for(port, process):
    """Until somebody listens."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert process.poll() is None, "it has ended"
            time.sleep(0.1)
    raise TimeoutError(f"nobody listens at port {port}")
