// See sentencepiece_model.h.
#include "tests/text/sentencepiece_model.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

int sentencepiece_train(const char *arguments)
{
    return sentencepiece::SentencePieceTrainer::Train(arguments).ok() ? 0 : -1;
}

int sentencepiece_ids(const char *path, const char *text, size_t bytes, int32_t *ids, int room)
{
    sentencepiece::SentencePieceProcessor processor;
    std::vector<int> found;
    if (!processor.Load(path).ok() ||
        !processor.Encode(absl::string_view(text, bytes), &found).ok() || (int)found.size() > room)
        return -1;
    std::copy(found.begin(), found.end(), ids);
    return (int)found.size();
}

int sentencepiece_text(const char *path, const int32_t *ids, int count, char *text, size_t room)
{
    sentencepiece::SentencePieceProcessor processor;
    std::string found;
    if (!processor.Load(path).ok() ||
        !processor.Decode(std::vector<int>(ids, ids + count), &found).ok() || found.size() >= room)
        return -1;
    snprintf(text, room, "%s", found.c_str());
    return 0;
}
