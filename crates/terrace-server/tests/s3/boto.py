"""What an application does through boto3, with the checksums it sends by default.

    boto.py ENDPOINT ACCESS_KEY SECRET_KEY

Each function whose name begins with test_ gets a client and a bucket of its own. Ends with 1 if one fails.
"""

import base64
import datetime
import hashlib
import hmac
import io
import json
import re
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
import uuid

import boto3
import botocore
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS_KEY, SECRET_KEY = sys.argv[1:4]
MIB = 1 << 20


def client(**config):
    config.setdefault("retries", {"max_attempts": 1})
    # A request that is sent again because the machine was busy would be done twice.
    config.setdefault("read_timeout", 600)
    # By default boto3 presigns with version 2.
    config.setdefault("signature_version", "s3v4")
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, **config),
    )


def data(length, seed=1):
    block = hashlib.sha256(bytes([seed])).digest() * 32
    blocks = (length + len(block)) // len(block)
    return b"".join(n.to_bytes(8, "little") + block[8:] for n in range(blocks))[:length]


def fails(status, code, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ClientError as error:
        found = (error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"])
        assert found == (status, code), f"{found} instead of {(status, code)}"
        return error.response
    raise AssertionError(f"succeeded instead of {code}")


def eventually(look, expected):
    """Waits for what the server does by itself, as long as it may take on a busy machine."""
    end = time.monotonic() + 120
    while (found := look()) != expected:
        assert time.monotonic() < end, found
        time.sleep(0.1)


def body(answer):
    return answer["Body"].read()


def keys(answer):
    return [entry["Key"] for entry in answer.get("Contents", [])]


def prefixes(answer):
    return [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])]


def fetch(url, method="GET", headers={}, content=None):
    request = urllib.request.Request(url, method=method, headers=headers, data=content)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_buckets(s3, bucket):
    assert bucket in [found["Name"] for found in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket=bucket)
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    s3.create_bucket(Bucket=bucket)
    fails(404, "404", s3.head_bucket, Bucket=bucket + "-not")
    fails(404, "NoSuchBucket", s3.list_objects_v2, Bucket=bucket + "-not")
    fails(404, "NoSuchBucket", s3.put_object, Bucket=bucket + "-not", Key="a", Body=b"")
    s3.put_object(Bucket=bucket, Key="a", Body=b"")
    fails(409, "BucketNotEmpty", s3.delete_bucket, Bucket=bucket)
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)


def test_objects_of_many_lengths(s3, bucket):
    for length in [0, 1, 64, 65, 5000, 131071, 131072, 262143, 262144, 262145, 524288, 524289, 3 * MIB + 17]:
        content = data(length)
        put = s3.put_object(Bucket=bucket, Key=f"l/{length}", Body=content)
        assert put["ETag"] == f'"{hashlib.md5(content).hexdigest()}"', length
        got = s3.get_object(Bucket=bucket, Key=f"l/{length}")
        assert got["ContentLength"] == length and body(got) == content, length
        head = s3.head_object(Bucket=bucket, Key=f"l/{length}")
        assert head["ContentLength"] == length and head["ETag"] == put["ETag"], length
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=f"l/{length}", MaxKeys=1)["Contents"][0]
        assert listed["Size"] == length and listed["ETag"] == put["ETag"], length
        assert listed["LastModified"] == head["LastModified"], length


def test_errors_are_numbered(s3, bucket):
    error = fails(404, "NoSuchKey", s3.get_object, Bucket=bucket, Key="a & b")
    number = error["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]
    assert error["ResponseMetadata"]["RequestId"] == number and error["Error"]["Resource"] == f"/{bucket}/a%20%26%20b"


def test_keys(s3, bucket):
    odd = ["a/b/c", "/lead", "a//b", "trail/", "ü/日本/🎉", "a b+c&d=e?f#g%h", "..", "../x", "a/./b", "'\"<>&", "x" * 1024,
           "line\nfeed", "%2F", "*", "~-_."]
    for key in odd:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in odd:
        assert body(s3.get_object(Bucket=bucket, Key=key)) == key.encode(), key
    assert keys(s3.list_objects_v2(Bucket=bucket)) == sorted(odd, key=lambda key: key.encode())
    fails(400, "KeyTooLongError", s3.put_object, Bucket=bucket, Key="x" * 1025, Body=b"")
    fails(404, "NoSuchKey", s3.get_object, Bucket=bucket, Key="none")
    fails(404, "404", s3.head_object, Bucket=bucket, Key="none")


def test_ranges(s3, bucket):
    for length in [10, 700000]:
        content = data(length)
        s3.put_object(Bucket=bucket, Key="r", Body=content)
        for header, part in [("bytes=0-0", content[:1]), ("bytes=3-", content[3:]), ("bytes=-4", content[-4:]),
                             ("bytes=2-99999999", content[2:]), ("bytes=-99999999", content)]:
            got = s3.get_object(Bucket=bucket, Key="r", Range=header)
            assert body(got) == part and got["ResponseMetadata"]["HTTPStatusCode"] == 206, (length, header)
            start = length - len(part) if header != "bytes=0-0" else 0
            assert got["ContentRange"] == f"bytes {start}-{start + len(part) - 1}/{length}", got["ContentRange"]
        answer = fails(416, "InvalidRange", s3.get_object, Bucket=bucket, Key="r", Range=f"bytes={length}-")
        assert answer["ResponseMetadata"]["HTTPHeaders"]["content-range"] == f"bytes */{length}"
        head = s3.head_object(Bucket=bucket, Key="r", Range="bytes=1-3")
        assert head["ContentLength"] == 3 and head["ResponseMetadata"]["HTTPStatusCode"] == 206
    s3.put_object(Bucket=bucket, Key="empty", Body=b"")
    fails(416, "InvalidRange", s3.get_object, Bucket=bucket, Key="empty", Range="bytes=0-1")
    fails(416, "InvalidRange", s3.get_object, Bucket=bucket, Key="empty", Range="bytes=-1")


def test_conditions_on_reading(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="c", Body=b"x")["ETag"]
    modified = s3.head_object(Bucket=bucket, Key="c")["LastModified"]
    for call in [s3.get_object, s3.head_object]:
        name = lambda code: {"PreconditionFailed": "412", "NotModified": "304"}[code] if call == s3.head_object else code
        call(Bucket=bucket, Key="c", IfMatch=etag)
        call(Bucket=bucket, Key="c", IfNoneMatch='"other"')
        call(Bucket=bucket, Key="c", IfUnmodifiedSince=modified)
        fails(412, name("PreconditionFailed"), call, Bucket=bucket, Key="c", IfMatch='"other"')
        answer = fails(304, "304", call, Bucket=bucket, Key="c", IfNoneMatch=etag)
        assert answer["ResponseMetadata"]["HTTPHeaders"]["etag"] == etag
        fails(304, "304", call, Bucket=bucket, Key="c", IfModifiedSince=modified)


def test_conditions_on_writing(s3, bucket):
    put = lambda **more: s3.put_object(Bucket=bucket, Key="k", Body=b"1", **more)
    fails(404, "NoSuchKey", put, IfMatch='"x"')
    first = put(IfNoneMatch="*")["ETag"]
    fails(412, "PreconditionFailed", put, IfNoneMatch="*")
    fails(412, "PreconditionFailed", put, IfMatch='"x"')
    put(IfMatch=first)
    fails(412, "PreconditionFailed", s3.delete_object, Bucket=bucket, Key="k", IfMatch='"x"')
    s3.delete_object(Bucket=bucket, Key="k", IfMatch=first)
    s3.delete_object(Bucket=bucket, Key="k")
    won = []

    def race(number):
        try:
            client().put_object(Bucket=bucket, Key="race", Body=data(300000, number), IfNoneMatch="*")
            won.append(number)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed", error
    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(won) == 1 and body(s3.get_object(Bucket=bucket, Key="race")) == data(300000, won[0])


def test_headers_and_metadata(s3, bucket):
    given = {"ContentType": "text/plain; charset=utf-8", "CacheControl": "max-age=60", "ContentDisposition": "inline",
             "ContentEncoding": "gzip", "ContentLanguage": "de"}
    s3.put_object(Bucket=bucket, Key="h", Body=b"x", Metadata={"colour": "green", "Two": "b c"}, **given)
    for answer in [s3.get_object(Bucket=bucket, Key="h"), s3.head_object(Bucket=bucket, Key="h")]:
        assert answer["Metadata"] == {"colour": "green", "two": "b c"}
        assert {name: answer[name] for name in given} == given
    s3.put_object(Bucket=bucket, Key="plain", Body=b"x")
    assert s3.head_object(Bucket=bucket, Key="plain")["ContentType"] == "binary/octet-stream"
    got = s3.get_object(Bucket=bucket, Key="h", ResponseContentType="a/b", ResponseCacheControl="no-cache")
    assert got["ContentType"] == "a/b" and got["CacheControl"] == "no-cache"
    fails(400, "MetadataTooLarge", s3.put_object, Bucket=bucket, Key="h", Body=b"", Metadata={"a": "x" * 2048})


def test_checksums(s3, bucket):
    sha256 = lambda content: base64.b64encode(hashlib.sha256(content).digest()).decode()
    for length in [10, 600000]:
        content = data(length)
        for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
            try:
                put = s3.put_object(Bucket=bucket, Key="s", Body=content, ChecksumAlgorithm=algorithm)
            except botocore.exceptions.MissingDependencyException:
                continue  # this client lacks it
            name = f"Checksum{algorithm}"
            got = s3.get_object(Bucket=bucket, Key="s", ChecksumMode="ENABLED")
            assert got[name] == put[name] and got["ChecksumType"] == "FULL_OBJECT", algorithm
            assert body(got) == content
            assert s3.head_object(Bucket=bucket, Key="s", ChecksumMode="ENABLED")[name] == put[name]
        assert put["ChecksumSHA256"] == sha256(content)
        stream = io.BytesIO(content)
        put = s3.put_object(Bucket=bucket, Key="s", Body=stream, ChecksumAlgorithm="SHA256")
        assert put["ChecksumSHA256"] == sha256(content)
        fails(400, "BadDigest", s3.put_object, Bucket=bucket, Key="s", Body=content, ChecksumSHA256=sha256(b"other"))
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
        s3.put_object(Bucket=bucket, Key="s", Body=content, ContentMD5=md5)
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        fails(400, "BadDigest", s3.put_object, Bucket=bucket, Key="s", Body=content, ContentMD5=wrong)
        fails(400, "InvalidDigest", s3.put_object, Bucket=bucket, Key="s", Body=content, ContentMD5="x")
        assert body(s3.get_object(Bucket=bucket, Key="s")) == content, "a refused body replaces nothing"


def test_body_that_is_not_what_was_signed(s3, bucket):
    """A body changed on its way is refused, whether its hash is in the head or chunks are signed."""
    for length in [100, 400000]:
        broken = client(request_checksum_calculation="when_required")
        broken.meta.events.register("before-send.s3.PutObject", lambda request, **_: swap(request))
        signed = Config(s3={"addressing_style": "path", "payload_signing_enabled": True}, retries={"max_attempts": 1},
                        request_checksum_calculation="when_required")
        broken = boto3.client("s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS_KEY, region_name="us-east-1",
                              aws_secret_access_key=SECRET_KEY, config=signed)
        broken.meta.events.register("before-send.s3.PutObject", lambda request, **_: swap(request))
        fails(400, "XAmzContentSHA256Mismatch", broken.put_object, Bucket=bucket, Key="w", Body=data(length))
        fails(404, "NoSuchKey", s3.get_object, Bucket=bucket, Key="w")


def swap(request):
    content = request.body if isinstance(request.body, bytes) else request.body.read()
    request.body = content[:-1] + bytes([content[-1] ^ 1])


def test_listing(s3, bucket):
    names = [f"{letter}/{number:03}" for letter in "abc" for number in range(30)] + ["a", "b-", "z"]
    for name in names:
        s3.put_object(Bucket=bucket, Key=name, Body=b"")
    names.sort(key=lambda name: name.encode())
    answer = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert prefixes(answer) == ["a/", "b/", "c/"] and keys(answer) == ["a", "b-", "z"] and answer["KeyCount"] == 6
    assert not answer["IsTruncated"]
    for delimiter in [None, "/"]:
        for size in [1, 2, 7, 93, 94]:
            more = {"Delimiter": delimiter} if delimiter else {}
            pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": size}, **more))
            found = [key for page in pages for key in keys(page) + prefixes(page)]
            assert sorted(found) == (["a", "a/", "b-", "b/", "c/", "z"] if delimiter else names), (delimiter, size)
            assert all(page["KeyCount"] <= size for page in pages)
            pages = list(s3.get_paginator("list_objects").paginate(Bucket=bucket, PaginationConfig={"PageSize": size}, **more))
            assert sorted(key for page in pages for key in keys(page) + prefixes(page)) == sorted(found)
    assert keys(s3.list_objects_v2(Bucket=bucket, StartAfter="c/028")) == ["c/029", "z"]
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="b")) == [name for name in names if name.startswith("b")]
    empty = s3.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert keys(empty) == [] and not empty["IsTruncated"] and empty["KeyCount"] == 0
    fails(400, "InvalidArgument", s3.list_objects_v2, Bucket=bucket, ContinuationToken="!")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="a/"):
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys(page)]})
    assert prefixes(s3.list_objects_v2(Bucket=bucket, Delimiter="/")) == ["b/", "c/"], "no phantom prefixes"
    versions = s3.list_object_versions(Bucket=bucket, MaxKeys=3)
    assert [entry["VersionId"] for entry in versions["Versions"]] == ["null"] * 3 and versions["IsTruncated"]


def test_deleting_many(s3, bucket):
    for number in range(20):
        s3.put_object(Bucket=bucket, Key=f"d{number}", Body=data(300000 if number % 5 == 0 else 1))
    listed = [{"Key": f"d{number}"} for number in range(19)] + [{"Key": "never there"}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": listed})
    assert len(answer["Deleted"]) == 20 and "Errors" not in answer
    assert keys(s3.list_objects_v2(Bucket=bucket)) == ["d19"]
    quiet = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "d19"}], "Quiet": True})
    assert "Deleted" not in quiet
    too_many = [{"Key": str(number)} for number in range(1001)]
    fails(400, "MalformedXML", s3.delete_objects, Bucket=bucket, Delete={"Objects": too_many})


def test_copying(s3, bucket):
    for length in [10, 400000]:
        content = data(length)
        s3.put_object(Bucket=bucket, Key="from ü", Body=content, Metadata={"a": "1"}, ContentType="x/y", Tagging="t=1")
        source = {"Bucket": bucket, "Key": "from ü"}
        copied = s3.copy_object(Bucket=bucket, Key="to", CopySource=source)["CopyObjectResult"]
        assert copied["ETag"] == f'"{hashlib.md5(content).hexdigest()}"'
        got = s3.get_object(Bucket=bucket, Key="to")
        assert body(got) == content and got["Metadata"] == {"a": "1"} and got["ContentType"] == "x/y"
        assert s3.get_object_tagging(Bucket=bucket, Key="to")["TagSet"] == [{"Key": "t", "Value": "1"}]
        s3.copy_object(Bucket=bucket, Key="to", CopySource=source, Metadata={"b": "2"}, MetadataDirective="REPLACE")
        assert s3.head_object(Bucket=bucket, Key="to")["Metadata"] == {"b": "2"}
        itself = {"Bucket": bucket, "Key": "to"}
        fails(400, "InvalidRequest", s3.copy_object, Bucket=bucket, Key="to", CopySource=itself)
        s3.copy_object(Bucket=bucket, Key="to", CopySource=itself, Metadata={"c": "3"}, MetadataDirective="REPLACE")
        got = s3.get_object(Bucket=bucket, Key="to")
        assert body(got) == content and got["Metadata"] == {"c": "3"}
        fails(412, "PreconditionFailed", s3.copy_object, Bucket=bucket, Key="to", CopySource=source, CopySourceIfMatch='"x"')
    fails(404, "NoSuchKey", s3.copy_object, Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "none"})


def test_multipart(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="m", Metadata={"a": "1"}, ContentType="x/y")["UploadId"]
    which = {"Bucket": bucket, "Key": "m", "UploadId": upload}
    contents = {1: data(5 * MIB, 1), 2: data(5 * MIB, 2), 7: data(12345, 3)}
    s3.upload_part(PartNumber=2, Body=data(5 * MIB, 9), **which)
    tags = {number: s3.upload_part(PartNumber=number, Body=contents[number], **which)["ETag"] for number in [7, 2, 1]}
    found = s3.list_parts(**which)["Parts"]
    assert [(part["PartNumber"], part["Size"], part["ETag"]) for part in found] == [
        (number, len(contents[number]), tags[number]) for number in [1, 2, 7]]
    assert s3.list_parts(MaxParts=1, PartNumberMarker=1, **which)["Parts"][0]["PartNumber"] == 2
    uploads = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [(entry["Key"], entry["UploadId"]) for entry in uploads] == [("m", upload)]
    complete = lambda numbers: s3.complete_multipart_upload(
        MultipartUpload={"Parts": [{"PartNumber": number, "ETag": tags.get(number, '"0"')} for number in numbers]}, **which)
    fails(400, "InvalidPartOrder", complete, [2, 1])
    fails(400, "InvalidPart", complete, [1, 3])
    fails(400, "EntityTooSmall", s3_small_complete, s3, bucket)
    fails(404, "NoSuchKey", s3.get_object, Bucket=bucket, Key="m")
    done = complete([1, 2, 7])
    again = complete([1, 2, 7])
    digests = b"".join(hashlib.md5(contents[number]).digest() for number in [1, 2, 7])
    assert done["ETag"] == again["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-3"'
    whole = contents[1] + contents[2] + contents[7]
    got = s3.get_object(Bucket=bucket, Key="m", ChecksumMode="ENABLED")
    assert body(got) == whole and got["Metadata"] == {"a": "1"} and got["ContentType"] == "x/y"
    assert got["ChecksumType"] == "FULL_OBJECT" and "ChecksumCRC64NVME" in got
    for first, last in [(0, 0), (5 * MIB - 1, 5 * MIB), (5 * MIB - 100, 10 * MIB + 100), (10 * MIB + 12344, 10 * MIB + 12344)]:
        part = s3.get_object(Bucket=bucket, Key="m", Range=f"bytes={first}-{last}")
        assert body(part) == whole[first:last + 1], (first, last)
    part = s3.get_object(Bucket=bucket, Key="m", PartNumber=2)
    assert body(part) == contents[2] and part["PartsCount"] == 3
    assert s3.head_object(Bucket=bucket, Key="m", PartNumber=7)["ContentLength"] == 12345
    fails(416, "InvalidPartNumber", s3.get_object, Bucket=bucket, Key="m", PartNumber=3)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    fails(404, "NoSuchUpload", s3.upload_part, PartNumber=1, Body=b"", **which)
    attributes = s3.get_object_attributes(Bucket=bucket, Key="m", ObjectAttributes=["ETag", "ObjectParts", "ObjectSize", "Checksum"])
    assert attributes["ObjectSize"] == len(whole) and attributes["ObjectParts"]["TotalPartsCount"] == 3
    s3.copy_object(Bucket=bucket, Key="single", CopySource={"Bucket": bucket, "Key": "m"})
    assert body(s3.get_object(Bucket=bucket, Key="single")) == whole
    s3.put_object_tagging(Bucket=bucket, Key="m", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    s3.put_object(Bucket=bucket, Key="single", Body=b"small now")
    assert body(s3.get_object(Bucket=bucket, Key="m")) == whole


def s3_small_complete(s3, bucket):
    which = {"Bucket": bucket, "Key": "small"}
    which["UploadId"] = s3.create_multipart_upload(**which)["UploadId"]
    parts = [{"PartNumber": number, "ETag": s3.upload_part(PartNumber=number, Body=b"x", **which)["ETag"]} for number in [1, 2]]
    try:
        s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **which)
    finally:
        s3.abort_multipart_upload(**which)


def test_multipart_checksums(s3, bucket):
    for algorithm, kind in [("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("SHA256", "COMPOSITE")]:
        which = {"Bucket": bucket, "Key": f"{algorithm}-{kind}"}
        created = s3.create_multipart_upload(ChecksumAlgorithm=algorithm, ChecksumType=kind, **which)
        assert created["ChecksumAlgorithm"] == algorithm and created["ChecksumType"] == kind
        which["UploadId"] = created["UploadId"]
        parts = []
        for number, content in [(1, data(5 * MIB, 1)), (2, b"end")]:
            sent = s3.upload_part(PartNumber=number, Body=content, ChecksumAlgorithm=algorithm, **which)
            name = f"Checksum{algorithm}"
            parts.append({"PartNumber": number, "ETag": sent["ETag"], name: sent[name]})
        wrong = [dict(parts[0], **{name: parts[1][name]}), parts[1]]
        fails(400, "InvalidPart", s3.complete_multipart_upload, MultipartUpload={"Parts": wrong}, **which)
        done = s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, ChecksumType=kind, **which)
        assert done["ChecksumType"] == kind, done
        head = s3.head_object(Bucket=bucket, Key=which["Key"], ChecksumMode="ENABLED")
        assert head[name] == done[name] and head["ChecksumType"] == kind
        if kind == "COMPOSITE":
            assert head[name].endswith("-2")
        else:
            whole = s3.put_object(Bucket=bucket, Key="whole", Body=data(5 * MIB, 1) + b"end", ChecksumAlgorithm=algorithm)
            assert whole[name] == head[name]
        attributes = s3.get_object_attributes(Bucket=bucket, Key=which["Key"], ObjectAttributes=["ObjectParts", "Checksum"])
        assert attributes["ObjectParts"]["Parts"][1][name] == parts[1][name]
    fails(400, "InvalidRequest", s3.create_multipart_upload, Bucket=bucket, Key="x", ChecksumAlgorithm="SHA1", ChecksumType="FULL_OBJECT")


def test_parts_copied(s3, bucket):
    content = data(11 * MIB)
    s3.put_object(Bucket=bucket, Key="source", Body=content)
    which = {"Bucket": bucket, "Key": "target"}
    which["UploadId"] = s3.create_multipart_upload(**which)["UploadId"]
    source = {"Bucket": bucket, "Key": "source"}
    parts = []
    for number, (first, last) in enumerate([(0, 6 * MIB - 1), (6 * MIB, 11 * MIB - 1)], 1):
        sent = s3.upload_part_copy(PartNumber=number, CopySource=source, CopySourceRange=f"bytes={first}-{last}", **which)
        parts.append({"PartNumber": number, "ETag": sent["CopyPartResult"]["ETag"]})
    fails(416, "InvalidRange", s3.upload_part_copy, PartNumber=3, CopySource=source, CopySourceRange=f"bytes=0-{11 * MIB}", **which)
    s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **which)
    assert body(s3.get_object(Bucket=bucket, Key="target")) == content


def test_aborting(s3, bucket):
    which = {"Bucket": bucket, "Key": "gone"}
    which["UploadId"] = s3.create_multipart_upload(**which)["UploadId"]
    s3.upload_part(PartNumber=1, Body=data(300000), **which)
    s3.abort_multipart_upload(**which)
    fails(404, "NoSuchUpload", s3.abort_multipart_upload, **which)
    fails(404, "NoSuchUpload", s3.list_parts, **which)
    names = [f"u/{number}" for number in range(5)] + ["v"]
    ids = {name: s3.create_multipart_upload(Bucket=bucket, Key=name)["UploadId"] for name in names}
    pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    assert [entry["Key"] for page in pages for entry in page.get("Uploads", [])] == names
    rolled = s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert prefixes(rolled) == ["u/"] and [entry["Key"] for entry in rolled["Uploads"]] == ["v"]
    for name, upload in ids.items():
        s3.abort_multipart_upload(Bucket=bucket, Key=name, UploadId=upload)


def test_managed_transfer(s3, bucket):
    content = data(20 * MIB + 3)
    config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=5 * MIB, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(content), bucket, "big", Config=config)
    out = io.BytesIO()
    s3.download_fileobj(bucket, "big", out, Config=config)
    assert out.getvalue() == content


def test_tags(s3, bucket):
    s3.put_object(Bucket=bucket, Key="t", Body=data(300000), Tagging="a=1&b=c%20d")
    get = lambda: s3.get_object_tagging(Bucket=bucket, Key="t")["TagSet"]
    assert get() == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "c d"}]
    assert s3.get_object(Bucket=bucket, Key="t")["TagCount"] == 2
    s3.put_object_tagging(Bucket=bucket, Key="t", Tagging={"TagSet": [{"Key": "ü", "Value": "=@ +"}]})
    assert get() == [{"Key": "ü", "Value": "=@ +"}]
    s3.delete_object_tagging(Bucket=bucket, Key="t")
    assert get() == [] and body(s3.get_object(Bucket=bucket, Key="t")) == data(300000)
    many = {"TagSet": [{"Key": str(number), "Value": ""} for number in range(11)]}
    fails(400, "BadRequest", s3.put_object_tagging, Bucket=bucket, Key="t", Tagging=many)
    fails(404, "NoSuchTagSet", s3.get_bucket_tagging, Bucket=bucket)
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == [{"Key": "a", "Value": "b"}]
    s3.delete_bucket_tagging(Bucket=bucket)


def test_presigned(s3, bucket):
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "p ü"}, ExpiresIn=60)
    assert fetch(url, "PUT", content=b"presigned")[0] == 200
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "p ü"}, ExpiresIn=60)
    assert fetch(url)[2] == b"presigned"
    assert fetch(url.replace("X-Amz-Expires=60", "X-Amz-Expires=61"))[0] == 403
    assert fetch(url, "DELETE")[0] == 403
    s3.put_object(Bucket=bucket, Key="secret", Body=b"secret")
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "stolen"}, ExpiresIn=60)
    status, _, answer = fetch(url, "PUT", {"x-amz-copy-source": f"/{bucket}/secret"}, b"")
    assert status == 403 and b"AccessDenied" in answer, answer
    fails(404, "NoSuchKey", s3.get_object, Bucket=bucket, Key="stolen")


def test_signatures_of_version_2(s3, bucket):
    by_default = client(signature_version=None)
    url = by_default.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "p ü+/x"}, ExpiresIn=60)
    # A media type is covered whether it was signed or not, and urllib sends one of its own.
    assert "AWSAccessKeyId=" in url and fetch(url, "PUT", content=b"version 2")[0] == 403
    none = {"Content-Type": ""}
    assert fetch(url, "PUT", none, b"version 2")[0] == 200
    params = {"Bucket": bucket, "Key": "p ü+/x", "ResponseContentType": "text/x; a=b", "ResponseContentDisposition": 'x="a b+c"'}
    url = by_default.generate_presigned_url("get_object", Params=params, ExpiresIn=60)
    _, headers, content = fetch(url)
    assert (content, headers["Content-Type"], headers["Content-Disposition"]) == (b"version 2", "text/x; a=b", 'x="a b+c"')
    assert fetch(url, "DELETE")[0] == 403 and fetch(url.replace("Expires=", "Expires=1"))[0] == 403
    params = {"Bucket": bucket, "Key": "meta", "Metadata": {"a": "b c"}, "ACL": "public-read"}
    assert fetch(by_default.generate_presigned_url("put_object", Params=params), "PUT", none, b"x")[0] == 200
    assert fetch(f"{ENDPOINT}/{bucket}/meta")[1]["x-amz-meta-a"] == "b c"
    made = by_default.generate_presigned_post(bucket, "form")["fields"]
    assert "AWSAccessKeyId" in made and post(f"{ENDPOINT}/{bucket}", made, b"form")[0] == 204
    # What signs all of its requests so.
    old = client(signature_version="s3")
    content = data(12 * MIB)
    old.upload_fileobj(io.BytesIO(content), bucket, "ä/b c+d", ExtraArgs={"Metadata": {"k": "v"}, "ContentType": "image/x"})
    got = old.get_object(Bucket=bucket, Key="ä/b c+d", Range="bytes=5-10")
    assert body(got) == content[5:11] and got["Metadata"] == {"k": "v"} and got["ContentType"] == "image/x"
    old.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "ä/b c+d"})
    assert body(s3.get_object(Bucket=bucket, Key="copy")) == content
    assert keys(old.list_objects_v2(Bucket=bucket, Prefix="ä/")) == ["ä/b c+d"]
    old.put_object_tagging(Bucket=bucket, Key="copy", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    old.put_object_acl(Bucket=bucket, Key="copy", ACL="private")
    old.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    found = keys(old.list_objects_v2(Bucket=bucket))
    assert not old.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in found]}).get("Errors")


def test_anonymous_and_policies(s3, bucket):
    s3.put_object(Bucket=bucket, Key="page.html", Body=b"<p>", ContentType="text/html")
    url = f"{ENDPOINT}/{bucket}/page.html"
    assert fetch(url)[0] == 403 and fetch(f"{ENDPOINT}/")[0] == 403
    assert fetch(f"{ENDPOINT}/not-there-at-all/x")[0] == 404
    fails(404, "NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=bucket)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"],
              "Resource": [f"arn:aws:s3:::{bucket}/*"]}]}
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"]) == policy
    assert s3.get_bucket_policy_status(Bucket=bucket)["PolicyStatus"]["IsPublic"]
    status, headers, content = fetch(url)
    assert (status, headers["Content-Type"], content) == (200, "text/html", b"<p>")
    assert fetch(url, "PUT", content=b"x")[0] == 403 and fetch(url, "DELETE")[0] == 403
    assert fetch(f"{ENDPOINT}/{bucket}")[0] == 403
    policy["Statement"][0]["Condition"] = {"StringEquals": {"s3:TlsVersion": "1.3"}}
    fails(501, "NotImplemented", s3.put_bucket_policy, Bucket=bucket, Policy=json.dumps(policy))
    s3.delete_bucket_policy(Bucket=bucket)
    assert fetch(url)[0] == 403


def test_cors(s3, bucket):
    fails(404, "NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=bucket)
    rule = {"AllowedOrigins": ["https://*.example.org"], "AllowedMethods": ["GET", "PUT"], "AllowedHeaders": ["*"],
            "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60}
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [rule]})
    assert s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == [rule]
    ask = {"Origin": "https://www.example.org", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-a"}
    status, headers, _ = fetch(f"{ENDPOINT}/{bucket}/k", "OPTIONS", ask)
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://www.example.org", dict(headers)
    assert headers["Access-Control-Allow-Headers"] == "x-a" and headers["Access-Control-Max-Age"] == "60"
    assert fetch(f"{ENDPOINT}/{bucket}/k", "OPTIONS", dict(ask, Origin="https://else"))[0] == 403
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
    assert fetch(url, headers={"Origin": "https://www.example.org"})[1]["Access-Control-Expose-Headers"] == "ETag"
    s3.delete_bucket_cors(Bucket=bucket)


def versioning(s3, bucket, status):
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == status


def versions(s3, bucket, size=1000, **more):
    """All versions and delete markers: key, version ID, whether it is the latest, whether it is a delete marker."""
    found = []
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": size}, **more):
        found += [(v["Key"], v["VersionId"], v["IsLatest"], False) for v in page.get("Versions", [])]
        found += [(m["Key"], m["VersionId"], m["IsLatest"], True) for m in page.get("DeleteMarkers", [])]
    return found


def test_versions(s3, bucket):
    which = {"Bucket": bucket, "Key": "v"}
    contents = {"null": b"before versioning", "large": data(700000), "small": b"after"}
    first = s3.put_object(Body=contents["null"], **which)
    assert "VersionId" not in first and "VersionId" not in s3.head_object(**which)
    versioning(s3, bucket, "Enabled")
    assert s3.head_object(**which)["VersionId"] == "null"
    large = s3.put_object(Body=contents["large"], **which)["VersionId"]
    small = s3.put_object(Body=contents["small"], Tagging="a=b", **which)["VersionId"]
    names = {"null": "null", "large": large, "small": small}
    assert len(set(names.values())) == 3
    for name, version in names.items():
        got = s3.get_object(VersionId=version, **which)
        assert body(got) == contents[name] and got["VersionId"] == version, name
        head = s3.head_object(VersionId=version, **which)
        assert head["ContentLength"] == len(contents[name]) and head["VersionId"] == version
        attributes = s3.get_object_attributes(ObjectAttributes=["ObjectSize"], VersionId=version, **which)
        assert attributes["ObjectSize"] == len(contents[name]) and attributes["VersionId"] == version
    assert body(s3.get_object(**which)) == contents["small"]
    ranged = s3.get_object(VersionId=large, Range="bytes=300000-300009", **which)
    assert body(ranged) == contents["large"][300000:300010]
    s3.put_object_tagging(VersionId=large, Tagging={"TagSet": [{"Key": "old", "Value": "1"}]}, **which)
    assert s3.get_object_tagging(VersionId=large, **which)["TagSet"] == [{"Key": "old", "Value": "1"}]
    assert s3.get_object_tagging(**which)["TagSet"] == [{"Key": "a", "Value": "b"}]
    assert versions(s3, bucket) == [("v", small, True, False), ("v", large, False, False), ("v", "null", False, False)]
    deleted = s3.delete_object(**which)
    marker = deleted["VersionId"]
    assert deleted["DeleteMarker"]
    error = fails(404, "NoSuchKey", s3.get_object, **which)
    headers = error["ResponseMetadata"]["HTTPHeaders"]
    assert headers["x-amz-delete-marker"] == "true" and headers["x-amz-version-id"] == marker
    fails(405, "MethodNotAllowed", s3.get_object, VersionId=marker, **which)
    fails(405, "405", s3.head_object, VersionId=marker, **which)
    assert keys(s3.list_objects_v2(Bucket=bucket)) == []
    assert body(s3.get_object(VersionId=large, **which)) == contents["large"]
    fails(409, "BucketNotEmpty", s3.delete_bucket, Bucket=bucket)
    undone = s3.delete_object(VersionId=marker, **which)
    assert undone["DeleteMarker"] and undone["VersionId"] == marker
    assert body(s3.get_object(**which)) == contents["small"]
    assert s3.delete_object(VersionId=small, **which)["VersionId"] == small
    assert body(s3.get_object(**which)) == contents["large"] and s3.head_object(**which)["VersionId"] == large
    assert s3.delete_object(VersionId="f" * 32, **which)["VersionId"] == "f" * 32, "one that is not there"
    fails(400, "InvalidArgument", s3.delete_object, VersionId="none", **which)
    assert versions(s3, bucket) == [("v", large, True, False), ("v", "null", False, False)]
    fails(400, "IllegalVersioningConfigurationException", s3.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={})
    fails(400, "MalformedXML", s3.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": "On"})


def test_versions_while_suspended(s3, bucket):
    which = {"Bucket": bucket, "Key": "s"}
    versioning(s3, bucket, "Enabled")
    kept = s3.put_object(Body=b"kept", **which)["VersionId"]
    versioning(s3, bucket, "Suspended")
    for content in [data(300000), b"two"]:
        assert "VersionId" not in s3.put_object(Body=content, **which), "S3 names no version then"
        assert body(s3.get_object(VersionId="null", **which)) == content
    assert versions(s3, bucket) == [("s", "null", True, False), ("s", kept, False, False)]
    assert s3.delete_object(**which) ["VersionId"] == "null"
    assert versions(s3, bucket) == [("s", kept, False, False), ("s", "null", True, True)]
    assert s3.delete_object(**which)["DeleteMarker"], "again: there is still one"
    assert len(versions(s3, bucket)) == 2
    versioning(s3, bucket, "Enabled")
    fresh = s3.put_object(Body=b"fresh", **which)["VersionId"]
    assert versions(s3, bucket) == [("s", fresh, True, False), ("s", kept, False, False), ("s", "null", False, True)]
    s3.delete_object(VersionId="null", **which)
    s3.delete_object(VersionId=fresh, **which)
    assert body(s3.get_object(**which)) == b"kept"


def test_versions_of_copies_and_uploads(s3, bucket):
    versioning(s3, bucket, "Enabled")
    content = data(6 * MIB)
    old = s3.put_object(Bucket=bucket, Key="c", Body=content)["VersionId"]
    new = s3.put_object(Bucket=bucket, Key="c", Body=b"new")["VersionId"]
    source = {"Bucket": bucket, "Key": "c", "VersionId": old}
    copied = s3.copy_object(Bucket=bucket, Key="c", CopySource=source)
    assert copied["CopySourceVersionId"] == old and copied["VersionId"] not in (old, new), "an old version comes back by a copy"
    assert body(s3.get_object(Bucket=bucket, Key="c")) == content and len(versions(s3, bucket)) == 3
    s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "c"}, MetadataDirective="REPLACE", Metadata={"a": "b"})
    assert s3.head_object(Bucket=bucket, Key="c")["Metadata"] == {"a": "b"} and len(versions(s3, bucket)) == 4
    assert s3.head_object(Bucket=bucket, Key="c", VersionId=copied["VersionId"])["Metadata"] == {}
    marker = s3.delete_object(Bucket=bucket, Key="c")["VersionId"]
    fails(404, "NoSuchKey", s3.copy_object, Bucket=bucket, Key="d", CopySource={"Bucket": bucket, "Key": "c"})
    fails(400, "InvalidRequest", s3.copy_object, Bucket=bucket, Key="d", CopySource=dict(source, VersionId=marker))
    which = {"Bucket": bucket, "Key": "m"}
    which["UploadId"] = s3.create_multipart_upload(**which)["UploadId"]
    part = s3.upload_part_copy(PartNumber=1, CopySource=source, **which)
    assert part["CopySourceVersionId"] == old
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]}
    done = s3.complete_multipart_upload(MultipartUpload=parts, **which)
    assert s3.complete_multipart_upload(MultipartUpload=parts, **which)["VersionId"] == done["VersionId"]
    assert body(s3.get_object(Bucket=bucket, Key="m", VersionId=done["VersionId"])) == content


def test_conditions_and_versions(s3, bucket):
    versioning(s3, bucket, "Enabled")
    which = {"Bucket": bucket, "Key": "c"}
    first = s3.put_object(Body=b"1", IfNoneMatch="*", **which)
    fails(412, "PreconditionFailed", s3.put_object, Body=b"2", IfNoneMatch="*", **which)
    second = s3.put_object(Body=b"2", IfMatch=first["ETag"], **which)
    fails(412, "PreconditionFailed", s3.put_object, Body=b"3", IfMatch=first["ETag"], **which)
    s3.delete_object(**which)
    fails(404, "NoSuchKey", s3.put_object, Body=b"3", IfMatch=second["ETag"], **which)
    s3.put_object(Body=b"3", IfNoneMatch="*", **which)
    fails(412, "PreconditionFailed", s3.delete_object, VersionId=first["VersionId"], IfMatch=second["ETag"], **which)
    s3.delete_object(VersionId=first["VersionId"], IfMatch=first["ETag"], **which)
    assert len(versions(s3, bucket)) == 3


def test_deleting_many_versions(s3, bucket):
    versioning(s3, bucket, "Enabled")
    made = [(key, s3.put_object(Bucket=bucket, Key=key, Body=data(300000))["VersionId"]) for key in ["x", "x", "y"]]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "x"}, {"Key": "y", "VersionId": made[2][1]}]})
    by_key = {entry["Key"]: entry for entry in answer["Deleted"]}
    assert by_key["x"]["DeleteMarker"] and "VersionId" not in by_key["x"]
    assert by_key["y"] == {"Key": "y", "VersionId": made[2][1]}
    marker = by_key["x"]["DeleteMarkerVersionId"]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "x", "VersionId": marker}, {"Key": "x", "VersionId": "bad"}]})
    assert answer["Deleted"] == [{"Key": "x", "VersionId": marker, "DeleteMarker": True, "DeleteMarkerVersionId": marker}]
    assert answer["Errors"][0]["Code"] == "InvalidArgument"
    assert body(s3.get_object(Bucket=bucket, Key="x")) == data(300000)
    assert [entry[1] for entry in versions(s3, bucket)] == [made[1][1], made[0][1]]


def test_pages_of_versions(s3, bucket):
    versioning(s3, bucket, "Enabled")
    for key in ["a/1", "a/2", "b", "c d/ü"]:
        for number in range(3):
            s3.put_object(Bucket=bucket, Key=key, Body=str(number).encode())
    s3.delete_object(Bucket=bucket, Key="b")
    whole = versions(s3, bucket)
    assert len(whole) == 13 and sum(latest for _, _, latest, _ in whole) == 4
    for size in [1, 2, 3, 5]:
        assert sorted(versions(s3, bucket, size)) == sorted(whole), size
    assert {entry[0] for entry in versions(s3, bucket, 2, Prefix="a/")} == {"a/1", "a/2"}
    rolled = s3.list_object_versions(Bucket=bucket, Delimiter="/")
    assert prefixes(rolled) == ["a/", "c d/"] and {v["Key"] for v in rolled["Versions"]} == {"b"}
    page = s3.list_object_versions(Bucket=bucket, Delimiter="/", MaxKeys=1)
    assert prefixes(page) == ["a/"] and page["IsTruncated"] and page["NextKeyMarker"] == "a/"
    page = s3.list_object_versions(Bucket=bucket, Delimiter="/", MaxKeys=2, KeyMarker="a/")
    assert [m["Key"] for m in page["DeleteMarkers"]] == ["b"] and len(page["Versions"]) == 1
    fails(400, "InvalidArgument", s3.list_object_versions, Bucket=bucket, VersionIdMarker="null")


def test_lifecycle(s3, bucket):
    fails(404, "NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=bucket)
    put = lambda *rules: s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)})
    old = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    days = {"ID": "a b", "Status": "Enabled", "Filter": {"Prefix": "kept/"}, "Expiration": {"Days": 3}}
    both = {"Prefix": "gone/", "Tags": [{"Key": "t", "Value": "1"}], "ObjectSizeGreaterThan": 10}
    date = {"ID": "date", "Status": "Enabled", "Filter": {"And": both}, "Expiration": {"Date": old}}
    uploads = {"ID": "uploads", "Status": "Enabled", "Prefix": "u/", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
    for key in ["gone/large", "gone/small", "kept/large"]:
        s3.put_object(Bucket=bucket, Key=key, Body=data(300000) if "large" in key else b"small", Tagging="t=1&x=y")
    s3.put_object(Bucket=bucket, Key="gone/other", Body=data(300000))
    put(days, date, uploads)
    assert s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == [days, date, uploads]
    eventually(lambda: keys(s3.list_objects_v2(Bucket=bucket)), ["gone/other", "gone/small", "kept/large"])
    for said in [s3.put_object(Bucket=bucket, Key="kept/new", Body=b""), s3.head_object(Bucket=bucket, Key="kept/large"),
                 s3.get_object(Bucket=bucket, Key="kept/large")]:
        assert re.fullmatch(r'expiry-date="\w{3}, \d\d \w{3} \d{4} 00:00:00 GMT", rule-id="a%20b"', said["Expiration"]), said["Expiration"]
    assert "Expiration" not in s3.head_object(Bucket=bucket, Key="gone/other")
    fails(400, "InvalidArgument", put, dict(days, Expiration={"Days": 0}))
    fails(400, "InvalidArgument", put, days, days)
    fails(400, "MalformedXML", put, dict(days, Status="enabled"))
    fails(501, "NotImplemented", put, dict(days, Transitions=[{"Days": 1, "StorageClass": "GLACIER"}]))
    s3.delete_bucket_lifecycle(Bucket=bucket)
    fails(404, "NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=bucket)


def test_lifecycle_of_versions(s3, bucket):
    versioning(s3, bucket, "Enabled")
    for _ in range(2):
        s3.put_object(Bucket=bucket, Key="k", Body=data(300000))
    s3.delete_object(Bucket=bucket, Key="marker only")
    old = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    rules = [{"ID": "e", "Status": "Enabled", "Filter": {"Prefix": "k"}, "Expiration": {"Date": old}},
             {"ID": "m", "Status": "Enabled", "Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
             {"ID": "n", "Status": "Enabled", "Filter": {},
              "NoncurrentVersionExpiration": {"NoncurrentDays": 7, "NewerNoncurrentVersions": 2}}]
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    assert s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == rules
    eventually(lambda: [(key, latest, marker) for key, _, latest, marker in versions(s3, bucket)],
               [("k", False, False), ("k", False, False), ("k", True, True)])


def test_access_control_lists(s3, bucket):
    url = lambda key: f"{ENDPOINT}/{bucket}/{key}"
    everybody = lambda answer: [grant["Permission"] for grant in answer["Grants"] if grant["Grantee"]["Type"] == "Group"]
    s3.put_object(Bucket=bucket, Key="open", Body=data(300000), ACL="public-read")
    s3.put_object(Bucket=bucket, Key="closed", Body=b"closed")
    assert fetch(url("open"))[2] == data(300000) and fetch(url("open"), "HEAD")[0] == 200
    assert fetch(url("closed"))[0] == 403 and fetch(url("none"))[0] == 403 and fetch(url(""))[0] == 403
    assert fetch(url("open"), "PUT", content=b"x")[0] == 403 and fetch(url("open") + "?versionId=null")[0] == 403
    assert everybody(s3.get_object_acl(Bucket=bucket, Key="open")) == ["READ"]
    assert everybody(s3.get_object_acl(Bucket=bucket, Key="closed")) == []
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "open"})
    assert fetch(url("copy"))[0] == 403, "a copy does not take the list along"
    s3.put_object_acl(Bucket=bucket, Key="open", ACL="private")
    assert fetch(url("open"))[0] == 403
    policy = s3.get_object_acl(Bucket=bucket, Key="closed")
    grant = {"Grantee": {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AllUsers"}, "Permission": "READ"}
    full = {"Grants": policy["Grants"] + [grant], "Owner": policy["Owner"]}
    s3.put_object_acl(Bucket=bucket, Key="closed", AccessControlPolicy=full)
    assert fetch(url("closed"))[2] == b"closed"
    grant["Permission"] = "WRITE"
    s3.put_object_acl(Bucket=bucket, Key="copy", AccessControlPolicy=full)
    assert everybody(s3.get_object_acl(Bucket=bucket, Key="copy")) == ["WRITE"] and fetch(url("copy"))[0] == 403
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    assert everybody(s3.get_bucket_acl(Bucket=bucket)) == ["READ"] and fetch(f"{ENDPOINT}/{bucket}")[0] == 200
    fails(404, "NoSuchPublicAccessBlockConfiguration", s3.get_public_access_block, Bucket=bucket)
    block = {"BlockPublicAcls": True, "IgnorePublicAcls": True, "BlockPublicPolicy": True, "RestrictPublicBuckets": False}
    s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=block)
    assert s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"] == block
    assert fetch(f"{ENDPOINT}/{bucket}")[0] == 403 and fetch(url("closed"))[0] == 403
    fails(403, "AccessDenied", s3.put_object_acl, Bucket=bucket, Key="closed", ACL="public-read")
    read = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [read]})
    fails(403, "AccessDenied", s3.put_bucket_policy, Bucket=bucket, Policy=policy)
    s3.delete_public_access_block(Bucket=bucket)
    assert fetch(url("closed"))[0] == 200
    fails(404, "OwnershipControlsNotFoundError", s3.get_bucket_ownership_controls, Bucket=bucket)
    controls = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    fails(400, "InvalidBucketAclWithObjectOwnership", s3.put_bucket_ownership_controls, Bucket=bucket, OwnershipControls=controls)
    s3.put_bucket_acl(Bucket=bucket, ACL="private")
    s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=controls)
    assert s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"] == controls
    assert fetch(url("closed"))[0] == 403
    fails(400, "AccessControlListNotSupported", s3.put_object, Bucket=bucket, Key="k", Body=b"", ACL="public-read")
    s3.put_object(Bucket=bucket, Key="k", Body=b"", ACL="bucket-owner-full-control")
    s3.delete_bucket_ownership_controls(Bucket=bucket)
    assert fetch(url("closed"))[0] == 200


def post(url, fields, file, name="file", path="f"):
    """Sends an HTML form with the file at a path."""
    boundary = uuid.uuid4().hex
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
             for key, value in fields.items()]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{path}"\r\nContent-Type: text/plain\r\n\r\n'
    content = b"".join(parts) + head.encode() + file + f"\r\n--{boundary}--\r\n".encode()
    return fetch(url, "POST", {"Content-Type": f"multipart/form-data; boundary={boundary}"}, content)


def test_forms(s3, bucket):
    url = f"{ENDPOINT}/{bucket}"
    conditions = [["starts-with", "$key", "up/"], ["content-length-range", 1, 700000], {"success_action_status": "201"}]
    made = s3.generate_presigned_post(bucket, "up/a", Fields={"success_action_status": "201"}, Conditions=conditions)
    fields = made["fields"]
    for file in [b"small", data(600000)]:
        status, headers, answer = post(url, fields, file)
        assert status == 201 and b"<Key>up/a</Key>" in answer, (status, answer)
        assert body(s3.get_object(Bucket=bucket, Key="up/a")) == file
    assert post(url, dict(fields, key="else/a"), b"x")[0] == 403
    assert post(url, fields, data(700001))[0] == 400 and post(url, fields, b"")[0] == 400
    assert post(url, dict(fields, extra="1"), b"x")[0] == 403
    assert post(url, dict(fields, policy=fields["policy"][:-8] + "AAAAAAA="), b"x")[0] in (400, 403)
    assert post(url, {"key": "up/anonymous"}, b"x")[0] == 403
    expired = s3.generate_presigned_post(bucket, "up/late", ExpiresIn=-1)["fields"]
    assert post(url, expired, b"x")[0] == 403
    redirect = {"success_action_redirect": "http://example.org/done"}
    made = s3.generate_presigned_post(bucket, "up/b", Fields=redirect, Conditions=[redirect])["fields"]

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args):
            return None

    urllib.request.install_opener(urllib.request.build_opener(Stay))
    status, headers, _ = post(url, made, b"x")
    urllib.request.install_opener(urllib.request.build_opener())
    assert status == 303 and headers["Location"].startswith("http://example.org/done?"), (status, dict(headers))
    made = s3.generate_presigned_post(bucket, "up/${filename}")["fields"]
    assert post(url, made, b"named", path="C:\\holiday\\ünter wegs.txt")[0] == 204
    assert body(s3.get_object(Bucket=bucket, Key="up/ünter wegs.txt")) == b"named"
    narrow = [["starts-with", "$key", "up/x"]]
    made = s3.generate_presigned_post(bucket, "up/${filename}", Conditions=narrow)["fields"]
    assert post(url, made, b"x", path="yes")[0] == 403, "conditions are about the name that results"
    assert post(url, made, b"x", path="xyes")[0] == 204
    assert keys(s3.list_objects_v2(Bucket=bucket)) == ["up/a", "up/b", "up/xyes", "up/ünter wegs.txt"]


def test_forms_of_version_2(s3, bucket):
    url = f"{ENDPOINT}/{bucket}"
    expiration = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    policy = json.dumps({"expiration": expiration, "conditions": [{"bucket": bucket}, ["starts-with", "$key", ""]]})
    policy = base64.b64encode(policy.encode()).decode()
    sign = lambda secret: base64.b64encode(hmac.digest(secret.encode(), policy.encode(), "sha1")).decode()
    fields = {"key": "k", "AWSAccessKeyId": ACCESS_KEY, "policy": policy, "signature": sign(SECRET_KEY)}
    assert post(url, fields, b"v2")[0] == 204
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"v2"
    # Another first letter than the right one has, whatever that is.
    right = fields["signature"]
    other_letter = ("B" if right[0] == "A" else "A") + right[1:]
    for wrong in [sign("other"), "", other_letter, right[:-4]]:
        status, _, answer = post(url, dict(fields, signature=wrong), b"x")
        assert status == 403 and b"SignatureDoesNotMatch" in answer, (status, answer)
    assert post(url, dict(fields, AWSAccessKeyId="NOTTHERE"), b"x")[0] == 403
    assert body(s3.get_object(Bucket=bucket, Key="k")) == b"v2"


def test_encryption_with_a_key_of_the_client(s3, bucket):
    own = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    other = dict(own, SSECustomerKey="o" * 32)
    for length in [0, 1, 65536, 262145, 3 * MIB + 17]:
        content = data(length)
        put = s3.put_object(Bucket=bucket, Key="k", Body=content, **own)
        assert put["SSECustomerAlgorithm"] == "AES256" and "ServerSideEncryption" not in put
        got = s3.get_object(Bucket=bucket, Key="k", **own)
        assert got["ContentLength"] == length and body(got) == content and got["ETag"] == put["ETag"]
        assert put["ETag"] != f'"{hashlib.md5(content).hexdigest()}"'
        assert s3.head_object(Bucket=bucket, Key="k", **own)["ContentLength"] == length
        fails(400, "400", s3.head_object, Bucket=bucket, Key="k")
        fails(403, "403", s3.head_object, Bucket=bucket, Key="k", **other)
        fails(400, "InvalidRequest", s3.get_object, Bucket=bucket, Key="k")
        fails(403, "AccessDenied", s3.get_object, Bucket=bucket, Key="k", **other)
    assert body(s3.get_object(Bucket=bucket, Key="k", Range="bytes=65530-65540", **own)) == content[65530:65541]
    source = {f"CopySource{name}": value for name, value in own.items()}
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/k", **source, **other)
    assert body(s3.get_object(Bucket=bucket, Key="copy", **other)) == content
    # What the client cuts into parts.
    content = data(12 * MIB + 5)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_fileobj(io.BytesIO(content), bucket, "parts", Config=config, ExtraArgs=own)
    out = io.BytesIO()
    s3.download_fileobj(bucket, "parts", out, Config=config, ExtraArgs=own)
    assert out.getvalue() == content


def test_encryption_with_the_master_key(s3, bucket):
    fails(404, "ServerSideEncryptionConfigurationNotFoundError", s3.get_bucket_encryption, Bucket=bucket)
    content = data(3 * MIB + 17)
    put = s3.put_object(Bucket=bucket, Key="k", Body=content, ServerSideEncryption="AES256")
    assert put["ServerSideEncryption"] == "AES256" and put["ETag"] == f'"{hashlib.md5(content).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["ServerSideEncryption"] == "AES256" and body(got) == content
    assert "ServerSideEncryption" not in s3.put_object(Bucket=bucket, Key="plain", Body=b"")
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": True}]}
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration=rules)
    assert s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"] == rules
    assert s3.put_object(Bucket=bucket, Key="k", Body=content)["ServerSideEncryption"] == "AES256"
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/plain")
    assert s3.head_object(Bucket=bucket, Key="copy")["ServerSideEncryption"] == "AES256"
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")
    assert upload["ServerSideEncryption"] == "AES256"
    names = {"Bucket": bucket, "Key": "parts", "UploadId": upload["UploadId"]}
    part = s3.upload_part(**names, PartNumber=1, Body=content)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    assert s3.complete_multipart_upload(**names, MultipartUpload=parts)["ServerSideEncryption"] == "AES256"
    assert body(s3.get_object(Bucket=bucket, Key="parts")) == content
    s3.delete_bucket_encryption(Bucket=bucket)
    fails(404, "ServerSideEncryptionConfigurationNotFoundError", s3.get_bucket_encryption, Bucket=bucket)


def test_what_is_not_there(s3, bucket):
    fails(501, "NotImplemented", s3.put_object, Bucket=bucket, Key="k", Body=b"", ServerSideEncryption="aws:kms:dsse")
    fails(400, "InvalidStorageClass", s3.put_object, Bucket=bucket, Key="k", Body=b"", StorageClass="GLACIER")
    s3.put_object(Bucket=bucket, Key="k", Body=b"", ACL="private", StorageClass="STANDARD")
    s3.get_object(Bucket=bucket, Key="k", VersionId="null")
    fails(400, "InvalidArgument", s3.get_object, Bucket=bucket, Key="k", VersionId="abc")
    fails(404, "NoSuchVersion", s3.get_object, Bucket=bucket, Key="k", VersionId="0" * 32)
    assert s3.get_bucket_acl(Bucket=bucket)["Grants"][0]["Permission"] == "FULL_CONTROL"


def test_wrong_keys(s3, bucket):
    wrong = lambda key, secret: boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=key, aws_secret_access_key=secret, region_name="eu-central-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
    fails(403, "SignatureDoesNotMatch", wrong(ACCESS_KEY, "no" + SECRET_KEY).list_buckets)
    fails(403, "InvalidAccessKeyId", wrong("NOTTHERE", SECRET_KEY).list_buckets)
    wrong(ACCESS_KEY, SECRET_KEY).list_buckets()


def empty(s3, bucket):
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        found = page.get("Versions", []) + page.get("DeleteMarkers", [])
        objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in found]
        if objects:
            assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete={"Objects": objects})
    s3.delete_bucket(Bucket=bucket)


def main():
    print(f"boto3 {boto3.__version__}")
    failed = 0
    chosen = sys.argv[4:]
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (chosen and name not in chosen):
            continue
        s3 = client()
        bucket = f"t-{uuid.uuid4().hex[:12]}"
        s3.create_bucket(Bucket=bucket)
        try:
            test(s3, bucket)
            empty(s3, bucket)
            print(f"ok      {name}")
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc(limit=-3)}")
    sys.exit(1 if failed else 0)


main()
