/* sluice-bigram TRAIN HELDOUT: the loss of a bigram model of bytes, as a baseline for a trained
 * model.
 *
 * Counts pairs of neighbouring bytes in TRAIN and prints the mean of -ln p(byte | byte before)
 * over HELDOUT, in nats per byte, with four digits. A context's counts are smoothed towards the
 * frequencies of the bytes with the weight of one observation, and those frequencies by one
 * observation of each byte, so that no probability is 0. Reads the files in pieces; needs 0.5
 * MB. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { BYTE_COUNT = 256 };

struct bigram {
    uint64_t pairs[BYTE_COUNT][BYTE_COUNT]; /* [before][byte] */
    uint64_t contexts[BYTE_COUNT];          /* sums of the rows of `pairs` */
    uint64_t bytes[BYTE_COUNT];
    uint64_t total;
};

/* Calls `visit` for each byte with the byte before it (-1 for the first). */
static int bigram_read(const char *path, void (*visit)(void *user, int before, unsigned char byte),
                       void *user)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return err_set(ERR_INPUT, "cannot open %s: %s", path, strerror(errno));
    unsigned char piece[65536];
    size_t count;
    int before = -1;
    while ((count = fread(piece, 1, sizeof piece, file)) > 0) {
        for (size_t i = 0; i < count; i++) {
            visit(user, before, piece[i]);
            before = piece[i];
        }
    }
    int failed = ferror(file);
    fclose(file);
    if (failed)
        return err_set(ERR_INPUT, "cannot read %s", path);
    return 0;
}

static void bigram_count(void *user, int before, unsigned char byte)
{
    struct bigram *self = user;
    self->bytes[byte]++;
    self->total++;
    if (before >= 0) {
        self->pairs[before][byte]++;
        self->contexts[before]++;
    }
}

struct bigram_loss {
    const struct bigram *fitted;
    double sum; /* nats */
    uint64_t count;
};

static void bigram_add_loss(void *user, int before, unsigned char byte)
{
    struct bigram_loss *self = user;
    const struct bigram *fitted = self->fitted;
    if (before < 0)
        return;
    double alone = ((double)fitted->bytes[byte] + 1) / ((double)fitted->total + BYTE_COUNT);
    double after =
        ((double)fitted->pairs[before][byte] + alone) / ((double)fitted->contexts[before] + 1);
    self->sum -= log(after);
    self->count++;
}

static int bigram_run(const char *train, const char *heldout)
{
    static struct bigram fitted;
    struct bigram_loss loss = {.fitted = &fitted};
    TRY(bigram_read(train, bigram_count, &fitted));
    TRY(bigram_read(heldout, bigram_add_loss, &loss));
    if (fitted.total < 2 || loss.count == 0)
        return err_set(ERR_INPUT, "%s and %s must have two bytes at least", train, heldout);
    printf("%.4f\n", loss.sum / (double)loss.count);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "use: sluice-bigram TRAIN HELDOUT\n");
        return 2;
    }
    if (bigram_run(argv[1], argv[2]) < 0) {
        fprintf(stderr, "sluice-bigram: error: %s\n", err_text());
        return 2;
    }
    return 0;
}
