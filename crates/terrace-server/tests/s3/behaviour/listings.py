"""Listings of objects, in both versions, of versions and of buckets."""

from common import *

DELIMITERS = {
    "/": ("foo/bar", "foo/", "quux"),
    "a": ("bar", "ba", "cob"),
    "%": ("b%ar", "b%", "foo"),
    " ": ("b ar", "b ", "foo"),
    ".": ("b.ar", "b.", "foo"),
    "\n": ("b\nar", "b\n", "foo"),
    "//": ("a//b", "a//", "a/b"),
    "ü": ("xüy", "xü", "z"),
}


def delimiters(bucket):
    for delimiter, (rolled, prefix, plain) in DELIMITERS.items():
        S3.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": key} for key in (keys(S3.list_objects_v2(Bucket=bucket)) or ["-"])]}
        )
        put(bucket, rolled, plain)
        for name in ["list_objects", "list_objects_v2"]:
            answer = call(200, name, Bucket=bucket, Delimiter=delimiter)
            check(f"{name} {delimiter!r} echoed", answer["Delimiter"], delimiter)
            check(f"{name} {delimiter!r} keys", keys(answer), [plain])
            check(f"{name} {delimiter!r} prefixes", prefixes(answer), [prefix])
        check(f"{delimiter!r} counted", S3.list_objects_v2(Bucket=bucket, Delimiter=delimiter)["KeyCount"], 2)
    for name in ["list_objects", "list_objects_v2"]:
        answer = call(200, name, Bucket=bucket, Delimiter="")
        check(f"{name} empty delimiter", ("Delimiter" in answer, keys(answer), prefixes(answer)), (False, ["xüy", "z"], []))
        answer = call(200, name, Bucket=bucket, Delimiter="#")
        check(f"{name} delimiter that no key has", (keys(answer), prefixes(answer)), (["xüy", "z"], []))


def prefixes_and_pages(bucket):
    put(bucket, "asdf", "boo/bar", "boo/baz/xyzzy", "cquux/bla", "cquux/thud")
    pages = lambda pages: [(page_keys, page_prefixes) for page_keys, page_prefixes in pages]
    for limit, prefix, expected in [
        (1, "", [(["asdf"], []), ([], ["boo/"]), ([], ["cquux/"])]),
        (2, "", [(["asdf"], ["boo/"]), ([], ["cquux/"])]),
        (1, "boo/", [(["boo/bar"], []), ([], ["boo/baz/"])]),
        (2, "boo/", [(["boo/bar"], ["boo/baz/"])]),
        (3, "", [(["asdf"], ["boo/", "cquux/"])]),
    ]:
        found, marker = [], ""
        while True:
            answer = S3.list_objects(Bucket=bucket, Delimiter="/", Prefix=prefix, MaxKeys=limit, Marker=marker)
            found.append((keys(answer), prefixes(answer)))
            if not answer["IsTruncated"]:
                holds("no NextMarker at the end", "NextMarker" not in answer)
                break
            marker = answer["NextMarker"]
            check("NextMarker is the last shown", marker, (keys(answer) + prefixes(answer))[-1])
        check(f"pages of {limit} below {prefix!r}", found, pages(expected))
        found, more = [], {}
        while True:
            answer = S3.list_objects_v2(Bucket=bucket, Delimiter="/", Prefix=prefix, MaxKeys=limit, **more)
            found.append((keys(answer), prefixes(answer)))
            check("KeyCount", answer["KeyCount"], len(keys(answer)) + len(prefixes(answer)))
            if not answer["IsTruncated"]:
                holds("no NextContinuationToken at the end", "NextContinuationToken" not in answer)
                break
            more = {"ContinuationToken": answer["NextContinuationToken"]}
        check(f"pages v2 of {limit} below {prefix!r}", found, pages(expected))
    answer = S3.list_objects(Bucket=bucket, MaxKeys=2)
    holds("v1 without a delimiter has no NextMarker", answer["IsTruncated"] and "NextMarker" not in answer)
    for prefix, expected in [
        ("boo/b", ["boo/bar", "boo/baz/xyzzy"]),
        ("", 5),
        ("none", []),
        ("\n", []),
        ("boo/bar", ["boo/bar"]),
    ]:
        for name in ["list_objects", "list_objects_v2"]:
            answer = call(200, name, Bucket=bucket, Prefix=prefix)
            # Of the first version boto3 decodes all but this.
            check(f"{name} prefix {prefix!r} echoed", urllib.parse.unquote(answer["Prefix"]), prefix)
            found = keys(answer)
            check(f"{name} prefix {prefix!r}", len(found) if expected == 5 else found, expected)
    put(bucket, "folder/")
    answer = S3.list_objects_v2(Bucket=bucket, Prefix="folder/", Delimiter="/")
    check("a key that ends with the delimiter", (keys(answer), prefixes(answer)), (["folder/"], []))
    answer = S3.list_objects_v2(Bucket=bucket, Prefix="boo/b", Delimiter="a")
    check("a prefix that ends before the delimiter", (keys(answer), prefixes(answer)), ([], ["boo/ba"]))
    answer = S3.list_objects_v2(Bucket=bucket, Prefix="nothing", Delimiter="/")
    check("a prefix without keys", (keys(answer), prefixes(answer)), ([], []))


def markers(bucket):
    names = ["bar", "baz", "foo", "quxx"]
    put(bucket, *names)
    for marker, expected in [("", names), ("bar", names[1:]), ("blah", names[2:]), ("zzz", []), ("\n", names), ("quxx", [])]:
        answer = call(200, "list_objects", Bucket=bucket, Marker=marker)
        check(f"marker {marker!r}", (answer["Marker"], answer["IsTruncated"], keys(answer)), (marker, False, expected))
        answer = call(200, "list_objects_v2", Bucket=bucket, StartAfter=marker)
        check(
            f"start-after {marker!r}",
            (answer.get("StartAfter", ""), answer["IsTruncated"], keys(answer)),
            (marker, False, expected),
        )
    answer = call(200, "list_objects", Bucket=bucket)
    check("without a marker", (answer["Marker"], answer["MaxKeys"], answer["Name"]), ("", 1000, bucket))
    holds("v2 says no StartAfter", "StartAfter" not in call(200, "list_objects_v2", Bucket=bucket))
    first = call(200, "list_objects_v2", Bucket=bucket, MaxKeys=1)
    token = first["NextContinuationToken"]
    both = call(200, "list_objects_v2", Bucket=bucket, ContinuationToken=token, StartAfter="foo")
    check("the token goes before start-after", (keys(both), both["ContinuationToken"]), (names[1:], token))
    call((400, "InvalidArgument"), "list_objects_v2", Bucket=bucket, ContinuationToken="no token")
    for limit, count, more in [(0, 0, False), (1, 1, True), (4, 4, False), (5000, 4, False)]:
        for name in ["list_objects", "list_objects_v2"]:
            answer = call(200, name, Bucket=bucket, MaxKeys=limit)
            found = (len(keys(answer)), answer["IsTruncated"], answer["MaxKeys"])
            check(f"{name} of {limit}", found, (count, more, min(limit, 1000)))
    for path in [
        f"/{bucket}?max-keys=x",
        f"/{bucket}?list-type=2&max-keys=x",
        f"/{bucket}?versions&max-keys=x",
        f"/{bucket}?max-keys=-5",
        f"/{bucket}?max-keys=99999999999999",
        f"/{bucket}?uploads&max-uploads=x",
    ]:
        answers((400, "InvalidArgument"), "GET", path)
    answers((400, "InvalidArgument"), "GET", f"/{bucket}?list-type=2&encoding-type=gzip")
    answers((400, "InvalidArgument"), "GET", f"/{bucket}?versions&version-id-marker=x")


def what_listings_say(bucket):
    S3.put_object(Bucket=bucket, Key="k", Body=b"content")
    head = S3.head_object(Bucket=bucket, Key="k")
    for name in ["list_objects", "list_objects_v2"]:
        entry = call(200, name, Bucket=bucket)["Contents"][0]
        check(name, (entry["ETag"], entry["Size"], entry["StorageClass"]), (head["ETag"], 7, "STANDARD"))
        check(f"{name} time", abs((entry["LastModified"] - head["LastModified"]).total_seconds()) < 1, True)
        check(f"{name} owner", entry.get("Owner", {}).get("ID"), OWNER_ID if name == "list_objects" else None)
    for fetch, expected in [(True, OWNER_ID), (False, None)]:
        entry = S3.list_objects_v2(Bucket=bucket, FetchOwner=fetch)["Contents"][0]
        check(f"fetch-owner {fetch}", entry.get("Owner", {}).get("ID"), expected)
    version = S3.list_object_versions(Bucket=bucket)["Versions"][0]
    check(
        "a version",
        (version["VersionId"], version["IsLatest"], version["Owner"]["ID"], version["Size"], version["ETag"]),
        ("null", True, OWNER_ID, 7, head["ETag"]),
    )
    S3.put_object(Bucket=bucket, Key="k", Body=b"", ChecksumAlgorithm="SHA256")
    entry = S3.list_objects_v2(Bucket=bucket)["Contents"][0]
    check("checksum", (entry.get("ChecksumAlgorithm"), entry.get("ChecksumType")), (["SHA256"], "FULL_OBJECT"))
    for path in [f"/{bucket}", f"/{bucket}?list-type=2", f"/{bucket}?versions", f"/{bucket}?uploads", "/"]:
        answer = send("GET", path)
        check(f"type of {path}", answer[2]["content-type"], "application/xml")
        holds(f"namespace of {path}", b'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"' in answer[3])
    holds("region", send("HEAD", f"/{bucket}")[2]["x-amz-bucket-region"] == "us-east-1")
    check(
        "milliseconds",
        bool(re.search(rb"<LastModified>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z<", send("GET", f"/{bucket}")[3])),
        True,
    )


def encodings(bucket):
    names = ["asdf+b", "foo+1/bar", "foo/bar/xyzzy", "quux ab/thud", "ü&<>\"'%", "_ _", "__", "tab\tx", "$", "$#", "~.-_*!()"]
    put(bucket, *names)
    expected = sorted(names, key=lambda name: name.encode())
    for name in ["list_objects", "list_objects_v2"]:
        check(f"{name} decoded", keys(call(200, name, Bucket=bucket)), expected)
    answer = call(200, "list_objects_v2", Bucket=bucket, Delimiter="/", EncodingType="url")
    check("EncodingType", answer["EncodingType"], "url")
    found = {urllib.parse.unquote_plus(key) for key in keys(answer)}
    check("encoded keys", found, {name for name in names if "/" not in name})
    holds("a plus is encoded", "asdf%2Bb" in keys(answer) and "foo%2B1/" in prefixes(answer))
    holds("umlaut", any(key.startswith("%C3%BC%26%3C%3E") for key in keys(answer)))
    answer = call(200, "list_objects", Bucket=bucket, Prefix="foo+", EncodingType="url")
    check("an encoded prefix", (answer["Prefix"], keys(answer)), ("foo%2B", ["foo%2B1/bar"]))
    answer = call(200, "list_objects", Bucket=bucket, Marker="foo+1/bar", EncodingType="url", MaxKeys=1, Delimiter="/")
    check("an encoded marker", (answer["Marker"], answer.get("NextMarker")), ("foo%2B1/bar", "foo/"))
    answer = call(200, "list_object_versions", Bucket=bucket, Prefix="quux ab", EncodingType="url")
    check("encoded versions", answer["Versions"][0]["Key"] in ("quux%20ab/thud", "quux+ab/thud"), True)
    for name in names:
        check(f"key {name!r}", body(call(200, "get_object", Bucket=bucket, Key=name)), b"x")
    many = {"Objects": [{"Key": name} for name in names]}
    check("deleted", sorted(entry["Key"] for entry in S3.delete_objects(Bucket=bucket, Delete=many)["Deleted"]), sorted(names))
    check("nothing left", keys(S3.list_objects_v2(Bucket=bucket)), [])


def anonymous_listings(bucket):
    for name in ["list_objects", "list_objects_v2"]:
        call((403, "AccessDenied"), name, who=ANYBODY, Bucket=bucket)
        call((403, "AccessDenied"), name, who=OTHER, Bucket=bucket)
    S3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    put(bucket, "k")
    for who in [ANYBODY, OTHER]:
        check("public-read", keys(call(200, "list_objects", who=who, Bucket=bucket)), ["k"])
        check("public-read v2", keys(call(200, "list_objects_v2", who=who, Bucket=bucket)), ["k"])
        call((403, "AccessDenied"), "put_object", who=who, Bucket=bucket, Key="k2", Body=b"")
        call((403, "AccessDenied"), "get_object", who=who, Bucket=bucket, Key="k")
    answers((403, "AccessDenied"), "GET", "/", signed=False)


def versions(bucket):
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    ids = [
        S3.put_object(Bucket=bucket, Key=key, Body=content)["VersionId"]
        for key, content in [("a", b"1"), ("a", b"22"), ("b/c", b"3"), ("b/d", b"4")]
    ]
    marker = S3.delete_object(Bucket=bucket, Key="a")
    check("marker", (marker["DeleteMarker"], "VersionId" in marker), (True, True))
    answer = S3.list_object_versions(Bucket=bucket)
    check(
        "versions",
        [(entry["Key"], entry["VersionId"], entry["IsLatest"]) for entry in answer["Versions"]],
        [("a", ids[1], False), ("a", ids[0], False), ("b/c", ids[2], True), ("b/d", ids[3], True)],
    )
    check(
        "markers",
        [(entry["Key"], entry["IsLatest"], entry["Owner"]["ID"]) for entry in answer["DeleteMarkers"]],
        [("a", True, OWNER_ID)],
    )
    answer = S3.list_object_versions(Bucket=bucket, Delimiter="/")
    check("rolled up", (len(answer["Versions"]), prefixes(answer)), (2, ["b/"]))
    answer = S3.list_object_versions(Bucket=bucket, Prefix="b/", MaxKeys=1)
    check("a page", (answer["IsTruncated"], answer["NextKeyMarker"], answer["NextVersionIdMarker"]), (True, "b/c", ids[2]))
    answer = S3.list_object_versions(Bucket=bucket, KeyMarker="a")
    check("key marker", [entry["Key"] for entry in answer["Versions"]], ["b/c", "b/d"])
    answer = S3.list_object_versions(Bucket=bucket, KeyMarker="a", VersionIdMarker=ids[1])
    check("both markers", [entry["VersionId"] for entry in answer["Versions"]], [ids[0], ids[2], ids[3]])
    answers((400, "InvalidArgument"), "GET", f"/{bucket}?versions&version-id-marker={ids[0]}")
    check("current ones", keys(S3.list_objects_v2(Bucket=bucket)), ["b/c", "b/d"])


def buckets(bucket):
    answer = call(200, "list_buckets")
    entry = [entry for entry in answer["Buckets"] if entry["Name"] == bucket]
    check("listed once", len(entry), 1)
    holds("owner", answer["Owner"]["ID"] == OWNER_ID and answer["Owner"].get("DisplayName"))
    holds("order", [entry["Name"] for entry in answer["Buckets"]] == sorted(entry["Name"] for entry in answer["Buckets"]))
    holds("not of others", bucket not in [entry["Name"] for entry in OTHER.list_buckets()["Buckets"]])
    more = [new_bucket() for _ in range(3)]
    found, token = [], {}
    while True:
        answer = S3.list_buckets(MaxBuckets=2, **token)
        holds("a page at most", len(answer["Buckets"]) <= 2)
        found += [entry["Name"] for entry in answer["Buckets"]]
        if "ContinuationToken" not in answer:
            break
        token = {"ContinuationToken": answer["ContinuationToken"]}
    holds("all pages", found == sorted(found) and {bucket, *more} <= set(found))
    answer = S3.list_buckets(Prefix=bucket[:10])
    check("prefix", (answer["Prefix"], [entry["Name"] for entry in answer["Buckets"]]), (bucket[:10], [bucket]))
    check("region", S3.list_buckets(MaxBuckets=1, BucketRegion="us-east-1")["Buckets"][0].get("BucketRegion"), "us-east-1")
    for wrong in ["max-buckets=0", "max-buckets=10001", "max-buckets=x", "max-buckets=-1"]:
        answers((400, "InvalidArgument"), "GET", f"/?{wrong}")


GROUPS = [delimiters, prefixes_and_pages, markers, what_listings_say, encodings, anonymous_listings, versions, buckets]
