/* Programs that other threads make before the search asks for them.
 *
 * Nearly all of a search's time goes into programs: it makes one, sees that its step gains nothing,
 * and makes the next. A scout is a thread that goes through the same search as if no step that is
 * still to be made gained anything, and so comes to the steps that the search will probably ask
 * for. It leaves the next one to the search and makes the one after that:
 *
 *   the search   makes step 7       makes step 8       finds step 9 made
 *   a scout      takes 7 and 8 as no gain, makes 9     takes 10 as no gain, makes 11
 *
 * Where a step gains after all, the scout begins the search again. That is fast, as everything up
 * to there is made by now.
 *
 * A program depends on its question alone, and the search counts the work of a program that it
 * finds made as if it had made it. So the plan, and all counts, are the same with any number of
 * threads. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "plan/search/search_internal.h"

enum {
    SCOUTS_MOST = 3,  /* more of them assume too much */
    ASSUMED_MOST = 8, /* steps that a scout takes as no gain before they are made */
    LONG_STEP = 4096, /* ops: for shorter steps, scouts cost more than they gain */
    /* Ops of a step times scouts: each scout keeps a program of its own, some 1.5 KB an op. */
    SCOUTED_OPS_MOST = 1 << 19,
    QUESTIONS = 8192, /* a power of 2 */
    QUESTIONS_MOST = QUESTIONS * 3 / 4,
};

struct question {
    enum { QUESTION_NONE, QUESTION_TAKEN, QUESTION_ANSWERED, QUESTION_GIVEN_BACK } state;
    struct plani_answer answer;
};

struct plani_scout {
    pthread_t thread;
    plani_search search;
    plani_work work;
    struct plani_answer assumed[ASSUMED_MOST]; /* taken as no gain, and not known yet */
    uint32_t assumed_count;
};

struct plani_scouts {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a question was answered or given back, or `ends` */
    bool ends;
    plani_search begin;    /* the search where it began, but for its homes */
    plani_work begin_work; /* its work there */
    struct plani_scout scouts[SCOUTS_MOST];
    uint32_t scout_count;
    bool has_started;
    struct question questions[QUESTIONS];
    uint32_t question_count;
};

/* ---- questions ------------------------------------------------------------------------------ */

/* The question's slot, or the empty one where it belongs. */
static struct question *slot_of(struct plani_scouts *self, const struct plani_answer *asked)
{
    uint64_t at = (asked->key ^ asked->limit_ns) & (QUESTIONS - 1);
    struct question *slot = &self->questions[at];
    while (slot->state != QUESTION_NONE &&
           (slot->answer.key != asked->key || slot->answer.limit_ns != asked->limit_ns)) {
        at = (at + 1) & (QUESTIONS - 1);
        slot = &self->questions[at];
    }
    return slot;
}

/* The caller will answer it. Returns 1. */
static int take(struct plani_scouts *self, struct question *slot, const struct plani_answer *asked)
{
    if (slot->state == QUESTION_NONE && self->question_count == QUESTIONS_MOST)
        return 1; /* a full table only costs the repetition */
    self->question_count += slot->state == QUESTION_NONE;
    *slot = (struct question){QUESTION_TAKEN, *asked};
    return 1;
}

/* Finds the answer. Returns 0. */
static int find(const struct question *slot, plani_work *work, struct plani_answer *asked)
{
    *asked = slot->answer;
    plani_count_work(work, asked->ops, asked->step_ops);
    work->scouted_count++;
    return 0;
}

static int ask_as_search(struct plani_scouts *self, plani_work *work, struct plani_answer *asked)
{
    struct question *slot = slot_of(self, asked);
    while (slot->state == QUESTION_TAKEN)
        pthread_cond_wait(&self->changed, &self->mutex);
    if (slot->state == QUESTION_ANSWERED)
        return find(slot, work, asked);
    return take(self, slot, asked);
}

/* Forgets what was rightly taken as no gain. *leaves: nobody has begun one of the other steps.
 * -EAGAIN: a step gained, or did not fit. */
static int settle(struct plani_scouts *self, struct plani_scout *scout, bool *leaves)
{
    uint32_t count = 0;
    *leaves = false;
    for (uint32_t i = 0; i < scout->assumed_count; i++) {
        const struct question *slot = slot_of(self, &scout->assumed[i]);
        const struct plani_answer *found = &slot->answer;
        if (slot->state != QUESTION_ANSWERED) {
            *leaves = *leaves || slot->state != QUESTION_TAKEN;
            scout->assumed[count++] = scout->assumed[i];
        } else if (found->rc < 0 || found->step.ns < found->limit_ns) {
            return -EAGAIN;
        }
    }
    scout->assumed_count = count;
    return 0;
}

static int ask_as_scout(struct plani_scouts *self, struct plani_scout *scout,
                        struct plani_answer *asked)
{
    while (!self->ends && self->question_count < QUESTIONS_MOST) {
        bool leaves, needs = asked->limit_ns == 0; /* serial order, or a step that gains for sure */
        struct question *slot = slot_of(self, asked);
        TRY(settle(self, scout, &leaves));
        if (slot->state == QUESTION_ANSWERED)
            return find(slot, &scout->work, asked);
        if (slot->state != QUESTION_TAKEN && (leaves || needs))
            return take(self, slot, asked);
        if (!needs && scout->assumed_count < ASSUMED_MOST) {
            asked->rc = 1;
            asked->step = (struct plani_figures){.ns = UINT64_MAX, .bound_ns = asked->limit_ns};
            scout->assumed[scout->assumed_count++] = *asked;
            scout->work.ops += scout->work.step_ops; /* about */
            return 0;
        }
        pthread_cond_wait(&self->changed, &self->mutex);
        if (!needs) /* it may have gone another way than the search */
            return -EAGAIN;
    }
    return -ECANCELED;
}

/* ---- scouts --------------------------------------------------------------------------------- */

/* Goes back to where the search began. */
static int begin_again(const struct plani_scouts *self, struct plani_scout *scout)
{
    plani_search *search = &scout->search;
    uint8_t *homes[STATE_KIND_COUNT];
    memcpy(homes, search->homes, sizeof homes);
    *search = self->begin;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        search->job.homes[kind] = search->homes[kind] = homes[kind];
    search->job.watch = NULL;
    search->work = &scout->work;
    scout->assumed_count = 0;
    return plani_work_copy(&scout->work, &self->begin_work);
}

static void *run_scout(void *argument)
{
    struct plani_scout *scout = argument;
    struct plani_scouts *self = scout->work.scouts;
    int rc;
    do {
        rc = begin_again(self, scout);
        rc = rc == 0 ? plani_walk_ways(&scout->search) : rc;
        pthread_mutex_lock(&self->mutex);
        if (rc == 0 && !self->ends) /* to the end, perhaps by a wrong assumption */
            pthread_cond_wait(&self->changed, &self->mutex);
        rc = self->ends ? -ECANCELED : rc;
        pthread_mutex_unlock(&self->mutex);
    } while (rc == 0 || rc == -EAGAIN);
    return NULL;
}

/* Gives the scout homes of its own. */
static int make_homes(struct plani_scouts *self, struct plani_scout *scout)
{
    const plani_search *begin = &self->begin;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        scout->search.homes[kind] = mem_alloc(begin->job.unit_count, 1, "plan scouts");
        if (!scout->search.homes[kind])
            return -ENOMEM;
        memcpy(scout->search.homes[kind], begin->homes[kind], begin->job.unit_count);
    }
    return 0;
}

static void free_scout(struct plani_scout *scout)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        mem_free(scout->search.homes[kind]);
    plani_work_fini(&scout->work);
}

/* The search's thread calls it. Where a scout cannot be started there are fewer. */
static void start_scouts(struct plani_scouts *self, uint64_t step_ops)
{
    uint64_t count = size_min(self->begin.job.threads - 1, SCOUTED_OPS_MOST / step_ops);
    count = size_min(count, SCOUTS_MOST);
    self->has_started = true;
    while (self->scout_count < count) {
        struct plani_scout *scout = &self->scouts[self->scout_count];
        scout->work.scouts = self;
        scout->work.scout = scout;
        if (make_homes(self, scout) < 0 || thread_start(&scout->thread, run_scout, scout) != 0) {
            free_scout(scout);
            return;
        }
        self->scout_count++;
    }
}

/* ---- for the search ------------------------------------------------------------------------- */

void plani_scouts_begin(plani_search *search)
{
    struct plani_scouts *self = NULL;
    if (search->job.threads > 1)
        self = mem_alloc(1, sizeof *self, "plan scouts");
    if (!self)
        return;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    self->begin = *search;
    search->work->scouts = self;
    if (plani_work_copy(&self->begin_work, search->work) < 0)
        plani_scouts_end(search);
}

void plani_scouts_end(plani_search *search)
{
    struct plani_scouts *self = search->work->scouts;
    search->work->scouts = NULL;
    if (!self)
        return;
    pthread_mutex_lock(&self->mutex);
    self->ends = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i < self->scout_count; i++) {
        pthread_join(self->scouts[i].thread, NULL);
        free_scout(&self->scouts[i]);
    }
    plani_work_fini(&self->begin_work);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    mem_free(self);
}

int plani_ask(const plan_job *job, plani_work *work, struct plani_answer *asked)
{
    struct plani_scouts *self = work->scouts;
    if (!self)
        return 1;
    pthread_mutex_lock(&self->mutex);
    if (!self->has_started && work->step_ops >= LONG_STEP)
        start_scouts(self, work->step_ops);
    int rc =
        work->scout ? ask_as_scout(self, work->scout, asked) : ask_as_search(self, work, asked);
    pthread_mutex_unlock(&self->mutex);
    if (rc == 0)
        plani_note_work(job, NULL, asked->ops);
    return rc;
}

void plani_tell(plani_work *work, const struct plani_answer *made)
{
    struct plani_scouts *self = work->scouts;
    plani_count_work(work, made->ops, made->step_ops);
    if (!self)
        return;
    pthread_mutex_lock(&self->mutex);
    struct question *slot = slot_of(self, made);
    bool is_error = made->rc < 0 && made->rc != ERR_NO_FIT;
    if (slot->state == QUESTION_TAKEN)
        *slot = (struct question){is_error ? QUESTION_GIVEN_BACK : QUESTION_ANSWERED, *made};
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}
