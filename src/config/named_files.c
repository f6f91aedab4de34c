/* Finds files by a name: model presets and described machines. See config_internal.h. Called by
 * job_read and machine_read; reads directories. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "config/config_internal.h"

enum { PLACE_COUNT = 4 };

/* The directories that are searched, first to last. An empty text is not searched. */
struct named_places {
    char dirs[PLACE_COUNT][FILE_PATH_BYTES];
};

static void list_places(struct named_places *places, const char *folder, const char *beside)
{
    memset(places, 0, sizeof *places);
    const char *environment = getenv("SLUICE_CONFIG_DIR");
    if (environment && environment[0] != '\0')
        snprintf(places->dirs[0], FILE_PATH_BYTES, "%s/%s", environment, folder);
    snprintf(places->dirs[1], FILE_PATH_BYTES, "%s/%s", SLUICE_SOURCE_CONFIG_DIR, folder);
    snprintf(places->dirs[2], FILE_PATH_BYTES, "%s/%s", SLUICE_DATA_DIR, folder);
    if (!beside)
        return;
    const char *slash = strrchr(beside, '/');
    if (slash)
        snprintf(places->dirs[3], FILE_PATH_BYTES, "%.*s", (int)(slash - beside), beside);
    else
        snprintf(places->dirs[3], FILE_PATH_BYTES, ".");
}

/* Finds the file whose name is nearest to `name`. The last place, the directory of the file
 * `beside`, is not searched because it holds other files too. */
static void find_nearest(const struct named_places *places, const char *name,
                         char best[JOB_NAME_BYTES])
{
    static const char ending[] = ".json";
    uint32_t best_distance = UINT32_MAX;
    best[0] = '\0';
    for (int i = 0; i < PLACE_COUNT - 1; i++) {
        DIR *dir = places->dirs[i][0] != '\0' ? opendir(places->dirs[i]) : NULL;
        if (!dir)
            continue;
        const struct dirent *entry;
        while ((entry = readdir(dir))) {
            size_t length = strlen(entry->d_name);
            if (length < sizeof ending || length - (sizeof ending - 1) >= JOB_NAME_BYTES ||
                strcmp(entry->d_name + length - (sizeof ending - 1), ending) != 0)
                continue;
            char other[JOB_NAME_BYTES];
            snprintf(other, sizeof other, "%.*s", (int)(length - (sizeof ending - 1)),
                     entry->d_name);
            uint32_t distance = configi_distance(name, other);
            /* The order of directory entries must not change the message. */
            if (distance < best_distance ||
                (distance == best_distance && strcmp(other, best) < 0)) {
                best_distance = distance;
                memcpy(best, other, sizeof other);
            }
        }
        closedir(dir);
    }
}

bool configi_is_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    return length > 0 && length < JOB_NAME_BYTES && name[0] != '.' &&
           strspn(name, allowed) == length;
}

int configi_find_named(const char *folder, const char *name, const char *beside,
                       char found[FILE_PATH_BYTES], char advice[CONFIGI_ADVICE_BYTES])
{
    struct named_places *places = mem_alloc(1, sizeof *places, "places of named files");
    if (!places)
        return -ENOMEM;
    list_places(places, folder, beside);
    int rc = -ENOENT;
    for (int i = 0; i < PLACE_COUNT && rc < 0; i++) {
        int length = snprintf(found, FILE_PATH_BYTES, "%s/%s.json", places->dirs[i], name);
        bool is_place = places->dirs[i][0] != '\0' && length < FILE_PATH_BYTES;
        if (is_place && access(found, R_OK) == 0)
            rc = 0;
    }
    if (rc < 0) {
        char best[JOB_NAME_BYTES];
        find_nearest(places, name, best);
        snprintf(advice, CONFIGI_ADVICE_BYTES,
                 "%s%s%sfiles NAME.json in $SLUICE_CONFIG_DIR/%s, %.200s%s%.200s%s",
                 best[0] ? "the nearest is \"" : "", best, best[0] ? "\"; they are " : "they are ",
                 folder, places->dirs[1], beside ? ", " : " or ", places->dirs[2],
                 beside ? " or beside the job file" : "");
    }
    mem_free(places);
    return rc;
}
