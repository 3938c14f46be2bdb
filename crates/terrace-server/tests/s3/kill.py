"""Kills a server again and again while clients put, replace, delete and upload in parts, and looks at what is left.

    kill.py TERRACE DIRECTORY CYCLES [versions]

What was acknowledged must be there, byte for byte; what was not must be whole or as it was before; uploads must go on
where they were; and when everything has been deleted nothing may be left in the store. With "versions" the bucket has
versioning, and every version and delete marker that was acknowledged must be there, in its order. Ends with 1 if not.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

TERRACE, DIRECTORY, CYCLES = sys.argv[1], sys.argv[2], int(sys.argv[3])
VERSIONS = sys.argv[4:] == ["versions"]
STORE = os.path.join(DIRECTORY, "store")
SECONDS = 1.5
WRITERS = 6
LENGTHS = [0, 10, 5000, 100_000, 262_144, 300_000, 1_500_000]
PART = 5 << 20
VERSIONS_KEPT = 6


def terrace(*arguments):
    return subprocess.run([TERRACE, *arguments, "--store", STORE], check=True, capture_output=True, text=True).stdout


class Server:
    def __init__(self):
        environment = dict(os.environ, TERRACE_SEGMENT_SIZE="4MiB", TERRACE_FLASH_CAPACITY="1GiB",
                           TERRACE_LOG="error")
        arguments = [TERRACE, "serve", "--store", STORE, "--listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        self.process.stdout.readline()
        self.endpoint = self.process.stdout.readline().split("/ (S3)")[0]

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait()


def client(server, key):
    # A client that sends again what it thinks is lost makes two versions of it, of which it is told one.
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}, connect_timeout=60, read_timeout=600)
    return boto3.client("s3", endpoint_url=server.endpoint, aws_access_key_id=key["access_key_id"],
                        aws_secret_access_key=key["secret_access_key"], region_name="us-east-1", config=config)


def content(chance, length):
    return chance.randbytes(length)


def write(s3, writer, chance, held, doubt, history, stop):
    """Changes keys of its own. `held` is what must be there: MD5 by key, None if deleted; `doubt` what may be there instead;
    `history` the versions of each key, with their MD5s."""
    while not stop.is_set():
        key = f"w{writer}/{chance.randrange(20)}"
        body = content(chance, chance.choice(LENGTHS))
        deletes = chance.random() < 0.2
        new = None if deletes else hashlib.md5(body).hexdigest()
        doubt[key] = new
        try:
            if deletes:
                answer = s3.delete_object(Bucket="bucket", Key=key)
            else:
                answer = s3.put_object(Bucket="bucket", Key=key, Body=body)
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError):
                raise
            return
        held[key] = new
        del doubt[key]
        if VERSIONS:
            history.setdefault(key, []).append((answer["VersionId"], new))


def upload(s3, chance, state):
    """Sends parts of one upload; each that is acknowledged must be there after a kill."""
    try:
        if "id" not in state:
            state["id"] = s3.create_multipart_upload(Bucket="bucket", Key="parts")["UploadId"]
        while len(state["parts"]) < 8:
            number = len(state["parts"]) + 1
            body = content(chance, PART)
            etag = s3.upload_part(Bucket="bucket", Key="parts", UploadId=state["id"], PartNumber=number, Body=body)["ETag"]
            state["parts"].append((number, etag))
            state["bytes"].append(body)
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in state["parts"]]
        s3.complete_multipart_upload(Bucket="bucket", Key="parts", UploadId=state["id"], MultipartUpload={"Parts": parts})
        state["complete"] = True
    except BotoCoreError:
        pass


def found(s3, key):
    try:
        answer = s3.get_object(Bucket="bucket", Key=key)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "NoSuchKey", error
        return None
    digest = hashlib.md5(answer["Body"].read()).hexdigest()
    assert "-" in answer["ETag"] or answer["ETag"] == f'"{digest}"', f"{key} is not what its entity tag says"
    return digest


def listed_versions(s3):
    """Of each key, from the oldest on: ID and MD5, which is None for a delete marker."""
    versions = {}
    for page in s3.get_paginator("list_object_versions").paginate(Bucket="bucket"):
        entries = page.get("Versions", []) + page.get("DeleteMarkers", [])
        # The two come apart; IDs of a key rise with time.
        for entry in entries:
            digest = entry["ETag"].strip('"') if "ETag" in entry else None
            versions.setdefault(entry["Key"], []).append((entry["VersionId"], digest))
    return {key: sorted(entries) for key, entries in versions.items()}


def look_at_versions(s3, chance, doubt, history):
    versions = listed_versions(s3)
    for key in history.keys() | doubt.keys():
        there, known = versions.get(key, []), history.get(key, [])
        assert [entry for entry in there if entry in known] == known, f"{key}: {known} is not in order in {there}"
        more = [entry for entry in there if entry not in known]
        allowed = [doubt[key]] if key in doubt else []
        assert [digest for _, digest in more] in ([], allowed), f"{key}: nobody put {more}"
        history[key] = there
        for name, digest in [entry for entry in there if entry[1] and chance.random() < 0.1]:
            body = s3.get_object(Bucket="bucket", Key=key, VersionId=name)["Body"].read()
            assert hashlib.md5(body).hexdigest() == digest, f"{key} {name} has other bytes"
        while len(history[key]) > VERSIONS_KEPT:
            s3.delete_object(Bucket="bucket", Key=key, VersionId=history[key].pop(0)[0])


def look(s3, held, doubt, state):
    for key in held.keys() | doubt.keys():
        there = found(s3, key)
        allowed = [held.get(key)] + ([doubt[key]] if key in doubt else [])
        assert there in allowed, f"{key}: {there} is none of {allowed}"
        held[key] = there
    doubt.clear()
    if state.get("complete"):
        assert found(s3, "parts") == hashlib.md5(b"".join(state["bytes"])).hexdigest()
        state.clear()
        state.update(parts=[], bytes=[])
        return
    if "id" in state:
        try:
            listed = s3.list_parts(Bucket="bucket", Key="parts", UploadId=state["id"])["Parts"]
        except ClientError as error:
            # Completed, and killed before the answer.
            assert error.response["Error"]["Code"] == "NoSuchUpload" and len(state["parts"]) == 8, error
            state["complete"] = True
            return look(s3, {}, {}, state)
        except KeyError:
            listed = []
        tags = {part["PartNumber"]: part["ETag"] for part in listed}
        assert all(tags.get(number) == etag for number, etag in state["parts"]), (tags, state["parts"])


def main():
    seed = int(os.environ.get("KILL_SEED", time.time_ns()))
    print(f"seed {seed}")
    chance = random.Random(seed)
    key = json.loads(terrace("key", "create", "--allow", "*=admin", "--json"))
    held, doubt, history, state = {}, {}, {}, {"parts": [], "bytes": []}
    server = Server()
    s3 = client(server, key)
    s3.create_bucket(Bucket="bucket")
    if VERSIONS:
        s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    for cycle in range(CYCLES):
        s3 = client(server, key)
        stop = threading.Event()
        work = [threading.Thread(target=write, args=(s3, writer, random.Random(chance.random()), held, doubt, history, stop))
                for writer in range(WRITERS)]
        work.append(threading.Thread(target=upload, args=(s3, random.Random(chance.random()), state)))
        [thread.start() for thread in work]
        time.sleep(chance.random() * SECONDS)
        server.end(signal.SIGKILL)
        stop.set()
        [thread.join() for thread in work]
        server = Server()
        if VERSIONS:
            look_at_versions(client(server, key), chance, doubt, history)
        look(client(server, key), held, doubt, state)
    s3 = client(server, key)
    for name in list(held) + ["parts"]:
        s3.delete_object(Bucket="bucket", Key=name)
    for name, entries in listed_versions(s3).items() if VERSIONS else ():
        for version, _ in entries:
            s3.delete_object(Bucket="bucket", Key=name, VersionId=version)
    for entry in s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []):
        s3.abort_multipart_upload(Bucket="bucket", Key=entry["Key"], UploadId=entry["UploadId"])
    s3.delete_bucket(Bucket="bucket")
    for _ in range(30):
        server.end(signal.SIGTERM)
        left = terrace("ls").splitlines()
        if len(left) == 1:
            print(f"{CYCLES} kills, {len(held)} keys{' with versions' * VERSIONS}: all as it should be")
            return
        server = Server()
        time.sleep(1)
    server.end(signal.SIGTERM)
    sys.exit(f"left over: {left}")


main()
