"""The pipelines that make samples ahead of time, for each class by itself.

In order: `generation` makes series, `sampling` draws workloads from them, `answering`
has the trusted executor answer those, and `eviction` removes what is old. Each is a
`step`; the `dispatcher` repeats them.
"""
