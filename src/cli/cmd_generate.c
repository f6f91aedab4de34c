/* sluice generate RUN: continues a text with a trained model. See cli.h. */
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_ranks.h"
#include "train/train.h"

const cli_command cli_generate_command = {
    .name = "generate",
    .operand = "RUN",
    .summary = "continues a text with the model of a run directory",
    .details = "Prints the prompt and what follows. The same seed gives the same text.",
    .run = cli_generate,
};

static int generate_show(void *user, const char *bytes, uint64_t count)
{
    (void)user;
    /* A reader that is gone ends the text: nobody would see the rest. */
    if (fwrite(bytes, 1, count, stdout) != count || fflush(stdout) != 0)
        return ERR_STOPPED;
    return 0;
}

int cli_generate(int argc, char **argv)
{
    const char *prompt = "\n";
    uint64_t token_count = 256, top_k = 0, seed = 1;
    double temperature = 0.8;
    bool quiet = false;
    const cli_option options[] = {
        {.name = "prompt",
         .type = CLI_TEXT,
         .value = "TEXT",
         .help = "what to continue (default: a line's beginning)",
         .target = &prompt},
        {.name = "tokens",
         .type = CLI_COUNT,
         .value = "N",
         .help = "how many tokens to generate, 1 to 1000000 (default: 256)",
         .min = 1,
         .max = 1e6,
         .target = &token_count},
        {.name = "temperature",
         .type = CLI_REAL,
         .value = "X",
         .help = "0 to 100; 0 takes the likeliest token (default: 0.8)",
         .min = 0,
         .max = 100,
         .target = &temperature},
        {.name = "top-k",
         .type = CLI_COUNT,
         .value = "K",
         .help = "draws from the K likeliest tokens; 0: from all (default: 0)",
         .min = 0,
         .max = 0x1p32,
         .target = &top_k},
        {.name = "seed",
         .type = CLI_COUNT,
         .value = "N",
         .help = "of the draws, 0 to 2^53 (default: 1)",
         .min = 0,
         .max = 0x1p53,
         .target = &seed},
        {.name = "quiet",
         .type = CLI_FLAG,
         .help = "the text alone, without log lines (default: with them)",
         .target = &quiet},
    };
    const char *run_dir;
    int rc = cli_parse(&cli_generate_command, options, sizeof options / sizeof options[0], argc,
                       argv, &run_dir);
    if (rc != 0)
        return rc;
    TRY(cli_ranks_refuse("generate"));
    if (quiet)
        log_set_level(LOG_WARN);

    struct generate_options asked = {
        .run_dir = run_dir,
        .prompt = prompt,
        .prompt_bytes = strlen(prompt),
        .token_count = token_count,
        .top_k = top_k,
        .seed = seed,
        .temperature = temperature,
        .stop = cli_stop_install("stopping"),
        .on_token = generate_show,
    };
    TRY(generate_run(&asked));
    putchar('\n');
    return 0;
}
