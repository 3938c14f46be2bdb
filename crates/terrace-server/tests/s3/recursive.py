"""Many keys, and their recursive deletion as clients like mc do it.

    recursive.py ENDPOINT ACCESS_KEY SECRET_KEY fill BUCKET [no-folders]    makes a bucket with many keys
    recursive.py ENDPOINT ACCESS_KEY SECRET_KEY delete                      makes and empties buckets itself, with versions and without

Ends with 1 if not all keys are found, or some are left.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config

ENDPOINT, ACCESS_KEY, SECRET_KEY, DO = sys.argv[1:5]
KEYS = 2300
PAGE = 1000
s3 = boto3.client("s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
                  region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, max_pool_connections=8))


def names():
    """Keys that clients get wrong: deep, with what must be escaped, beyond the basic plane, and folders as objects."""
    deep = "/".join(f"d{level}" for level in range(60))
    for number in range(KEYS):
        # rclone leaves objects alone that look like folders and are not empty.
        folder = "" if "no-folders" in sys.argv else "/"
        yield [f"flat-{number:05}", f"{deep}/{number}", f"ünï/日本/{number} & +%2F\"'<>.txt", f"😀/é{number}{folder}",
               f"photos/{number % 40}/{number % 7}/{number}.jpg", f"a b/{'x' * 200}/{number}"][number % 6]


def fill(bucket):
    s3.create_bucket(Bucket=bucket)
    keys = sorted(set(names()))
    assert len(keys) == KEYS
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.put_object(Bucket=bucket, Key=key, Body=key.encode()), keys))
    return keys


def delete(bucket, entries):
    """In batches as large as there may be."""
    for start in range(0, len(entries), PAGE):
        objects = [{name: entry[name] for name in ("Key", "VersionId") if name in entry}
                   for entry in entries[start:start + PAGE]]
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        assert "Errors" not in answer, answer["Errors"][:3]


def listed(bucket):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [entry for page in pages for entry in page.get("Contents", [])]


def versions(bucket):
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
    return [entry for page in pages for entry in page.get("Versions", []) + page.get("DeleteMarkers", [])]


def keys_of(entries):
    return sorted(entry["Key"] for entry in entries)


def plain():
    keys = fill("plain-many")
    found = listed("plain-many")
    assert keys_of(found) == keys
    assert [entry["Key"] for entry in found] == sorted(keys, key=lambda key: key.encode())
    # While it lists, as a client does that deletes page by page.
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket="plain-many", Prefix="photos/"):
        delete("plain-many", page.get("Contents", []))
    assert keys_of(listed("plain-many")) == [key for key in keys if not key.startswith("photos/")]
    delete("plain-many", listed("plain-many"))
    assert listed("plain-many") == []
    s3.delete_bucket(Bucket="plain-many")


def versioned():
    keys = fill("versioned-many")
    s3.put_bucket_versioning(Bucket="versioned-many", VersioningConfiguration={"Status": "Enabled"})
    for key in keys[::3]:
        s3.put_object(Bucket="versioned-many", Key=key, Body=b"second")
    delete("versioned-many", [{"Key": key} for key in keys])
    assert listed("versioned-many") == []
    found = versions("versioned-many")
    assert keys_of(found) == sorted(keys + keys + keys[::3]), "each has its first version and a marker, a third one more"
    delete("versioned-many", found)
    assert versions("versioned-many") == []
    s3.delete_bucket(Bucket="versioned-many")


if DO == "fill":
    fill(sys.argv[5])
else:
    plain()
    versioned()
