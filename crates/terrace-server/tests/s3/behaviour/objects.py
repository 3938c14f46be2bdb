"""Objects: put, read, conditions, ranges, metadata, copies, attributes, deletion."""

from common import *

HOUR = datetime.timedelta(hours=1)


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def reading_and_writing(bucket):
    for content in [b"", b"x", b"y" * 300_000]:
        answer = call(200, "put_object", Bucket=bucket, Key="k", Body=content)
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        check("ETag", answer["ETag"], etag)
        answer = call(200, "get_object", Bucket=bucket, Key="k")
        check(
            "GET",
            (body(answer), answer["ETag"], answer["ContentLength"], answer["AcceptRanges"]),
            (content, etag, len(content), "bytes"),
        )
        answer = call(200, "head_object", Bucket=bucket, Key="k")
        check(
            "HEAD", (answer["ETag"], answer["ContentLength"], answer["ContentType"]), (etag, len(content), "binary/octet-stream")
        )
    error = call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="none")
    check("which key", (error["Error"].get("Key"), error["Error"]["Message"]), ("none", "The specified key does not exist."))
    call(404, "head_object", Bucket=bucket, Key="none")
    error = call((404, "NoSuchBucket"), "put_object", Bucket=bucket + "-x", Key="k", Body=b"")
    check("which bucket", error["Error"].get("BucketName"), bucket + "-x")
    call((404, "NoSuchBucket"), "get_object", Bucket=bucket + "-x", Key="k")
    call((404, "NoSuchBucket"), "delete_object", Bucket=bucket + "-x", Key="k")
    call(204, "delete_object", Bucket=bucket, Key="none")
    call(204, "delete_object", Bucket=bucket, Key="k")
    call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="k")
    call((400, "KeyTooLongError"), "put_object", Bucket=bucket, Key="k" * 1025, Body=b"")
    call(200, "put_object", Bucket=bucket, Key="k" * 1024, Body=b"")
    answer = send("GET", f"/{bucket}/none")
    check("errors are XML", (answer[2]["content-type"], answer[3].startswith(b"<?xml")), ("application/xml", True))
    holds("request ID", answer[2]["x-amz-request-id"].encode() in answer[3])
    answer = send("HEAD", f"/{bucket}/none")
    check("HEAD has no body", (answer[0], answer[3]), (404, b""))


def headers_kept(bucket):
    given = {
        "CacheControl": "public, max-age=14400",
        "ContentDisposition": "attachment; filename=x",
        "ContentEncoding": "gzip",
        "ContentLanguage": "de-DE",
        "ContentType": "text/plain; charset=utf-8",
    }
    S3.put_object(
        Bucket=bucket,
        Key="k",
        Body=b"x",
        Expires=datetime.datetime(2040, 1, 1),
        Metadata={"a": "b", "Upper": "X", "empty": ""},
        **given,
    )
    for name in ["get_object", "head_object"]:
        answer = call(200, name, Bucket=bucket, Key="k")
        for field, value in given.items():
            check(f"{name} {field}", answer.get(field), value)
        check(f"{name} metadata", answer["Metadata"], {"a": "b", "upper": "X", "empty": ""})
        check(f"{name} Expires", answer["ResponseMetadata"]["HTTPHeaders"]["expires"], "Sun, 01 Jan 2040 00:00:00 GMT")
    over = {
        "ResponseCacheControl": "no-cache",
        "ResponseContentDisposition": "bla",
        "ResponseContentEncoding": "aaa",
        "ResponseContentLanguage": "esperanto",
        "ResponseContentType": "foo/bar",
    }
    for name in ["get_object", "head_object"]:
        answer = call(200, name, Bucket=bucket, Key="k", ResponseExpires="Thu, 01 Dec 1994 16:00:00 GMT", **over)
        for field, value in over.items():
            check(f"{name} {field}", answer.get(field.removeprefix("Response")), value)
        check(f"{name} ResponseExpires", answer["ResponseMetadata"]["HTTPHeaders"]["expires"], "Thu, 01 Dec 1994 16:00:00 GMT")
    S3.put_object(Bucket=bucket, Key="k", Body=b"x")
    answer = S3.head_object(Bucket=bucket, Key="k")
    check("all replaced", (answer["Metadata"], "CacheControl" in answer, "ContentEncoding" in answer), ({}, False, False))
    call((400, "MetadataTooLarge"), "put_object", Bucket=bucket, Key="m", Body=b"", Metadata={"a": "x" * 2048})
    call(200, "put_object", Bucket=bucket, Key="m", Body=b"", Metadata={"a": "x" * 2000})
    for chunked, kept in [
        ("aws-chunked", None),
        ("aws-chunked,gzip", "gzip"),
        ("gzip,aws-chunked", "gzip"),
        ("gzip, aws-chunked", "gzip"),
    ]:
        S3.put_object(Bucket=bucket, Key="e", Body=b"x", ContentEncoding=chunked)
        check(f"encoding {chunked}", S3.head_object(Bucket=bucket, Key="e").get("ContentEncoding"), kept)
    call(200, "put_object", Bucket=bucket, Key="s", Body=b"", StorageClass="STANDARD")
    holds("STANDARD is not said", "StorageClass" not in S3.head_object(Bucket=bucket, Key="s"))


def storage_classes(bucket):
    classes = ["REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"]

    def said(key):
        return S3.head_object(Bucket=bucket, Key=key).get("StorageClass")

    def listed(entries):
        return {entry["Key"]: entry["StorageClass"] for entry in entries}

    for name in classes:
        call(200, "put_object", Bucket=bucket, Key=name, Body=b"x", StorageClass=name)
        check("head", said(name), name)
        check("get", call(200, "get_object", Bucket=bucket, Key=name).get("StorageClass"), name)
        answer = call(200, "get_object_attributes", Bucket=bucket, Key=name, ObjectAttributes=["StorageClass"])
        check("attributes", answer["StorageClass"], name)
    for name in ["GLACIER", "DEEP_ARCHIVE", "OUTPOSTS", "EXPRESS_ONEZONE", "standard", "FOO"]:
        call((400, "InvalidStorageClass"), "put_object", Bucket=bucket, Key="n", Body=b"x", StorageClass=name)
        call((400, "InvalidStorageClass"), "create_multipart_upload", Bucket=bucket, Key="n", StorageClass=name)
        call((400, "InvalidStorageClass"), "copy_object", Bucket=bucket, Key="n", CopySource=f"{bucket}/GLACIER_IR", StorageClass=name)
    call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="n")
    put(bucket, "plain")
    expected = dict({name: name for name in classes}, plain="STANDARD")
    for name in ["list_objects", "list_objects_v2"]:
        check(name, listed(getattr(S3, name)(Bucket=bucket)["Contents"]), expected)
    check("versions", listed(S3.list_object_versions(Bucket=bucket)["Versions"]), expected)
    # Uploads show it, and what they become has it.
    names = {"Bucket": bucket, "Key": "m"}
    names["UploadId"] = call(200, "create_multipart_upload", StorageClass="STANDARD_IA", **names)["UploadId"]
    check("uploads", listed(S3.list_multipart_uploads(Bucket=bucket)["Uploads"]), {"m": "STANDARD_IA"})
    check("parts", S3.list_parts(**names)["StorageClass"], "STANDARD_IA")
    part = call(200, "upload_part", PartNumber=1, Body=b"x", **names)
    call(200, "complete_multipart_upload", MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}, **names)
    check("completed", said("m"), "STANDARD_IA")
    # A copy has the class that is asked for, or the standard one; onto itself that is a change.
    call(200, "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/m")
    check("a copy takes it not along", said("c"), None)
    call(200, "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/m", StorageClass="GLACIER_IR")
    check("a copy that asks", said("c"), "GLACIER_IR")
    call(200, "put_object", Bucket=bucket, Key="self", Body=b"x", Metadata={"a": "b"})
    call((400, "InvalidRequest"), "copy_object", Bucket=bucket, Key="self", CopySource=f"{bucket}/self")
    call(200, "copy_object", Bucket=bucket, Key="self", CopySource=f"{bucket}/self", StorageClass="STANDARD_IA")
    answer = call(200, "get_object", Bucket=bucket, Key="self")
    check("changed", (answer.get("StorageClass"), answer["Metadata"], body(answer)), ("STANDARD_IA", {"a": "b"}, b"x"))
    call(200, "copy_object", Bucket=bucket, Key="self", CopySource=f"{bucket}/self", StorageClass="STANDARD")
    check("and back", said("self"), None)
    # Tags and lists keep it.
    S3.put_object_tagging(Bucket=bucket, Key="m", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    S3.put_object_acl(Bucket=bucket, Key="m", ACL="private")
    check("kept", said("m"), "STANDARD_IA")
    deny = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": f"arn:aws:s3:::{bucket}/*",
        "Condition": {"StringEquals": {"s3:x-amz-storage-class": "STANDARD_IA"}},
    }
    S3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    call((403, "AccessDenied"), "put_object", Bucket=bucket, Key="p", Body=b"", StorageClass="STANDARD_IA")
    call(200, "put_object", Bucket=bucket, Key="p", Body=b"", StorageClass="ONEZONE_IA")


def ranges(bucket):
    S3.put_object(Bucket=bucket, Key="k", Body=b"testcontent")
    for wanted, part, said in [
        ("bytes=4-7", b"cont", "bytes 4-7/11"),
        ("bytes=4-", b"content", "bytes 4-10/11"),
        ("bytes=-7", b"content", "bytes 4-10/11"),
        ("bytes=0-0", b"t", "bytes 0-0/11"),
        ("bytes=5-500", b"ontent", "bytes 5-10/11"),
        ("bytes=-500", b"testcontent", "bytes 0-10/11"),
        ("bytes=10-10", b"t", "bytes 10-10/11"),
    ]:
        answer = call(206, "get_object", Bucket=bucket, Key="k", Range=wanted)
        check(wanted, (body(answer), answer["ContentRange"], answer["ContentLength"]), (part, said, len(part)))
        answer = call(206, "head_object", Bucket=bucket, Key="k", Range=wanted)
        check(f"HEAD {wanted}", (answer["ContentLength"], answer.get("ContentRange")), (len(part), said))
    for wanted in ["bytes=40-50", "bytes=11-", "bytes=-0"]:
        error = call((416, "InvalidRange"), "get_object", Bucket=bucket, Key="k", Range=wanted)
        check("size told", error["Error"].get("ActualObjectSize"), "11")
        check("Content-Range", error["ResponseMetadata"]["HTTPHeaders"].get("content-range"), "bytes */11")
        call(416, "head_object", Bucket=bucket, Key="k", Range=wanted)
    for wanted in ["bytes=7-4", "bites=1-2", "bytes=x-y", "bytes=", "4-7"]:
        # Where the signature does not cover it, and where it does.
        answer = send("GET", presigned("get_object", Bucket=bucket, Key="k"), signed=False, then={"range": wanted})
        check(wanted, (answer[0], answer[3]), (200, b"testcontent"))
        check(f"{wanted}, signed", body(call(200, "get_object", Bucket=bucket, Key="k", Range=wanted)), b"testcontent")
    S3.put_object(Bucket=bucket, Key="empty", Body=b"")
    call((416, "InvalidRange"), "get_object", Bucket=bucket, Key="empty", Range="bytes=40-50")
    call((416, "InvalidRange"), "get_object", Bucket=bucket, Key="empty", Range="bytes=0-0")
    answer = call(206, "get_object", Bucket=bucket, Key="k", PartNumber=1)
    check("part 1 of what is one", body(answer), b"testcontent")
    call((416, "InvalidPartNumber"), "get_object", Bucket=bucket, Key="k", PartNumber=2)
    call((400, "InvalidArgument"), "get_object", Bucket=bucket, Key="k", PartNumber=0)
    call((400, "InvalidArgument"), "get_object", Bucket=bucket, Key="k", PartNumber=10001)
    call((400, "InvalidRequest"), "get_object", Bucket=bucket, Key="k", PartNumber=1, Range="bytes=0-1")


def conditions_on_reading(bucket):
    etag = S3.put_object(Bucket=bucket, Key="k", Body=b"bar")["ETag"]
    past, future = now() - HOUR, now() + HOUR
    wrong = '"ABCORZ"'
    for given, status in [
        ({"IfMatch": etag}, 200),
        ({"IfMatch": wrong}, 412),
        ({"IfMatch": "*"}, 200),
        ({"IfMatch": etag.strip('"')}, 200),
        ({"IfMatch": f"{wrong}, {etag}"}, 200),
        ({"IfNoneMatch": etag}, 304),
        ({"IfNoneMatch": wrong}, 200),
        ({"IfNoneMatch": "*"}, 304),
        ({"IfNoneMatch": f"{wrong}, {etag}"}, 304),
        ({"IfModifiedSince": past}, 200),
        ({"IfUnmodifiedSince": past}, 412),
        ({"IfUnmodifiedSince": future}, 200),
        ({"IfMatch": etag, "IfUnmodifiedSince": past}, 200),
        ({"IfMatch": wrong, "IfUnmodifiedSince": future}, 412),
        ({"IfNoneMatch": etag, "IfModifiedSince": past}, 304),
        ({"IfNoneMatch": wrong, "IfModifiedSince": now()}, 200),
    ]:
        expected = {412: (412, "PreconditionFailed"), 304: (304, "304")}.get(status, 200)
        answer = call(expected, "get_object", Bucket=bucket, Key="k", **given)
        call(status, "head_object", Bucket=bucket, Key="k", **given)
        if status == 304:
            check("ETag of 304", answer["ResponseMetadata"]["HTTPHeaders"].get("etag"), etag)
    modified = S3.head_object(Bucket=bucket, Key="k")["LastModified"]
    call((304, "304"), "get_object", Bucket=bucket, Key="k", IfModifiedSince=modified)
    call(200, "get_object", Bucket=bucket, Key="k", IfUnmodifiedSince=modified)
    call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="none", IfMatch=etag)
    call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="none", IfNoneMatch="*")


def conditions_on_writing(bucket):
    call(200, "put_object", Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")
    call((412, "PreconditionFailed"), "put_object", Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    etag = S3.head_object(Bucket=bucket, Key="k")["ETag"]
    call((412, "PreconditionFailed"), "put_object", Bucket=bucket, Key="k", Body=b"2", IfMatch='"x"')
    etag = call(200, "put_object", Bucket=bucket, Key="k", Body=b"2", IfMatch=etag)["ETag"]
    call((404, "NoSuchKey"), "put_object", Bucket=bucket, Key="none", Body=b"", IfMatch=etag)
    call((501, "NotImplemented"), "put_object", Bucket=bucket, Key="k", Body=b"", IfNoneMatch=etag)
    call((404, "NoSuchKey"), "put_object", Bucket=bucket, Key="none", Body=b"", IfMatch="*")
    check("still", body(S3.get_object(Bucket=bucket, Key="k")), b"2")
    call((412, "PreconditionFailed"), "delete_object", Bucket=bucket, Key="k", IfMatch='"x"')
    call(204, "delete_object", Bucket=bucket, Key="k", IfMatch=etag)
    call((404, "NoSuchKey"), "delete_object", Bucket=bucket, Key="k", IfMatch="*")
    put(bucket, "k")
    call(204, "delete_object", Bucket=bucket, Key="k", IfMatch="*")
    etag = S3.put_object(Bucket=bucket, Key="k", Body=b"")["ETag"]
    answer = S3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "ETag": '"x"'}]})
    check("deleting many", [(error["Key"], error["Code"]) for error in answer.get("Errors", [])], [("k", "PreconditionFailed")])
    answer = S3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "ETag": etag}]})
    check("deleting many, as it is", [entry["Key"] for entry in answer.get("Deleted", [])], ["k"])
    put(bucket, "k")
    answer = S3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "ETag": "*"}, {"Key": "none", "ETag": "*"}]})
    check(
        "deleting many, if they are there",
        ([entry["Key"] for entry in answer.get("Deleted", [])], [(e["Key"], e["Code"]) for e in answer.get("Errors", [])]),
        (["k"], [("none", "NoSuchKey")]),
    )


def conditions_and_versions(bucket):
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first, second = [S3.put_object(Bucket=bucket, Key="k", Body=content) for content in [b"1", b"2"]]
    failed, missing = (412, "PreconditionFailed"), (404, "NoSuchKey")
    call(failed, "delete_object", Bucket=bucket, Key="k", IfMatch=first["ETag"])
    call(204, "delete_object", Bucket=bucket, Key="k", IfMatch=second["ETag"])
    call(missing, "delete_object", Bucket=bucket, Key="k", IfMatch="*")
    call(missing, "put_object", Bucket=bucket, Key="k", Body=b"", IfMatch="*")
    call(200, "put_object", Bucket=bucket, Key="k", Body=b"", IfNoneMatch="*")
    put(bucket, "size", Body=b"123")
    modified = S3.head_object(Bucket=bucket, Key="size")["LastModified"]
    call(failed, "delete_object", Bucket=bucket, Key="size", IfMatchSize=9)
    call(failed, "delete_object", Bucket=bucket, Key="size", IfMatchLastModifiedTime=datetime.datetime(2015, 1, 1))
    call(204, "delete_object", Bucket=bucket, Key="size", IfMatchSize=3, IfMatchLastModifiedTime=modified)


def deleting_many(bucket):
    put(bucket, "a", "b", "c d", "ü")
    objects = lambda *names: {"Objects": [{"Key": name} for name in names]}
    answer = call(200, "delete_objects", Bucket=bucket, Delete=objects("a", "missing"))
    check("missing ones are deleted", [entry["Key"] for entry in answer["Deleted"]], ["a", "missing"])
    answer = call(200, "delete_objects", Bucket=bucket, Delete={**objects("b", "c d"), "Quiet": True})
    check("quiet", ("Deleted" in answer, "Errors" in answer), (False, False))
    check("left", keys(S3.list_objects_v2(Bucket=bucket)), ["ü"])
    call((400, "MalformedXML"), "delete_objects", Bucket=bucket, Delete=objects(*[f"k{number}" for number in range(1001)]))
    call(200, "delete_objects", Bucket=bucket, Delete=objects(*[f"k{number}" for number in range(1000)]))
    call((400, "MalformedXML"), "delete_objects", Bucket=bucket, Delete={"Objects": []})
    call((404, "NoSuchBucket"), "delete_objects", Bucket=bucket + "-x", Delete=objects("a"))
    call((403, "AccessDenied"), "delete_objects", who=OTHER, Bucket=bucket, Delete=objects("a"))
    call((403, "AccessDenied"), "delete_objects", who=ANYBODY, Bucket=bucket, Delete=objects("a"))
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    version = S3.put_object(Bucket=bucket, Key="v", Body=b"")["VersionId"]
    answer = S3.delete_objects(Bucket=bucket, Delete=objects("v"))["Deleted"][0]
    check("a marker", (answer["DeleteMarker"], "VersionId" in answer), (True, False))
    marker = answer["DeleteMarkerVersionId"]
    answer = S3.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": "v", "VersionId": version}, {"Key": "v", "VersionId": marker}]}
    )
    check(
        "versions",
        [(entry["VersionId"], entry.get("DeleteMarker", False)) for entry in answer["Deleted"]],
        [(version, False), (marker, True)],
    )


def copies(bucket):
    other = new_bucket()
    S3.put_object(Bucket=bucket, Key="from", Body=b"foo", ContentType="audio/ogg", Metadata={"a": "1"}, CacheControl="no-cache")
    source = {"Bucket": bucket, "Key": "from"}
    for target, key in [(bucket, "to"), (other, "to")]:
        answer = call(200, "copy_object", Bucket=target, Key=key, CopySource=source)
        holds("result", answer["CopyObjectResult"]["ETag"] and answer["CopyObjectResult"]["LastModified"])
        answer = S3.get_object(Bucket=target, Key=key)
        check(
            "copied",
            (body(answer), answer["ContentType"], answer["Metadata"], answer["CacheControl"]),
            (b"foo", "audio/ogg", {"a": "1"}, "no-cache"),
        )
    call(
        200,
        "copy_object",
        Bucket=bucket,
        Key="to",
        CopySource=source,
        MetadataDirective="REPLACE",
        Metadata={"b": "2"},
        ContentType="text/x",
    )
    answer = S3.head_object(Bucket=bucket, Key="to")
    check("replaced", (answer["Metadata"], answer["ContentType"], "CacheControl" in answer), ({"b": "2"}, "text/x", False))
    call(200, "copy_object", Bucket=bucket, Key="to", CopySource=source, Metadata={"c": "3"})
    check("not replaced", S3.head_object(Bucket=bucket, Key="to")["Metadata"], {"a": "1"})
    error = call((400, "InvalidRequest"), "copy_object", Bucket=bucket, Key="from", CopySource=source)
    holds(
        "message",
        error["Error"]["Message"].startswith("This copy request is illegal because it is trying to copy an object to itself"),
    )
    call(200, "copy_object", Bucket=bucket, Key="from", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "1"})
    check(
        "itself",
        (S3.head_object(Bucket=bucket, Key="from")["Metadata"], body(S3.get_object(Bucket=bucket, Key="from"))),
        ({"n": "1"}, b"foo"),
    )
    call((400, "InvalidArgument"), "copy_object", Bucket=bucket, Key="to", CopySource=source, MetadataDirective="KEEP")
    call((400, "InvalidArgument"), "copy_object", Bucket=bucket, Key="to", CopySource=source, TaggingDirective="KEEP")
    call((400, "InvalidArgument"), "copy_object", Bucket=bucket, Key="to", CopySource="nobucket")
    call((404, "NoSuchKey"), "copy_object", Bucket=bucket, Key="to", CopySource=f"{bucket}/none")
    call((404, "NoSuchBucket"), "copy_object", Bucket=bucket, Key="to", CopySource=f"{bucket}-x/none")
    call((404, "NoSuchBucket"), "copy_object", Bucket=f"{bucket}-x", Key="to", CopySource=source)
    call((403, "AccessDenied"), "copy_object", who=OTHER, Bucket=bucket, Key="to", CopySource=source)
    theirs = new_bucket(OTHER)
    call((403, "AccessDenied"), "copy_object", who=OTHER, Bucket=theirs, Key="to", CopySource=source)
    call((403, "AccessDenied"), "copy_object", Bucket=theirs, Key="to", CopySource=source)
    for name in ["a b", "a+b", "a%b", "ü/é", "a?versionId=x", "a&b=c", "_ _"]:
        put(bucket, name)
        call(200, "copy_object", Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": name})
    S3.put_object(Bucket=bucket, Key="zero", Body=b"")
    call(200, "copy_object", Bucket=bucket, Key="zero2", CopySource=f"/{bucket}/zero")
    check("nothing", S3.head_object(Bucket=bucket, Key="zero2")["ContentLength"], 0)
    etag = S3.head_object(Bucket=bucket, Key="from")["ETag"]
    for given, status in [
        ({"CopySourceIfMatch": etag}, 200),
        ({"CopySourceIfMatch": '"x"'}, 412),
        ({"CopySourceIfNoneMatch": etag}, 412),
        ({"CopySourceIfNoneMatch": '"x"'}, 200),
        ({"CopySourceIfModifiedSince": now() - HOUR}, 200),
        ({"CopySourceIfUnmodifiedSince": now() - HOUR}, 412),
        ({"CopySourceIfUnmodifiedSince": now() + HOUR}, 200),
        ({"CopySourceIfMatch": etag, "CopySourceIfUnmodifiedSince": now() - HOUR}, 200),
        ({"CopySourceIfNoneMatch": etag, "CopySourceIfModifiedSince": now() - HOUR}, 412),
    ]:
        call(
            200 if status == 200 else (412, "PreconditionFailed"),
            "copy_object",
            Bucket=bucket,
            Key="to",
            CopySource=source,
            **given,
        )
    for expected, more in [
        (200, {"ExpectedBucketOwner": OWNER_ID, "ExpectedSourceBucketOwner": OWNER_ID}),
        ((403, "AccessDenied"), {"ExpectedBucketOwner": OTHER_ID}),
        ((403, "AccessDenied"), {"ExpectedSourceBucketOwner": OTHER_ID}),
    ]:
        call(expected, "copy_object", Bucket=bucket, Key="to", CopySource=source, **more)


def copies_of_versions(bucket):
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = S3.put_object(Bucket=bucket, Key="k?x=y", Body=b"1")["VersionId"]
    second = S3.put_object(Bucket=bucket, Key="k?x=y", Body=b"2")["VersionId"]
    for version, content in [(first, b"1"), (second, b"2")]:
        answer = call(
            200, "copy_object", Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "k?x=y", "VersionId": version}
        )
        check("source version", answer.get("CopySourceVersionId"), version)
        check("copied", (body(S3.get_object(Bucket=bucket, Key="to", VersionId=answer["VersionId"]))), content)
    call(200, "copy_object", Bucket=bucket, Key="k?x=y", CopySource={"Bucket": bucket, "Key": "k?x=y", "VersionId": first})
    check("brought back", body(S3.get_object(Bucket=bucket, Key="k?x=y")), b"1")
    marker = S3.delete_object(Bucket=bucket, Key="k?x=y")["VersionId"]
    call((404, "NoSuchKey"), "copy_object", Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "k?x=y"})
    call(
        (400, "InvalidRequest"),
        "copy_object",
        Bucket=bucket,
        Key="to",
        CopySource={"Bucket": bucket, "Key": "k?x=y", "VersionId": marker},
    )
    call(
        (404, "NoSuchVersion"),
        "copy_object",
        Bucket=bucket,
        Key="to",
        CopySource={"Bucket": bucket, "Key": "k?x=y", "VersionId": "f" * 32},
    )


def checksums(bucket):
    content = b"hello"
    for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
        value = checksum(algorithm, content)
        field = f"Checksum{algorithm}"
        answer = call(200, "put_object", Bucket=bucket, Key="k", Body=content, **{field: value})
        check(field, (answer.get(field), answer.get("ChecksumType")), (value, "FULL_OBJECT"))
        for name in ["get_object", "head_object"]:
            answer = call(200, name, Bucket=bucket, Key="k", ChecksumMode="ENABLED")
            check(f"{name} {field}", (answer.get(field), answer.get("ChecksumType")), (value, "FULL_OBJECT"))
            answer = send("HEAD", f"/{bucket}/k")
            holds("not unless asked for", f"x-amz-checksum-{algorithm.lower()}" not in answer[2])
        answer = call(206, "get_object", Bucket=bucket, Key="k", ChecksumMode="ENABLED", PartNumber=1)
        check(f"the only part {field}", (answer.get(field), body(answer)), (value, content))
        answer = call(200, "get_object_attributes", Bucket=bucket, Key="k", ObjectAttributes=["Checksum"])
        check("attributes", answer["Checksum"], {field: value, "ChecksumType": "FULL_OBJECT"})
        call((400, "BadDigest"), "put_object", Bucket=bucket, Key="bad", Body=b"other", **{field: value})
        call((400, "InvalidRequest"), "put_object", Bucket=bucket, Key="bad", Body=content, **{field: "bad"})
    call(404, "head_object", Bucket=bucket, Key="bad")
    both = {f"Checksum{algorithm}": checksum(algorithm, content) for algorithm in ["SHA1", "CRC32"]}
    call((400, "InvalidRequest"), "put_object", Bucket=bucket, Key="bad", Body=content, **both)
    for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
        given = checksum(algorithm, content)
        call(200, "put_object", Bucket=bucket, Key="k", Body=content, **{f"Checksum{algorithm}": given})
        answer = call(200, "copy_object", Bucket=bucket, Key="copy", CopySource=f"{bucket}/k")
        check(f"{algorithm} copied", answer["CopyObjectResult"].get(f"Checksum{algorithm}"), given)
    answer = call(200, "copy_object", Bucket=bucket, Key="copy", CopySource=f"{bucket}/k", ChecksumAlgorithm="SHA1")
    check("another of the copy", answer["CopyObjectResult"].get("ChecksumSHA1"), both["ChecksumSHA1"])
    call((400, "InvalidRequest"), "copy_object", Bucket=bucket, Key="copy", CopySource=f"{bucket}/k", ChecksumAlgorithm="MD4")
    answers((400, "InvalidDigest"), "PUT", f"/{bucket}/bad", {"content-md5": "x"}, content)
    answers((400, "BadDigest"), "PUT", f"/{bucket}/bad", {"content-md5": md5(b"other")}, content)
    answers(200, "PUT", f"/{bucket}/good", {"content-md5": md5(content)}, content)


def attributes(bucket):
    etag = S3.put_object(Bucket=bucket, Key="k", Body=b"abc")["ETag"].strip('"')
    every = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    answer = call(200, "get_object_attributes", Bucket=bucket, Key="k", ObjectAttributes=every)
    check(
        "all",
        (answer["ETag"], answer["ObjectSize"], answer["StorageClass"], "ObjectParts" in answer),
        (etag, 3, "STANDARD", False),
    )
    answer = call(200, "get_object_attributes", Bucket=bucket, Key="k", ObjectAttributes=["ObjectSize"])
    check("one", ("ETag" in answer, answer["ObjectSize"], "StorageClass" in answer), (False, 3, False))
    holds("Last-Modified", "last-modified" in answer["ResponseMetadata"]["HTTPHeaders"])
    call((404, "NoSuchKey"), "get_object_attributes", Bucket=bucket, Key="none", ObjectAttributes=every)
    answers((400, "InvalidArgument"), "GET", f"/{bucket}/k?attributes", {"x-amz-object-attributes": "Foo"})
    answers((400, "InvalidRequest"), "GET", f"/{bucket}/k?attributes")


def owners_expected(bucket):
    put(bucket, "k")
    for owner, works in [(OWNER_ID, True), (OTHER_ID, False), ("0" * 12, False)]:
        outcome = lambda status: status if works else (403, "AccessDenied")
        for status, name, more in [
            (200, "get_object", {"Key": "k"}),
            (200, "head_object", {"Key": "k"}),
            (200, "put_object", {"Key": "k2", "Body": b""}),
            (204, "delete_object", {"Key": "k2"}),
            (200, "list_objects_v2", {}),
            (200, "head_bucket", {}),
            (200, "get_bucket_acl", {}),
            (200, "get_bucket_versioning", {}),
            (200, "get_object_tagging", {"Key": "k"}),
            (200, "delete_objects", {"Delete": {"Objects": [{"Key": "z"}]}}),
        ]:
            call(outcome(status), name, Bucket=bucket, ExpectedBucketOwner=owner, **more)


GROUPS = [
    reading_and_writing,
    headers_kept,
    storage_classes,
    ranges,
    conditions_on_reading,
    conditions_on_writing,
    conditions_and_versions,
    deleting_many,
    copies,
    copies_of_versions,
    checksums,
    attributes,
    owners_expected,
]
