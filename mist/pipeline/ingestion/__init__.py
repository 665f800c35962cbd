"""From a live server into a lake, without a row going through Java.

    source      a streaming source whose tasks write what they read, and say which files
    tasks       one stretch of ids, read from the server and written as segments
    entering    a batch's files, entered in the lake's manifest: all of them or none
    lake        the folder: whose it is, who writes into it, what is tidied
    kinship     whether a log that was started anew still is the one in the lake

A lake is an archive (`mist.archive`) that a streaming query fills. Spark plans the batches,
keeps their offsets in its checkpoint, places the tasks and tries them again; Java gets one row
for each task. So writing costs what Arrow needs for it.

Each message is in the lake once, whatever is killed and when. A task writes below
`_lake/landing`, where no reader looks. When all of a batch have ended, the driver moves their
files to where they belong and enters them in one new generation of the manifest, together with
`sealed`, the id up to which the lake now has everything. Ids are consecutive, so `sealed` is all
there is to know: a batch that Spark has done again after a crash, cut into whatever tasks, lies
below it and is dropped; what was left by the first try is deleted when the lake is next opened.
"""
