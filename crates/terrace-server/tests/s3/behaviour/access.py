"""Access control lists, ownership, policies and the block of public access."""

from common import *

ALL = "http://acs.amazonaws.com/groups/global/AllUsers"
SIGNED = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
LOGS = "http://acs.amazonaws.com/groups/s3/LogDelivery"


def granted(answer):
    return sorted((grant["Grantee"].get("ID") or grant["Grantee"].get("URI"), grant["Permission"]) for grant in answer["Grants"])


def canned_lists(bucket):
    own = (OWNER_ID, "FULL_CONTROL")
    for acl, expected in [
        (None, [own]),
        ("private", [own]),
        ("public-read", [own, (ALL, "READ")]),
        ("public-read-write", [own, (ALL, "READ"), (ALL, "WRITE")]),
        ("authenticated-read", [own, (SIGNED, "READ")]),
        ("log-delivery-write", [own, (LOGS, "READ_ACP"), (LOGS, "WRITE")]),
    ]:
        if acl:
            call(200, "put_bucket_acl", Bucket=bucket, ACL=acl)
        answer = call(200, "get_bucket_acl", Bucket=bucket)
        check(f"bucket {acl}", (granted(answer), answer["Owner"]["ID"]), (sorted(expected), OWNER_ID))
    S3.put_bucket_acl(Bucket=bucket, ACL="private")
    for acl, expected in [
        (None, [own]),
        ("private", [own]),
        ("public-read", [own, (ALL, "READ")]),
        ("public-read-write", [own, (ALL, "READ"), (ALL, "WRITE")]),
        ("authenticated-read", [own, (SIGNED, "READ")]),
        ("bucket-owner-read", [own]),
        ("bucket-owner-full-control", [own]),
    ]:
        put(bucket, "k", **({"ACL": acl} if acl else {}))
        check(f"object {acl}", granted(call(200, "get_object_acl", Bucket=bucket, Key="k")), sorted(expected))
        call(200, "put_object_acl", Bucket=bucket, Key="k", ACL=acl or "private")
        check(f"object {acl}, later", granted(call(200, "get_object_acl", Bucket=bucket, Key="k")), sorted(expected))
    put(bucket, "k", ACL="authenticated-read")
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="k")
    call((403, "AccessDenied"), "get_object", who=ANYBODY, Bucket=bucket, Key="k")
    call((400, "InvalidArgument"), "put_object_acl", Bucket=bucket, Key="k", ACL="public-ready")
    call((400, "InvalidArgument"), "put_bucket_acl", Bucket=bucket, ACL="bogus")
    call((404, "NoSuchKey"), "get_object_acl", Bucket=bucket, Key="none")
    call((404, "NoSuchKey"), "put_object_acl", Bucket=bucket, Key="none", ACL="private")
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    OTHER.put_object(Bucket=bucket, Key="theirs", Body=b"x")
    answer = call(200, "get_object_acl", who=OTHER, Bucket=bucket, Key="theirs")
    check("theirs", (answer["Owner"]["ID"], granted(answer)), (OTHER_ID, [(OTHER_ID, "FULL_CONTROL")]))
    call((403, "AccessDenied"), "get_object", Bucket=bucket, Key="theirs")
    for acl, permission in [("bucket-owner-read", "READ"), ("bucket-owner-full-control", "FULL_CONTROL")]:
        OTHER.put_object(Bucket=bucket, Key="theirs", Body=b"x", ACL=acl)
        check(
            acl,
            granted(OTHER.get_object_acl(Bucket=bucket, Key="theirs")),
            sorted([(OTHER_ID, "FULL_CONTROL"), (OWNER_ID, permission)]),
        )
        call(200, "get_object", Bucket=bucket, Key="theirs")


def objects_of_others(bucket):
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    OTHER.put_object(Bucket=bucket, Key="theirs", Body=b"x")
    call((403, "AccessDenied"), "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/theirs")
    OTHER.put_object_acl(Bucket=bucket, Key="theirs", GrantRead=f"id={OWNER_ID}")
    call(200, "copy_object", Bucket=bucket, Key="c", CopySource=f"{bucket}/theirs")
    put(bucket, "mine", ACL="public-read")
    call(200, "copy_object", who=OTHER, Bucket=bucket, Key="copied", CopySource=f"{bucket}/mine", ACL="public-read")
    check("whose a copy is", OTHER.get_object_acl(Bucket=bucket, Key="copied")["Owner"]["ID"], OTHER_ID)
    call(200, "get_object", who=ANYBODY, Bucket=bucket, Key="copied")
    OTHER.create_multipart_upload(Bucket=bucket, Key="upload")
    upload = S3.list_multipart_uploads(Bucket=bucket)["Uploads"][0]
    check("whose an upload is", (upload["Initiator"]["ID"], upload["Owner"]["ID"]), (OTHER_ID, OTHER_ID))


def grants(bucket):
    person = lambda name: {"Type": "CanonicalUser", "ID": name}
    policy = lambda *grants: {
        "Owner": {"ID": OWNER_ID},
        "Grants": [{"Grantee": grantee, "Permission": permission} for grantee, permission in grants],
    }
    own = (person(OWNER_ID), "FULL_CONTROL")
    # permission: what of list, write, read the list and write the list the other account may.
    for permission, may in [("READ", "r"), ("WRITE", "w"), ("READ_ACP", "R"), ("WRITE_ACP", "W"), ("FULL_CONTROL", "rwRW")]:
        call(200, "put_bucket_acl", Bucket=bucket, AccessControlPolicy=policy(own, (person(OTHER_ID), permission)))
        outcome = lambda letter: 200 if letter in may else (403, "AccessDenied")
        call(outcome("r"), "list_objects", who=OTHER, Bucket=bucket)
        call(outcome("w"), "put_object", who=OTHER, Bucket=bucket, Key="k", Body=b"")
        call(outcome("R"), "get_bucket_acl", who=OTHER, Bucket=bucket)
        current = S3.get_bucket_acl(Bucket=bucket)
        call(
            outcome("W"),
            "put_bucket_acl",
            who=OTHER,
            Bucket=bucket,
            AccessControlPolicy={name: current[name] for name in ["Owner", "Grants"]},
        )
        call((403, "AccessDenied"), "delete_bucket", who=OTHER, Bucket=bucket)
    S3.put_bucket_acl(Bucket=bucket, ACL="private")
    S3.delete_object(Bucket=bucket, Key="k")
    put(bucket, "k")
    for permission, may in [("READ", "r"), ("WRITE", ""), ("READ_ACP", "R"), ("WRITE_ACP", "W"), ("FULL_CONTROL", "rRW")]:
        call(200, "put_object_acl", Bucket=bucket, Key="k", AccessControlPolicy=policy(own, (person(OTHER_ID), permission)))
        check(
            "shown",
            sorted(granted(S3.get_object_acl(Bucket=bucket, Key="k"))),
            sorted([(OWNER_ID, "FULL_CONTROL"), (OTHER_ID, permission)]),
        )
        outcome = lambda letter: 200 if letter in may else (403, "AccessDenied")
        call(outcome("r"), "get_object", who=OTHER, Bucket=bucket, Key="k")
        call(outcome("R"), "get_object_acl", who=OTHER, Bucket=bucket, Key="k")
        call(
            outcome("W"),
            "put_object_acl",
            who=OTHER,
            Bucket=bucket,
            Key="k",
            AccessControlPolicy=policy(own, (person(OTHER_ID), permission)),
        )
        call((403, "AccessDenied"), "put_object", who=OTHER, Bucket=bucket, Key="k", Body=b"")
    fields = {"GrantRead": "READ", "GrantReadACP": "READ_ACP", "GrantWriteACP": "WRITE_ACP", "GrantFullControl": "FULL_CONTROL"}
    for field, permission in fields.items():
        S3.put_object(Bucket=bucket, Key="h", Body=b"", **{field: f'id="{OTHER_ID}"'})
        holds(field, (OTHER_ID, permission) in granted(S3.get_object_acl(Bucket=bucket, Key="h")))
        S3.put_bucket_acl(Bucket=bucket, **{field: f"id={OTHER_ID}"})
        holds(f"bucket {field}", (OTHER_ID, permission) in granted(S3.get_bucket_acl(Bucket=bucket)))
    created = new_bucket(GrantRead=f"id={OTHER_ID}", GrantWrite=f'uri="{ALL}"')
    holds("of a new bucket", {(OTHER_ID, "READ"), (ALL, "WRITE")} <= set(granted(S3.get_bucket_acl(Bucket=created))))
    for code, more in [
        ("InvalidArgument", {"GrantRead": "id=nobody-of-this-name"}),
        ("InvalidArgument", {"GrantRead": "what=x"}),
        ("UnresolvableGrantByEmailAddress", {"GrantRead": "emailAddress=nobody@example.org"}),
        ("InvalidArgument", {"GrantRead": "uri=http://x"}),
        ("InvalidRequest", {"GrantRead": f"id={OTHER_ID}", "ACL": "private"}),
    ]:
        call((400, code), "put_object", Bucket=bucket, Key="h", Body=b"", **more)
        call((400, code), "put_bucket_acl", Bucket=bucket, **more)
    call((403, "AccessDenied"), "put_bucket_acl", Bucket=bucket, AccessControlPolicy={**policy(own), "Owner": {"ID": OTHER_ID}})
    for wrong in [b"<AccessControlPolicy>", b"", b"<Other/>", b"<AccessControlPolicy/>"]:
        answer = send("PUT", f"/{bucket}?acl", {}, wrong)
        check(f"{wrong} of a list", answer[:2], (400, "MissingSecurityHeader" if not wrong else "MalformedACLError"))
    none = {"Owner": {"ID": OWNER_ID}, "Grants": []}
    call(200, "put_bucket_acl", Bucket=bucket, AccessControlPolicy=none)
    call(200, "list_objects", Bucket=bucket)
    check("grants of nothing", granted(call(200, "get_bucket_acl", Bucket=bucket)), [])
    S3.put_bucket_acl(Bucket=bucket, ACL="private")


def ownership(bucket):
    rules = lambda kind: {"Rules": [{"ObjectOwnership": kind}]}
    for kind in ["ObjectWriter", "BucketOwnerPreferred", "BucketOwnerEnforced"]:
        call(200, "put_bucket_ownership_controls", Bucket=bucket, OwnershipControls=rules(kind))
        check(kind, call(200, "get_bucket_ownership_controls", Bucket=bucket)["OwnershipControls"], rules(kind))
        created = new_bucket(ObjectOwnership=kind)
        check(f"new {kind}", S3.get_bucket_ownership_controls(Bucket=created)["OwnershipControls"], rules(kind))
    refused = (400, "AccessControlListNotSupported")
    call(refused, "put_bucket_acl", Bucket=bucket, ACL="public-read")
    call(refused, "put_object", Bucket=bucket, Key="k", Body=b"", ACL="public-read")
    call(refused, "put_object", Bucket=bucket, Key="k", Body=b"", GrantRead=f"id={OTHER_ID}")
    call(200, "put_object", Bucket=bucket, Key="k", Body=b"", ACL="bucket-owner-full-control")
    call(refused, "put_object_acl", Bucket=bucket, Key="k", ACL="public-read")
    call(refused, "create_multipart_upload", Bucket=bucket, Key="k", ACL="public-read")
    call(refused, "copy_object", Bucket=bucket, Key="k2", CopySource=f"{bucket}/k", ACL="public-read")
    call(200, "get_object_acl", Bucket=bucket, Key="k")
    call(200, "get_bucket_acl", Bucket=bucket)
    call(204, "delete_bucket_ownership_controls", Bucket=bucket)
    call((404, "OwnershipControlsNotFoundError"), "get_bucket_ownership_controls", Bucket=bucket)
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    call(
        (400, "InvalidBucketAclWithObjectOwnership"),
        "put_bucket_ownership_controls",
        Bucket=bucket,
        OwnershipControls=rules("BucketOwnerEnforced"),
    )
    call((400, "MalformedXML"), "put_bucket_ownership_controls", Bucket=bucket, OwnershipControls=rules("Nobody"))
    call((400, "MalformedXML"), "put_bucket_ownership_controls", Bucket=bucket, OwnershipControls={"Rules": []})
    call(
        (400, "InvalidBucketAclWithObjectOwnership"),
        "create_bucket",
        Bucket=f"{bucket}-e",
        ObjectOwnership="BucketOwnerEnforced",
        ACL="public-read",
    )
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    S3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=rules("BucketOwnerPreferred"))
    OTHER.put_object(Bucket=bucket, Key="given", Body=b"", ACL="bucket-owner-full-control")
    check("given", S3.get_object_acl(Bucket=bucket, Key="given")["Owner"]["ID"], OWNER_ID)
    OTHER.put_object(Bucket=bucket, Key="kept", Body=b"")
    check("kept", OTHER.get_object_acl(Bucket=bucket, Key="kept")["Owner"]["ID"], OTHER_ID)


DENIED = (403, "AccessDenied")


def statement(bucket, action, effect="Allow", principal="*", resource="/*", **more):
    actions = action if isinstance(action, list) else [action]
    resources = [f"arn:aws:s3:::{bucket}{end}" for end in ([resource] if isinstance(resource, str) else resource)]
    return {"Effect": effect, "Principal": principal, "Action": actions, "Resource": resources, **more}


def set_policy(bucket, *statements):
    S3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": list(statements)}))


def policies(bucket):
    put(bucket, "k", "public/k")
    text = json.dumps({"Version": "2012-10-17", "Statement": [statement(bucket, "s3:GetObject", resource="/public/*")]})
    call(204, "put_bucket_policy", Bucket=bucket, Policy=text)
    check("as it was put", json.loads(call(200, "get_bucket_policy", Bucket=bucket)["Policy"]), json.loads(text))
    check("public", call(200, "get_bucket_policy_status", Bucket=bucket)["PolicyStatus"], {"IsPublic": True})
    for who in [ANYBODY, OTHER]:
        call(200, "get_object", who=who, Bucket=bucket, Key="public/k")
        call((403, "AccessDenied"), "get_object", who=who, Bucket=bucket, Key="k")
    set_policy(bucket, statement(bucket, "s3:ListBucket", principal={"AWS": OTHER_ID}, resource=""))
    check("not public", call(200, "get_bucket_policy_status", Bucket=bucket)["PolicyStatus"], {"IsPublic": False})
    for principal in [f"arn:aws:iam::{OTHER_ID}:root", f"arn:aws:iam:::user/{OTHER_ID}", {"CanonicalUser": OTHER_ID}, OTHER_ID]:
        principal = principal if isinstance(principal, dict) else {"AWS": principal}
        set_policy(bucket, statement(bucket, "s3:ListBucket", principal=principal, resource=""))
        check("to whom", call(200, "get_bucket_policy_status", Bucket=bucket)["PolicyStatus"], {"IsPublic": False})
        call(200, "list_objects", who=OTHER, Bucket=bucket)
        call((403, "AccessDenied"), "list_objects", who=ANYBODY, Bucket=bucket)
    call(200, "list_objects", who=OTHER, Bucket=bucket)
    call(200, "list_objects_v2", who=OTHER, Bucket=bucket)
    call((403, "AccessDenied"), "list_objects", who=ANYBODY, Bucket=bucket)
    set_policy(
        bucket,
        statement(bucket, "s3:*", resource=["", "/*"]),
        statement(bucket, "s3:GetObject", effect="Deny", principal={"AWS": OTHER_ID}),
    )
    call((403, "AccessDenied"), "get_object", who=OTHER, Bucket=bucket, Key="k")
    call(200, "get_object", who=ANYBODY, Bucket=bucket, Key="k")
    call(200, "put_object", who=OTHER, Bucket=bucket, Key="k3", Body=b"")
    everyone_but = {
        "Effect": "Deny",
        "NotPrincipal": {"AWS": OWNER_ID},
        "Action": "s3:GetObject",
        "Resource": f"arn:aws:s3:::{bucket}/*",
    }
    set_policy(bucket, statement(bucket, "s3:*", resource=["", "/*"]), everyone_but)
    call((403, "AccessDenied"), "get_object", who=OTHER, Bucket=bucket, Key="k")
    call(200, "get_object", Bucket=bucket, Key="k")
    allowing = {**everyone_but, "Effect": "Allow"}
    call(
        (400, "MalformedPolicy"),
        "put_bucket_policy",
        Bucket=bucket,
        Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowing]}),
    )
    encryption = statement(bucket, "s3:PutEncryptionConfiguration", effect="Deny", resource="")
    set_policy(bucket, encryption)
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    call((403, "AccessDenied"), "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=rules)
    call(204, "delete_bucket_policy", Bucket=bucket)
    call((404, "NoSuchBucketPolicy"), "get_bucket_policy", Bucket=bucket)
    is_public = lambda: call(200, "get_bucket_policy_status", Bucket=bucket)["PolicyStatus"]["IsPublic"]
    for acl, public in [("private", False), ("public-read", True), ("authenticated-read", True), ("private", False)]:
        S3.put_bucket_acl(Bucket=bucket, ACL=acl)
        check(f"public by {acl}", is_public(), public)
    for wrong in [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"Version": "2012-10-17", "Statement": []}),
        json.dumps({"Version": "2012-10-17", "Statement": [{**statement(bucket, "s3:GetObject"), "Effect": "Maybe"}]}),
        json.dumps({"Version": "2012-10-17", "Statement": [statement(bucket + "-other", "s3:GetObject")]}),
        json.dumps({"Version": "2012-10-17", "Statement": [statement(bucket, "s3:NoSuchAction")]}),
        json.dumps({"Version": "2012-10-17", "Statement": [statement(bucket, "s3:ListBucket", resource="/*")]}),
        json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": [{name: value for name, value in statement(bucket, "s3:GetObject").items() if name != "Principal"}],
            }
        ),
    ]:
        call((400, "MalformedPolicy"), "put_bucket_policy", Bucket=bucket, Policy=wrong)


def conditions_of_policies(bucket):
    names = ["public/foo", "private/foo", "none"]
    put(bucket, *names)
    for key, tags in [("public/foo", "security=public&foo=bar"), ("private/foo", "security=private")]:
        S3.put_object(Bucket=bucket, Key=key, Body=b"x", Tagging=tags)
    with_condition = lambda action, condition, **more: set_policy(bucket, statement(bucket, action, Condition=condition, **more))
    outcome = lambda works: 200 if works else (403, "AccessDenied")
    with_condition(["s3:GetObject"], {"StringEquals": {"s3:ExistingObjectTag/security": "public"}})
    for name in names:
        call(outcome(name == "public/foo"), "get_object", who=OTHER, Bucket=bucket, Key=name)
    with_condition(["s3:GetObjectTagging"], {"StringEquals": {"s3:ExistingObjectTag/security": "public"}})
    for name in names:
        call(outcome(name == "public/foo"), "get_object_tagging", who=OTHER, Bucket=bucket, Key=name)
        call((403, "AccessDenied"), "get_object", who=OTHER, Bucket=bucket, Key=name)
    with_condition(["s3:PutObjectTagging"], {"StringEquals": {"s3:ExistingObjectTag/security": "public"}})
    tags = {"TagSet": [{"Key": "security", "Value": "public"}]}
    for name in names:
        call(outcome(name == "public/foo"), "put_object_tagging", who=OTHER, Bucket=bucket, Key=name, Tagging=tags)
    with_condition(["s3:PutObject"], {"StringEquals": {"s3:RequestObjectTag/security": "public"}})
    call(200, "put_object", who=OTHER, Bucket=bucket, Key="t", Body=b"", Tagging="security=public")
    call((403, "AccessDenied"), "put_object", who=OTHER, Bucket=bucket, Key="t", Body=b"", Tagging="security=private")
    call((403, "AccessDenied"), "put_object", who=OTHER, Bucket=bucket, Key="t", Body=b"")
    allow = statement(bucket, "s3:PutObject")
    set_policy(
        bucket, allow, statement(bucket, "s3:PutObject", effect="Deny", Condition={"StringLike": {"s3:x-amz-acl": "public*"}})
    )
    call(200, "put_object", who=OTHER, Bucket=bucket, Key="acl", Body=b"", ACL="bucket-owner-full-control")
    call((403, "AccessDenied"), "put_object", who=OTHER, Bucket=bucket, Key="acl", Body=b"", ACL="public-read")
    set_policy(bucket, allow, statement(bucket, "s3:GetObject"))
    target = new_bucket()
    set_policy(
        target, statement(target, "s3:PutObject", Condition={"StringLike": {"s3:x-amz-copy-source": f"{bucket}/public/*"}})
    )
    call(200, "copy_object", who=OTHER, Bucket=target, Key="c", CopySource={"Bucket": bucket, "Key": "public/foo"})
    call(
        (403, "AccessDenied"),
        "copy_object",
        who=OTHER,
        Bucket=target,
        Key="c",
        CopySource={"Bucket": bucket, "Key": "private/foo"},
    )
    call((403, "AccessDenied"), "put_object", who=OTHER, Bucket=target, Key="c", Body=b"")
    set_policy(target, statement(target, "s3:PutObject", Condition={"StringEquals": {"s3:x-amz-metadata-directive": "COPY"}}))
    call(200, "copy_object", who=OTHER, Bucket=target, Key="c", CopySource=f"{bucket}/none", MetadataDirective="COPY")
    call(
        (403, "AccessDenied"),
        "copy_object",
        who=OTHER,
        Bucket=target,
        Key="c",
        CopySource=f"{bucket}/none",
        MetadataDirective="REPLACE",
    )
    call((403, "AccessDenied"), "copy_object", who=OTHER, Bucket=target, Key="c", CopySource=f"{bucket}/none")
    set_policy(
        target, statement(target, "s3:PutObject", Condition={"StringEquals": {"s3:x-amz-grant-full-control": f"id={OWNER_ID}"}})
    )
    call(200, "put_object", who=OTHER, Bucket=target, Key="g", Body=b"", GrantFullControl=f"id={OWNER_ID}")
    call((403, "AccessDenied"), "put_object", who=OTHER, Bucket=target, Key="g", Body=b"")
    encrypted = {"s3:x-amz-server-side-encryption": "AES256"}
    set_policy(
        target,
        statement(target, "s3:PutObject", effect="Deny", Condition={"StringNotEquals": encrypted}),
        statement(target, "s3:PutObject", effect="Deny", Condition={"Null": {"s3:x-amz-server-side-encryption": "true"}}),
    )
    call((403, "AccessDenied"), "put_object", Bucket=target, Key="e", Body=b"")
    call(200, "put_object", Bucket=target, Key="e", Body=b"", ServerSideEncryption="AES256")
    for address, works in [("127.0.0.0/8", True), ("10.0.0.0/8", False)]:
        set_policy(target, statement(target, "s3:GetObject", Condition={"IpAddress": {"aws:SourceIp": address}}))
        call(outcome(works), "get_object", who=ANYBODY, Bucket=target, Key="e")
        check(f"status with {address}", S3.get_bucket_policy_status(Bucket=target)["PolicyStatus"]["IsPublic"], False)
    set_policy(target, statement(target, "s3:ListBucket", resource="", Condition={"StringEquals": {"s3:prefix": "a/"}}))
    call(200, "list_objects_v2", who=OTHER, Bucket=target, Prefix="a/")
    call((403, "AccessDenied"), "list_objects_v2", who=OTHER, Bucket=target, Prefix="b/")
    set_policy(
        target, statement(target, "s3:ListBucket", resource="", Condition={"NumericLessThanEquals": {"s3:max-keys": "10"}})
    )
    call(200, "list_objects_v2", who=OTHER, Bucket=target, MaxKeys=10)
    call((403, "AccessDenied"), "list_objects_v2", who=OTHER, Bucket=target, MaxKeys=11)


def policies_of_all_forms(bucket):
    outcome = lambda works, status=200: status if works else DENIED
    put(bucket, "a/k", "b/k")
    base = statement(bucket, "s3:GetObject")
    without = lambda name, **more: {**{key: value for key, value in base.items() if key != name}, **more}
    set_policy(bucket, without("Action", NotAction=["s3:PutObject", "s3:DeleteObject"]))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="a/k")
    call(DENIED, "put_object", who=OTHER, Bucket=bucket, Key="c", Body=b"")
    set_policy(bucket, without("Resource", NotResource=f"arn:aws:s3:::{bucket}/b/*"))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="a/k")
    call(DENIED, "get_object", who=OTHER, Bucket=bucket, Key="b/k")
    set_policy(bucket, statement(bucket, "s3:GetObject", resource="/?/k"))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="b/k")
    set_policy(bucket, statement(bucket, "s3:Get*", principal={"AWS": [OTHER_ID]}))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="b/k")
    call(DENIED, "get_object", who=ANYBODY, Bucket=bucket, Key="b/k")
    set_policy(bucket, statement(bucket, "s3:GetObject", principal={"CanonicalUser": OTHER_ID}))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="b/k")
    tag_keys = lambda operator: set_policy(
        bucket, statement(bucket, "s3:PutObject", Condition={operator: {"s3:RequestObjectTagKeys": ["x", "y"]}})
    )
    tag_keys("ForAllValues:StringEquals")
    for tags, works in [("x=1", True), ("x=1&y=2", True), ("x=1&z=3", False), ("", True)]:
        call(outcome(works), "put_object", who=OTHER, Bucket=bucket, Key="t", Body=b"", Tagging=tags)
    tag_keys("ForAnyValue:StringEquals")
    for tags, works in [("x=1", True), ("x=1&z=3", True), ("z=3", False)]:
        call(outcome(works), "put_object", who=OTHER, Bucket=bucket, Key="t", Body=b"", Tagging=tags)
    for operator, value, works in [
        ("StringEquals", "yes", False),
        ("StringEqualsIfExists", "yes", True),
        ("StringNotEquals", "yes", True),
        ("Null", "true", True),
        ("Null", "false", False),
    ]:
        set_policy(bucket, statement(bucket, "s3:GetObject", Condition={operator: {"aws:Referer": value}}))
        call(outcome(works), "get_object", who=OTHER, Bucket=bucket, Key="a/k")
    for operator, key, value, works in [
        ("DateGreaterThan", "aws:CurrentTime", "2020-01-01T00:00:00Z", True),
        ("DateLessThan", "aws:CurrentTime", "2020-01-01T00:00:00Z", False),
        ("Bool", "aws:SecureTransport", "false", True),
        ("Bool", "aws:SecureTransport", "true", False),
        ("NotIpAddress", "aws:SourceIp", "127.0.0.1/32", False),
        ("StringLike", "aws:UserAgent", "*Boto3*", True),
        ("StringEqualsIgnoreCase", "s3:signatureversion", "aws4-hmac-sha256", True),
        ("NumericLessThan", "s3:signatureAge", "600000", True),
        ("StringEquals", "s3:authType", "REST-HEADER", True),
    ]:
        set_policy(bucket, statement(bucket, "s3:GetObject", Condition={operator: {key: value}}))
        call(outcome(works), "get_object", who=OTHER, Bucket=bucket, Key="a/k")
    set_policy(bucket, statement(bucket, "s3:DeleteObject", resource="/a/*"))
    answer = call(200, "delete_objects", who=OTHER, Bucket=bucket, Delete={"Objects": [{"Key": "a/k"}, {"Key": "b/k"}]})
    check(
        "each key by itself",
        ([e["Key"] for e in answer.get("Deleted", [])], [(e["Key"], e["Code"]) for e in answer.get("Errors", [])]),
        (["a/k"], [("b/k", "AccessDenied")]),
    )
    set_policy(bucket, statement(bucket, "s3:*", principal={"AWS": OTHER_ID}, resource=["", "/*"]))
    for status, name, more in [
        (200, "get_bucket_acl", {}),
        (200, "get_bucket_policy", {}),
        (200, "get_bucket_versioning", {}),
        (200, "list_object_versions", {}),
        (200, "get_object_tagging", {"Key": "b/k"}),
        (200, "get_object_attributes", {"Key": "b/k", "ObjectAttributes": ["ETag"]}),
        (200, "put_bucket_tagging", {"Tagging": {"TagSet": []}}),
        (200, "get_bucket_location", {}),
        (200, "head_bucket", {}),
        (200, "list_multipart_uploads", {}),
        (200, "get_bucket_notification_configuration", {}),
        (200, "get_bucket_request_payment", {}),
    ]:
        call(status, name, who=OTHER, Bucket=bucket, **more)
    set_policy(bucket, statement(bucket, "s3:PutObject", principal={"AWS": OTHER_ID}))
    upload = call(200, "create_multipart_upload", who=OTHER, Bucket=bucket, Key="m")["UploadId"]
    part = dict(Bucket=bucket, Key="m", UploadId=upload)
    etag = call(200, "upload_part", who=OTHER, PartNumber=1, Body=b"x", **part)["ETag"]
    call(DENIED, "abort_multipart_upload", who=OTHER, **part)
    call(200, "complete_multipart_upload", who=OTHER, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]}, **part)


def versions_by_policy(bucket):
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = S3.put_object(Bucket=bucket, Key="k", Body=b"1")["VersionId"]
    S3.put_object(Bucket=bucket, Key="k", Body=b"2")
    set_policy(bucket, statement(bucket, "s3:GetObject"))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="k")
    call(DENIED, "get_object", who=OTHER, Bucket=bucket, Key="k", VersionId=first)
    set_policy(bucket, statement(bucket, "s3:GetObjectVersion", Condition={"StringEquals": {"s3:VersionId": first}}))
    call(200, "get_object", who=OTHER, Bucket=bucket, Key="k", VersionId=first)
    call(DENIED, "get_object", who=OTHER, Bucket=bucket, Key="k")
    set_policy(bucket, statement(bucket, "s3:DeleteObject"))
    call(DENIED, "delete_object", who=OTHER, Bucket=bucket, Key="k", VersionId=first)
    call(204, "delete_object", who=OTHER, Bucket=bucket, Key="k")
    answers(200, "GET", presigned("get_object", Bucket=bucket, Key="k", VersionId=first), signed=False)


def attributes_by_policy(bucket):
    """GetObjectAttributes is for who may read the object, and needs an action of its own besides."""
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    version = S3.put_object(Bucket=bucket, Key="k", Body=b"1")["VersionId"]
    get, attributes = ["s3:GetObject", "s3:GetObjectVersion"], ["s3:GetObjectAttributes", "s3:GetObjectVersionAttributes"]
    outcome = lambda works: 200 if works else DENIED
    ask = lambda works, **more: call(
        outcome(works), "get_object_attributes", who=OTHER, Bucket=bucket, Key="k", ObjectAttributes=["ETag"], **more
    )
    for actions, current, named in [
        (get, False, False),
        (attributes, False, False),
        ([get[0], attributes[0]], True, False),
        ([get[1], attributes[1]], False, True),
        ([get[0], attributes[1]], False, False),
        (get + attributes, True, True),
    ]:
        set_policy(bucket, statement(bucket, actions))
        ask(current)
        ask(named, VersionId=version)
    # That it is not there is told as by GET.
    missing = dict(who=OTHER, Bucket=bucket, Key="none", ObjectAttributes=["ETag"])
    call(DENIED, "get_object_attributes", **missing)
    set_policy(bucket, statement(bucket, get + attributes), statement(bucket, "s3:ListBucket", resource=""))
    call((404, "NoSuchKey"), "get_object_attributes", **missing)
    for denied in [get, attributes]:
        set_policy(bucket, statement(bucket, "s3:*"), statement(bucket, denied, effect="Deny"))
        ask(False)
        ask(False, VersionId=version)


def tags_that_are_named(bucket):
    """Whoever names an entity tag to write or delete has to be able to read the object."""
    etag = S3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    S3.put_object(Bucket=bucket, Key="from", Body=b"2")
    write, read = ["s3:PutObject", "s3:DeleteObject"], "s3:GetObject"
    own = statement(bucket, read, resource="/from")
    for may_read, right, wrong in [(False, DENIED, DENIED), (True, None, (412, "PreconditionFailed"))]:
        set_policy(bucket, statement(bucket, write), own, *([statement(bucket, read)] if may_read else []))
        for tag, outcome in [('"x"', wrong), (etag, right)]:
            for name, status, more in [
                ("put_object", 200, {"Body": b"1"}),
                ("copy_object", 200, {"CopySource": f"{bucket}/from"}),
                ("delete_object", 204, {}),
            ]:
                S3.put_object(Bucket=bucket, Key="k", Body=b"1")
                call(outcome or status, name, who=OTHER, Bucket=bucket, Key="k", IfMatch=tag, **more)
            S3.put_object(Bucket=bucket, Key="k", Body=b"1")
            answer = OTHER.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "ETag": tag}]})
            found = [error["Code"] for error in answer.get("Errors", [])]
            check(f"many, {tag}", found, [outcome[1]] if outcome else [])
    set_policy(bucket, statement(bucket, write))
    S3.put_object(Bucket=bucket, Key="k", Body=b"1")
    # That there is nothing is told to whom a read would tell it.
    missing = dict(who=OTHER, Bucket=bucket, Key="none", IfMatch=etag)
    call(DENIED, "delete_object", **missing)
    call((404, "NoSuchKey"), "delete_object", **{**missing, "who": S3})
    call((412, "PreconditionFailed"), "put_object", who=OTHER, Bucket=bucket, Key="k", Body=b"", IfNoneMatch="*")
    call(204, "delete_object", who=OTHER, Bucket=bucket, Key="k", IfMatch="*")
    upload = OTHER.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    S3.put_object(Bucket=bucket, Key="k", Body=b"1")
    part = dict(Bucket=bucket, Key="k", UploadId=upload)
    parts = {"Parts": [{"PartNumber": 1, "ETag": OTHER.upload_part(PartNumber=1, Body=b"x", **part)["ETag"]}]}
    call(DENIED, "complete_multipart_upload", who=OTHER, MultipartUpload=parts, IfMatch=etag, **part)
    set_policy(bucket, statement(bucket, [*write, read]))
    call(200, "complete_multipart_upload", who=OTHER, MultipartUpload=parts, IfMatch=etag, **part)
    # A list counts as well.
    S3.delete_bucket_policy(Bucket=bucket)
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    for acl, outcome in [("private", DENIED), ("public-read", 200)]:
        etag = S3.put_object(Bucket=bucket, Key="k", Body=b"1", ACL=acl)["ETag"]
        call(outcome, "put_object", who=ANYBODY, Bucket=bucket, Key="k", Body=b"3", IfMatch=etag)


def public_access(bucket):
    every = lambda value: dict.fromkeys(
        ["BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"], value
    )
    put(bucket, "k", ACL="public-read")
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    block = lambda *names: call(
        200,
        "put_public_access_block",
        Bucket=bucket,
        PublicAccessBlockConfiguration={**every(False), **dict.fromkeys(names, True)},
    )
    block("BlockPublicAcls")
    check(
        "shown",
        call(200, "get_public_access_block", Bucket=bucket)["PublicAccessBlockConfiguration"],
        {**every(False), "BlockPublicAcls": True},
    )
    for acl in ["public-read", "public-read-write", "authenticated-read"]:
        call((403, "AccessDenied"), "put_bucket_acl", Bucket=bucket, ACL=acl)
        call((403, "AccessDenied"), "put_object", Bucket=bucket, Key="k2", Body=b"", ACL=acl)
        call((403, "AccessDenied"), "put_object_acl", Bucket=bucket, Key="k", ACL=acl)
    call(200, "put_object", Bucket=bucket, Key="k2", Body=b"", ACL="private")
    call(200, "get_object", who=ANYBODY, Bucket=bucket, Key="k")
    block("IgnorePublicAcls")
    call((403, "AccessDenied"), "get_object", who=ANYBODY, Bucket=bucket, Key="k")
    call((403, "AccessDenied"), "list_objects", who=ANYBODY, Bucket=bucket)
    call(200, "put_object_acl", Bucket=bucket, Key="k", ACL="public-read")
    block("BlockPublicPolicy")
    public = json.dumps({"Version": "2012-10-17", "Statement": [statement(bucket, "s3:GetObject")]})
    call((403, "AccessDenied"), "put_bucket_policy", Bucket=bucket, Policy=public)
    theirs = json.dumps({"Version": "2012-10-17", "Statement": [statement(bucket, "s3:GetObject", principal={"AWS": OTHER_ID})]})
    call(204, "put_bucket_policy", Bucket=bucket, Policy=theirs)
    block()
    call(204, "put_bucket_policy", Bucket=bucket, Policy=public)
    S3.put_object(Bucket=bucket, Key="p", Body=b"")
    call(200, "get_object", who=ANYBODY, Bucket=bucket, Key="p")
    block("RestrictPublicBuckets")
    call((403, "AccessDenied"), "get_object", who=ANYBODY, Bucket=bucket, Key="p")
    call((403, "AccessDenied"), "get_object", who=OTHER, Bucket=bucket, Key="p")
    call(200, "get_object", Bucket=bucket, Key="p")
    call(204, "delete_public_access_block", Bucket=bucket)
    call((404, "NoSuchPublicAccessBlockConfiguration"), "get_public_access_block", Bucket=bucket)
    call(200, "get_object", who=ANYBODY, Bucket=bucket, Key="p")


GROUPS = [
    canned_lists,
    objects_of_others,
    grants,
    ownership,
    policies,
    conditions_of_policies,
    policies_of_all_forms,
    versions_by_policy,
    attributes_by_policy,
    tags_that_are_named,
    public_access,
]
