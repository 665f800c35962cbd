"""What the pipeline does on this machine, beside plain DataFrame code in the same run.

    archive     one that is made for it
    plain       the same jobs as anybody would write them for Spark
    measuring   seconds, and CPU seconds of all processes that take part
    compared    a job beside its plain form
    figures     what is measured: jobs on an archive;
    streaming   a live server into a lake; and `clustered`, jobs on a `cluster` of its own
    cells       which of these; `sizes`, how large

The machine may be somebody else's too: that is what CPU seconds, and the plain form beside each
figure, are for. Needs the extra `mist-pubsub[spark]`; nothing of it is imported before.
"""
