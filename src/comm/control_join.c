/* The control plane: connecting the ranks. Called while joining, on the joining thread.
 *
 *   1. Rank 0 listens. Its address and a token travel by MPI or by torchrun's store, or the config
 *      gives them.
 *   2. Each other rank makes two connections and sends HELLO on each. The hub acknowledges with the
 *      token.
 *   3. When all ranks are there, the hub sends WELCOME with the table of ranks, or with the reason
 *      why there is none.
 *
 * Strangers can connect to the port too. The hub closes a connection whose first bytes are not
 * those of a HELLO, whose HELLO has another token, or whose HELLO does not come in time. If too
 * many connections wait, it closes the one that has waited longest: a rank sends its HELLO at
 * once, and tries again if its connection is closed. So strangers, however many, keep no rank out.
 */
#include "comm/control_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/mem.h"
#include "base/size.h"

#define HELLO_MAGIC        0x68636c73u
#define JOIN_VERSION       2u
#define SECOND_NS          ((int64_t)1000000000)
#define HANDSHAKE_NS       (5 * SECOND_NS) /* limit for a HELLO or its acknowledgement */
#define CONNECT_NS         (3 * SECOND_NS) /* limit for an address that may not be reachable */
#define RETRY_NS           (20 * SECOND_NS / 1000)
#define STRANGER_COUNT_MAX 64
#define REPORTER_NS        SECOND_NS /* lets rank 0 print first */
#define OTHER_FD_COUNT     512       /* other descriptors of this process */

struct hello {
    uint32_t magic, version, rank, world;
    uint64_t token[2];
    uint32_t is_data, reserved;
    int64_t pid;
    char host[COMM_HOST_BYTES];
    char machine[COMMI_MACHINE_BYTES]; /* equal on the ranks of one host only */
};

struct welcome {
    uint64_t token[2];
    int32_t code; /* < 0: there is no job; `text` says why */
    char text[ERR_TEXT_BYTES];
};

/* A connection to the hub whose HELLO is not complete. */
struct guest {
    int fd;
    size_t bytes;
    int64_t since_ns;
    struct hello hello;
};

/* The last join of this process failed for a reason that rank 0 prints, or rank 1 if rank 0 is
 * gone. */
static bool is_reported_by_another;

bool commi_join_is_reported(int code)
{
    return code == ERR_CONFIG || is_reported_by_another;
}

/* ---- sockets ---- */

static int wait_fd(int fd, short events, int64_t end_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    for (;;) {
        int64_t left_ns = end_ns - commi_now_ns();
        if (left_ns <= 0)
            return -ETIMEDOUT;
        int count = poll(&poll_fd, 1, (int)(left_ns / 1000000) + 1);
        if (count > 0)
            return 0;
        if (count < 0 && errno != EINTR)
            return -errno;
    }
}

/* Returns codes without a text: the caller knows the purpose. */
static int send_all(int fd, const void *data, size_t bytes, int64_t end_ns)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t sent =
            send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0)
            done += (size_t)sent;
        else if (errno != EAGAIN && errno != EINTR)
            return -errno;
        else
            TRY(wait_fd(fd, POLLOUT, end_ns));
    }
    return 0;
}

static int receive_all(int fd, void *data, size_t bytes, int64_t end_ns)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(fd, (char *)data + done, bytes - done, MSG_DONTWAIT);
        if (got > 0)
            done += (size_t)got;
        else if (got == 0)
            return -ECONNRESET;
        else if (errno != EAGAIN && errno != EINTR)
            return -errno;
        else
            TRY(wait_fd(fd, POLLIN, end_ns));
    }
    return 0;
}

static void set_options(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* ---- the hub's side ---- */

struct hall {
    commi_control *control;
    int listen_fd;
    const struct commi_meeting *meeting;
    struct guest *guests;                  /* [guest_max], fd < 0: free */
    struct pollfd *fds;                    /* [guest_max + 1] */
    char (*machines)[COMMI_MACHINE_BYTES]; /* [world] */
    uint32_t guest_max;
    uint32_t arrived; /* admitted connections, of 2 * (world - 1) */
};

/* Takes the same time wherever the tokens differ. */
static bool is_token(const uint64_t theirs[2], const uint64_t ours[2])
{
    return ((theirs[0] ^ ours[0]) | (theirs[1] ^ ours[1])) == 0;
}

static bool is_welcome(const struct hall *hall, const struct hello *hello)
{
    comm *owner = hall->control->owner;
    return hello->magic == HELLO_MAGIC && hello->version == JOIN_VERSION &&
           is_token(hello->token, hall->meeting->token) && hello->world == owner->world &&
           hello->rank > 0 && hello->rank < owner->world;
}

/* True if what has come so far can be the beginning of a HELLO. The token is not looked at before
 * the HELLO is complete: otherwise a stranger could guess it byte by byte. */
static bool begins_well(const struct guest *guest)
{
    const struct hello wanted = {.magic = HELLO_MAGIC, .version = JOIN_VERSION};
    size_t bytes = size_min(guest->bytes, offsetof(struct hello, rank));
    return memcmp(&guest->hello, &wanted, bytes) == 0;
}

static void admit(struct hall *hall, struct guest *guest)
{
    const struct hello *hello = &guest->hello;
    int fd = guest->fd;
    char byte;
    guest->fd = -1;
    /* The rank may have given this try up and connected again with a good one. */
    bool has_left = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    if (has_left || !is_welcome(hall, hello)) {
        close(fd);
        return;
    }
    commi_link *link = &hall->control->links[hello->rank];
    int *place = hello->is_data ? &link->data_fd : &link->fd;
    if (*place >= 0) { /* the rank connected again after it gave the first try up */
        close(*place);
        hall->arrived--;
    }
    *place = fd;
    hall->arrived++;
    comm_rank *rank = &hall->control->owner->ranks[hello->rank];
    memcpy(rank->host, hello->host, COMM_HOST_BYTES);
    rank->host[COMM_HOST_BYTES - 1] = '\0';
    rank->pid = hello->pid;
    memcpy(hall->machines[hello->rank], hello->machine, COMMI_MACHINE_BYTES);
    hall->machines[hello->rank][COMMI_MACHINE_BYTES - 1] = '\0';
    (void)send_all(fd, hall->meeting->token, sizeof hall->meeting->token,
                   commi_now_ns() + HANDSHAKE_NS);
}

static void hear(struct hall *hall, struct guest *guest)
{
    ssize_t got = recv(guest->fd, (char *)&guest->hello + guest->bytes,
                       sizeof guest->hello - guest->bytes, MSG_DONTWAIT);
    if (got > 0)
        guest->bytes += (size_t)got;
    bool has_ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    if (has_ended || !begins_well(guest)) {
        close(guest->fd);
        guest->fd = -1;
    } else if (guest->bytes == sizeof guest->hello) {
        admit(hall, guest);
    }
}

/* Finds a place for a connection, if need be by closing the one that has waited longest. Guests and
 * admitted connections together are at most guest_max, for which there are descriptors. */
static struct guest *find_place(struct hall *hall)
{
    uint32_t place_count = hall->guest_max - hall->arrived;
    struct guest *oldest = NULL;
    for (uint32_t g = 0; g < hall->guest_max; g++) {
        struct guest *guest = &hall->guests[g];
        if (guest->fd < 0)
            continue;
        place_count--;
        if (!oldest || guest->since_ns < oldest->since_ns)
            oldest = guest;
    }
    if (place_count > 0)
        for (uint32_t g = 0; g < hall->guest_max; g++)
            if (hall->guests[g].fd < 0)
                return &hall->guests[g];
    close(oldest->fd);
    return oldest;
}

/* Accepts one connection. 0: accepted; 1: none is waiting. */
static int let_in(struct hall *hall)
{
    int fd = accept4(hall->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE
                   ? err_errno(errno, "taking the connections of %u ranks (see ulimit -n)",
                               hall->control->owner->world)
                   : 1;
    set_options(fd);
    struct guest *guest = find_place(hall);
    *guest = (struct guest){.fd = fd, .since_ns = commi_now_ns()};
    hear(hall, guest); /* its HELLO may be there already */
    return 0;
}

/* Fails if a rank has joined and ended since. */
static int find_ended(const struct hall *hall)
{
    comm *owner = hall->control->owner;
    for (uint32_t r = 1; r < owner->world; r++) {
        char byte;
        int fd = hall->control->links[r].fd;
        if (fd >= 0 && hall->control->links[r].data_fd >= 0 &&
            recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            return err_set(-ECONNRESET,
                           "rank %u on host %s (process %lld) is gone: its connection closed while "
                           "the ranks joined",
                           r, owner->ranks[r].host, (long long)owner->ranks[r].pid);
    }
    return 0;
}

static int missing_error(const struct hall *hall)
{
    comm *owner = hall->control->owner;
    uint32_t lowest = 0, count = 0;
    for (uint32_t r = owner->world - 1; r > 0; r--)
        if (hall->control->links[r].fd < 0 || hall->control->links[r].data_fd < 0) {
            lowest = r;
            count++;
        }
    return err_set(
        -ETIMEDOUT,
        "rank %u has not joined within %.1f s (%u of %u ranks are missing): see whether its "
        "process has started, and whether its host reaches port %u of %s",
        lowest, (double)commi_timeout_ns(owner) * 1e-9, count, owner->world, hall->meeting->port,
        owner->ranks[0].host);
}

static int receive_guests(struct hall *hall, int64_t end_ns)
{
    uint32_t wanted = 2 * (hall->control->owner->world - 1);
    while (hall->arrived < wanted) {
        hall->fds[0] = (struct pollfd){.fd = hall->listen_fd, .events = POLLIN};
        for (uint32_t g = 0; g < hall->guest_max; g++)
            hall->fds[1 + g] = (struct pollfd){.fd = hall->guests[g].fd, .events = POLLIN};
        (void)poll(hall->fds, hall->guest_max + 1, 200);
        int64_t now_ns = commi_now_ns();
        for (uint32_t g = 0; g < hall->guest_max; g++) {
            struct guest *guest = &hall->guests[g];
            if (guest->fd >= 0 && hall->fds[1 + g].revents)
                hear(hall, guest);
            if (guest->fd >= 0 && now_ns - guest->since_ns > HANDSHAKE_NS) {
                close(guest->fd);
                guest->fd = -1;
            }
        }
        int rc = hall->fds[0].revents ? 0 : 1;
        /* few enough that those without a HELLO are heard again before they must make room */
        for (uint32_t g = 0; rc == 0 && g < STRANGER_COUNT_MAX / 2; g++)
            rc = let_in(hall);
        if (rc < 0)
            return rc;
        TRY(find_ended(hall));
        if (now_ns > end_ns)
            return missing_error(hall);
    }
    return 0;
}

/* Numbers hosts by their lowest rank, and the ranks of each host. */
static void number_hosts(const struct hall *hall)
{
    comm *owner = hall->control->owner;
    uint32_t host_count = 0;
    for (uint32_t r = 0; r < owner->world; r++) {
        comm_rank *rank = &owner->ranks[r];
        rank->host_idx = host_count;
        rank->local_rank = 0;
        for (uint32_t q = 0; q < r; q++)
            if (strcmp(hall->machines[q], hall->machines[r]) == 0) {
                rank->host_idx = owner->ranks[q].host_idx;
                rank->local_rank++;
            }
        host_count += rank->host_idx == host_count;
    }
    for (uint32_t r = 0; r < owner->world; r++) {
        owner->ranks[r].local_world = 0;
        for (uint32_t q = 0; q < owner->world; q++)
            owner->ranks[r].local_world += owner->ranks[q].host_idx == owner->ranks[r].host_idx;
    }
}

/* Tells all ranks that came how the join ended; `code` with this thread's text. */
static int send_welcome(const struct hall *hall, int code)
{
    comm *owner = hall->control->owner;
    struct welcome welcome = {.code = code};
    memcpy(welcome.token, hall->meeting->token, sizeof welcome.token);
    if (code < 0)
        snprintf(welcome.text, sizeof welcome.text, "%s", err_text());
    int64_t end_ns = commi_now_ns() + (code < 0 ? SECOND_NS : HANDSHAKE_NS);
    for (uint32_t r = 1; r < owner->world; r++) {
        int fd = hall->control->links[r].data_fd;
        int rc = fd < 0 ? 0 : send_all(fd, &welcome, sizeof welcome, end_ns);
        if (rc == 0 && code == 0)
            rc = send_all(fd, owner->ranks, owner->world * sizeof *owner->ranks, end_ns);
        if (rc < 0 && code == 0)
            return err_errno(-rc,
                             "rank %u on host %s is gone: its connection broke while it joined", r,
                             owner->ranks[r].host);
    }
    return code;
}

/* Rank 0 holds two connections to each rank. With some hundred ranks that is more than the usual
 * soft limit of 1024 descriptors. */
static int raise_descriptor_limit(uint32_t world)
{
    struct rlimit limit;
    rlim_t least = 2 * (rlim_t)world + STRANGER_COUNT_MAX, wanted = least + OTHER_FD_COUNT;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return 0;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur > least)
        return 0;
    return err_set(
        ERR_CONFIG,
        "rank 0 needs %llu file descriptors for the connections of %u ranks and may have "
        "%llu: raise the hard limit on its host (ulimit -Hn)",
        (unsigned long long)wanted, world, (unsigned long long)limit.rlim_max);
}

static int receive_ranks(commi_control *self, const struct commi_meeting *meeting, int listen_fd,
                         const struct hello *own)
{
    comm *owner = self->owner;
    struct hall hall = {.control = self, .listen_fd = listen_fd, .meeting = meeting};
    hall.guest_max = 2 * owner->world + STRANGER_COUNT_MAX;
    hall.guests = mem_alloc(hall.guest_max, sizeof *hall.guests, "comm joining");
    hall.fds = mem_alloc(hall.guest_max + 1, sizeof *hall.fds, "comm joining");
    hall.machines = mem_alloc(owner->world, sizeof *hall.machines, "comm joining");
    int rc = -ENOMEM;
    if (hall.guests && hall.fds && hall.machines) {
        for (uint32_t g = 0; g < hall.guest_max; g++)
            hall.guests[g].fd = -1;
        memcpy(owner->ranks[0].host, own->host, COMM_HOST_BYTES);
        owner->ranks[0].pid = own->pid;
        memcpy(hall.machines[0], own->machine, COMMI_MACHINE_BYTES);
        rc = raise_descriptor_limit(owner->world);
        if (rc == 0)
            rc = receive_guests(&hall, owner->join_end_ns);
        if (rc == 0)
            number_hosts(&hall);
        rc = send_welcome(&hall, rc);
        for (uint32_t g = 0; g < hall.guest_max; g++)
            if (hall.guests[g].fd >= 0)
                close(hall.guests[g].fd);
    }
    mem_free(hall.guests);
    mem_free(hall.fds);
    mem_free(hall.machines);
    return rc;
}

/* ---- the others' side ---- */

/* Returns a connection that the hub has acknowledged, or -errno. */
static int try_address(const struct commi_address *address, uint32_t port,
                       const struct hello *hello, int64_t end_ns)
{
    struct sockaddr_storage storage;
    socklen_t bytes = commi_make_sockaddr(address, port, &storage);
    int fd = socket((int)address->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    set_options(fd);
    int64_t connect_end_ns = commi_now_ns() + CONNECT_NS;
    int64_t hello_end_ns = commi_now_ns() + HANDSHAKE_NS;
    int rc = connect(fd, (struct sockaddr *)&storage, bytes) == 0 ? 0 : -errno;
    if (rc == -EINPROGRESS) {
        int error = 0;
        socklen_t error_bytes = sizeof error;
        rc = wait_fd(fd, POLLOUT, connect_end_ns < end_ns ? connect_end_ns : end_ns);
        if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0)
            rc = -error;
    }
    uint64_t token[2];
    if (rc == 0)
        rc = send_all(fd, hello, sizeof *hello, hello_end_ns);
    if (rc == 0)
        rc = receive_all(fd, token, sizeof token, hello_end_ns);
    if (rc == 0 && memcmp(token, hello->token, sizeof token) != 0)
        rc = -ECONNREFUSED;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

/* Tries rank 0's addresses in turn. -errno. */
static int try_meeting(const struct commi_meeting *meeting, struct hello *hello, bool is_near,
                       int fds[2], int64_t end_ns)
{
    struct commi_address addresses[COMMI_ADDRESS_COUNT_MAX + 1];
    uint32_t count = 0;
    int rc = -ETIMEDOUT;
    if (meeting->port == 0)
        return -ECONNREFUSED;
    memcpy(hello->token, meeting->token, sizeof hello->token);
    if (is_near || strcmp(meeting->machine, hello->machine) == 0)
        addresses[count++] = commi_loopback();
    for (uint32_t a = 0; a < meeting->address_count && a < COMMI_ADDRESS_COUNT_MAX; a++)
        addresses[count++] = meeting->addresses[a];
    for (uint32_t a = 0; a < count; a++) {
        hello->is_data = 0;
        rc = fds[0] = try_address(&addresses[a], meeting->port, hello, end_ns);
        if (rc < 0)
            continue;
        hello->is_data = 1;
        rc = fds[1] = try_address(&addresses[a], meeting->port, hello, end_ns);
        if (rc >= 0)
            return 0;
        close(fds[0]);
    }
    return rc;
}

/* Gets rank 0's meeting, or gives it to the other ranks. */
static int share_meeting(comm *owner, const comm_join_config *config, struct commi_meeting *meeting)
{
    if (owner->mpi)
        return commi_mpi_broadcast(owner, meeting, sizeof *meeting);
    double left = (double)(owner->join_end_ns - commi_now_ns()) * 1e-9;
    return config->share(config->share_user, meeting, sizeof *meeting, left > 1 ? left : 1);
}

static const char not_listening[] = "rank 0 could not listen for the other ranks";

/* Connects to rank 0, if need be after several tries. */
static int reach_hub(commi_control *self, const comm_join_config *config,
                     struct commi_meeting *meeting, struct hello *hello, int fds[2])
{
    comm *owner = self->owner;
    bool is_near = config->is_given || owner->is_one_host;
    int64_t end_ns = owner->join_end_ns + HANDSHAKE_NS; /* later than the hub's limit */
    int rc;
    while ((rc = try_meeting(meeting, hello, is_near, fds, end_ns)) < 0) {
        if (commi_now_ns() >= end_ns && meeting->port == 0)
            return err_set(-ECONNREFUSED, "%s", not_listening);
        if (commi_now_ns() >= end_ns)
            return err_errno(
                -rc, "rank %u on host %s does not reach rank 0 (port %u, %u addresses given)",
                owner->rank, hello->host, meeting->port, meeting->address_count);
        commi_sleep_ns(RETRY_NS);
        if (config->share && !owner->mpi)
            TRY(share_meeting(owner, config, meeting));
    }
    return 0;
}

static int join_hub(commi_control *self, const comm_join_config *config,
                    struct commi_meeting *meeting, struct hello *hello)
{
    comm *owner = self->owner;
    commi_link *link = &self->links[0];
    int fds[2] = {-1, -1};
    TRY(failpoint("join.hub"));
    int rc = reach_hub(self, config, meeting, hello, fds);
    is_reported_by_another = owner->rank > 1;
    TRY(rc);
    link->fd = fds[0];
    link->data_fd = fds[1];
    struct welcome welcome;
    int64_t end_ns = owner->join_end_ns + 2 * HANDSHAKE_NS;
    rc = receive_all(link->data_fd, &welcome, sizeof welcome, end_ns);
    if (rc == 0 && welcome.code < 0) {
        is_reported_by_another = true;
        commi_sleep_ns(REPORTER_NS);
        welcome.text[ERR_TEXT_BYTES - 1] = '\0';
        return err_set(welcome.code, "%s", welcome.text);
    }
    if (rc == 0)
        rc = receive_all(link->data_fd, owner->ranks, owner->world * sizeof *owner->ranks, end_ns);
    return rc < 0 ? err_errno(-rc, "rank 0 is gone: its connection ended while the ranks joined")
                  : 0;
}

int commi_control_connect(commi_control *self, const comm_join_config *config)
{
    comm *owner = self->owner;
    struct commi_meeting meeting;
    struct hello hello = {.magic = HELLO_MAGIC, .version = JOIN_VERSION};
    is_reported_by_another = false;
    commi_machine_name(hello.machine);
    commi_host_name(hello.host);
    if (config->host) {
        snprintf(hello.host, sizeof hello.host, "%s", config->host);
        snprintf(hello.machine, sizeof hello.machine, "%s", config->host);
    }
    hello.rank = owner->rank;
    hello.world = owner->world;
    hello.pid = getpid();
    memset(&meeting, 0, sizeof meeting);
    int listen_fd = -1, rc = 0;
    if (owner->rank == 0)
        rc = listen_fd = commi_open_meeting(config, owner->is_one_host, &meeting);
    if (config->is_given && owner->rank != 0) {
        meeting.token[0] = config->token;
        meeting.port = config->hub_port;
    }
    if (rc < 0 && !config->is_given)
        meeting.port = 0; /* port 0 tells the other ranks that rank 0 does not listen */
    if (!config->is_given) {
        int sent = share_meeting(owner, config, &meeting);
        rc = rc < 0 ? rc : sent;
        /* A store may give what a rank 0 left there that has ended: then reach_hub asks again. */
        bool may_be_stale = config->share && !owner->mpi && owner->rank != 0;
        if (rc >= 0 && meeting.port == 0 && !may_be_stale)
            rc = err_set(-ECONNREFUSED, "%s", not_listening);
    }
    if (rc >= 0)
        rc = owner->rank == 0 ? receive_ranks(self, &meeting, listen_fd, &hello)
                              : join_hub(self, config, &meeting, &hello);
    if (listen_fd >= 0)
        close(listen_fd);
    return rc;
}
