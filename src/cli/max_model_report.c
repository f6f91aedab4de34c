/* plan --max-model: the largest model of a family that fits. See cli_report.h. */
#include <errno.h>

#include "base/size.h"
#include "cli/cli_report.h"
#include "setup/summary.h"

static json_t *pack_tiers(const uint64_t bytes[TIER_COUNT])
{
    return json_pack("{s:I, s:I, s:I}", "device", (json_int_t)bytes[TIER_DEVICE], "host",
                     (json_int_t)bytes[TIER_HOST], "nvme", (json_int_t)bytes[TIER_NVME]);
}

static int print_json(FILE *out, const char *family, const struct setup_max_model *found)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:s}", "family", family,
        "machine", found->machine_name, "num_layers", (json_int_t)found->layers, "hidden_size",
        (json_int_t)found->hidden, "num_heads", (json_int_t)found->heads, "max_part_bytes",
        (json_int_t)found->max_part_bytes, "param_count", (json_int_t)found->param_count,
        "world_size", (json_int_t)found->world_size, "need_bytes", pack_tiers(found->need_bytes),
        "budget_bytes", pack_tiers(found->budget_bytes), "next_num_layers",
        (json_int_t)found->next_layers, "next_hidden_size", (json_int_t)found->next_hidden,
        "next_problem", found->next_problem);
    return cli_print_json(out, object);
}

int cli_print_max_model(FILE *out, const char *family, const struct setup_max_model *found,
                        bool json)
{
    static const char *const tiers[TIER_COUNT] = {
        [TIER_DEVICE] = "device", [TIER_HOST] = "host", [TIER_NVME] = "nvme"};
    char need[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    if (json)
        return print_json(out, family, found);
    fprintf(out, "largest      %.4gB parameters: family %s, %llu layers of %llu, %llu heads\n",
            (double)found->param_count * 1e-9, family, (unsigned long long)found->layers,
            (unsigned long long)found->hidden, (unsigned long long)found->heads);
    if (found->max_part_bytes)
        fprintf(out, "             with model.max_part_bytes=%llu\n",
                (unsigned long long)found->max_part_bytes);
    fprintf(out, "machine      %s, ranks %u, %u a host, ZeRO stage %u; found in %u tries\n",
            found->machine_name, found->world_size, found->ranks_per_host, found->zero_stage,
            found->tries);
    for (int a = 0; a < TIER_COUNT; a++)
        fprintf(out, "%-12s takes at least %s of %s on each rank\n", tiers[a],
                size_format(found->need_bytes[a], need),
                size_format(found->budget_bytes[a], budget));
    if (found->next_layers)
        fprintf(out, "next         %llu layers of %llu: %s\n",
                (unsigned long long)found->next_layers, (unsigned long long)found->next_hidden,
                found->next_problem);
    else
        fprintf(out, "next         none: the family ends here\n");
    return ferror(out) ? err_errno(EIO, "cannot print") : 0;
}
