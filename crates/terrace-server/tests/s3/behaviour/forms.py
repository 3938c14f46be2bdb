"""Forms: what their policies ask, and every way in which one can be wrong."""

import hmac

from common import *


def post(
    bucket,
    conditions,
    fields,
    then={},
    content=b"bar",
    expires=600,
    without=(),
    name="file",
    keys=(ACCESS_KEY, SECRET_KEY),
    document=None,
):
    """A form signed with version 4; `conditions` None: with neither policy nor signature."""
    lines = dict(fields)
    if conditions is not None or document is not None:
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{date[:8]}/us-east-1/s3/aws4_request"
        signing = {"x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-credential": f"{keys[0]}/{scope}", "x-amz-date": date}
        expiration = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + expires))
        wanted = {
            "expiration": expiration,
            "conditions": [*(conditions or []), *[{field: value} for field, value in signing.items()]],
        }
        policy = base64.b64encode(json.dumps(wanted if document is None else document(wanted)).encode()).decode()
        key = f"AWS4{keys[1]}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        lines |= {**signing, "policy": policy, "x-amz-signature": hmac.new(key, policy.encode(), hashlib.sha256).hexdigest()}
    lines |= then
    text = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in lines.items()
        if field not in without
    )
    file = f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\n'.encode()
    return send(
        "POST",
        f"/{bucket}",
        {"content-type": "multipart/form-data; boundary=x"},
        text.encode() + file + content + b"\r\n--x--\r\n",
        signed=False,
    )


def forms(bucket):
    allowed = [
        {"bucket": bucket},
        ["starts-with", "$key", "foo"],
        {"acl": "private"},
        ["starts-with", "$Content-Type", "text/plain"],
        ["content-length-range", 0, 1024],
    ]
    fields = {"key": "foo.txt", "acl": "private", "Content-Type": "text/plain"}
    answer = post(bucket, allowed, fields)
    check("a form", answer[:2], (204, None))
    holds(
        "its headers",
        answer[2]["etag"] == f'"{hashlib.md5(b"bar").hexdigest()}"' and answer[2]["location"].endswith(f"/{bucket}/foo.txt"),
    )
    answer = S3.get_object(Bucket=bucket, Key="foo.txt")
    check("stored", (body(answer), answer["ContentType"]), (b"bar", "text/plain"))

    def form(expected, conditions=allowed, given=fields, note="", **more):
        answer = post(bucket, conditions, given, **more)
        check(f"a form: {note or more or given}", answer[:2], expected if isinstance(expected, tuple) else (expected, None))
        return answer

    denied, argument = (403, "AccessDenied"), (400, "InvalidArgument")
    open_to = lambda *more: [{"bucket": bucket}, ["starts-with", "$key", ""], *more]
    for status, expected in [("200", 200), ("201", 201), ("204", 204), ("404", 204)]:
        answer = form(
            expected, open_to(["starts-with", "$success_action_status", ""]), {"key": "s", "success_action_status": status}
        )
        if expected == 201:
            holds(
                "an answer in XML",
                all(part in answer[3] for part in [b"<PostResponse>", b"<Key>s</Key>", b"<Bucket>", b"<ETag>", b"<Location>"]),
            )
            address = f"{ENDPOINT.rstrip('/')}/{bucket}/s"
            check("where it is", answer[2]["location"], address)
            holds("where it is, in XML", f"<Location>{address}</Location>".encode() in answer[3])
    answer = form(
        303,
        open_to(["starts-with", "$success_action_redirect", ""]),
        {"key": "r", "success_action_redirect": "http://localhost/x?y=z"},
    )
    holds("redirected", answer[2]["location"].startswith(f"http://localhost/x?y=z&bucket={bucket}&key=r&etag=%22"))
    # What says how to answer and cannot be understood says nothing.
    for field, value in [("success_action_redirect", "no address"), ("success_action_redirect", ""), ("success_action_status", "soon")]:
        form(204, open_to(["starts-with", f"${field}", ""]), {"key": "r", field: value})
    form(204, open_to(), {"key": "dir/${filename}"}, note="filename")
    call(200, "head_object", Bucket=bucket, Key="dir/f.txt")
    form(204, open_to(["starts-with", "$x-amz-meta-a", "b"]), {"key": "m", "x-amz-meta-a": "bcd"}, note="metadata")
    check("metadata", S3.head_object(Bucket=bucket, Key="m")["Metadata"], {"a": "bcd"})
    form(204, open_to(), {"key": "i", "x-ignore-foo": "bar"}, note="ignored")
    form(
        204,
        [{"BuCkEt": bucket}, ["StArTs-WiTh", "$KeY", "foo"], {"AcL": "private"}, ["StArTs-WiTh", "$CoNtEnT-TyPe", "text"]],
        note="case of names",
    )
    form(204, [{"bucket": bucket}, ["eq", "$key", "foo.txt"]], {"key": "foo.txt"}, note="eq")
    form(denied, [{"bucket": bucket}, ["eq", "$key", "foo.tx"]], {"key": "foo.txt"}, note="eq of another")
    form(denied, given={**fields, "key": "bar.txt"})
    form(denied, given={**fields, "acl": "public-read"})
    form(denied, given={**fields, "x-amz-meta-a": "b"}, note="a field without a condition")
    form(denied, allowed + [["eq", "$x-amz-meta-a", "b"]], note="a condition without a field")
    form(denied, allowed[1:], note="no condition on the bucket")
    form(denied, [{"bucket": "other"}] + allowed[1:], note="another bucket")
    form(denied, expires=-10, note="expired")
    form((403, "SignatureDoesNotMatch"), keys=(ACCESS_KEY, "wrong"), note="another secret")
    form((403, "InvalidAccessKeyId"), keys=("NOBODY", SECRET_KEY), note="nobody's key")
    form((403, "SignatureDoesNotMatch"), then={"x-amz-signature": "0" * 64})
    for field in ["key", "policy", "x-amz-signature", "x-amz-credential", "x-amz-date"]:
        form(argument, without=(field,), note=f"without {field}")
    form(argument, name="other", note="no file")
    form(denied, None, {"key": "k"}, note="anonymous")
    form((400, "EntityTooLarge"), open_to(["content-length-range", 0, 2]), {"key": "k"}, note="too long")
    form((400, "EntityTooSmall"), open_to(["content-length-range", 4, 100]), {"key": "k"}, note="too short")
    document = (400, "InvalidPolicyDocument")
    form(document, open_to(["content-length-range", -1, 100]), {"key": "k"}, note="a negative length")
    form(document, open_to(["content-length-range", 0]), {"key": "k"}, note="half a range")
    answer = form(document, open_to(["ends-with", "$acl", "x"]), {"key": "k"}, note="an operator that is none")
    holds("a message", b"<Message>The content of the form" in answer[3])
    without = lambda name: lambda wanted: {key: value for key, value in wanted.items() if key != name}
    form(document, document=without("expiration"), note="no expiration")
    form(document, document=without("conditions"), note="no conditions")
    form(document, document=lambda wanted: {**wanted, "expiration": "tomorrow"}, note="an expiration that is none")
    form(
        document,
        document=lambda wanted: {"EXPIRATION": wanted["expiration"], "conditions": wanted["conditions"]},
        note="case of expiration",
    )
    form(
        document,
        document=lambda wanted: {"expiration": wanted["expiration"], "CONDITIONS": wanted["conditions"]},
        note="case of conditions",
    )
    form(denied, document=lambda wanted: {**wanted, "conditions": []}, note="conditions of nothing")
    form(204, [{"bucket": bucket}, ["starts-with", "$key", "\\$foo"]], {"key": "\\$foo.txt"}, note="an escaped value")
    form(document, document=lambda wanted: [1], note="a list")
    form(document, then={}, document=lambda wanted: {**wanted, "conditions": [{}]}, note="an empty condition")
    form(argument, open_to(["starts-with", "$acl", ""]), {"key": "k", "acl": "nothing"})
    form(
        204,
        open_to(["starts-with", "$x-amz-checksum-sha256", ""]),
        {"key": "k", "x-amz-checksum-sha256": sha256(b"bar")},
        note="a checksum",
    )
    form(
        (400, "BadDigest"),
        open_to(["starts-with", "$x-amz-checksum-sha256", ""]),
        {"key": "k", "x-amz-checksum-sha256": sha256(b"other")},
        note="a wrong one",
    )
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    form(204, None, {"key": "anybody.txt"}, note="anonymous in an open bucket")
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    given = {"key": "open.txt", "acl": "public-read", "tagging": tags, "Content-Type": "text/plain"}
    form(204, None, given, note="anonymous, and open to everybody")
    check("read by everybody", body(call(200, "get_object", who=ANYBODY, Bucket=bucket, Key="open.txt")), b"bar")
    check("its tags", S3.get_object_tagging(Bucket=bucket, Key="open.txt")["TagSet"], [{"Key": "a", "Value": "b"}])
    call(200, "put_object", who=ANYBODY, Bucket=bucket, Key="put", Body=b"", ACL="public-read")
    call((403, "AccessDenied"), "put_object_acl", who=ANYBODY, Bucket=bucket, Key="foo.txt", ACL="public-read")
    S3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration={"BlockPublicAcls": True})
    form(denied, None, given, note="anonymous, where such lists are refused")
    S3.delete_public_access_block(Bucket=bucket)
    # A policy that lets everybody put says nothing of lists.
    S3.put_bucket_acl(Bucket=bucket, ACL="private")
    everybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    S3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [everybody]}))
    form(204, None, {"key": "anybody.txt"}, note="anonymous, by a policy")
    form(denied, None, given, note="a list, by a policy")
    S3.delete_bucket_policy(Bucket=bucket)
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    answer = form(
        204,
        open_to({"x-amz-server-side-encryption": "AES256"}),
        {"key": "sealed", "x-amz-server-side-encryption": "AES256"},
        note="encrypted by the server",
    )
    check("said of encryption", answer[2].get("x-amz-server-side-encryption"), "AES256")
    check(
        "no bucket",
        send(
            "POST",
            f"/{bucket}-x",
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\nk\r\n--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--x--\r\n',
            signed=False,
        )[:2],
        (404, "NoSuchBucket"),
    )


GROUPS = [forms]
