/* Several weighted sources as one sequence of windows.
 *
 * The source of window w, and which of that source's own windows it is, depend only on (seed, w),
 * so resuming needs only the number. Windows are distributed in blocks of 1024. In each block every
 * source has its share of the windows, exact to one window, and so also of all windows from the
 * beginning. The order within a block is a seeded permutation. A source's own windows come in its
 * own order (corpus.h), so its epochs follow one another independently of the other sources. A
 * mixture of one source is just that source's sampler.
 *
 * One thread. Reading a window allocates nothing. */
#ifndef SLUICE_DATA_MIXTURE_H
#define SLUICE_DATA_MIXTURE_H

#include "data/corpus.h"
#include "data/masking.h"

enum { MIXTURE_SOURCES_MAX = 64 };

typedef struct mixture mixture;

/* Takes ownership of the corpora, also on failure. weights are above 0, with any sum. A window has
 * T = tokens_per_window tokens. DOCUMENTS_SEPARATE has an effect if some source has several
 * documents. ERR_INPUT for a source that is too short for one window, and for a
 * share of less than one window in 1024. */
int mixture_create(corpus *const *sources, const double *weights, uint32_t source_count,
                   uint64_t seed, uint64_t tokens_per_window, enum shuffle shuffle,
                   enum documents documents, mixture **out) MUST_CHECK;
void mixture_destroy(mixture *self); /* NULL is allowed */
/* From now on windows have masked tokens (masking.h). mixture_window takes the mixture's seed and
 * the number of the window, mixture_window_in_order MASKING_FIXED_SEED. */
void mixture_mask(mixture *self, const masking *by);

uint32_t mixture_source_count(const mixture *self);
corpus *mixture_source(const mixture *self, uint32_t idx);
uint64_t mixture_token_count(const mixture *self); /* of all sources */
/* True if some tokens do not count as targets: marked ones, the first ones of documents that are
 * separate, or all that are not masked. */
bool mixture_has_uncounted(const mixture *self);
bool mixture_is_separate(const mixture *self); /* windows tell their documents apart */
bool mixture_is_text(const mixture *self);     /* all sources are text as bytes */

/* As sampler_window. begins is written if mixture_is_separate, and may be NULL if not. */
int mixture_window(mixture *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                   int32_t *begins) MUST_CHECK;

/* Windows in order, for evaluation; only of source 0. */
uint64_t mixture_windows_in_order(const mixture *self);
int mixture_window_in_order(mixture *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                            int32_t *begins) MUST_CHECK;

/* The use of one source in the first `window_count` windows: its own windows, its share of all
 * windows, and the number of its epochs. */
struct mixture_use {
    uint64_t windows;
    double share, epochs;
};
typedef struct mixture_use mixture_use;
mixture_use mixture_get_use(const mixture *self, uint32_t source, uint64_t window_count);

#endif
