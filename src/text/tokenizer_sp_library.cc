// libsentencepiece in C. See tokenizer_sp_library.h.
#include "text/tokenizer_sp_library.h"

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <sentencepiece_processor.h>

struct sp_library {
    sentencepiece::SentencePieceProcessor processor;
};

namespace
{

enum { REFUSED = -1, NO_MEMORY = -2 };

void say(char *message, const char *text)
{
    snprintf(message, SP_MESSAGE_BYTES, "%s", text);
}

// Calls what may throw; its result, or REFUSED or NO_MEMORY.
template <typename Work> int guarded(char *message, Work work)
{
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    } catch (const std::exception &error) {
        say(message, error.what());
        return REFUSED;
    }
}

int refuse(char *message, const sentencepiece::util::Status &status)
{
    say(message, status.ToString().c_str());
    return REFUSED;
}

} // namespace

int sp_library_open(const char *data, size_t bytes, sp_library **out,
                    char message[SP_MESSAGE_BYTES])
{
    *out = nullptr;
    sp_library *self = nullptr;
    int rc = guarded(message, [&]() -> int {
        self = new sp_library;
        const auto status = self->processor.LoadFromSerializedProto(absl::string_view(data, bytes));
        return status.ok() ? 0 : refuse(message, status);
    });
    if (rc < 0)
        delete self;
    else
        *out = self;
    return rc;
}

void sp_library_close(sp_library *self)
{
    delete self;
}

int sp_library_count(const sp_library *self)
{
    return self->processor.GetPieceSize();
}

const char *sp_library_piece(const sp_library *self, int id, size_t *bytes, sp_piece_kind *kind)
{
    const auto &processor = self->processor;
    const std::string &piece = processor.IdToPiece(id);
    *bytes = piece.size();
    *kind = processor.IsUnknown(id)   ? SP_UNKNOWN
            : processor.IsControl(id) ? SP_CONTROL
            : processor.IsByte(id)    ? SP_BYTE
                                      : SP_NORMAL;
    return piece.c_str();
}

int sp_library_begin_id(const sp_library *self)
{
    return self->processor.bos_id();
}

int sp_library_end_id(const sp_library *self)
{
    return self->processor.eos_id();
}

int sp_library_encode(const sp_library *self, const char *text, size_t bytes, void *user,
                      int (*take)(void *user, const int *ids, size_t count),
                      char message[SP_MESSAGE_BYTES])
{
    std::vector<int> ids;
    int rc = guarded(message, [&]() -> int {
        const auto status = self->processor.Encode(absl::string_view(text, bytes), &ids);
        return status.ok() ? 0 : refuse(message, status);
    });
    return rc < 0 ? rc : take(user, ids.data(), ids.size());
}
