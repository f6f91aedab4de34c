/* Connects to the ranks as a stranger on the network does: strangers PROGRAM SECONDS CONNECTIONS
 *
 * For so many seconds, and at most so many times, it connects to every TCP port on which a process
 * of PROGRAM listens, at each address of this machine. In turn it says nothing, sends random bytes,
 * sends the beginning of a handshake, or leaves at once. It connects to this machine alone. Prints
 * "ready" when it has begun. Prints the number of connections when it ends, also by SIGTERM. */
#include <dirent.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum { INODES_MAX = 4096, PORTS_MAX = 64, HELD_MAX = 300, PATH_BYTES = 4096, PIDS_MAX = 1 << 22 };

static volatile sig_atomic_t is_over;
/* Processes that were there before the ranks. To leave them out makes a search fast, and a port may
 * be open for milliseconds only. */
static bool is_older[PIDS_MAX];

static void end(int number)
{
    is_over = 1;
}

static void note_older(void)
{
    DIR *directory = opendir("/proc");
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        is_older[strtoul(entry->d_name, NULL, 10) % PIDS_MAX] = true;
    if (directory)
        closedir(directory);
}

static bool is_program(const char *pid, const char *program)
{
    char link[64], path[PATH_BYTES];
    if (is_older[strtoul(pid, NULL, 10) % PIDS_MAX])
        return false;
    snprintf(link, sizeof link, "/proc/%.20s/exe", pid);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    if (bytes <= 0)
        return false;
    path[bytes] = '\0';
    return strcmp(path, program) == 0;
}

/* Adds the inodes of a process' sockets. */
static size_t list_sockets(const char *pid, unsigned long *inodes, size_t count)
{
    char path[PATH_BYTES], target[64];
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *directory = opendir(path);
    if (!directory)
        return count;
    for (struct dirent *entry; count < INODES_MAX && (entry = readdir(directory));) {
        ssize_t bytes = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        if (bytes <= 0)
            continue;
        target[bytes] = '\0';
        if (sscanf(target, "socket:[%lu]", &inodes[count]) == 1)
            count++;
    }
    closedir(directory);
    return count;
}

/* Adds the ports on which sockets of the list listen. */
static size_t list_ports(const char *table, const unsigned long *inodes, size_t inode_count,
                         uint16_t *ports, size_t count)
{
    char line[512];
    FILE *file = fopen(table, "r");
    if (!file)
        return count;
    while (count < PORTS_MAX && fgets(line, sizeof line, file)) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, "%*s %*[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %lu", &port, &state,
                   &inode) != 3 ||
            state != 0x0a)
            continue;
        for (size_t i = 0; i < inode_count; i++)
            if (inodes[i] == inode) {
                ports[count++] = (uint16_t)port;
                break;
            }
    }
    fclose(file);
    return count;
}

static size_t find_ports(const char *program, uint16_t ports[PORTS_MAX])
{
    static unsigned long inodes[INODES_MAX];
    size_t inode_count = 0;
    DIR *directory = opendir("/proc");
    if (!directory)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            is_program(entry->d_name, program))
            inode_count = list_sockets(entry->d_name, inodes, inode_count);
    closedir(directory);
    size_t count = list_ports("/proc/net/tcp", inodes, inode_count, ports, 0);
    return list_ports("/proc/net/tcp6", inodes, inode_count, ports, count);
}

/* Connects, and misbehaves in the way that `turn` says. Returns the connection if it is to be held,
 * otherwise -1. */
static int misbehave(const struct in_addr *address, uint16_t port, unsigned turn)
{
    static const unsigned char hello[] = {0x73, 0x6c, 0x63, 0x68, 2, 0, 0, 0};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = *address};
    unsigned char bytes[512];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        if (fd >= 0)
            close(fd);
        return -2;
    }
    if (turn % 4 == 1 && getrandom(bytes, sizeof bytes, 0) == sizeof bytes)
        (void)send(fd, bytes, 1 + bytes[0], MSG_NOSIGNAL | MSG_DONTWAIT);
    if (turn % 4 == 2)
        (void)send(fd, hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (turn % 4 == 3) {
        close(fd);
        return -1;
    }
    return fd;
}

int main(int argc, char **argv)
{
    static int held[HELD_MAX];
    unsigned count = 0;
    struct ifaddrs *list;
    if (argc != 4 || getifaddrs(&list) != 0) {
        fprintf(stderr, "use: strangers PROGRAM SECONDS CONNECTIONS\n");
        return 2;
    }
    signal(SIGTERM, end);
    note_older();
    printf("ready\n");
    fflush(stdout);
    uint64_t end_ns = clock_ns() + strtoull(argv[2], NULL, 10) * 1000000000;
    unsigned most = (unsigned)strtoul(argv[3], NULL, 10);
    while (!is_over && count < most && clock_ns() < end_ns) {
        uint16_t ports[PORTS_MAX];
        size_t port_count = find_ports(argv[1], ports);
        for (size_t p = 0; p < port_count; p++)
            for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
                if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET)
                    continue;
                const struct sockaddr_in *in = (const struct sockaddr_in *)entry->ifa_addr;
                int fd = misbehave(&in->sin_addr, ports[p], count);
                if (fd == -2)
                    continue;
                int *place = &held[count++ % HELD_MAX];
                if (*place > 0)
                    close(*place);
                *place = fd;
            }
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    freeifaddrs(list);
    printf("%u\n", count);
    return 0;
}
