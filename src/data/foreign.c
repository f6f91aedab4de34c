/* Files of other programs that are often given as data: knows them by their first bytes, and says
 * what to do with each. See data_internal.h. Pure. */
#include <string.h>

#include "data/data_internal.h"

#define PARQUET                                                                                    \
    "a Parquet file, which this program does not read; make JSON lines of it: python3 -c "         \
    "\"import "                                                                                    \
    "sys, pandas; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', "        \
    "lines=True)\" FILE.parquet FILE.jsonl"
#define ARROW                                                                                      \
    "an Arrow file, which this program does not read; make JSON lines of it: python3 -c \"import " \
    "sys, datasets; datasets.Dataset.from_file(sys.argv[1]).to_json(sys.argv[2])\" FILE.arrow "    \
    "FILE.jsonl"
#define UTF16                     "text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
#define COMPRESSED(what, command) "compressed by " what "; unpack it first: " command " FILE"
#define PICKLE                                                                                     \
    "a Python pickle; write what it holds as JSON lines, or as NumPy's array of token ids"

/* A row that begins like another one stands before it. */
static const struct foreign {
    const char *begin;
    uint32_t bytes;
    const char *what;
} foreigners[] = {
    {"\x01\x34\xd8\x88", 4, "an llm.c token file in big-endian order; write it little-endian"},
    {"\x01\x34\xd9\xa1", 4, "an llm.c token file in big-endian order; write it little-endian"},
    {"\x8a\xd8\x34\x01", 4, "an llm.c evaluation file (magic 20240522); give a token file"},
    {"\xc6\xd7\x34\x01", 4, "an llm.c model checkpoint (magic 20240326); give a token file"},
    {"\xc7\xd7\x34\x01", 4, "an llm.c optimizer state (magic 20240327); give a token file"},
    {"\x93NUMPY", 6, "a NumPy array with a header; set data.format to npy or auto"},
    {"TNTIDX\0\0", 8,
     "an index of the oldest Megatron format (TNTIDX), which is not supported; make it again with "
     "Megatron's preprocess_data.py"},
    {"PAR1\x15", 5, PARQUET}, /* 0x15 begins a page or the footer */
    {"ARROW1\0\0", 8, ARROW},
    {"\xff\xff\xff\xff", 4, ARROW}, /* a stream, as the library datasets stores it */
    {"version https://git-lfs", 23,
     "the pointer of Git LFS to a file, and not the file; fetch it: git lfs pull"},
    {"SQLite format 3", 16, "an SQLite database; write the text that it holds as JSON lines"},
    {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file; write the text that it holds as JSON lines"},
    {"\xfd"
     "7zXZ",
     6, COMPRESSED("xz", "xz -d")},
    {"7z\xbc\xaf\x27\x1c", 6, "a 7-Zip archive; unpack it first: 7z x FILE"},
    {"\x28\xb5\x2f\xfd", 4, COMPRESSED("zstd", "zstd -d")},
    {"\x04\x22\x4d\x18", 4, COMPRESSED("lz4", "lz4 -d")},
    {"BZh91AY&SY", 10, COMPRESSED("bzip2", "bzip2 -d")},
    {"\x1f\x8b", 2, COMPRESSED("gzip", "gzip -d")},
    {"PK\x03\x04", 4,
     "a ZIP archive (as are .npz, .docx and PyTorch's .pt); give the text or tokens in it"},
    {"Rar!\x1a\x07", 6, "a RAR archive; unpack it first"},
    {"%PDF-1", 6, "a PDF document; extract its text first: pdftotext FILE NEW"},
    {"\x89PNG", 4, "an image; give text or tokens"},
    {"\xff\xd8\xff", 3, "an image; give text or tokens"},
    {"\x7f"
     "ELF",
     4, "a program; give text or tokens"},
    {"GGUF\x03\0\0\0", 8, "a model in the form GGUF; give text or tokens"},
    {"Obj\x01", 4, "an Avro file; write the records that it holds as JSON lines"},
    {"\xff\xfe\0\0", 4, "text in UTF-32; convert it: iconv -f UTF-32 -t UTF-8 FILE > NEW"},
    {"\xff\xfe", 2, UTF16},
    {"\xfe\xff", 2, UTF16},
    {"\x80\x02", 2, PICKLE},
    {"\x80\x03", 2, PICKLE},
    {"\x80\x04", 2, PICKLE},
    {"\x80\x05", 2, PICKLE},
};

int datai_refuse_foreign(const char *path, const unsigned char begin[DATAI_BEGIN_BYTES],
                         uint64_t file_bytes, uint32_t bytes_min)
{
    for (size_t i = 0; i < sizeof foreigners / sizeof foreigners[0]; i++)
        if (foreigners[i].bytes >= bytes_min && file_bytes >= foreigners[i].bytes &&
            memcmp(begin, foreigners[i].begin, foreigners[i].bytes) == 0)
            return err_set(ERR_INPUT, "%s is %s", path, foreigners[i].what);
    return 0;
}
