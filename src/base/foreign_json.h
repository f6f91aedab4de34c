/* Reads JSON that another program wrote: the files of a Hugging Face checkpoint and of a tokenizer,
 * headers of safetensors files, job files. Pure; any thread. The document is jansson's and its
 * memory is too. */
#ifndef SLUICE_BASE_FOREIGN_JSON_H
#define SLUICE_BASE_FOREIGN_JSON_H

#include <jansson.h>
#include <stddef.h>

/* Parses text[text_bytes] with jansson's `flags`. Unlike jansson it also reads integers that do not
 * fit into 64 bits, such as 1000000000000000019884624838656, which transformers writes for "very
 * large": then all integers of more than 18 digits become reals, with their nearest value, and the
 * others stay integers. Returns NULL and sets *error, with the place of the fault, if the text is
 * not JSON. The caller releases the document by json_decref. */
json_t *foreign_json_parse(const char *text, size_t text_bytes, size_t flags, json_error_t *error);

#endif
