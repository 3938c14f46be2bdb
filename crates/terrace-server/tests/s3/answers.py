"""What the server answers to requests that are wrong, or hardly right: status and code as S3 documents them.

    answers.py ENDPOINT ACCESS_KEY SECRET_KEY

Requests are signed by botocore and sent by hand, so that headers can be missing, empty or wrong. Ends with 1 if an answer is
another one.
"""

import base64
import hashlib
import hmac
import json
import sys
import time
import uuid

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

from by_hand import sender

ENDPOINT, ACCESS_KEY, SECRET_KEY = sys.argv[1:4]
FAILED = []


def client(**config):
    config.setdefault("signature_version", "s3v4")
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}, **config))


S3, ANYBODY = client(), client(signature_version=botocore.UNSIGNED)


def check(name, found, expected):
    if found != expected:
        FAILED.append(name)
        print(f"FAILED  {name}: {found} instead of {expected}")


def expect(status, code, name, **arguments):
    """What a call through boto3 gives; `anybody` calls without a signature."""
    caller = ANYBODY if arguments.pop("anybody", False) else S3
    try:
        answer = getattr(caller, name)(**arguments)
        found = (answer["ResponseMetadata"]["HTTPStatusCode"], None)
    except ClientError as error:
        found = (error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"].get("Code"))
    check(f"{name} {str(arguments)[:200]}", found, (status, code))


send = sender(ENDPOINT, ACCESS_KEY, SECRET_KEY)


def answers(expected, *arguments, **more):
    check(f"{arguments} {more}"[:200], send(*arguments, **more)[:2], expected)


def names(bucket):
    for name in ["_abc-alpha", "a", "aa", "a" * 64, "192.168.5.123", "alpha!soup", "foo_bar", "foo-", "foo..bar", "foo.-bar",
                 "foo-.bar", "Foobar", "xn--foo", "sthree-foo", "foo-s3alias", "foo--ol-s3", "foo.mrap"]:
        answers((400, "InvalidBucketName"), "PUT", f"/{name}")
    for name in ["c" * 62 + "0", f"0{uuid.uuid4().hex[:8]}", f"aa.bb-{uuid.uuid4().hex[:6]}"]:
        answers((200, None), "PUT", f"/{name}")
        answers((204, None), "DELETE", f"/{name}")
    for name in ["head_bucket", "list_objects", "get_bucket_location", "delete_bucket", "list_object_versions"]:
        expect(404, "404" if name == "head_bucket" else "NoSuchBucket", name, Bucket=f"{bucket}-not")
    expect(404, "NoSuchBucket", "get_object", Bucket=f"{bucket}-not", Key="k", anybody=True)
    expect(404, "NoSuchBucket", "list_objects", Bucket=f"{bucket}-not", anybody=True)


def signatures(bucket):
    path = f"/{bucket}/k"
    for value, expected in [("", (403, "AccessDenied")), ("garbage", (400, "InvalidArgument")), ("AWS x", (400, "InvalidArgument")),
                            ("AWS a:b", (403, "AccessDenied")),
                            ("AWS4-HMAC-SHA256 Credential=x", (400, "AuthorizationHeaderMalformed"))]:
        answers(expected, "GET", path, signed=False, then={"authorization": value})
    answers((403, "AccessDenied"), "GET", path, without=("x-amz-date",))
    answers((403, "AccessDenied"), "GET", path, then={"x-amz-date": "yesterday"})
    answers((400, "InvalidRequest"), "GET", path, without=("x-amz-content-sha256",))
    answers((400, "InvalidArgument"), "PUT", path, content=b"x", then={"x-amz-content-sha256": "x"})
    presign = lambda seconds: S3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"}, seconds)[len(ENDPOINT):]
    answers((200, None), "GET", presign(604800), signed=False)
    answers((403, "SignatureDoesNotMatch"), "PUT", presign(60), content=b"x", signed=False)
    answers((400, "InvalidArgument"), "GET", presign(60))
    for seconds in [604801, -7]:
        answers((400, "AuthorizationQueryParametersError"), "GET", presign(seconds), signed=False)
    for write in [lambda url: url, lambda url: url.replace("X-Amz-", "X%2DAmz-")]:
        stolen = S3.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "k"}, 60)[len(ENDPOINT):]
        answers((403, "AccessDenied"), "PUT", write(stolen), signed=False, then={"x-amz-copy-source": f"/{bucket}/k"})
    late = presign(1)
    time.sleep(2.5)
    answers((403, "AccessDenied"), "GET", late, signed=False)


def headers(bucket):
    path = f"/{bucket}/h"
    put = lambda expected, given, content=b"bar": answers(expected, "PUT", path, given, content)
    put((400, "InvalidDigest"), {"content-md5": "YWJyYWNhZGFicmE="})
    put((400, "InvalidDigest"), {"content-md5": ""})
    put((400, "BadDigest"), {"content-md5": "rL0Y20zC+Fzt72VPzMSk2A=="})
    put((400, "InvalidRequest"), {"x-amz-checksum-sha256": "bad"})
    put((400, "InvalidRequest"), {"x-amz-sdk-checksum-algorithm": "FOO"})
    put((400, "InvalidRequest"), {"x-amz-sdk-checksum-algorithm": "CRC32"})
    put((400, "InvalidStorageClass"), {"x-amz-storage-class": "FOO"})
    put((400, "InvalidArgument"), {"x-amz-acl": "public-ready"})
    put((400, "MetadataTooLarge"), {f"x-amz-meta-{number}": "x" * 200 for number in range(12)})
    put((200, None), {"content-type": ""})
    answers((411, "MissingContentLength"), "PUT", path, without=("content-length",))
    answers((400, "InvalidArgument"), "PUT", f"{path}?partNumber=1", content=b"x")
    answers((400, "InvalidArgument"), "PUT", f"{path}?uploadId=1", content=b"x")
    for query in ["max-keys=", "max-keys=blah", "max-keys=-1", "encoding-type=foo"]:
        answers((400, "InvalidArgument"), "GET", f"/{bucket}?{query}")
    # As S3 does it: from the beginning.
    answers((200, None), "GET", f"/{bucket}?list-type=2&continuation-token=")
    answers((400, "InvalidURI"), "GET", f"/{bucket}/%ae%8a-")
    answers((400, "KeyTooLongError"), "GET", f"/{bucket}/{'k' * 1025}")
    answers((400, "MissingSecurityHeader"), "PUT", f"{path}?acl")


def bodies_in_xml(bucket):
    delete = b"<Delete><Object><Key>nothing</Key></Object></Delete>"
    md5 = lambda content: {"content-md5": base64.b64encode(hashlib.md5(content).digest()).decode()}
    sha = lambda content: {"x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(content).digest()).decode()}
    for digest in [md5, sha]:
        answers((200, None), "POST", f"/{bucket}?delete", digest(delete), delete)
        answers((400, "BadDigest"), "POST", f"/{bucket}?delete", digest(b"other"), delete)
    S3.put_object(Bucket=bucket, Key="kept", Body=b"")
    answers((400, "BadDigest"), "POST", f"/{bucket}?delete", md5(b"x"), delete.replace(b"nothing", b"kept"))
    expect(200, None, "head_object", Bucket=bucket, Key="kept")
    answers((400, "MalformedXML"), "POST", f"/{bucket}?delete", {}, b"<Del")
    answers((400, "BadDigest"), "PUT", f"/{bucket}?tagging", md5(b"x"), b"<Tagging><TagSet/></Tagging>")


def who_may_know(bucket):
    """That an object is not there is told to those who may list."""
    statement = lambda action, *resources: {"Effect": "Allow", "Principal": "*", "Action": action, "Resource": list(resources)}
    policy = lambda *statements: S3.put_bucket_policy(
        Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": list(statements)}))
    both = [f"arn:aws:s3:::{bucket}/*", f"arn:aws:s3:::{bucket}"]
    S3.put_object(Bucket=bucket, Key="k", Body=b"x")
    missing = lambda status, code: expect(status, code, "get_object", Bucket=bucket, Key="missing", anybody=True)
    missing(403, "AccessDenied")
    policy(statement("s3:GetObject", both[0]))
    expect(200, None, "get_object", Bucket=bucket, Key="k", anybody=True)
    answers((400, "InvalidRequest"), "GET", f"/{bucket}/k?response-content-type=text%2Fhtml", signed=False)
    missing(403, "AccessDenied")
    expect(403, "403", "head_object", Bucket=bucket, Key="missing", anybody=True)
    policy(statement(["s3:GetObject", "s3:ListBucket"], *both))
    missing(404, "NoSuchKey")
    policy(statement("s3:ListBucket", both[1]))
    missing(404, "NoSuchKey")
    expect(403, "AccessDenied", "get_object", Bucket=bucket, Key="k", anybody=True)
    S3.delete_bucket_policy(Bucket=bucket)
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    missing(404, "NoSuchKey")
    expect(403, "AccessDenied", "get_object", Bucket=bucket, Key="k", anybody=True)
    wrong = json.dumps({"Version": "yesterday", "Statement": [statement("s3:GetObject", both[0])]})
    expect(400, "MalformedPolicy", "put_bucket_policy", Bucket=bucket, Policy=wrong)


def copies(bucket):
    S3.put_object(Bucket=bucket, Key="from", Body=b"x")
    copy = lambda status, code, **more: expect(
        status, code, "copy_object", **{**dict(Bucket=bucket, Key="to", CopySource=f"{bucket}/from"), **more})
    copy(200, None, IfNoneMatch="*")
    copy(412, "PreconditionFailed", IfNoneMatch="*")
    copy(412, "PreconditionFailed", IfMatch='"other"')
    copy(200, None, IfMatch=S3.head_object(Bucket=bucket, Key="to")["ETag"])
    copy(400, "InvalidRequest", Key="from")
    copy(200, None, Key="from", WebsiteRedirectLocation="/elsewhere")
    check("redirect", S3.head_object(Bucket=bucket, Key="from").get("WebsiteRedirectLocation"), "/elsewhere")
    copy(404, "NoSuchKey", CopySource=f"{bucket}/missing")
    copy(404, "NoSuchBucket", CopySource=f"{bucket}-not/k")


def settings(bucket):
    S3.put_object(Bucket=bucket, Key="k", Body=b"")
    tag = lambda code, *pairs: expect(400 if code else 200, code, "put_object_tagging", Bucket=bucket, Key="k",
                                      Tagging={"TagSet": [{"Key": key, "Value": value} for key, value in pairs]})
    tag(None, ("a + - = . _ : / @ü", "x y"))
    for pair in [("aws:x", "b"), ("a", "b!{}"), ("a" * 129, "b"), ("a", "b" * 257)]:
        tag("InvalidTag", pair)
    tag("InvalidTag", ("a", "b"), ("a", "c"))
    expect(400, "InvalidArgument", "put_object", Bucket=bucket, Key="k", Body=b"", Tagging="a=b&a=c")
    rule = {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}
    for more in [{"ExposeHeaders": ["*"]}, {"AllowedMethods": ["FOO"]}, {"AllowedOrigins": ["a*b*"]}]:
        expect(400, "InvalidRequest", "put_bucket_cors", Bucket=bucket, CORSConfiguration={"CORSRules": [{**rule, **more}]})
    expect(400, "MalformedXML", "put_bucket_ownership_controls", Bucket=bucket,
           OwnershipControls={"Rules": [{"ObjectOwnership": "Foo"}]})
    grant = lambda owner, grantee: {"Owner": {"ID": owner}, "Grants": [{"Grantee": grantee, "Permission": "FULL_CONTROL"}]}
    grantee = {"Type": "CanonicalUser", "ID": "terrace"}
    for status, code, policy in [
            (403, "AccessDenied", grant("somebody", grantee)), (400, "InvalidArgument", grant("terrace", {**grantee, "ID": "x"})),
            (400, "UnresolvableGrantByEmailAddress", grant("terrace", {"Type": "AmazonCustomerByEmail", "EmailAddress": "a@b"}))]:
        expect(status, code, "put_bucket_acl", Bucket=bucket, AccessControlPolicy=policy)


def post(bucket, conditions, fields, without=()):
    """A form, signed with version 2; `conditions` None: with neither policy nor signature."""
    lines = list(fields)
    if conditions is not None:
        expiration = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        policy = base64.b64encode(json.dumps({"expiration": expiration, "conditions": conditions}).encode())
        signature = base64.b64encode(hmac.new(SECRET_KEY.encode(), policy, hashlib.sha1).digest()).decode()
        lines += [("policy", policy.decode()), ("signature", signature), ("AWSAccessKeyId", ACCESS_KEY)]
    lines = [line for line in lines if line[0] not in without]
    parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in lines]
    content = ("".join(parts) + '--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nbar\r\n--x--\r\n').encode()
    return send("POST", f"/{bucket}", {"content-type": "multipart/form-data; boundary=x"}, content, signed=False)[:2]


def forms(bucket):
    allowed = [{"bucket": bucket}, ["starts-with", "$key", "foo"], {"acl": "public-read"}, ["starts-with", "$tagging", ""]]
    tags = "<Tagging><TagSet><Tag><Key>0</Key><Value>1</Value></Tag></TagSet></Tagging>"
    fields = [("key", "foo.txt"), ("acl", "public-read"), ("tagging", tags)]
    check("a form", post(bucket, allowed, fields), (204, None))
    expect(200, None, "get_object", Bucket=bucket, Key="foo.txt", anybody=True)
    check("tags", S3.get_object_tagging(Bucket=bucket, Key="foo.txt")["TagSet"], [{"Key": "0", "Value": "1"}])
    denied = (403, "AccessDenied")
    for name, conditions, given in [
            ("a key", allowed, [("key", "bar.txt")] + fields[1:]), ("an acl", allowed, [fields[0], ("acl", "private"), fields[2]]),
            ("a bucket", [{"bucket": "other"}] + allowed[1:], fields), ("no bucket", allowed[1:], fields),
            ("a missing field", allowed + [["eq", "$x-amz-meta-a", "1"]], fields),
            ("an extra field", allowed, fields + [("x-amz-meta-a", "1")])]:
        check(f"{name} that the policy does not allow", post(bucket, conditions, given), denied)
    for name in ["key", "signature", "AWSAccessKeyId", "policy"]:
        check(f"no {name}", post(bucket, allowed, fields, without=(name,)), (400, "InvalidArgument"))
    check("anonymous", post(bucket, None, fields), denied)
    unknown = [{"bucket": bucket}, ["starts-with", "$key", ""], ["starts-with", "$acl", ""]]
    check("an acl that is none", post(bucket, unknown, [("key", "k"), ("acl", "foo")]), (400, "InvalidArgument"))


def main():
    for group in [names, signatures, headers, bodies_in_xml, who_may_know, copies, settings, forms]:
        bucket, before = f"t-{uuid.uuid4().hex[:12]}", len(FAILED)
        S3.create_bucket(Bucket=bucket)
        S3.put_object(Bucket=bucket, Key="k", Body=b"x")
        group(bucket)
        for entry in S3.list_objects_v2(Bucket=bucket).get("Contents", []):
            S3.delete_object(Bucket=bucket, Key=entry["Key"])
        S3.delete_bucket(Bucket=bucket)
        if len(FAILED) == before:
            print(f"ok      {group.__name__}")
    sys.exit(1 if FAILED else 0)


main()
