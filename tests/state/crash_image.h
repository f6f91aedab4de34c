/* The files of a run directory as a loss of power leaves them: what was not made durable may be
 * there in parts.
 *
 *   crash_disk_begin    what is there now is on the drive
 *   crash_disk_synced   after each fsync and fdatasync of the process: so is what that one covers
 *   crash_files_read    what the process sees, at the moment when the power goes
 *   crash_files_tear    what of it the drive holds
 *   crash_files_write   puts that back
 *
 * The promises are those of any journaling file system, and no more: after fsync of a file its
 * bytes and length, after fsync of its directory its name; before, each sector and the length are
 * old or new, and a rename, a removal and a new name have happened or not.
 *
 * One caller at a time. Memory is static: a run's manifests and metrics are small. */
#ifndef SLUICE_TESTS_CRASH_IMAGE_H
#define SLUICE_TESTS_CRASH_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

enum { CRASH_FILE_BYTES = 256 << 10, CRASH_FILE_COUNT = 5, CRASH_SYNCED_COUNT = 8 };

struct crash_file {
    uint64_t inode; /* 0: there is none */
    uint64_t size_bytes;
    unsigned char data[CRASH_FILE_BYTES];
};
typedef struct crash_file crash_file;

/* Both manifest slots, those that are about to become one, and the metrics. */
struct crash_files {
    crash_file files[CRASH_FILE_COUNT];
};
typedef struct crash_files crash_files;

struct crash_disk {
    uint64_t names[CRASH_FILE_COUNT];      /* inode of each name that is durable; 0: of none */
    crash_file synced[CRASH_SYNCED_COUNT]; /* contents that are, the oldest is replaced */
    uint32_t next;
};
typedef struct crash_disk crash_disk;

/* Each fails the test where a file cannot be read or written. `name` is the run's. */
void crash_disk_begin(crash_disk *self, const char *name);
void crash_disk_synced(crash_disk *self, const char *name, int fd);
void crash_files_read(crash_files *self, const char *name);
void crash_files_write(const crash_files *self, const char *name);

/* `now`, as the process saw it, becomes what the drive holds, drawn from `seed`. Whether a
 * manifest's bytes are torn, or its name is not the new one. */
bool crash_files_tear(const crash_disk *disk, crash_files *now, uint64_t seed);

#endif
