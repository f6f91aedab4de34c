/* Token sources and the sampler.
 *
 * CORPUS. A corpus is one or more files, read as one sequence of tokens in the order in which the
 * files were named. A window may cross the border of two files or of two documents. The corpus is
 * opened once and read with pread for each window, so neither its size nor its index counts against
 * a budget.
 *
 *   format    contents of a file                        recognized by
 *   text      UTF-8; token = byte value. If its format  no other format fits, and the name does not
 *             was named, the bytes may be any           end in .bin
 *   llmc      llm.c's .bin: 256 int32 (magic, version,  magic 20240520 (version 1, uint16) or
 *             token count, zeros), then the tokens      20240801 (version 7, uint32)
 *   u16, u32  only token ids                            never: name it in data.format
 *   megatron  NAME.bin: only token ids; NAME.idx:       NAME.idx beside it; NAME, NAME.bin or
 *             "MMIDIDX", version 1, type, counts,       NAME.idx may be given
 *             lengths and places of sequences,
 *             documents
 *   npy       NumPy's array of token ids: u1 to u8, i1  its first bytes
 *             to i8; of one dimension, or of two, where
 *             each row is a document
 *   made      converted from text or JSON records by    its first bytes
 *             src/data/prepare.h
 *   jsonl     JSON records, one a line or in one array; the name ends in .json, .jsonl or .ndjson,
 *             not read here: prepare.h converts them.   or the first record is of a known kind
 *             messages, alpaca, sharegpt and
 *             prompt_completion are jsonl whose kind is
 *             named
 *
 * All numbers are little-endian. Megatron's tokens may be integers of 8, 16, 32 or 64 bits, and its
 * documents must be stored in their order.
 *
 * DOCUMENTS. They come from Megatron's index, from the rows of an array, or from what prepare.h was
 * given. In all other formats each file is one document. A token may be marked as not counting as a
 * target (only in made files): corpus_read returns it like any other, corpus_read_targets returns
 * -1.
 *
 * SAMPLER. It depends only on (seed, window number), so resuming needs only the number. Windows of
 * T + 1 tokens lie end to end with stride T. Each epoch has its own seeded permutation and its own
 * seeded shift of the windows. Every token is seen once before any is seen twice.
 *
 * A corpus and its samplers belong to one thread. */
#ifndef SLUICE_DATA_CORPUS_H
#define SLUICE_DATA_CORPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"

/* Bit of a token, where tokens are uint32_t: it does not count as a target. */
#define TOKEN_UNCOUNTED ((uint32_t)1 << 31)

typedef struct corpus corpus;

/* Opens token files of the given format (data.format). vocab_size is the model's; 0 allows any
 * token up to 2^31 - 1. Tokens of text are below 256 in any case. Headers and indices are checked
 * completely. Among the tokens, the first of each file are checked against vocab_size now, 64 MiB
 * over all files together; every token is checked when it is read.
 *
 * ERR_INPUT with the path for:
 * - a missing, unreadable, empty or truncated file, a directory, a file of another program;
 * - a .bin whose format is unknown;
 * - text that is not UTF-8, with the place: the first bytes now, the others when they are read;
 * - text among token files;
 * - a token outside the vocabulary. */
int corpus_open_as(const char *const *paths, uint32_t path_count, enum data_format format,
                   uint64_t vocab_size, corpus **out) MUST_CHECK;

/* True for jsonl and the formats that name a kind of JSON records. */
bool corpus_is_json(enum data_format format);

/* The same for files that each have their own format. */
int corpus_open_each(const char *const *paths, const enum data_format *formats, uint32_t path_count,
                     uint64_t vocab_size, corpus **out) MUST_CHECK;

void corpus_close(corpus *self);
uint64_t corpus_token_count(const corpus *self);
bool corpus_is_text(const corpus *self);

/* Reads tokens [begin, begin + count) of the whole sequence into tokens[count]. ERR_INPUT if a
 * token is outside the vocabulary (the text has file, position, token) or a file has become
 * shorter. */
int corpus_read(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;

/* As corpus_read, but -1 for each token that does not count as a target. */
int corpus_read_targets(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;
/* corpus_has_marks: true if some token does not count as a target. corpus_counted: the number of
 * tokens that count. */
bool corpus_has_marks(const corpus *self);
uint64_t corpus_counted(const corpus *self);

/* The documents of all files, in order; together they are the whole sequence. A document may be
 * empty. corpus_document reads the file's index, with up to three small reads. */
uint64_t corpus_document_count(const corpus *self);
int corpus_document(corpus *self, uint64_t idx, uint64_t *begin, uint64_t *count) MUST_CHECK;
/* The document that holds the token `at`. As many times three small reads as the number of
 * documents has bits. */
int corpus_document_of(corpus *self, uint64_t at, uint64_t *idx) MUST_CHECK;
/* In files of ids that store no documents (llmc, u16, u32), this token ends documents. In a file
 * that begins with this token, like llm.c's files, it begins each document. The functions above do
 * not count such documents; only corpus_separate knows them. -1: there is no such token. */
int corpus_set_end_token(corpus *self, int32_t token) MUST_CHECK;
/* True if the corpus has several documents, or an end token that divides it. */
bool corpus_has_documents(const corpus *self);

/* Tells the documents of a window apart. The window has the count + 1 tokens from `from` on. All
 * but the last are inputs [count], all but the first are targets [count]. begins [count]: begins[t]
 * is the place in the window of the first input that belongs to the document of input t; 0 for a
 * document that began before the window. The first token of a document does not count as a target
 * (-1), because no token of its document precedes it. */
int corpus_separate(corpus *self, uint64_t from, uint64_t count, const int32_t *inputs,
                    int32_t *targets, int32_t *begins) MUST_CHECK;

struct sampleri_documents;

struct sampler {
    corpus *source;
    uint64_t seed;
    uint64_t tokens_per_window; /* T */
    uint64_t windows_per_epoch; /* each has all its T + 1 tokens */
    enum shuffle shuffle;
    struct sampleri_documents *documents; /* for SHUFFLE_DOCUMENTS; else NULL */
};
typedef struct sampler sampler;

/* ERR_INPUT if the corpus has fewer than T + 2 tokens. `source` is borrowed until sampler_fini.
 *
 * SHUFFLE_DOCUMENTS allocates at most 512 KiB, whatever the number of documents. At the first
 * window of an epoch it reads the place of each document, which takes about a microsecond per
 * document. Each window then takes a search, and up to documents / 65536 more such reads. */
int sampler_init(sampler *self, corpus *source, uint64_t seed, uint64_t tokens_per_window,
                 enum shuffle shuffle) MUST_CHECK;
void sampler_fini(sampler *self);

/* Window number `idx` (0, 1, 2, ... over all epochs): inputs [T] and targets [T], which are the
 * next tokens, or -1 for a token that does not count.
 *
 * begins [T]: documents are told apart as corpus_separate does it; NULL: they are not. */
int sampler_window(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                   int32_t *begins) MUST_CHECK;

/* For evaluation: window `idx` of the corpus in order, without shuffling; it wraps around at the
 * end. */
int sampler_window_in_order(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                            int32_t *begins) MUST_CHECK;

#endif
