"""Uploads in parts."""

from common import *

PART = b"p" * (5 * MIB)
KIB = 1 << 10


def etag_of(*parts):
    return f'"{hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()}-{len(parts)}"'


def upload(bucket, key, *parts, **more):
    upload_id = S3.create_multipart_upload(Bucket=bucket, Key=key, **more)["UploadId"]
    sent = [
        {
            "PartNumber": number,
            "ETag": S3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=part)["ETag"],
        }
        for number, part in enumerate(parts, 1)
    ]
    return dict(Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": sent})


def ordinary(bucket):
    given = upload(bucket, "k", PART, b"end", Metadata={"a": "1"}, ContentType="text/x", CacheControl="no-cache", Tagging="t=1")
    answer = call(200, "complete_multipart_upload", **given)
    check("answer", (answer["ETag"], answer["Bucket"], answer["Key"]), (etag_of(PART, b"end"), bucket, "k"))
    check("location", answer["Location"], f"http://{HOST}/{bucket}/k")
    odd = call(200, "complete_multipart_upload", **upload(bucket, "a/b c+ü", b"x"))
    check("location of an odd key", odd["Location"], f"http://{HOST}/{bucket}/a/b%20c%2B%C3%BC")
    answer = call(200, "head_object", Bucket=bucket, Key="k")
    check(
        "HEAD",
        (answer["ETag"], answer["ContentLength"], answer["Metadata"], answer["ContentType"], answer["TagCount"]),
        (etag_of(PART, b"end"), 5 * MIB + 3, {"a": "1"}, "text/x", 1),
    )
    for number, content in [(1, PART), (2, b"end")]:
        answer = call(206, "get_object", Bucket=bucket, Key="k", PartNumber=number)
        check(f"part {number}", (body(answer) == content, answer["PartsCount"]), (True, 2))
        answer = call(206, "head_object", Bucket=bucket, Key="k", PartNumber=number)
        check(f"HEAD of part {number}", (answer["ContentLength"], answer["PartsCount"]), (len(content), 2))
    call((416, "InvalidPartNumber"), "get_object", Bucket=bucket, Key="k", PartNumber=3)
    check("a range over both", body(S3.get_object(Bucket=bucket, Key="k", Range=f"bytes={5 * MIB - 2}-{5 * MIB + 1}")), b"ppen")
    answer = call(200, "get_object_attributes", Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts", "ETag", "ObjectSize"])
    check(
        "attributes",
        (answer["ETag"], answer["ObjectParts"]["TotalPartsCount"], answer["ObjectSize"]),
        (etag_of(PART, b"end").strip('"'), 2, 5 * MIB + 3),
    )
    check("completed again", call(200, "complete_multipart_upload", **given)["ETag"], etag_of(PART, b"end"))


def wrong_lists(bucket):
    given = upload(bucket, "k", b"small", b"end")
    wrong = lambda code, parts, **more: call(
        (400, code), "complete_multipart_upload", **{**given, "MultipartUpload": {"Parts": parts}, **more}
    )
    one, two = given["MultipartUpload"]["Parts"]
    wrong("EntityTooSmall", [one, two])
    wrong("MalformedXML", [])
    wrong("InvalidPart", [{"PartNumber": 1, "ETag": '"ffffffffffffffffffffffffffffffff"'}])
    wrong("InvalidPart", [{"PartNumber": 9, "ETag": one["ETag"]}])
    wrong("InvalidPartOrder", [two, one])
    wrong("InvalidPartOrder", [one, one])
    call((404, "NoSuchUpload"), "complete_multipart_upload", **{**given, "UploadId": "none"})
    call((404, "NoSuchUpload"), "complete_multipart_upload", **{**given, "Key": "other"})
    answers((400, "MalformedXML"), "POST", f"/{bucket}/k?uploadId={given['UploadId']}", {}, b"")
    answers((400, "MalformedXML"), "POST", f"/{bucket}/k?uploadId={given['UploadId']}", {}, b"<a>")
    call(200, "complete_multipart_upload", **{**given, "MultipartUpload": {"Parts": [two]}})
    check("only what is in the list", body(S3.get_object(Bucket=bucket, Key="k")), b"end")
    call((404, "NoSuchUpload"), "upload_part", Bucket=bucket, Key="k", UploadId=given["UploadId"], PartNumber=1, Body=b"")
    for number in [0, 10001]:
        upload_id = S3.create_multipart_upload(Bucket=bucket, Key="n")["UploadId"]
        call((400, "InvalidArgument"), "upload_part", Bucket=bucket, Key="n", UploadId=upload_id, PartNumber=number, Body=b"")
    call(200, "upload_part", Bucket=bucket, Key="n", UploadId=upload_id, PartNumber=10000, Body=b"")
    call((404, "NoSuchUpload"), "upload_part", Bucket=bucket, Key="k", UploadId="none", PartNumber=1, Body=b"")
    call((404, "NoSuchUpload"), "list_parts", Bucket=bucket, Key="k", UploadId="none")
    call((404, "NoSuchUpload"), "abort_multipart_upload", Bucket=bucket, Key="k", UploadId="none")
    call((404, "NoSuchBucket"), "create_multipart_upload", Bucket=bucket + "-x", Key="k")


def parts_sent_again(bucket):
    given = upload(bucket, "k", b"first")
    again = S3.upload_part(Bucket=bucket, Key="k", UploadId=given["UploadId"], PartNumber=1, Body=b"second")["ETag"]
    call((400, "InvalidPart"), "complete_multipart_upload", **given)
    given["MultipartUpload"]["Parts"][0]["ETag"] = again.strip('"')
    call(200, "complete_multipart_upload", **given)
    check("the last one counts", body(S3.get_object(Bucket=bucket, Key="k")), b"second")
    given = upload(bucket, "k", b"aborted")
    call(204, "abort_multipart_upload", Bucket=bucket, Key="k", UploadId=given["UploadId"])
    call((404, "NoSuchUpload"), "complete_multipart_upload", **given)
    call((404, "NoSuchUpload"), "abort_multipart_upload", Bucket=bucket, Key="k", UploadId=given["UploadId"])
    check("unchanged", body(S3.get_object(Bucket=bucket, Key="k")), b"second")
    etag = S3.head_object(Bucket=bucket, Key="k")["ETag"]
    for expected, more in [
        ((412, "PreconditionFailed"), {"IfNoneMatch": "*"}),
        ((412, "PreconditionFailed"), {"IfMatch": '"x"'}),
        (200, {"IfMatch": etag}),
    ]:
        call(expected, "complete_multipart_upload", **upload(bucket, "k", b"third"), **more)
    call((404, "NoSuchKey"), "complete_multipart_upload", **upload(bucket, "none", b"x"), IfMatch=etag)
    call((400, "InvalidRequest"), "complete_multipart_upload", **upload(bucket, "size", b"x"), MpuObjectSize=7)
    call(200, "complete_multipart_upload", **upload(bucket, "size", b"x"), MpuObjectSize=1)


def listings(bucket):
    ids = [upload(bucket, key, b"x", b"y", b"z")["UploadId"] for key in ["a", "a", "b/c", "d"]]
    answer = call(200, "list_multipart_uploads", Bucket=bucket)
    check(
        "uploads",
        [(entry["Key"], entry["UploadId"]) for entry in answer["Uploads"]],
        [("a", ids[0]), ("a", ids[1]), ("b/c", ids[2]), ("d", ids[3])],
    )
    entry = answer["Uploads"][0]
    check("whose", (entry["Initiator"]["ID"] != "", entry["Owner"]["ID"], entry["StorageClass"]), (True, OWNER_ID, "STANDARD"))
    answer = call(200, "list_multipart_uploads", Bucket=bucket, Delimiter="/")
    check("rolled up", ([entry["Key"] for entry in answer["Uploads"]], prefixes(answer)), (["a", "a", "d"], ["b/"]))
    answer = call(200, "list_multipart_uploads", Bucket=bucket, Prefix="b")
    check("prefix", [entry["Key"] for entry in answer["Uploads"]], ["b/c"])
    answer = call(200, "list_multipart_uploads", Bucket=bucket, MaxUploads=1)
    check(
        "a page",
        (answer["IsTruncated"], answer["NextKeyMarker"], answer["NextUploadIdMarker"], answer["MaxUploads"]),
        (True, "a", ids[0], 1),
    )
    answer = call(200, "list_multipart_uploads", Bucket=bucket, KeyMarker="a", UploadIdMarker=ids[0])
    check("after both markers", [entry["UploadId"] for entry in answer["Uploads"]], ids[1:])
    answer = call(200, "list_multipart_uploads", Bucket=bucket, KeyMarker="a")
    check("after the key", [entry["UploadId"] for entry in answer["Uploads"]], ids[2:])
    answer = call(200, "list_parts", Bucket=bucket, Key="a", UploadId=ids[0])
    check(
        "parts",
        [(part["PartNumber"], part["Size"], part["ETag"]) for part in answer["Parts"]],
        [(number, 1, f'"{hashlib.md5(content).hexdigest()}"') for number, content in [(1, b"x"), (2, b"y"), (3, b"z")]],
    )
    check(
        "of what",
        (
            answer["Key"],
            answer["UploadId"],
            answer["Owner"]["ID"],
            answer["StorageClass"],
            answer["IsTruncated"],
            answer["PartNumberMarker"],
        ),
        ("a", ids[0], OWNER_ID, "STANDARD", False, 0),
    )
    answer = call(200, "list_parts", Bucket=bucket, Key="a", UploadId=ids[0], MaxParts=1)
    check(
        "a page of parts",
        ([part["PartNumber"] for part in answer["Parts"]], answer["IsTruncated"], answer["NextPartNumberMarker"]),
        ([1], True, 1),
    )
    answer = call(200, "list_parts", Bucket=bucket, Key="a", UploadId=ids[0], PartNumberMarker=2)
    check("the last part", ([part["PartNumber"] for part in answer["Parts"]], answer["IsTruncated"]), ([3], False))
    call((403, "AccessDenied"), "list_multipart_uploads", who=OTHER, Bucket=bucket)
    call((403, "AccessDenied"), "list_parts", who=OTHER, Bucket=bucket, Key="a", UploadId=ids[0])
    call((403, "AccessDenied"), "upload_part", who=OTHER, Bucket=bucket, Key="a", UploadId=ids[0], PartNumber=1, Body=b"")
    for wrong in ["max-parts=x", "max-parts=-1", "part-number-marker=x"]:
        answers((400, "InvalidArgument"), "GET", f"/{bucket}/a?uploadId={ids[0]}&{wrong}")


def copies_of_parts(bucket):
    S3.put_object(Bucket=bucket, Key="from", Body=b"0123456789" * KIB)
    source = f"{bucket}/from"
    upload_id = S3.create_multipart_upload(Bucket=bucket, Key="to")["UploadId"]
    part = dict(Bucket=bucket, Key="to", UploadId=upload_id)
    copy = lambda expected, number=1, **more: call(
        expected, "upload_part_copy", PartNumber=number, **{**part, "CopySource": source, **more}
    )
    answer = copy(200, CopySourceRange="bytes=0-9")
    etag = answer["CopyPartResult"]["ETag"]
    check("ETag of a part", etag, f'"{hashlib.md5(b"0123456789").hexdigest()}"')
    for wrong in ["0-2", "bytes=0", "bytes=hello-world", "bytes=0-bar", "bytes=hello-", "bytes=0-2,3-5", "bytes=-4", "bytes=4-"]:
        copy((400, "InvalidArgument"), CopySourceRange=wrong)
    for wrong in ["bytes=0-10240", "bytes=20000-20001"]:
        error = send(
            "PUT",
            f"/{bucket}/to?partNumber=2&uploadId={upload_id}",
            {"x-amz-copy-source": source, "x-amz-copy-source-range": wrong},
        )
        holds(
            f"{wrong} is refused: {error[:2]}",
            error[:2] in [(416, "InvalidRange"), (400, "InvalidArgument"), (400, "InvalidRequest")],
        )
    copy((404, "NoSuchKey"), CopySource=f"{bucket}/none")
    copy((400, "InvalidArgument"), CopySource=f"{bucket}/")
    copy((404, "NoSuchBucket"), CopySource=f"{bucket}-x/none")
    copy((404, "NoSuchUpload"), UploadId="none")
    copy((412, "PreconditionFailed"), CopySourceIfMatch='"x"')
    copy((412, "PreconditionFailed"), CopySourceIfNoneMatch=S3.head_object(Bucket=bucket, Key="from")["ETag"])
    copy((403, "AccessDenied"), ExpectedSourceBucketOwner=OTHER_ID)
    for name in ["a b", "ü?versionId=x", "a+%"]:
        put(bucket, name)
        call(200, "upload_part_copy", PartNumber=3, CopySource={"Bucket": bucket, "Key": name}, **part)
    call(200, "complete_multipart_upload", **part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    check("copied", body(S3.get_object(Bucket=bucket, Key="to")), b"0123456789")
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = S3.put_object(Bucket=bucket, Key="v", Body=b"1")["VersionId"]
    S3.put_object(Bucket=bucket, Key="v", Body=b"2")
    part["UploadId"] = S3.create_multipart_upload(Bucket=bucket, Key="to")["UploadId"]
    answer = copy(200, CopySource={"Bucket": bucket, "Key": "v", "VersionId": first})
    check("version", answer.get("CopySourceVersionId"), first)
    answer = call(
        200,
        "complete_multipart_upload",
        **part,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]}]},
    )
    check("of the version", body(S3.get_object(Bucket=bucket, Key="to", VersionId=answer["VersionId"])), b"1")


def checksums(bucket):
    for algorithm, kind in [
        ("SHA256", None),
        ("SHA1", "COMPOSITE"),
        ("CRC32", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT"),
        ("CRC32C", "FULL_OBJECT"),
        ("CRC64NVME", None),
        ("CRC64NVME", "FULL_OBJECT"),
    ]:
        field = f"Checksum{algorithm}"
        more = {"ChecksumType": kind} if kind else {}
        answer = call(200, "create_multipart_upload", Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm, **more)
        kind = kind or ("FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE")
        check("said", (answer.get("ChecksumAlgorithm"), answer.get("ChecksumType")), (algorithm, kind))
        part, sent = dict(Bucket=bucket, Key="k", UploadId=answer["UploadId"]), []
        # What Python computes bit by bit is short, and so is but one part.
        contents = [b"only"] if algorithm in ("CRC32C", "CRC64NVME") else [PART, b"end"]
        for number, content in enumerate(contents, 1):
            answer = call(200, "upload_part", **part, PartNumber=number, Body=content, **{field: checksum(algorithm, content)})
            sent.append({"PartNumber": number, "ETag": answer["ETag"], field: answer[field]})
        answer = call(200, "list_parts", **part)
        check(
            "parts",
            (answer["ChecksumAlgorithm"], answer["ChecksumType"], [entry[field] for entry in answer["Parts"]]),
            (algorithm, kind, [entry[field] for entry in sent]),
        )
        answer = call(200, "list_multipart_uploads", Bucket=bucket)["Uploads"][0]
        check("uploads", (answer.get("ChecksumAlgorithm"), answer.get("ChecksumType")), (algorithm, kind))
        wrong = [{**sent[0], field: checksum(algorithm, b"other")}, *sent[1:]]
        call((400, "InvalidPart"), "complete_multipart_upload", **part, MultipartUpload={"Parts": wrong})
        if kind == "FULL_OBJECT":
            call(
                (400, "BadDigest"),
                "complete_multipart_upload",
                **part,
                MultipartUpload={"Parts": sent},
                ChecksumType=kind,
                **{field: checksum(algorithm, b"other")},
            )
        else:
            missing = [{name: value for name, value in entry.items() if name != field} for entry in sent]
            call((400, "InvalidRequest"), "complete_multipart_upload", **part, MultipartUpload={"Parts": missing})
        answer = call(200, "complete_multipart_upload", **part, MultipartUpload={"Parts": sent})
        check("type", answer["ChecksumType"], kind)
        check("composite", answer[field].endswith(f"-{len(sent)}"), kind == "COMPOSITE")
        if kind == "COMPOSITE" and algorithm.startswith("SHA"):
            whole = hashlib.new(algorithm.lower(), b"".join(base64.b64decode(entry[field]) for entry in sent)).digest()
            check("of checksums", answer[field], base64.b64encode(whole).decode() + "-2")
        head = call(200, "head_object", Bucket=bucket, Key="k", ChecksumMode="ENABLED")
        check("HEAD", (head[field], head["ChecksumType"]), (answer[field], kind))
        # Of one part it is that part's; boto3 compares it with what it reads.
        for entry, content in zip(sent, contents):
            one = dict(Bucket=bucket, Key="k", PartNumber=entry["PartNumber"])
            for name in ["head_object", "get_object"]:
                found = call(206, name, ChecksumMode="ENABLED", **one)
                check(f"{name} of a part", (found.get(field), found.get("ChecksumType")), (entry[field], kind))
            holds("the part", body(found) == content)
            holds("a part unasked", f"x-amz-checksum-{algorithm.lower()}" not in send("GET", f"/{bucket}/k?partNumber=1")[2])
        holds("a range has none", field not in S3.get_object(Bucket=bucket, Key="k", Range="bytes=0-1", ChecksumMode="ENABLED"))
        found = call(200, "get_object_attributes", Bucket=bucket, Key="k", ObjectAttributes=["Checksum", "ObjectParts"])
        check("attributes", (found["Checksum"][field], found["Checksum"]["ChecksumType"]), (answer[field], kind))
        if kind == "COMPOSITE":
            check(
                "parts of attributes", [entry[field] for entry in found["ObjectParts"]["Parts"]], [entry[field] for entry in sent]
            )
        of_parts = lambda **more: S3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts"], **more)[
            "ObjectParts"
        ]
        page = of_parts(MaxParts=1)
        check(
            "a page of attributes",
            (page["TotalPartsCount"], page["MaxParts"], page["IsTruncated"]),
            (len(sent), 1, len(sent) > 1),
        )
        check("the last page", of_parts(PartNumberMarker=1)["IsTruncated"], False)
    call(
        (400, "InvalidRequest"),
        "create_multipart_upload",
        Bucket=bucket,
        Key="k",
        ChecksumAlgorithm="SHA256",
        ChecksumType="FULL_OBJECT",
    )
    call(
        (400, "InvalidRequest"),
        "create_multipart_upload",
        Bucket=bucket,
        Key="k",
        ChecksumAlgorithm="CRC64NVME",
        ChecksumType="COMPOSITE",
    )
    call((400, "InvalidRequest"), "create_multipart_upload", Bucket=bucket, Key="k", ChecksumAlgorithm="MD4")
    upload_id = S3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    call(
        (400, "InvalidRequest"),
        "upload_part",
        Bucket=bucket,
        Key="k",
        UploadId=upload_id,
        PartNumber=1,
        Body=b"x",
        ChecksumSHA1=checksum("SHA1", b"x"),
    )


GROUPS = [ordinary, wrong_lists, parts_sent_again, listings, copies_of_parts, checksums]
