/* The reference curves of tests/reference as jobs: the text and the job that a fixture describes.
 * Include after cmocka.h. Every function fails the test where it cannot do its part. */
#ifndef SLUICE_TESTS_TRAIN_CURVE_H
#define SLUICE_TESTS_TRAIN_CURVE_H

#include "tests/train/train_fixture.h"

/* Opens a curve of tests/reference/curves.json by its name. Free it with json_decref. */
json_t *curve_open(const char *name);

/* Members that must be there. */
json_t *curve_member(const json_t *object, const char *key);
double curve_number(const json_t *object, const char *key);
uint64_t curve_integer(const json_t *object, const char *key);

/* The text of the fixture's "corpus" (and "spikes") as a file. */
void curve_write_corpus(const json_t *fixture, const char *path);

/* Reads the job NAME of the fixture's keys, with states spread over host memory and the drive, and
 * overrides. The caller destroys it. */
job *curve_job(json_t *fixture, const char *corpus, const char *name, const char *const *sets,
               uint32_t set_count);

#endif
