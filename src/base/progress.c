/* The counter of progress.h. */
#include "base/progress.h"

_Atomic uint64_t base_progress;
