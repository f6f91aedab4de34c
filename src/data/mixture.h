/* Several weighted sources as one sequence of windows.
 *
 * Which source window w comes from, and which of that source's own windows it is, is a function of
 * (seed, w) alone, so that resuming needs only the number. Windows are dealt in blocks of 1024: in
 * each block every source has its share of them, to one window, as it has of all windows from the
 * beginning; within a block their order is a seeded permutation. A source's own windows come in its
 * own order (corpus.h), so its epochs follow one another, whatever the others do. One source is
 * what its sampler is, without any of this.
 *
 * One thread; a window allocates nothing. */
#ifndef SLUICE_DATA_MIXTURE_H
#define SLUICE_DATA_MIXTURE_H

#include "data/corpus.h"

enum { MIXTURE_SOURCES_MAX = 64 };

typedef struct mixture mixture;

/* Takes the corpora, also on failure. weights: above 0, of any sum. T tokens a window. ERR_INPUT
 * for a source that is too short for a window, and for one whose share is below a window of
 * 1024. */
int mixture_create(corpus *const *sources, const double *weights, uint32_t source_count,
                   uint64_t seed, uint64_t tokens_per_window, enum shuffle shuffle,
                   mixture **out) MUST_CHECK;
void mixture_destroy(mixture *self); /* NULL is allowed */

uint32_t mixture_source_count(const mixture *self);
corpus *mixture_source(const mixture *self, uint32_t idx);
uint64_t mixture_token_count(const mixture *self); /* of all sources */
bool mixture_has_marks(const mixture *self);       /* whether some tokens do not count as targets */
bool mixture_is_text(const mixture *self);         /* all sources are text as bytes */

/* As sampler_window. */
int mixture_window(mixture *self, uint64_t idx, int32_t *inputs, int32_t *targets) MUST_CHECK;

/* Windows in order, for evaluation, of one source. */
uint64_t mixture_windows_in_order(const mixture *self);
int mixture_window_in_order(mixture *self, uint64_t idx, int32_t *inputs,
                            int32_t *targets) MUST_CHECK;

/* Of the first `window_count` windows: the source's own, its share of all, and how often it is gone
 * through. */
struct mixture_use {
    uint64_t windows;
    double share, epochs;
};
typedef struct mixture_use mixture_use;
mixture_use mixture_get_use(const mixture *self, uint32_t source, uint64_t window_count);

#endif
