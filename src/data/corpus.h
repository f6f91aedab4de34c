/* Token sources and the sampler.
 *
 * A corpus is one or more files seen as one sequence of tokens, file after file as they were named:
 * a window may begin in one file and end in the next, and in one document and the next. It is
 * opened once and read with pread per window, so neither its size nor its index counts against any
 * budget. The sampler is a function of (seed, window number) alone: resuming needs only the number.
 * Windows of T + 1 tokens are laid end to end (stride T) and visited in a seeded permutation per
 * epoch, with a seeded shift per epoch, so every token is seen once before any is seen twice. One
 * thread.
 *
 *   format    what a file holds                                         recognized by
 *   text      bytes; token = byte value                                 nothing else fits, and its name
 *                                                                       does not end in .bin
 *   llmc      llm.c's .bin: 256 int32 (magic, version, token count,     magic 20240520 (version 1, uint16
 *             zeros), then the tokens                                   tokens) or 20240801 (version 7,
 *                                                                       uint32)
 *   u16, u32  token ids alone, little-endian                            must be named: data.format
 *   megatron  NAME.bin: token ids alone; NAME.idx: "MMIDIDX", version   NAME.idx beside it; NAME, NAME.bin
 *             1, type, counts, lengths and places of sequences,         or NAME.idx may be given
 *             documents
 *   npy       NumPy's array of token ids: u1 to u8, i1 to i8, of one    what it begins with
 *             dimension, or of two: each row is a document
 *   made      what src/data/prepare.h makes of text and JSON lines      what it begins with
 *   jsonl     JSON lines; not read here: prepare.h makes token files    its name ends in .jsonl or .ndjson
 *             of them
 *
 * Documents are those of Megatron's index, the rows of an array, what prepare.h was told; else each
 * file is one. A token may be marked as one that does not count as a target (in made files):
 * corpus_read gives it like any other, corpus_read_targets gives -1.
 *
 * All are little-endian. Megatron's tokens may be 8-, 16-, 32- and 64-bit integers; its documents
 * follow one another in their order. */
#ifndef SLUICE_DATA_CORPUS_H
#define SLUICE_DATA_CORPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"

typedef struct corpus corpus;

/* Opens token files of the given format (data.format). vocab_size is the model's; 0: any token up
 * to 2^31 - 1. Headers and indices are checked whole; of the tokens, the first of each file are
 * held against vocab_size now (64 MiB of all files together), each of them whenever it is read.
 *
 * ERR_INPUT with the path for a missing, unreadable, empty, truncated or foreign file, a
 * directory, a .bin whose format cannot be told, text among token files, and a token outside the
 * vocabulary. */
int corpus_open_as(const char *const *paths, uint32_t path_count, enum data_format format,
                   uint64_t vocab_size, corpus **out) MUST_CHECK;

/* The same of files that each have a format of their own. */
int corpus_open_each(const char *const *paths, const enum data_format *formats, uint32_t path_count,
                     uint64_t vocab_size, corpus **out) MUST_CHECK;

/* As corpus_open_as with DATA_TEXT: bytes, vocabulary 256, whatever the files begin with. */
int corpus_open(const char *const *paths, uint32_t path_count, corpus **out) MUST_CHECK;
void corpus_close(corpus *self);
uint64_t corpus_token_count(const corpus *self);
/* Every token is below it: 256 for text, else the vocab_size given (2^31 for 0). */
uint64_t corpus_vocab(const corpus *self);
bool corpus_is_text(const corpus *self);

/* Tokens [begin, begin + count) of the whole sequence as int32. ERR_INPUT where a token is not in
 * the vocabulary (file, position, token) or a file has become shorter. */
int corpus_read(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;

/* As corpus_read, but -1 for each token that does not count as a target. */
int corpus_read_targets(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;
/* Whether there is such a token; how many there are that do count. */
bool corpus_has_marks(const corpus *self);
uint64_t corpus_counted(const corpus *self);

/* Documents of all files, in order; together they are the whole sequence. One may be empty. Reads
 * the file's index: up to three small reads. */
uint64_t corpus_document_count(const corpus *self);
int corpus_document(corpus *self, uint64_t idx, uint64_t *begin, uint64_t *count) MUST_CHECK;

struct sampleri_documents;

struct sampler {
    corpus *source;
    uint64_t seed;
    uint64_t tokens_per_window; /* T */
    uint64_t windows_per_epoch; /* so that each has its T + 1 tokens */
    enum shuffle shuffle;
    struct sampleri_documents *documents; /* SHUFFLE_DOCUMENTS; else NULL */
};
typedef struct sampler sampler;

/* ERR_INPUT when the corpus has fewer than T + 2 tokens. */
int sampler_init(sampler *self, corpus *source, uint64_t seed,
                 uint64_t tokens_per_window) MUST_CHECK;
/* The same in another order. SHUFFLE_DOCUMENTS allocates at most 512 KiB, whatever the number of
 * documents, and at the first window of an epoch reads where each of them lies (about a microsecond
 * a document); a window then takes a search, and up to documents / 65536 more such reads. Ended by
 * sampler_fini, as is the above. */
int sampler_init_as(sampler *self, corpus *source, uint64_t seed, uint64_t tokens_per_window,
                    enum shuffle shuffle) MUST_CHECK;
void sampler_fini(sampler *self);

/* Window number `idx` (0, 1, 2, ... over all epochs): inputs [T] and targets [T] (the next tokens;
 * -1: it does not count). */
int sampler_window(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets) MUST_CHECK;

/* For evaluation: window `idx` of the corpus in order, no shuffling; wraps around. */
int sampler_window_in_order(sampler *self, uint64_t idx, int32_t *inputs,
                            int32_t *targets) MUST_CHECK;

#endif
