/* The loops of plain_product.h. cpu.cmake compiles this file once for each instruction set, with
 * VARIANT_TABLE (the name of the table) and VARIANT_NAME (its text) defined. */
#include "kernels/cpu/plain_product.h"
#include <math.h>

#include "kernels/cpu/attention_vectors.h"

enum { PATCH_ROWS = 4, PATCH_VECS = PLAIN_PANEL_COLUMNS / VEC_ELEMS };

static void pack(const struct plain_product *of, uint64_t column, uint64_t columns, float *packed)
{
    for (uint64_t l = 0; l < of->k; l++)
        for (uint64_t j = 0; j < PLAIN_PANEL_COLUMNS; j++)
            packed[l * PLAIN_PANEL_COLUMNS + j] =
                j < columns ? of->b[l * of->b_k_step + (column + j) * of->b_column_step] : 0.0f;
}

/* Rows from `row` on. Where fewer than PATCH_ROWS are left, the last one is computed several
 * times. */
static void patch(const struct plain_product *of, uint64_t row, uint64_t column, uint64_t columns,
                  const float *packed)
{
    uint64_t rows = of->m - row < PATCH_ROWS ? of->m - row : PATCH_ROWS;
    const float *a[PATCH_ROWS];
    vec sums[PATCH_ROWS][PATCH_VECS] = {0};
    for (uint64_t i = 0; i < PATCH_ROWS; i++)
        a[i] = of->a + (row + (i < rows ? i : rows - 1)) * of->a_row_step;
    for (uint64_t l = 0; l < of->k; l++) {
        const float *b = packed + l * PLAIN_PANEL_COLUMNS;
        for (uint64_t i = 0; i < PATCH_ROWS; i++)
            for (uint64_t v = 0; v < PATCH_VECS; v++)
                sums[i][v] = vec_fma(vec_set(a[i][l * of->a_k_step]), vec_load(b + v * VEC_ELEMS),
                                     sums[i][v]);
    }
    for (uint64_t i = 0; i < rows; i++) {
        float values[PLAIN_PANEL_COLUMNS];
        for (uint64_t v = 0; v < PATCH_VECS; v++)
            vec_store(values + v * VEC_ELEMS, sums[i][v]);
        memcpy(of->c + (row + i) * of->n + column, values, columns * sizeof *values);
    }
}

static void panel(const struct plain_product *product, uint64_t column, float *packed)
{
    uint64_t left = product->n - column;
    uint64_t columns = left < PLAIN_PANEL_COLUMNS ? left : PLAIN_PANEL_COLUMNS;
    pack(product, column, columns, packed);
    for (uint64_t row = 0; row < product->m; row += PATCH_ROWS)
        patch(product, row, column, columns, packed);
}

const struct plain_product_table VARIANT_TABLE = {.name = VARIANT_NAME, .panel = panel};
