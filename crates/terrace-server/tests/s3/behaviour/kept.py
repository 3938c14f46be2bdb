"""Versions, locks and encryption of objects."""

from common import *


def versions(bucket):
    status = lambda value: S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": value})
    old = S3.put_object(Bucket=bucket, Key="k", Body=b"old")
    holds("no version before versioning", "VersionId" not in old)
    status("Enabled")
    ids = [S3.put_object(Bucket=bucket, Key="k", Body=str(number).encode())["VersionId"] for number in range(3)]
    check(
        "all are there",
        [entry["VersionId"] for entry in S3.list_object_versions(Bucket=bucket)["Versions"]],
        [*reversed(ids), "null"],
    )
    check("null", body(call(200, "get_object", Bucket=bucket, Key="k", VersionId="null")), b"old")
    for number, version in enumerate(ids):
        answer = call(200, "get_object", Bucket=bucket, Key="k", VersionId=version)
        check("a version", (body(answer), answer["VersionId"]), (str(number).encode(), version))
    call((404, "NoSuchVersion"), "get_object", Bucket=bucket, Key="k", VersionId="f" * 32)
    call((400, "InvalidArgument"), "get_object", Bucket=bucket, Key="k", VersionId="x")
    call((404, "NoSuchVersion"), "get_object", Bucket=bucket, Key="other", VersionId="f" * 32)
    answer = call(204, "delete_object", Bucket=bucket, Key="k", VersionId=ids[2])
    check("deleted by name", (answer["VersionId"], "DeleteMarker" in answer), (ids[2], False))
    check("the one before comes back", body(S3.get_object(Bucket=bucket, Key="k")), b"1")
    marker = call(204, "delete_object", Bucket=bucket, Key="k")
    check("a marker", marker["DeleteMarker"], True)
    error = call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="k")
    headers = error["ResponseMetadata"]["HTTPHeaders"]
    check("of a marker", (headers.get("x-amz-delete-marker"), headers.get("x-amz-version-id")), ("true", marker["VersionId"]))
    error = call((405, "MethodNotAllowed"), "get_object", Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    headers = error["ResponseMetadata"]["HTTPHeaders"]
    check(
        "of a marker by name",
        (headers.get("x-amz-delete-marker"), headers.get("allow"), "last-modified" in headers),
        ("true", "DELETE", True),
    )
    call(405, "head_object", Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    call((405, "MethodNotAllowed"), "get_object_tagging", Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    call((405, "MethodNotAllowed"), "get_object_acl", Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    answer = call(204, "delete_object", Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    check("a marker deleted", (answer["DeleteMarker"], answer["VersionId"]), (True, marker["VersionId"]))
    check("undone", body(S3.get_object(Bucket=bucket, Key="k")), b"1")
    call(204, "delete_object", Bucket=bucket, Key="k", VersionId="f" * 32)
    answer = call(204, "delete_object", Bucket=bucket, Key="never")
    check("a marker of what never was", answer["DeleteMarker"], True)
    status("Suspended")
    suspended = S3.put_object(Bucket=bucket, Key="k", Body=b"suspended")
    check(
        "null while suspended",
        ("VersionId" in suspended, body(S3.get_object(Bucket=bucket, Key="k", VersionId="null"))),
        (False, b"suspended"),
    )
    for name in ["get_object", "head_object"]:
        check(f"{name} while suspended", call(200, name, Bucket=bucket, Key="k")["VersionId"], "null")
    holds("a copy", "VersionId" not in call(200, "copy_object", Bucket=bucket, Key="copy", CopySource=f"{bucket}/k"))
    upload = S3.create_multipart_upload(Bucket=bucket, Key="upload")["UploadId"]
    etag = S3.upload_part(Bucket=bucket, Key="upload", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    given = dict(Bucket=bucket, Key="upload", UploadId=upload, MultipartUpload=parts)
    holds("an upload", "VersionId" not in call(200, "complete_multipart_upload", **given))
    holds("an upload once more", "VersionId" not in call(200, "complete_multipart_upload", **given))
    S3.put_object(Bucket=bucket, Key="k", Body=b"again")
    found = [entry["VersionId"] for entry in S3.list_object_versions(Bucket=bucket, Prefix="k")["Versions"]]
    check("one null", found, ["null", ids[1], ids[0]])
    marker = call(204, "delete_object", Bucket=bucket, Key="k")
    check("a null marker", (marker["DeleteMarker"], marker["VersionId"]), (True, "null"))
    found = [entry["VersionId"] for entry in S3.list_object_versions(Bucket=bucket, Prefix="k")["Versions"]]
    check("null is gone", found, [ids[1], ids[0]])
    call(204, "delete_object", Bucket=bucket, Key="k", VersionId="null")
    check("back", body(S3.get_object(Bucket=bucket, Key="k")), b"1")
    status("Enabled")
    acl = S3.put_object(Bucket=bucket, Key="a", Body=b"")["VersionId"]
    S3.put_object(Bucket=bucket, Key="a", Body=b"")
    call(200, "put_object_acl", Bucket=bucket, Key="a", VersionId=acl, ACL="public-read")
    check(
        "a list of a version",
        (
            len(S3.get_object_acl(Bucket=bucket, Key="a", VersionId=acl)["Grants"]),
            len(S3.get_object_acl(Bucket=bucket, Key="a")["Grants"]),
        ),
        (2, 1),
    )
    upload = S3.create_multipart_upload(Bucket=bucket, Key="m")["UploadId"]
    part = S3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=1, Body=b"x")
    answer = S3.complete_multipart_upload(
        Bucket=bucket, Key="m", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )
    check("of an upload", answer.get("VersionId"), S3.head_object(Bucket=bucket, Key="m")["VersionId"])
    call((409, "BucketNotEmpty"), "delete_bucket", Bucket=bucket)


def lock_settings(bucket):
    lock = lambda **rule: {"ObjectLockEnabled": "Enabled", **({"Rule": {"DefaultRetention": rule}} if rule else {})}
    locked = new_bucket(ObjectLockEnabledForBucket=True)
    set_lock = lambda expected, configuration, where=locked: call(
        expected, "put_object_lock_configuration", Bucket=where, ObjectLockConfiguration=configuration
    )
    check("versioning", S3.get_bucket_versioning(Bucket=locked)["Status"], "Enabled")
    check(
        "enabled",
        call(200, "get_object_lock_configuration", Bucket=locked)["ObjectLockConfiguration"],
        {"ObjectLockEnabled": "Enabled"},
    )
    call((409, "InvalidBucketState"), "put_bucket_versioning", Bucket=locked, VersioningConfiguration={"Status": "Suspended"})
    for rule in [dict(Mode="GOVERNANCE", Days=1), dict(Mode="COMPLIANCE", Years=1)]:
        set_lock(200, lock(**rule))
        check("shown", S3.get_object_lock_configuration(Bucket=locked)["ObjectLockConfiguration"], lock(**rule))
    set_lock(200, lock())
    set_lock((409, "InvalidBucketState"), lock(Mode="GOVERNANCE", Days=1), where=bucket)
    set_lock((400, "MalformedXML"), lock(Mode="GOVERNANCE", Days=1, Years=1))
    set_lock((400, "MalformedXML"), lock(Mode="abc", Days=1))
    set_lock((400, "MalformedXML"), lock(Mode="GOVERNANCE"))
    set_lock((400, "MalformedXML"), {**lock(Mode="GOVERNANCE", Days=1), "ObjectLockEnabled": "Disabled"})
    for wrong in [dict(Days=0), dict(Days=-1), dict(Years=0), dict(Years=-1)]:
        set_lock((400, "InvalidRetentionPeriod"), lock(Mode="GOVERNANCE", **wrong))
    set_lock((400, "InvalidRetentionPeriod"), lock(Mode="GOVERNANCE", Days=36501))
    set_lock((400, "InvalidRetentionPeriod"), lock(Mode="GOVERNANCE", Years=101))
    call((404, "ObjectLockConfigurationNotFoundError"), "get_object_lock_configuration", Bucket=bucket)
    with_versions = new_bucket()
    for status, expected in [("Suspended", (409, "InvalidBucketState")), ("Enabled", 200)]:
        S3.put_bucket_versioning(Bucket=with_versions, VersioningConfiguration={"Status": status})
        set_lock(expected, lock(Mode="GOVERNANCE", Days=1), where=with_versions)
    put(bucket, "k")
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    for name, more in [
        ("put_object_retention", {"Retention": {"Mode": "GOVERNANCE", "RetainUntilDate": until}}),
        ("get_object_retention", {}),
        ("put_object_legal_hold", {"LegalHold": {"Status": "ON"}}),
        ("get_object_legal_hold", {}),
    ]:
        call((400, "InvalidRequest"), name, Bucket=bucket, Key="k", **more)
    call(
        (400, "InvalidRequest"),
        "put_object",
        Bucket=bucket,
        Key="k",
        Body=b"",
        ObjectLockMode="GOVERNANCE",
        ObjectLockRetainUntilDate=until,
    )


def locks(bucket):
    bucket = new_bucket(ObjectLockEnabledForBucket=True)
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    version = S3.put_object(Bucket=bucket, Key="k", Body=b"x")["VersionId"]
    retain = lambda expected, mode, until, **more: call(
        expected, "put_object_retention", Bucket=bucket, Key="k", Retention={"Mode": mode, "RetainUntilDate": until}, **more
    )
    for name in ["get_object_retention", "get_object_legal_hold"]:
        call((404, "NoSuchObjectLockConfiguration"), name, Bucket=bucket, Key="k")
    retain(200, "GOVERNANCE", now + 2 * day)
    check(
        "shown",
        call(200, "get_object_retention", Bucket=bucket, Key="k")["Retention"],
        {"Mode": "GOVERNANCE", "RetainUntilDate": now + 2 * day},
    )
    head = S3.head_object(Bucket=bucket, Key="k")
    check("HEAD", (head["ObjectLockMode"], head["ObjectLockRetainUntilDate"]), ("GOVERNANCE", now + 2 * day))
    retain(200, "GOVERNANCE", now + 3 * day)
    retain((403, "AccessDenied"), "GOVERNANCE", now + day)
    retain(200, "GOVERNANCE", now + day, BypassGovernanceRetention=True)
    retain((400, "InvalidArgument"), "GOVERNANCE", now - day)
    retain((400, "MalformedXML"), "abc", now + day)
    retain((400, "MalformedXML"), "governance", now + day)
    call(
        (404, "NoSuchKey"),
        "put_object_retention",
        Bucket=bucket,
        Key="none",
        Retention={"Mode": "GOVERNANCE", "RetainUntilDate": now + day},
    )
    call((403, "AccessDenied"), "delete_object", Bucket=bucket, Key="k", VersionId=version)
    answer = S3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "VersionId": version}]})
    check(
        "many",
        [(error["Key"], error["VersionId"], error["Code"]) for error in answer.get("Errors", [])],
        [("k", version, "AccessDenied")],
    )
    marker = call(204, "delete_object", Bucket=bucket, Key="k")["VersionId"]
    call(204, "delete_object", Bucket=bucket, Key="k", VersionId=marker)
    call(204, "delete_object", Bucket=bucket, Key="k", VersionId=version, BypassGovernanceRetention=True)
    version = S3.put_object(Bucket=bucket, Key="k", Body=b"x", ObjectLockLegalHoldStatus="ON")["VersionId"]
    check("hold", call(200, "get_object_legal_hold", Bucket=bucket, Key="k")["LegalHold"], {"Status": "ON"})
    check("HEAD of a hold", S3.head_object(Bucket=bucket, Key="k")["ObjectLockLegalHoldStatus"], "ON")
    call((403, "AccessDenied"), "delete_object", Bucket=bucket, Key="k", VersionId=version)
    call((403, "AccessDenied"), "delete_object", Bucket=bucket, Key="k", VersionId=version, BypassGovernanceRetention=True)
    call((400, "MalformedXML"), "put_object_legal_hold", Bucket=bucket, Key="k", LegalHold={"Status": "abc"})
    call((404, "NoSuchKey"), "put_object_legal_hold", Bucket=bucket, Key="none", LegalHold={"Status": "ON"})
    call(200, "put_object_legal_hold", Bucket=bucket, Key="k", LegalHold={"Status": "OFF"})
    check("no hold", S3.get_object_legal_hold(Bucket=bucket, Key="k")["LegalHold"], {"Status": "OFF"})
    call(204, "delete_object", Bucket=bucket, Key="k", VersionId=version)
    soon = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) + datetime.timedelta(seconds=3)
    version = S3.put_object(Bucket=bucket, Key="k", Body=b"x", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=soon)[
        "VersionId"
    ]
    call((403, "AccessDenied"), "delete_object", Bucket=bucket, Key="k", VersionId=version, BypassGovernanceRetention=True)
    retain((403, "AccessDenied"), "GOVERNANCE", soon + day, BypassGovernanceRetention=True)
    retain((403, "AccessDenied"), "COMPLIANCE", soon - datetime.timedelta(seconds=1), BypassGovernanceRetention=True)
    for more in [
        {"ObjectLockMode": "GOVERNANCE"},
        {"ObjectLockRetainUntilDate": now + day},
        {"ObjectLockMode": "abc", "ObjectLockRetainUntilDate": now + day},
        {"ObjectLockLegalHoldStatus": "abc"},
        {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": now - day},
    ]:
        call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="w", Body=b"", **more)
    S3.put_object_lock_configuration(
        Bucket=bucket,
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}},
    )
    upload = S3.create_multipart_upload(Bucket=bucket, Key="m")["UploadId"]
    part = S3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=1, Body=b"x")
    S3.complete_multipart_upload(
        Bucket=bucket, Key="m", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )
    S3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k")
    put(bucket, "p")
    for key in ["m", "c", "p"]:
        check(f"default of {key}", S3.head_object(Bucket=bucket, Key=key).get("ObjectLockMode"), "GOVERNANCE")
    time.sleep(max(0, (soon - datetime.datetime.now(datetime.timezone.utc)).total_seconds() + 0.1))
    call(204, "delete_object", Bucket=bucket, Key="k", VersionId=version)


KEY = b"0123456789abcdef0123456789abcdef"
CUSTOMER = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY}
WRONG = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY[::-1]}


def keys_of_clients(bucket):
    path = f"/{bucket}/raw"
    head = lambda **more: {
        name: value
        for name, value in {
            "x-amz-server-side-encryption-customer-algorithm": "AES256",
            "x-amz-server-side-encryption-customer-key": base64.b64encode(KEY).decode(),
            "x-amz-server-side-encryption-customer-key-md5": md5(KEY),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }.items()
        if value
    }
    start = "x-amz-server-side-encryption-customer-"
    for content in [b"", b"x", b"z" * 70_000]:
        answer = call(200, "put_object", Bucket=bucket, Key="k", Body=content, **CUSTOMER)
        check(
            "said",
            (answer["SSECustomerAlgorithm"], answer["SSECustomerKeyMD5"], "ServerSideEncryption" in answer),
            ("AES256", md5(KEY), False),
        )
        answer = call(200, "get_object", Bucket=bucket, Key="k", **CUSTOMER)
        check("read", (body(answer) == content, answer["SSECustomerKeyMD5"]), (True, md5(KEY)))
        check("HEAD", call(200, "head_object", Bucket=bucket, Key="k", **CUSTOMER)["ContentLength"], len(content))
    check("a range", body(call(206, "get_object", Bucket=bucket, Key="k", Range="bytes=65530-65545", **CUSTOMER)), b"z" * 16)
    call((400, "InvalidRequest"), "get_object", Bucket=bucket, Key="k")
    call(400, "head_object", Bucket=bucket, Key="k")
    call((403, "AccessDenied"), "get_object", Bucket=bucket, Key="k", **WRONG)
    call(403, "head_object", Bucket=bucket, Key="k", **WRONG)
    answers(200, "PUT", path, head(), b"x")
    answers((400, "InvalidArgument"), "PUT", path, head(**{f"{start}key": None}), b"x")
    answers((400, "InvalidArgument"), "PUT", path, head(**{f"{start}key-md5": None}), b"x")
    answers((400, "InvalidArgument"), "PUT", path, head(**{f"{start}algorithm": None}), b"x")
    answers((400, "InvalidArgument"), "PUT", path, head(**{f"{start}key-md5": md5(b"x")}), b"x")
    answers((400, "InvalidArgument"), "PUT", path, head(**{f"{start}key": base64.b64encode(b"short").decode()}), b"x")
    answers((400, "InvalidEncryptionAlgorithmError"), "PUT", path, head(**{f"{start}algorithm": "ROT13"}), b"x")
    put(bucket, "plain")
    call((400, "InvalidRequest"), "get_object", Bucket=bucket, Key="plain", **CUSTOMER)
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k2", Body=b"", ServerSideEncryption="AES256", **CUSTOMER)
    source = dict(CopySource=f"{bucket}/k", Bucket=bucket)
    from_source = {f"CopySource{name}": value for name, value in CUSTOMER.items()}
    call((400, "InvalidRequest"), "copy_object", Key="c", **source)
    call(200, "copy_object", Key="c", **source, **from_source)
    check("decrypted", len(body(S3.get_object(Bucket=bucket, Key="c"))), 70_000)
    call(200, "copy_object", Key="c", **source, **from_source, **WRONG)
    call(200, "get_object", Bucket=bucket, Key="c", **WRONG)
    call(200, "copy_object", Key="k", **source, **from_source, **WRONG)
    upload = call(200, "create_multipart_upload", Bucket=bucket, Key="m", **CUSTOMER)
    check("of an upload", upload["SSECustomerKeyMD5"], md5(KEY))
    part = dict(Bucket=bucket, Key="m", UploadId=upload["UploadId"], PartNumber=1)
    call((400, "InvalidRequest"), "upload_part", Body=b"x", **part)
    call((400, "InvalidRequest"), "upload_part", Body=b"x", **part, **WRONG)
    etag = call(200, "upload_part", Body=b"x", **part, **CUSTOMER)["ETag"]
    del part["PartNumber"]
    call(200, "complete_multipart_upload", MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]}, **part)
    check("the upload", body(call(200, "get_object", Bucket=bucket, Key="m", **CUSTOMER)), b"x")


def uploads_with_keys_of_clients(bucket):
    part = dict(Bucket=bucket, Key="m", UploadId=S3.create_multipart_upload(Bucket=bucket, Key="m", **CUSTOMER)["UploadId"])
    parts = [b"p" * (5 * MIB), b"end" * 1000]
    sent = [
        {"PartNumber": number, "ETag": S3.upload_part(PartNumber=number, Body=content, **part, **CUSTOMER)["ETag"]}
        for number, content in enumerate(parts, 1)
    ]
    call(200, "complete_multipart_upload", MultipartUpload={"Parts": sent}, **part)
    answer = call(206, "get_object", Bucket=bucket, Key="m", Range=f"bytes={5 * MIB - 2}-{5 * MIB + 1}", **CUSTOMER)
    check("a range over both", body(answer), b"ppen")
    check("a part", body(call(206, "get_object", Bucket=bucket, Key="m", PartNumber=2, **CUSTOMER)), parts[1])
    call((400, "InvalidRequest"), "get_object_attributes", Bucket=bucket, Key="m", ObjectAttributes=["ETag"])
    condition = {"Null": {"s3:x-amz-server-side-encryption-customer-algorithm": "true"}}
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": f"arn:aws:s3:::{bucket}/*",
        "Condition": condition,
    }
    S3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    call((403, "AccessDenied"), "put_object", Bucket=bucket, Key="k", Body=b"")
    call(200, "put_object", Bucket=bucket, Key="k", Body=b"", **CUSTOMER)


def keys_of_the_server(bucket):
    answer = call(200, "put_object", Bucket=bucket, Key="k", Body=b"x", ServerSideEncryption="AES256")
    check("said", answer["ServerSideEncryption"], "AES256")
    for name in ["get_object", "head_object"]:
        check(name, call(200, name, Bucket=bucket, Key="k")["ServerSideEncryption"], "AES256")
    answers((400, "InvalidArgument"), "GET", f"/{bucket}/k", {"x-amz-server-side-encryption": "AES256"})
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k", Body=b"", ServerSideEncryption="aes:kms")
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k", Body=b"", ServerSideEncryption="AES256", SSEKMSKeyId="x")
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k", Body=b"", SSEKMSKeyId="x")
    call((501, "NotImplemented"), "put_object", Bucket=bucket, Key="k", Body=b"", ServerSideEncryption="aws:kms:dsse")
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k", Body=b"", ServerSideEncryption="rot13")
    kms = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms:dsse", "KMSMasterKeyID": "x"}}]}
    call((501, "NotImplemented"), "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=kms)
    upload = call(200, "create_multipart_upload", Bucket=bucket, Key="m", ServerSideEncryption="AES256")
    check("of an upload", upload["ServerSideEncryption"], "AES256")
    part = call(200, "upload_part", Bucket=bucket, Key="m", UploadId=upload["UploadId"], PartNumber=1, Body=b"x")
    check("of a part", part["ServerSideEncryption"], "AES256")
    answer = call(
        200,
        "complete_multipart_upload",
        Bucket=bucket,
        Key="m",
        UploadId=upload["UploadId"],
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    check("completed", answer["ServerSideEncryption"], "AES256")
    answer = call(200, "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/k", ServerSideEncryption="AES256")
    check("copied", answer["ServerSideEncryption"], "AES256")


def named_keys(bucket):
    """SSE-KMS with the key of who names none."""
    kms = {"ServerSideEncryption": "aws:kms"}
    arn = "arn:aws:kms:us-east-1:terrace:key/aws/s3"

    def said(name, answer, key=arn):
        check(f"{name}: method and key", (answer.get("ServerSideEncryption"), answer.get("SSEKMSKeyId")), ("aws:kms", key))

    put_answer = call(200, "put_object", Bucket=bucket, Key="k", Body=b"content", **kms)
    said("put", put_answer)
    holds("no MD5", put_answer["ETag"] != f'"{hashlib.md5(b"content").hexdigest()}"')
    for name in ["get_object", "head_object"]:
        answer = call(200, name, Bucket=bucket, Key="k")
        said(name, answer)
        check(f"{name}: the same entity tag", (answer["ETag"], answer["ContentLength"]), (put_answer["ETag"], 7))
    check("a range", body(call(206, "get_object", Bucket=bucket, Key="k", Range="bytes=1-2")), b"on")
    for key in ["alias/aws/s3", "aws/s3", arn, "arn:aws:kms:eu-west-1:123456789012:alias/aws/s3"]:
        said(key, call(200, "put_object", Bucket=bucket, Key="k", Body=b"x", SSEKMSKeyId=key, **kms))
    for key in ["nothing", "arn:aws:kms:us-east-1:terrace:key/nothing"]:
        call((400, "KMS.NotFoundException"), "put_object", Bucket=bucket, Key="n", Body=b"x", SSEKMSKeyId=key, **kms)
        call((400, "KMS.NotFoundException"), "create_multipart_upload", Bucket=bucket, Key="n", SSEKMSKeyId=key, **kms)
    call((404, "NoSuchKey"), "get_object", Bucket=bucket, Key="n")
    # Both of it say how something is to be stored, so neither belongs to a read.
    answers((400, "InvalidArgument"), "GET", f"/{bucket}/k", {"x-amz-server-side-encryption": "aws:kms"})
    call((400, "InvalidRequest"), "get_object", Bucket=bucket, Key="k", **CUSTOMER)
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k", Body=b"", **kms, **CUSTOMER)
    # What a client binds it to is an object of texts.
    context = lambda text: base64.b64encode(text.encode()).decode()
    answer = call(200, "put_object", Bucket=bucket, Key="k", Body=b"x", SSEKMSEncryptionContext=context('{"a":"b"}'), **kms)
    check("context", answer.get("SSEKMSEncryptionContext"), context('{"a":"b"}'))
    check("read with it", body(call(200, "get_object", Bucket=bucket, Key="k")), b"x")
    for odd in ["x", context("x"), context("[]"), context('{"a":1}')]:
        call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="k", Body=b"", SSEKMSEncryptionContext=odd, **kms)
    # Copies and parts.
    said("copy", call(200, "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/k", **kms))
    check("copied", body(call(200, "get_object", Bucket=bucket, Key="c")), b"x")
    answer = call(200, "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/k")
    check("a copy takes it not along", answer.get("ServerSideEncryption"), None)
    names = {"Bucket": bucket, "Key": "m"}
    upload = call(200, "create_multipart_upload", BucketKeyEnabled=True, **names, **kms)
    said("upload", upload)
    names["UploadId"] = upload["UploadId"]
    part = call(200, "upload_part", PartNumber=1, Body=b"part", **names)
    said("part", part)
    done = call(200, "complete_multipart_upload", MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}, **names)
    said("completed", done)
    answer = call(200, "get_object", Bucket=bucket, Key="m")
    check("parts", (body(answer), answer.get("BucketKeyEnabled")), (b"part", True))
    # Only who signs by version 4 may use such a key.
    call(200, "put_object_acl", Bucket=bucket, Key="k", ACL="public-read")
    call((400, "InvalidArgument"), "get_object", who=ANYBODY, Bucket=bucket, Key="k")
    call(200, "head_object", who=ANYBODY, Bucket=bucket, Key="k")
    old = client(ACCESS_KEY, SECRET_KEY, signature_version="s3")
    call((400, "InvalidArgument"), "get_object", who=old, Bucket=bucket, Key="k")
    call((400, "InvalidArgument"), "put_object", who=old, Bucket=bucket, Key="k", Body=b"", **kms)
    # Buckets that want it.
    rules = lambda **more: {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", **more}, "BucketKeyEnabled": True}]}
    call(200, "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=rules())
    shown = call(200, "get_bucket_encryption", Bucket=bucket)["ServerSideEncryptionConfiguration"]
    check("shown", shown, rules())
    said("by default", call(200, "put_object", Bucket=bucket, Key="d", Body=b"x"))
    answer = call(200, "put_object", Bucket=bucket, Key="d", Body=b"x", ServerSideEncryption="AES256")
    check("what is said counts", answer["ServerSideEncryption"], "AES256")
    call(200, "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=rules(KMSMasterKeyID=arn))
    shown = call(200, "get_bucket_encryption", Bucket=bucket)["ServerSideEncryptionConfiguration"]
    check("shown with its key", shown, rules(KMSMasterKeyID=arn))
    call(200, "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=rules(KMSMasterKeyID="nothing"))
    call((400, "KMS.NotFoundException"), "put_object", Bucket=bucket, Key="d", Body=b"x")
    call(204, "delete_bucket_encryption", Bucket=bucket)
    # Policies see what a request says.
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": f"arn:aws:s3:::{bucket}/*",
        "Condition": {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}},
    }
    S3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    call((403, "AccessDenied"), "put_object", Bucket=bucket, Key="k", Body=b"")
    call(200, "put_object", Bucket=bucket, Key="k", Body=b"", **kms)
    statement["Condition"] = {"StringNotEquals": {"s3:x-amz-server-side-encryption-aws-kms-key-id": arn}}
    S3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    call((403, "AccessDenied"), "put_object", Bucket=bucket, Key="k", Body=b"", **kms)
    call(200, "put_object", Bucket=bucket, Key="k", Body=b"", SSEKMSKeyId=arn, **kms)


GROUPS = [versions, lock_settings, locks, keys_of_clients, uploads_with_keys_of_clients, keys_of_the_server, named_keys]
