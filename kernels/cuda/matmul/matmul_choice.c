/* Chooses the cuBLASLt algorithm of a product: the first that runs of those that the library
 * proposes, one that an earlier context chose, or the fastest of them by a trial.
 *
 * A choice is written as six hexadecimal digits of a hash of the shape and one for the place in the
 * library's list, such as "1b9c0e3". The list of a shape is always the same for one version of the
 * library and one kind of GPU. Shapes that take the first that runs are not written, so a text
 * without a shape means that one. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "kernels/cuda/matmul/matmul_internal.h"

enum {
    ALGO_COUNT = 8, /* limit of candidates; they come best first by cuBLASLt's estimate */
    /* k is split only if it is a multiple of this; no kernel's step in k is longer */
    SPLIT_STEP = 128,
    CHOICE_DIGITS = 7, /* of one choice in the text */
    TRIAL_ROUNDS = 5,  /* each candidate's time is its best of so many */
    TRIAL_RUNS_MAX = 20,
};

/* A round runs a candidate for about so long, so that the time of the launch does not count. */
static const float trial_round_ms = 1.0f;

/* A candidate replaces the first only if it takes at most this part of its time: differences of a
 * few percent come and go from run to run. */
static const float trial_gain = 0.97f;

/* The workspace that NVIDIA's manual recommends for cuBLAS (cublasSetWorkspace): 32 MiB from Hopper
 * on, for its split-k and stream-k kernels, and 4 MiB before. */
#define WORKSPACE_BYTES_SM90 ((uint64_t)32 << 20)
#define WORKSPACE_BYTES      ((uint64_t)4 << 20)

/* ---- candidates ---- */

static int set_preference(const kernel_matmul *product, cublasLtMatmulPreference_t preference)
{
    uint64_t workspace_bytes =
        product->context->compute_major >= 9 ? WORKSPACE_BYTES_SM90 : WORKSPACE_BYTES;
    /* Either k is not split, or a second pass adds the partial sums in fp32 and in order. */
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (product->desc.k % SPLIT_STEP == 0)
        schemes |= CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t left = product->b_align_bytes, right = product->a_align_bytes;
    uint32_t result = product->c_align_bytes;
    const struct preference {
        cublasLtMatmulPreferenceAttributes_t which;
        const void *value;
        size_t bytes;
    } wanted[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &left, sizeof left},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &right, sizeof right},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof result},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof result},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        TRY_CUBLAS(product, "cublasLtMatmulPreferenceSetAttribute",
                   product->context->cublas->api.preference_set(preference, wanted[i].which,
                                                                wanted[i].value, wanted[i].bytes));
    return 0;
}

/* Asks for the candidates. *count is 0 if cuBLASLt has none. */
static int find_algorithms(const kernel_matmul *product, cublasLtMatmulHeuristicResult_t *found,
                           int *count)
{
    const struct cudai_cublas_api *api = &product->context->cublas->api;
    cublasLtMatmulPreference_t preference;
    *count = 0;
    TRY_CUBLAS(product, "cublasLtMatmulPreferenceCreate", api->preference_create(&preference));
    int rc = set_preference(product, preference);
    if (rc == 0) {
        cublasStatus_t status = api->get_heuristic(
            product->context->cublas->handle, product->operation, product->left, product->right,
            product->product, product->product, preference, ALGO_COUNT, found, count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED)
            *count = 0;
        else if (status != CUBLAS_STATUS_SUCCESS)
            rc = cudai_product_failed(product, "cublasLtMatmulAlgoGetHeuristic", status);
    }
    (void)api->preference_destroy(preference);
    return rc;
}

/* Returns the bytes from the first element of a matrix to the end of its last. */
static uint64_t span_bytes(uint64_t rows, uint64_t columns, uint64_t stride, enum dtype type)
{
    return ((rows - 1) * stride + columns) * dtype_bytes(type);
}

/* Temporary memory of the first run. A, B and the bias all lie at 0, since inputs may overlap. C
 * lies apart, as the library requires, followed by the workspace. */
struct trial_layout {
    uint64_t c, workspace, total_bytes;
};

static struct trial_layout lay_trial(const matmul_desc *desc, uint64_t workspace_bytes)
{
    uint64_t a =
        span_bytes(matmul_a_rows(desc), matmul_a_columns(desc), desc->a_stride, desc->ab_type);
    uint64_t b =
        span_bytes(matmul_b_rows(desc), matmul_b_columns(desc), desc->b_stride, desc->ab_type);
    uint64_t c = span_bytes(desc->m, desc->n, desc->c_stride, desc->c_type);
    struct trial_layout at = {.c = size_round_up(size_max(a, b), CUDAI_MATRIX_ALIGN_BYTES)};
    at.workspace = at.c + size_round_up(c, CUDAI_MATRIX_ALIGN_BYTES);
    at.total_bytes = at.workspace + workspace_bytes;
    return at;
}

/* True if cuBLASLt refused to run a candidate, false if running it failed. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* The candidates of a product, and the temporary memory on which they run. */
struct trial {
    kernel_matmul *product;
    cublasLtMatmulHeuristicResult_t found[ALGO_COUNT];
    int count;
    char *memory; /* zeros, placed as `at` says; NULL: it was not free */
    struct trial_layout at;
};

/* ---- choices as text ---- */

/* 24 bits of FNV-1a over what cuBLASLt sees of the shape. */
static uint32_t hash_of(const matmul_desc *desc)
{
    const uint64_t parts[] = {
        desc->m,        desc->n,         desc->k,        desc->a_transposed, desc->b_transposed,
        desc->a_stride, desc->b_stride,  desc->c_stride, desc->ab_type,      desc->c_type,
        desc->has_bias, desc->accumulate};
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (int byte = 0; byte < 8; byte++)
            hash = (hash ^ (parts[i] >> 8 * byte & 0xff)) * 0x100000001b3u;
    return (uint32_t)(hash >> 40);
}

/* The place in the list that the context's text has for the shape; -1: it has none. */
static int find_choice(const kernel_context *context, const matmul_desc *desc)
{
    char key[CHOICE_DIGITS];
    snprintf(key, sizeof key, "%06x", hash_of(desc));
    for (const char *at = context->choices; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, key, CHOICE_DIGITS - 1) == 0 && at[CHOICE_DIGITS - 1] >= '0' &&
            at[CHOICE_DIGITS - 1] < '0' + ALGO_COUNT)
            return at[CHOICE_DIGITS - 1] - '0';
    return -1;
}

/* Adds a choice to the text. False if the text is full. */
static bool add_choice(kernel_context *context, const matmul_desc *desc, int place)
{
    size_t used = strlen(context->choices);
    if (used + 1 + CHOICE_DIGITS >= sizeof context->choices)
        return false;
    snprintf(context->choices + used, sizeof context->choices - used, "%s%06x%d", used ? " " : "",
             hash_of(desc), place);
    return true;
}

int cudai_choose_products(kernel_context *context, const char *choices, bool tries)
{
    if (strlen(choices) >= sizeof context->choices ||
        strspn(choices, "0123456789abcdef ") != strlen(choices))
        return err_set(ERR_INPUT, "\"%.80s\" does not say which algorithms matrix products take",
                       choices);
    snprintf(context->choices, sizeof context->choices, "%s", choices);
    context->tries_products = tries;
    return 0;
}

const char *cudai_product_choices(const kernel_context *context)
{
    return context->choices;
}

/* ---- trials ---- */

static void take(const struct trial *self, int place)
{
    self->product->algo = self->found[place].algo;
    self->product->scratch_bytes = self->found[place].workspaceSize;
}

static cublasStatus_t run(const struct trial *self)
{
    return cudai_product_run(self->product, NULL, self->memory, self->memory,
                             self->memory + self->at.c, self->memory + self->at.workspace);
}

/* Runs a candidate once, so that its kernels load. *runs is false if cuBLASLt refuses. Without
 * memory it is taken for one that runs. */
static int try_candidate(struct trial *self, int place, bool *runs)
{
    *runs = false;
    if (self->found[place].state != CUBLAS_STATUS_SUCCESS)
        return 0;
    take(self, place);
    cublasStatus_t status = self->memory ? run(self) : CUBLAS_STATUS_SUCCESS;
    *runs = status == CUBLAS_STATUS_SUCCESS;
    return *runs || is_refusal(status)
               ? 0
               : cudai_product_failed(self->product, "cublasLtMatmul", status);
}

/* The time of one of `runs` runs of the product, by the GPU's clock. */
static int time_runs(const struct trial *self, cudaEvent_t events[2], int runs, float *run_ms)
{
    float all_ms = 0.0f;
    TRY(cudai_check(cudaEventRecord(events[0], NULL), "the begin of a trial"));
    for (int i = 0; i < runs; i++)
        TRY_CUBLAS(self->product, "cublasLtMatmul", run(self));
    TRY(cudai_check(cudaEventRecord(events[1], NULL), "the end of a trial"));
    TRY(cudai_check(cudaEventSynchronize(events[1]), "a trial of matrix products"));
    TRY(cudai_check(cudaEventElapsedTime(&all_ms, events[0], events[1]), "the time of a trial"));
    *run_ms = all_ms / (float)runs;
    return 0;
}

/* Times the candidates that run, by turns so that a change of the clock meets all of them, and
 * stores the best time of each. */
static int time_candidates(const struct trial *self, const bool *runs, cudaEvent_t events[2],
                           float *best_ms)
{
    for (int round = 0; round < TRIAL_ROUNDS; round++)
        for (int i = 0; i < self->count; i++) {
            if (!runs[i])
                continue;
            float run_ms = 0.0f;
            int wanted = round == 0 ? 1 : (int)(trial_round_ms / (best_ms[i] + 1e-6f));
            int times = wanted < 1 ? 1 : wanted > TRIAL_RUNS_MAX ? TRIAL_RUNS_MAX : wanted;
            take(self, i);
            TRY(time_runs(self, events, times, &run_ms));
            if (round == 0 || run_ms < best_ms[i])
                best_ms[i] = run_ms;
        }
    return 0;
}

/* Replaces *place, the first candidate that runs, by the fastest. */
static int find_fastest(struct trial *self, int *place)
{
    bool runs[ALGO_COUNT] = {false};
    float best_ms[ALGO_COUNT] = {0};
    cudaEvent_t events[2] = {NULL, NULL};
    for (int i = *place; i < self->count; i++)
        TRY(try_candidate(self, i, &runs[i]));
    int rc = cudai_check(cudaEventCreate(&events[0]), "making an event");
    if (rc == 0)
        rc = cudai_check(cudaEventCreate(&events[1]), "making an event");
    if (rc == 0)
        rc = time_candidates(self, runs, events, best_ms);
    for (int i = 0; i < 2; i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    if (rc < 0)
        return rc;
    int first = *place;
    for (int i = first + 1; i < self->count; i++)
        if (runs[i] && best_ms[i] < best_ms[*place] * (*place == first ? trial_gain : 1.0f))
            *place = i;
    if (*place == first)
        return 0;
    char text[MATMUL_TEXT_BYTES];
    log_info("%s: candidate %d takes %.3g ms, cuBLASLt's first one %.3g ms",
             matmul_text(&self->product->desc, text), *place, (double)best_ms[*place],
             (double)best_ms[first]);
    return 0;
}

/* Takes an algorithm. *is_found is false if there is none. */
static int take_algorithm(struct trial *self, bool *is_found)
{
    kernel_matmul *product = self->product;
    kernel_context *context = product->context;
    char text[MATMUL_TEXT_BYTES];
    int chosen = find_choice(context, &product->desc), place = -1;
    bool runs = false;
    *is_found = false;
    if (self->memory != NULL)
        TRY_CUBLAS(product, "cublasLtMatmulDescSetAttribute of the bias",
                   cudai_product_set_bias(product, self->memory));
    if (chosen >= 0 && chosen < self->count)
        TRY(try_candidate(self, chosen, &runs));
    if (chosen >= 0 && !runs)
        log_warn("%s: the run's algorithm %d does not run here, and another one gives other bits",
                 matmul_text(&product->desc, text), chosen);
    for (int i = 0; i < self->count && !runs; i++) {
        TRY(try_candidate(self, i, &runs));
        place = i;
    }
    if (runs && chosen < 0 && context->tries_products && self->memory != NULL) {
        int first = place;
        TRY(find_fastest(self, &place));
        if (place != first && !add_choice(context, &product->desc, place))
            place = first;
        take(self, place);
    }
    *is_found = runs;
    return self->memory == NULL
               ? 0
               : cudai_check(cudaStreamSynchronize(NULL), "the first matrix product");
}

int cudai_product_choose(kernel_matmul *product, bool *is_found)
{
    struct trial self = {.product = product};
    *is_found = false;
    TRY(find_algorithms(product, self.found, &self.count));
    uint64_t workspace_bytes = 0;
    for (int i = 0; i < self.count; i++)
        if (self.found[i].state == CUBLAS_STATUS_SUCCESS)
            workspace_bytes = size_max(workspace_bytes, self.found[i].workspaceSize);
    self.at = lay_trial(&product->desc, workspace_bytes);
    void *memory = NULL;
    int cuda = self.count > 0 ? cudaMalloc(&memory, self.at.total_bytes) : cudaSuccess;
    if (cuda == cudaErrorMemoryAllocation) {
        char text[MATMUL_TEXT_BYTES], size[SIZE_TEXT_BYTES];
        (void)cudaGetLastError();
        memory = NULL;
        log_info("%s: a trial run needs %s of GPU memory, which are not free; its kernels load at "
                 "the first step",
                 matmul_text(&product->desc, text), size_format(self.at.total_bytes, size));
    } else {
        TRY(cudai_check(cuda, "memory for the first matrix product"));
    }
    self.memory = memory;
    int rc = 0;
    if (memory != NULL)
        rc = cudai_check(cudaMemsetAsync(memory, 0, self.at.total_bytes, NULL),
                         "zeros for a matrix product");
    if (rc == 0)
        rc = take_algorithm(&self, is_found);
    if (memory == NULL)
        return rc;
    cuda = cudaFree(memory);
    if (rc == 0) /* otherwise the first error stays */
        rc = cudai_check(cuda, "freeing the first matrix product's memory");
    return rc;
}
