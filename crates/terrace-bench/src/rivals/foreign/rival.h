// What a shim offers: the calls of one engine, in a table. mod.rs has the same table in Rust; a change here is one there.
//
// A call that fails returns -1 and says why in `why`, which has `why_bytes` bytes and is ended by a zero. Calls may be made from
// several threads at once, but for close, which is the last one. Nothing that a shim allocates leaves it: what is found is given to
// `take`, which copies it.

#ifndef TERRACE_BENCH_RIVAL_H
#define TERRACE_BENCH_RIVAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes that belong to the caller.
struct rival_bytes {
    const void *data;
    size_t length;
};

// Where to complain.
struct rival_why {
    char *text;
    size_t length;
};

// What is stored, and how much RAM the engine's caches may have: 0 leaves LevelDB's settings as they are. An expectation of 0
// is none.
struct rival_open {
    const char *directory;
    uint64_t cache_bytes;
    uint64_t expected_objects;
    uint64_t expected_object_bytes;
};

// Takes what was found. For a get the key is empty.
typedef void (*rival_take)(void *sink, struct rival_bytes key, struct rival_bytes value);

struct rival_calls {
    // The open database, or a null pointer.
    void *(*open)(const struct rival_open *open, struct rival_why why);
    // Puts these pairs in this order, as one batch where the engine has batches; with `sync` all writes so far are on the device then.
    int (*put)(void *rival, const struct rival_bytes *keys, const struct rival_bytes *values, size_t count, int sync,
               struct rival_why why);
    // 1 if the key is there, and its value was taken; 0 if not.
    int (*get)(void *rival, struct rival_bytes key, rival_take take, void *sink, struct rival_why why);
    // Whether or not the key is there.
    int (*remove)(void *rival, struct rival_bytes key, int sync, struct rival_why why);
    // At most so many pairs from this key on, in the order of the keys.
    int (*scan)(void *rival, struct rival_bytes from, size_t count, rival_take take, void *sink, struct rival_why why);
    // Has everything that was written on the device.
    int (*sync)(void *rival, struct rival_why why);
    // Closes, also if it returns -1.
    int (*close)(void *rival, struct rival_why why);
};

#ifdef __cplusplus
}
#endif

#endif
