// The rival: Debian's LevelDB with its defaults and compression off, driven over pipes.
//
// One process per open database. Requests come on standard input as a line, then binary numbers (64 bits, the machine's
// order); answers go to standard output as "ok" and a count of such numbers, or "error" and why, each on a line, then
// the numbers. Times are taken here, in nanoseconds, so the pipes are not in them.
//
//   program DIR             opens or makes the database in DIR and answers
//   pool BYTES              that many bytes follow: what values are cut from
//   insert N SMALL LARGE    N group numbers follow: puts each group as one batch; answers N times
//   read N SMALL LARGE      N numbers follow, twice the group plus one for the large object; answers N times
//   sync                    makes everything acknowledged durable; answers its time
//   tables                  answers a hash of which tables there are: it stays the same while nothing is compacted
//   (end of input)          closes

#include <leveldb/db.h>
#include <leveldb/options.h>
#include <leveldb/write_batch.h>

#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

std::string pool;

uint64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

void answer(const std::vector<uint64_t>& numbers) {
    std::printf("ok %zu\n", numbers.size());
    if (!numbers.empty()) {
        std::fwrite(numbers.data(), sizeof(uint64_t), numbers.size(), stdout);
    }
    std::fflush(stdout);
}

bool fail(const std::string& why) {
    std::string line = why;
    for (char& character : line) {
        if (character == '\n') character = ' ';
    }
    std::printf("error %s\n", line.c_str());
    std::fflush(stdout);
    return false;
}

bool take(uint64_t count, std::vector<uint64_t>* numbers) {
    if (count > 1u << 20) return fail("too many numbers");
    numbers->resize(count);
    return std::fread(numbers->data(), sizeof(uint64_t), count, stdin) == count || fail("input ended early");
}

std::string key(uint64_t group, bool large) {
    char text[40];
    std::snprintf(text, sizeof text, "image/%012" PRIu64 "/%s", group, large ? "large" : "small");
    return text;
}

uint64_t object(uint64_t group, bool large) { return 2 * group + (large ? 1 : 0); }

// The same bytes as the other engine gets.
std::string value(uint64_t number, size_t length) {
    const uint64_t room = pool.size() - length + 1;
    const uint64_t start = ((number * UINT64_C(0x9e3779b97f4a7c15)) >> 20) % room;
    std::string bytes = pool.substr(start, length);
    std::memcpy(&bytes[0], &number, 8);
    std::memcpy(&bytes[length - 8], &number, 8);
    return bytes;
}

bool insert(leveldb::DB* db, const std::vector<uint64_t>& groups, size_t small, size_t large) {
    std::vector<uint64_t> times;
    for (const uint64_t group : groups) {
        const std::string one = value(object(group, false), small), other = value(object(group, true), large);
        const uint64_t start = now_ns();
        leveldb::WriteBatch batch;
        batch.Put(key(group, false), one);
        batch.Put(key(group, true), other);
        const leveldb::Status status = db->Write(leveldb::WriteOptions(), &batch);
        times.push_back(now_ns() - start);
        if (!status.ok()) return fail(status.ToString());
    }
    answer(times);
    return true;
}

bool read(leveldb::DB* db, const std::vector<uint64_t>& objects, size_t small, size_t large) {
    std::vector<uint64_t> times;
    std::string found;
    for (const uint64_t number : objects) {
        const bool is_large = number & 1;
        const size_t length = is_large ? large : small;
        const uint64_t start = now_ns();
        const leveldb::Status status = db->Get(leveldb::ReadOptions(), key(number / 2, is_large), &found);
        times.push_back(now_ns() - start);
        if (!status.ok()) return fail(status.ToString());
        if (found.size() != length || std::memcmp(&found[0], &number, 8) != 0 ||
            std::memcmp(&found[length - 8], &number, 8) != 0) {
            return fail("object " + std::to_string(number) + " is not the one written");
        }
    }
    answer(times);
    return true;
}

bool serve(leveldb::DB* db, const char* line) {
    uint64_t count = 0, small = 0, large = 0;
    std::vector<uint64_t> numbers;
    if (std::sscanf(line, "pool %" SCNu64, &count) == 1) {
        if (count < 16 || count > UINT64_C(1) << 30) return fail("pool: from 16 bytes to 1 GiB");
        pool.resize(count);
        if (std::fread(&pool[0], 1, count, stdin) != count) return fail("input ended early");
        answer({});
        return true;
    }
    if (std::strcmp(line, "sync\n") == 0) {
        leveldb::WriteOptions options;
        options.sync = true;
        leveldb::WriteBatch nothing;
        const uint64_t start = now_ns();
        const leveldb::Status status = db->Write(options, &nothing);
        if (!status.ok()) return fail(status.ToString());
        answer({now_ns() - start});
        return true;
    }
    if (std::strcmp(line, "tables\n") == 0) {
        std::string tables;
        if (!db->GetProperty("leveldb.sstables", &tables)) return fail("no property leveldb.sstables");
        answer({std::hash<std::string>()(tables)});
        return true;
    }
    const bool is_insert = std::sscanf(line, "insert %" SCNu64 " %" SCNu64 " %" SCNu64, &count, &small, &large) == 3;
    if (!is_insert && std::sscanf(line, "read %" SCNu64 " %" SCNu64 " %" SCNu64, &count, &small, &large) != 3) {
        return fail("unknown request");
    }
    if (small < 8 || large < 8 || small > pool.size() || large > pool.size()) return fail("values do not fit the pool");
    if (!take(count, &numbers)) return false;
    return is_insert ? insert(db, numbers, small, large) : read(db, numbers, small, large);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    leveldb::Options options;
    options.create_if_missing = true;
    options.compression = leveldb::kNoCompression;
    leveldb::DB* opened = nullptr;
    const leveldb::Status status = leveldb::DB::Open(options, argv[1], &opened);
    const std::unique_ptr<leveldb::DB> db(opened);
    if (!status.ok()) {
        fail(status.ToString());
        return 1;
    }
    answer({});
    char line[256];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        if (!serve(db.get(), line)) return 1;
    }
    return 0;
}
