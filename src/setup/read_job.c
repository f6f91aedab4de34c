/* One job for all ranks: rank 0 reads it, and the others get its text. See summary.h. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "config/config.h"
#include "setup/setup_internal.h"

/* Rank 0 sends this before the job's text. */
struct job_head {
    uint64_t text_bytes;
    uint64_t fresh; /* 0 or 1: run.fresh, which is not part of the text */
};

/* Sends rank 0's text to all ranks; the others read the job from it. */
static int share_text(comm *ranks, const char *path, uint64_t text_bytes, char *text, job **out)
{
    bool is_first = comm_get_rank(ranks) == 0;
    TRY(comm_broadcast(ranks, "the job", text, text_bytes));
    int rc = 0;
    if (!is_first) {
        enum log_level level = log_get_level();
        log_set_level(LOG_QUIET); /* rank 0 has already logged the warnings */
        rc = job_read_text_ranks(path, text, text_bytes, NULL, 0, comm_get_world(ranks), out);
        log_set_level(level);
    }
    return comm_agree(ranks, "reading the job", rc);
}

int setup_read_job(comm *ranks, const char *path, const char *const *set, uint32_t set_count,
                   job **out, bool *fresh)
{
    bool is_first = comm_get_rank(ranks) == 0;
    struct job_head head = {.text_bytes = 0};
    job *asked = NULL;
    int rc = 0;
    *out = NULL;
    *fresh = false;
    if (is_first)
        rc = job_read_ranks(path, set, set_count, comm_get_world(ranks), &asked);
    TRY(comm_agree(ranks, "reading the job", rc));
    if (is_first)
        head = (struct job_head){.text_bytes = strlen(asked->text), .fresh = asked->run.fresh};
    char *text = NULL;
    TRY_GOTO(rc, comm_broadcast(ranks, "the job", &head, sizeof head), failed);
    text = mem_alloc(head.text_bytes + 1, 1, "job text");
    TRY_GOTO(rc, comm_agree(ranks, "reading the job", text ? 0 : -ENOMEM), failed);
    if (is_first)
        memcpy(text, asked->text, head.text_bytes);
    TRY_GOTO(rc, share_text(ranks, path, head.text_bytes, text, &asked), failed);
    mem_free(text);
    comm_set_timeouts(ranks, asked->comm.timeout_seconds, asked->comm.exit_seconds);
    *fresh = head.fresh != 0;
    *out = asked;
    return 0;
failed:
    mem_free(text);
    job_destroy(asked);
    return rc;
}
