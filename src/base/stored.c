/* The table of stored formats. See stored.h. */
#include "base/stored.h"

#include <assert.h>

/* group: elements of a scale, which go through the rows one after the other; 0: a row is a line of
 * its own, whose runs have `run` elements (0: the whole row). */
static const struct {
    const char *name;
    enum stored_code code;
    enum stored_scale scale;
    uint64_t group, run, lines_per_scale;
} formats[STORED_FORMAT_COUNT] = {
    [STORED_WORKING] = {"working", STORED_CODE_DYNAMIC, STORED_SCALE_FP32, 0, 0, 1},
    [STORED_INT8] = {"int8", STORED_CODE_DYNAMIC, STORED_SCALE_FP32, 256, 0, 1},
    [STORED_INT8_ROWS] = {"int8_rows", STORED_CODE_INT8, STORED_SCALE_FP32, 0, 0, 1},
    [STORED_NF4] = {"nf4", STORED_CODE_NF4, STORED_SCALE_FP32, 64, 0, 1},
    [STORED_NF4_DOUBLE] = {"nf4_double", STORED_CODE_NF4, STORED_SCALE_DOUBLE, 64, 0, 1},
    [STORED_FP4] = {"fp4", STORED_CODE_FP4, STORED_SCALE_FP32, 64, 0, 1},
    [STORED_FP4_DOUBLE] = {"fp4_double", STORED_CODE_FP4, STORED_SCALE_DOUBLE, 64, 0, 1},
    [STORED_FP8_ROWS] = {"fp8_rows", STORED_CODE_E4M3, STORED_SCALE_FP32, 0, 0, 1},
    [STORED_FP8_BLOCKS] = {"fp8_blocks", STORED_CODE_E4M3, STORED_SCALE_FP32, 0, 128, 128},
    [STORED_MXFP4] = {"mxfp4", STORED_CODE_E2M1, STORED_SCALE_E8M0, 32, 0, 1},
};

const char *stored_format_name(enum stored_format format)
{
    return (unsigned)format < STORED_FORMAT_COUNT ? formats[format].name : "unknown";
}

bool stored_fits(enum stored_format format, uint64_t columns)
{
    return format != STORED_MXFP4 || columns % formats[format].group == 0;
}

static uint64_t groups_of(uint64_t count, uint64_t group)
{
    return count / group + (count % group != 0);
}

stored_layout stored_layout_of(enum stored_format format, uint64_t rows, uint64_t columns)
{
    uint64_t group = formats[format].group, run = formats[format].run;
    assert(format != STORED_WORKING);
    assert(rows > 0 && columns > 0 && columns <= UINT64_MAX / 4 / rows);
    assert(stored_fits(format, columns));
    stored_layout layout = {.code = formats[format].code,
                            .scale = formats[format].scale,
                            .lines = group ? 1 : rows,
                            .line_elems = group ? rows * columns : columns,
                            .lines_per_scale = formats[format].lines_per_scale};
    layout.run_elems = group ? group : run ? run : columns;
    layout.line_runs = groups_of(layout.line_elems, layout.run_elems);
    layout.scale_count = groups_of(layout.lines, layout.lines_per_scale) * layout.line_runs;
    layout.code_bytes =
        stored_code_is_half_byte(layout.code) ? groups_of(rows * columns, 2) : rows * columns;
    layout.scale_bytes =
        layout.scale == STORED_SCALE_E8M0 ? layout.scale_count
        : layout.scale == STORED_SCALE_FP32
            ? layout.scale_count * 4
            : (groups_of(layout.scale_count, STORED_DOUBLE_GROUP) + 1) * 4 + layout.scale_count;
    return layout;
}
