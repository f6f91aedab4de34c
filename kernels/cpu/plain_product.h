/* fp32 products C[m,n] = A B for CPUs without AVX-512, where product_own.h has none. Each element
 * of C is the sum along k from the first to the last, so no thread count and no cut changes a bit.
 * Compiled once for each instruction set. */
#ifndef SLUICE_KERNELS_CPU_PLAIN_PRODUCT_H
#define SLUICE_KERNELS_CPU_PLAIN_PRODUCT_H

#include <stdint.h>

enum { PLAIN_PANEL_COLUMNS = 16 };

/* Element (i, l) of A is a[i * a_row_step + l * a_k_step], element (l, j) of B is b[l * b_k_step +
 * j * b_column_step]. Rows of C are n elements apart. */
struct plain_product {
    uint64_t m, n, k;
    const float *a, *b;
    uint64_t a_row_step, a_k_step, b_k_step, b_column_step;
    float *c;
};

struct plain_product_table {
    const char *name;
    /* Computes PLAIN_PANEL_COLUMNS columns from `column` on, or fewer at the end.
     * packed: [k * PLAIN_PANEL_COLUMNS] scratch of the calling thread. */
    void (*panel)(const struct plain_product *product, uint64_t column, float *packed);
};

extern const struct plain_product_table cpui_plain_product_base, cpui_plain_product_avx2;

#endif
