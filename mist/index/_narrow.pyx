# cython: language_level=3
"""`narrow.match_each_in_python`, compiled: where a message leads in the tree.

The Python function is the reference, to which `tests/index/test_narrow_compiled.py` holds this one.
The tables, tags and nodes are those of Python: they are read here, and never changed.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject, PyObject_Hash
from cpython.set cimport PySet_Contains
from cpython.unicode cimport PyUnicode_Split
from libc.stdlib cimport getenv

from mist.index.costs import HITS, LONG, PLACES, VISIT
from mist.index.nodes import Branch, Leaf

cdef char *switch = getenv("MIST_PURE")
if switch != NULL and switch not in (b"", b"0"):
    raise ImportError("compiled code is switched off by MIST_PURE")

cdef Py_ssize_t hits_in_unit = HITS
cdef Py_ssize_t tags_in_unit = LONG
cdef Py_ssize_t places_in_unit = PLACES
cdef Py_ssize_t slots_in_unit = VISIT
cdef type branch_type = Branch
cdef type leaf_type = Leaf


cdef inline PyObject *find(list table, object key) except? NULL:
    """What a sharded table has under a key; a borrowed reference, or NULL."""
    cdef Py_ssize_t mask = PyList_GET_SIZE(table) - 1
    return PyDict_GetItemWithError(table[PyObject_Hash(key) & mask], key)


cdef bint holds(set names, tuple key) except -1:
    for name in key:
        if not PySet_Contains(names, name):
            return False
    return True


cdef tuple groups_of(list keys, list groups):
    cdef list found = []
    cdef PyObject *group
    for key in keys:
        group = find(groups, key)
        if group == NULL:
            raise KeyError(key)
        found.append(<object>group)
    return tuple(found)


cdef class Walk:
    """The walk of one message.

    Attributes:
        names: its tags, and None.
        keys: entries that were found.
        near: places of the tree that are still to be looked at.
        chunks: bitmaps that are.
        places: how many places were looked at.
    """

    cdef list names
    cdef list keys
    cdef list near
    cdef list chunks
    cdef Py_ssize_t places

    cdef int enter(self, object tag, Py_ssize_t place) except -1:
        """Look at a tag of the message, which has this place among its names."""
        if type(tag) is branch_type:
            if self.visit(tag, place):
                self.places += 1
            return 0
        if type(tag) is not leaf_type:
            raise TypeError("a tag is a leaf or a branch")
        listed = tag.listed
        if listed is None:
            return 0
        if type(listed) is tuple:
            if len(<tuple>listed) == 1:
                self.keys.append(listed)
                return 0
            if (<tuple>listed)[0] not in self.names or (<tuple>listed)[1] not in self.names:
                return 0
        self.near.append(listed)
        self.places += 1
        return 0

    cdef bint visit(self, object node, Py_ssize_t but) except -1:
        """Look at a node: what is in it under the message's tags is near. Whether anything is.

        Under one of the names nothing is: that of the node itself.
        """
        cdef PyObject *child
        cdef Py_ssize_t at
        cdef Py_ssize_t before = PyList_GET_SIZE(self.near)
        for at in range(PyList_GET_SIZE(self.names)):
            if at == but:
                continue
            child = PyDict_GetItemWithError(node, self.names[at])
            if child != NULL:
                self.near.append(<object>child)
        cdef Py_ssize_t children = PyList_GET_SIZE(self.near) - before
        self.places += children
        chunk = node.chunk
        if chunk is not None:
            self.chunks.append(chunk)
            return True
        return children > 0

    cdef int finish(self) except -1:
        """Look at all that is near, and what comes near by that."""
        cdef Py_ssize_t at = 0
        cdef set names = set(self.names)
        while at < PyList_GET_SIZE(self.near):
            place = <object>PyList_GET_ITEM(self.near, at)
            at += 1
            if type(place) is tuple:
                if holds(names, <tuple>place):
                    self.keys.append(place)
            elif type(place) is list:
                for key in <list>place:
                    if holds(names, <tuple?>key):
                        self.keys.append(key)
            else:
                self.visit(place, -1)
        self.near.clear()
        return 0


cdef class Words:
    """The table of a `PairFilter`; held, it stays where it is.

    Attributes:
        there: whether there is one.
    """

    cdef bint there
    cdef Py_buffer table
    cdef unsigned long long *words
    cdef unsigned long long length

    def __cinit__(self, words):
        self.there = False
        if words is not None:
            PyObject_GetBuffer(words, &self.table, PyBUF_WRITABLE)
            self.there = True
            self.words = <unsigned long long *>self.table.buf
            self.length = self.table.len // sizeof(unsigned long long)

    def __dealloc__(self):
        if self.there:
            PyBuffer_Release(&self.table)

    cdef inline unsigned long long *find(
        self, unsigned long long both, unsigned long long *bits
    ) noexcept nogil:
        """The word of a pair, and its bits there; `both` are two hashes, added."""
        cdef unsigned long long one = 1
        cdef unsigned long long mixed = both * <unsigned long long>0x9E3779B97F4A7C15
        bits[0] = one << (mixed & 63) | one << (mixed >> 6 & 63)
        return self.words + ((mixed >> 32) * self.length >> 32)

    cdef bint has(self, unsigned long long both) noexcept nogil:
        """See `PairFilter.may_have`."""
        cdef unsigned long long bits
        cdef unsigned long long *word = self.find(both, &bits)
        return word[0] & bits == bits

    cdef void set(self, unsigned long long both) noexcept nogil:
        cdef unsigned long long bits
        cdef unsigned long long *word = self.find(both, &bits)
        word[0] |= bits


cdef unsigned long long added(object one, object other) except? 0:
    """Two hashes."""
    return <unsigned long long>PyObject_Hash(one) + <unsigned long long>PyObject_Hash(other)


def enter(words not None, one, other):
    """Enter an entry into the table of a `PairFilter`, by its two rarest tags."""
    Words(words).set(added(one, other))


def enter_all(words not None, list tags not None, list entries not None, list keys not None):
    """Enter those of some entries that are there; the tags and the entries in sharded tables."""
    cdef Words into = Words(words)
    cdef PyObject *tag
    cdef Py_ssize_t rarity, least, second
    for key in keys:
        if find(entries, key) == NULL:
            continue
        rarest = next_rarest = None
        least = second = 0
        for name in <tuple?>key:
            tag = find(tags, name)
            if tag == NULL:
                raise KeyError(name)
            rarity = (<object>tag).rarity
            if rarest is None or rarity < least:
                next_rarest, second = rarest, least
                rarest, least = name, rarity
            elif next_rarest is None or rarity < second:
                next_rarest, second = name, rarity
        into.set(added(rarest, rarest if next_rarest is None else next_rarest))


cdef enum:
    PAIRED = 8  # tags of a message, up to which its pairs are looked at
    RULED_OUT = 4  # messages, in the time it takes to find nothing for one by walking


cdef class Filter:
    """What `PairFilter` holds, to look into.

    Attributes:
        singles: places of the tags that may be entries by themselves, of the message looked at.
    """

    cdef Words words
    cdef unsigned long long[PAIRED] hashes
    cdef Py_ssize_t[PAIRED] singles
    cdef int single

    def __cinit__(self, words):
        self.words = Words(words)

    cdef bint rules_out(self, list names) except -1:
        """Whether no entry of several tags is among a message's; then `singles` are told."""
        cdef Py_ssize_t count = PyList_GET_SIZE(names) - 1
        cdef Py_ssize_t one, other
        cdef unsigned long long own
        if not self.words.there or count > PAIRED:
            return False
        self.single = 0
        for one in range(count):
            own = <unsigned long long>PyObject_Hash(names[one + 1])
            for other in range(one):
                if self.words.has(own + self.hashes[other]):
                    return False
            self.hashes[one] = own
            if self.words.has(own + own):
                self.singles[self.single] = one + 1
                self.single += 1
        return True


cdef int add_alone(PyObject *tag, list keys) except -1:
    """Add the entry of a tag alone, if there is one."""
    cdef PyObject *key
    if tag == NULL:
        return 0
    if type(<object>tag) is branch_type:
        key = PyDict_GetItemWithError(<object>tag, None)
        if key != NULL:
            keys.append(<object>key)
        return 0
    if type(<object>tag) is not leaf_type:
        raise TypeError("a tag is a leaf or a branch")
    listed = (<object>tag).listed
    if listed is None:
        return 0
    if type(listed) is tuple:
        if len(<tuple>listed) == 1:
            keys.append(listed)
        return 0
    for each in <list?>listed:
        if len(<tuple?>each) == 1:
            keys.append(each)
    return 0


def match_each(
    tags,
    list groups not None,
    pair_filter,
    go_through,
    projections,
    Py_ssize_t most,
    Py_ssize_t widest,
):
    """See `narrow.match_each_in_python`."""
    cdef list table = tags.tables
    cdef Py_ssize_t ruled_out = 0
    cdef Filter filter_ = Filter(pair_filter.words)
    cdef list found = []
    cdef dict alone = {}
    cdef Walk walk = Walk()
    cdef list names
    cdef PyObject *tag
    cdef PyObject *known
    cdef Py_ssize_t at
    cdef tuple hits
    walk.near = []
    for projection in projections:
        if most <= 0:
            break
        names = PyUnicode_Split(projection, ",", -1)
        names[0] = None  # where nothing stands, as behind the last comma
        if PyList_GET_SIZE(names) > 1:
            names.pop()
        if PyList_GET_SIZE(names) - 1 > widest:
            break
        walk.names = names
        walk.keys = []
        walk.chunks = []
        walk.places = 0
        if filter_.rules_out(names):
            ruled_out += 1
            most -= ruled_out % RULED_OUT == 0
            for at in range(filter_.single):
                add_alone(find(table, names[filter_.singles[at]]), walk.keys)
        else:
            most -= 1 + PyList_GET_SIZE(names) // tags_in_unit
            for at in range(1, PyList_GET_SIZE(names)):
                tag = find(table, names[at])
                if tag != NULL:
                    walk.enter(<object>tag, at)
            if walk.near:
                walk.finish()
        most -= walk.places // places_in_unit
        if walk.chunks:
            for chunk in walk.chunks:
                most -= 1 + <Py_ssize_t>chunk.capacity // slots_in_unit
            hits = go_through(walk.chunks, walk.keys, frozenset(names[1:]))
        elif PyList_GET_SIZE(walk.keys) != 1:
            hits = groups_of(walk.keys, groups)
        else:
            known = PyDict_GetItemWithError(alone, walk.keys[0])
            if known != NULL:
                hits = <tuple>known
            else:
                hits = alone[walk.keys[0]] = groups_of(walk.keys, groups)
        most -= len(hits) // hits_in_unit
        found.append(hits)
    return found
