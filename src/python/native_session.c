/* The type Session: an open run, step by step. See native.h.
 *
 * step, evaluate and export belong to the thread that opened the session. Any thread may make the
 * other calls: the opener may have ended.
 *
 * A session belongs to its process. A process that was forked from it has none of the
 * run's threads, rings and locks, and zeros in its memory, so each call there is refused, and
 * nothing is freed while the run is open.
 */
#include <pthread.h>
#include <unistd.h>

#include "python/native.h"

struct session {
    PyObject head;
    sluice_run *run; /* NULL: closed */
    pthread_t owner;
    pid_t process;
    PyObject *memory; /* what refers to the run's addresses has this too; NULL: none does */
    bool keeps_params;
};
typedef struct session session;

/* Checks that the run can be used from here, and enters the library. 0, or -1 with an exception. */
static int enter(const session *self, bool from_any_thread)
{
    if (native_wait() < 0)
        return -1;
    if (self->process != getpid())
        native_refuse(
            "this run was opened by the process that this one was forked from, which goes on "
            "with it: start processes with the method \"spawn\", or before the run is opened");
    else if (!self->run)
        native_refuse("this run is closed");
    else if (!from_any_thread && !pthread_equal(self->owner, pthread_self()))
        native_refuse(
            "this run was opened by another thread, and only that one calls step, evaluate and "
            "export: others may commit and close it");
    else
        return native_enter(NATIVE_OF_RUN);
    return -1;
}

sluice_run *native_session_enter(PyObject *session_object)
{
    session *self = (session *)session_object;
    return enter(self, true) < 0 ? NULL : self->run;
}

/* Opens the run. Returns NULL with an exception if that fails. */
static session *open_run(PyTypeObject *type, const char *name, const struct sluice_options *options,
                         struct native_opening *opening)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    session *self = (session *)allocate(type, 0);
    if (!self)
        return NULL;
    self->owner = pthread_self();
    self->process = getpid();
    if (native_wait() < 0 || native_enter(NATIVE_OPENS) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    int status;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_open(name, options, &self->run);
    PyEval_RestoreThread(thread);
    native_leave();
    if (status == SLUICE_DONE) {
        struct sluice_info info;
        sluice_get_info(self->run, &info);
        native_note_open(info.world);
        return self;
    }
    if (!native_opening_raise(opening))
        native_raise(status);
    Py_DECREF((PyObject *)self);
    return NULL;
}

static PyObject *session_open(PyObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",    "text",  "set",   "start_from", "machine", "fresh",
                            "verbose", "first", "share", "temporary",  "alike",   NULL};
    PyObject *path = NULL, *first = Py_None, *share = Py_None;
    struct native_opening opening;
    struct sluice_options options = {.verbose = 0};
    struct native_texts texts;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "O&zO&zzpp|OOpz", names, PyUnicode_FSConverter, &path,
            &options.job_text, native_texts_convert, &texts, &options.from, &options.machine,
            &options.fresh, &options.verbose, &first, &share, &options.temporary, &options.alike))
        return NULL;
    options.set = texts.items;
    options.set_count = texts.count;
    native_opening_init(&opening, first, share, &options);
    session *self = open_run((PyTypeObject *)type, PyBytes_AsString(path), &options, &opening);
    native_texts_fini(&texts);
    Py_DECREF(path);
    return (PyObject *)self;
}

static PyObject *session_info(PyObject *object, PyObject *unused)
{
    session *self = (session *)object;
    struct sluice_info info;
    (void)unused;
    if (enter(self, true) < 0)
        return NULL;
    sluice_get_info(self->run, &info);
    native_leave();
    return Py_BuildValue(
        "{sK sK sK sK sI sI sK sK sK sd}", "param_count", (unsigned long long)info.param_count,
        "step", (unsigned long long)info.step, "steps", (unsigned long long)info.steps,
        "tokens_per_step", (unsigned long long)info.tokens_per_step, "rank",
        (unsigned int)info.rank, "world_size", (unsigned int)info.world, "device_bytes",
        (unsigned long long)info.device_bytes, "host_bytes", (unsigned long long)info.host_bytes,
        "nvme_bytes", (unsigned long long)info.nvme_bytes, "step_seconds", info.step_seconds);
}

static PyObject *session_step(PyObject *object, PyObject *unused)
{
    session *self = (session *)object;
    struct sluice_step_info made;
    int status;
    (void)unused;
    if (enter(self, false) < 0)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_step(self->run, &made);
    PyEval_RestoreThread(thread);
    native_leave();
    if (status != SLUICE_DONE)
        return native_raise(status);
    return native_step_value(&made);
}

static PyObject *session_evaluate(PyObject *object, PyObject *unused)
{
    session *self = (session *)object;
    double loss = 0;
    int status;
    (void)unused;
    if (enter(self, false) < 0)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_evaluate(self->run, &loss);
    PyEval_RestoreThread(thread);
    native_leave();
    return status == SLUICE_DONE ? PyFloat_FromDouble(loss) : native_raise(status);
}

static PyObject *session_commit(PyObject *object, PyObject *unused)
{
    session *self = (session *)object;
    uint64_t step = 0;
    int status;
    (void)unused;
    if (enter(self, true) < 0)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_commit(self->run, &step);
    PyEval_RestoreThread(thread);
    native_leave();
    return status == SLUICE_DONE ? PyLong_FromUnsignedLongLong(step) : native_raise(status);
}

/* Takes bytes, and returns rank 0's as a bytearray. */
static PyObject *session_broadcast(PyObject *object, PyObject *data)
{
    session *self = (session *)object;
    char *own = NULL;
    Py_ssize_t count = 0;
    int status;
    if (PyBytes_AsStringAndSize(data, &own, &count) < 0)
        return NULL;
    PyObject *out = PyByteArray_FromStringAndSize(own, count);
    if (!out || enter(self, true) < 0) {
        Py_XDECREF(out);
        return NULL;
    }
    char *bytes = PyByteArray_AsString(out);
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_broadcast(self->run, bytes, (uint64_t)count);
    PyEval_RestoreThread(thread);
    native_leave();
    if (status == SLUICE_DONE)
        return out;
    Py_DECREF(out);
    return native_raise(status);
}

static PyObject *session_export(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"directory", "dtype", "adapters", "force", NULL};
    session *self = (session *)object;
    PyObject *directory = NULL;
    const char *dtype = NULL;
    int adapters = 0, force = 0, status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|zpp", names, PyUnicode_FSConverter,
                                     &directory, &dtype, &adapters, &force))
        return NULL;
    if (enter(self, false) < 0) {
        Py_DECREF(directory);
        return NULL;
    }
    const struct sluice_export_options options = {
        .dtype = dtype, .adapters = adapters, .force = force};
    const char *name = PyBytes_AsString(directory);
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_export(self->run, name, &options);
    PyEval_RestoreThread(thread);
    native_leave();
    Py_DECREF(directory);
    if (status != SLUICE_DONE)
        return native_raise(status);
    Py_RETURN_NONE;
}

static PyObject *session_set_failure(PyObject *object, PyObject *failure)
{
    session *self = (session *)object;
    const char *text = PyBytes_AsString(failure);
    if (!text || enter(self, true) < 0)
        return NULL;
    sluice_set_failure(self->run, text);
    native_leave();
    Py_RETURN_NONE;
}

/* After native_enter. Returns the library's status. */
static int close_run(session *self)
{
    struct sluice_memory *memory = self->memory ? native_memory_get(self->memory) : NULL;
    sluice_run *run = self->run;
    int status;
    self->run = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = memory ? sluice_module_close(run, self->keeps_params, memory) : sluice_close(run);
    PyEval_RestoreThread(thread);
    native_leave();
    native_note_closed();
    Py_CLEAR(self->memory);
    return status;
}

static PyObject *session_close(PyObject *object, PyObject *unused)
{
    session *self = (session *)object;
    (void)unused;
    if (self->run && native_wait() < 0)
        return NULL;
    if (!self->run || self->process != getpid()) /* another thread may have closed it */
        Py_RETURN_NONE;
    if (enter(self, true) < 0)
        return NULL;
    int status = close_run(self);
    if (status != SLUICE_DONE)
        return native_raise(status);
    Py_RETURN_NONE;
}

static PyObject *session_is_open(PyObject *object, PyObject *unused)
{
    const session *self = (const session *)object;
    (void)unused;
    return PyBool_FromLong(self->run && self->process == getpid());
}

/* The owner of the run's memory: what uses its addresses refers to it. With keeps_params, what
 * module_home gave has its values after close() too; all else is then zero. */
static PyObject *session_memory(PyObject *object, PyObject *keeps_params)
{
    session *self = (session *)object;
    int keeps = PyObject_IsTrue(keeps_params);
    if (keeps < 0)
        return NULL;
    if (!self->memory)
        self->memory = native_memory_new();
    self->keeps_params = keeps;
    Py_XINCREF(self->memory);
    return self->memory;
}

/* A run that nobody closed: it is closed if that is possible here and now. Otherwise its memory
 * stays until the process ends, and the state is that of its last commit. At the end of the program
 * a thread may still be in a step of it. native_enter only checks that no call works, and nothing
 * waits here: at the end of the program no run is closed here. */
static void session_dealloc(PyObject *object)
{
    session *self = (session *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject *kind, *value, *traceback; /* of an exception that is on its way */
    PyErr_Fetch(&kind, &value, &traceback);
    if (self->run && self->process == getpid() && native_enter(NATIVE_READS) == 0)
        (void)close_run(self);
    Py_CLEAR(self->memory);
    PyErr_Clear();
    PyErr_Restore(kind, value, traceback);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef methods[] = {
    {"open", NATIVE_FUNCTION(session_open), NATIVE_WITH_KEYWORDS | METH_CLASS, "Opens a run."},
    {"info", session_info, METH_NOARGS, "Facts about the run."},
    {"step", session_step, METH_NOARGS, "Makes one step."},
    {"evaluate", session_evaluate, METH_NOARGS, "The loss on data.valid, nats per token."},
    {"commit", session_commit, METH_NOARGS, "Makes the state durable; returns its step."},
    {"broadcast", session_broadcast, METH_O, "Rank 0's bytes, as many as these."},
    {"export", NATIVE_FUNCTION(session_export), NATIVE_WITH_KEYWORDS,
     "Writes a Hugging Face checkpoint."},
    {"module_begin", native_module_begin, METH_O, "Begins a step, or an evaluation."},
    {"module_wait", native_module_wait, METH_NOARGS, "Waits for the next use."},
    {"module_lend", native_module_lend, METH_O, "Lends the use's gradients."},
    {"module_pause", native_module_pause, METH_NOARGS, "Runs updates; True if some waited."},
    {"module_done", native_module_done, METH_O, "The use is over."},
    {"module_end", native_module_end, METH_NOARGS, "Waits for the end of the step."},
    {"module_abort", native_module_abort, METH_O, "Gives the step up; True if the run goes on."},
    {"module_set_group", native_module_set_group, METH_VARARGS, "Sets a group's numbers."},
    {"module_home", native_module_home, METH_O, "Where a unit's params rest."},
    {"memory", session_memory, METH_O, "The owner of the run's memory."},
    {"set_failure", session_set_failure, METH_O, "The program ends by a failure, a text."},
    {"close", session_close, METH_NOARGS, "Commits and frees all."},
    {"is_open", session_is_open, METH_NOARGS, "False after close(), and in a forked process."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "An open run; see sluice.Session."},
    {Py_tp_methods, methods},
    {Py_tp_dealloc, session_dealloc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "sluice._native.Session",
    .basicsize = sizeof(session),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int native_session_add(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    if (!type || PyModule_AddObject(module, "Session", type) < 0) { /* takes the reference */
        Py_XDECREF(type);
        return -1;
    }
    return 0;
}
