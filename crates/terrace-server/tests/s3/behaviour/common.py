"""What the files of this directory share: clients of two accounts and of nobody, requests by hand, and checks that count."""

import base64
import datetime
import hashlib
import json
import os
import re
import sys
import time
import urllib.parse
import uuid
import zlib

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from by_hand import code_of, sender

ENDPOINT, ACCESS_KEY, SECRET_KEY, OTHER_KEY, OTHER_SECRET = sys.argv[1:6]
HOST = ENDPOINT.split("//")[1].rstrip("/")
MIB = 1 << 20
FAILED = []
COUNTED = 0


def client(access_key, secret_key, **config):
    config.setdefault("signature_version", "s3v4")
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(
            s3={"addressing_style": "path"}, retries={"max_attempts": 1}, read_timeout=300, parameter_validation=False, **config
        ),
    )


S3 = client(ACCESS_KEY, SECRET_KEY)
OTHER = client(OTHER_KEY, OTHER_SECRET)
ANYBODY = client(ACCESS_KEY, SECRET_KEY, signature_version=botocore.UNSIGNED)
OWNER_ID = S3.list_buckets()["Owner"]["ID"]
OTHER_ID = OTHER.list_buckets()["Owner"]["ID"]


def check(name, found, expected):
    """Counts a behaviour, and notes it if it is another one."""
    global COUNTED
    COUNTED += 1
    if found != expected:
        FAILED.append(name)
        print(f"FAILED  {name}: {found!r} instead of {expected!r}")


def holds(name, condition):
    check(name, bool(condition), True)


def call(expected, operation, who=S3, **arguments):
    """A call through boto3 that ends with `expected`: a status, or a status and a code. Gives the answer or the error."""
    try:
        answer = getattr(who, operation)(**arguments)
    except ClientError as error:
        answer = error.response
    status, code = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("Error", {}).get("Code")
    expected = expected if isinstance(expected, tuple) else (expected, None)
    if operation.startswith("head_") and code:
        # The answer to a HEAD has no body and so no code.
        expected, code = (expected[0], None), None
    check(f"{operation} {str(arguments)[:160]}", (status, code), expected)
    return answer


def put(bucket, *keys, **more):
    for key in keys:
        S3.put_object(Bucket=bucket, Key=key, **{"Body": b"x", **more})


send = sender(ENDPOINT, ACCESS_KEY, SECRET_KEY)


def answers(expected, *arguments, **more):
    """What a request by hand is answered with."""
    expected = expected if isinstance(expected, tuple) else (expected, None)
    answer = send(*arguments, **more)
    check(f"{str(arguments)[:160]} {str(more)[:100]}", answer[:2], expected)
    return answer


def presigned(operation, seconds=600, who=S3, **arguments):
    return who.generate_presigned_url(operation, arguments, seconds)[len(ENDPOINT.rstrip("/")) :]


def keys(answer):
    return [entry["Key"] for entry in answer.get("Contents", [])]


def prefixes(answer):
    return [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])]


def body(answer):
    return answer["Body"].read() if "Body" in answer else None


def md5(content):
    return base64.b64encode(hashlib.md5(content).digest()).decode()


def sha256(content):
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def checksum(algorithm, content):
    """As S3 has it; boto3 makes some of them only with a library that it does not bring along."""
    if algorithm.startswith("SHA"):
        return base64.b64encode(hashlib.new(algorithm.lower(), content).digest()).decode()
    bits, polynomial = {"CRC32": (32, 0xEDB88320), "CRC32C": (32, 0x82F63B78), "CRC64NVME": (64, 0x9A6C9329AC4BC9B5)}[algorithm]
    ones = (1 << bits) - 1
    rest = zlib.crc32(content) if algorithm == "CRC32" else ones
    for byte in content if algorithm != "CRC32" else b"":
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (polynomial if rest & 1 else 0)
    return base64.b64encode((rest if algorithm == "CRC32" else rest ^ ones).to_bytes(bits // 8, "big")).decode()


def new_bucket(who=S3, **more):
    bucket = f"t-{uuid.uuid4().hex[:16]}"
    who.create_bucket(Bucket=bucket, **more)
    BUCKETS.append((who, bucket))
    return bucket


BUCKETS = []


def empty(who, bucket):
    """Deletes a bucket with all that is in it, locks notwithstanding."""
    for upload in who.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        who.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    while True:
        page = who.list_object_versions(Bucket=bucket)
        entries = page.get("Versions", []) + page.get("DeleteMarkers", [])
        if not entries:
            break
        objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
        errors = who.delete_objects(Bucket=bucket, Delete={"Objects": objects}, BypassGovernanceRetention=True).get("Errors", [])
        for error in errors:
            who.put_object_legal_hold(Bucket=bucket, Key=error["Key"], VersionId=error["VersionId"], LegalHold={"Status": "OFF"})
    who.delete_bucket(Bucket=bucket)


def run(groups):
    """Runs each function with a bucket of its own."""
    for group in groups:
        before, counted, began = len(FAILED), COUNTED, time.monotonic()
        try:
            group(new_bucket())
        except Exception as error:  # what a server answers must not end the tests of the others
            FAILED.append(group.__name__)
            trace = error.__traceback__
            while trace.tb_next and "botocore" not in trace.tb_next.tb_frame.f_code.co_filename:
                trace = trace.tb_next
            print(f"FAILED  {group.__name__}: line {trace.tb_lineno}: {error!r}")
        for who, bucket in BUCKETS:
            try:
                empty(who, bucket)
            except ClientError as error:
                check(f"{group.__name__}: emptying its bucket", str(error), None)
        BUCKETS.clear()
        state = "ok     " if len(FAILED) == before else "WRONG  "
        print(f"{state} {group.__module__}.{group.__name__}: {COUNTED - counted} in {time.monotonic() - began:.1f} s")
