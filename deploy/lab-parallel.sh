#!/usr/bin/env bash
# A sweep of `quietline lab` with GNU parallel, one job per machine at a time. The arguments are those of `quietline lab`:
#
#   deploy/lab-parallel.sh all --quick                  # on this machine
#   MACHINES=machines.txt deploy/lab-parallel.sh all    # by ssh on the machines that the file lists
#
# RESULTS names another directory than `results`; the machines must share the current directory. A sweep that was
# interrupted goes on where it stopped.
set -euo pipefail

results=${RESULTS:-results}
[[ $# -gt 0 ]] || set -- all
where=()
if [[ -n ${MACHINES:-} ]]; then
    where=(--sshloginfile "$MACHINES" --workdir "$PWD")
fi
jobs=$(quietline lab "$@" --plan | wc -l)
mkdir -p "$results"
# Two jobs on one machine would disturb each other.
seq 0 $((jobs - 1)) | parallel --jobs 1 --joblog "$results/jobs.log" --resume-failed "${where[@]}" \
    quietline lab "$@" --job {} --report "$results/{}" ">" /dev/null
quietline lab merge "$results"/*/lab.json --report "$results"
