"""Model servers, batches and the spool: what keeps GPUs in use beside single jobs."""
