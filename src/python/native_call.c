/* A long call of the library: the interpreter's lock, Ctrl-C, and exceptions of callbacks. See
 * native.h. */
#include <string.h>

#include "python/native.h"

/* The call that a Ctrl-C stops, and what handled it before. One call works at a time. */
static struct native_call *volatile watched;
static struct sigaction before;
/* The call that is at work, or NULL. The interpreter's lock protects it. */
static struct native_call *at_work;

/* Sets the library's flag, and does what Python would have done: its handler notes the signal, so
 * that KeyboardInterrupt is raised when the call is over. */
static void on_interrupt(int number)
{
    struct native_call *call = watched;
    if (call)
        call->stop = 1;
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
}

void native_call_begin(struct native_call *self, bool watches)
{
    if (watches) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_interrupt;
        action.sa_flags = SA_RESTART; /* file I/O of the library is not interrupted */
        sigemptyset(&action.sa_mask);
        watched = self;
        if (sigaction(SIGINT, &action, &before) != 0)
            watched = NULL;
    }
    at_work = self;
    self->state = PyEval_SaveThread();
}

void native_call_stop(void)
{
    if (at_work)
        at_work->stop = 1;
}

int native_call_end(struct native_call *self)
{
    PyEval_RestoreThread(self->state);
    self->state = NULL;
    at_work = NULL;
    if (watched == self) {
        (void)sigaction(SIGINT, &before, NULL);
        watched = NULL;
    }
    if (self->type) {
        PyErr_Restore(self->type, self->value, self->traceback); /* takes the references */
        self->type = self->value = self->traceback = NULL;
        return -1;
    }
    return PyErr_CheckSignals();
}

int native_call_back(struct native_call *self, PyObject *callable, const char *format, ...)
{
    PyEval_RestoreThread(self->state);
    if (!self->type) {
        PyObject *result = NULL;
        if (callable) {
            va_list list;
            va_start(list, format);
            PyObject *arguments = Py_VaBuildValue(format, list);
            va_end(list);
            result = arguments ? PyObject_CallObject(callable, arguments) : NULL;
            Py_XDECREF(arguments);
        }
        if ((callable && !result) || PyErr_CheckSignals() < 0) {
            PyErr_Fetch(&self->type, &self->value, &self->traceback);
            self->stop = 1;
        }
        Py_XDECREF(result);
    }
    int rc = self->type ? -1 : 0;
    self->state = PyEval_SaveThread();
    return rc;
}
