"""Tags, cross-origin rules, lifecycle rules, web sites, logging and encryption of buckets, notifications."""

from common import *


def tag_set(*pairs):
    return {"TagSet": [{"Key": key, "Value": value} for key, value in pairs]}


def tags(bucket):
    put(bucket, "k")
    check("none", call(200, "get_object_tagging", Bucket=bucket, Key="k")["TagSet"], [])
    for count in [1, 10]:
        given = tag_set(*[(f"key{number}", f"value{number}") for number in range(count)])
        call(200, "put_object_tagging", Bucket=bucket, Key="k", Tagging=given)
        check(f"{count} tags", call(200, "get_object_tagging", Bucket=bucket, Key="k")["TagSet"], given["TagSet"])
        check("counted", S3.head_object(Bucket=bucket, Key="k").get("TagCount"), count)
    put_tags = lambda expected, *pairs: call(expected, "put_object_tagging", Bucket=bucket, Key="k", Tagging=tag_set(*pairs))
    put_tags((400, "BadRequest"), *[(f"key{number}", "") for number in range(11)])
    put_tags(200, ("k" * 128, "v" * 256), ("ü", "ö"), ("a+b-c=d._:/@ x", ""))
    put_tags((400, "InvalidTag"), ("k" * 129, ""))
    put_tags((400, "InvalidTag"), ("k", "v" * 257))
    put_tags((400, "InvalidTag"), ("k", "1"), ("k", "2"))
    put_tags((400, "InvalidTag"), ("aws:k", "1"))
    put_tags((400, "InvalidTag"), ("", "1"))
    answers((400, "MalformedXML"), "PUT", f"/{bucket}/k?tagging", {}, b"<Tagging>")
    check("the last good one", len(S3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]), 3)
    call(204, "delete_object_tagging", Bucket=bucket, Key="k")
    check("deleted", S3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], [])
    holds("not counted", "TagCount" not in S3.head_object(Bucket=bucket, Key="k"))
    for name, more in [
        ("get_object_tagging", {}),
        ("delete_object_tagging", {}),
        ("put_object_tagging", {"Tagging": tag_set(("a", "b"))}),
    ]:
        call((404, "NoSuchKey"), name, Bucket=bucket, Key="none", **more)
    put(bucket, "h", Tagging="foo=bar&bar=&a%20b=c%2Bd")
    check(
        "by header",
        S3.get_object_tagging(Bucket=bucket, Key="h")["TagSet"],
        tag_set(("foo", "bar"), ("bar", ""), ("a b", "c+d"))["TagSet"],
    )
    call((400, "InvalidArgument"), "put_object", Bucket=bucket, Key="h", Body=b"", Tagging="a=b&a=c")
    many = "&".join(f"k{number}=v" for number in range(11))
    call((400, "BadRequest"), "put_object", Bucket=bucket, Key="h", Body=b"", Tagging=many)
    S3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/h")
    check("copied", len(S3.get_object_tagging(Bucket=bucket, Key="c")["TagSet"]), 3)
    S3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/h", TaggingDirective="REPLACE", Tagging="x=y")
    check("replaced", S3.get_object_tagging(Bucket=bucket, Key="c")["TagSet"], tag_set(("x", "y"))["TagSet"])
    put(bucket, "h")
    check("an object put again has none", S3.get_object_tagging(Bucket=bucket, Key="h")["TagSet"], [])
    given = tag_set(("Hello", "World"), ("a", "b"))
    call(200, "put_bucket_tagging", Bucket=bucket, Tagging=given)
    check("of the bucket", call(200, "get_bucket_tagging", Bucket=bucket)["TagSet"], given["TagSet"])
    call(204, "delete_bucket_tagging", Bucket=bucket)
    call((404, "NoSuchTagSet"), "get_bucket_tagging", Bucket=bucket)
    call((400, "InvalidTag"), "put_bucket_tagging", Bucket=bucket, Tagging=tag_set(("a", "1"), ("a", "2")))


def tags_of_versions(bucket):
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = S3.put_object(Bucket=bucket, Key="k", Body=b"", Tagging="a=1")["VersionId"]
    second = S3.put_object(Bucket=bucket, Key="k", Body=b"", Tagging="a=2")["VersionId"]
    for version, value in [(first, "1"), (second, "2")]:
        answer = call(200, "get_object_tagging", Bucket=bucket, Key="k", VersionId=version)
        check("tags", (answer["TagSet"], answer["VersionId"]), (tag_set(("a", value))["TagSet"], version))
    call(200, "put_object_tagging", Bucket=bucket, Key="k", VersionId=first, Tagging=tag_set(("b", "3")))
    check("changed", S3.get_object_tagging(Bucket=bucket, Key="k", VersionId=first)["TagSet"], tag_set(("b", "3"))["TagSet"])
    check("the other is not", S3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], tag_set(("a", "2"))["TagSet"])
    call(204, "delete_object_tagging", Bucket=bucket, Key="k", VersionId=first)
    call((404, "NoSuchVersion"), "get_object_tagging", Bucket=bucket, Key="k", VersionId="0" * 32)


def cors(bucket):
    rules = {"CORSRules": [{"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["*.get", "*.put"]}]}
    call(200, "put_bucket_cors", Bucket=bucket, CORSConfiguration=rules)
    check("shown", call(200, "get_bucket_cors", Bucket=bucket)["CORSRules"], rules["CORSRules"])
    call(204, "delete_bucket_cors", Bucket=bucket)
    call((404, "NoSuchCORSConfiguration"), "get_bucket_cors", Bucket=bucket)
    answers((400, "BadRequest"), "OPTIONS", f"/{bucket}/k", signed=False)
    rules = [
        {"AllowedMethods": ["GET"], "AllowedOrigins": ["*suffix"]},
        {"AllowedMethods": ["GET"], "AllowedOrigins": ["start*end"]},
        {
            "AllowedMethods": ["GET"],
            "AllowedOrigins": ["prefix*"],
            "AllowedHeaders": ["x-amz-*"],
            "ExposeHeaders": ["x-amz-meta-a"],
            "MaxAgeSeconds": 300,
        },
        {"AllowedMethods": ["PUT"], "AllowedOrigins": ["*.put"]},
    ]
    S3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules})
    put(bucket, "k", ACL="public-read")

    def ask(method, headers, status, origin, methods=None, path=f"/{bucket}/k"):
        answer = send(method, path, signed=False, then=headers)
        found = (answer[0], answer[2].get("access-control-allow-origin"), answer[2].get("access-control-allow-methods"))
        check(f"{method} {headers}", found, (status, origin, methods))
        return answer[2]

    ask("GET", {}, 200, None)
    ask("GET", {"origin": "foo.suffix"}, 200, "foo.suffix", "GET")
    ask("GET", {"origin": "foo.bar"}, 200, None)
    ask("GET", {"origin": "foo.suffix.get"}, 200, None)
    ask("GET", {"origin": "startend"}, 200, "startend", "GET")
    ask("GET", {"origin": "start12end"}, 200, "start12end", "GET")
    ask("GET", {"origin": "0start12end"}, 200, None)
    exposed = ask("GET", {"origin": "prefix"}, 200, "prefix", "GET")
    check("exposed", exposed.get("access-control-expose-headers"), "x-amz-meta-a")
    ask("PUT", {"origin": "foo.put", "content-length": "0"}, 403, "foo.put", "PUT")
    ask("PUT", {"origin": "foo.suffix", "content-length": "0"}, 403, None)
    ask("OPTIONS", {"origin": "foo.suffix"}, 400, None)
    ask("OPTIONS", {"access-control-request-method": "GET"}, 400, None)
    ask("OPTIONS", {"origin": "foo.suffix", "access-control-request-method": "GET"}, 200, "foo.suffix", "GET")
    ask("OPTIONS", {"origin": "foo.suffix", "access-control-request-method": "DELETE"}, 403, None)
    ask(
        "OPTIONS",
        {"origin": "foo.suffix", "access-control-request-method": "GET", "access-control-request-headers": "x-amz-meta-a"},
        403,
        None,
    )
    answer = ask(
        "OPTIONS",
        {"origin": "prefix.x", "access-control-request-method": "GET", "access-control-request-headers": "x-amz-meta-a, x-amz-b"},
        200,
        "prefix.x",
        "GET",
    )
    check(
        "headers",
        (answer.get("access-control-allow-headers"), answer.get("access-control-max-age")),
        ("x-amz-meta-a, x-amz-b", "300"),
    )
    holds("Vary", "origin" in answer.get("vary", "").lower())
    ask(
        "OPTIONS",
        {"origin": "foo.suffix", "access-control-request-method": "GET"},
        200,
        "foo.suffix",
        "GET",
        path=f"/{bucket}/none",
    )
    S3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]})
    ask("GET", {"origin": "any.where"}, 200, "*", "GET")
    call((400, "MalformedXML"), "put_bucket_cors", Bucket=bucket, CORSConfiguration={"CORSRules": []})
    call(
        (400, "InvalidRequest"),
        "put_bucket_cors",
        Bucket=bucket,
        CORSConfiguration={"CORSRules": [{"AllowedMethods": ["HEADER"], "AllowedOrigins": ["*"]}]},
    )


def lifecycle(bucket):
    set_rules = lambda expected, *rules: call(
        expected, "put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)}
    )
    rule = lambda name="r", **more: {
        "ID": name,
        "Status": "Enabled",
        "Filter": {"Prefix": "p/"},
        "Expiration": {"Days": 1},
        **more,
    }
    without = lambda field, **more: {name: value for name, value in rule(**more).items() if name != field}
    set_rules(200, rule())
    check("shown", call(200, "get_bucket_lifecycle_configuration", Bucket=bucket)["Rules"], [rule()])
    set_rules(200, rule("a"), rule("b", Filter={"Prefix": "q/"}, Status="Disabled"))
    set_rules(200, {**without("Filter"), "Prefix": "old/"})
    check("the old form", S3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"][0].get("Prefix"), "old/")
    set_rules(200, without("ID"))
    holds("an ID is made", S3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"][0]["ID"])
    set_rules(200, rule("i" * 255))
    set_rules((400, "InvalidArgument"), rule("i" * 256))
    set_rules((400, "InvalidArgument"), rule("a"), rule("a", Filter={"Prefix": "q/"}))
    for status in ["enabled", "disabled", "invalid"]:
        set_rules((400, "MalformedXML"), rule(Status=status))
    for days in [0, -1]:
        set_rules((400, "InvalidArgument"), rule(Expiration={"Days": days}))
    set_rules((400, "InvalidArgument"), rule(NoncurrentVersionExpiration={"NoncurrentDays": 0}))
    set_rules((400, "InvalidArgument"), rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 0}))
    set_rules((400, "MalformedXML"), rule(Expiration={"Days": 1, "ExpiredObjectDeleteMarker": True}))
    set_rules((400, "MalformedXML"), rule(Expiration={}))
    set_rules((400, "InvalidRequest"), without("Expiration"))
    set_rules(200, rule(Expiration={"Date": "2099-10-01T00:00:00Z"}))
    set_rules((400, "InvalidArgument"), rule(Expiration={"Date": "2099-10-01T12:30:00Z"}))
    set_rules(200, rule(Expiration={"ExpiredObjectDeleteMarker": True}))
    set_rules(200, rule(NoncurrentVersionExpiration={"NoncurrentDays": 2, "NewerNoncurrentVersions": 3}))
    set_rules(200, rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 2}))
    set_rules(200, rule(Filter={"Tag": {"Key": "a", "Value": "b"}}))
    set_rules(
        200,
        rule(
            Filter={
                "And": {"Prefix": "x", "Tags": [{"Key": "a", "Value": "b"}], "ObjectSizeGreaterThan": 5, "ObjectSizeLessThan": 50}
            }
        ),
    )
    set_rules((400, "InvalidRequest"), rule(Filter={"And": {"ObjectSizeGreaterThan": 50, "ObjectSizeLessThan": 5}}))
    set_rules(200, rule(Filter={}))
    set_rules((400, "MalformedXML"))
    moves = lambda *list, **more: dict({"Status": "Enabled", "ID": "m", "Filter": {"Prefix": ""}, "Transitions": [*list]}, **more)
    to = lambda days, name: {"Days": days, "StorageClass": name}
    rarely = moves(to(0, "INTELLIGENT_TIERING"), to(30, "STANDARD_IA"), Expiration={"Days": 31})
    rarely["NoncurrentVersionTransitions"] = [{"NoncurrentDays": 3, "StorageClass": "GLACIER_IR", "NewerNoncurrentVersions": 2}]
    set_rules(200, rarely)
    check("transitions", S3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"], [rarely])
    set_rules((400, "InvalidArgument"), moves(to(29, "STANDARD_IA")))
    set_rules((400, "InvalidArgument"), moves(to(-1, "GLACIER_IR")))
    set_rules((400, "InvalidArgument"), moves(to(3, "GLACIER_IR"), Expiration={"Days": 3}))
    set_rules((400, "InvalidRequest"), moves(to(3, "GLACIER_IR"), to(4, "GLACIER_IR")))
    set_rules((400, "MalformedXML"), moves(to(3, "FOO")))
    set_rules((501, "NotImplemented"), moves(to(3, "GLACIER")))
    least = "TransitionDefaultMinimumObjectSize"
    for given, shown in [({}, "all_storage_classes_128K"), *[({least: name}, name) for name in ["varies_by_storage_class", "all_storage_classes_128K"]]]:
        rules = {"Rules": [moves(to(3, "GLACIER_IR"))]}
        answer = call(200, "put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration=rules, **given)
        check("least size, put", answer.get(least), shown)
        check("least size", S3.get_bucket_lifecycle_configuration(Bucket=bucket).get(least), shown)
    wrong = {least: "none"}
    call((400, "InvalidArgument"), "put_bucket_lifecycle_configuration", Bucket=bucket, LifecycleConfiguration=rules, **wrong)
    answers((400, "MalformedXML"), "PUT", f"/{bucket}?lifecycle", {"content-md5": md5(b"<x")}, b"<x")
    call(204, "delete_bucket_lifecycle", Bucket=bucket)
    call((404, "NoSuchLifecycleConfiguration"), "get_bucket_lifecycle_configuration", Bucket=bucket)
    set_rules(
        200,
        rule("days one", Filter={"Prefix": "p/"}),
        rule("tagged", Filter={"Tag": {"Key": "t", "Value": "1"}}, Expiration={"Days": 5}),
    )
    said = S3.put_object(Bucket=bucket, Key="p/k", Body=b"").get("Expiration", "")
    midnight = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=2)).strftime("%a, %d %b %Y 00:00:00 GMT")
    check(
        "x-amz-expiration",
        said,
        f'expiry-date="{midnight}", rule-id="days%20one"' if "%20" in said else f'expiry-date="{midnight}", rule-id="days one"',
    )
    check("of HEAD", S3.head_object(Bucket=bucket, Key="p/k").get("Expiration"), said)
    check("of GET", S3.get_object(Bucket=bucket, Key="p/k").get("Expiration"), said)
    S3.put_object(Bucket=bucket, Key="t", Body=b"", Tagging="t=1")
    holds("by tag", "tagged" in S3.head_object(Bucket=bucket, Key="t").get("Expiration", ""))
    put(bucket, "other")
    check("none", S3.head_object(Bucket=bucket, Key="other").get("Expiration"), None)
    abort = lambda name, days, **more: rule(name, AbortIncompleteMultipartUpload={"DaysAfterInitiation": days}, **more)
    set_rules(200, abort("late", 9), abort("up loads", 2), abort("off", 1, Status="Disabled"))
    midnight = datetime.datetime.now(datetime.timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    expected = (midnight + datetime.timedelta(days=3), "up%20loads")
    for key, expected in [("p/k", expected), ("other", (None, None))]:
        upload = call(200, "create_multipart_upload", Bucket=bucket, Key=key)
        listed = call(200, "list_parts", Bucket=bucket, Key=key, UploadId=upload["UploadId"])
        for answer in [upload, listed]:
            check(f"abortion of {key}", (answer.get("AbortDate"), answer.get("AbortRuleId")), expected)


def encryption_and_website(bucket):
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}]}
    call(200, "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=rules)
    check("default", call(200, "get_bucket_encryption", Bucket=bucket)["ServerSideEncryptionConfiguration"], rules)
    answer = S3.put_object(Bucket=bucket, Key="k", Body=b"x")
    check("encrypted", answer.get("ServerSideEncryption"), "AES256")
    check("said", S3.head_object(Bucket=bucket, Key="k").get("ServerSideEncryption"), "AES256")
    call(204, "delete_bucket_encryption", Bucket=bucket)
    wrong = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "ROT13"}}]}
    call((400, "MalformedXML"), "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=wrong)
    both = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256", "KMSMasterKeyID": "x"}}]}
    call((400, "InvalidArgument"), "put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=both)
    site = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"}}
    call(200, "put_bucket_website", Bucket=bucket, WebsiteConfiguration=site)
    answer = call(200, "get_bucket_website", Bucket=bucket)
    check("site", (answer["IndexDocument"], answer["ErrorDocument"]), (site["IndexDocument"], site["ErrorDocument"]))
    call((400, "InvalidArgument"), "put_bucket_website", Bucket=bucket, WebsiteConfiguration={"IndexDocument": {"Suffix": "a/b"}})
    call(204, "delete_bucket_website", Bucket=bucket)
    target = new_bucket()
    log = {"LoggingEnabled": {"TargetBucket": target, "TargetPrefix": "log/"}}
    call(200, "put_bucket_logging", Bucket=bucket, BucketLoggingStatus=log)
    check("logging", call(200, "get_bucket_logging", Bucket=bucket)["LoggingEnabled"], log["LoggingEnabled"])
    call(
        (400, "InvalidTargetBucketForLogging"),
        "put_bucket_logging",
        Bucket=bucket,
        BucketLoggingStatus={"LoggingEnabled": {"TargetBucket": target + "-x", "TargetPrefix": ""}},
    )
    call(200, "put_bucket_logging", Bucket=bucket, BucketLoggingStatus={})
    holds("no more", "LoggingEnabled" not in S3.get_bucket_logging(Bucket=bucket))
    rule = {"QueueArn": "arn:aws:sqs:us-east-1:terrace:nowhere", "Events": ["s3:ObjectCreated:*"]}
    call(
        (400, "InvalidArgument"),
        "put_bucket_notification_configuration",
        Bucket=bucket,
        NotificationConfiguration={"QueueConfigurations": [rule]},
    )
    call(200, "put_bucket_notification_configuration", Bucket=bucket, NotificationConfiguration={})
    for status in ["Enabled", "Suspended"]:
        call(200, "put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": status})
        check(status, S3.get_bucket_versioning(Bucket=bucket)["Status"], status)
    call((400, "MalformedXML"), "put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Off"})
    call((400, "IllegalVersioningConfigurationException"), "put_bucket_versioning", Bucket=bucket, VersioningConfiguration={})


GROUPS = [tags, tags_of_versions, cors, lifecycle, encryption_and_website]
