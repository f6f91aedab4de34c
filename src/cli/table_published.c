/* The table of `sluice plan --table published`: a row for each figure. See cli_report.h. */
#include "cli/cli_report.h"

#include <math.h>
#include <string.h>

/* How much ours may differ without a reason. */
#define CLOSE_BY 0.1

/* Writes a value in the unit of its figure: "1.92B", "fits", "8.00x", "4.00 B", "18.0 GB". */
static const char *write_figure(enum published_figure figure, double value,
                                char text[CLI_FIGURE_BYTES])
{
    switch (figure) {
    case PUBLISHED_LARGEST:
        return cli_count(value, text);
    case PUBLISHED_FITS:
        return value > 0 ? "fits" : "does not";
    case PUBLISHED_SAVING:
        snprintf(text, CLI_FIGURE_BYTES, "%.2fx", value);
        return text;
    case PUBLISHED_TRAFFIC:
        snprintf(text, CLI_FIGURE_BYTES, "%.2f B", value);
        return text;
    default: /* bytes of a rank */
        snprintf(text, CLI_FIGURE_BYTES, "%.2f GB", value / 1e9);
        return text;
    }
}

static const char *figure_unit(enum published_figure figure)
{
    static const char *const units[] = {
        [PUBLISHED_LARGEST] = "parameters",
        [PUBLISHED_FITS] = "1 if it fits",
        [PUBLISHED_SAVING] = "ratio",
        [PUBLISHED_TRAFFIC] = "bytes a parameter",
        [PUBLISHED_OPTIMIZER] = "bytes of a rank",
        [PUBLISHED_ACTIVATIONS] = "bytes of a rank",
    };
    return units[figure];
}

static bool is_close(const struct setup_published *row)
{
    return fabs(row->ours - row->claim->published) <= CLOSE_BY * row->claim->published;
}

void cli_print_published(FILE *out, const struct setup_claim *before,
                         const struct setup_published *row)
{
    const struct setup_claim *claim = row->claim;
    char published[CLI_FIGURE_BYTES], theory[CLI_FIGURE_BYTES], ours[CLI_FIGURE_BYTES];
    if (!before || strcmp(before->source, claim->source) != 0)
        fprintf(out, "%s%-58s %10s %8s %10s\n", before ? "\n" : "", claim->source, "published",
                "theory", "ours");
    fprintf(out, "  %-56s %10s %8s %10s\n", claim->what,
            write_figure(claim->figure, claim->published, published),
            row->theory > 0 ? write_figure(claim->figure, row->theory, theory) : "",
            write_figure(claim->figure, row->ours, ours));
    if (claim->reason && !(before && before->reason == claim->reason))
        cli_print_folded(out, 4, claim->reason);
    if (row->problem[0] && claim->figure != PUBLISHED_LARGEST)
        cli_print_folded(out, 4, row->problem);
    fflush(out);
}

json_t *cli_published_object(const struct setup_published *row)
{
    const struct setup_claim *claim = row->claim;
    json_t *states = json_object(), *sets = json_array();
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        json_object_set_new(states, state_kind_key((enum state_kind)kind),
                            cli_tiers_object(row->states[kind]));
    for (int i = 0; i < PUBLISHED_SETS_MAX && claim->sets[i]; i++)
        json_array_append_new(sets, json_string(claim->sets[i]));
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:s, s:f, s:f, s:b, s:s?}",
                               "name", claim->name, "source", claim->source, "what", claim->what,
                               "machine", claim->machine, "ranks", (json_int_t)claim->ranks,
                               "zero_stage", (json_int_t)claim->stage, "set", sets, "unit",
                               figure_unit(claim->figure), "published", claim->published, "ours",
                               row->ours, "is_close", is_close(row), "reason", claim->reason);
    json_object_set_new(object, "theory", row->theory > 0 ? json_real(row->theory) : json_null());
    json_object_set_new(object, "problem", json_string(row->problem));
    json_object_set_new(object, "parameters", json_integer((json_int_t)row->param_count));
    json_object_set_new(object, "num_layers", json_integer((json_int_t)row->layers));
    json_object_set_new(object, "hidden_size", json_integer((json_int_t)row->hidden));
    json_object_set_new(object, "state_bytes", states);
    json_object_set_new(object, "need_bytes", cli_tiers_object(row->need));
    json_object_set_new(object, "budget_bytes", cli_tiers_object(row->budget));
    return object;
}
