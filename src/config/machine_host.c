/* Names the host of this process, and compares it with the host of a machine.json. See
 * machine.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/machine.h"

/* Reads the value of the first line of /proc/cpuinfo that begins with one of the keys; "CPU" if
 * there is none. */
static void name_cpu(char name[MACHINE_NAME_BYTES])
{
    static const char *const keys[] = {"model name", "Model", "cpu model", "CPU part"};
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    name[0] = '\0';
    while (file && name[0] == '\0' && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        for (size_t k = 0; colon && k < sizeof keys / sizeof keys[0]; k++) {
            if (strncmp(line, keys[k], strlen(keys[k])) != 0)
                continue;
            const char *value = colon + 1 + strspn(colon + 1, " \t");
            snprintf(name, MACHINE_NAME_BYTES, "%.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    }
    if (file)
        fclose(file);
    if (name[0] == '\0')
        snprintf(name, MACHINE_NAME_BYTES, "CPU");
}

void machine_name_host(machine *target)
{
    memset(target->name, 0, sizeof target->name);
    if (gethostname(target->name, sizeof target->name - 1) != 0)
        snprintf(target->name, sizeof target->name, "localhost");
    memset(target->host.cpu, 0, sizeof target->host.cpu);
    name_cpu(target->host.cpu);
}

bool machine_is_here(const machine *self, const machine *here, char *why, size_t why_bytes)
{
    why[0] = '\0';
    if (self->measured_at[0] == '\0')
        snprintf(why, why_bytes, "it is described, not measured");
    else if (strcmp(self->name, here->name) != 0)
        snprintf(why, why_bytes, "it is of host \"%s\", and this is \"%s\"", self->name,
                 here->name);
    else if (strcmp(self->host.cpu, here->host.cpu) != 0)
        snprintf(why, why_bytes, "its CPU is \"%s\", and this host's \"%s\"", self->host.cpu,
                 here->host.cpu);
    else if (self->host.core_count != here->host.core_count)
        snprintf(why, why_bytes, "it was measured on %u cores, and %u may be used now",
                 self->host.core_count, here->host.core_count);
    return why[0] == '\0';
}
