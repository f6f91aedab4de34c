# Makes a C array of the report's template: report.html.in with report.css, report.js and
# report_timeline.js in their places.
#   cmake -DSOURCE=dir -DOUTPUT=file.c -P embed.cmake
file(READ ${SOURCE}/report.html.in page)
file(READ ${SOURCE}/report.css style)
file(READ ${SOURCE}/report.js script)
file(READ ${SOURCE}/report_timeline.js timeline)
string(REPLACE "@TIMELINE_SCRIPT@\n" "${timeline}" script "${script}")
string(REPLACE "@STYLE@\n" "${style}" page "${page}")
string(REPLACE "@SCRIPT@\n" "${script}" page "${page}")
string(HEX "${page}" digits)
string(LENGTH "${digits}" length)
math(EXPR length "${length} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${digits}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)"
       "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "/* Made from report.html.in, report.css and report.js by embed.cmake. */
#include \"report/report_internal.h\"

const uint64_t reporti_page_bytes = ${length};
const char reporti_page[] = {
${bytes}0};
")
