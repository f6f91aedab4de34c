/* The place of a document in a token file. See data_internal.h.
 *
 * Nothing is kept in memory. The file's list of documents was checked when the file was opened, and
 * is read again, by pread, for one document at a time. */
#include "base/size.h"
#include "data/data_internal.h"

/* A file of DATA_MADE: reads the end of the document before and its own end. */
static int document_by_ends(const datai_file *self, uint64_t idx, uint64_t *begin, uint64_t *end)
{
    uint64_t ends[2] = {0, 0};
    uint64_t from = idx ? idx - 1 : 0, count = idx ? 2 : 1;
    TRY(datai_pread(self->fd, self->path, self->index_at + 8 * from, 8 * count, ends + 2 - count));
    *begin = ends[0];
    *end = ends[1];
    if (*begin <= *end && *end <= self->token_count)
        return 0;
    return err_set(ERR_INPUT,
                   "%s has changed since it was opened: document %llu ends at token %llu of %llu",
                   self->path, (unsigned long long)idx, (unsigned long long)*end,
                   (unsigned long long)self->token_count);
}

int datai_document(const datai_file *self, uint64_t idx, uint64_t *begin, uint64_t *end)
{
    switch (self->documents) {
    case DATAI_ROWS:
        *begin = idx * self->row_tokens;
        *end = *begin + self->row_tokens;
        return 0;
    case DATAI_MEGATRON:
        return datai_megatron_document(self, idx, begin, end);
    case DATAI_ENDS:
        return document_by_ends(self, idx, begin, end);
    case DATAI_ONE:
        break;
    }
    *begin = 0;
    *end = self->token_count;
    return 0;
}
