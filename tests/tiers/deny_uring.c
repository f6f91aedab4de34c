/* Runs a program for which the kernel has no io_uring, as in a container whose seccomp profile
 * forbids it:
 *
 *   deny_uring ENOSYS|EPERM|EMFILE|ENOMEM PROGRAM [ARGUMENT...]
 *
 * io_uring_setup, io_uring_enter and io_uring_register fail with that error. An old kernel also
 * gives ENOSYS, kernel.io_uring_disabled=2 gives EPERM, and limits of this process give EMFILE and
 * ENOMEM. The exit status is 77 if no filter can
 * be installed. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#elif defined(__riscv)
#define NATIVE_ARCH AUDIT_ARCH_RISCV64
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
#define NATIVE_ARCH AUDIT_ARCH_PPC64LE
#elif defined(__s390x__)
#define NATIVE_ARCH AUDIT_ARCH_S390X
#endif

/* The same numbers on every architecture. */
enum { FIRST_URING_CALL = 425, LAST_URING_CALL = 427 };

static int deny(int error)
{
#ifdef NATIVE_ARCH
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST_URING_CALL, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST_URING_CALL, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof code[0], .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 ? 0 : -errno;
#else
    (void)error;
    return -ENOTSUP;
#endif
}

int main(int argc, char **argv)
{
    static const int errors[] = {ENOSYS, EPERM, EMFILE, ENOMEM};
    int error = 0;
    for (size_t i = 0; argc >= 3 && i < sizeof errors / sizeof errors[0]; i++)
        if (strcmp(argv[1], strerrorname_np(errors[i])) == 0)
            error = errors[i];
    if (error == 0) {
        fprintf(stderr, "use: deny_uring ENOSYS|EPERM|EMFILE|ENOMEM PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    int rc = deny(error);
    if (rc < 0) {
        fprintf(stderr, "deny_uring: no seccomp filter can be installed: %s\n", strerror(-rc));
        return 77;
    }
    execvp(argv[2], argv + 2);
    fprintf(stderr, "deny_uring: %s: %s\n", argv[2], strerror(errno));
    return 2;
}
