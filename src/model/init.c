/* Initial weights depend only on (seed, unit, element), so any rank can make any range. Unit and
 * element are those of the model that is not cut, so parts get the weights of the whole. Allocates
 * nothing; parallel over elements on the caller's OpenMP team. */
#include <math.h>

#include "base/rng.h"
#include "base/size.h"
#include "model/model_internal.h"

/* Fills elements [begin, end) of one tensor, counted from the tensor's start. */
static void fill_normal(uint64_t seed, uint64_t stream, float std, uint64_t begin, uint64_t end,
                        float *target)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = begin; i < end; i++)
        target[i - begin] = rng_normal(seed, stream, i) * std;
}

static void fill_uniform(uint64_t seed, uint64_t stream, double bound, uint64_t begin, uint64_t end,
                         float *target)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = begin; i < end; i++)
        target[i - begin] = (float)((2 * rng_uniform(seed, stream, i) - 1) * bound);
}

static void fill_value(float value, uint64_t count, float *target)
{
    for (uint64_t i = 0; i < count; i++)
        target[i] = value;
}

void model_init_elems(const model *self, uint32_t unit, uint64_t seed, uint64_t begin,
                      uint64_t count, float *master)
{
    const model_unit *source = &self->units[unit];
    const modeli_origin *origin = &self->products->origins[unit];
    float std = (float)self->spec.init_std;
    float std_residual = (float)(self->spec.init_std / sqrt(2.0 * (double)self->spec.num_layers));
    fill_value(0.0f, count, master); /* padding, and tensors whose initial value is zero */
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const model_tensor *tensor = &source->tensors[i];
        uint64_t first = tensor->offset_elems;
        uint64_t low = size_max(begin, first);
        uint64_t high = size_min(begin + count, first + tensor->rows * tensor->columns);
        uint64_t stream = (uint64_t)origin->unit << 32 | origin->tensors[i];
        /* elements in the parts before this one */
        uint64_t skipped = tensor->row_begin * tensor->columns;
        if (low >= high)
            continue;
        float *target = master + (low - begin);
        if (tensor->init == TENSOR_INIT_NORMAL)
            fill_normal(seed, stream, std, skipped + low - first, skipped + high - first, target);
        else if (tensor->init == TENSOR_INIT_NORMAL_RESIDUAL)
            fill_normal(seed, stream, std_residual, skipped + low - first, skipped + high - first,
                        target);
        else if (tensor->init == TENSOR_INIT_UNIFORM)
            fill_uniform(seed, stream, 1 / sqrt((double)tensor->columns), low - first, high - first,
                         target);
        else if (tensor->init == TENSOR_INIT_ONE)
            fill_value(1.0f, high - low, target);
    }
}
