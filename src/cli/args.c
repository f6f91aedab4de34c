/* Options of a command line. See cli.h. Allocates nothing. */
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS_NAME_MAX = 31 };

int cli_set_auto(cli_texts *set, const char *value)
{
    static char text[64];
    if (!value)
        return 0;
    if (set->count == CLI_TEXTS_MAX)
        return err_set(ERR_USAGE, "--auto beside %d times --set is more than are possible",
                       CLI_TEXTS_MAX);
    snprintf(text, sizeof text, "auto=%s", value);
    set->items[set->count++] = text;
    return 0;
}

static void args_print_option(const char *name, const char *value, const char *help)
{
    char left[48];
    snprintf(left, sizeof left, "--%s%s%s", name, value ? " " : "", value ? value : "");
    printf("  %-26s ", left);
    for (const char *c = help; *c; c++) {
        putchar(*c);
        if (*c == '\n')
            printf("  %-26s ", "");
    }
    putchar('\n');
}

static void args_print_help(const cli_command *command)
{
    bool is_optional = command->operands_min == 0 && command->operand[0] != '\0';
    printf("sluice %s %s%s%s%s[options]\n\n%s\n", command->name, is_optional ? "[" : "",
           command->operand, is_optional ? "]" : "", command->operand[0] ? " " : "",
           command->summary);
    if (command->details)
        printf("\n%s\n", command->details);
    printf("\noptions:\n");
    for (size_t i = 0; i < command->option_count; i++) {
        const cli_option *option = &command->options[i];
        args_print_option(option->name, option->value, option->help);
    }
    if (command->list_keys)
        args_print_option("keys", NULL,
                          "lists every key of a job file: type, range, unit, default, meaning");
    args_print_option("help", NULL, "this text");
}

static int args_number(const cli_command *command, const cli_option *option, const char *value)
{
    char *end = NULL;
    errno = 0;
    double number = strtod(value, &end);
    bool whole = option->type != CLI_COUNT || number == floor(number);
    if (end == value || *end != '\0' || errno == ERANGE || !whole || !(number >= option->min) ||
        !(number <= option->max))
        return err_set(ERR_USAGE, "%s: --%s is \"%s\", and must be a %s from %.15g to %.15g",
                       command->name, option->name, value,
                       option->type == CLI_COUNT ? "whole number" : "number", option->min,
                       option->max);
    if (option->type == CLI_COUNT)
        *(uint64_t *)option->target = (uint64_t)number;
    else
        *(double *)option->target = number;
    return 0;
}

static int args_assign(const cli_command *command, const cli_option *option, const char *value)
{
    cli_texts *texts = option->target;
    switch (option->type) {
    case CLI_FLAG:
        *(bool *)option->target = true;
        return 0;
    case CLI_TEXT:
        *(const char **)option->target = value;
        return 0;
    case CLI_TEXTS:
        if (texts->count == CLI_TEXTS_MAX)
            return err_set(ERR_USAGE, "%s: --%s is given more than %d times", command->name,
                           option->name, CLI_TEXTS_MAX);
        texts->items[texts->count++] = value;
        return 0;
    case CLI_COUNT:
    case CLI_REAL:
        return args_number(command, option, value);
    }
    return err_set(ERR_INTERNAL, "option --%s has no type", option->name);
}

static int args_unknown(const cli_command *command, const char *argument, const char *name)
{
    struct nearest nearest = {0};
    for (size_t i = 0; i < command->option_count; i++)
        nearest_offer(&nearest, name, command->options[i].name);
    if (nearest_is_near(&nearest, name))
        return err_set(ERR_USAGE, "%s: unknown option \"%s\"; nearest is --%s", command->name,
                       argument, nearest.name);
    return err_set(ERR_USAGE, "%s: unknown option \"%s\"; sluice %s --help lists them",
                   command->name, argument, command->name);
}

/* Reads the option at argv[*idx] and moves *idx to the last argument that belongs to it. */
static int args_option(const cli_command *command, int argc, char **argv, int *idx)
{
    const char *argument = argv[*idx];
    char name[ARGS_NAME_MAX + 1];
    const char *equals = strchr(argument, '=');
    size_t dashes = argument[1] == '-' ? 2 : 1;
    size_t length = (equals ? (size_t)(equals - argument) : strlen(argument)) - dashes;
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name),
             argument + dashes);

    const cli_option *found = NULL;
    for (size_t i = 0; i < command->option_count && dashes == 2 && length < sizeof name; i++)
        if (strcmp(command->options[i].name, name) == 0)
            found = &command->options[i];
    if (!found)
        return args_unknown(command, argument, name);
    if (found->type == CLI_FLAG) {
        if (equals)
            return err_set(ERR_USAGE, "%s: --%s takes no value", command->name, found->name);
        return args_assign(command, found, NULL);
    }
    if (equals)
        return args_assign(command, found, equals + 1);
    if (*idx + 1 >= argc)
        return err_set(ERR_USAGE, "%s: --%s needs a value: --%s %s", command->name, found->name,
                       found->name, found->value);
    return args_assign(command, found, argv[++*idx]);
}

static int args_operand(const cli_command *command, const char *value, cli_texts *operands)
{
    uint32_t most = command->operands_max;
    if (command->operand[0] == '\0')
        return err_set(ERR_USAGE, "%s: takes options alone, and was given \"%s\"", command->name,
                       value);
    if (value[0] == '\0')
        return err_set(ERR_USAGE, "%s: an argument is empty; it takes %s", command->name,
                       command->operand);
    if (operands->count == most && most == 1)
        return err_set(ERR_USAGE, "%s: takes one %s, and was given \"%s\" and \"%s\"",
                       command->name, command->operand, operands->items[0], value);
    if (operands->count == most)
        return err_set(ERR_USAGE, "%s: takes at most %u of %s", command->name, most,
                       command->operand);
    operands->items[operands->count++] = value;
    return 0;
}

void cli_print_help(const cli_command *command, int asked)
{
    if (asked == CLI_ASKS_HELP)
        args_print_help(command);
    else
        command->list_keys(stdout, asked == CLI_ASKS_KEYS_MARKDOWN);
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_texts *operands)
{
    operands->count = 0;
    /* --help is answered even if the rest of the line is wrong. */
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return CLI_ASKS_HELP;
        if (command->list_keys && strcmp(argv[i], "--keys") == 0)
            return CLI_ASKS_KEYS;
        if (command->list_keys && strcmp(argv[i], "--keys=markdown") == 0)
            return CLI_ASKS_KEYS_MARKDOWN;
    }
    bool options_ended = false;
    for (int i = 0; i < argc; i++) {
        if (!options_ended && strcmp(argv[i], "--") == 0) {
            options_ended = true;
        } else if (!options_ended && argv[i][0] == '-' && argv[i][1] != '\0') {
            TRY(args_option(command, argc, argv, &i));
        } else {
            TRY(args_operand(command, argv[i], operands));
        }
    }
    if (operands->count >= command->operands_min)
        return 0;
    if (operands->count == 0)
        return err_set(ERR_USAGE, "%s: %s is missing; sluice %s --help says more", command->name,
                       command->operand, command->name);
    return err_set(
        ERR_USAGE,
        "%s: takes %s, at least %u arguments, and was given %u; sluice %s --help says more",
        command->name, command->operand, command->operands_min, operands->count, command->name);
}
