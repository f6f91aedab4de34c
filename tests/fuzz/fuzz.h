/* Shared by the fuzz harnesses.
 *
 *   clang   fuzz_<what>.c + libFuzzer   sluice-fuzz-<what>   searches (the preset `fuzz`, run.sh)
 *   any     fuzz_<what>.c + replay.c    fuzz-replay-<what>   runs stored inputs again (CTest)
 *
 * A harness depends on its input alone: the same bytes run the same code each time. It frees all
 * memory that it allocates and prints nothing but its finding. One thread. */
#ifndef SLUICE_TESTS_FUZZ_FUZZ_H
#define SLUICE_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* libFuzzer's two entries, which replay.c calls too. Both return 0. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reports a finding: the code under test broke a promise. The report of abort has the stack. */
#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Checks that a refusal has one of two codes and a text that a terminal can show. */
void fuzz_check_refusal(int rc, int expected, int also);

/* Bytes of our memory in use (base/mem.h); equal before and after an input. */
uint64_t fuzz_live_bytes(void);

enum { FUZZ_PATH_BYTES = 160 };

/* A directory of this process, in memory if there is /dev/shm. It is made at the first call, and
 * removed with its files when the process exits normally. */
const char *fuzz_directory(void);

/* Writes `name` in it anew. `path` gets its path. */
void fuzz_write_file(const char *name, const void *bytes, size_t size, char path[FUZZ_PATH_BYTES]);

/* Removes `name`; it need not be there. */
void fuzz_remove_file(const char *name);

#endif
