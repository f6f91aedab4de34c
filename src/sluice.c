/* The public interface. See sluice.h. */
#include "sluice.h"

const char *sluice_version(void)
{
    return SLUICE_VERSION;
}
