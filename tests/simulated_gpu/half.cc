// Half precision, by the host's own conversions.
#include "simulated_launch.h"

extern "C" {
#include "base/dtype.h"
}

float simulated_widen_fp16(uint16_t half)
{
    return fp32_from_fp16(half);
}

uint16_t simulated_narrow_fp16(float value)
{
    return fp16_from_fp32(value);
}
