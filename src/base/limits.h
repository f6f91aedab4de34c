/* Limits that a shell, a batch system or a container sets for a process: its stack, its address
 * space, its threads.
 *
 * Our own code returns an error where memory or a thread is refused. Libraries do not: OpenMP's
 * runtime and C++ end the process, and oneDNN crashes. So what they will need is tried before they
 * are called, and given back. Another thread may take it in between; the checks ask for more than
 * is needed. Any thread may call. They allocate nothing of ours. */
#ifndef SLUICE_BASE_LIMITS_H
#define SLUICE_BASE_LIMITS_H

#include <stdint.h>

#include "base/error.h"

/* Call it when the process begins, or a call of the library. ERR_CONFIG if the stack (ulimit -s, or
 * that of the calling thread) is smaller than our deepest calls need, or the address space than
 * libraries need. If the address space has a limit, the threads share one heap, because heaps of
 * their own would take 64 MiB of it each. */
int limits_begin(void) MUST_CHECK;

/* Checks that there is address space for what a library maps at a time, such as the code that
 * oneDNN generates for a product. ERR_CONFIG (ulimit -v), or -ENOMEM if nobody has set a limit. */
int limits_check_memory(void) MUST_CHECK;

/* The same, and that `thread_count` more threads can be made. ERR_CONFIG: which limit refuses
 * them. */
int limits_check_threads(uint32_t thread_count) MUST_CHECK;

#endif
