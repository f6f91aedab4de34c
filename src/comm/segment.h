/* Memory that the ranks of one host share: each has a segment, which it alone writes and all map.
 *
 *   [ page: counters, heads ][ data ............................................ ]
 *     SEGMENT_PAGE_BYTES       data_bytes
 *
 * A segment is a memfd, which the peers open by /proc/<pid>/fd/<n>; where that is forbidden
 * (another pid namespace, no /proc) it is a file of shm_open under a random name, which is gone as
 * soon as all have mapped it. Either way nothing is left behind when processes die. All its memory
 * is there from the start: a full /dev/shm is an error here and no SIGBUS later.
 *
 * A counter (segment_word) is written by the owner of its segment alone and only rises; others
 * sleep on it in futex(2). Raising it makes what was written to data before visible to those that
 * saw it. */
#ifndef SLUICE_COMM_SEGMENT_H
#define SLUICE_COMM_SEGMENT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    SEGMENT_PAGE_BYTES = 4096,
    SEGMENT_LINE_BYTES = 64,
    SEGMENT_NAME_BYTES = 48,
    SEGMENT_LABEL_BYTES = 96,
};

struct segment_word {
    _Alignas(SEGMENT_LINE_BYTES) _Atomic uint32_t value; /* wraps: compare by segment_is_reached */
    _Atomic uint32_t waiters;                            /* asleep or about to be */
};
typedef struct segment_word segment_word;

/* What a round of a collective is, to compare and to name. */
struct segment_head {
    uint64_t hash; /* of all below but the round */
    uint64_t count;
    uint32_t kind, wire;
    uint32_t round;
    uint32_t unused;
    char label[SEGMENT_LABEL_BYTES];
};
typedef struct segment_head segment_head;

struct segment_page {
    uint64_t token;         /* tells a segment from any other file */
    segment_word published; /* rounds whose data is there */
    segment_word consumed;  /* rounds whose data of all ranks the owner has read */
    _Alignas(SEGMENT_LINE_BYTES)
        segment_head heads[2]; /* of the rounds in the two halves of data */
};
typedef struct segment_page segment_page;

static_assert(sizeof(segment_head) == 128, "a head is a whole number of cache lines");

struct segment {
    segment_page *page; /* NULL: not mapped */
    unsigned char *data;
    uint64_t data_bytes;
    int fd; /* -1: none; the owner's is open until segment_fini */
};
typedef struct segment segment;

/* Makes and maps one with zeroed data, as a memfd, or as a file of that name where `name` is not
 * NULL. -errno; *self is then unmapped. */
int segment_create(uint64_t data_bytes, uint64_t token, const char *name, segment *self) MUST_CHECK;
/* Maps that of another process: its memfd, or `name` where that is not NULL. -ENOENT, -EACCES and
 * others where it cannot be had; -ENXIO where it is another file. */
int segment_open(uint64_t data_bytes, uint64_t token, int64_t pid, int fd, const char *name,
                 segment *self) MUST_CHECK;
void segment_unlink(const char *name);
void segment_fini(segment *self); /* unmapped and zeroed: nothing */

/* Whether a counter that reads `value` has reached `goal`: fewer than 2^31 apart. */
static inline bool segment_is_reached(uint32_t value, uint32_t goal)
{
    return (int32_t)(value - goal) >= 0;
}

/* Sets one's own counter and wakes who waits for it. */
void segment_raise(segment_word *word, uint32_t value);
/* Sleeps until the counter has reached `goal` or sleep_ns have passed; spins for spin_ns before
 * that. Whether it has. */
bool segment_wait(segment_word *word, uint32_t goal, uint64_t spin_ns, uint64_t sleep_ns);

#endif
