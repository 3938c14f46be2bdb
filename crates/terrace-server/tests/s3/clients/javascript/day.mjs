// An ordinary day of the JavaScript SDK, version 3. Run by ../../run.
import { strict as assert } from "node:assert";
import { randomBytes } from "node:crypto";
import { Readable } from "node:stream";
import {
  CopyObjectCommand, CreateBucketCommand, DeleteBucketCommand, DeleteObjectsCommand, GetObjectCommand,
  HeadObjectCommand, PutObjectCommand, S3Client, paginateListObjectsV2,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";

const Bucket = "javascript-bucket";
const s3 = new S3Client({ endpoint: process.argv[2], region: "us-east-1", forcePathStyle: true });
const read = async (Key, more = {}) => {
  const answer = await s3.send(new GetObjectCommand({ Bucket, Key, ...more }));
  return Buffer.from(await answer.Body.transformToByteArray());
};

await s3.send(new CreateBucketCommand({ Bucket }));

const value = randomBytes(300_000);
const Key = "päge & more+.bin";
await s3.send(new PutObjectCommand({ Bucket, Key, Body: value, ContentType: "image/x-test", Metadata: { colour: "red" } }));
assert.deepEqual(await read(Key), value);
assert.deepEqual(await read(Key, { Range: "bytes=1000-1999" }), value.subarray(1000, 2000));
const head = await s3.send(new HeadObjectCommand({ Bucket, Key }));
assert.equal(head.ContentLength, value.length);
assert.equal(head.Metadata.colour, "red");
await assert.rejects(s3.send(new PutObjectCommand({ Bucket, Key, Body: "other", IfNoneMatch: "*" })), { name: "PreconditionFailed" });
await assert.rejects(read("absent"), { name: "NoSuchKey" });

// A stream of unknown length goes in signed chunks with a trailing checksum, or in parts.
const large = randomBytes(11 << 20);
await new Upload({ client: s3, params: { Bucket, Key: "large", Body: Readable.from([large.subarray(0, 6 << 20), large.subarray(6 << 20)]) } }).done();
assert.deepEqual(await read("large"), large);
await s3.send(new CopyObjectCommand({ Bucket, Key: "copy", CopySource: `${Bucket}/large` }));
assert.deepEqual(await read("copy"), large);

const answer = await fetch(await getSignedUrl(s3, new GetObjectCommand({ Bucket, Key: "copy" }), { expiresIn: 60 }));
assert.deepEqual(Buffer.from(await answer.arrayBuffer()), large);
const sent = await fetch(await getSignedUrl(s3, new PutObjectCommand({ Bucket, Key: "presigned" }), { expiresIn: 60 }), { method: "PUT", body: "by a link" });
assert.equal(sent.status, 200);
assert.equal((await read("presigned")).toString(), "by a link");
// Headers x-amz-... that are presigned are in the query.
const more = { ACL: "public-read", Metadata: { colour: "blue" }, Tagging: "a=b", StorageClass: "STANDARD_IA", ContentType: "image/x-test" };
const open = await getSignedUrl(s3, new PutObjectCommand({ Bucket, Key: "presigned", ...more }), { expiresIn: 60 });
assert.match(open, /[?&]x-amz-acl=public-read&/);
assert.equal((await fetch(open, { method: "PUT", body: "to all", headers: { "content-type": "image/x-test" } })).status, 200);
assert.equal(await (await fetch(open.split("?")[0])).text(), "to all");
const shown = await s3.send(new HeadObjectCommand({ Bucket, Key: "presigned" }));
assert.deepEqual([shown.Metadata.colour, shown.TagCount, shown.StorageClass, shown.ContentType], ["blue", 1, "STANDARD_IA", "image/x-test"]);

for (let n = 0; n < 25; n++) {
  await s3.send(new PutObjectCommand({ Bucket, Key: `list/${n % 5}/${n}`, Body: `${n}` }));
}
const keys = [];
for await (const page of paginateListObjectsV2({ client: s3, pageSize: 4 }, { Bucket })) {
  keys.push(...page.Contents.map((object) => ({ Key: object.Key })));
}
assert.equal(keys.length, 29);
const deleted = await s3.send(new DeleteObjectsCommand({ Bucket, Delete: { Objects: keys } }));
assert.equal(deleted.Deleted.length, 29);
await s3.send(new DeleteBucketCommand({ Bucket }));
console.log("the JavaScript SDK is content");
