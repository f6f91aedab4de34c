/* What there is to know of a rank. See comm.h. */
#include "comm/comm.h"

#include <stddef.h>

uint32_t comm_get_rank(const comm *self)
{
    (void)self;
    return 0;
}

uint32_t comm_get_world(const comm *self)
{
    (void)self;
    return 1;
}

bool comm_is_teller(const comm *self)
{
    return self == NULL;
}
