// Berkeley DB behind rival.h: a hash table in the concurrent data store, where one writes and many read.
//
// The concurrent data store has no log: nothing is kept of a process that dies but what was synced, and a sync writes every
// changed page. The environment is private, so nothing of it stays either.

#include "rival.h"

#include <db.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A page of the file system, as its documents advise.
#define PAGE_BYTES 4096
// A page's head, and an item's share of it beside key and value (its documents on the fill factor).
#define PAGE_HEAD_BYTES 32
#define ITEM_HEAD_BYTES 8

struct database {
    DB_ENV *environment;
    DB *db;
};

static void complain(struct rival_why why, const char *doing, int code) {
    if (why.length > 0) {
        snprintf(why.text, why.length, "%s: %s", doing, db_strerror(code));
    }
}

static int outcome(int code, const char *doing, struct rival_why why) {
    if (code == 0) {
        return 0;
    }
    complain(why, doing, code);
    return -1;
}

// The library does not write to what it is only given.
static DBT entry(struct rival_bytes bytes) {
    DBT entry;
    memset(&entry, 0, sizeof entry);
    entry.data = (void *)bytes.data;
    entry.size = (uint32_t)bytes.length;
    return entry;
}

static int close_both(struct database *database, struct rival_why why) {
    int first = 0;
    if (database->db != NULL) {
        first = database->db->close(database->db, 0);
    }
    int second = database->environment->close(database->environment, 0);
    free(database);
    return outcome(first != 0 ? first : second, "close", why);
}

static int open_environment(struct database *database, const struct rival_open *open) {
    int code = db_env_create(&database->environment, 0);
    if (code != 0) {
        return code;
    }
    DB_ENV *environment = database->environment;
    const uint64_t gib = UINT64_C(1) << 30;
    code = environment->set_cachesize(environment, (uint32_t)(open->cache_bytes / gib),
                                      (uint32_t)(open->cache_bytes % gib), 1);
    if (code == 0) {
        const uint32_t flags = DB_CREATE | DB_INIT_CDB | DB_INIT_MPOOL | DB_THREAD | DB_PRIVATE;
        code = environment->open(environment, open->directory, flags, 0600);
    }
    return code;
}

static int open_table(struct database *database, const struct rival_open *open) {
    int code = db_create(&database->db, database->environment, 0);
    if (code != 0) {
        database->db = NULL;
        return code;
    }
    DB *db = database->db;
    code = db->set_pagesize(db, PAGE_BYTES);
    if (code == 0 && open->expected_objects > 0 && open->expected_object_bytes > 0) {
        const uint64_t fill = (PAGE_BYTES - PAGE_HEAD_BYTES) / (open->expected_object_bytes + ITEM_HEAD_BYTES);
        const uint64_t objects = open->expected_objects;
        code = db->set_h_ffactor(db, fill > 0 ? (uint32_t)fill : 1);
        if (code == 0) {
            code = db->set_h_nelem(db, objects < UINT32_MAX ? (uint32_t)objects : UINT32_MAX);
        }
    }
    if (code == 0) {
        code = db->open(db, NULL, "table.db", NULL, DB_HASH, DB_CREATE | DB_THREAD, 0600);
    }
    return code;
}

static void *open_database(const struct rival_open *open, struct rival_why why) {
    struct database *database = calloc(1, sizeof *database);
    if (database == NULL) {
        complain(why, "open", ENOMEM);
        return NULL;
    }
    int code = open_environment(database, open);
    if (database->environment == NULL) {
        free(database);
        complain(why, "db_env_create", code);
        return NULL;
    }
    if (code == 0) {
        code = open_table(database, open);
    }
    if (code != 0) {
        close_both(database, (struct rival_why){NULL, 0});
        complain(why, "open", code);
        return NULL;
    }
    return database;
}

static int sync_all(void *rival, struct rival_why why) {
    DB *db = ((struct database *)rival)->db;
    return outcome(db->sync(db, 0), "sync", why);
}

static int put(void *rival, const struct rival_bytes *keys, const struct rival_bytes *values, size_t count, int sync,
               struct rival_why why) {
    DB *db = ((struct database *)rival)->db;
    for (size_t at = 0; at < count; ++at) {
        DBT key = entry(keys[at]), value = entry(values[at]);
        if (outcome(db->put(db, NULL, &key, &value, 0), "put", why) != 0) {
            return -1;
        }
    }
    return sync ? sync_all(rival, why) : 0;
}

static int get(void *rival, struct rival_bytes wanted, rival_take take, void *sink, struct rival_why why) {
    DB *db = ((struct database *)rival)->db;
    DBT key = entry(wanted), value = entry((struct rival_bytes){NULL, 0});
    value.flags = DB_DBT_MALLOC;
    const int code = db->get(db, NULL, &key, &value, 0);
    if (code == DB_NOTFOUND) {
        return 0;
    }
    if (outcome(code, "get", why) != 0) {
        return -1;
    }
    take(sink, (struct rival_bytes){NULL, 0}, (struct rival_bytes){value.data, value.size});
    free(value.data);
    return 1;
}

static int remove_key(void *rival, struct rival_bytes wanted, int sync, struct rival_why why) {
    DB *db = ((struct database *)rival)->db;
    DBT key = entry(wanted);
    const int code = db->del(db, NULL, &key, 0);
    if (outcome(code == DB_NOTFOUND ? 0 : code, "del", why) != 0) {
        return -1;
    }
    return sync ? sync_all(rival, why) : 0;
}

static int scan(void *rival, struct rival_bytes from, size_t count, rival_take take, void *sink, struct rival_why why) {
    (void)rival, (void)from, (void)count, (void)take, (void)sink;
    if (why.length > 0) {
        snprintf(why.text, why.length, "a hash table has no order to scan in");
    }
    return -1;
}

static int close_database(void *rival, struct rival_why why) { return close_both(rival, why); }

const struct rival_calls rival_berkeley_db = {
    open_database, put, get, remove_key, scan, sync_all, close_database,
};
