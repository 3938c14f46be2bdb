// LevelDB behind rival.h.
//
// A null pointer for the table's caller never meets an exception: LevelDB throws none, and running out of memory ends the program.

#include "rival.h"

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/options.h>
#include <leveldb/write_batch.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

namespace {

// Memtables: one that is filled and one that is written.
constexpr size_t memtable_bytes_max = 64u << 20;

struct Database {
    std::unique_ptr<leveldb::Cache> cache;
    std::unique_ptr<const leveldb::FilterPolicy> filter;
    std::unique_ptr<leveldb::DB> db;  // goes first: it uses the other two
};

void complain(rival_why why, const std::string& text) {
    if (why.length == 0) return;
    const size_t length = std::min(why.length - 1, text.size());
    std::memcpy(why.text, text.data(), length);
    why.text[length] = 0;
}

int outcome(const leveldb::Status& status, rival_why why) {
    if (status.ok()) return 0;
    complain(why, status.ToString());
    return -1;
}

leveldb::Slice slice(rival_bytes bytes) { return {static_cast<const char*>(bytes.data), bytes.length}; }

rival_bytes bytes(const leveldb::Slice& slice) { return {slice.data(), slice.size()}; }

leveldb::DB& db(void* rival) { return *static_cast<Database*>(rival)->db; }

leveldb::WriteOptions writing(int sync) {
    leveldb::WriteOptions options;
    options.sync = sync != 0;
    return options;
}

void* open(const rival_open* open, rival_why why) {
    auto database = std::make_unique<Database>();
    leveldb::Options options;
    options.create_if_missing = true;
    options.compression = leveldb::kNoCompression;
    if (open->cache_bytes > 0) {
        options.write_buffer_size = std::min<size_t>(std::max<size_t>(open->cache_bytes / 8, 4u << 20), memtable_bytes_max);
        database->cache.reset(
            leveldb::NewLRUCache(open->cache_bytes - std::min<size_t>(open->cache_bytes, 2 * options.write_buffer_size)));
        database->filter.reset(leveldb::NewBloomFilterPolicy(10));
        options.block_cache = database->cache.get();
        options.filter_policy = database->filter.get();
    }
    leveldb::DB* opened = nullptr;
    const leveldb::Status status = leveldb::DB::Open(options, open->directory, &opened);
    database->db.reset(opened);
    return outcome(status, why) == 0 ? database.release() : nullptr;
}

int put(void* rival, const rival_bytes* keys, const rival_bytes* values, size_t count, int sync, rival_why why) {
    leveldb::WriteBatch batch;
    for (size_t at = 0; at < count; ++at) batch.Put(slice(keys[at]), slice(values[at]));
    return outcome(db(rival).Write(writing(sync), &batch), why);
}

int get(void* rival, rival_bytes key, rival_take take, void* sink, rival_why why) {
    thread_local std::string found;
    const leveldb::Status status = db(rival).Get(leveldb::ReadOptions(), slice(key), &found);
    if (status.IsNotFound()) return 0;
    if (outcome(status, why) != 0) return -1;
    take(sink, {nullptr, 0}, bytes(found));
    return 1;
}

int remove(void* rival, rival_bytes key, int sync, rival_why why) {
    return outcome(db(rival).Delete(writing(sync), slice(key)), why);
}

int scan(void* rival, rival_bytes from, size_t count, rival_take take, void* sink, rival_why why) {
    const std::unique_ptr<leveldb::Iterator> at(db(rival).NewIterator(leveldb::ReadOptions()));
    for (at->Seek(slice(from)); count > 0 && at->Valid(); at->Next(), --count) take(sink, bytes(at->key()), bytes(at->value()));
    return outcome(at->status(), why);
}

int sync(void* rival, rival_why why) {
    leveldb::WriteBatch nothing;
    return outcome(db(rival).Write(writing(1), &nothing), why);
}

int close(void* rival, rival_why) {
    delete static_cast<Database*>(rival);
    return 0;
}

}  // namespace

extern "C" const rival_calls rival_leveldb;
const rival_calls rival_leveldb = {open, put, get, remove, scan, sync, close};
