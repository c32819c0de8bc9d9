#!/bin/bash
#SBATCH --job-name=rolecall
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
#SBATCH --requeue
# Trains on all machines of a Slurm job: sbatch examples/slurm.sh team.yaml /shared/runs/team
# A job that is requeued goes on where it was: the run folder must be on a disk that all machines see.
set -euo pipefail
config=$1 run=$2 port=${RAY_PORT:-6379}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
nodes=$SLURM_JOB_NUM_NODES

# Whoever has the token may use the cluster: only this job has it.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')

# Libraries that find variables of Slurm or MPI start as one rank of an MPI job.
without_mpi='unset $(compgen -e | grep -E "^(SLURM|PMI|PMIX|OMPI|MPI)_") || true;'

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    bash -c "$without_mpi exec ray start --head --port=$port --block" &
sleep 10
if ((nodes > 1)); then
    srun --nodes=$((nodes - 1)) --ntasks=$((nodes - 1)) --exclude="$head" --overlap \
        bash -c "$without_mpi until ray start --address=$head:$port --block; do sleep 2; done" &
fi
python - "$head:$port" "$nodes" << 'END'
import sys, time, ray
while True:
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        break
    except ConnectionError:
        time.sleep(2)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(2)
END

# Slurm sends SIGTERM ten minutes before the end: the run saves and ends, and is queued again.
source=$config; [[ -e $run/config.yaml ]] && source=$run
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap bash -c "$without_mpi exec env \
    RAY_ADDRESS=$head:$port rolecall train $source $([[ $source == "$run" ]] || echo "--output $run")" &
training=$!
trap 'kill -TERM $training; wait $training || true; scontrol requeue "$SLURM_JOB_ID"' TERM
status=0
wait $training || status=$?
kill $(jobs -p) 2> /dev/null || true
exit $status
