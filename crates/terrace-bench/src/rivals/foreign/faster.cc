// FASTER behind rival.h: the hybrid log and the hash index, without checkpoints.
//
// FASTER is a header-only library that is in no distribution; build.rs has its directory. Keys and
// values have any length, so both are stored with it. A value that is not longer than the one that
// is there is overwritten in place while it is in the mutable part of the log, which is what makes
// FASTER fast; readers detect it by a version, as in FASTER's own examples.
//
// Epochs advance only if all threads that have a session take part, so a thread must not rest with
// one. Threads of the bench end with their step, and their session with them. The thread that
// opened the store waits for them, so it takes part during calls only.

#include "rival.h"

#include <core/faster.h>
#include <device/file_system_disk.h>
#include <environment/file.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace {

using namespace FASTER::core;

// The log's memory is in pages of this size, of which at least four are not mutable and two are.
constexpr uint64_t page_bytes = 32u << 20;
constexpr uint64_t immutable_pages = 4;
constexpr uint64_t pages_min = immutable_pages + 2;
// A bucket is a cache line with seven entries.
constexpr uint64_t bucket_bytes = 64;
constexpr uint64_t objects_per_bucket = 4;
// FASTER asks for a refresh from time to time.
constexpr uint64_t refresh_interval = 256;

// A key in the log; its bytes follow.
class Key {
  public:
    explicit Key(uint32_t length) : length_(length) {}
    uint32_t size() const { return static_cast<uint32_t>(sizeof(Key)) + length_; }
    KeyHash GetHash() const { return KeyHash(Utility::Hash8BitBytes(bytes(), length_)); }
    bool operator==(const Key& other) const { return length_ == other.length_ && std::memcmp(bytes(), other.bytes(), length_) == 0; }
    bool operator!=(const Key& other) const { return !(*this == other); }
    uint32_t length() const { return length_; }
    const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(this + 1); }

  private:
    uint32_t length_;
};

// A caller's key.
class Asked {
  public:
    explicit Asked(rival_bytes key) : data_(static_cast<const uint8_t*>(key.data)), length_(static_cast<uint32_t>(key.length)) {}
    uint32_t size() const { return static_cast<uint32_t>(sizeof(Key)) + length_; }
    KeyHash GetHash() const { return KeyHash(Utility::Hash8BitBytes(data_, length_)); }
    bool operator==(const Key& other) const { return length_ == other.length() && std::memcmp(data_, other.bytes(), length_) == 0; }
    bool operator!=(const Key& other) const { return !(*this == other); }
    void write_deep_key_at(Key* to) const {
        new (to) Key(length_);
        std::memcpy(reinterpret_cast<uint8_t*>(to + 1), data_, length_);
    }

  private:
    const uint8_t* data_;
    uint32_t length_;
};

// A value in the log; its bytes follow.
class Value {
  public:
    uint32_t size() const { return static_cast<uint32_t>(sizeof(Value)) + room_; }

    void begin(const rival_bytes& value) {
        version_.store(0);
        room_ = static_cast<uint32_t>(value.length);
        set(value);
    }

    // Overwrites in place. False if that cannot be: the value is longer, or was replaced.
    bool replace(const rival_bytes& value) {
        uint64_t version = version_.load();
        do {
            while ((version & locked) != 0) {
                std::this_thread::yield();
                version = version_.load();
            }
            if ((version & replaced) != 0) return false;
        } while (!version_.compare_exchange_weak(version, version | locked));
        const bool fits = value.length <= room_;
        if (fits) set(value);
        version_.store((version + step) | (fits ? 0 : replaced));
        return fits;
    }

    void read(std::string& into) const { into.assign(bytes(), length_); }

    // While others may overwrite it.
    void read_shared(std::string& into) const {
        for (;;) {
            const uint64_t before = version_.load();
            if ((before & locked) == 0) {
                into.assign(bytes(), std::min(length_, room_));
                std::atomic_thread_fence(std::memory_order_acquire);
                // A replaced value is still the one that was read.
                if (((version_.load() ^ before) & ~replaced) == 0) return;
            }
            std::this_thread::yield();
        }
    }

  private:
    static constexpr uint64_t locked = 1;
    static constexpr uint64_t replaced = 2;
    static constexpr uint64_t step = 4;

    const char* bytes() const { return reinterpret_cast<const char*>(this + 1); }
    void set(const rival_bytes& value) {
        length_ = static_cast<uint32_t>(value.length);
        std::memcpy(reinterpret_cast<uint8_t*>(this + 1), value.data, value.length);
    }

    std::atomic<uint64_t> version_;
    uint32_t room_;
    uint32_t length_;
};

// What all contexts have. Calls wait for their end, so a copy may refer to the caller's key.
class Context : public IAsyncContext {
  public:
    using key_t = Key;
    using value_t = Value;
    explicit Context(rival_bytes key) : key_(key) {}
    const Asked& key() const { return key_; }

  private:
    Asked key_;
};

class ReadContext : public Context {
  public:
    ReadContext(rival_bytes key, std::string* found, Status* status) : Context(key), found_(found), status_(status) {}
    void Get(const Value& value) { value.read(*found_); }
    void GetAtomic(const Value& value) { value.read_shared(*found_); }
    void ended(Status status) { *status_ = status; }

  protected:
    Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

  private:
    std::string* found_;
    Status* status_;
};

class UpsertContext : public Context {
  public:
    UpsertContext(rival_bytes key, rival_bytes value, Status* status) : Context(key), value_(value), status_(status) {}
    uint32_t value_size() const { return static_cast<uint32_t>(sizeof(Value) + value_.length); }
    void Put(Value& value) { value.begin(value_); }
    bool PutAtomic(Value& value) { return value.replace(value_); }
    void ended(Status status) { *status_ = status; }

  protected:
    Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

  private:
    rival_bytes value_;
    Status* status_;
};

class DeleteContext : public Context {
  public:
    DeleteContext(rival_bytes key, Status* status) : Context(key), status_(status) {}
    uint32_t value_size() const { return static_cast<uint32_t>(sizeof(Value)); }
    void ended(Status status) { *status_ = status; }

  protected:
    Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

  private:
    Status* status_;
};

template <class C>
void ended(IAsyncContext* context, Status status) {
    CallbackContext<C> owned(context);
    owned->ended(status);
}

using Disk = FASTER::device::FileSystemDisk<FASTER::environment::QueueIoHandler, 1u << 30>;
using Kv = FasterKv<Key, Value, Disk>;

struct Store {
    std::unique_ptr<Kv> kv;
    std::thread::id opener;
    uint64_t number;
};

// Stores that are open, by number.
std::mutex opened_lock;
std::set<uint64_t> opened;

// A thread's session.
struct Session {
    Kv* kv = nullptr;
    uint64_t number = 0;
    uint64_t calls = 0;
    // It takes no part in epochs.
    bool rests = false;

    ~Session() { stop(); }

    void stop() {
        const std::lock_guard<std::mutex> guard(opened_lock);
        if (kv != nullptr && !rests && opened.count(number) > 0) kv->StopSession();
        kv = nullptr;
    }

    void rest() {
        kv->StopSession();
        rests = true;
    }

    void start(const Store& store) {
        if (kv != nullptr && number == store.number) {
            // It also ends the rest.
            if (++calls % refresh_interval == 0 || rests) kv->Refresh();
            rests = false;
            return;
        }
        stop();
        kv = store.kv.get();
        number = store.number;
        rests = false;
        kv->StartSession();
    }
};

thread_local Session session;

// Does a call in a session, and waits for its end.
template <class F>
Status in_session(const Store& store, Status& result, F&& call) {
    session.start(store);
    Status status = call(*store.kv, session.calls);
    if (status == Status::Pending) {
        result = Status::Pending;
        while (result == Status::Pending) store.kv->CompletePending(true);
        status = result;
    }
    if (store.opener == std::this_thread::get_id()) session.rest();
    return status;
}

void complain(rival_why why, const std::string& text) {
    if (why.length == 0) return;
    const size_t length = std::min(why.length - 1, text.size());
    std::memcpy(why.text, text.data(), length);
    why.text[length] = 0;
}

int outcome(Status status, rival_why why) {
    if (status == Status::Ok || status == Status::NotFound) return 0;
    complain(why, std::string("FASTER's status ") + std::to_string(static_cast<int>(status)));
    return -1;
}

Store& store(void* rival) { return *static_cast<Store*>(rival); }

void* open(const rival_open* open, rival_why why) {
    static std::atomic<uint64_t> next{1};
    try {
        uint64_t buckets = 1024;
        while (buckets * objects_per_bucket < open->expected_objects) buckets *= 2;
        const uint64_t table_bytes = buckets * bucket_bytes;
        const uint64_t left_bytes = open->cache_bytes - std::min(open->cache_bytes, table_bytes);
        const uint64_t pages = std::max(left_bytes / page_bytes, pages_min);
        const double mutable_part = static_cast<double>(pages - immutable_pages) / static_cast<double>(pages);
        auto store = std::make_unique<Store>();
        // A little more: the product is rounded down.
        store->kv = std::make_unique<Kv>(buckets, pages * page_bytes, open->directory, mutable_part + 1e-9);
        store->opener = std::this_thread::get_id();
        store->number = next++;
        const std::lock_guard<std::mutex> guard(opened_lock);
        opened.insert(store->number);
        return store.release();
    } catch (const std::exception& error) {
        complain(why, error.what());
        return nullptr;
    }
}

int put(void* rival, const rival_bytes* keys, const rival_bytes* values, size_t count, int, rival_why why) {
    for (size_t at = 0; at < count; ++at) {
        Status result = Status::Ok;
        UpsertContext context(keys[at], values[at], &result);
        const Status status = in_session(store(rival), result, [&](Kv& kv, uint64_t serial) {
            return kv.Upsert(context, ended<UpsertContext>, serial);
        });
        if (outcome(status, why) != 0) return -1;
    }
    return 0;
}

int get(void* rival, rival_bytes key, rival_take take, void* sink, rival_why why) {
    thread_local std::string found;
    Status result = Status::Ok;
    ReadContext context(key, &found, &result);
    const Status status = in_session(store(rival), result, [&](Kv& kv, uint64_t serial) {
        return kv.Read(context, ended<ReadContext>, serial);
    });
    if (outcome(status, why) != 0) return -1;
    if (status == Status::NotFound) return 0;
    take(sink, {nullptr, 0}, {found.data(), found.size()});
    return 1;
}

int remove(void* rival, rival_bytes key, int, rival_why why) {
    Status result = Status::Ok;
    DeleteContext context(key, &result);
    const Status status = in_session(store(rival), result, [&](Kv& kv, uint64_t serial) {
        return kv.Delete(context, ended<DeleteContext>, serial);
    });
    return outcome(status, why);
}

int scan(void*, rival_bytes, size_t, rival_take, void*, rival_why why) {
    complain(why, "it has no order");
    return -1;
}

// Nothing is durable without a checkpoint.
int sync(void*, rival_why) { return 0; }

int close(void* rival, rival_why) {
    const std::unique_ptr<Store> closing(&store(rival));
    if (session.number == closing->number) session.stop();
    const std::lock_guard<std::mutex> guard(opened_lock);
    opened.erase(closing->number);
    return 0;
}

}  // namespace

extern "C" const rival_calls rival_faster;
const rival_calls rival_faster = {open, put, get, remove, scan, sync, close};
