/* Whole files and directories: limits, atomic writes and their failures, directories and paths. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "tests/directory.h"

/* ---- fsync as a file system may answer it ---- */

static int fsync_directory_errno, fsync_file_errno, directory_syncs;

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    directory_syncs += S_ISDIR(info.st_mode);
    errno = S_ISDIR(info.st_mode) ? fsync_directory_errno : fsync_file_errno;
    return errno ? -1 : __real_fsync(fd);
}

/* ---- helpers ---- */

static bool is_there(const char *name)
{
    return access(in_directory(name), F_OK) == 0;
}

static void expect_content(const char *name, const char *expected)
{
    char *text;
    uint64_t bytes;
    assert_ok(file_read(in_directory(name), 1 << 20, &text, &bytes));
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(text, expected);
    mem_free(text);
}

static void expect_read_error(const char *path, uint64_t bytes_max, const char *part)
{
    char *text = (char *)1;
    uint64_t bytes = 1;
    assert_int_equal(file_read(path, bytes_max, &text, &bytes), ERR_INPUT);
    assert_null(text);
    assert_int_equal(bytes, 0);
    if (!strstr(err_text(), part))
        fail_msg("\"%s\" does not say \"%s\"", err_text(), part);
}

/* ---- tests ---- */

static void paths_are_joined(void **state)
{
    char out[8];
    assert_ok(file_join(out, sizeof out, "abc", "def"));
    assert_string_equal(out, "abc/def");
    assert_int_equal(file_join(out, sizeof out, "abcd", "def"), ERR_INPUT);
    assert_string_equal(out, "");
    assert_non_null(strstr(err_text(), "abcd/def is longer than 7 bytes"));

    char *longest = malloc(FILE_PATH_BYTES), temporary[FILE_PATH_BYTES];
    memset(longest, 'a', FILE_PATH_BYTES - 1);
    longest[FILE_PATH_BYTES - 1] = '\0';
    int fd;
    assert_int_equal(file_open_temporary(longest, FILE_PRIVATE, temporary, &fd), ERR_INPUT);
    assert_int_equal(fd, -1);
    assert_int_equal(file_write(longest, FILE_PRIVATE, "", 0), ERR_INPUT);
    free(longest);
}

static void files_are_read(void **state)
{
    assert_ok(file_write(in_directory("read"), FILE_PRIVATE, "0123456789", 10));
    char *text;
    uint64_t bytes;
    assert_ok(file_read(in_directory("read"), 10, &text, &bytes));
    assert_int_equal(bytes, 10);
    assert_string_equal(text, "0123456789");
    mem_free(text);
    assert_ok(file_write(in_directory("empty"), FILE_PRIVATE, "", 0));
    expect_content("empty", "");

    expect_read_error(in_directory("read"), 9, "10 bytes, more than the 9");
    expect_read_error(in_directory("none"), 9, "cannot open");
    expect_read_error(directory, 9, "is a directory, no regular file");
    assert_int_equal(mkfifo(in_directory("pipe"), 0600), 0);
    expect_read_error(in_directory("pipe"), 9, "is a pipe, no regular file");
    expect_read_error("/dev/null", 9, "is a device, no regular file");
    /* The kernel's files say that they have no bytes. */
    assert_ok(file_read("/proc/self/status", 1 << 20, &text, &bytes));
    assert_true(bytes > 100);
    mem_free(text);
    expect_read_error("/proc/self/status", 100, "more than the 100 bytes");
}

static void pipes_are_read(void **state)
{
    int ends[2];
    char *text, piece[300];
    uint64_t bytes;
    memset(piece, 'x', sizeof piece);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    for (int i = 0; i < 200; i++) /* 60000 bytes: within what a pipe holds */
        assert_int_equal(write(ends[1], piece, sizeof piece), sizeof piece);
    close(ends[1]);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]); /* as a shell's <(...) */
    assert_ok(file_read_any(path, 60000, &text, &bytes));
    assert_int_equal(bytes, 60000);
    assert_int_equal(strlen(text), 60000);
    mem_free(text);
    close(ends[0]);

    assert_error(file_read_any("/dev/zero", 200000, &text, &bytes), ERR_INPUT,
                 "/dev/zero has more than the 200000 bytes");
    assert_null(text);
    assert_error(file_read_any(directory, 10, &text, &bytes), ERR_INPUT,
                 " is a directory, no file");
    /* It waits for a slow writer of a pipe, but not for one that does not exist. */
    assert_int_equal(mkfifo(in_directory("lonely"), 0600), 0);
    assert_error(file_read_any(in_directory("lonely"), 10, &text, &bytes), ERR_INPUT,
                 "lonely gives no text: it is a pipe that nobody writes to");
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) {
        close(ends[0]);
        (void)usleep(20000);
        _exit(write(ends[1], "late", 4) != 4);
    }
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    assert_ok(file_read_any(path, 10, &text, &bytes));
    assert_string_equal(text, "late");
    mem_free(text);
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(writer, &status, 0), writer);
    assert_int_equal(status, 0);
}

static void writes_replace(void **state)
{
    directory_syncs = 0;
    assert_ok(file_write(in_directory("file"), FILE_PRIVATE, "first", 5));
    assert_int_equal(directory_syncs, 1);
    expect_content("file", "first");
    assert_ok(file_write(in_directory("file"), FILE_PRIVATE, "second", 6));
    expect_content("file", "second");
    assert_false(is_there("file.partial"));
    /* A file that a killed process left is written over. */
    FILE *left = fopen(in_directory("file.partial"), "w");
    fputs("much longer than what follows", left);
    fclose(left);
    assert_ok(file_write(in_directory("file"), FILE_PRIVATE, "third", 5));
    expect_content("file", "third");
    assert_false(is_there("file.partial"));
}

/* The old file stays, and no temporary is left. */
static void expect_unchanged(int rc, int expected)
{
    assert_int_equal(rc, expected);
    assert_false(is_there("file.partial"));
    expect_content("file", "old");
}

static int fill_and_fail(void *user, FILE *out)
{
    fputs("some", out);
    return err_set(*(const int *)user, "no more");
}

static void failures_leave_the_old_file(void **state)
{
    const char *path = in_directory("file");
    int own = ERR_INTERNAL;
    assert_ok(file_write(path, FILE_PRIVATE, "old", 3));
    expect_unchanged(file_write_with(path, FILE_PRIVATE, fill_and_fail, &own), ERR_INTERNAL);
    assert_string_equal(err_text(), "no more");
    fsync_file_errno = EIO;
    expect_unchanged(file_write(path, FILE_PRIVATE, "new", 3), -EIO);
    fsync_file_errno = 0;

    /* No space: the file may not grow beyond a limit. Small writes fail when the stream is flushed,
     * large ones at once. */
    struct rlimit old_limit, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
    limit = (struct rlimit){.rlim_cur = 16, .rlim_max = old_limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    static const char large[1 << 20];
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int small_rc = file_write(path, FILE_PRIVATE, large, 17),
        large_rc = file_write(path, FILE_PRIVATE, large, sizeof large);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
    expect_unchanged(small_rc, -EFBIG);
    expect_unchanged(large_rc, -EFBIG);

    assert_int_equal(mkdir(in_directory("taken"), 0777), 0);
    assert_int_equal(file_write(in_directory("taken"), FILE_PRIVATE, "x", 1), -EISDIR);
    assert_false(is_there("taken.partial"));
    assert_int_equal(file_write(in_directory("none/file"), FILE_PRIVATE, "x", 1), -ENOENT);
}

/* Writes to a drive without space in place of the file. */
static int fill_full_drive(void *user, FILE *out)
{
    static const char large[1 << 20];
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(full >= 0 && dup2(full, fileno(out)) >= 0);
    close(full);
    fwrite(large, 1, *(const size_t *)user, out);
    return 0;
}

/* The error of a small write comes when the stream is flushed. A large write leaves only that there
 * was one. */
static void full_drives_are_reported(void **state)
{
    size_t sizes[] = {1, 1 << 20};
    for (int i = 0; i < 2; i++) {
        int rc = file_write_with(in_directory("full"), FILE_PRIVATE, fill_full_drive, &sizes[i]);
        assert_true(rc == -ENOSPC || (i == 1 && rc == -EIO));
        assert_non_null(strstr(err_text(), "cannot write"));
        assert_false(is_there("full.partial"));
        assert_false(is_there("full"));
    }
}

/* An append that fails leaves what was there. */
static void open_files_are_read_and_written(void **state)
{
    char text[8] = "";
    struct rlimit old, limit;
    int fd = open(in_directory("open"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(file_append(fd, "abc", 3));
    assert_ok(file_write_at(fd, 1, "B", 1));
    assert_int_equal(file_read_at(fd, 1, text, sizeof text), 2);
    assert_string_equal(text, "Bc");
    assert_int_equal(file_read_at(fd, 3, text, 1), 0);
    assert_int_equal(file_read_at(-1, 0, text, 1), -EBADF);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){5, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = file_append(fd, "defg", 4);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, -EFBIG);
    close(fd);
    expect_content("open", "aBc");
}

static void open_files_are_published(void **state)
{
    char temporary[FILE_PATH_BYTES];
    const char *path = in_directory("published");
    int fd;
    assert_ok(file_open_temporary(path, FILE_PRIVATE, temporary, &fd));
    assert_int_equal(write(fd, "abc", 3), 3);
    assert_ok(file_publish(&fd, temporary, in_directory("published")));
    assert_int_equal(fd, -1);
    expect_content("published", "abc");

    assert_ok(file_open_temporary(path, FILE_PRIVATE, temporary, &fd));
    assert_int_equal(file_publish(&fd, temporary, in_directory("missing/published")), -ENOENT);
    assert_int_equal(fd, -1);
    assert_false(is_there("published.partial"));
    fsync_file_errno = ENOSPC;
    assert_ok(file_open_temporary(path, FILE_PRIVATE, temporary, &fd));
    assert_int_equal(file_publish(&fd, temporary, in_directory("published")), -ENOSPC);
    fsync_file_errno = 0;
    assert_false(is_there("published.partial"));
    expect_content("published", "abc");
}

/* File systems that keep no entries answer EINVAL: everywhere a success. Other answers are
 * failures. */
static void directories_are_synced(void **state)
{
    uint32_t made;
    fsync_directory_errno = EINVAL;
    assert_ok(file_sync_directory(directory));
    assert_ok(file_sync_parent(in_directory("x")));
    assert_ok(file_write(in_directory("synced"), FILE_PRIVATE, "1", 1));
    assert_ok(file_make_directories(in_directory("on/such/a/system"), FILE_PRIVATE, &made));
    assert_int_equal(made, 4);
    fsync_directory_errno = EIO;
    assert_int_equal(file_sync_directory(directory), -EIO);
    assert_int_equal(file_sync_parent(in_directory("x")), -EIO);
    assert_int_equal(file_write(in_directory("synced"), FILE_PRIVATE, "2", 1), -EIO);
    assert_int_equal(file_make_directories(in_directory("two/more"), FILE_PRIVATE, &made), -EIO);
    assert_int_equal(made, 0);
    assert_false(is_there("two"));
    fsync_directory_errno = 0;
    assert_false(is_there("synced.partial"));
    assert_int_equal(file_sync_directory(in_directory("none")), -ENOENT);
    assert_int_equal(file_sync_directory(in_directory("synced")), -ENOTDIR);
    assert_ok(file_sync_parent("/"));
    assert_ok(file_sync_parent("no-directory-part"));

    /* A directory that may not be read: the file system is synced. The superuser reads it all the
     * same. */
    fsync_directory_errno = EACCES;
    assert_ok(file_sync_parent(in_directory("synced")));
    assert_int_equal(file_sync_parent(in_directory("none")), -EACCES);
    fsync_directory_errno = 0;
}

static void directories_are_made(void **state)
{
    uint32_t made = 7;
    directory_syncs = 0;
    assert_ok(file_make_directories(in_directory("a//b/c/"), FILE_PRIVATE, &made));
    assert_int_equal(made, 3);
    assert_int_equal(directory_syncs, 3); /* the entry of each new one */
    assert_true(is_there("a/b/c"));
    assert_ok(file_make_directories(in_directory("a/b/c"), FILE_PRIVATE, &made));
    assert_int_equal(made, 0);
    assert_ok(file_make_directories(in_directory("a/b/d"), FILE_PRIVATE, NULL));
    assert_ok(file_make_directories("/", FILE_PRIVATE, &made));
    assert_ok(file_remove_empty("/"));                   /* a mount point stays */
    file_unmake_directories(in_directory("a//b/c/"), 3); /* d stays, and so does what holds it */
    assert_false(is_there("a/b/c"));
    assert_true(is_there("a/b/d"));

    /* Directories that were made before a failure are removed. */
    assert_ok(file_write(in_directory("a/file"), FILE_PRIVATE, "", 0));
    assert_int_equal(file_make_directories(in_directory("a/file/x"), FILE_PRIVATE, &made),
                     -ENOTDIR);
    assert_int_equal(made, 0);
    char name[400];
    memset(name, 'n', sizeof name);
    memcpy(name, "e/f/", 4);
    name[sizeof name - 1] = '\0';
    assert_int_equal(file_make_directories(in_directory(name), FILE_PRIVATE, &made), -ENAMETOOLONG);
    assert_int_equal(made, 0);
    assert_false(is_there("e"));
}

static unsigned mode_of(const char *name)
{
    struct stat status;
    assert_int_equal(lstat(in_directory(name), &status), 0);
    return status.st_mode & 07777u;
}

/* New files have the mode that was asked for, with any umask. Existing files keep their own. */
static void modes_are_as_asked(void **state)
{
    static const mode_t masks[] = {0, 0022, 0077};
    int fd;
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        mode_t before = umask(masks[i]);
        assert_ok(file_make_directories(in_directory("m/n"), 0640, NULL));
        assert_int_equal(mode_of("m"), 0750);
        assert_int_equal(mode_of("m/n"), 0750);
        assert_ok(file_write(in_directory("m/n/private"), FILE_PRIVATE, "1", 1));
        assert_int_equal(mode_of("m/n/private"), 0600);
        assert_ok(file_write(in_directory("m/n/wish"), 0664, "1", 1));
        assert_int_equal(mode_of("m/n/wish"), 0664);
        assert_ok(file_write(in_directory("m/n/shared"), FILE_SHARED, "1", 1));
        assert_int_equal(mode_of("m/n/shared"), 0666 & ~masks[i]);
        assert_ok(file_write(in_directory("m/n/as"), FILE_AS_DIRECTORY, "1", 1));
        assert_int_equal(mode_of("m/n/as"), 0640);
        assert_int_equal(file_mode_of(in_directory("m/n")), 0640);
        assert_int_equal(file_mode_of(in_directory("none")), FILE_PRIVATE);

        assert_int_equal(chmod(in_directory("m/n/private"), 0604), 0);
        assert_ok(file_write(in_directory("m/n/private"), FILE_PRIVATE, "2", 1));
        assert_ok(file_create(in_directory("m/n/private"), O_WRONLY, FILE_PRIVATE, &fd));
        close(fd);
        assert_int_equal(mode_of("m/n/private"), 0604);
        assert_int_equal(chmod(in_directory("m/n"), 0711), 0);
        assert_ok(file_make_directories(in_directory("m/n"), FILE_PRIVATE, NULL));
        assert_int_equal(mode_of("m/n"), 0711);
        static const char *const names[] = {"private", "wish", "shared", "as"};
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
            char path[32];
            snprintf(path, sizeof path, "m/n/%s", names[n]);
            assert_int_equal(unlink(in_directory(path)), 0);
        }
        assert_int_equal(rmdir(in_directory("m/n")), 0);
        assert_int_equal(rmdir(in_directory("m")), 0);
        umask(before);
    }
}

/* A link at the name of a file that is about to be written cannot redirect the write. */
static void links_are_not_written(void **state)
{
    char temporary[FILE_PATH_BYTES], victim[FILE_PATH_BYTES];
    int fd;
    snprintf(victim, sizeof victim, "%s", in_directory("victim"));
    assert_ok(file_write(victim, FILE_PRIVATE, "old", 3));

    assert_int_equal(symlink(victim, in_directory("new.partial")), 0);
    assert_ok(file_write(in_directory("new"), FILE_PRIVATE, "new", 3));
    expect_content("new", "new");
    assert_int_equal(symlink(victim, in_directory("new.partial")), 0);
    assert_ok(file_open_temporary(in_directory("new"), FILE_PRIVATE, temporary, &fd));
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    assert_int_equal(unlink(temporary), 0);

    assert_int_equal(symlink(victim, in_directory("link")), 0);
    assert_int_equal(file_create(in_directory("link"), O_RDWR, FILE_PRIVATE, &fd), -ELOOP);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err_text(), "link is a symbolic link"));
    assert_int_equal(file_create(in_directory("link"), O_RDWR | O_EXCL, FILE_PRIVATE, &fd),
                     -EEXIST);
    assert_ok(file_write(in_directory("link"), FILE_PRIVATE, "mine", 4));
    expect_content("link", "mine"); /* the link is replaced */
    expect_content("victim", "old");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_joined),
        cmocka_unit_test(files_are_read),
        cmocka_unit_test(pipes_are_read),
        cmocka_unit_test(writes_replace),
        cmocka_unit_test(failures_leave_the_old_file),
        cmocka_unit_test(full_drives_are_reported),
        cmocka_unit_test(open_files_are_read_and_written),
        cmocka_unit_test(open_files_are_published),
        cmocka_unit_test(directories_are_synced),
        cmocka_unit_test(directories_are_made),
        cmocka_unit_test(modes_are_as_asked),
        cmocka_unit_test(links_are_not_written),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
