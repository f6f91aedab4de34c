/* Reads what has a name: model presets and described machines. See config_internal.h. Called by
 * job_read and machine_read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config_internal.h"

bool configi_is_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    return length > 0 && length < JOB_NAME_BYTES && name[0] != '.' &&
           strspn(name, allowed) == length;
}

static char named_dir[FILE_PATH_BYTES]; /* "": none */

int config_set_directory(const char *directory)
{
    size_t length = directory ? strlen(directory) : 0;
    if (length >= sizeof named_dir)
        return err_set(ERR_USAGE, "the path of the directory of models.json is too long: %zu bytes",
                       length);
    memcpy(named_dir, directory ? directory : "", length + 1);
    return 0;
}

/* Reads <dir>/<name>.json. Returns -ENOENT if there is no such file. */
static int read_file(const char *dir, const char *name, char file[FILE_PATH_BYTES], json_t **doc)
{
    int length = snprintf(file, FILE_PATH_BYTES, "%s/%s.json", dir, name);
    if (length >= FILE_PATH_BYTES || access(file, R_OK) != 0)
        return -ENOENT;
    return configi_read_json(file, doc);
}

/* Reads the member `name` of <dir>/<kind>.json. Returns -ENOENT if there is none; then `nearest`
 * knows the names of that file. */
static int read_member(const char *dir, const char *kind, const char *name,
                       char file[FILE_PATH_BYTES], json_t **doc, struct nearest *nearest)
{
    json_t *all;
    const char *other;
    json_t *value;
    TRY(read_file(dir, kind, file, &all));
    *doc = json_incref(json_object_get(all, name));
    json_object_foreach(all, other, value) nearest_offer(nearest, name, other);
    json_decref(all);
    return *doc ? 0 : -ENOENT;
}

/* Finds the directory of these files beside the program that runs, where `cmake --install` puts
 * them under any prefix. "": the program's path is not known. */
static const char *dir_beside_program(char out[FILE_PATH_BYTES])
{
    static const char from_bin[] = "/" SLUICE_BIN_TO_DATA;
    ssize_t length = readlink("/proc/self/exe", out, FILE_PATH_BYTES - sizeof from_bin);
    out[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash)
        memcpy(slash, from_bin, sizeof from_bin);
    return out;
}

int configi_read_named(const char *kind, const char *name, const char *beside,
                       char file[FILE_PATH_BYTES], json_t **doc, char advice[CONFIGI_ADVICE_BYTES])
{
    char beside_program[FILE_PATH_BYTES];
    const char *const places[] = {getenv("SLUICE_CONFIG_DIR"), named_dir,
                                  dir_beside_program(beside_program), SLUICE_SOURCE_CONFIG_DIR,
                                  SLUICE_DATA_DIR};
    struct nearest nearest = {0};
    char dir[FILE_PATH_BYTES];
    int rc = -ENOENT;
    *doc = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && rc == -ENOENT; i++) {
        if (!places[i] || places[i][0] == '\0')
            continue;
        snprintf(dir, sizeof dir, "%s/%s", places[i], kind);
        rc = read_file(dir, name, file, doc);
        if (rc == -ENOENT)
            rc = read_member(places[i], kind, name, file, doc, &nearest);
    }
    if (rc == -ENOENT && beside) {
        const char *slash = strrchr(beside, '/');
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - beside) : 1, slash ? beside : ".");
        rc = read_file(dir, name, file, doc);
    }
    const char *installed = SLUICE_DATA_DIR;
    if (named_dir[0] != '\0')
        installed = named_dir;
    else if (access(beside_program, F_OK) == 0)
        installed = beside_program;
    /* the machine that built a package has other folders than the one that runs it */
    const char *source =
        access(SLUICE_SOURCE_CONFIG_DIR, F_OK) == 0 ? SLUICE_SOURCE_CONFIG_DIR : "";
    bool is_near = nearest_is_near(&nearest, name);
    if (rc == -ENOENT)
        snprintf(advice, CONFIGI_ADVICE_BYTES,
                 "%s%s%sthey are files %s/NAME.json or members of %s.json in $SLUICE_CONFIG_DIR%s"
                 "%.200s or %.200s%s",
                 is_near ? "the nearest is \"" : "", is_near ? nearest.name : "",
                 is_near ? "\"; " : "", kind, kind, source[0] ? ", " : "", source, installed,
                 beside ? ", or files NAME.json beside the job file" : "");
    return rc;
}
