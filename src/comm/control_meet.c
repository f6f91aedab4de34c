/* Where the ranks meet: rank 0's listening socket, and the addresses at which the other ranks may
 * reach it. See control_internal.h. Called while joining. */
#include "comm/control_internal.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

socklen_t commi_make_sockaddr(const struct commi_address *address, uint32_t port,
                              struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    out->ss_family = (sa_family_t)address->family;
    if (address->family == AF_INET) {
        struct sockaddr_in *in = (struct sockaddr_in *)out;
        in->sin_port = htons((uint16_t)port);
        memcpy(&in->sin_addr, address->bytes, sizeof in->sin_addr);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
    in6->sin6_port = htons((uint16_t)port);
    memcpy(&in6->sin6_addr, address->bytes, sizeof in6->sin6_addr);
    return sizeof *in6;
}

struct commi_address commi_loopback(void)
{
    struct commi_address address = {.family = AF_INET, .bytes = {127, 0, 0, 1}};
    return address;
}

/* ---- where to meet ---- */

static int listen_on(const struct commi_address *address, uint32_t port)
{
    struct sockaddr_storage storage;
    socklen_t bytes = commi_make_sockaddr(address, port, &storage);
    int fd = socket((int)address->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int on = 1, off = 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (struct sockaddr *)&storage, bytes) != 0 || listen(fd, 1024) != 0) {
        int errno_value = errno;
        close(fd);
        return -errno_value;
    }
    return fd;
}

/* Lists the addresses at which other hosts may reach this one. */
static void list_addresses(struct commi_meeting *meeting)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return;
    for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        if (!entry->ifa_addr || entry->ifa_flags & IFF_LOOPBACK || !(entry->ifa_flags & IFF_UP) ||
            meeting->address_count == COMMI_ADDRESS_COUNT_MAX)
            continue;
        struct commi_address *address = &meeting->addresses[meeting->address_count];
        address->family = entry->ifa_addr->sa_family;
        if (address->family == AF_INET) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)entry->ifa_addr;
            memcpy(address->bytes, &in->sin_addr, sizeof in->sin_addr);
        } else if (address->family == AF_INET6) {
            const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)entry->ifa_addr;
            if (IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
                continue;
            memcpy(address->bytes, &in6->sin6_addr, sizeof in6->sin6_addr);
        } else {
            continue;
        }
        meeting->address_count++;
    }
    freeifaddrs(list);
}

/* Listens on the loopback address if all ranks are on this host, otherwise on all addresses.
 * -errno. */
static int listen_for_ranks(bool is_one_host)
{
    struct commi_address address = commi_loopback();
    if (is_one_host)
        return listen_on(&address, 0);
    memset(&address, 0, sizeof address);
    address.family = AF_INET6;
    int fd = listen_on(&address, 0);
    if (fd >= 0)
        return fd;
    address.family = AF_INET;
    return listen_on(&address, 0);
}

int commi_open_meeting(const comm_join_config *config, bool is_one_host,
                       struct commi_meeting *meeting)
{
    memset(meeting, 0, sizeof *meeting);
    commi_machine_name(meeting->machine);
    if (config->is_given) {
        struct commi_address address = commi_loopback();
        meeting->token[0] = config->token;
        meeting->port = config->hub_port;
        int given = listen_on(&address, meeting->port);
        return given >= 0 ? given
                          : err_errno(-given, "listening on port %u of 127.0.0.1", meeting->port);
    }
    if (getrandom(meeting->token, sizeof meeting->token, 0) != sizeof meeting->token)
        return err_errno(errno, "getting random bytes");
    int fd = listen_for_ranks(is_one_host);
    if (fd < 0)
        return err_errno(-fd, "listening for the other ranks");
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0) {
        int rc = err_errno(errno, "asking for the port of a socket");
        close(fd);
        return rc;
    }
    meeting->port = ntohs(own.ss_family == AF_INET ? ((struct sockaddr_in *)&own)->sin_port
                                                   : ((struct sockaddr_in6 *)&own)->sin6_port);
    if (!is_one_host)
        list_addresses(meeting);
    return fd;
}
