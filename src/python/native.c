/* The module: errors, lists of texts, and its table. See native.h. */
#include "python/native.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static PyObject *make_error; /* sluice._errors.make_error(status, text) */

static PyObject *raise_text(int status, const char *text)
{
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *error = message ? PyObject_CallFunction(make_error, "iO", status, message) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(message);
    return NULL;
}

PyObject *native_raise(int status)
{
    return raise_text(status, sluice_error());
}

PyObject *native_refuse(const char *text)
{
    return raise_text(SLUICE_WRONG, text);
}

/* ---- lists of texts ---- */

void native_texts_fini(struct native_texts *self)
{
    Py_CLEAR(self->list);
    PyMem_Free(self->items);
    self->items = NULL;
    self->count = 0;
}

int native_texts_convert(PyObject *sequence, void *target)
{
    struct native_texts *self = target;
    if (!sequence) { /* another argument is wrong */
        native_texts_fini(self);
        return 0;
    }
    *self = (struct native_texts){.list = NULL};
    Py_ssize_t count = sequence == Py_None ? 0 : PySequence_Size(sequence);
    if (count < 0)
        return 0;
    self->list = PyTuple_New(count);
    self->items = PyMem_Calloc((size_t)count + 1, sizeof *self->items);
    if (!self->list || !self->items)
        goto failed;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i), *bytes = NULL;
        bool is_text = item && PyUnicode_FSConverter(item, &bytes);
        Py_XDECREF(item);
        if (!is_text) {
            PyErr_SetString(PyExc_TypeError, "texts must be a list of str");
            goto failed;
        }
        PyTuple_SetItem(self->list, i, bytes); /* takes the reference */
        self->items[i] = PyBytes_AsString(bytes);
    }
    self->count = (size_t)count;
    return Py_CLEANUP_SUPPORTED;
failed:
    native_texts_fini(self);
    return 0;
}

/* ---- one call at a time, in one process; the interpreter's lock protects these ---- */

static bool is_working;
static enum native_use working_use; /* what the call at work does */
static pthread_t worker;            /* the thread of the call at work, or else of the last one */
static unsigned wait_count;         /* calls that wait for their turn */
static unsigned run_count;          /* those that are open */
static uint32_t world;              /* ranks of the last one that was opened */
static bool is_ending;              /* the interpreter: no further call */
static pthread_t ender;     /* the thread that ends it: it may still commit or close the run */
static pid_t computing_pid; /* the process that computed first; 0: none */

/* True: the call may begin once another thread's is over. A whole training or evaluation takes too
 * long to wait for. The thread that worked last lets those that wait go first: else one that makes
 * call after call would keep them waiting. */
static bool must_wait(void)
{
    bool is_own = pthread_equal(worker, pthread_self());
    if (is_ending || computing_pid != getpid())
        return false;
    return is_working ? !is_own && working_use != NATIVE_COMPUTES : is_own && wait_count > 0;
}

int native_wait(void)
{
    while (must_wait()) {
        wait_count++;
        PyThreadState *thread = PyEval_SaveThread();
        usleep(200);
        PyEval_RestoreThread(thread);
        wait_count--;
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
    return 0;
}

int native_enter(enum native_use use)
{
    if (computing_pid != 0 && computing_pid != getpid())
        native_refuse("this process was forked from one in which Sluice computed, and the threads "
                      "that it needs are not here: start processes with the method \"spawn\", or "
                      "before the first call");
    else if (is_ending && !(use == NATIVE_OF_RUN && pthread_equal(ender, pthread_self())))
        native_refuse("the interpreter ends, and no further call can begin");
    else if (is_working)
        native_refuse(
            "a call of Sluice works in this process, in another thread or as the caller of "
            "this function, and there can be one at a time: wait until it is done");
    else if (run_count > 0 && use == NATIVE_COMPUTES)
        native_refuse("this process has a run open: close it first");
    else if (run_count > 0 && use == NATIVE_OPENS && world > 1)
        native_refuse("this process has a run of several ranks open, and there can be one such at "
                      "a time: close it first");
    else {
        is_working = true;
        working_use = use;
        worker = pthread_self();
        if (use != NATIVE_READS && computing_pid == 0)
            computing_pid = getpid();
        return 0;
    }
    return -1;
}

void native_leave(void)
{
    is_working = false;
}

void native_note_open(uint32_t ranks)
{
    run_count++;
    world = ranks;
}

void native_note_closed(void)
{
    run_count--;
}

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(sluice_version());
}

/* Called before the interpreter ends: a call that a daemon thread has left at work stops and
 * commits. The caller alone may then still use an open run, to commit and close it. */
static PyObject *end(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    is_ending = true;
    ender = pthread_self();
    if (computing_pid != 0 && computing_pid != getpid())
        Py_RETURN_NONE;
    while (is_working) {
        native_call_stop();
        PyThreadState *thread = PyEval_SaveThread();
        usleep(2000);
        PyEval_RestoreThread(thread);
    }
    Py_RETURN_NONE;
}

static PyObject *set_data_directory(PyObject *module, PyObject *path)
{
    PyObject *bytes = NULL;
    (void)module;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    sluice_set_data_directory(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS, "The library's version."},
    {"end", end, METH_NOARGS, "Waits until no call is at work, and lets none begin."},
    {"set_data_directory", set_data_directory, METH_O, "Where models.json and clusters.json are."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sluice._native",
    .m_doc = "libsluice; see the package sluice.",
    .m_size = -1, /* one interpreter: a process takes one call at a time */
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *errors = PyImport_ImportModule("sluice._errors");
    if (!errors)
        return NULL;
    make_error = PyObject_GetAttrString(errors, "make_error");
    Py_DECREF(errors);
    PyObject *module = make_error ? PyModule_Create(&definition) : NULL;
    if (!module || native_session_add(module) < 0 || native_tasks_add(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
