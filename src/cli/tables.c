/* Tables of `sluice plan`: ZeRO's tables, computed from the formulas alone, a job's table by number
 * of ranks, and the largest model that fits. See cli_report.h.
 *
 * The rounding of ZeRO's tables was found from their cells. Table 1 has three figures; it rounds
 * half up below 100 and drops the fraction from there on. Table 2 drops all but one decimal of
 * its first row, in billions. Each further row is the first row times its degree of model
 * parallelism. */
#include "cli/cli_report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "plan/zero.h"
#include "setup/plan_figures.h"
#include "setup/summary.h"

enum { TABLE_CELL_BYTES = 32, TABLE_STAGES = 4 };

/* Table 1: the numbers of data-parallel ranks, and the models. Table 2: the ranks of each
 * model-parallel part, their memory, and the number of parts. */
static const uint32_t table1_ranks[] = {1, 4, 16, 64, 256, 1024};
static const double table1_params[] = {7.5e9, 128e9, 1e12};
static const uint32_t table2_ranks = 64;
static const double table2_rank_bytes = 32e9;
static const uint32_t table2_parts[] = {1, 2, 4, 8, 16};

#define TABLE_COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* Writes the number without zeros at the end of its fraction. */
static void write_short(double value, int decimals, char text[TABLE_CELL_BYTES])
{
    int length = snprintf(text, TABLE_CELL_BYTES, "%.*f", decimals, value);
    while (decimals > 0 && length > 0 && text[length - 1] == '0')
        text[--length] = '\0';
    if (decimals > 0 && length > 0 && text[length - 1] == '.')
        text[--length] = '\0';
}

/* Writes GB as Table 1 shows them. */
static void write_gigabytes(double bytes, char text[TABLE_CELL_BYTES])
{
    double value = bytes / 1e9;
    int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
    double step = pow(10, decimals);
    value = decimals ? floor(value * step + 0.5) / step : floor(value);
    write_short(value, decimals, text);
}

/* Writes parameters as Table 2 shows them: those of the first row, times the parts. */
static void write_params(double first_row, uint32_t parts, char text[TABLE_CELL_BYTES])
{
    double billions = floor(first_row / 1e8) / 10 * parts;
    bool is_trillions = billions >= 500;
    write_short(is_trillions ? billions / 1e3 : billions, 1, text);
    strcat(text, is_trillions ? "T" : "B");
}

static void print_table1(FILE *out, const zero_states *each)
{
    fputs("Table 1: GB (10^9 bytes) of model states on each of N ranks, stage 1 / 2 / 3\n\n", out);
    fprintf(out, "%6s", "N");
    for (size_t m = 0; m < TABLE_COUNT(table1_params); m++) {
        char model[TABLE_CELL_BYTES];
        bool is_trillions = table1_params[m] >= 1e12;
        write_short(table1_params[m] / (is_trillions ? 1e12 : 1e9), 1, model);
        strcat(model, is_trillions ? "T" : "B");
        fprintf(out, "   %23s", model);
    }
    fputc('\n', out);
    for (size_t n = 0; n < TABLE_COUNT(table1_ranks); n++) {
        fprintf(out, "%6" PRIu32, table1_ranks[n]);
        for (size_t m = 0; m < TABLE_COUNT(table1_params); m++)
            for (uint32_t stage = 1; stage < TABLE_STAGES; stage++) {
                char cell[TABLE_CELL_BYTES];
                write_gigabytes(zero_rank_bytes(each, stage, table1_params[m], table1_ranks[n]),
                                cell);
                fprintf(out, "%s%7s", stage == 1 ? "   " : " ", cell);
            }
        fputc('\n', out);
    }
}

static void print_table2(FILE *out, const zero_states *each)
{
    fprintf(
        out,
        "\nTable 2: the largest model whose states lie in %.0f GB on each rank: MP model-parallel "
        "parts\nof %" PRIu32 " ranks each\n\n",
        table2_rank_bytes / 1e9, table2_ranks);
    fprintf(out, "%6s %8s %12s %12s %12s %12s\n", "MP", "ranks", "replicated", "stage 1", "stage 2",
            "stage 3");
    for (size_t p = 0; p < TABLE_COUNT(table2_parts); p++) {
        fprintf(out, "%6" PRIu32 " %8" PRIu32, table2_parts[p], table2_parts[p] * table2_ranks);
        for (uint32_t stage = 0; stage < TABLE_STAGES; stage++) {
            char cell[TABLE_CELL_BYTES];
            write_params(zero_params_max(each, stage, table2_rank_bytes, table2_ranks),
                         table2_parts[p], cell);
            fprintf(out, " %12s", cell);
        }
        fputc('\n', out);
    }
}

static json_t *table1_json(const zero_states *each)
{
    json_t *list = json_array();
    for (size_t n = 0; n < TABLE_COUNT(table1_ranks); n++)
        for (size_t m = 0; m < TABLE_COUNT(table1_params); m++)
            for (uint32_t stage = 1; stage < TABLE_STAGES; stage++) {
                char cell[TABLE_CELL_BYTES];
                double bytes = zero_rank_bytes(each, stage, table1_params[m], table1_ranks[n]);
                write_gigabytes(bytes, cell);
                json_array_append_new(list, json_pack("{s:I, s:f, s:I, s:f, s:s}", "ranks",
                                                      (json_int_t)table1_ranks[n], "parameters",
                                                      table1_params[m], "stage", (json_int_t)stage,
                                                      "rank_bytes", bytes, "gigabytes", cell));
            }
    return list;
}

static json_t *table2_json(const zero_states *each)
{
    json_t *list = json_array();
    for (size_t p = 0; p < TABLE_COUNT(table2_parts); p++)
        for (uint32_t stage = 0; stage < TABLE_STAGES; stage++) {
            char cell[TABLE_CELL_BYTES];
            double most = zero_params_max(each, stage, table2_rank_bytes, table2_ranks);
            write_params(most, table2_parts[p], cell);
            json_array_append_new(
                list, json_pack("{s:I, s:I, s:f, s:I, s:f, s:s}", "model_parallel",
                                (json_int_t)table2_parts[p], "ranks",
                                (json_int_t)(table2_parts[p] * table2_ranks), "rank_bytes",
                                table2_rank_bytes, "stage", (json_int_t)stage, "parameters",
                                most * table2_parts[p], "shown", cell));
        }
    return list;
}

static int zero_json(FILE *out, const zero_states *each)
{
    json_t *sent = json_array();
    for (uint32_t stage = 0; stage < TABLE_STAGES; stage++)
        json_array_append_new(sent, json_real(zero_sent_elems(stage)));
    return cli_print_json(out,
                          json_pack("{s:{s:f, s:f, s:f}, s:o, s:o, s:o}", "bytes_per_parameter",
                                    "params", each->params, "grads", each->grads, "optimizer",
                                    each->optimizer, "sent_elements_per_parameter", sent, "table_1",
                                    table1_json(each), "table_2", table2_json(each)));
}

int cli_table_zero(FILE *out, bool json)
{
    zero_states each = zero_mixed_adam();
    if (json)
        return zero_json(out, &each);
    fprintf(out,
            "ZeRO's tables (arXiv 1910.02054), from its formulas: params %.0f, gradients %.0f and "
            "optimizer\n%.0f bytes a parameter; stage 1 divides the optimizer's by N, stage 2 the "
            "gradients' too,\nstage 3 also the params'. A rank sends %.0f elements a parameter and "
            "step, and %.0f with stage 3.\n\n",
            each.params, each.grads, each.optimizer, zero_sent_elems(0), zero_sent_elems(3));
    print_table1(out, &each);
    print_table2(out, &each);
    return 0;
}

/* ---- the table by number of ranks ---- */

static void print_row(FILE *out, const struct setup_summary *plan)
{
    char text[SIZE_TEXT_BYTES], mfu[TABLE_CELL_BYTES] = "-";
    fprintf(out, "%6" PRIu32, plan->world_size);
    for (int arena = 0; arena < TIER_COUNT; arena++)
        fprintf(out, " %11s",
                plan->peak_bytes[arena] ? size_format(plan->peak_bytes[arena], text) : "-");
    if (plan->peak_tflops_per_rank > 0)
        snprintf(mfu, sizeof mfu, "%.1f%%", 100 * plan->mfu);
    fprintf(out, " %10.3f %11.1f %9.3f %6s %8s\n", plan->step_seconds, plan->tokens_per_second,
            plan->tflops_per_rank, mfu, plan->busiest);
}

static int ranks_json(FILE *out, const struct cli_ranks_row *rows, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *row = json_pack("{s:I}", "ranks", (json_int_t)rows[i].ranks);
        json_object_set_new(row, "fits", json_boolean(rows[i].code == 0));
        if (rows[i].code == 0)
            json_object_set_new(row, "plan", setup_plan_object(&rows[i].plan));
        else
            json_object_set_new(row, "problem", json_string(rows[i].problem));
        json_array_append_new(list, row);
    }
    return cli_print_json(out, json_pack("{s:o}", "table", list));
}

int cli_table_ranks(FILE *out, const struct cli_ranks_row *rows, uint32_t count, bool json)
{
    if (json)
        return ranks_json(out, rows, count);
    const struct setup_summary *first = NULL;
    for (uint32_t i = 0; i < count && !first; i++)
        first = rows[i].code == 0 ? &rows[i].plan : NULL;
    if (first)
        fprintf(out, "model        %s, ZeRO stage %" PRIu32 "; machine: %s\n", first->model_name,
                first->zero_stage, first->machine_name);
    if (first && first->machine_cannot_run[0])
        fprintf(out, "cannot run   %s\n", first->machine_cannot_run);
    if (first)
        fputc('\n', out);
    fprintf(out, "%6s %35s %10s %11s %9s %6s %8s\n", "", "peak of each rank", "step", "tokens/s",
            "TFLOPS", "", "busiest");
    fprintf(out, "%6s %11s %11s %11s %10s %11s %9s %6s %8s\n", "ranks", "device", "host", "nvme",
            "s", "of all", "a rank", "MFU", "resource");
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].code == 0)
            print_row(out, &rows[i].plan);
        else
            fprintf(out, "%6" PRIu32 " cannot: see below\n", rows[i].ranks);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].code != 0) {
            fprintf(out, "\n%" PRIu32 " rank%s:\n", rows[i].ranks, rows[i].ranks == 1 ? "" : "s");
            cli_print_folded(out, 2, rows[i].problem);
        }
    return 0;
}

/* ---- the largest model ---- */

static int max_model_json(FILE *out, const char *family, const struct setup_max_model *found)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:s}", "family", family,
        "machine", found->machine_name, "cannot_run", found->machine_cannot_run, "num_layers",
        (json_int_t)found->layers, "hidden_size", (json_int_t)found->hidden, "num_heads",
        (json_int_t)found->heads, "max_part_bytes", (json_int_t)found->max_part_bytes,
        "param_count", (json_int_t)found->param_count, "world_size", (json_int_t)found->world_size,
        "need_bytes", cli_tiers_object(found->need_bytes), "budget_bytes",
        cli_tiers_object(found->budget_bytes), "next_num_layers", (json_int_t)found->next_layers,
        "next_hidden_size", (json_int_t)found->next_hidden, "next_problem", found->next_problem);
    return cli_print_json(out, object);
}

int cli_print_max_model(FILE *out, const char *family, const struct setup_max_model *found,
                        bool json)
{
    char need[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    if (json)
        return max_model_json(out, family, found);
    fprintf(out, "largest      %.4gB parameters: family %s, %llu layers of %llu, %llu heads\n",
            (double)found->param_count * 1e-9, family, (unsigned long long)found->layers,
            (unsigned long long)found->hidden, (unsigned long long)found->heads);
    if (found->max_part_bytes)
        fprintf(out, "             with model.max_part_bytes=%llu\n",
                (unsigned long long)found->max_part_bytes);
    fprintf(out, "machine      %s, ranks %u, %u a host, ZeRO stage %u; found in %u tries\n",
            found->machine_name, found->world_size, found->ranks_per_host, found->zero_stage,
            found->tries);
    if (found->machine_cannot_run[0])
        fprintf(out, "cannot run   %s\n", found->machine_cannot_run);
    for (int a = 0; a < TIER_COUNT; a++)
        fprintf(out, "%-12s takes at least %s of %s on each rank\n", tier_name((enum tier)a),
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
