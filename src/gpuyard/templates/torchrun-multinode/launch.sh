#!/bin/sh
# Start the processes of this machine: one for each of its GPUs, or two without any.
# gpuyard sets NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT for a job on several nodes.
processes=${PROCESSES:-2}
case ${CUDA_VISIBLE_DEVICES:-} in
'' | -1) ;;
*) processes=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | wc -l) ;;
esac
if [ "${NNODES:-1}" = 1 ]; then
    exec python3 -m torch.distributed.run --standalone --nproc-per-node "$processes" train.py "$@"
fi
exec python3 -m torch.distributed.run --nnodes "$NNODES" --node-rank "$NODE_RANK" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
    --nproc-per-node "$processes" train.py "$@"
