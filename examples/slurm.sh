#!/usr/bin/env bash
# Train on several machines of a Slurm cluster: sbatch slurm.sh corpus.txt my-model --preset medium
#
# Both paths must be on a disk that all machines share. A job that was preempted, or ran out of time and is
# submitted again, resumes after its last checkpoint, with any number of machines.
#SBATCH --job-name=elmo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# With GPUs: set DEVICE=cuda and PROCESSES=4, and uncomment
##SBATCH --gpus-per-node=4
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
processes=${PROCESSES:-1}
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-1} / processes))
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # without it, a restarted machine does not find the others

# Start one torchrun per machine; all connect to the first machine. If one fails, srun stops the others.
srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$processes" --max-restarts 10 \
    --rdzv-backend c10d --rdzv-endpoint "$first:29400" --rdzv-id "$SLURM_JOB_ID" \
    -m elmo train "$1" --out "$2" --device "${DEVICE:-cpu}" "${@:3}"
