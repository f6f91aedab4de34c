/* sluice._native: libsluice for Python, on the stable ABI of Python 3.9 (Py_LIMITED_API). The
 * modules in src/python/sluice are its only callers; they check and convert types, and give results
 * their classes.
 *
 * The interpreter's lock is released while the library works. Each function holds it when it
 * begins and when it ends. The library's callbacks take it through native_call_back.
 *
 * A function of the library that fails becomes an exception of sluice._errors with the library's
 * sentence and status. */
#ifndef SLUICE_PYTHON_NATIVE_H
#define SLUICE_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>
#include <stdbool.h>

#include "sluice.h"

/* A list of texts: the pointers are into `list`, which is owned. */
struct native_texts {
    PyObject *list; /* tuple of bytes, or NULL */
    const char **items;
    size_t count;
};
/* A converter of PyArg_Parse ("O&") to a struct native_texts, from a sequence of str or None. */
int native_texts_convert(PyObject *sequence, void *target);
void native_texts_fini(struct native_texts *self);

/* Sets the exception for a status and the library's last sentence. Returns NULL. Call it in the
 * thread that called the library, before anything else calls it. */
PyObject *native_raise(int status);

/* Sets WrongJob with the text. Returns NULL. */
PyObject *native_refuse(const char *text);

/* ---- one call at a time, in one process ----
 *
 * The library takes one call at a time. A call waits for another thread's that is one of an open
 * run, opens one, or only reads; it is refused while a whole training, evaluation or the like is at
 * work, and in the callbacks of a call. After a fork the child has neither the threads of its
 * parent's runs and of OpenMP, nor the runs' memory, which reads as zeros. So calls are refused
 * there once the parent has computed. */

enum native_use {
    NATIVE_READS,    /* does not compute */
    NATIVE_COMPUTES, /* refused while a run is open */
    NATIVE_OPENS,    /* a run; refused while one of several ranks is open */
    NATIVE_OF_RUN,   /* that is open */
};
/* A function that calls the library calls native_wait and native_enter before, and native_leave
 * after. Both return 0, or -1 with an exception; then native_leave must not follow. native_wait may
 * release the interpreter's lock, so what can change meanwhile is checked after it. */
int native_wait(void);
int native_enter(enum native_use use);
void native_leave(void);
/* A session tells that it is open, with the number of its ranks, or that it is not any more. */
void native_note_open(uint32_t world);
void native_note_closed(void);

/* ---- a call that Python watches ---- */

/* A long call of the library. Zeroed but for the callbacks, each a callable or NULL (borrowed). */
struct native_call {
    PyThreadState *state;               /* of the thread that called, while it works */
    volatile sig_atomic_t stop;         /* not 0: the library shall stop */
    PyObject *type, *value, *traceback; /* the first exception of a callback, or NULL */
    PyObject *on_step, *on_evaluation, *on_progress, *on_text, *on_token;
};
/* Releases the interpreter's lock. `watches`: a Ctrl-C sets `stop`, and Python handles it too. */
void native_call_begin(struct native_call *self, bool watches);
/* Takes the lock again. Returns 0, or -1 with the exception that a callback or a signal handler
 * raised. */
int native_call_end(struct native_call *self);
/* For callbacks on the thread that called: takes the lock, calls the callable with the arguments
 * (Py_BuildValue's format of a tuple), and releases the lock. An exception, of a signal handler
 * too, is kept and sets `stop`. Returns -1 if the library should end. */
int native_call_back(struct native_call *self, PyObject *callable, const char *format, ...);
/* Asks the call that is at work, if there is one, to stop. */
void native_call_stop(void);

/* ---- the callables that a run needs while it is opened: native_module.c ---- */

/* Each is a callable of sluice_options or NULL (borrowed). */
struct native_opening {
    PyObject *first;                    /* makes a new run's first weights */
    PyObject *share;                    /* gives all ranks of torchrun rank 0's bytes */
    PyObject *type, *value, *traceback; /* the first exception of one of them */
};
/* Takes callables or None, and sets what the options call. */
void native_opening_init(struct native_opening *self, PyObject *first, PyObject *share,
                         struct sluice_options *options);
/* Sets the exception that a callable raised; false: there is none. */
bool native_opening_raise(struct native_opening *self);

/* ---- a run whose passes Python computes: native_module.c ---- */

/* Enters the library for a call of a Session that may come from any thread of its process. Returns
 * the session's run, and native_leave must follow; or NULL with an exception. */
sluice_run *native_session_enter(PyObject *session);

/* Methods of Session. */
PyObject *native_module_begin(PyObject *session, PyObject *is_training);
PyObject *native_module_wait(PyObject *session, PyObject *unused);
PyObject *native_module_lend(PyObject *session, PyObject *addresses);
PyObject *native_module_pause(PyObject *session, PyObject *unused);
PyObject *native_module_done(PyObject *session, PyObject *loss);
PyObject *native_module_end(PyObject *session, PyObject *unused);
PyObject *native_module_abort(PyObject *session, PyObject *text);
PyObject *native_module_set_group(PyObject *session, PyObject *args);
PyObject *native_module_home(PyObject *session, PyObject *unit);

/* An object that owns the memory at the addresses of a run that is closed; until then it is
 * empty. */
PyObject *native_memory_new(void);
struct sluice_memory *native_memory_get(PyObject *memory);

/* ---- the module ---- */

/* Adds the type Session, or the functions of the tasks, to the module. 0, or -1 with an
 * exception. */
int native_session_add(PyObject *module);
int native_tasks_add(PyObject *module);

/* A step as a dict with the fields of sluice.Step. */
PyObject *native_step_value(const struct sluice_step_info *made);

#define NATIVE_WITH_KEYWORDS  (METH_VARARGS | METH_KEYWORDS)
#define NATIVE_FUNCTION(name) ((PyCFunction)(void (*)(void))(name))

#endif
