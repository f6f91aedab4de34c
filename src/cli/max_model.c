/* plan --max-model: the largest model of a family that fits. See cli_report.h. */
#include <errno.h>

#include "base/size.h"
#include "cli/cli_report.h"

static int print_json(FILE *out, const char *family, const struct train_max_model *found)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:s}", "family", family, "machine",
        found->plan.machine_name, "num_layers", (json_int_t)found->layers, "hidden_size",
        (json_int_t)found->hidden, "num_heads", (json_int_t)found->heads, "max_part_bytes",
        (json_int_t)found->max_part_bytes, "param_count", (json_int_t)found->plan.param_count,
        "world_size", (json_int_t)found->plan.world_size, "step_seconds", found->plan.step_seconds,
        "next_num_layers", (json_int_t)found->next_layers, "next_hidden_size",
        (json_int_t)found->next_hidden, "next_problem", found->next_problem);
    return cli_print_json(out, object);
}

int cli_print_max_model(FILE *out, const char *family, const struct train_max_model *found,
                        bool json)
{
    static const char *const tiers[ARENA_COUNT] = {
        [ARENA_DEVICE] = "device", [ARENA_HOST] = "host", [ARENA_NVME] = "nvme"};
    const struct plan_summary *plan = &found->plan;
    char peak[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    if (json)
        return print_json(out, family, found);
    fprintf(out, "largest      %.4gB parameters: family %s, %llu layers of %llu, %llu heads\n",
            (double)plan->param_count * 1e-9, family, (unsigned long long)found->layers,
            (unsigned long long)found->hidden, (unsigned long long)found->heads);
    if (found->max_part_bytes)
        fprintf(out, "             with model.max_part_bytes=%llu\n",
                (unsigned long long)found->max_part_bytes);
    fprintf(out, "machine      %s, ranks %u, %u a host, ZeRO stage %u; found in %u plans\n",
            plan->machine_name, plan->world_size, plan->ranks_per_host, plan->zero_stage,
            found->tries);
    for (int a = 0; a < ARENA_COUNT; a++)
        fprintf(out, "%-12s %s of %s on each rank\n", tiers[a],
                size_format(plan->peak_bytes[a], peak), size_format(plan->budget_bytes[a], budget));
    if (found->next_layers)
        fprintf(out, "next         %llu layers of %llu: %s\n",
                (unsigned long long)found->next_layers, (unsigned long long)found->next_hidden,
                found->next_problem);
    else
        fprintf(out, "next         none: the family ends here\n");
    return ferror(out) ? err_errno(EIO, "cannot print") : 0;
}
