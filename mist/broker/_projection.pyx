# cython: language_level=3
"""`projection.project_plain_in_python`, compiled: one pass over the bytes of some tag lists.

The Python function is the reference: whatever the bytes, both return the same, which
`tests/broker/test_projection_compiled.py` holds them to. A tag becomes a string for as long as it
is looked up; a list that is in order is never made anew.

What is read was written by unauthenticated peers. Every index into it is less than the size of
the bytes object that it is in; every tag is in `spans`, whose room is checked before one is added;
and what is written to `room` of a list is never longer than the list and two commas.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint64_t
from libc.stdlib cimport getenv, qsort
from libc.string cimport memcmp, memcpy

from mist.message import MAX_TAG

cdef char *switch = getenv("MIST_PURE")
if switch != NULL and switch not in (b"", b"0"):
    raise ImportError("compiled code is switched off by MIST_PURE")

# Where any character may take four bytes, these are as many as a tag has at most.
cdef Py_ssize_t MAX_CHARACTERS = MAX_TAG // 4
cdef Py_ssize_t MAX_ASCII = MAX_TAG

# Up to so many tags, moving each to its place takes less than `qsort`.
cdef enum:
    FEW = 16

# What a byte of a tag is.
cdef enum:
    PLAIN = 0
    MARK = 1  # not where a tag begins
    CONTINUES = 2  # a character that began before
    BEGINS = 3  # a character of several bytes
    NEVER = 4

cdef unsigned char KINDS[256]
for _byte in range(256):
    if _byte <= 0x20 or _byte == 0x7F:
        KINDS[_byte] = NEVER
    elif _byte < 0x80:
        KINDS[_byte] = MARK if _byte in b"/.=>" else PLAIN
    else:
        KINDS[_byte] = CONTINUES if _byte < 0xC0 else BEGINS


cdef struct Span:
    # A tag: where it stands, and its first eight bytes as a number, by which most are compared.
    const unsigned char *start
    Py_ssize_t size
    uint64_t head


cdef struct Row:
    # The tags of one list.
    Span *spans
    Py_ssize_t room
    Py_ssize_t tags
    bint in_order  # each is less than the next
    bint ascii
    Py_ssize_t longest  # characters in a tag


cdef inline uint64_t head_of(const unsigned char *start, Py_ssize_t size) noexcept nogil:
    cdef uint64_t head = 0
    cdef Py_ssize_t at
    for at in range(8):
        head = head << 8 | (start[at] if at < size else 0)
    return head


cdef int compare(const void *left, const void *right) noexcept nogil:
    """As bytes are: below, at or above 0."""
    cdef const Span *one = <const Span *>left
    cdef const Span *other = <const Span *>right
    if one.head != other.head:
        return -1 if one.head < other.head else 1
    cdef int found = memcmp(one.start, other.start, min(one.size, other.size))
    if found:
        return found
    return (one.size > other.size) - (one.size < other.size)


cdef bint split(Row *row, const unsigned char *text, Py_ssize_t size) noexcept nogil:
    """Find the tags of a list. Whether all of them are plain, and fit into the row.

    That the text is UTF-8 is left to be seen by who decodes it.
    """
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t begins, continued
    cdef unsigned char kind
    cdef Span *span
    row.tags = 0
    row.in_order = True
    row.ascii = True
    row.longest = 0
    while True:  # once a tag
        begins = at
        continued = 0
        if at == size or text[at] == c"," or KINDS[text[at]] == MARK or row.tags == row.room:
            return False
        while at < size and text[at] != c",":
            kind = KINDS[text[at]]
            if kind >= CONTINUES:
                if kind == NEVER:
                    return False
                row.ascii = False
                if kind == CONTINUES:
                    continued += 1
                elif text[at] == 0xC2 and at + 1 < size and text[at + 1] < 0xA0:
                    return False  # a control character, or no UTF-8
            at += 1
        if text[at - 1] == c"*":
            return False
        row.longest = max(row.longest, at - begins - continued)
        span = &row.spans[row.tags]
        span.start = text + begins
        span.size = at - begins
        span.head = head_of(span.start, span.size)
        if row.tags and compare(span - 1, span) >= 0:
            row.in_order = False
        row.tags += 1
        if at == size:
            return True
        at += 1


cdef void sort(Row *row) noexcept nogil:
    """Bring tags in order, each once."""
    cdef Py_ssize_t at, place
    cdef Span span
    if row.tags > FEW:
        qsort(row.spans, row.tags, sizeof(Span), compare)
    else:
        for at in range(1, row.tags):
            span = row.spans[at]
            place = at
            while place and compare(&row.spans[place - 1], &span) > 0:
                row.spans[place] = row.spans[place - 1]
                place -= 1
            row.spans[place] = span
    place = 1
    for at in range(1, row.tags):
        if compare(&row.spans[place - 1], &row.spans[at]):
            row.spans[place] = row.spans[at]
            place += 1
    row.tags = place


cdef bytes joined(const Row *row, unsigned char *room):
    """The tags of a row as a tag list."""
    cdef unsigned char *end = room
    cdef Py_ssize_t at
    for at in range(row.tags):
        if at:
            end[0] = c","
            end += 1
        memcpy(end, row.spans[at].start, row.spans[at].size)
        end += row.spans[at].size
    return PyBytes_FromStringAndSize(<char *>room, end - room)


cdef str projection_of(const Row *row, list tables, unsigned char *room):
    """Those of the tags of a row that are in the tables, with a comma before and behind each."""
    cdef unsigned char *end = room
    cdef const Span *span
    cdef Py_ssize_t at
    cdef Py_ssize_t mask = len(tables) - 1
    cdef str name
    cdef dict shard
    end[0] = c","
    end += 1
    for at in range(row.tags):
        span = &row.spans[at]
        name = PyUnicode_DecodeUTF8(<const char *>span.start, span.size, NULL)
        shard = tables[PyObject_Hash(name) & mask]
        if PyDict_Contains(shard, name):
            memcpy(end, span.start, span.size)
            end += span.size
            end[0] = c","
            end += 1
    return PyUnicode_DecodeUTF8(<char *>room, end - room, NULL)


def project_plain(tag_lists, index, Py_ssize_t most):
    """See `projection.project_plain_in_python`."""
    cdef list tables = index.tables
    cdef Row row
    cdef tuple written = tuple(tag_lists)
    cdef bytes tag_list
    cdef Py_ssize_t longest_list = 0
    cdef Py_ssize_t longest_tag = 0
    cdef bint ascii = True
    cdef list projections = []
    cdef list canonical = None
    cdef unsigned char *room = NULL
    for tag_list in written:
        if tag_list is None:
            raise TypeError("a tag list is bytes")
        longest_list = max(longest_list, PyBytes_GET_SIZE(tag_list))
    row.room = min(most, longest_list // 2 + 1)
    if row.room < 1:
        return None
    row.spans = <Span *>PyMem_Malloc(row.room * sizeof(Span))
    room = <unsigned char *>PyMem_Malloc(longest_list + 2)
    try:
        if row.spans == NULL or room == NULL:
            raise MemoryError
        for tag_list in written:
            if not split(
                &row, <unsigned char *>PyBytes_AS_STRING(tag_list), PyBytes_GET_SIZE(tag_list)
            ):
                return None
            ascii = ascii and row.ascii
            longest_tag = max(longest_tag, row.longest)
            if longest_tag > (MAX_ASCII if ascii else MAX_CHARACTERS):
                return None
            if row.in_order:
                if canonical is not None:
                    canonical.append(tag_list)
            else:
                if canonical is None:
                    canonical = list(written[: len(projections)])
                sort(&row)
                canonical.append(joined(&row, room))
            projections.append(projection_of(&row, tables, room))
        return projections, canonical
    except UnicodeDecodeError:
        return None
    finally:
        PyMem_Free(row.spans)
        PyMem_Free(room)
