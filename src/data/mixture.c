/* Several weighted sources. See mixture.h.
 *
 * Let W(s) be the sum of the shares of the sources 0 .. s, as a fraction of 2^62. When block b
 * begins, source s has had floor(W(s) 1024 b) - floor(W(s - 1) 1024 b) windows. These are whole
 * numbers, so no error accumulates, and a block gives each source its share rounded up or down. (A
 * source's number never falls, because each share is at least one window of a block.)
 *
 * The block's permutation assigns a source to each place. The source's own window is the number of
 * windows that the source had before the block, plus the number of its places before this one. */
#include "data/mixture.h"

#include <assert.h>
#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "data/data_internal.h"

enum { BLOCK = 1024 };

#define WHOLE ((uint64_t)1 << 62)

/* Streams of rng.h: the word "mixture" in ASCII, then a number in the low byte. */
#define STREAM_MIXTURE 0x6d69787475726500u
#define STREAM_SEEDS   (STREAM_MIXTURE + 0xff)

struct mixture {
    sampler sources[MIXTURE_SOURCES_MAX]; /* the mixture owns their corpora */
    uint32_t source_count;
    uint64_t upto[MIXTURE_SOURCES_MAX + 1]; /* [s]: W(s - 1), as a fraction of WHOLE */
    uint64_t seed;
    bool has_marks, is_separate;
    masking mask;              /* share 0: nothing is masked */
    uint64_t block;            /* the block of the tables below; UINT64_MAX: not filled yet */
    uint8_t source_of[BLOCK];  /* [place] */
    uint16_t number_of[BLOCK]; /* [place]: number of the place among those of its source */
};

static_assert(MIXTURE_SOURCES_MAX <= UINT8_MAX + 1 && BLOCK <= UINT16_MAX + 1, "tables of a block");

/* floor(W x / 2^62) */
static uint64_t part_of(uint64_t fraction, uint64_t windows)
{
    return (uint64_t)((unsigned __int128)fraction * windows >> 62);
}

/* Windows that a source has had when block `block` begins. */
static uint64_t had_before(const mixture *self, uint32_t source, uint64_t block)
{
    return part_of(self->upto[source + 1], block * BLOCK) -
           part_of(self->upto[source], block * BLOCK);
}

static int share_out(mixture *self, const double *weights)
{
    double sum = 0, upto = 0;
    uint32_t count = self->source_count;
    for (uint32_t s = 0; s < count; s++)
        sum += weights[s];
    for (uint32_t s = 0; s < count; s++) {
        double share = weights[s] / sum;
        upto += share;
        /* the sum of rounded fractions may reach 1 early */
        bool is_last = s + 1 == count || upto >= 1;
        self->upto[s + 1] = is_last ? WHOLE : (uint64_t)(upto * (double)WHOLE);
        if (count > 1 && (self->upto[s + 1] < self->upto[s] ||
                          self->upto[s + 1] - self->upto[s] < WHOLE / BLOCK))
            return err_set(
                ERR_INPUT,
                "source %u (from 0) of data.train has %.3g%% of the weight, less than one "
                "window in %d: give it more, or leave it out",
                s, 100 * share, (int)BLOCK);
    }
    return 0;
}

int mixture_create(corpus *const *sources, const double *weights, uint32_t source_count,
                   uint64_t seed, uint64_t tokens_per_window, enum shuffle shuffle,
                   enum documents documents, mixture **out)
{
    *out = NULL;
    mixture *self = mem_alloc(1, sizeof *self, "data sources");
    int rc = self ? 0 : -ENOMEM;
    uint32_t taken = 0;
    if (rc == 0 && (source_count == 0 || source_count > MIXTURE_SOURCES_MAX))
        rc =
            err_set(-EINVAL, "%u sources; 1 to %d are possible", source_count, MIXTURE_SOURCES_MAX);
    for (; rc == 0 && taken < source_count; taken++) {
        uint64_t own = taken == 0 ? seed : rng_u64(seed, STREAM_SEEDS, taken);
        rc = sampler_init(&self->sources[taken], sources[taken], own, tokens_per_window, shuffle);
        if (rc < 0)
            break;
        self->source_count++;
        self->has_marks = self->has_marks || corpus_has_marks(sources[taken]);
        self->is_separate = self->is_separate || (documents == DOCUMENTS_SEPARATE &&
                                                  corpus_has_documents(sources[taken]));
    }
    if (rc == 0)
        rc = share_out(self, weights);
    if (rc == 0) {
        self->seed = seed;
        self->block = UINT64_MAX;
        *out = self;
        return 0;
    }
    for (uint32_t s = taken; s < source_count; s++)
        corpus_close(sources[s]);
    mixture_destroy(self);
    return rc;
}

void mixture_destroy(mixture *self)
{
    for (uint32_t s = 0; self && s < self->source_count; s++) {
        corpus_close(self->sources[s].source);
        sampler_fini(&self->sources[s]);
    }
    mem_free(self);
}

uint32_t mixture_source_count(const mixture *self)
{
    return self->source_count;
}

corpus *mixture_source(const mixture *self, uint32_t idx)
{
    return self->sources[idx].source;
}

uint64_t mixture_token_count(const mixture *self)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < self->source_count; s++)
        count += corpus_token_count(self->sources[s].source);
    return count;
}

bool mixture_has_uncounted(const mixture *self)
{
    return self->has_marks || self->is_separate || self->mask.share > 0;
}

bool mixture_is_separate(const mixture *self)
{
    return self->is_separate;
}

bool mixture_is_text(const mixture *self)
{
    bool is_text = true;
    for (uint32_t s = 0; s < self->source_count; s++)
        is_text = is_text && corpus_is_text(self->sources[s].source);
    return is_text;
}

/* Fills the tables of a block: assigns the places of the permutation to the sources in order. */
static void deal(mixture *self, uint64_t block)
{
    uint64_t ends[MIXTURE_SOURCES_MAX], sum = 0;
    uint16_t numbers[MIXTURE_SOURCES_MAX] = {0};
    for (uint32_t s = 0; s < self->source_count; s++) {
        sum += had_before(self, s, block + 1) - had_before(self, s, block);
        ends[s] = sum;
    }
    for (uint32_t place = 0; place < BLOCK; place++) {
        uint64_t drawn = datai_permute(self->seed, STREAM_MIXTURE, block, BLOCK, place);
        uint32_t s = 0;
        while (drawn >= ends[s])
            s++;
        self->source_of[place] = (uint8_t)s;
        self->number_of[place] = numbers[s]++;
    }
    self->block = block;
}

void mixture_mask(mixture *self, const masking *by)
{
    self->mask = *by;
}

static void mask(const mixture *self, uint64_t seed, uint64_t idx, int32_t *inputs,
                 int32_t *targets)
{
    if (self->mask.share > 0)
        masking_apply(&self->mask, seed, idx, self->sources[0].tokens_per_window, inputs, targets);
}

static int window_of_source(mixture *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                            int32_t *begins)
{
    if (self->source_count == 1)
        return sampler_window(&self->sources[0], idx, inputs, targets, begins);
    uint64_t block = idx / BLOCK, place = idx % BLOCK;
    if (self->block != block)
        deal(self, block);
    uint32_t source = self->source_of[place];
    return sampler_window(&self->sources[source],
                          had_before(self, source, block) + self->number_of[place], inputs, targets,
                          begins);
}

int mixture_window(mixture *self, uint64_t idx, int32_t *inputs, int32_t *targets, int32_t *begins)
{
    TRY(window_of_source(self, idx, inputs, targets, self->is_separate ? begins : NULL));
    mask(self, self->seed, idx, inputs, targets);
    return 0;
}

uint64_t mixture_windows_in_order(const mixture *self)
{
    return self->sources[0].windows_per_epoch;
}

int mixture_window_in_order(mixture *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                            int32_t *begins)
{
    TRY(sampler_window_in_order(&self->sources[0], idx, inputs, targets,
                                self->is_separate ? begins : NULL));
    mask(self, MASKING_FIXED_SEED, idx, inputs, targets);
    return 0;
}

mixture_use mixture_get_use(const mixture *self, uint32_t source, uint64_t window_count)
{
    mixture_use use = {
        .windows = part_of(self->upto[source + 1], window_count) -
                   part_of(self->upto[source], window_count),
        .share = (double)(self->upto[source + 1] - self->upto[source]) / (double)WHOLE,
    };
    use.epochs = (double)use.windows / (double)self->sources[source].windows_per_epoch;
    return use;
}
