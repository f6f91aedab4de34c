/* Waiting for processes that are to end, or to be ended, in time. Include after cmocka.h. */
#ifndef SLUICE_TESTS_CRASH_PROCESS_H
#define SLUICE_TESTS_CRASH_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { CRASH_HANG_SECONDS = 120 }; /* no process of these tests takes a tenth of it */

/* Whether the child ended, or ends, within the time. It is left to be waited for. */
bool crash_ends_within(pid_t child, uint64_t ns);

/* Waits for the child; its status as waitpid has it. One that does not end is killed and fails the
 * test. */
int crash_wait(pid_t child);

#endif
