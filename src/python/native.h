/* sluice._native: libsluice for Python, on the stable ABI of Python 3.9 (Py_LIMITED_API). The
 * modules in src/python/sluice are its only callers; they check and convert types, and give results
 * their classes.
 *
 * The interpreter's lock is released while the library works. Each function holds it when it
 * begins and when it ends. The library's callbacks take it through native_call.
 *
 * A function of the library that fails becomes an exception of sluice._errors with the library's
 * sentence and status. */
#ifndef SLUICE_PYTHON_NATIVE_H
#define SLUICE_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "sluice.h"

/* A list of texts: the pointers are into `list`, which is owned. */
struct native_texts {
    PyObject *list; /* tuple of bytes, or NULL */
    const char **items;
    size_t count;
};
/* Takes a sequence of str. Returns 0, or -1 with an exception; nothing is then to be freed. */
int native_texts_init(struct native_texts *self, PyObject *sequence, const char *what);
void native_texts_fini(struct native_texts *self);

/* Sets the exception for a status and the library's last sentence. Returns NULL. Call it in the
 * thread that called the library, before anything else calls it. */
PyObject *native_raise(int status);


/* Adds the type Session to the module. 0, or -1 with an exception. */
int native_session_add(PyObject *module);

#endif
