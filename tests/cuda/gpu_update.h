/* Shared by the files of test_gpu_update, beside the CPU's variants: values that meet every path of
 * rounding and of IEEE arithmetic, and large shapes. */
#ifndef SLUICE_TESTS_GPU_UPDATE_H
#define SLUICE_TESTS_GPU_UPDATE_H

#include "tests/cuda/gpu_fixture.h"
#include "tests/cuda/gpu_update_cpu.h"

enum { SPECIAL_COUNT = 40 };
extern const uint32_t special_bits[SPECIAL_COUNT]; /* of fp32 */

/* True if a real GPU has `bytes` and 1 GiB more free, for a large test. If it has less, prints a
 * line to stdout. Always false on a simulated GPU. */
bool has_room_for_large(const gpu_fixture *gpu, uint64_t bytes);

/* fill_repeated fills device memory with copies of the host's `chunk_bytes`, the last one cut.
 * expect_repeated fails the test unless the memory holds such copies of `want`. Both are for sizes
 * that the host need not hold at once. */
void fill_repeated(gpu_fixture *gpu, void *target, uint64_t bytes, const void *chunk,
                   uint64_t chunk_bytes);
void expect_repeated(gpu_fixture *gpu, const char *name, const void *source, uint64_t bytes,
                     const void *want, uint64_t chunk_bytes);

/* The optimizers of kernels/cuda; the other ops are NULL. */
extern const kernel_ops gpu_update_ops;

/* gpu_update_state.c */
void packed_updates_have_the_cpu_bits(void **state);
void packed_special_values_have_the_cpu_bits(void **state);
void packed_warps_go_round(void **state);

/* gpu_update_sums.c */
void copies_have_the_cpu_bits(void **state);
void copies_of_every_half(void **state);
void copy_of_many_elements(void **state);
void closing_has_the_cpu_bits(void **state);
void closing_of_every_half(void **state);
void closing_many_elements(void **state);
void norm_is_the_cpu_tree(void **state);
void norm_of_odd_values(void **state);
void norm_calls_follow_one_another(void **state);
void norm_of_many_sums(void **state);

#endif
