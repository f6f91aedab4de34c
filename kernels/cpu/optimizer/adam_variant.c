/* The optimizers' loops over vectors. cpu.cmake compiles this file once for each instruction set,
 * with VARIANT_TABLE (the name of the table) and VARIANT_NAME (its text) defined. */
#include "kernels/cpu/optimizer/adam_body.h"

#if defined(__AVX2__)
#include "kernels/cpu/optimizer/adam_state_body.h"
#else
static void vector_update_packed(const adami_work *work, uint64_t begin, uint64_t end)
{
    adami_reference.update_packed(work, begin, end);
}
#endif

const struct adam_variant VARIANT_TABLE = {
    .name = VARIANT_NAME,
    .update = {[UPDATE_ADAM] = vector_adam,
               [UPDATE_LION] = vector_lion,
               [UPDATE_ADAGRAD] = vector_adagrad},
    .update_packed = vector_update_packed,
    .copy = vector_copy,
    .close = vector_close,
};
