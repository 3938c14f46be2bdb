"""Signatures, dates, lengths, names of buckets: what is in the head of a request."""

import email.utils
import hmac
import socket

from common import *

DAY = 86400


def stamp(seconds):
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))


def bucket_names(bucket):
    for name in [
        "a",
        "aa",
        "a" * 64,
        "A" + bucket,
        f"{bucket}_x",
        f"-{bucket}",
        f"{bucket}-",
        f"{bucket}..x",
        f".{bucket}",
        f"{bucket}.",
        "192.168.5.4",
        "foo!bar",
    ]:
        answers((400, "InvalidBucketName"), "PUT", f"/{name}")
    for name in [f"{bucket}.x", f"0{bucket}", "b" * 47 + bucket[2:18], "c" * (63 - 16) + bucket[2:]]:
        answers(200, "PUT", f"/{name}")
        answers(200, "PUT", f"/{name}")
        answers(204, "DELETE", f"/{name}")
        answers((404, "NoSuchBucket"), "DELETE", f"/{name}")
    call((409, "BucketAlreadyExists"), "create_bucket", who=OTHER, Bucket=bucket)
    put(bucket, "k")
    call((409, "BucketNotEmpty"), "delete_bucket", Bucket=bucket)
    for name in ["delete_bucket", "list_objects", "get_bucket_location", "get_bucket_acl", "get_bucket_policy"]:
        call((403, "AccessDenied"), name, who=OTHER, Bucket=bucket)
        call((403, "AccessDenied"), name, who=ANYBODY, Bucket=bucket)
        call((404, "NoSuchBucket"), name, Bucket=f"{bucket}-x")
    call(403, "head_bucket", who=OTHER, Bucket=bucket)
    call(404, "head_bucket", Bucket=f"{bucket}-x")
    answers((400, "MalformedXML"), "PUT", f"/{bucket}-y", {}, b"<nonsense")
    answers((403, "AccessDenied"), "PUT", f"/{bucket}-y", signed=False)
    check("location", call(200, "get_bucket_location", Bucket=bucket).get("LocationConstraint"), None)


def authorization(bucket):
    path = f"/{bucket}/k"
    for method in ["GET", "PUT"]:
        for value, expected in [
            ("", (403, "AccessDenied")),
            ("x", (400, "InvalidArgument")),
            ("AWS4-HMAC-SHA256", (400, "AuthorizationHeaderMalformed")),
        ]:
            answers(expected, method, path, signed=False, then={"authorization": value})
        answers((403, "InvalidAccessKeyId"), method, path, keys=("NOSUCHKEY", "secret"))
        answers((403, "SignatureDoesNotMatch"), method, path, keys=(ACCESS_KEY, "secret"))
    signed = lambda **more: send("PUT", path, {}, b"x", **more)
    check("a hash that is none", signed(then={"x-amz-content-sha256": "0"})[:2], (400, "InvalidArgument"))
    check("another user agent", signed(then={"user-agent": ""})[:2], (200, None))
    check("no user agent", signed(without=("user-agent",))[:2], (200, None))
    check("a header not signed", signed(then={"x-amz-meta-a": "b"})[:2], (403, "AccessDenied"))
    check("another header", signed(then={"x-amz-date": stamp(time.time() - 60)})[:2], (403, "SignatureDoesNotMatch"))


def signed_at(method, path, seconds, content=b"", scope_day=None):
    """A request that is signed as of another time, by hand."""
    date = seconds if isinstance(seconds, str) else stamp(seconds)
    day = scope_day or date[:8]
    hashed = hashlib.sha256(content).hexdigest()
    canonical = f"{method}\n{path}\n\nhost:{HOST}\nx-amz-content-sha256:{hashed}\nx-amz-date:{date}\n\nhost;x-amz-content-sha256;x-amz-date\n{hashed}"
    scope = f"{day}/us-east-1/s3/aws4_request"
    key = f"AWS4{SECRET_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return send(
        method,
        path,
        {},
        content,
        signed=False,
        then={
            "x-amz-date": date,
            "x-amz-content-sha256": hashed,
            "authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}",
        },
    )[:2]


def dates(bucket):
    path = f"/{bucket}/d"
    now = time.time()
    check("now", signed_at("PUT", path, now), (200, None))
    for seconds in [now - 20 * 60, now - DAY, now + DAY, now + 20 * 60, "20500101T000000Z", "19900101T000000Z"]:
        check(f"signed at {seconds}", signed_at("PUT", path, seconds), (403, "RequestTimeTooSkewed"))
    for seconds in ["garbage", "", "2026-01-01"]:
        check(f"signed at {seconds!r}", signed_at("PUT", path, seconds, scope_day="20260101"), (403, "AccessDenied"))
    check("another day in the scope", signed_at("PUT", path, now, scope_day="20200101"), (403, "SignatureDoesNotMatch"))


def lengths(bucket):
    path = f"/{bucket}/l"
    answers((411, "MissingContentLength"), "PUT", path, {}, b"", without=("content-length",))
    for value in ["", "-1", "x"]:
        check(f"length {value!r}", send("PUT", path, {}, b"", then={"content-length": value})[0], 400)
    answers(200, "PUT", path, {"expect": "100-continue"}, b"abc")
    answers(200, "PUT", path, {"content-type": ""}, b"abc")
    answers(200, "PUT", path, {"expect": ""}, b"abc")
    for method in ["PATCH", "TRACE", "FOO"]:
        check(f"{method} of an object", send(method, path)[:2], (405, "MethodNotAllowed"))
        check(f"{method} of a bucket", send(method, f"/{bucket}")[:2], (405, "MethodNotAllowed"))
    check("POST of an object", send("POST", path)[:2], (405, "MethodNotAllowed"))
    answers((412, "PreconditionFailed"), "POST", f"/{bucket}", {"content-type": "application/x-www-form-urlencoded"}, b"a=b")
    check("DELETE of the service", send("DELETE", "/")[:2], (405, "MethodNotAllowed"))
    check("PUT of the service", send("PUT", "/")[:2], (405, "MethodNotAllowed"))


def waiting_for_continue(bucket):
    """A refusal comes before the body is sent."""

    def ask(content):
        with socket.create_connection(HOST.split(":"), timeout=60) as connection:
            lines = [
                f"PUT /{bucket}/k HTTP/1.1",
                f"Host: {HOST}",
                f"Content-Length: {len(content)}",
                "Expect: 100-continue",
                "",
                "",
            ]
            connection.sendall("\r\n".join(lines).encode())
            return connection.recv(1000)[:12]

    check("nobody", ask(b"abc"), b"HTTP/1.1 403")
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    check("everybody", ask(b"abc"), b"HTTP/1.1 100")
    check("nothing to wait for", ask(b""), b"HTTP/1.1 200")


def presigned_urls(bucket):
    put(bucket, "k")
    get = lambda seconds=600, **more: presigned("get_object", seconds, Bucket=bucket, Key="k", **more)
    answers(200, "GET", get(), signed=False)
    answers(200, "GET", get(ResponseContentType="text/x"), signed=False)
    check("response header", send("GET", get(ResponseContentType="text/x"), signed=False)[2]["content-type"], "text/x")
    answers((403, "SignatureDoesNotMatch"), "GET", get().replace("/k?", "/k2?"), signed=False)
    answers((403, "SignatureDoesNotMatch"), "GET", get() + "&response-content-type=x", signed=False)
    for seconds, expected in [(604801, 400), (-1, 400), (0, 403)]:
        url = re.sub(r"X-Amz-Expires=\d+", f"X-Amz-Expires={seconds}", get())
        check(f"X-Amz-Expires={seconds}", send("GET", url, signed=False)[0], expected)
    answers(
        (400, "AuthorizationQueryParametersError"), "GET", re.sub(r"X-Amz-Expires=\d+", "X-Amz-Expires=x", get()), signed=False
    )
    for name in ["X-Amz-Date", "X-Amz-Expires", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature"]:
        answers((400, "AuthorizationQueryParametersError"), "GET", re.sub(f"&{name}=[^&]*", "", get()), signed=False)
    put_url = presigned("put_object", Bucket=bucket, Key="put")
    answers(200, "PUT", put_url, {}, b"content", signed=False)
    check("put", body(S3.get_object(Bucket=bucket, Key="put")), b"content")
    answers(204, "DELETE", presigned("delete_object", Bucket=bucket, Key="put"), signed=False)
    answers(200, "GET", presigned("list_objects_v2", Bucket=bucket), signed=False)
    answers((404, "NoSuchKey"), "GET", presigned("get_object", Bucket=bucket, Key="none"), signed=False)
    answers((403, "AccessDenied"), "GET", presigned("get_object", who=OTHER, Bucket=bucket, Key="k"), signed=False)
    acl = presigned("put_object", Bucket=bucket, Key="acl", ACL="public-read")
    answers(200, "PUT", acl, {}, b"x", signed=False, then={"x-amz-acl": "public-read"})
    answers((403, "SignatureDoesNotMatch"), "PUT", acl, {}, b"x", signed=False, then={"x-amz-acl": "private"})


def signatures_of_version_2(bucket):
    """As boto3 presigns by default."""
    put(bucket, "k")
    old = client(ACCESS_KEY, SECRET_KEY, signature_version=None)
    get = lambda seconds=600, **more: presigned("get_object", seconds, who=old, Bucket=bucket, Key="k", **more)
    answers(200, "GET", get(), signed=False)
    check("response header", send("GET", get(ResponseContentType="text/x"), signed=False)[2]["content-type"], "text/x")
    answers((403, "SignatureDoesNotMatch"), "GET", get().replace("/k?", "/k2?"), signed=False)
    answers((403, "SignatureDoesNotMatch"), "GET", get() + "&response-content-type=x", signed=False)
    answers((403, "SignatureDoesNotMatch"), "GET", get() + "&tagging", signed=False)
    answers((403, "SignatureDoesNotMatch"), "DELETE", get(), signed=False)
    answers((403, "AccessDenied"), "GET", get(-10), signed=False)
    holds("expired", b"Request has expired" in send("GET", get(-10), signed=False)[3])
    for name in ["AWSAccessKeyId", "Signature", "Expires"]:
        answers((403, "AccessDenied"), "GET", re.sub(f"([?&]){name}=[^&]*", r"\1", get()), signed=False)
    answers((403, "AccessDenied"), "GET", re.sub(r"Expires=\d+", "Expires=soon", get()), signed=False)
    answers((403, "InvalidAccessKeyId"), "GET", get().replace(ACCESS_KEY, "NOTTHERE"), signed=False)
    answers((400, "InvalidArgument"), "GET", get() + "&" + presigned("get_object", Bucket=bucket, Key="k").split("?")[1], signed=False)
    answers((400, "InvalidArgument"), "GET", get())
    answers((403, "AccessDenied"), "GET", presigned("get_object", who=client(OTHER_KEY, OTHER_SECRET, signature_version=None), Bucket=bucket, Key="k"), signed=False)
    date = lambda seconds=0: email.utils.formatdate(time.time() + seconds, usegmt=True)

    def signed(text):
        return f"AWS {ACCESS_KEY}:" + base64.b64encode(hmac.digest(SECRET_KEY.encode(), text.encode(), "sha1")).decode()

    def header(expected, seconds=0, change=lambda text: text, **then):
        at = date(seconds)
        said = {"date": at, "authorization": change(signed(f"GET\n\n\n{at}\n/{bucket}/k"))}
        answers(expected, "GET", f"/{bucket}/k", signed=False, then={**said, **then})

    header(200)
    header(200, 800)
    header((403, "RequestTimeTooSkewed"), 1000)
    header((403, "RequestTimeTooSkewed"), -1000)
    header((403, "AccessDenied"), date="yesterday")
    header((403, "SignatureDoesNotMatch"), change=lambda text: text[:-3] + "AA=")
    header((403, "SignatureDoesNotMatch"), change=lambda text: text[:-1])
    header((403, "SignatureDoesNotMatch"), **{"x-amz-acl": "private"})
    header((403, "SignatureDoesNotMatch"), **{"content-type": "text/x"})
    header((403, "InvalidAccessKeyId"), change=lambda text: text.replace(ACCESS_KEY, "NOTTHERE"))
    header((400, "InvalidArgument"), change=lambda text: text.split(":")[0])
    answers((403, "AccessDenied"), "GET", f"/{bucket}/k", signed=False, then={"authorization": signed(f"GET\n\n\n\n/{bucket}/k")})
    at = date()
    said = signed(f"GET\n\n\n\nx-amz-date:{at}\n/{bucket}/k")
    answers(200, "GET", f"/{bucket}/k", signed=False, then={"x-amz-date": at, "authorization": said})


def anonymous(bucket):
    put(bucket, "private")
    put(bucket, "public", ACL="public-read")
    for name in ["get_object", "head_object"]:
        call(200, name, who=ANYBODY, Bucket=bucket, Key="public")
        call((403, "AccessDenied"), name, who=ANYBODY, Bucket=bucket, Key="private")
        call((403, "AccessDenied"), name, who=ANYBODY, Bucket=bucket, Key="none")
        call((404, "NoSuchBucket"), name, who=ANYBODY, Bucket=bucket + "-x", Key="none")
    for name, more in [
        ("put_object", {"Key": "a", "Body": b""}),
        ("delete_object", {"Key": "public"}),
        ("get_object_acl", {"Key": "public"}),
        ("get_object_tagging", {"Key": "public"}),
        ("get_bucket_acl", {}),
        ("list_object_versions", {}),
        ("create_multipart_upload", {"Key": "a"}),
        ("list_multipart_uploads", {}),
        ("get_bucket_versioning", {}),
        ("get_bucket_cors", {}),
        ("get_bucket_lifecycle_configuration", {}),
    ]:
        call((403, "AccessDenied"), name, who=ANYBODY, Bucket=bucket, **more)
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    call(200, "put_object", who=ANYBODY, Bucket=bucket, Key="theirs", Body=b"x")
    call(204, "delete_object", who=ANYBODY, Bucket=bucket, Key="theirs")
    S3.put_bucket_acl(Bucket=bucket, ACL="private")
    call((403, "AccessDenied"), "put_object", who=ANYBODY, Bucket=bucket, Key="theirs", Body=b"x")
    call((404, "NoSuchBucket"), "delete_object", who=ANYBODY, Bucket=bucket + "-x", Key="theirs")
    answers((400, "InvalidRequest"), "GET", f"/{bucket}/public?response-cache-control=no-cache", signed=False)


def what_was_never_set(bucket):
    for name, code in [
        ("get_bucket_policy", "NoSuchBucketPolicy"),
        ("get_bucket_cors", "NoSuchCORSConfiguration"),
        ("get_bucket_tagging", "NoSuchTagSet"),
        ("get_bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration"),
        ("get_bucket_website", "NoSuchWebsiteConfiguration"),
        ("get_bucket_replication", "ReplicationConfigurationNotFoundError"),
        ("get_bucket_encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("get_public_access_block", "NoSuchPublicAccessBlockConfiguration"),
        ("get_bucket_ownership_controls", "OwnershipControlsNotFoundError"),
        ("get_object_lock_configuration", "ObjectLockConfigurationNotFoundError"),
    ]:
        call((404, code), name, Bucket=bucket)
        call((403, "AccessDenied"), name, who=OTHER, Bucket=bucket)
        call((404, "NoSuchBucket"), name, Bucket=bucket + "-x")
    for name in [
        "delete_bucket_policy",
        "delete_bucket_cors",
        "delete_bucket_tagging",
        "delete_bucket_lifecycle",
        "delete_bucket_website",
        "delete_bucket_encryption",
        "delete_public_access_block",
        "delete_bucket_ownership_controls",
        "delete_bucket_replication",
    ]:
        call(204, name, Bucket=bucket)
        call((403, "AccessDenied"), name, who=OTHER, Bucket=bucket)
    empty_answer = lambda name: {key: value for key, value in call(200, name, Bucket=bucket).items() if key != "ResponseMetadata"}
    check("versioning", empty_answer("get_bucket_versioning"), {})
    check("logging", empty_answer("get_bucket_logging"), {})
    check("notifications", empty_answer("get_bucket_notification_configuration"), {})
    check("acceleration", empty_answer("get_bucket_accelerate_configuration"), {})
    check("who pays", empty_answer("get_bucket_request_payment"), {"Payer": "BucketOwner"})
    call(200, "put_bucket_request_payment", Bucket=bucket, RequestPaymentConfiguration={"Payer": "BucketOwner"})


def who_pays(bucket):
    put(bucket, "k")
    S3.put_bucket_policy(
        Bucket=bucket,
        Policy=json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": {
                    "Effect": "Allow",
                    "Principal": "*",
                    "Action": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"],
                    "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
                },
            }
        ),
    )
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="k")
    call((400, "MalformedXML"), "put_bucket_request_payment", Bucket=bucket, RequestPaymentConfiguration={"Payer": "Nobody"})
    call((403, "AccessDenied"), "put_bucket_request_payment", who=OTHER, Bucket=bucket, RequestPaymentConfiguration={"Payer": "Requester"})
    call(200, "put_bucket_request_payment", Bucket=bucket, RequestPaymentConfiguration={"Payer": "Requester"})
    check("who pays", call(200, "get_bucket_request_payment", Bucket=bucket)["Payer"], "Requester")
    answer = call(200, "get_object", Bucket=bucket, Key="k")
    check("the owner is not charged", answer.get("RequestCharged"), None)
    target = new_bucket(who=OTHER)
    for name, more in [
        ("get_object", {"Key": "k"}),
        ("head_object", {"Key": "k"}),
        ("put_object", {"Key": "new", "Body": b"x"}),
        ("list_objects_v2", {}),
        ("list_objects", {}),
    ]:
        call((403, "AccessDenied"), name, who=OTHER, Bucket=bucket, **more)
        call((403, "AccessDenied"), name, who=ANYBODY, Bucket=bucket, **more)
        answer = call(200, name, who=OTHER, Bucket=bucket, RequestPayer="requester", **more)
        check(f"{name} is charged", answer.get("RequestCharged"), "requester")
    copied = {"Bucket": target, "Key": "k", "CopySource": f"{bucket}/k"}
    call((403, "AccessDenied"), "copy_object", who=OTHER, **copied)
    call(200, "copy_object", who=OTHER, RequestPayer="requester", **copied)
    call((403, "AccessDenied"), "get_object", who=ANYBODY, Bucket=bucket, Key="k", RequestPayer="requester")
    answers((403, "AccessDenied"), "GET", presigned("get_object", who=OTHER, Bucket=bucket, Key="k"), signed=False)
    url = presigned("get_object", who=OTHER, Bucket=bucket, Key="k", RequestPayer="requester")
    answers(200, "GET", url, signed=False, then={"x-amz-request-payer": "requester"})
    call(200, "put_bucket_request_payment", Bucket=bucket, RequestPaymentConfiguration={"Payer": "BucketOwner"})
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="k")


GROUPS = [bucket_names, authorization, dates, lengths, waiting_for_continue, presigned_urls, signatures_of_version_2, anonymous, what_was_never_set, who_pays]
