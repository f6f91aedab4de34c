/* Memory that the ranks of one host share. Each rank has a segment: only this rank writes it, and
 * all ranks of the host map it.
 *
 *   [ page: counters, heads ][ data ............................................ ]
 *     SEGMENT_PAGE_BYTES       data_bytes
 *
 * A segment is a memfd that the other ranks open by /proc/<pid>/fd/<n>. Where that is forbidden
 * (another pid namespace, no /proc) it is a file of shm_open under a random name, which is deleted
 * as soon as all ranks have mapped it. Either way nothing is left behind when processes die. All
 * memory is reserved at creation: a full /dev/shm is an error here and no SIGBUS later.
 *
 * Only the owner of a segment writes its counters (segment_word), and they only rise. Other ranks
 * sleep on them in futex(2). A rank that sees a counter's new value also sees everything that the
 * owner wrote to data before it raised the counter. */
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
    _Alignas(SEGMENT_LINE_BYTES) _Atomic uint32_t value; /* wraps; see segment_is_reached */
    _Atomic uint32_t waiters;                            /* ranks that sleep or are about to */
};
typedef struct segment_word segment_word;

/* Describes a round of a collective: ranks compare it, and messages name it. */
struct segment_head {
    uint64_t hash; /* of all members below except the round */
    uint64_t count;
    uint32_t kind, wire;
    uint32_t round;
    uint32_t unused;
    char label[SEGMENT_LABEL_BYTES];
};
typedef struct segment_head segment_head;

struct segment_page {
    uint64_t token;         /* distinguishes a segment from any other file */
    segment_word published; /* the last round whose data is in this segment */
    segment_word consumed;  /* the last round that the owner has read from all ranks */
    /* Describe the rounds in the two halves of data. */
    _Alignas(SEGMENT_LINE_BYTES) segment_head heads[2];
};
typedef struct segment_page segment_page;

static_assert(sizeof(segment_head) == 128, "a head is a whole number of cache lines");

struct segment {
    segment_page *page; /* NULL: not mapped */
    unsigned char *data;
    uint64_t data_bytes;
    int fd; /* -1: none; the owner keeps it open until segment_fini */
};
typedef struct segment segment;

/* Makes and maps a segment with zeroed data: a memfd, or a file called `name` if that is not NULL,
 * which the caller deletes (shm_unlink). -errno; *self is then unmapped. */
int segment_create(uint64_t data_bytes, uint64_t token, const char *name, segment *self) MUST_CHECK;
/* Maps the segment of another process: its memfd, or the file called `name` if that is not NULL.
 * -ENOENT, -EACCES and others: it cannot be opened. -ENXIO: it is a different file. */
int segment_open(uint64_t data_bytes, uint64_t token, int64_t pid, int fd, const char *name,
                 segment *self) MUST_CHECK;
void segment_fini(segment *self); /* does nothing to an unmapped segment */

/* True if a counter with this value has reached `goal`. They are fewer than 2^31 apart. */
static inline bool segment_is_reached(uint32_t value, uint32_t goal)
{
    return (int32_t)(value - goal) >= 0;
}

/* Sets a counter of one's own segment and wakes the ranks that wait for it. */
void segment_raise(segment_word *word, uint32_t value);
/* Waits until the counter has reached `goal`: spins for spin_ns, then sleeps for up to sleep_ns.
 * Returns whether it has reached it. */
bool segment_wait(segment_word *word, uint32_t goal, uint64_t spin_ns, uint64_t sleep_ns);

#endif
