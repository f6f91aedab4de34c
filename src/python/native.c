/* The module: errors, lists of texts, and its table. See native.h. */
#include "python/native.h"

static PyObject *make_error; /* sluice._errors.make_error(status, text) */

PyObject *native_raise(int status)
{
    PyObject *text = PyUnicode_DecodeUTF8(sluice_error(), (Py_ssize_t)strlen(sluice_error()), "replace");
    PyObject *error = text ? PyObject_CallFunction(make_error, "iO", status, text) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(text);
    return NULL;
}

void native_texts_fini(struct native_texts *self)
{
    Py_CLEAR(self->list);
    PyMem_Free(self->items);
    self->items = NULL;
    self->count = 0;
}

int native_texts_init(struct native_texts *self, PyObject *sequence, const char *what)
{
    *self = (struct native_texts){.list = NULL};
    Py_ssize_t count = sequence == Py_None ? 0 : PySequence_Size(sequence);
    if (count < 0)
        return -1;
    self->list = PyTuple_New(count);
    self->items = PyMem_Calloc((size_t)count + 1, sizeof *self->items);
    if (!self->list || !self->items)
        goto failed;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i), *bytes = NULL;
        if (!item)
            goto failed;
        if (!PyUnicode_FSConverter(item, &bytes)) {
            Py_DECREF(item);
            PyErr_Format(PyExc_TypeError, "%s must be a list of str", what);
            goto failed;
        }
        Py_DECREF(item);
        PyTuple_SetItem(self->list, i, bytes); /* takes the reference */
        self->items[i] = PyBytes_AsString(bytes);
    }
    self->count = (size_t)count;
    return 0;
failed:
    native_texts_fini(self);
    return -1;
}

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(sluice_version());
}

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS, "The library's version."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sluice._native",
    .m_doc = "libsluice; see the package sluice.",
    .m_size = -1, /* one interpreter: a process has one run */
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
    if (!module || native_session_add(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
