/* The callbacks of a run that is opened, and Session's functions for a run whose passes Python
 * computes (model.module). See native.h.
 *
 * Session's calls may come from any thread: torch goes back on threads of its own. Addresses are
 * ints; sluice/torch/_memory.py makes tensors of them. */
#include <math.h>
#include <string.h>

#include "python/native.h"

/* ---- opening ---- */

/* On a thread of the library, while another one waits for the run to open. Calls the callable with
 * the arguments, whose reference it takes. Returns a new reference or NULL; the first exception is
 * kept, and no callable is called after it. */
static PyObject *call(struct native_opening *self, PyObject *callable, PyObject *arguments)
{
    PyObject *result = NULL;
    if (!self->type) {
        if (arguments)
            result = PyObject_CallObject(callable, arguments);
        if (!result)
            PyErr_Fetch(&self->type, &self->value, &self->traceback);
    }
    Py_XDECREF(arguments);
    return result;
}

/* sluice_options.first */
static int make_first(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    struct native_opening *self = user;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result =
        call(self, self->first,
             Py_BuildValue("(IKKK)", (unsigned int)unit, (unsigned long long)begin,
                           (unsigned long long)count, (unsigned long long)(uintptr_t)values));
    int rc = result ? 0 : -1;
    Py_XDECREF(result);
    PyGILState_Release(state);
    return rc;
}

/* sluice_options.share: the callable takes bytes and seconds, and returns the bytes of rank 0. */
static int share_bytes(void *user, void *data, size_t byte_count, double timeout_seconds)
{
    struct native_opening *self = user;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result =
        call(self, self->share,
             Py_BuildValue("(y#d)", (char *)data, (Py_ssize_t)byte_count, timeout_seconds));
    char *bytes = NULL;
    Py_ssize_t count = 0;
    int rc = result && PyBytes_AsStringAndSize(result, &bytes, &count) == 0 ? 0 : -1;
    if (rc == 0 && (size_t)count == byte_count)
        memcpy(data, bytes, byte_count);
    else
        rc = -1;
    if (PyErr_Occurred())
        PyErr_Fetch(&self->type, &self->value, &self->traceback);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return rc;
}

void native_opening_init(struct native_opening *self, PyObject *first, PyObject *share,
                         struct sluice_options *options)
{
    *self = (struct native_opening){.first = first == Py_None ? NULL : first,
                                    .share = share == Py_None ? NULL : share};
    options->first = self->first ? make_first : NULL;
    options->first_user = self;
    options->share = self->share ? share_bytes : NULL;
    options->share_user = self;
}

bool native_opening_raise(struct native_opening *self)
{
    if (!self->type)
        return false;
    PyErr_Restore(self->type, self->value, self->traceback); /* takes the references */
    self->type = NULL;
    return true;
}

/* ---- turns ---- */

static PyObject *finish(int status)
{
    native_leave();
    if (status != SLUICE_DONE)
        return native_raise(status);
    Py_RETURN_NONE;
}

PyObject *native_module_begin(PyObject *session, PyObject *is_training)
{
    int training = PyObject_IsTrue(is_training), status;
    sluice_run *run = training < 0 ? NULL : native_session_enter(session);
    if (!run)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_begin(run, training);
    PyEval_RestoreThread(thread);
    return finish(status);
}

/* The fields of sluice.torch._turns.Use. */
static PyObject *use_value(const struct sluice_use *use)
{
    PyObject *units = PyTuple_New(use->unit_count), *params = PyTuple_New(use->unit_count),
             *grads = PyTuple_New(use->unit_count), *fresh = PyTuple_New(use->unit_count),
             *elems = PyTuple_New(use->unit_count);
    for (uint32_t i = 0; i < use->unit_count && units && params && grads && fresh && elems; i++) {
        PyTuple_SetItem(units, i, PyLong_FromUnsignedLong(use->units[i]));
        PyTuple_SetItem(params, i, PyLong_FromVoidPtr((void *)(uintptr_t)use->params[i]));
        PyTuple_SetItem(grads, i, PyLong_FromVoidPtr(use->grads[i]));
        PyTuple_SetItem(fresh, i, PyBool_FromLong(use->fresh[i]));
        PyTuple_SetItem(elems, i, PyLong_FromUnsignedLongLong(use->elems[i]));
    }
    return Py_BuildValue("IiINNNNNdN", (unsigned int)use->stage, (int)use->pass,
                         (unsigned int)use->micro_batch, units, params, grads, fresh, elems,
                         use->grad_scale, PyBool_FromLong(use->lends));
}

PyObject *native_module_wait(PyObject *session, PyObject *unused)
{
    struct sluice_use use;
    int status;
    (void)unused;
    sluice_run *run = native_session_enter(session);
    if (!run)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_wait(run, &use);
    PyEval_RestoreThread(thread);
    native_leave();
    return status == SLUICE_DONE ? use_value(&use) : native_raise(status);
}

/* Takes a list of addresses, 0 for zeros. */
PyObject *native_module_lend(PyObject *session, PyObject *addresses)
{
    Py_ssize_t count = PySequence_Size(addresses);
    if (count < 0)
        return NULL;
    const void **grads = PyMem_Calloc((size_t)count + 1, sizeof *grads);
    if (!grads)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        PyObject *address = PySequence_GetItem(addresses, i);
        grads[i] = address ? PyLong_AsVoidPtr(address) : NULL;
        Py_XDECREF(address);
    }
    sluice_run *run = PyErr_Occurred() ? NULL : native_session_enter(session);
    PyObject *out = run ? finish(sluice_module_lend(run, grads, (uint32_t)count)) : NULL;
    PyMem_Free(grads);
    return out;
}

PyObject *native_module_pause(PyObject *session, PyObject *unused)
{
    (void)unused;
    sluice_run *run = native_session_enter(session);
    if (!run) { /* closed, or another thread is in a call: then updates wait */
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    PyThreadState *thread = PyEval_SaveThread();
    int has_run = sluice_module_pause(run);
    PyEval_RestoreThread(thread);
    native_leave();
    return PyBool_FromLong(has_run);
}

PyObject *native_module_done(PyObject *session, PyObject *loss)
{
    double value = loss == Py_None ? 0 : PyFloat_AsDouble(loss);
    int status;
    if (PyErr_Occurred())
        return NULL;
    sluice_run *run = native_session_enter(session);
    if (!run)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_done(run, loss == Py_None ? NULL : &value);
    PyEval_RestoreThread(thread);
    return finish(status);
}

PyObject *native_module_end(PyObject *session, PyObject *unused)
{
    struct sluice_step_info made;
    int status;
    (void)unused;
    sluice_run *run = native_session_enter(session);
    if (!run)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_end(run, &made);
    PyEval_RestoreThread(thread);
    native_leave();
    return status == SLUICE_DONE ? native_step_value(&made) : native_raise(status);
}

/* Returns whether the run goes on. */
PyObject *native_module_abort(PyObject *session, PyObject *text)
{
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    int status;
    sluice_run *run = bytes ? native_session_enter(session) : NULL;
    if (!run) {
        Py_XDECREF(bytes);
        return NULL;
    }
    const char *why = PyBytes_AsString(bytes);
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_abort(run, why);
    PyEval_RestoreThread(thread);
    native_leave();
    Py_DECREF(bytes);
    return PyBool_FromLong(status == SLUICE_DONE);
}

PyObject *native_module_set_group(PyObject *session, PyObject *args)
{
    struct sluice_group numbers;
    unsigned int group;
    int status;
    if (!PyArg_ParseTuple(args, "Iddddd", &group, &numbers.lr, &numbers.weight_decay,
                          &numbers.betas[0], &numbers.betas[1], &numbers.eps))
        return NULL;
    sluice_run *run = native_session_enter(session);
    if (!run)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_set_group(run, group, &numbers);
    PyEval_RestoreThread(thread);
    return finish(status);
}

/* ---- memory that outlives its run ---- */

static void free_memory(PyObject *object)
{
    struct sluice_memory *memory = native_memory_get(object);
    sluice_module_unmap(memory);
    PyMem_Free(memory);
}

PyObject *native_memory_new(void)
{
    struct sluice_memory *memory = PyMem_Calloc(1, sizeof *memory);
    PyObject *object = memory ? PyCapsule_New(memory, NULL, free_memory) : PyErr_NoMemory();
    if (!object)
        PyMem_Free(memory);
    return object;
}

struct sluice_memory *native_memory_get(PyObject *memory)
{
    return PyCapsule_GetPointer(memory, NULL);
}

/* (address, bytes), or None. */
PyObject *native_module_home(PyObject *session, PyObject *unit)
{
    unsigned long number = PyLong_AsUnsignedLong(unit);
    void *params = NULL;
    uint64_t size_bytes = 0;
    int status;
    if (PyErr_Occurred())
        return NULL;
    sluice_run *run = native_session_enter(session);
    if (!run)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = sluice_module_home(run, (uint32_t)number, &params, &size_bytes);
    PyEval_RestoreThread(thread);
    native_leave();
    if (status != SLUICE_DONE)
        return native_raise(status);
    if (!params)
        Py_RETURN_NONE;
    return Py_BuildValue("NK", PyLong_FromVoidPtr(params), (unsigned long long)size_bytes);
}
