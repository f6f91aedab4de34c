/* The cudai_cudnn_* functions for builds without cuDNN's header and for the tests' simulated GPU.
 * context->cudnn stays NULL and cudnn_absence says why. No plan is ever made, so attention always
 * uses our own kernels. Any thread may call these functions; they allocate nothing. */
#include "kernels/cuda/cuda_internal.h"

#include <assert.h>

#ifdef SLUICE_SIMULATED_GPU
static const char absence[] = "the simulated GPU has no cuDNN";
#else
static const char absence[] = "this program was built without cudnn_backend.h (install cuDNN 9's "
                              "headers beside CUDA's and configure again)";
#endif

int cudai_cudnn_create(kernel_context *context)
{
    context->cudnn = NULL;
    context->cudnn_absence = absence;
    return 0;
}

void cudai_cudnn_destroy(kernel_context *context)
{
    context->cudnn = NULL;
}

const char *cudai_cudnn_version(const kernel_context *context)
{
    return NULL;
}

int cudai_cudnn_plan_create(kernel_context *context, const attention_desc *desc,
                            cudai_cudnn_plan **plan)
{
    *plan = NULL;
    return err_set(ERR_BACKEND, "no cuDNN attention: %s", absence);
}

/* No plan exists, so the functions below are never called with one. */
void cudai_cudnn_plan_destroy(cudai_cudnn_plan *plan)
{
    assert(plan == NULL);
}

const char *cudai_cudnn_plan_way(const cudai_cudnn_plan *plan)
{
    return "absent";
}

size_t cudai_cudnn_plan_forward_scratch_bytes(const cudai_cudnn_plan *plan)
{
    return 0;
}

size_t cudai_cudnn_plan_backward_scratch_bytes(const cudai_cudnn_plan *plan)
{
    return 0;
}

int cudai_cudnn_forward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                        const void *v, void *output, float *lse, void *scratch)
{
    return err_set(ERR_BACKEND, "no cuDNN attention: %s", absence);
}

int cudai_cudnn_backward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                         const void *v, const void *output, const float *lse,
                         const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                         void *scratch)
{
    return err_set(ERR_BACKEND, "no cuDNN attention: %s", absence);
}
