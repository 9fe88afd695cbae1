"""What jobs serve, such as TensorBoard, for browsers: at a port of its own, and each
port of a job at a host name of its own. So nothing of a job runs at the address of our
page, or at that of another job.
"""
