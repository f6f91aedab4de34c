/* Session's functions for a run whose passes Python computes (model.module). See native.h.
 *
 * Their calls may come from any thread: torch goes back on threads of its own. Addresses are ints;
 * sluice/torch/_memory.py makes tensors of them. */
#include <math.h>

#include "python/native.h"

/* ---- first weights ---- */

void native_first_init(struct native_first *self, PyObject *callable)
{
    *self = (struct native_first){.callable = callable == Py_None ? NULL : callable};
}

/* sluice_options.first. On a thread of the library, while another one waits in sluice_open. */
static int make_first(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    struct native_first *self = user;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = NULL;
    if (!self->type) {
        result = PyObject_CallFunction(self->callable, "IKKK", (unsigned int)unit,
                                       (unsigned long long)begin, (unsigned long long)count,
                                       (unsigned long long)(uintptr_t)values);
        if (!result)
            PyErr_Fetch(&self->type, &self->value, &self->traceback);
    }
    int rc = result ? 0 : -1;
    Py_XDECREF(result);
    PyGILState_Release(state);
    return rc;
}

void native_first_options(struct native_first *self, struct sluice_options *options)
{
    if (!self->callable)
        return;
    options->first = make_first;
    options->first_user = self;
}

bool native_first_raise(struct native_first *self)
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
    return Py_BuildValue("IiINNNNNd", (unsigned int)use->stage, (int)use->pass,
                         (unsigned int)use->micro_batch, units, params, grads, fresh, elems,
                         use->grad_scale);
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
