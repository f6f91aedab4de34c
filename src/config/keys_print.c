/* Prints the table of keys for people: the list of `--keys`, and KEYS.md. See config.h. Pure,
 * except for writing. */
#include <stdio.h>
#include <string.h>

#include "config/config_internal.h"

static const char *type_name(enum configi_type type)
{
    static const char *const names[] = {
        [CONFIGI_BOOL] = "bool",         [CONFIGI_INT] = "int",         [CONFIGI_FLOAT] = "float",
        [CONFIGI_SIZE] = "size",         [CONFIGI_STRING] = "string",   [CONFIGI_ENUM] = "enum",
        [CONFIGI_UNITS] = "units",       [CONFIGI_CORES] = "cores",     [CONFIGI_FLOATS] = "floats",
        [CONFIGI_STRINGS] = "strings",   [CONFIGI_SOURCES] = "sources", [CONFIGI_STEPS] = "ints",
        [CONFIGI_PATH] = "bool or path", [CONFIGI_OBJECTS] = "objects", [CONFIGI_SWITCH] = "object",
        [CONFIGI_ANY] = "any",
    };
    return names[type];
}

/* The block of a path: its first name, or "" if there is none. */
static void block_of(const char *path, char block[JOB_NAME_BYTES])
{
    snprintf(block, JOB_NAME_BYTES, "%.*s", strchr(path, '.') ? (int)strcspn(path, ".") : 0, path);
}

/* ---- --keys ---- */

static void print_row(FILE *stream, const configi_key *row)
{
    static const char *const effects[] = {
        [CONFIGI_USED] = "",
        [CONFIGI_NO_EFFECT] = " (no effect)",
        [CONFIGI_REFUSED] = " (refused)",
    };
    bool is_list = row->type == CONFIGI_ENUM || row->type == CONFIGI_BOOL;
    fprintf(stream, "%s  %s", row->path, type_name(row->type));
    if (row->allowed)
        fprintf(stream, is_list ? " %s" : " in %s", row->allowed);
    if (row->unit)
        fprintf(stream, " %s", row->unit);
    if (row->fallback)
        fprintf(stream, ", default %s", row->fallback);
    fprintf(stream, "%s\n    %s\n", effects[row->effect], row->help);
    if (row->why)
        fprintf(stream, "    %s\n", row->why);
    if (row->alone)
        fprintf(stream, "    On one rank it has no effect: %s\n", row->alone);
    if (row->later)
        fprintf(stream, "    Not built yet: %s\n", row->later);
}

static void print_list(FILE *stream)
{
    char block[JOB_NAME_BYTES], last[JOB_NAME_BYTES] = "-";
    const configi_key *row;
    fputs("Keys of the job file. DeepSpeed's keys keep their names, meanings, units and defaults.\n"
          "A list's elements are counted from 0: tiers.nvme.0.path.\n",
          stream);
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        if (configi_key_is_hidden(row))
            continue;
        block_of(row->path, block);
        if (strcmp(block, last) != 0)
            fputc('\n', stream);
        memcpy(last, block, sizeof last);
        print_row(stream, row);
    }
}

/* ---- KEYS.md ---- */

/* Writes text into a cell of a table, where `|` would end the cell. */
static void put_cell(FILE *stream, const char *text)
{
    for (; *text; text++) {
        if (*text == '|' || *text == '*' || *text == '<')
            fputc('\\', stream);
        fputc(*text, stream);
    }
}

/* Writes "a|b" as `a`, `b`. */
static void put_choices(FILE *stream, const char *list)
{
    char entry[JOB_NAME_BYTES];
    for (int i = 0; configi_list_entry(list, i, entry, sizeof entry); i++)
        fprintf(stream, "%s`%s`", i ? ", " : "", entry);
}

/* Writes "[1,]" in words, in the units of the row. */
static void put_range(FILE *stream, const configi_key *row)
{
    const char *range = row->allowed, *comma = strchr(range, ',');
    int low_length = (int)(comma - range - 1), high_length = (int)strlen(comma) - 2;
    bool has_low = range[0] == '[', has_high = comma[high_length + 1] == ']';
    if (low_length > 0)
        fprintf(stream, ", %s %.*s", has_low ? "at least" : "above", low_length, range + 1);
    if (high_length > 0)
        fprintf(stream, ", %s %.*s", has_high ? "at most" : "below", high_length, comma + 1);
}

/* Writes which values a key may hold: type, range or choices, unit. */
static void put_value(FILE *stream, const configi_key *row)
{
    if (row->type == CONFIGI_ENUM) {
        put_choices(stream, row->allowed);
        return;
    }
    fputs(type_name(row->type), stream);
    if (row->type == CONFIGI_BOOL && row->allowed)
        fprintf(stream, ", only %s", row->allowed);
    else if (row->allowed)
        put_range(stream, row);
    if (row->unit)
        fprintf(stream, ", %s", row->unit);
}

/* The two columns about the bits. */
static const char *change_text(const configi_key *row)
{
    static const char *const texts[] = {
        [CONFIGI_FREE] = "no | yes",          [CONFIGI_LATER] = "yes | yes, logged",
        [CONFIGI_LATER_SILENT] = "yes | yes", [CONFIGI_FIXED] = "yes | no",
        [CONFIGI_START] = "yes | no effect",
    };
    return texts[row->change];
}

static void put_used(FILE *stream, const configi_key *row)
{
    fprintf(stream, "| `%s` | ", row->path);
    put_value(stream, row);
    fprintf(stream, row->fallback ? " | `%s` | " : " | %s| ", row->fallback ? row->fallback : "");
    fprintf(stream, "%s | ", change_text(row));
    put_cell(stream, row->help);
    if (row->why) {
        fputc(' ', stream);
        put_cell(stream, row->why);
    }
    if (row->alone)
        fputs(" No effect on one rank.", stream);
    if (row->later) {
        fputs(" Not built: ", stream);
        put_choices(stream, row->later);
        fputc('.', stream);
    }
    fputs(" |\n", stream);
}

/* Writes the used keys of Sluice's or of DeepSpeed's blocks, a table for each block. */
static void put_used_keys(FILE *stream, bool is_own)
{
    char block[JOB_NAME_BYTES], last[JOB_NAME_BYTES] = "-";
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        if (configi_key_is_hidden(row) || configi_key_is_own(row) != is_own ||
            row->effect != CONFIGI_USED)
            continue;
        block_of(row->path, block);
        if (strcmp(block, last) != 0)
            fprintf(stream,
                    "\n### %s\n\n"
                    "| key | value | default | changes bits | may change on resume | meaning |\n"
                    "|---|---|---|---|---|---|\n",
                    block[0] ? block : "Top level");
        memcpy(last, block, sizeof last);
        put_used(stream, row);
    }
}

/* Writes DeepSpeed's keys that have no effect, or are refused: key and reason. */
static void put_other_keys(FILE *stream, enum configi_effect effect)
{
    const configi_key *row;
    fputs("\n| key | why |\n|---|---|\n", stream);
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        bool is_switch = row->type == CONFIGI_SWITCH;
        enum configi_effect shown = is_switch ? CONFIGI_REFUSED : row->effect;
        if (shown != effect || configi_key_is_hidden(row))
            continue;
        fprintf(stream, "| `%s`%s | ", row->path, is_switch ? " enabled" : "");
        put_cell(stream, row->help);
        fputs(" |\n", stream);
    }
}

static void print_markdown(FILE *stream)
{
    fputs(
        "# Keys of the job file\n"
        "\n"
        "This file is made from the table of keys by `sluice train --keys=markdown`.\n"
        "\n"
        "A job file is JSON; comments and trailing commas are allowed. `--set key.path=value` sets "
        "a\n"
        "key on the command line. Dots join the names of nested objects, and `*` stands for the\n"
        "number of an entry of a list, from 0 on: `tiers.nvme.0.path`. An unknown key is an "
        "error;\n"
        "at the top level, where DeepSpeed ignores it, it is a warning.\n"
        "A size is a number of bytes or a text such as `\"16GiB\"`. Cores are a set such as\n"
        "`\"0-7,16\"`.\n"
        "\n"
        "Two columns are about the results of a run, which depend on the job to the last bit:\n"
        "\n"
        "| changes bits | may change on resume | what it means |\n"
        "|---|---|---|\n"
        "| no | yes | The key changes where and when things happen, never what is computed. |\n"
        "| yes | yes | The steps after the change differ. \"logged\": the resumed run logs the key "
        "with both values. |\n"
        "| yes | no | The key belongs to the identity of a run. A run is not resumed with another "
        "value. |\n"
        "| yes | no effect | The key counts when a run begins, and changes nothing in a resumed "
        "run. |\n"
        "\n"
        "## Sluice's own keys\n",
        stream);
    put_used_keys(stream, true);
    fputs("\n## DeepSpeed's keys\n"
          "\n"
          "DeepSpeed's keys keep their names, meanings, units and defaults. The value `\"auto\"` "
          "is the\n"
          "default, which the log names, or what `auto` says; a learning rate must be given.\n",
          stream);
    put_used_keys(stream, false);
    fputs("\n### Other names\n\n| also written | key |\n|---|---|\n", stream);
    for (uint32_t i = 0; i < configi_alias_count; i++)
        fprintf(stream, "| `%s` | `%s` |\n", configi_aliases[i].path, configi_aliases[i].name);
    fputs("\n### Refused\n\nThese are known, but not built. They are an error if they ask for "
          "something.\n",
          stream);
    put_other_keys(stream, CONFIGI_REFUSED);
    fputs("\n### Without effect\n\n"
          "These are known and checked. The log names those that a job gives, with the reason.\n",
          stream);
    put_other_keys(stream, CONFIGI_NO_EFFECT);
}

void job_print_keys(FILE *stream, bool is_markdown)
{
    if (is_markdown)
        print_markdown(stream);
    else
        print_list(stream);
}
