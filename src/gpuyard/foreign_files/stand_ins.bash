# srun and scontrol, for batch scripts on a node that is not Slurm's. `srun` starts the
# tasks of this node; `scontrol` knows only how to show host names.
srun() {
    local tasks=$SLURM_NTASKS_PER_NODE word value
    while [ $# -gt 0 ]; do
        word=$1
        case $word in
        --) shift && break ;;
        -[nNcGJpAtmwKW]?*) set -- "${word:0:2}" "${word:2}" "${@:2}" && continue ;;
        --exclusive=*) shift && continue ;;
        --*=*) set -- "${word%%=*}" "${word#*=}" "${@:2}" && continue ;;
        -*) ;;
        *) break ;;
        esac
        value=${2-}
        case $word in
        -n | --ntasks) tasks=$(((value + SLURM_NNODES - 1) / SLURM_NNODES)) && shift 2 ;;
        --ntasks-per-node) tasks=$value && shift 2 ;;
        -w | --nodelist)
            if [ "$SLURM_NNODES" -gt 1 ]; then
                echo "srun: error: $word: on a node of gpuyard, srun starts programs on that node only" >&2
                return 2
            fi
            shift 2
            ;;
        -N | --nodes | -c | --cpus-per-task | -G | --gpus | --gres | --gpus-per-node | \
            --gpus-per-task | --cpus-per-gpu | --mem | --mem-per-cpu | --mem-per-gpu | \
            -J | --job-name | -p | --partition | -A | --account | -t | --time | \
            --cpu-bind | --gpu-bind | --mem-bind | --mpi | --export | -m | \
            --distribution | --jobid | --hint | --threads-per-core | -W | --wait) shift 2 ;;
        -K* | --kill-on-bad-exit)
            shift
            [[ ${1-} =~ ^[01]$ ]] && shift
            ;;
        -u | --unbuffered | -l | --label | --exclusive | --exact | --overlap | \
            --pty | -v | --verbose | -Q | --quiet | -O | --overcommit | -s | \
            --oversubscribe) shift ;;
        *)
            echo "srun: error: $word: gpuyard does not know this option" >&2
            return 2
            ;;
        esac
    done
    if [ $# -eq 0 ]; then
        echo "srun: error: no program is named" >&2
        return 2
    fi
    if [ "$tasks" -eq 1 ] && [ "$SLURM_NNODES" -eq 1 ]; then
        SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_STEP_NUM_TASKS=1 "$@"
        return
    fi
    local rank failed=0 pids=() pid
    for ((rank = 0; rank < tasks; rank++)); do
        SLURM_LOCALID=$rank SLURM_PROCID=$((SLURM_NODEID * tasks + rank)) \
            SLURM_NTASKS=$((SLURM_NNODES * tasks)) SLURM_NPROCS=$((SLURM_NNODES * tasks)) \
            SLURM_STEP_NUM_TASKS=$((SLURM_NNODES * tasks)) "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=$?
    done
    return "$failed"
}

scontrol() {
    if [ "${1-}" = show ] && [[ ${2-} =~ ^hostnames?$ ]]; then
        echo "$SLURM_JOB_NODELIST"
        return
    fi
    echo "scontrol: error: $*: on a node of gpuyard, only \`scontrol show hostnames\` works" >&2
    return 1
}
