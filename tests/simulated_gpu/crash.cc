// How the simulated GPU ends a process: with kernel, block, thread and seed on standard error.
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

using namespace simulated;

static void print_place()
{
    const char *kernel = running_kernel();
    if (kernel) {
        const simulated_place *at = simulated_here;
        fprintf(stderr, "simulated GPU: in kernel %s\n", kernel);
        fprintf(stderr,
                "simulated GPU: grid (%u, %u, %u), block (%u, %u, %u) of %u x %u x %u threads",
                at->grid_dim.x, at->grid_dim.y, at->grid_dim.z, at->block.x, at->block.y,
                at->block.z, at->block_dim.x, at->block_dim.y, at->block_dim.z);
        if (at->thread.x != UINT32_MAX)
            fprintf(stderr, ", thread (%u, %u, %u)", at->thread.x, at->thread.y, at->thread.z);
        fputc('\n', stderr);
    }
    fprintf(stderr, "simulated GPU: SLUICE_SIMULATED_GPU_SEED=%llu\n",
            static_cast<unsigned long long>(get_settings().seed));
}

void simulated_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("simulated GPU: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    print_place();
    fflush(stderr);
    _exit(EXIT_FAILED);
}

// --- signals -------------------------------------------------------------------------------------

static const int caught[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
static struct sigaction previous[4];
static __thread bool has_stack; // for signals, of this thread

static const char *meaning(int number)
{
    switch (number) {
    case SIGILL:
        return "a vector access whose address is not aligned (or an illegal instruction)";
    case SIGFPE:
        return "an integer division by zero";
    default:
        return "an access to memory that may not be touched";
    }
}

// In a kernel the handler says where it happened and ends the process. Elsewhere the signal goes to
// the handler that was installed before.
static void on_signal(int number, siginfo_t *info, void *context)
{
    if (simulated_here) {
        std::string where;
        if (number == SIGSEGV || number == SIGBUS)
            where = describe_address(info->si_addr);
        simulated_fail("%s: address %p%s", meaning(number), info->si_addr, where.c_str());
    }
    for (int i = 0; i < 4; i++) {
        if (caught[i] != number)
            continue;
        const struct sigaction &old = previous[i];
        if (old.sa_flags & SA_SIGINFO) {
            old.sa_sigaction(number, info, context);
            return;
        }
        if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
            old.sa_handler(number);
            return;
        }
    }
    signal(number, SIG_DFL); /* the instruction is tried again, and ends the process */
}

// The test's library puts its own handlers in place for each test: ours come back at each kernel.
void simulated::install_handlers()
{
    enum { STACK_BYTES = 256 * 1024 };
    if (!has_stack) {
        stack_t stack = {};
        stack.ss_sp =
            mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack.ss_size = STACK_BYTES;
        if (stack.ss_sp != MAP_FAILED)
            sigaltstack(&stack, NULL);
        has_stack = true;
    }
    for (int i = 0; i < 4; i++) {
        struct sigaction present;
        if (sigaction(caught[i], NULL, &present) == 0 && (present.sa_flags & SA_SIGINFO) &&
            present.sa_sigaction == on_signal)
            continue;
        struct sigaction own = {};
        own.sa_sigaction = on_signal;
        own.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(caught[i], &own, &previous[i]);
    }
}
